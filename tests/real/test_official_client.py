"""The official Pulsar client, unmodified, against our brokers."""

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pulsar
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

PATIENCE_S = 120  # the machine may be busy with other work
TIMEOUT_MS = PATIENCE_S * 1000


@pytest.fixture
def client(cluster: StandaloneProcess) -> Iterator[pulsar.Client]:
    made = pulsar.Client(
        cluster.service_url,
        operation_timeout_seconds=PATIENCE_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield made
    # Closing a producer whose topic has just been terminated is no error of the test.
    with suppress(pulsar.AlreadyClosed):
        made.close()


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(TIMEOUT_MS) for _ in range(count)]


def assert_silent(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
    ids=str,
)
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_messages_arrive_as_they_were_sent(
    client: pulsar.Client, topic: str, compression: pulsar.CompressionType, batching: bool
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic,
        compression_type=compression,
        batching_enabled=batching,
        batching_max_publish_delay_ms=5,
    )
    for i in range(100):
        producer.send_async(
            b"payload-%d" % i * 50,
            lambda result, _: None,
            partition_key=f"key-{i % 7}",
            properties={"n": str(i)},
            event_timestamp=1_700_000_000_000 + i,
        )
    producer.flush()
    for i, message in enumerate(receive(consumer, 100)):
        assert message.data() == b"payload-%d" % i * 50
        assert message.partition_key() == f"key-{i % 7}"
        assert message.properties() == {"n": str(i)}
        assert message.event_timestamp() == 1_700_000_000_000 + i
        consumer.acknowledge(message)


def test_our_client_reads_what_the_official_one_wrote_and_back(
    client: pulsar.Client, cluster: StandaloneProcess, topic: str
) -> None:
    with (
        blocking.connect(cluster.service_url) as ours,
        ours.subscribe(topic, "ours", initial_position="earliest") as here,
    ):
        theirs = client.subscribe(topic, "theirs", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(
            topic, compression_type=pulsar.CompressionType.ZSTD, batching_enabled=True
        )
        for i in range(20):
            producer.send_async(b"official %d" % i, lambda result, _: None)
        producer.flush()
        with ours.create_producer(topic, compression="lz4") as our_producer:
            for i in range(20):
                our_producer.send(b"ours %d" % i, key="k", properties={"i": str(i)})
        expected = [b"official %d" % i for i in range(20)] + [b"ours %d" % i for i in range(20)]
        assert [m.data() for m in receive(theirs, 40)] == expected
        got: list[bytes] = []
        while len(got) < 40:
            got += [bytes(m.data or b"") for m in here.receive_batch(100, timeout_s=PATIENCE_S)]
        assert got == expected


def test_an_exclusive_subscription_refuses_a_second_consumer(
    client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "sub")


def test_shared_consumers_get_each_message_once(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(
            topic, "sub", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10
        )
        for _ in range(2)
    ]
    producer = client.create_producer(topic)
    for i in range(100):
        producer.send(b"%d" % i)
    got: list[list[bytes]] = [[], []]
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, got)) < 100 and time.monotonic() < deadline:
        for consumer, received in zip(consumers, got, strict=True):
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            received.append(message.data())
            consumer.acknowledge(message)
    assert sorted(got[0] + got[1]) == sorted(b"%d" % i for i in range(100))
    assert got[0]
    assert got[1]


def test_failover_goes_to_the_next_consumer(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(
        topic, "sub", consumer_type=pulsar.ConsumerType.Failover, consumer_name="a"
    )
    producer = client.create_producer(topic)
    producer.send(b"one")
    message = first.receive(TIMEOUT_MS)
    first.acknowledge(message)
    second = client.subscribe(
        topic, "sub", consumer_type=pulsar.ConsumerType.Failover, consumer_name="b"
    )
    first.close()
    producer.send(b"two")
    assert second.receive(TIMEOUT_MS).data() == b"two"


def test_a_cumulative_ack_covers_everything_before(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    messages = receive(consumer, 10)
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    again = client.subscribe(topic, "sub")
    assert [m.data() for m in receive(again, 3)] == [b"7", b"8", b"9"]


def test_a_nacked_message_comes_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "sub",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=200,
    )
    producer = client.create_producer(topic)
    producer.send(b"again")
    message = consumer.receive(TIMEOUT_MS)
    consumer.negative_acknowledge(message)
    redelivered = consumer.receive(TIMEOUT_MS)
    assert redelivered.data() == b"again"
    assert redelivered.redelivery_count() == 1
    consumer.acknowledge(redelivered)
    assert_silent(consumer)


def test_seek_by_id_and_by_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(10):
        producer.send(b"%d" % i)
        time.sleep(0.01)
    messages = receive(consumer, 10)
    consumer.acknowledge_cumulative(messages[-1])
    consumer.seek(messages[4].message_id())
    assert consumer.receive(TIMEOUT_MS).data() in (b"4", b"5")
    consumer.seek(messages[7].publish_timestamp())
    assert consumer.receive(TIMEOUT_MS).data() == b"7"


def test_a_reader_reads_from_either_end(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for i in range(5):
        producer.send(b"%d" % i)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(TIMEOUT_MS).data())
    assert got == [b"%d" % i for i in range(5)]
    late = client.create_reader(topic, pulsar.MessageId.latest)
    assert not late.has_message_available()
    producer.send(b"new")
    assert late.read_next(TIMEOUT_MS).data() == b"new"


def test_a_partitioned_topic_keeps_the_order_of_each_key(
    client: pulsar.Client, cluster: StandaloneProcess, topic: str
) -> None:
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic, partitions=4)
    assert len(client.get_topic_partitions(topic)) == 4
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, block_if_queue_full=True)
    for i in range(200):
        producer.send_async(b"%d" % i, lambda result, _: None, partition_key=f"k{i % 11}")
    producer.flush()
    by_key: dict[str, list[int]] = {}
    partitions = set()
    for message in receive(consumer, 200):
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
        partitions.add(message.message_id().partition())
        consumer.acknowledge(message)
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(200))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert len(partitions) > 1


def test_unsubscribing_forgets_the_subscription(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer.receive(TIMEOUT_MS)
    consumer.unsubscribe()
    again = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Latest)
    assert_silent(again)


def test_it_goes_on_through_a_killed_broker(mended: StandaloneProcess, topic: str) -> None:
    """No message is lost; repeated sends may be stored twice, but in order."""
    client = pulsar.Client(
        mended.service_url,
        operation_timeout_seconds=PATIENCE_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, send_timeout_millis=TIMEOUT_MS)
    acked: list[int] = []
    for i in range(300):
        if i == 100:
            with blocking.connect(mended.service_url) as ours:
                url = ours.lookup(topic)
            (owner,) = [b["name"] for b in mended.ready["brokers"] if b["service_url"] == url]
            mended.local("kill", owner)
        producer.send(b"%d" % i)
        acked.append(i)
    got: list[int] = []
    while set(got) != set(acked):
        message = consumer.receive(TIMEOUT_MS)
        got.append(int(message.data()))
        consumer.acknowledge(message)
    first = list(dict.fromkeys(got))
    assert first == sorted(first)
    client.close()


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_deduplicated_topic_has_each_message_once(
    client: pulsar.Client, cluster: StandaloneProcess, topic: str, batching: bool
) -> None:
    """An application starts again, and repeats messages that it may have sent."""
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic)
        admin.set_topic_deduplication(topic, True)
    last: list[int] = []
    for ids in (range(1, 51), range(31, 61), range(11, 71)):
        producer = client.create_producer(
            topic,
            producer_name="app",
            batching_enabled=batching,
            batching_max_messages=10,
            initial_sequence_id=0,
        )
        last.append(producer.last_sequence_id())
        for number in ids:
            producer.send_async(b"%d" % number, lambda result, _: None, sequence_id=number)
        producer.flush()
        producer.close()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [int(reader.read_next(TIMEOUT_MS).data()) for _ in range(70)]
    assert found == list(range(1, 71))
    assert not reader.has_message_available()
    with blocking.connect_admin(cluster.admin_url) as admin:
        assert admin.deduplication(topic)


def test_a_deduplicated_topic_has_each_message_once_through_a_killed_broker(
    mended: StandaloneProcess, topic: str
) -> None:
    with blocking.connect_admin(mended.admin_url) as admin:
        admin.create_topic(topic)
        admin.set_topic_deduplication(topic, True)
    client = pulsar.Client(
        mended.service_url,
        operation_timeout_seconds=PATIENCE_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    producer = client.create_producer(
        topic,
        send_timeout_millis=TIMEOUT_MS,
        batching_enabled=True,
        batching_max_messages=10,
        block_if_queue_full=True,
    )
    for number in range(5_000):
        if number == 2_000:
            with blocking.connect(mended.service_url) as ours:
                url = ours.lookup(topic)
            (owner,) = [b["name"] for b in mended.ready["brokers"] if b["service_url"] == url]
            mended.local("kill", owner)
        producer.send_async(b"%d" % number, lambda result, _: None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [int(reader.read_next(TIMEOUT_MS).data()) for _ in range(5_000)]
    assert found == list(range(5_000))
    assert not reader.has_message_available()
    client.close()


def test_acknowledged_messages_of_a_batch_do_not_come_again_after_a_takeover(
    mended: StandaloneProcess, topic: str
) -> None:
    client = pulsar.Client(
        mended.service_url,
        operation_timeout_seconds=PATIENCE_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )

    def subscribe() -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "sub",
            consumer_type=pulsar.ConsumerType.Shared,
            batch_index_ack_enabled=True,
        )

    consumer = subscribe()
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=100,
    )
    for number in range(30):
        producer.send_async(b"%d" % number, lambda result, _: None)
    producer.flush()
    for message in receive(consumer, 30):
        if int(message.data()) % 3:
            consumer.acknowledge(message)
    consumer.close()
    # Acknowledgements without a receipt take a second; a clean unload stores them all.
    with blocking.connect_admin(mended.admin_url) as admin:
        admin.unload_topic(topic)
    with blocking.connect(mended.service_url) as ours:
        url = ours.lookup(topic)
    (owner,) = [b["name"] for b in mended.ready["brokers"] if b["service_url"] == url]
    mended.local("kill", owner)
    again = subscribe()
    assert [int(m.data()) for m in receive(again, 10)] == list(range(0, 30, 3))
    assert_silent(again)
    client.close()


def test_a_message_that_no_bookie_takes_harms_nobody_else_on_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The setting allows more than bookies take, and clients are told what bookies take.

    This client compares the whole message with that.  Go's client compares less; see
    `tests/interop`.
    """
    monkeypatch.setenv("DAYBOOK_BROKER_MAX_MESSAGE_SIZE", str(20 << 20))
    with StandaloneProcess(bookies=1, brokers=1) as cluster:
        client = pulsar.Client(
            cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe("large", "sub")
        producer = client.create_producer("large", batching_enabled=False)
        other = client.create_producer("other")
        results: dict[int, pulsar.Result] = {}

        def note(number: int, result: pulsar.Result, _: object) -> None:
            results[number] = result

        producer.send_async(b"1", partial(note, 1))
        producer.send_async(b"2", partial(note, 2), properties={"large": "x" * (6 << 20)})
        producer.send_async(b"3", partial(note, 3), partition_key="k" * (6 << 20))
        producer.send_async(b"4", partial(note, 4))
        other.send(b"5")
        producer.flush()
        assert results == {
            1: pulsar.Result.Ok,
            2: pulsar.Result.MessageTooBig,
            3: pulsar.Result.MessageTooBig,
            4: pulsar.Result.Ok,
        }
        assert [m.data() for m in receive(consumer, 2)] == [b"1", b"4"]
        other.send(b"6")
        client.close()


def test_all_sends_are_answered_when_their_topic_is_terminated(
    client: pulsar.Client, cluster: StandaloneProcess, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    results: list[pulsar.Result] = []

    def note(result: pulsar.Result, _: object) -> None:
        results.append(result)

    with blocking.connect_admin(cluster.admin_url) as admin:
        sent, ended = 0, False
        while not ended:
            producer.send_async(b"x", note)
            sent += 1
            if sent == 200:
                last = admin.terminate_topic(topic)
            ended = any(result != pulsar.Result.Ok for result in results)
            time.sleep(0.001)
    deadline = time.monotonic() + PATIENCE_S
    while len(results) < sent and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(results) == {pulsar.Result.Ok, pulsar.Result.TopicTerminated}
    assert len(results) == sent
    assert last.entry_id + 1 == results.count(pulsar.Result.Ok)
