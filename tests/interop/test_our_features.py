"""Chunks, dead letters, retries and patterns of our client, with Apache Pulsar's Python client."""

import random
import re
import time
from collections.abc import Iterator

import pulsar
import pytest

from daybook.clients.python import blocking
from daybook.clients.python.protocol.letters import DeadLetterPolicy
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S

pytestmark = pytest.mark.interop

LARGE = random.Random(1).randbytes(12 << 20)
PATIENCE_MS = int(PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(brokers=1) as running:
        yield running


@pytest.fixture
def ours(cluster: StandaloneProcess) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.service_url) as made:
        yield made


@pytest.fixture
def theirs(cluster: StandaloneProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield client
    client.close()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_our_chunks_are_joined_by_theirs(
    ours: blocking.Client, theirs: pulsar.Client, compression: str
) -> None:
    topic = f"our-chunks-{compression}"
    consumer = theirs.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    with ours.create_producer(
        topic,
        chunking=True,
        compression=compression,  # type: ignore[arg-type]
    ) as producer:
        producer.send(LARGE, key="k", properties={"a": "b"})
        producer.send(b"small")
    message = consumer.receive(PATIENCE_MS)
    assert message.data() == LARGE
    assert (message.partition_key(), message.properties()) == ("k", {"a": "b"})
    assert consumer.receive(PATIENCE_MS).data() == b"small"


def test_their_chunks_are_joined_by_ours(ours: blocking.Client, theirs: pulsar.Client) -> None:
    producer = theirs.create_producer(
        "their-chunks",
        chunking_enabled=True,
        batching_enabled=False,
        compression_type=pulsar.CompressionType.LZ4,
    )
    options = {"initial_position": "earliest"}
    with ours.subscribe("their-chunks", "s", **options) as consumer:  # type: ignore[arg-type]
        producer.send(LARGE, partition_key="k")
        producer.send(b"small")
        message = consumer.receive(PATIENCE_S)
        assert (message.data, message.key) == (LARGE, "k")
        assert consumer.receive(PATIENCE_S).data == b"small"
        consumer.ack_cumulative(message)
        consumer.flush_acks()
    with ours.subscribe("their-chunks", "s") as consumer:
        assert consumer.receive(PATIENCE_S).data == b"small"


def test_our_dead_letters_are_read_by_theirs(ours: blocking.Client, theirs: pulsar.Client) -> None:
    policy = DeadLetterPolicy(1, initial_subscription="graves")
    with ours.subscribe(
        "our-dead", "s", type="shared", dead_letter=policy, retry=True, nack_delay_s=0.05
    ) as consumer:
        producer = theirs.create_producer("our-dead")
        place = producer.send(b"bad", partition_key="k", properties={"a": "b"})
        for _ in range(2):
            consumer.nack(consumer.receive(PATIENCE_S))
        graves = theirs.subscribe("our-dead-s-DLQ", "graves")
        letter = graves.receive(PATIENCE_MS)
        assert (letter.data(), letter.partition_key()) == (b"bad", "k")
        origin = letter.properties()
        assert origin.pop("ORIGIN_MESSAGE_ID").startswith(
            f"{place.ledger_id()}:{place.entry_id()}:-1"
        )
        assert origin == {"a": "b", "REAL_TOPIC": "persistent://public/default/our-dead"}


def test_our_retries_are_seen_by_theirs(ours: blocking.Client, theirs: pulsar.Client) -> None:
    looker = theirs.subscribe("our-retry-s-RETRY", "look")
    with ours.subscribe("our-retry", "s", type="shared", retry=True) as consumer:
        theirs.create_producer("our-retry").send(b"later")
        consumer.reconsume_later(consumer.receive(PATIENCE_S), 0.5)
        seen = looker.receive(PATIENCE_MS).properties()
        assert (seen["RECONSUMETIMES"], seen["DELAY_TIME"]) == ("1", "500")
        again = consumer.receive(PATIENCE_S)
        assert again.topic.endswith("our-retry-s-RETRY")
        consumer.ack(again)


def test_a_pattern_finds_their_topics(ours: blocking.Client, theirs: pulsar.Client) -> None:
    theirs.create_producer("found-1").send(b"1")
    with ours.subscribe(
        re.compile("found-.*"), "s", initial_position="earliest", discovery_s=0.2
    ) as consumer:
        assert consumer.receive(PATIENCE_S).data == b"1"
        theirs.create_producer("found-2").send(b"2")
        message = consumer.receive(PATIENCE_S)
        assert (message.data, message.message_id.topic) == (
            b"2",
            "persistent://public/default/found-2",
        )


def test_their_consumer_is_served_at_the_rate_of_a_policy(
    cluster: StandaloneProcess, theirs: pulsar.Client
) -> None:
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_namespace("public/rated")
        rate = {"dispatchThrottlingRateInMsg": 20}
        admin.set_policy("public/rated", "subscriptionDispatchRate", rate)
    topic = "persistent://public/rated/t"
    producer = theirs.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send_async(str(number).encode(), None)
    producer.flush()
    options = {"initial_position": pulsar.InitialPosition.Earliest}
    began = time.monotonic()
    consumer = theirs.subscribe(topic, "s", **options)
    found = [consumer.receive(PATIENCE_MS).data().decode() for _ in range(60)]
    assert found == [str(number) for number in range(60)]
    assert time.monotonic() - began > 1.5
