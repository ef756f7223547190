"""The three clusters, each with three replicas, of which two have synced a message at its receipt.

    Daybook   `daybook standalone` with one broker and three bookies (E=3, WQ=3, AQ=2)
    Pulsar    one broker and three of Apache's bookies (RocksDB, E=3, WQ=3, AQ=2, journalSyncData)
              with the settings that Pulsar ships, and a journal that waits at most 1 ms
    Kafka     three brokers in KRaft mode; topics have flush.messages=1 and min.insync.replicas=2

Each has a ZooKeeper or controllers of its own.  Nobody audits and nobody compacts in the
background of Pulsar's bookies; Daybook's have their defaults.
"""

import base64
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Protocol

from bench.brokers.lines import DAYBOOK, KAFKA, PULSAR
from daybook.clients.cli.ports import PortChooser
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from tests.harness.processes import Process, end, is_open, start, wait_until
from tests.interop.apache import Apache, kafka_here, pulsar_broker_here
from tests.interop.cluster import Cluster, ZooKeeper
from tests.interop.pulsar_broker import PulsarBroker

BOOKIES = 3
_G1 = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:-UsePerfData")
_BOOKIE_JVM = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", *_G1)
_BROKER_JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", *_G1)
_KAFKA_JVM = ("-Xms512m", "-Xmx512m", *_G1)
_BOOKIE = {
    "journalSyncData": "true",
    "journalMaxGroupWaitMSec": 1,
    "journalAdaptiveGroupWrites": "true",
    "nettyMaxFrameSizeBytes": 5253120,
    "gcWaitTime": 900_000,
}
# Pulsar's defaults for this machine, which the tests of the broker make smaller.
_PULSAR_BROKER = {
    "clusterName": "peers",
    "numIOThreads": 2 * (os.cpu_count() or 1),
    "numOrderedExecutorThreads": 8,
    "managedLedgerCacheSizeMB": 204,
}
_KAFKA = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=3
offsets.topic.num.partitions=10
group.initial.rebalance.delay.ms=0
"""

Pids = dict[str, list[int]]


class System(Protocol):
    """A cluster that serves until `close`."""

    name: str
    settings: str  # one line for the reader of the results

    @property
    def url(self) -> str: ...

    def pids(self) -> Pids:
        """Return its processes by kind."""
        ...

    def close(self) -> None: ...


class Daybook:
    name = DAYBOOK
    settings = "3 bookies, 1 broker, E=3 WQ=3 AQ=2, a sync before each receipt"

    def __init__(self, directory: Path) -> None:
        self._cluster = StandaloneProcess(
            directory=directory, bookies=BOOKIES, brokers=1, options=ANY_PORTS
        )

    @property
    def url(self) -> str:
        return self._cluster.service_url

    def pids(self) -> Pids:
        found: Pids = {}
        for part in self._cluster.parts():
            found.setdefault(str(part["name"]).partition("-")[0], []).append(int(part["pid"]))
        return found

    def close(self) -> None:
        self._cluster.stop()


class Pulsar:
    name = PULSAR
    settings = (
        "3 bookies (RocksDB, journalSyncData, group wait 1 ms, 512 MB heap each), 1 broker (1 GB"
        " heap), E=3 WQ=3 AQ=2"
    )

    def __init__(self, directory: Path) -> None:
        apache = pulsar_broker_here()
        directory.mkdir()
        with ExitStack() as stack:
            self._zookeeper = ZooKeeper(apache, directory)
            stack.callback(self._zookeeper.close)
            at = f"zk:{self._zookeeper.address}"
            subprocess.run(
                apache.command(
                    *(directory, "org.apache.pulsar.PulsarClusterMetadataSetup"),
                    *("--cluster", str(_PULSAR_BROKER["clusterName"])),
                    *("--metadata-store", at, "--configuration-metadata-store", at),
                    # Nobody asks for these; the broker registers its own.
                    *("--web-service-url", "http://127.0.0.1:1"),
                    *("--broker-service-url", "pulsar://127.0.0.1:1"),
                ),
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
            self._cluster = Cluster(self._zookeeper, "/ledgers")
            stack.callback(self._cluster.close)
            for _ in range(BOOKIES):
                self._cluster.add_apache(jvm=_BOOKIE_JVM, settings=_BOOKIE)
            self._cluster.wait_ready()
            self._broker = PulsarBroker(
                apache,
                self._zookeeper.address,
                directory / "broker",
                jvm=_BROKER_JVM,
                **_PULSAR_BROKER,
            )
            self._broker.start()
            stack.callback(self._broker.kill)
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        return self._broker.service_url

    def pids(self) -> Pids:
        return {
            "broker": [self._broker.pid],
            "bookie": [bookie.pid for bookie in self._cluster.bookies],
            "zookeeper": [self._zookeeper.pid],
        }

    def close(self) -> None:
        self._stack.close()


class Kafka:
    name = KAFKA
    settings = (
        "3 brokers in KRaft mode (512 MB heap each), RF 3, flush.messages=1, min.insync.replicas=2,"
        " acks=all"
    )

    def __init__(self, directory: Path) -> None:
        apache = kafka_here()
        # No other cluster may choose these ports while the brokers start.
        chooser = PortChooser(Random())
        self._ports = [chooser.any() for _ in range(BOOKIES)]
        controllers = [chooser.any() for _ in range(BOOKIES)]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        # Kafka wants an id of 16 bytes that does not begin with "-".
        cluster = base64.urlsafe_b64encode(b"d" + os.urandom(15)).decode().rstrip("=")
        self._processes: list[Process] = []
        homes = [directory / f"kafka-{node}" for node in range(1, BOOKIES + 1)]
        for node, home in enumerate(homes, 1):
            home.mkdir(parents=True)
            _settings(home).write_text(
                _KAFKA.format(
                    node=node,
                    voters=voters,
                    port=self._ports[node - 1],
                    controller=controllers[node - 1],
                    data=home / "data",
                )
            )
        _format(apache, homes, cluster)
        with ExitStack() as stack:
            stack.enter_context(chooser).release()
            for home in homes:
                words = ("kafka.Kafka", str(_settings(home)))
                command = apache.command(home, *words, jvm=_KAFKA_JVM)
                process = start(command, home / "log.txt")
                stack.callback(end, process)
                self._processes.append(process)
            brokers = list(zip(homes, self._processes, self._ports, strict=True))
            wait_until(lambda: all(_answers(*broker) for broker in brokers), "Kafka")
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def pids(self) -> Pids:
        return {"broker": [process.pid for process in self._processes]}

    def close(self) -> None:
        self._stack.close()


def _answers(home: Path, process: Process, port: int) -> bool:
    assert process.poll() is None, (home / "log.txt").read_text()[-4000:]
    return is_open(port)


def _settings(home: Path) -> Path:
    return home / "server.properties"


def _format(apache: Apache, homes: Sequence[Path], cluster: str) -> None:
    """Prepare the directories of Kafka's brokers, all at once: each takes a JVM of its own."""
    processes: list[tuple[Path, Process]] = []
    for home in homes:
        tool = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(_settings(home)))
        processes.append((home, start(apache.command(home, *tool), home / "format.txt")))
    for home, process in processes:
        process.communicate()
        assert process.returncode == 0, (home / "format.txt").read_text()


KINDS: dict[str, type[Daybook] | type[Pulsar] | type[Kafka]] = {
    DAYBOOK: Daybook,
    PULSAR: Pulsar,
    KAFKA: Kafka,
}
