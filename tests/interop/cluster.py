"""Clusters of real processes: a ZooKeeper, Apache's bookies, ours, or both in one cluster.

Processes listen on the loopback interface, on free ports.  Sessions with ZooKeeper are long, so
that no pause of a busy machine ends one; `expire` ends the session of a killed or paused bookie.
"""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from daybook.clients.cli.ports import PortChooser
from daybook.wire.messages.bookie import Answer, decode_answer
from tests.harness.processes import (
    PATIENCE_S,
    Process,
    daybook,
    end,
    is_open,
    run_daybook,
    start,
    wait_until,
)
from tests.interop.apache import SMALL_JVM, Apache

SESSION_S = 120

SMALL_BOOKIE: Mapping[str, object] = {
    "dbStorage_writeCacheMaxSizeMb": 16,
    "dbStorage_readAheadCacheMaxSizeMb": 16,
    "dbStorage_rocksDB_blockCacheSize": 8 << 20,
    "numAddWorkerThreads": 1,
    "numReadWorkerThreads": 2,
    "numHighPriorityWorkerThreads": 2,
}


class Bookie(Protocol):
    """One bookie, of either kind.  Its id and its data survive its process."""

    @property
    def name(self) -> str:
        """Return `own-0`, `apache-1`, and so on."""
        ...

    @property
    def bookie_id(self) -> str: ...

    @property
    def directory(self) -> Path:
        """Return the directory with all its data."""
        ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def kill(self) -> None:
        """Kill the process, as a crash does."""
        ...

    def pause(self) -> None:
        """Pause the process: it stays connected, and does nothing."""
        ...


class _Bookie:
    """The common part of the two kinds."""

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
    """Apache's bookie, with the storage that Pulsar uses, or with its default one."""

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
            "zkTimeout": SESSION_S * 1000,
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
    """Our bookie: `python -m daybook.bookie.server`."""

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
            "session_timeout_s": SESSION_S,
            "autorecovery": False,  # tests start it themselves
            "exit_with_parent": True,
            **self._given,
        }
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        config.write_text("".join(lines))
        command = [sys.executable, "-m", "daybook.bookie.server", "--config", str(config)]
        self.process = start(command, self.log)

    @contextmanager
    def started_with(self, **settings: object) -> Iterator[None]:
        """Restart the bookie with these settings; at the end restart it with its former ones."""
        before = self._given
        try:
            self._start_again({**before, **settings})
            yield
        finally:
            self._start_again(before)

    def _start_again(self, given: Mapping[str, object]) -> None:
        self.kill()
        self.cluster.expire(self)  # so that its next registration is noticed
        self._given = given
        self.start()


class ZooKeeper:
    """One ZooKeeper for all clusters, each below a root of its own; it runs from Apache's jars."""

    def __init__(self, apache: Apache, directory: Path) -> None:
        self.apache = apache
        self.directory = directory
        self._ports = PortChooser(Random())
        self.port = self.free_port()
        config = directory / "zoo.cfg"
        config.write_text(
            f"tickTime=500\nmaxSessionTimeout=600000\ndataDir={directory / 'zookeeper'}\n"
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
            "admin.enableServer=false\npreAllocSize=4096\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = apache.command(directory, main, str(config))
        self._process = start(command, directory / "zookeeper.txt")
        wait_until(lambda: is_open(self.port), "ZooKeeper listens")
        self.client = KazooClient(hosts=self.address, timeout=600)
        self.client.start(timeout=PATIENCE_S)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def free_port(self) -> int:
        with self._ports as chooser:
            return chooser.any()

    def children(self, path: str) -> list[str]:
        try:
            return sorted(self.client.retry(self.client.get_children, path))
        except NoNodeError:
            return []

    def exists(self, path: str) -> bool:
        return self.client.retry(self.client.exists, path) is not None

    def delete(self, path: str) -> None:
        """Delete the record if it exists."""
        with suppress(NoNodeError):
            self.client.retry(self.client.delete, path)

    def close(self) -> None:
        self.client.stop()
        self.client.close()
        end(self._process)


@dataclass(slots=True)
class Cluster:
    """The bookies below one root."""

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

    @contextmanager
    def apache_auto_recovery(self, **settings: object) -> Iterator[None]:
        """Run Apache's auto-recovery: an auditor and a worker, as a process of their own."""
        directory = self.zookeeper.directory / self.root.strip("/") / "auto-recovery"
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "auto-recovery.conf"
        whole = {
            "metadataServiceUri": self.java_uri,
            "zkTimeout": SESSION_S * 1000,
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "httpServerEnabled": "false",
            "rwRereplicateBackoffMs": 200,  # a failed attempt is repeated soon
            "lockReleaseOfFailedLedgerGracePeriod": 1000,
            "openLedgerRereplicationGracePeriod": 1000,
            **settings,
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in whole.items()))
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        command = self.zookeeper.apache.command(directory, main, "--conf", str(config))
        with self._for_a_while(start(command, directory / "log.txt")):
            yield

    @contextmanager
    def own_auto_recovery(self, **settings: object) -> Iterator[None]:
        """Run our auto-recovery in the same way."""
        directory = self.zookeeper.directory / self.root.strip("/") / "auto-recovery"
        given = {"name": "own"} | settings
        words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        process = run_daybook(directory / "own.txt", "autorecovery", "run", *self._where, *words)
        with self._for_a_while(process):
            yield

    @property
    def _where(self) -> Sequence[str]:
        return ("--zookeeper", self.zookeeper.address, "--ledgers-root", self.root)

    def daybook(
        self, *words: str, exit_codes: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run `daybook WORDS` on this cluster."""
        done = daybook(*words, *self._where)
        assert done.returncode in exit_codes, done.stdout + done.stderr
        return done

    @contextmanager
    def _for_a_while(self, process: Process) -> Iterator[None]:
        """Kill the process at the end, and delete its votes and locks, and the delay it has set."""
        try:
            yield
        finally:
            end(process)
            marks = f"{self.root}/underreplication"
            self.zookeeper.delete(f"{marks}/lostBookieRecoveryDelay")
            for where in ("auditorelection", "locks"):
                path = f"{marks}/{where}"
                for name in self.zookeeper.children(path):
                    self.zookeeper.delete(f"{path}/{name}")

    def bookie(self, bookie_id: str) -> Bookie:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def registered(self) -> list[str]:
        """Return the writable bookies."""
        return [b for b in self.zookeeper.children(f"{self.root}/available") if b != "readonly"]

    def wait_ready(self, *, without: Sequence[Bookie] = ()) -> "Cluster":
        everybody = sorted(b.bookie_id for b in self.bookies if b not in without)
        wait_until(lambda: self.registered() == everybody, f"{everybody} are registered")
        return self

    def expire(self, bookie: Bookie) -> None:
        """End the session of a bookie, as happens some time after it was killed or paused."""
        for where in ("available", "available/readonly"):
            self.zookeeper.delete(f"{self.root}/{where}/{bookie.bookie_id}")

    def close(self) -> None:
        for bookie in self.bookies:
            bookie.kill()


def ask(bookie: Bookie, *requests: bytes) -> list[Answer]:
    """Return a bookie's answers to requests, one after the other, over a connection of its own."""
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
