"""The two sides, each made of processes: Apache BookKeeper's client and bookies, and ours.

    with Bench(apache_here(), directory, first_s=6) as bench:
        load = bench.load(JAVA)                     # Apache's client on three of its bookies
        load.do("append", copies=3, size=1024, ...)

Bookies sync before they acknowledge; ZooKeeper and all data are on one disk, everything is on one
machine.  Apache's bookies get the settings with which Pulsar ships them (RocksDB for the index; a
journal that waits 1 ms at most for others to share a sync), the JVM's whole compiler and 1 GB each.
Ours have their defaults.  On both sides nobody audits and nobody collects garbage unasked.
"""

import shutil
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.peers.load import words
from tests.harness.processes import ROOT, start
from tests.interop.apache import Apache
from tests.interop.cluster import Cluster, OwnBookie, ZooKeeper
from tests.interop.peer import Peer, Pipe

BOOKIES = 3
_LOAD = ROOT / "bench" / "peers" / "java" / "Load.java"
_MEMORY = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
MEMORY_BYTES = 1 << 30  # memory of each of Apache's bookies
_JVM = (*_MEMORY, "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10", "-XX:-UsePerfData")
_APACHE_BOOKIE: Mapping[str, object] = {
    "journalSyncData": "true",
    "journalMaxGroupWaitMSec": 1,
    "numAddWorkerThreads": 0,  # in the threads that receive
    "numReadWorkerThreads": 8,
    "numHighPriorityWorkerThreads": 8,
}


_OWN_BOOKIE: Mapping[str, object] = {
    "autorecovery": False,
    "reclaim_interval_s": 0.0,
    "scrub_interval_s": 0.0,
    "reclaim_bytes_per_s": 1 << 30,  # when it is asked to
}
_FIRST: Mapping[str, object] = {"size": 1024, "ledgers": 1, "window": 1000, "warm_s": 0}


class Side(Enum):
    APACHE = "apache"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Pair:
    client: Side
    bookies: Side


JAVA = Pair(Side.APACHE, Side.APACHE)
OURS = Pair(Side.OWN, Side.OWN)
OURS_ON_APACHE = Pair(Side.OWN, Side.APACHE)
JAVA_ON_OURS = Pair(Side.APACHE, Side.OWN)
PAIRS = (JAVA, OURS, OURS_ON_APACHE, JAVA_ON_OURS)


class Load:
    """A client process, connected to one cluster."""

    def __init__(self, pipe: Pipe, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.pid = pipe.process.pid
        self._pipe = pipe
        self._name = name

    def do(self, command: str, **given: object) -> dict[str, str]:
        """Send a command and return its answer, by name; `load` lists the commands."""
        self.tell(command, **given)
        return self.answer()

    def tell(self, command: str, **given: object) -> None:
        self._pipe.tell(command, *words({"on": self._name, **given}))

    def answer(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self._pipe.answer().split())


class Bench:
    """Starts processes when they are first needed; all of them end with the block.

    A client appends for `first_s` to a new cluster before anything is measured, so that the
    compilers of the JVMs have done most of their work.
    """

    def __init__(self, apache: Apache, directory: Path, *, first_s: float) -> None:
        self.zookeeper = ZooKeeper(apache, directory)
        self.http_ports: dict[str, int] = {}  # the HTTP ports of our bookies, by id
        self._apache = apache
        self._first_s = first_s
        self._directory = directory
        self._clusters: dict[Side, Cluster] = {}
        self._pipes: dict[tuple[Side, int], Pipe] = {}
        self._connected: dict[tuple[Side, int], set[str]] = {}
        self._appended: set[tuple[tuple[Side, int], str]] = set()
        self._roots = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.start_anew()
        self.zookeeper.close()

    def start_anew(self) -> None:
        """Stop all clients and bookies, and delete their data."""
        for pipe in self._pipes.values():
            pipe.close()
        for cluster in self._clusters.values():
            cluster.close()
            for bookie in cluster.bookies:
                shutil.rmtree(bookie.directory)
        self._pipes.clear()
        self._connected.clear()
        self._appended.clear()
        self._clusters.clear()

    def load(
        self, pair: Pair, cluster: Cluster | None = None, *, other: bool = False, **settings: object
    ) -> Load:
        """Return the client process of a pair, or the other one of its kind, on its bookies."""
        cluster = cluster or self.cluster(pair.bookies)
        key = (pair.client, int(other))
        if key not in self._pipes:
            self._pipes[key] = self._start_load(pair.client, int(other))
            self._connected[key] = set()
        name = "-".join((cluster.root.strip("/"), *map(str, settings.values())))
        load = Load(self._pipes[key], cluster, name)
        if name not in self._connected[key]:
            at = f"{self.zookeeper.address}{cluster.root}"
            load.do("connect", at=at, **settings)
            self._connected[key].add(name)
            if (key, cluster.root) not in self._appended:
                self._appended.add((key, cluster.root))
                load.do("append", **_FIRST, copies=len(cluster.bookies), seconds=self._first_s)
        return load

    @property
    def clusters(self) -> list[Cluster]:
        """Return the running clusters of three bookies."""
        return list(self._clusters.values())

    def cluster(self, side: Side) -> Cluster:
        if side not in self._clusters:
            self._clusters[side] = self._start_bookies(side, BOOKIES)
        return self._clusters[side]

    @contextmanager
    def own_bookies_with(self, **settings: object) -> Generator[None]:
        """Restart our three bookies with these settings, and later with their defaults."""
        cluster = self.cluster(Side.OWN)
        with ExitStack() as stack:
            for bookie in cluster.bookies:
                assert isinstance(bookie, OwnBookie)
                stack.enter_context(bookie.started_with(**settings))
            cluster.wait_ready()
            yield
        cluster.wait_ready()

    @contextmanager
    def one_bookie(self, side: Side) -> Generator[Cluster]:
        """Start a new single bookie."""
        cluster = self._start_bookies(side, 1)
        try:
            yield cluster
        finally:
            cluster.close()
            shutil.rmtree(cluster.bookies[0].directory)

    def _start_load(self, side: Side, number: int) -> Pipe:
        directory = self._directory / f"load-{side.value}-{number}"
        directory.mkdir(exist_ok=True)  # another one may have been there before
        if side is Side.APACHE:
            command = self._apache.command(directory, str(_LOAD), jvm=_JVM)
        else:
            command = [sys.executable, "-m", "bench.peers.load"]
        return Pipe(start(command, directory / "log.txt"))

    def _start_bookies(self, side: Side, count: int) -> Cluster:
        self._roots += 1
        cluster = Cluster(self.zookeeper, f"/{side.value}{self._roots}")
        if side is Side.APACHE:
            peer = Peer(self._apache, self._directory / "peer")
            peer.init(cluster)
            peer.close()
        for _ in range(count):
            if side is Side.APACHE:
                cluster.add_apache(jvm=_JVM, settings=_APACHE_BOOKIE)
            else:
                port = self.zookeeper.free_port()
                bookie = cluster.add_own(http_port=port, **_OWN_BOOKIE)
                self.http_ports[bookie.bookie_id] = port
        return cluster.wait_ready()
