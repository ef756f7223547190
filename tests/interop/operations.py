"""Apache Pulsar's Python client: one operation after the other, each with topics of its own.

`docs/interop.md` has a table of the operations.  The C++ client is below this one.
"""

import random
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pulsar
from google.protobuf.duration_pb2 import Duration
from pulsar import schema as typed

from tests.harness.processes import PATIENCE_S
from tests.interop.operations_table import python_names

# The official package has no types.
Client: TypeAlias = Any
Consumer: TypeAlias = Any
_MS = int(PATIENCE_S * 1000)
_EARLIEST = pulsar.InitialPosition.Earliest
_SHARED = pulsar.ConsumerType.Shared


class Operations:
    """A client, and the addresses that some operations need."""

    def __init__(self, service_url: str, admin_url: str) -> None:
        self.client: Client = connect(service_url)
        self._service_url = service_url
        self._admin_url = admin_url
        self._growing = self._grow("python-growing")

    def close(self) -> None:
        self.client.close()

    # -- what the operations share

    def subscribe(self, topic: str | list[str], **options: Any) -> Consumer:
        options = {"initial_position": _EARLIEST, "subscription_name": "s", **options}
        return self.client.subscribe(topic, **options)

    def send(self, topic: str, count: int = 1) -> list[Any]:
        with closing(self.client.create_producer(topic)) as producer:
            return [producer.send(b"%d" % number) for number in range(count)]

    def send_batch(self, topic: str, count: int, **options: Any) -> None:
        producer = self.client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=60_000, **options
        )
        with closing(producer):
            for number in range(count):
                key = {"partition_key": f"k{number % 2}"}
                producer.send_async(b"%d" % number, lambda *_: None, **key)
            producer.flush()

    def ask(self, method: str, topic: str, path: str, body: bytes | None = None) -> bytes:
        url = f"{self._admin_url}/admin/v2/persistent/public/default/{topic}/{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: bytes = answer.read()
            return found

    def _grow(self, topic: str) -> tuple[Any, Consumer]:
        """Add partitions, with a message in each, to a topic with a producer and a consumer.

        The client looks for them once a minute, and has no option for it.  So this happens first,
        and the operation that waits for them is the last one.
        """
        self.ask("PUT", topic, "partitions", b"1")
        latest = pulsar.InitialPosition.Latest
        consumer = self.subscribe(topic, initial_position=latest)
        producer = self.client.create_producer(topic)
        self.ask("POST", topic, "partitions", b"3")
        for index in (1, 2):
            self.send(f"{topic}-partition-{index}")
        return producer, consumer

    # -- producers

    def access_mode_shared(self, topic: str) -> None:
        for _ in range(2):
            self.client.create_producer(topic).send(b"x")

    def access_mode_exclusive(self, topic: str) -> None:
        mode = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
        with closing(self.client.create_producer(topic, **mode)):
            with refused():
                self.client.create_producer(topic, **mode)
            with refused():
                self.client.create_producer(topic)
        self.client.create_producer(topic, **mode).send(b"x")

    def access_mode_wait_for_exclusive(self, topic: str) -> None:
        one = self.client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        done = threading.Event()

        def wait() -> None:
            mode = pulsar.ProducerAccessMode.WaitForExclusive
            self.client.create_producer(topic, access_mode=mode).send(b"x")
            done.set()

        threading.Thread(target=wait, daemon=True).start()
        assert not done.wait(0.2)
        one.close()
        assert done.wait(PATIENCE_S)

    def access_mode_exclusive_with_fencing(self, topic: str) -> None:
        one = self.client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        mode = pulsar.ProducerAccessMode.ExclusiveWithFencing
        self.client.create_producer(topic, access_mode=mode).send(b"x")
        with refused():
            one.send(b"y")

    def batching(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        self.send_batch(topic, 10)
        assert len({each.message_id().entry_id() for each in take(consumer, 10)}) == 1

    def batching_by_key(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        self.send_batch(topic, 10, batching_type=pulsar.BatchingType.KeyBased)
        entries: dict[int, set[str]] = {}
        for _ in range(10):
            message = consumer.receive(_MS)
            entries.setdefault(message.message_id().entry_id(), set()).add(message.partition_key())
        assert sorted(map(len, entries.values())) == [1, 1]

    def chunking(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        large = random.Random(1).randbytes(12 << 20)
        self.client.create_producer(topic, chunking_enabled=True).send(large)
        assert consumer.receive(_MS).data() == large

    def largest_message(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        producer = self.client.create_producer(topic)
        producer.send(bytes((5 << 20) - 1024))
        with refused():
            producer.send(bytes((5 << 20) + 1))
        assert len(consumer.receive(_MS).data()) == (5 << 20) - 1024

    def compression_lz4(self, topic: str) -> None:
        self._compressed(topic, pulsar.CompressionType.LZ4)

    def compression_zlib(self, topic: str) -> None:
        self._compressed(topic, pulsar.CompressionType.ZLib)

    def compression_zstd(self, topic: str) -> None:
        self._compressed(topic, pulsar.CompressionType.ZSTD)

    def compression_snappy(self, topic: str) -> None:
        self._compressed(topic, pulsar.CompressionType.SNAPPY)

    def _compressed(self, topic: str, kind: Any) -> None:
        consumer = self.subscribe(topic)
        self.client.create_producer(topic, compression_type=kind).send(b"x" * 10_000)
        assert consumer.receive(_MS).data() == b"x" * 10_000

    def encryption(self, topic: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            secret, public = Path(place, "secret.pem"), Path(place, "public.pem")
            make = ["openssl", "genrsa", "-out", str(secret), "2048"]
            subprocess.run(make, check=True, capture_output=True)
            show = ["openssl", "rsa", "-in", str(secret), "-pubout", "-out", str(public)]
            subprocess.run(show, check=True, capture_output=True)
            keys = pulsar.CryptoKeyReader(str(public), str(secret))
            consumer = self.subscribe(topic, crypto_key_reader=keys)
            producer = self.client.create_producer(
                topic, encryption_key="key", crypto_key_reader=keys
            )
            producer.send(b"secret")
            assert consumer.receive(_MS).data() == b"secret"

    def partitioned_producer(self, topic: str) -> None:
        self.ask("PUT", topic, "partitions", b"3")
        consumer = self.subscribe(topic)
        producer = self.client.create_producer(topic)
        for number in range(6):
            producer.send(b"%d" % number)
        assert len({consumer.receive(_MS).topic_name() for _ in range(6)}) == 3

    def message_router(self, topic: str) -> None:
        self.ask("PUT", topic, "partitions", b"3")
        consumer = self.subscribe(topic)
        producer = self.client.create_producer(
            topic,
            message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
            message_router=lambda _, partitions: partitions - 1,
        )
        producer.send(b"x")
        assert consumer.receive(_MS).topic_name().endswith("-partition-2")

    # -- messages

    def properties_key_and_event_time(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        options = {"properties": {"a": "b"}, "partition_key": "k", "event_timestamp": 77}
        self.client.create_producer(topic).send(b"x", **options)
        message = consumer.receive(_MS)
        assert (message.properties(), message.partition_key()) == ({"a": "b"}, "k")
        assert message.event_timestamp() == 77

    def ordering_key(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        self.client.create_producer(topic).send(b"x", ordering_key="o")
        assert consumer.receive(_MS).ordering_key() == "o"

    def message_without_value(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        self.client.create_producer(topic).send(None, partition_key="k")
        assert consumer.receive(_MS).data() == b""

    def delayed_delivery(self, topic: str) -> None:
        consumer = self.subscribe(topic, consumer_type=_SHARED)
        producer = self.client.create_producer(topic)
        producer.send(b"late", deliver_after=timedelta(seconds=1.5))
        producer.send(b"now")
        assert [consumer.receive(_MS).data() for _ in range(2)] == [b"now", b"late"]

    def schemas_string_json_and_avro(self, topic: str) -> None:
        class User(typed.Record):  # type: ignore[misc]
            name = typed.String()

        for schema, value in (
            (typed.StringSchema(), "häuser"),
            (typed.JsonSchema(User), User(name="ann")),
            (typed.AvroSchema(User), User(name="ann")),
        ):
            name = f"{topic}-{type(schema).__name__.lower()}"
            consumer = self.subscribe(name, schema=schema)
            self.client.create_producer(name, schema=schema).send(value)
            assert consumer.receive(_MS).value() == value

    def schemas_of_protobuf(self, topic: str) -> None:
        schema = typed.ProtobufNativeSchema(Duration)
        consumer = self.subscribe(topic, schema=schema)
        self.client.create_producer(topic, schema=schema).send(Duration(seconds=7, nanos=9))
        assert consumer.receive(_MS).value() == Duration(seconds=7, nanos=9)

    def versions_of_a_schema(self, topic: str) -> None:
        name = {"name": "name", "type": "string"}
        town = {"name": "town", "type": "string", "default": "nowhere"}
        old, young = (
            typed.AvroSchema(None, {"type": "record", "name": "User", "fields": fields})
            for fields in ([name], [name, town])
        )
        ann, bob = {"name": "ann"}, {"name": "bob", "town": "Rome"}
        self.client.create_producer(topic, schema=old).send(ann)
        self.client.create_producer(topic, schema=young).send(bob)
        got = take(self.subscribe(topic, schema=young), 2)
        assert [each.value() for each in got] == [{**ann, "town": "nowhere"}, bob]
        with refused():
            self.client.create_producer(topic, schema=typed.StringSchema())

    # -- subscriptions

    def exclusive(self, topic: str) -> None:
        self.subscribe(topic)
        with refused():
            self.subscribe(topic)

    def failover(self, topic: str) -> None:
        kind = {"consumer_type": pulsar.ConsumerType.Failover}
        one = self.subscribe(topic, consumer_name="a", **kind)
        two = self.subscribe(topic, consumer_name="b", **kind)
        self.send(topic)
        one.receive(_MS)
        one.close()
        assert two.receive(_MS).data() == b"0"

    def shared(self, topic: str) -> None:
        options = {"consumer_type": _SHARED, "receiver_queue_size": 1}
        consumers = [self.subscribe(topic, **options) for _ in range(2)]
        self.send(topic, 10)
        for consumer in consumers:
            consumer.receive(_MS)

    def several_topics(self, topic: str) -> None:
        consumer = self.subscribe([f"{topic}-1", f"{topic}-2"])
        for number in (1, 2):
            self.send(f"{topic}-{number}")
            consumer.acknowledge(consumer.receive(_MS))

    def initial_position(self, topic: str) -> None:
        self.send(topic)
        assert self.subscribe(topic).receive(_MS).data() == b"0"
        late = self.subscribe(
            topic, subscription_name="late", initial_position=pulsar.InitialPosition.Latest
        )
        nothing(late)

    def unsubscribe(self, topic: str) -> None:
        self.subscribe(topic).unsubscribe()
        assert self.ask("GET", topic, "subscriptions") == b"[]"

    def message_listener(self, topic: str) -> None:
        came = threading.Event()
        self.subscribe(topic, message_listener=lambda *_: came.set())
        self.send(topic)
        assert came.wait(PATIENCE_S)

    def pause_and_resume(self, topic: str) -> None:
        came = threading.Event()
        consumer = self.subscribe(topic, message_listener=lambda *_: came.set())
        consumer.pause_message_listener()
        self.send(topic)
        assert not came.wait(0.2)
        consumer.resume_message_listener()
        assert came.wait(PATIENCE_S)

    def batch_receive(self, topic: str) -> None:
        policy = pulsar.ConsumerBatchReceivePolicy(5, -1, _MS)
        consumer = self.subscribe(topic, batch_receive_policy=policy)
        self.send(topic, 5)
        assert len(consumer.batch_receive()) == 5

    # -- acknowledgements

    def individual_acknowledgement(self, topic: str) -> None:
        with closing(self.subscribe(topic)) as consumer:
            self.send(topic, 3)
            consumer.acknowledge(take(consumer, 3)[1])
        assert contents(self.subscribe(topic), 2) == [b"0", b"2"]

    def cumulative_acknowledgement(self, topic: str) -> None:
        with closing(self.subscribe(topic)) as consumer:
            self.send(topic, 3)
            consumer.acknowledge_cumulative(take(consumer, 3)[1])
        assert contents(self.subscribe(topic), 1) == [b"2"]

    def batch_index_acknowledgement(self, topic: str) -> None:
        with closing(self.subscribe(topic, batch_index_ack_enabled=True)) as consumer:
            self.send_batch(topic, 4)
            for message in take(consumer, 4)[::2]:
                consumer.acknowledge(message)
        again = self.subscribe(topic, batch_index_ack_enabled=True)
        assert contents(again, 2) == [b"1", b"3"]

    def negative_acknowledgement(self, topic: str) -> None:
        consumer = self.subscribe(topic, consumer_type=_SHARED, negative_ack_redelivery_delay_ms=50)
        self.send(topic)
        consumer.negative_acknowledge(consumer.receive(_MS))
        assert consumer.receive(_MS).redelivery_count() == 1

    def acknowledgement_timeout(self, topic: str) -> None:
        # The client allows no shorter one.
        consumer = self.subscribe(topic, consumer_type=_SHARED, unacked_messages_timeout_ms=10_000)
        self.send(topic)
        consumer.receive(_MS)
        assert consumer.receive(_MS).data() == b"0"

    def redeliver_unacknowledged(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        self.send(topic, 2)
        take(consumer, 2)
        consumer.redeliver_unacknowledged_messages()
        assert consumer.receive(_MS).data() == b"0"

    def dead_letters(self, topic: str) -> None:
        consumer = self.subscribe(
            topic,
            consumer_type=_SHARED,
            negative_ack_redelivery_delay_ms=50,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-letters", "kept"),
        )
        letters = self.subscribe(f"{topic}-letters")
        self.send(topic)
        for _ in range(3):
            consumer.negative_acknowledge(consumer.receive(_MS))
        assert letters.receive(_MS).data() == b"0"

    # -- places

    def seek_by_id(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        ids = self.send(topic, 5)
        take(consumer, 5)
        consumer.seek(ids[2])
        assert consumer.receive(_MS).data() == b"3"
        consumer.seek(pulsar.MessageId.earliest)
        assert consumer.receive(_MS).data() == b"0"

    def seek_by_id_inclusive(self, topic: str) -> None:
        consumer = self.subscribe(topic, start_message_id_inclusive=True)
        ids = self.send(topic, 5)
        consumer.seek(ids[2])
        assert consumer.receive(_MS).data() == b"2"

    def seek_by_time(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        self.send(topic, 3)
        time.sleep(0.05)
        now = int(time.time() * 1000)
        time.sleep(0.05)
        self.client.create_producer(topic).send(b"new")
        consumer.seek(now)
        assert consumer.receive(_MS).data() == b"new"

    def reader(self, topic: str) -> None:
        ids = self.send(topic, 5)
        reader = self.client.create_reader(topic, ids[1])
        found = b""
        while reader.has_message_available():
            found += reader.read_next(_MS).data()
        assert found == b"234"
        reader.seek(ids[3])
        assert reader.read_next(_MS).data() == b"4"

    def last_message_id(self, topic: str) -> None:
        consumer = self.subscribe(topic)
        last, found = self.send(topic, 3)[2], consumer.get_last_message_id()
        assert (found.ledger_id(), found.entry_id()) == (last.ledger_id(), last.entry_id())

    # -- others

    def partitions_of_a_topic(self, topic: str) -> None:
        self.ask("PUT", topic, "partitions", b"3")
        assert len(self.client.get_topic_partitions(topic)) == 3

    def topic_that_does_not_exist(self, topic: str) -> None:
        del topic
        with refused():
            self.client.create_producer("persistent://public/nowhere/x")
        with refused():
            self.client.subscribe("persistent://public/nowhere/x", "s")

    def reconnect_after_an_unload(self, topic: str) -> None:
        consumer, producer = self.subscribe(topic), self.client.create_producer(topic)
        producer.send(b"0")
        self.ask("PUT", topic, "unload")
        producer.send(b"1")
        got: set[bytes] = set()
        while len(got) < 2:
            got.add(consumer.receive(_MS).data())

    def end_of_a_terminated_topic(self, topic: str) -> None:
        consumer, producer = self.subscribe(topic), self.client.create_producer(topic)
        producer.send(b"0")
        self.ask("POST", topic, "terminate")
        with refused():
            producer.send(b"1")
        assert consumer.receive(_MS).data() == b"0"

    def lookup_over_http(self, topic: str) -> None:
        with closing(connect(self._admin_url)) as client:
            client.create_producer(topic).send(b"x")

    def partitions_that_grow(self, topic: str) -> None:
        del topic
        producer, consumer = self._growing
        found = {consumer.receive(_MS).topic_name()[-1] for _ in range(2)}
        assert found == {"1", "2"}
        limit = time.monotonic() + PATIENCE_S
        sent: set[int] = set()
        while len(sent) < 3:
            assert time.monotonic() < limit, f"the producer sends to partitions {sent} only"
            sent.add(producer.send(b"x").partition())
            consumer.receive(_MS)


def connect(url: str) -> Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


@contextmanager
def refused() -> Iterator[None]:
    try:
        yield
    except pulsar.PulsarException:
        return
    raise AssertionError("it was not refused")


def take(consumer: Consumer, count: int) -> list[Any]:
    return [consumer.receive(_MS) for _ in range(count)]


def contents(consumer: Consumer, count: int) -> list[bytes]:
    return [message.data() for message in take(consumer, count)]


def nothing(consumer: Consumer) -> None:
    with refused():
        consumer.receive(200)


def named() -> dict[str, Callable[[Operations, str], None]]:
    """Return the operations by name, as in the table."""
    return {name: getattr(Operations, name.replace(" ", "_")) for name in python_names()}
