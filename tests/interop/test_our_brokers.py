"""Our brokers on an existing cluster of Apache's bookies: produce, kill, take over, read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import daybook
from clients import ledgers
from tests.interop.cluster import Cluster
from tests.interop.processes import PATIENCE_S, Process, end, run_daybook

pytestmark = pytest.mark.interop


class Brokers:
    """As `daybook broker` starts them, one after the other."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self.running: dict[str, Process] = {}

    def start(self, name: str) -> str:
        """Its service URL, when it serves."""
        zookeeper = self._cluster.zookeeper
        where = ("--zookeeper", zookeeper.address, "--ledgers-root", self._cluster.root)
        ports = ("--port", "0", "--http-port", "0")
        log = self._directory / f"{name}.txt"
        process = self.running[name] = run_daybook(log, "broker", "--name", name, *where, *ports)
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline() or "{}")
        assert ready, log.read_text()
        return str(ready["service_url"])

    def kill(self, name: str) -> None:
        end(self.running.pop(name))


@pytest.fixture
def brokers(apache: Cluster, tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(apache, tmp_path)
    yield made
    for name in list(made.running):
        made.kill(name)


def test_a_topic_outlives_its_broker_on_their_bookies(brokers: Brokers, apache: Cluster) -> None:
    with daybook.blocking.connect(brokers.start("first")) as client:
        with client.create_producer("interop") as producer:
            for number in range(1000):
                producer.send_nowait(b"%d" % number)
            producer.flush()
        with client.subscribe("interop", "half", initial_position="earliest") as consumer:
            for _ in range(500):
                consumer.ack(consumer.receive(timeout_s=PATIENCE_S))
    brokers.kill("first")

    with daybook.blocking.connect(brokers.start("second")) as client:
        with client.create_producer("interop") as producer:
            producer.send(b"1000")
        with client.create_reader("interop", start="earliest") as reader:
            got = [reader.receive(timeout_s=PATIENCE_S).data for _ in range(1001)]
        assert got == [b"%d" % number for number in range(1001)]
        with client.subscribe("interop", "half") as consumer:
            again = int(consumer.receive(timeout_s=PATIENCE_S).data)
        assert again <= 500, "what was not acknowledged comes again"

    with ledgers.blocking.connect(apache.address) as client:
        theirs = {bookie.bookie_id for bookie in apache.bookies}
        for ledger_id in client.list_ledgers():
            for fragment in client.metadata(ledger_id).fragments:
                assert set(fragment.ensemble) <= theirs
