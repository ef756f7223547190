"""Clusters of real processes: a ZooKeeper, Apache's bookies, ours, or both in one cluster.

Jars are where `make interop` has put them; without them nothing starts, and says so.  Processes
listen on the loopback interface, on free ports, and end with the test session however it ends.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol, TypeAlias

from kazoo.client import KazooClient

from clients.cli.ports import PortChooser
from wire.messages.bookie import Answer, decode_answer

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_SESSION_S = 4  # so long the record stays of a bookie that was killed

Process: TypeAlias = "subprocess.Popen[str]"

_OPENED = (
    *("java.base/java.lang", "java.base/java.io", "java.base/java.nio", "java.base/java.util.zip"),
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.loader", "java.base/sun.net"),
)
SMALL_JVM = (
    *("-Xmx128m", "-XX:MaxDirectMemorySize=128m", "-XX:+UseSerialGC"),
    *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
)
SMALL_BOOKIE: Mapping[str, object] = {
    "dbStorage_writeCacheMaxSizeMb": 16,
    "dbStorage_readAheadCacheMaxSizeMb": 16,
    "dbStorage_rocksDB_blockCacheSize": 8 << 20,
    "numAddWorkerThreads": 1,
    "numReadWorkerThreads": 2,
    "numHighPriorityWorkerThreads": 2,
}
_LOG4J = """\
status=error
appender.err.type=Console
appender.err.name=err
appender.err.target=SYSTEM_ERR
appender.err.layout.type=PatternLayout
appender.err.layout.pattern=%d{ISO8601} [%t] %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.err.ref=err
"""


@dataclass(frozen=True, slots=True)
class Apache:
    """A release of Apache BookKeeper on this machine."""

    version: str
    jars: Path

    @classmethod
    def found(cls, environment: Mapping[str, str]) -> "Apache":
        version = environment.get("BOOKKEEPER", "4.18.0")
        cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        jars = Path(cache) / "daybook" / "interop" / f"bookkeeper-{version}"
        if not list(jars.glob("bookkeeper-server-*.jar")):
            raise RuntimeError(f"{jars} holds no BookKeeper: `make interop` fetches it")
        return cls(version, jars)

    def command(self, directory: Path, *words: str, jvm: Sequence[str] = SMALL_JVM) -> list[str]:
        directory.mkdir(parents=True, exist_ok=True)
        log4j = directory / "log4j2.properties"
        log4j.write_text(_LOG4J)
        return [
            *("java", *jvm, "-Djava.awt.headless=true"),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
            *("-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j2.configurationFile={log4j}"),
            *("-cp", f"{self.jars}/*", *words),
        ]


def start(command: Sequence[str], log: Path) -> Process:
    """A child with pipes to its standard input and output; what it logs is in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stderr:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=_die_with_parent,
        )


def run_daybook(log: Path, *words: str) -> Process:
    """`daybook WORDS` as a child."""
    return start([sys.executable, "-m", "clients.cli.main", *words], log)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    if process.poll() is None:
        process.send_signal(number)
    process.wait(PATIENCE_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


class Bookie(Protocol):
    """One bookie, of either kind.  Its id and its data survive it."""

    @property
    def name(self) -> str:
        """`own-0`, `apache-1`, and so on."""
        ...

    @property
    def bookie_id(self) -> str: ...

    @property
    def directory(self) -> Path:
        """All that it keeps."""
        ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def kill(self) -> None:
        """As a crash does."""
        ...

    def pause(self) -> None:
        """It stays connected, and does nothing."""
        ...


class _Bookie:
    """What the two kinds have in common."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.cluster = cluster
        self._name = name
        self._directory = cluster.zookeeper.directory / cluster.root.strip("/") / name
        self.port = cluster.zookeeper.free_port()
        self.process: Process | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"

    def kill(self) -> None:
        if self.process is not None:
            end(self.process)
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)


class ApacheBookie(_Bookie):
    """Apache's, with the storage that Pulsar uses, or with its default one."""

    def __init__(
        self,
        cluster: "Cluster",
        name: str,
        *,
        rocks: bool,
        jvm: Sequence[str],
        settings: Mapping[str, object],
    ) -> None:
        super().__init__(cluster, name)
        self._rocks = rocks
        self._jvm = jvm
        self._given = settings

    def start(self) -> None:
        zookeeper = self.cluster.zookeeper
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "bookie.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        main = "org.apache.bookkeeper.server.Main"
        command = zookeeper.apache.command(
            self.directory, main, "--conf", str(config), jvm=self._jvm
        )
        self.process = start(command, self.log)

    def _settings(self) -> dict[str, object]:
        storage = "storage.ldb.DbLedgerStorage" if self._rocks else "SortedLedgerStorage"
        return {
            "bookiePort": self.port,
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "metadataServiceUri": self.cluster.java_uri,
            "zkTimeout": _SESSION_S * 1000,
            "journalDirectories": self.directory / "journal",
            "ledgerDirectories": self.directory / "ledgers",
            "ledgerStorageClass": f"org.apache.bookkeeper.bookie.{storage}",
            "autoRecoveryDaemonEnabled": "false",
            "httpServerEnabled": "false",
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.99,
            **self._given,
        }


class OwnBookie(_Bookie):
    """`python -m bookie.server`."""

    def __init__(self, cluster: "Cluster", name: str, settings: Mapping[str, object]) -> None:
        super().__init__(cluster, name)
        self._given = settings

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "bookie.toml"
        settings = {
            "directories": [str(self.directory / "data")],
            "port": self.port,
            "zookeeper": self.cluster.zookeeper.address,
            "ledgers_root": self.cluster.root,
            "session_timeout_s": _SESSION_S,
            "exit_with_parent": True,
            **self._given,
        }
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        config.write_text("".join(lines))
        command = [sys.executable, "-m", "bookie.server", "--config", str(config)]
        self.process = start(command, self.log)


class ZooKeeper:
    """One ZooKeeper for all clusters, each below a root of its own; from Apache's jars."""

    def __init__(self, apache: Apache, directory: Path) -> None:
        self.apache = apache
        self.directory = directory
        self._ports = PortChooser(Random())
        self.port = self.free_port()
        config = directory / "zoo.cfg"
        config.write_text(
            f"tickTime=500\nmaxSessionTimeout=60000\ndataDir={directory / 'zookeeper'}\n"
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
            "admin.enableServer=false\npreAllocSize=4096\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = apache.command(directory, main, str(config))
        self._process = start(command, directory / "zookeeper.txt")
        wait_until(lambda: is_open(self.port), "ZooKeeper listens")
        self.client = KazooClient(hosts=self.address, timeout=30)
        self.client.start(timeout=PATIENCE_S)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def free_port(self) -> int:
        with self._ports as chooser:
            return chooser.any()

    def children(self, path: str) -> list[str]:
        return sorted(self.client.get_children(path)) if self.client.exists(path) else []

    def close(self) -> None:
        self.client.stop()
        self.client.close()
        end(self._process)


@dataclass(slots=True)
class Cluster:
    """Bookies below one root."""

    zookeeper: ZooKeeper
    root: str
    bookies: list[Bookie] = field(default_factory=list["Bookie"])

    @property
    def address(self) -> str:
        return f"zk://{self.zookeeper.address}{self.root}"

    @property
    def java_uri(self) -> str:
        return f"zk+hierarchical://{self.zookeeper.address}{self.root}"

    def add_apache(
        self,
        *,
        rocks: bool = True,
        jvm: Sequence[str] = SMALL_JVM,
        settings: Mapping[str, object] = SMALL_BOOKIE,
    ) -> Bookie:
        name = f"apache-{len(self.bookies)}"
        return self._add(ApacheBookie(self, name, rocks=rocks, jvm=jvm, settings=settings))

    def add_own(self, **settings: object) -> Bookie:
        return self._add(OwnBookie(self, f"own-{len(self.bookies)}", settings))

    def _add(self, bookie: Bookie) -> Bookie:
        self.bookies.append(bookie)
        bookie.start()
        return bookie

    def start_auto_recovery(self, **settings: object) -> Process:
        """Apache's: an auditor and a worker, as a process of their own."""
        directory = self.zookeeper.directory / self.root.strip("/") / "auto-recovery"
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "auto-recovery.conf"
        whole = {
            "metadataServiceUri": self.java_uri,
            "zkTimeout": _SESSION_S * 1000,
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "httpServerEnabled": "false",
            "rwRereplicateBackoffMs": 200,  # what failed is tried again soon
            "lockReleaseOfFailedLedgerGracePeriod": 1000,
            "openLedgerRereplicationGracePeriod": 1000,
            **settings,
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in whole.items()))
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        command = self.zookeeper.apache.command(directory, main, "--conf", str(config))
        return start(command, directory / "log.txt")

    def bookie(self, bookie_id: str) -> Bookie:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def registered(self) -> list[str]:
        """Those that can be written to."""
        return [b for b in self.zookeeper.children(f"{self.root}/available") if b != "readonly"]

    def wait_ready(self, *, without: Sequence[Bookie] = ()) -> "Cluster":
        everybody = sorted(b.bookie_id for b in self.bookies if b not in without)
        wait_until(lambda: self.registered() == everybody, f"{everybody} are registered")
        return self

    def wait_gone(self, bookie: Bookie) -> None:
        wait_until(lambda: bookie.bookie_id not in self.registered(), f"{bookie.bookie_id} is gone")

    def close(self) -> None:
        for bookie in self.bookies:
            bookie.kill()


def ask(bookie: Bookie, *requests: bytes) -> list[Answer]:
    """What a bookie answers, by a connection of its own, one after the other."""
    answers: list[Answer] = []
    host, _, port = bookie.bookie_id.partition(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE_S) as sock,
        sock.makefile("rb") as got,
    ):
        for request in requests:
            sock.sendall(request)
            size = int.from_bytes(got.read(4), "big")
            answers.append(decode_answer(memoryview(got.read(size))))
    return answers


class Condition(Protocol):
    def __call__(self) -> bool: ...


def wait_until(condition: Condition, what: str) -> None:
    """For what other processes do, and tell nobody."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(_POLL_S)


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def apache_here() -> Apache:
    return Apache.found(os.environ)
