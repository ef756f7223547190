"""A fake broker for tests of the client: real sockets, state in memory, and scripted faults.

Brokers of one `FakeCluster` share topics; a topic is served by the broker that `owner` names.  The
fake is a model of what a client may expect, and records the clients' commands.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio
from google.protobuf.message import Message

from daybook.wire.arena import ArenaPool
from daybook.wire.batch import broker_entry_metadata, parse_metadata, split_broker_metadata
from daybook.wire.connection import FrameConnection
from daybook.wire.messages.client import Send, encode_send_receipts
from daybook.wire.messages.consumer import Ack, encode_message, encode_message_id
from daybook.wire.messages.registry import Command, decode_frame, encode, signed, unsigned
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork
from daybook.wire.topics import TopicName
from daybook.wire.transport import Network

LEDGER = 7
PATIENCE_S = 120.0  # only so that nothing hangs forever
T = pb.BaseCommand
_T = TypeVar("_T")


def _code(code: int) -> str:
    return pb.ServerError.DESCRIPTOR.values_by_number[code].name


@dataclass
class Entry:
    payload: bytes  # includes the broker's block
    first_offset: int
    count: int


@dataclass
class Subscription:
    type: int
    durable: bool
    acked: set[int] = field(default_factory=set)
    # Batches: the messages that are not acknowledged.
    pending: dict[int, int] = field(default_factory=dict)
    consumers: list["FakeConsumer"] = field(default_factory=list)


@dataclass
class FakeConsumer:
    connection: "FakeConnection"
    consumer_id: int
    topic: str
    subscription: Subscription
    permits: int = 0
    next: int = 0
    start: int = 0
    epoch: int | None = None
    redelivered: dict[int, int] = field(default_factory=dict)


class FakeTopic:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.next_offset = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.terminated = False

    def append(self, payload: bytes) -> int:
        count = parse_metadata(memoryview(payload))[0].num_messages_in_batch
        block = broker_entry_metadata(1, self.next_offset + count - 1)
        self.entries.append(Entry(block + payload, self.next_offset, count))
        self.next_offset += count
        return len(self.entries) - 1


class FakeCluster:
    """`brokers` by name; `owner` returns a topic's broker (by default the first one)."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = defaultdict(FakeTopic)
        self.partitions: dict[str, int] = {}
        self.owner: dict[str, str] = {}
        self.brokers: dict[str, FakeBroker] = {}

    @property
    def url(self) -> str:
        return "pulsar://" + ",".join(f"{b.host}:{b.port}" for b in self.brokers.values())

    def broker_of(self, topic: str) -> "FakeBroker":
        return self.brokers[self.owner.get(topic, next(iter(self.brokers)))]


class FakeBroker:
    def __init__(
        self,
        cluster: FakeCluster,
        name: str,
        network: Network | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.network = network or TcpNetwork()
        self.host = host
        self.port = 0
        self.connections: list[FakeConnection] = []
        self.received: list[object] = []  # commands, in order
        self.hold_receipts = False
        self.drop_sends = False  # accept them, never answer
        self.silent = False
        self.lose_acks = False  # acknowledgements that ask for no receipt
        self.answer_acks = True
        self.redirect_to: str | None = None
        self.refusals: dict[int, list[tuple[int, str]]] = defaultdict(list)  # by command type
        self.send_errors: list[int] = []  # codes for the next sends
        self.max_message_size = 5 << 20
        self.server_version = "daybook-fake"
        self._scope = trio.CancelScope()

    def commands(self, kind: type[_T]) -> list[_T]:
        found: list[_T] = []
        for each in self.received:
            body = each.body if isinstance(each, Command) else each
            if isinstance(body, kind):
                found.append(body)
        return found

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        listener = await self.network.listen(self.host, self.port)
        self.port = listener.port
        self.connections = []
        self._scope = trio.CancelScope()
        flusher, arenas = Flusher(), ArenaPool()
        with self._scope, closing(listener):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flusher.run)
                task_status.started()
                while True:
                    stream = await listener.accept()
                    frames = FrameConnection(
                        stream, arenas=arenas, flusher=flusher, frame_bytes_max=6 << 20
                    )
                    connection = FakeConnection(self, frames)
                    self.connections.append(connection)
                    nursery.start_soon(connection.run)

    def kill(self) -> None:
        """Stop like kill -9: all connections are reset, the port is closed."""
        for connection in self.connections:
            connection.frames.close("killed")
            connection.forget()
        self._scope.cancel()

    def release_receipts(self) -> None:
        self.hold_receipts = False
        for connection in self.connections:
            connection.release()

    def close_producers(self) -> None:
        for connection in self.connections:
            for producer_id in list(connection.producers):
                connection.close_producer(producer_id)

    def close_consumers(self) -> None:
        for connection in self.connections:
            for consumer in list(connection.consumers.values()):
                connection.close_consumer(consumer)


class FakeConnection:
    def __init__(self, broker: FakeBroker, frames: FrameConnection) -> None:
        self.broker = broker
        self.frames = frames
        self.producers: dict[int, tuple[str, str]] = {}
        self.consumers: dict[int, FakeConsumer] = {}
        self.held: list[bytes] = []

    def tell(self, message: Message) -> None:
        self.frames.send((encode(message),))

    def release(self) -> None:
        held, self.held = self.held, []
        for frame in held:
            self.frames.send((frame,))

    def forget(self) -> None:
        for consumer in self.consumers.values():
            consumer.subscription.consumers.remove(consumer)
        self.consumers.clear()

    def close_producer(self, producer_id: int) -> None:
        del self.producers[producer_id]
        self.tell(pb.CommandCloseProducer(producer_id=producer_id, request_id=unsigned(-1)))

    def close_consumer(self, consumer: FakeConsumer) -> None:
        del self.consumers[consumer.consumer_id]
        consumer.subscription.consumers.remove(consumer)
        close = pb.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=unsigned(-1))
        self.tell(close)

    async def run(self) -> None:
        while frames := await self.frames.receive():
            for frame in frames:
                command = decode_frame(frame)
                if isinstance(command, Send):
                    command.payload = memoryview(bytes(command.payload))
                self.broker.received.append(command)
                if not self.broker.silent:
                    self.handle(command)
        self.forget()

    def handle(self, command: object) -> None:
        match command:
            case Send():
                self.on_send(command)
            case Ack():
                self.on_ack(command)
            case Command():
                refusals = self.broker.refusals[command.type]
                if refusals:
                    code, text = refusals.pop(0)
                    request_id = command.body.request_id
                    self.tell(
                        pb.CommandError(request_id=request_id, error=_code(code), message=text)
                    )
                else:
                    self.on_command(command.type, command.body)

    def on_command(self, kind: int, body: Any) -> None:
        cluster = self.broker.cluster
        match kind:
            case T.CONNECT:
                self.tell(
                    pb.CommandConnected(
                        server_version=self.broker.server_version,
                        protocol_version=body.protocol_version,
                        max_message_size=self.broker.max_message_size,
                    )
                )
            case T.PING:
                self.tell(pb.CommandPong())
            case T.PARTITIONED_METADATA:
                self.tell(
                    pb.CommandPartitionedTopicMetadataResponse(
                        request_id=body.request_id,
                        partitions=cluster.partitions.get(body.topic, 0),
                        response=pb.CommandPartitionedTopicMetadataResponse.Success,
                    )
                )
            case T.LOOKUP:
                self.on_lookup(body)
            case T.GET_TOPICS_OF_NAMESPACE:
                self.tell(
                    pb.CommandGetTopicsOfNamespaceResponse(
                        request_id=body.request_id, topics=list(cluster.topics)
                    )
                )
            case T.PRODUCER:
                name = body.producer_name or f"fake-{len(self.broker.received)}"
                self.producers[body.producer_id] = (body.topic, name)
                self.tell(
                    pb.CommandProducerSuccess(
                        request_id=body.request_id,
                        producer_name=name,
                        last_sequence_id=-1,
                        schema_version=b"",
                    )
                )
            case T.SUBSCRIBE:
                self.on_subscribe(body)
            case T.FLOW:
                consumer = self.consumers.get(body.consumer_id)
                if consumer:
                    consumer.permits += body.messagePermits
                    self.dispatch(consumer)
            case T.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                self.on_redeliver(body)
            case T.SEEK:
                self.on_seek(body)
            case T.GET_LAST_MESSAGE_ID:
                self.on_last_message_id(body)
            case T.UNSUBSCRIBE:
                consumer = self.consumers[body.consumer_id]
                topic = cluster.topics[consumer.topic]
                for name, subscription in list(topic.subscriptions.items()):
                    if subscription is consumer.subscription:
                        del topic.subscriptions[name]
                self.tell(pb.CommandSuccess(request_id=body.request_id))
            case T.CLOSE_PRODUCER:
                self.producers.pop(body.producer_id, None)
                self.tell(pb.CommandSuccess(request_id=body.request_id))
            case T.CLOSE_CONSUMER:
                consumer = self.consumers.pop(body.consumer_id, None)
                if consumer:
                    consumer.subscription.consumers.remove(consumer)
                self.tell(pb.CommandSuccess(request_id=body.request_id))
            case _:
                raise AssertionError(body)

    def on_lookup(self, body: Any) -> None:
        cluster = self.broker.cluster
        target = cluster.broker_of(body.topic)
        kind = pb.CommandLookupTopicResponse.Connect
        if self.broker.redirect_to is not None:
            target = cluster.brokers[self.broker.redirect_to]
            kind = pb.CommandLookupTopicResponse.Redirect
        self.tell(
            pb.CommandLookupTopicResponse(
                request_id=body.request_id,
                response=kind,
                brokerServiceUrl=f"pulsar://{target.host}:{target.port}",
                authoritative=True,
            )
        )

    # -- producing

    def on_send(self, send: Send) -> None:
        if send.producer_id not in self.producers:
            return
        if self.broker.send_errors:
            code = self.broker.send_errors.pop(0)
            error = pb.CommandSendError(
                producer_id=send.producer_id,
                sequence_id=send.sequence_id,
                error=_code(code),
                message="told to",
            )
            self.tell(error)
            if code == pb.PersistenceError:
                del self.producers[send.producer_id]  # No send may overtake the failed one.
            return
        topic_name, _ = self.producers[send.producer_id]
        topic = self.broker.cluster.topics[topic_name]
        entry_id = topic.append(bytes(send.payload))
        receipt = encode_send_receipts(
            send.producer_id, [(send.sequence_id, None, LEDGER, entry_id)]
        )
        if self.broker.hold_receipts:
            self.held.append(receipt)
        elif not self.broker.drop_sends:
            self.frames.send((receipt,))
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers:
                consumer.connection.dispatch(consumer)

    # -- consuming

    def on_subscribe(self, body: Any) -> None:
        topic = self.broker.cluster.topics[body.topic]
        subscription = topic.subscriptions.get(body.subscription)
        if subscription is None or not body.durable:
            subscription = Subscription(body.subType, body.durable)
            if body.durable:
                topic.subscriptions[body.subscription] = subscription
                if body.initialPosition == pb.CommandSubscribe.Latest:
                    subscription.acked = set(range(len(topic.entries)))
        consumer = FakeConsumer(self, body.consumer_id, body.topic, subscription)
        if body.HasField("consumer_epoch"):
            consumer.epoch = body.consumer_epoch
        if not body.durable:
            consumer.next = consumer.start = self.start_of(topic, body)
            topic.subscriptions[f"{body.subscription}-{id(consumer)}"] = subscription
        subscription.consumers.append(consumer)
        self.consumers[body.consumer_id] = consumer
        self.tell(pb.CommandSuccess(request_id=body.request_id))

    def start_of(self, topic: FakeTopic, body: Any) -> int:
        if body.HasField("start_offset"):
            return self.entry_of_offset(topic, body.start_offset)
        if not body.HasField("start_message_id"):
            return len(topic.entries)
        return self.entry_of_id(topic, body.start_message_id)

    def entry_of_offset(self, topic: FakeTopic, offset: int) -> int:
        for index, entry in enumerate(topic.entries):
            if entry.first_offset + entry.count > offset:
                return index
        return len(topic.entries)

    def entry_of_id(self, topic: FakeTopic, data: pb.MessageIdData) -> int:
        ledger, entry = signed(data.ledgerId), signed(data.entryId)
        if ledger < LEDGER:
            return 0
        return min(max(entry, 0), len(topic.entries)) if ledger == LEDGER else len(topic.entries)

    def dispatch(self, consumer: FakeConsumer) -> None:
        topic = self.broker.cluster.topics[consumer.topic]
        subscription = consumer.subscription
        while consumer.permits > 0 and consumer.next < len(topic.entries):
            index = consumer.next
            consumer.next += 1
            if index in subscription.acked:
                continue
            entry = topic.entries[index]
            consumer.permits -= entry.count
            partition = TopicName.parse(consumer.topic).partition
            head = encode_message(
                consumer.consumer_id,
                encode_message_id(LEDGER, index, partition),
                consumer.redelivered.get(index, 0),
                subscription.pending.get(index),
                len(entry.payload),
                consumer.epoch,
            )
            self.frames.send((head, entry.payload))
        if topic.terminated and consumer.next >= len(topic.entries):
            self.tell(pb.CommandReachedEndOfTopic(consumer_id=consumer.consumer_id))

    def on_ack(self, ack: Ack) -> None:
        consumer = self.consumers.get(ack.consumer_id)
        if consumer is None:
            if ack.request_id is not None:
                answer = pb.CommandAckResponse(
                    consumer_id=ack.consumer_id,
                    request_id=ack.request_id,
                    error=pb.ConsumerNotFound,
                )
                self.tell(answer)
            return
        if self.broker.lose_acks and ack.request_id is None:
            return
        subscription = consumer.subscription
        for each in ack.ids:
            if ack.cumulative:
                subscription.acked.update(range(each.entry_id))
            if each.ack_set is None:
                subscription.acked.add(each.entry_id)
                subscription.pending.pop(each.entry_id, None)
            else:
                now = subscription.pending.get(each.entry_id, -1) & each.ack_set
                subscription.pending[each.entry_id] = now
        if ack.request_id is not None and self.broker.answer_acks:
            self.tell(pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id))

    def on_redeliver(self, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is None:
            return
        ids = [each.entryId for each in body.message_ids]
        if body.HasField("consumer_epoch"):
            consumer.epoch = body.consumer_epoch
        again = ids or [n for n in range(consumer.next) if n not in consumer.subscription.acked]
        for index in again:
            if ids:
                consumer.redelivered[index] = consumer.redelivered.get(index, 0) + 1
        if not again:
            return
        later, consumer.next = consumer.next, min(again)
        if ids:  # Only those are redelivered, then later ones.
            for index in again:
                consumer.next = index
                permits, consumer.permits = consumer.permits, 1
                self.dispatch(consumer)
                consumer.permits += permits - 1
            consumer.next = later
        self.dispatch(consumer)

    def on_seek(self, body: Any) -> None:
        consumer = self.consumers[body.consumer_id]
        topic = self.broker.cluster.topics[consumer.topic]
        if body.HasField("offset"):
            index = self.entry_of_offset(topic, body.offset)
        elif body.HasField("message_id"):
            index = self.entry_of_id(topic, body.message_id)
        else:
            index = next(
                (
                    n
                    for n, e in enumerate(topic.entries)
                    if parse_metadata(memoryview(e.payload))[0].publish_time
                    >= body.message_publish_time
                ),
                len(topic.entries),
            )
        subscription = consumer.subscription
        subscription.acked = set(range(index)) if subscription.durable else set()
        subscription.pending.clear()
        for each in list(subscription.consumers):
            each.connection.close_consumer(each)
        self.tell(pb.CommandSuccess(request_id=body.request_id))

    def on_last_message_id(self, body: Any) -> None:
        consumer = self.consumers[body.consumer_id]
        topic = self.broker.cluster.topics[consumer.topic]
        answer = pb.CommandGetLastMessageIdResponse(request_id=body.request_id)
        last = answer.last_message_id
        if topic.entries:
            last.ledgerId, last.entryId = LEDGER, len(topic.entries) - 1
            metadata = parse_metadata(
                split_broker_metadata(memoryview(topic.entries[-1].payload))[2]
            )[0]
            last.batch_index = -1
            if metadata.HasField("num_messages_in_batch"):
                last.batch_index = metadata.num_messages_in_batch - 1
        else:
            last.ledgerId = last.entryId = unsigned(-1)
        if consumer.subscription.durable is False:
            answer.consumer_mark_delete_position.ledgerId = LEDGER
            answer.consumer_mark_delete_position.entryId = unsigned(consumer.start - 1)
        answer.first_offset = topic.entries[0].first_offset if topic.entries else topic.next_offset
        answer.next_offset = topic.next_offset
        self.tell(answer)


@asynccontextmanager
async def fake_cluster(*names: str) -> AsyncIterator[FakeCluster]:
    """Run a cluster of brokers with these names (by default one)."""
    cluster = FakeCluster()
    async with trio.open_nursery() as nursery:
        for name in names or ("b1",):
            broker = cluster.brokers[name] = FakeBroker(cluster, name)
            await nursery.start(broker.run)
        yield cluster
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition without an event."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.001)


__all__ = ["PATIENCE_S", "FakeBroker", "FakeCluster", "FakeConnection", "fake_cluster", "until"]
