"""Our Python client, as it is, against Apache Pulsar's broker."""

import re
from collections.abc import Iterator

import pytest

from daybook.clients.python import blocking
from daybook.clients.python.arguments import Compression
from daybook.clients.python.errors import NotAllowedError
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
        running = PulsarBroker(pulsar_broker_here(), cluster, tmp_path_factory.mktemp("pulsar"))
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
