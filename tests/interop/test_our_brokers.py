"""Our brokers on an existing cluster of Apache's bookies: produce, kill, take over, read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import daybook
from daybook.clients import ledgers
from tests.harness.processes import PATIENCE_S, Process, end, run_daybook
from tests.interop.cluster import Cluster
from tests.interop.faults import away

pytestmark = pytest.mark.interop


class Brokers:
    """Brokers started by `daybook broker`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self.running: dict[str, Process] = {}  # by service URL

    def start(self, name: str) -> str:
        """Start a broker; return its service URL when it serves."""
        words = ("--name", name, "--metadata", self._cluster.java_uri)
        log = self._directory / f"{name}.txt"
        process = run_daybook(log, "broker", *words, "--port", "0", "--http-port", "0")
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline() or "{}")
        assert ready, log.read_text()
        url = str(ready["service_url"])
        self.running[url] = process
        return url

    def kill(self, url: str) -> None:
        end(self.running.pop(url))


@pytest.fixture
def brokers(apache: Cluster, tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(apache, tmp_path)
    yield made
    for url in list(made.running):
        made.kill(url)


def read_all(client: daybook.blocking.Client, topic: str, count: int) -> list[int]:
    with client.create_reader(topic, start="earliest") as reader:
        return [int(reader.receive(timeout_s=PATIENCE_S).data or b"") for _ in range(count)]


def test_a_topic_outlives_its_broker_on_their_bookies(brokers: Brokers, apache: Cluster) -> None:
    first = brokers.start("first")
    with daybook.blocking.connect(first) as client:
        with client.create_producer("interop") as producer:
            for number in range(1000):
                producer.send_nowait(b"%d" % number)
            producer.flush()
        with client.subscribe("interop", "half", initial_position="earliest") as consumer:
            for _ in range(500):
                consumer.ack(consumer.receive(timeout_s=PATIENCE_S))
    brokers.kill(first)

    with daybook.blocking.connect(brokers.start("second")) as client:
        with client.create_producer("interop") as producer:
            producer.send(b"1000")
        assert read_all(client, "interop", 1001) == list(range(1001))
        with client.subscribe("interop", "half") as consumer:
            again = int(consumer.receive(timeout_s=PATIENCE_S).data or b"")
        assert again <= 500, "what was not acknowledged comes again"

    with ledgers.blocking.connect(apache.address) as client:
        theirs = {bookie.bookie_id for bookie in apache.bookies}
        for ledger_id in client.list_ledgers():
            for fragment in client.metadata(ledger_id).fragments:
                assert set(fragment.ensemble) <= theirs


def test_a_producer_goes_on_while_brokers_and_bookies_of_theirs_are_killed(
    brokers: Brokers, apache: Cluster
) -> None:
    """The other broker takes over; two bookies of three suffice.  Nothing is lost or twice."""
    urls = [brokers.start("one"), brokers.start("other")]
    hosts = ",".join(url.removeprefix("pulsar://") for url in urls)
    with daybook.blocking.connect(f"pulsar://{hosts}") as client:
        with client.create_producer("failover") as producer:
            for number in range(100):
                producer.send(b"%d" % number)
            brokers.kill(client.lookup("failover"))
            for number in range(100, 200):
                producer.send(b"%d" % number)
            with away(apache, apache.bookies[0]):
                for number in range(200, 300):
                    producer.send(b"%d" % number)
        assert read_all(client, "failover", 300) == list(range(300))
