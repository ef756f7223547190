"""Our Python client, as it is, against Apache Pulsar's broker."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Queue

import pytest

from daybook import schemas
from daybook.clients.python import aio, blocking
from daybook.clients.python.arguments import Compression
from daybook.clients.python.errors import NotAllowedError
from daybook.clients.python.interceptors import OutgoingMessage, ProducerInterceptor
from daybook.clients.python.messages import Message
from daybook.clients.python.protocol.letters import DeadLetterPolicy
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S
from tests.interop.apache import pulsar_broker_here
from tests.interop.pulsar_broker import PulsarBroker

pytestmark = pytest.mark.interop

MESSAGES = 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarBroker]:
    with StandaloneProcess(brokers=1) as cluster:
        cluster.local("stop", "broker-1")
        running = PulsarBroker(
            pulsar_broker_here(), cluster.zookeeper, tmp_path_factory.mktemp("pulsar")
        )
        running.start()
        yield running
        running.kill()


@pytest.fixture
def client(broker: PulsarBroker) -> Iterator[blocking.Client]:
    with blocking.connect(broker.service_url) as made:
        yield made


def fill(client: blocking.Client, topic: str, *, batching: bool = True) -> list[bytes]:
    data = [b"%d" % number for number in range(MESSAGES)]
    with client.create_producer(topic, batching=batching) as producer:
        for each in data:
            producer.send_nowait(each)
        producer.flush()
    return data


def test_messages_keep_their_key_and_properties(client: blocking.Client) -> None:
    with (
        client.create_producer("one") as producer,
        client.subscribe("one", "s", initial_position="earliest") as consumer,
    ):
        sent = producer.send(b"data", key="k", properties={"name": "value"})
        message = consumer.receive(timeout_s=PATIENCE_S)
        assert (message.data, message.key) == (b"data", "k")
        assert message.properties == {"name": "value"}
        assert message.message_id == sent
        assert client.last_message_id("one") == sent


def test_a_backlog_is_consumed_and_read_in_order(client: blocking.Client) -> None:
    data = fill(client, "many")
    with client.subscribe("many", "s", initial_position="earliest") as consumer:
        got = [consumer.receive(timeout_s=PATIENCE_S) for _ in data]
        assert [message.data for message in got] == data
        consumer.ack_cumulative(got[MESSAGES // 2])
        consumer.flush_acks()
    with client.subscribe("many", "s") as consumer:
        rest = data[MESSAGES // 2 + 1 :]
        assert [consumer.receive(timeout_s=PATIENCE_S).data for _ in rest] == rest
        consumer.seek("earliest")
        assert consumer.receive(timeout_s=PATIENCE_S).data == data[0]
        consumer.unsubscribe()
    with client.create_reader("many", start="earliest") as reader:
        read: list[bytes | None] = []
        while reader.has_message_available():
            read.append(reader.receive(timeout_s=PATIENCE_S).data)
        assert read == data


def test_a_message_that_is_given_back_comes_again(client: blocking.Client) -> None:
    with client.subscribe("again", "s", type="shared", nack_delay_s=0.05) as consumer:
        fill(client, "again", batching=False)
        got = [consumer.receive(timeout_s=PATIENCE_S) for _ in range(MESSAGES)]
        consumer.nack(got[7])
        again = consumer.receive(timeout_s=PATIENCE_S)
        assert (again.data, again.message_id) == (got[7].data, got[7].message_id)


@pytest.mark.parametrize("compression", ["lz4", "zlib", "zstd", "snappy"])
def test_compressed_messages(client: blocking.Client, compression: Compression) -> None:
    topic = f"compressed-{compression}"
    with client.create_producer(topic, compression=compression) as producer:
        producer.send(b"y" * 10_000)
    with client.create_reader(topic, start="earliest") as reader:
        assert reader.receive(timeout_s=PATIENCE_S).data == b"y" * 10_000


def test_partitions_are_produced_and_consumed(
    broker: PulsarBroker, client: blocking.Client
) -> None:
    with blocking.connect_admin(broker.admin_url) as admin:
        admin.create_topic("parted", partitions=3)
        assert client.partitions("parted") == 3
        data = fill(client, "parted")
        with client.subscribe("parted", "s", initial_position="earliest") as consumer:
            assert consumer.partitions == 3
            got = [consumer.receive(timeout_s=PATIENCE_S) for _ in data]
            assert sorted(int(message.data or b"") for message in got) == list(range(MESSAGES))
            consumer.ack(got)
        assert admin.subscriptions("parted") == ["s"]


def test_the_admin_client_reads_and_changes_what_pulsar_has(broker: PulsarBroker) -> None:
    with blocking.connect_admin(broker.admin_url) as admin:
        admin.create_namespace("public/admin")
        admin.set_retention("public/admin", minutes=5, megabytes=6)
        retention = admin.policies("public/admin")["retention_policies"]
        assert retention == {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6}
        topic = "persistent://public/admin/topic"
        admin.create_topic(topic)
        admin.create_subscription(topic, "s")
        assert admin.topics("public/admin") == [topic]
        assert admin.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0
        admin.delete_subscription(topic, "s")
        admin.delete_topic(topic)
        admin.delete_namespace("public/admin")


def test_dead_letters_retries_and_delays(client: blocking.Client) -> None:
    policy = DeadLetterPolicy(1, initial_subscription="graves")
    with (
        client.subscribe(
            "dead", "s", type="shared", dead_letter=policy, retry=True, nack_delay_s=0.05
        ) as consumer,
        client.create_producer("dead") as producer,
    ):
        producer.send(b"bad", key="k")
        for _ in range(2):
            consumer.nack(consumer.receive(PATIENCE_S))
        with client.subscribe("dead-s-DLQ", "graves") as graves:
            letter = graves.receive(PATIENCE_S)
            assert (letter.data, letter.key) == (b"bad", "k")
        producer.send(b"later", deliver_after_s=0.2)
        consumer.reconsume_later(consumer.receive(PATIENCE_S), 0.2)
        again = consumer.receive(PATIENCE_S)
        assert (again.data, again.properties["RECONSUMETIMES"]) == (b"later", "1")
        consumer.ack(again)


def test_patterns(client: blocking.Client) -> None:
    with client.create_producer("found-1") as producer:
        producer.send(b"1")
    with client.subscribe(
        re.compile("found-.*"), "s", initial_position="earliest", discovery_s=0.2
    ) as consumer:
        message = consumer.receive(PATIENCE_S)
        assert message.data == b"1"
        consumer.ack(message.message_id)
        fill(client, "found-2")
        assert consumer.receive(PATIENCE_S).topic.endswith("found-2")


def test_a_pipe_needs_offsets_or_is_at_least_once(client: blocking.Client) -> None:
    fill(client, "piped")
    with pytest.raises(NotAllowedError, match="has no deduplication"):
        client.pipe("piped", "pipe-out", lambda message: message.data, name="p")


def test_a_pattern_is_told_of_new_topics(client: blocking.Client) -> None:
    with client.subscribe(re.compile("told-.*"), "s", discovery_s=3600) as consumer:
        fill(client, "told-1", batching=False)
        got = [consumer.receive(PATIENCE_S) for _ in range(MESSAGES)]
        assert {message.topic.rpartition("/")[2] for message in got} == {"told-1"}


@dataclass
class Fruit:
    name: str
    count: int
    note: str | None = None


def test_typed_messages_pairs_and_letters(client: blocking.Client) -> None:
    fruits = schemas.avro(Fruit)
    policy = DeadLetterPolicy(0, initial_subscription="graves")
    with (
        client.subscribe(
            "fruit", "s", type="shared", schema=fruits, dead_letter=policy
        ) as consumer,
        client.create_producer("fruit", schema=fruits) as producer,
    ):
        producer.send(Fruit("apple", 3))
        message = consumer.receive(PATIENCE_S)
        assert message.value == Fruit("apple", 3)
        consumer.nack(message)
        with client.subscribe("fruit-s-DLQ", "graves", schema=fruits) as graves:
            letter = graves.receive(PATIENCE_S)
            assert (letter.value, letter.schema_version) == (Fruit("apple", 3), 0)
    pairs = schemas.key_value(schemas.STRING, fruits, separated=True)
    with client.create_producer("pairs", schema=pairs) as producer:
        producer.send(("k", Fruit("pear", 1)))
        producer.send(("gone", None))  # type: ignore[arg-type]
    with client.create_reader("pairs", start="earliest", schema=pairs) as reader:
        got = [reader.receive(PATIENCE_S).value for _ in range(2)]
        assert got == [("k", Fruit("pear", 1)), ("gone", None)]


class _Stamp(ProducerInterceptor):
    def before_send(self, message: OutgoingMessage) -> None:
        message.properties["stamp"] = "1"


def test_interceptors_listeners_and_statistics(client: blocking.Client) -> None:
    arrived: Queue[Message] = Queue()

    def work(consumer: blocking.Consumer, message: Message) -> None:
        consumer.ack(message)
        arrived.put(message)

    with (
        client.subscribe("heard", "s", listener=work) as consumer,
        client.create_producer("heard", interceptors=[_Stamp()]) as producer,
    ):
        producer.send(b"1")
        assert arrived.get(timeout=PATIENCE_S).properties == {"stamp": "1"}
        assert producer.stats().messages_stored == 1
        assert consumer.stats().messages_acked == 1


def test_incomplete_chunks_expire(client: blocking.Client) -> None:
    with (
        client.subscribe(
            "chunks", "s", type="shared", expire_incomplete_chunks_s=0.2, nack_delay_s=0.1
        ) as consumer,
        client.create_producer("chunks", chunking=True, send_timeout_s=None) as producer,
    ):
        large = b"x" * (6 << 20)
        producer.send(large)
        assert consumer.receive(PATIENCE_S).data == large


def test_asyncio_does_all_of_it(broker: PulsarBroker) -> None:
    async def main() -> None:
        async with (
            aio.connect_admin(broker.admin_url) as admin,
            aio.connect(broker.service_url) as client,
        ):
            await admin.create_topic("aio-table")
            fruits = schemas.avro(Fruit)
            producer = await client.create_producer("aio-table", schema=fruits)
            await producer.send(Fruit("plum", 2), key="p")
            async with await client.table_view("aio-table", schema=fruits) as view:
                assert dict(view) == {"p": Fruit("plum", 2)}
            assert "persistent://public/default/aio-table" in await client.topics()

    asyncio.run(main())
