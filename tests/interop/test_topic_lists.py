"""Apache Pulsar's clients find topics and partitions that come while they consume."""

import re
from collections.abc import Iterator
from pathlib import Path
from select import select

import pulsar as official
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.managed_ledger.position import Position
from tests.harness.processes import PATIENCE_S, Process, end, start, wait_until
from tests.interop.apache import go_client, pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.lines import line_of
from tests.interop.peer import PulsarPeer

pytestmark = pytest.mark.interop

PATTERNS = SOURCE.with_name("Patterns.java")
NS = "persistent://public/default"


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(brokers=1) as running:
        yield running


@pytest.fixture
def go() -> Path:
    client = go_client()
    if client is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    return client


def java_consumer(
    cluster: StandaloneProcess, directory: Path, topics: str, messages: int
) -> Process:
    if "://" not in topics:
        topics = f"{NS}/{topics}"
    words = (cluster.service_url, "sub", str(messages), topics)
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


def test_gos_consumer_misses_nothing_in_new_partitions(
    cluster: StandaloneProcess, go: Path, tmp_path: Path
) -> None:
    with (
        blocking.connect(cluster.service_url) as client,
        blocking.connect_admin(cluster.admin_url) as admin,
    ):
        admin.create_topic("go-growing", partitions=1)
        process = start([str(go), "grow", cluster.service_url, "go-growing"], tmp_path / "go.txt")
        try:
            assert line_of(process) == "ready"
            admin.add_partitions("go-growing", 4)
            for index in (1, 2, 3):
                publish(client, f"go-growing-partition-{index}", b"early")
            said = {line_of(process) for _ in range(3)}
            assert said == {f"go-growing-partition-{index} early" for index in (1, 2, 3)}
        finally:
            end(process)


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


VOLATILE = "non-persistent://public/default"


def test_pythons_client_uses_non_persistent_topics(cluster: StandaloneProcess) -> None:
    """As in its own test of regular expressions, which counts topics of both kinds."""
    client = official.Client(
        cluster.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error)
    )
    modes = official.RegexSubscriptionMode
    domains = (NS, VOLATILE)
    try:
        producers = {
            domain: [client.create_producer(f"{domain}/regex-{n}") for n in range(count)]
            for domain, count in ((NS, 2), (VOLATILE, 3))
        }
        for mode, counts in (
            (modes.PersistentOnly, (2, 0)),
            (modes.NonPersistentOnly, (0, 3)),
            (modes.AllTopics, (2, 3)),
        ):
            consumer = client.subscribe(
                re.compile("public/default/regex-.*"),
                f"sub-{mode}",
                consumer_type=official.ConsumerType.Shared,
                regex_subscription_mode=mode,
            )
            for sender in (each for domain in domains for each in producers[domain]):
                sender.send(b"x")
            found = [
                consumer.receive(round(1000 * PATIENCE_S)).topic_name().partition("://")[0]
                for _ in range(sum(counts))
            ]
            assert tuple(map(found.count, ("persistent", "non-persistent"))) == counts
            consumer.close()
    finally:
        client.close()


def test_javas_pattern_finds_non_persistent_topics(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    with (
        blocking.connect(cluster.service_url) as client,
        blocking.connect_admin(cluster.admin_url) as admin,
    ):
        topic = f"{VOLATILE}/java-1"
        with client.create_producer(topic) as producer:
            java = java_consumer(cluster, tmp_path, f"{VOLATILE}/java-.*", 1)
            try:
                assert line_of(java) == "ready"
                # A message is dropped unless somebody waits for it.
                wait_until(lambda: admin.subscriptions(topic) == ["sub"], "Java's consumer")
                assert topic in admin.topics(persistent=False)
                assert java.stdout is not None
                while not select([java.stdout], [], [], 0.1)[0]:
                    producer.send(b"now")
                assert line_of(java) == "java-1 now"
            finally:
                end(java)
