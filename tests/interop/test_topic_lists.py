"""Apache Pulsar's clients find topics and partitions that come while they consume."""

import re
from collections.abc import Iterator
from pathlib import Path

import pulsar as official
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.managed_ledger.position import Position
from tests.harness.processes import PATIENCE_S, Process, end, start
from tests.interop.apache import pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.peer import PulsarPeer
from tests.interop.test_pulsar_clients import line_of

pytestmark = pytest.mark.interop

PATTERNS = SOURCE.with_name("Patterns.java")
NS = "persistent://public/default"


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(brokers=1) as running:
        yield running


def java_consumer(
    cluster: StandaloneProcess, directory: Path, topics: str, messages: int
) -> Process:
    words = (cluster.service_url, "sub", str(messages), f"{NS}/{topics}")
    command = pulsar_client_here().command(directory, str(PATTERNS), *words)
    return start(command, directory / "patterns.txt")


def publish(client: blocking.Client, topic: str, data: bytes) -> None:
    with client.create_producer(topic) as producer:
        producer.send(data)


def test_javas_watcher_tells_of_new_topics_and_partitions(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    with (
        blocking.connect(cluster.service_url) as client,
        blocking.connect_admin(cluster.admin_url) as admin,
    ):
        admin.create_topic("watched-old")
        admin.create_topic("watched-parts", partitions=1)
        java = java_consumer(cluster, tmp_path, "watched-.*", 5)
        try:
            assert line_of(java) == "ready"
            publish(client, "watched-old", b"hello")
            publish(client, "other", b"hello")
            publish(client, "watched-new", b"hello")
            publish(client, "watched-parts-partition-0", b"zero")
            assert {line_of(java) for _ in range(3)} == {
                "watched-old hello",
                "watched-new hello",
                "watched-parts-partition-0 zero",
            }
            admin.add_partitions("watched-parts", 3)
            for index in (1, 2):
                publish(client, f"watched-parts-partition-{index}", b"grown")
            said = {line_of(java) for _ in range(2)}
            assert said == {f"watched-parts-partition-{index} grown" for index in (1, 2)}
        finally:
            end(java)


def test_javas_consumer_misses_nothing_in_new_partitions(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    """The messages are there before the client looks; its subscription begins at the end."""
    with (
        blocking.connect(cluster.service_url) as client,
        blocking.connect_admin(cluster.admin_url) as admin,
    ):
        admin.create_topic("growing", partitions=1)
        java = java_consumer(cluster, tmp_path, "growing", 3)
        try:
            assert line_of(java) == "ready"
            admin.add_partitions("growing", 4)
            for index in (1, 2, 3):
                publish(client, f"growing-partition-{index}", b"early")
            said = {line_of(java) for _ in range(3)}
            assert said == {f"growing-partition-{index} early" for index in (1, 2, 3)}
        finally:
            end(java)


def test_pulsar_opens_a_partition_that_nobody_has_opened_before(
    cluster: StandaloneProcess, pulsar: PulsarPeer
) -> None:
    with (
        blocking.connect(cluster.service_url) as client,
        blocking.connect_admin(cluster.admin_url) as admin,
    ):
        admin.create_topic("handed", partitions=1)
        admin.create_subscription("handed", "sub", start="latest")
        admin.add_partitions("handed", 2)
        uri = f"zk+null://{cluster.zookeeper}/ledgers"
        log = "public/default/persistent/handed-partition-1"
        position, _ = pulsar.properties(cluster.zookeeper, uri, log, "sub")
        assert position == Position(position.ledger_id, -1)
        publish(client, "handed-partition-1", b"first")
        with client.subscribe("handed-partition-1", "sub") as consumer:
            assert consumer.receive(timeout_s=PATIENCE_S).data == b"first"


def test_pythons_pattern_chooses_topics(cluster: StandaloneProcess) -> None:
    """The client ignores its own option for the period: it finds new topics after a minute."""
    client = official.Client(
        cluster.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error)
    )
    try:
        for name in ("python-a", "java-a", "python-b"):
            client.create_producer(f"{NS}/{name}").send(name.encode())
        consumer = client.subscribe(
            re.compile(f"{NS}/python-.*"),
            "sub",
            initial_position=official.InitialPosition.Earliest,
        )
        received = [consumer.receive(round(1000 * PATIENCE_S)) for _ in range(2)]
        assert {message.data() for message in received} == {b"python-a", b"python-b"}
    finally:
        client.close()
