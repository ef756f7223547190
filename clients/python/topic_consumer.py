"""A consumer of one topic or one partition: permits, entries, seeks.

The broker sends entries ahead of demand, as far as permits allow.  They wait in the message queue
that all partitions of a consumer share, and are unpacked when the application gets to them.  An
entry that cannot be read is an error for the application and is not acknowledged: no message is
dropped silently.

When the consumer is attached again, the broker delivers everything that is not acknowledged, so the
entries that wait here are dropped first.  The broker remembers nothing for a reader: it resumes
behind the entry that came last, and keeps the entries that wait.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import partial
from random import Random

import trio

from daybook.clients.python.acknowledger import Acknowledger
from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.connection_handler import CLOSE_TIMEOUT_S, ConnectionHandler
from daybook.clients.python.dead_letters import DeadLetters
from daybook.clients.python.entries import EntryReader, permits_of
from daybook.clients.python.errors import (
    BrokerError,
    CorruptMessageError,
    NotAllowedError,
)
from daybook.clients.python.interceptors import ConsumerInterceptors
from daybook.clients.python.limits import ClientLimits, ConsumerLimits
from daybook.clients.python.lookup import Lookups
from daybook.clients.python.message_id import EARLIEST, MessageId, Offset
from daybook.clients.python.message_queue import MessageQueue, Waiting
from daybook.clients.python.messages import Entry, Message
from daybook.clients.python.protocol.ack_timeouts import AckTimeouts
from daybook.clients.python.protocol.permits import Permits
from daybook.clients.python.redelivery import Redelivery
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.python.schemas.versions import SchemaVersions
from daybook.clients.python.start_position import Start, StartPosition, milliseconds
from daybook.clients.python.statistics import ReceiveCounts
from daybook.wire.errors import WireError
from daybook.wire.fields import signed
from daybook.wire.messages.consumer import Delivery
from daybook.wire.messages.registry import CLIENT_NAME, RESUMES, AnyCommand, Command
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName


class SubscriptionType(Enum):
    """How a subscription divides its messages among consumers."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key_shared"

    @property
    def shares(self) -> bool:
        """True if several consumers get messages at the same time, and each its own."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


_CHUNK_DELAY_MAX_S = 60.0  # between two requests for a chunk whose message lacks others
_SUB_TYPES = {
    SubscriptionType.EXCLUSIVE: pb.CommandSubscribe.Exclusive,
    SubscriptionType.SHARED: pb.CommandSubscribe.Shared,
    SubscriptionType.FAILOVER: pb.CommandSubscribe.Failover,
    SubscriptionType.KEY_SHARED: pb.CommandSubscribe.Key_Shared,
}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer or reader was opened: the same for all its partitions."""

    subscription: str
    type: SubscriptionType
    durable: bool
    start: Start  # EARLIEST or LATEST for a new subscription; any position for a reader
    consumer_name: str
    queue_size: int
    limits: ConsumerLimits
    ack_receipts: bool
    read_compacted: bool = False
    dead_letters: DeadLetters | None = None
    retry: bool = False
    create: bool = True  # the topic, if it does not exist and the policies allow it
    properties: tuple[tuple[str, str], ...] = ()
    key_ranges: tuple[tuple[int, int], ...] = ()  # a key_shared consumer gets these hashes only
    out_of_order: bool = False
    versions: SchemaVersions | None = None  # set if the consumer has a schema
    counts: ReceiveCounts = field(default_factory=ReceiveCounts)  # shared by all its partitions
    interceptors: ConsumerInterceptors | None = None
    # The subscription must exist: neither it nor its topic is created.
    must_exist: bool = False
    stored: tuple[tuple[str, str], ...] = ()  # properties of a subscription that is created
    # A stored property that must stay as it was when the consumer was attached first: a
    # subscription with another value was created anew, and this consumer has no business there.
    identity: str = ""

    def request(self, topic: str, consumer_id: int, epoch: int) -> pb.CommandSubscribe:
        """Return the request to subscribe, without the start position of a reader."""
        request = pb.CommandSubscribe(
            topic=topic,
            subscription=self.subscription,
            subType=_SUB_TYPES[self.type],
            consumer_id=consumer_id,
            consumer_name=self.consumer_name,
            durable=self.durable,
            initialPosition=pb.CommandSubscribe.Latest,
            read_compacted=self.read_compacted,
        )
        if not self.create:
            request.force_topic_creation = False
        if self.must_exist:
            request.force_subscription_creation = False
        for key, value in self.stored:
            request.subscription_properties.add(key=key, value=value)
        if self.versions is not None:
            request.schema.CopyFrom(self.versions.schema.info.to_wire())
        if self.start == EARLIEST:
            request.initialPosition = pb.CommandSubscribe.Earliest
        for key, value in self.properties:
            request.metadata.add(key=key, value=value)
        if self.type is SubscriptionType.KEY_SHARED:
            meta = request.keySharedMeta
            meta.keySharedMode = pb.STICKY if self.key_ranges else pb.AUTO_SPLIT
            meta.allowOutOfOrderDelivery = self.out_of_order
            for first, last in self.key_ranges:
                meta.hashRanges.add(start=first, end=last)
        if not self.type.shares:
            request.consumer_epoch = epoch  # From 0 on, so that the broker stamps all it sends.
        return request


class TopicConsumer(ConnectionHandler):
    """One instance per topic, or per partition, of a consumer or reader."""

    def __init__(
        self,
        topic: TopicName,
        *,
        lookups: Lookups,
        limits: ClientLimits,
        rng: Random,
        consumer_id: int,
        settings: ConsumerSettings,
        queue: MessageQueue,
    ) -> None:
        super().__init__(topic, lookups=lookups, limits=limits, rng=rng)
        self.active = settings.type is not SubscriptionType.FAILOVER
        self.end_of_topic = False
        self.generation = 0  # how often the position moved: acks of an older one are void
        self._id = consumer_id
        self._settings = settings
        # All messages of a non-persistent topic have the id 0:0, and none is ever sent again.
        self._acknowledges = topic.persistent
        self._queue = queue
        self._partition = topic.partition
        queue.shares.count += 1
        self._permits = Permits(
            settings.queue_size, settings.limits.receiver_queue_bytes_max, queue.shares
        )
        self._acks = Acknowledger(
            self,
            consumer_id,
            settings.limits,
            receipts=settings.ack_receipts,
        )
        self._redelivery = Redelivery(
            self,
            consumer_id,
            self._acks,
            settings.limits,
            by_entry=settings.type.shares,
            drop=self._drop,
        )
        timeout_s = settings.limits.ack_timeout_s
        self._timeouts = None if timeout_s is None else AckTimeouts(timeout_s)
        self._timed = trio.Event()  # the first entry has a deadline
        self._attachments = 0
        self._entries = EntryReader(
            topic.full, topic.partition, self, settings.versions, settings.limits
        )
        # The other entries of messages in chunks, by their last one, until they are acknowledged.
        self._chunked: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        self._chunks_wait = trio.Event()  # a message lacks chunks
        # Entries that were handed out while a message in chunks is incomplete: a cumulative
        # acknowledgement names them one by one, because it must not cover those chunks.
        self._behind_chunks: dict[tuple[int, int], None] = {}
        self._start = StartPosition(settings.start, durable=settings.durable)
        self._seeking = False
        self._moved: int | None = None  # the number of the last move that the broker told us
        self._moved_generation = 0  # the generation that began with a move by another client
        self._unsubscribed = False
        self.stored: dict[str, str] = {}  # the properties of the subscription, if the broker tells

    # -- what the connection calls

    @property
    def waiting(self) -> bool:
        """Return False: a consumer may wait for messages for days."""
        return False

    def handle(self, command: AnyCommand) -> None:
        """Handle a delivery, the end of the topic, or that this consumer becomes active."""
        if isinstance(command, Delivery):
            self.on_delivery(command)
            return
        assert isinstance(command, Command)
        if command.type == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.on_active(command.body.is_active)
        else:
            assert command.type == pb.BaseCommand.REACHED_END_OF_TOPIC
            self.on_end_of_topic()

    # -- entries

    def on_delivery(self, delivery: Delivery) -> None:
        key, epoch = (delivery.ledger_id, delivery.entry_id), delivery.consumer_epoch
        if self._seeking:
            wanted = False
        elif self._settings.durable:
            is_old = epoch is not None and epoch < self._redelivery.epoch
            wanted = not is_old and (not self._acknowledges or self._acks.tracker.arrived(key))
        else:
            wanted = self._start.is_new(key)
        if not wanted:
            self._pay_back(delivery, delivery.payload)
            return
        # Copied: an entry that waits here must not keep the receive arena of the connection.
        payload, delivery.payload = bytes(delivery.payload), memoryview(b"")
        self._queue.put(Waiting(self, delivery, payload))

    def unpack(self, waiting: Waiting) -> list[Message]:
        """Return the messages of an entry that left the queue.  Raise CorruptMessageError."""
        delivery, payload = waiting.delivery, waiting.payload
        key = delivery.ledger_id, delivery.entry_id
        if self._acknowledges and not self._acks.tracker.taken(key):
            self._pay_back(delivery, payload)
            return []
        try:
            unpacked = self._entries.unpack(delivery, payload, self.generation)
        except WireError as error:
            self._pay_back(delivery, payload)
            where = MessageId(
                delivery.ledger_id, delivery.entry_id, -1, self._partition, self.topic.full
            )
            raise CorruptMessageError(str(error), where) from error
        if unpacked is None or unpacked.earlier:
            self._settle_dropped_chunks()
        if unpacked is None:  # A chunk of a message that is not whole yet.
            self._pay_back(delivery, payload)
            return []
        if unpacked.earlier:
            self._chunked[delivery.ledger_id, delivery.entry_id] = unpacked.earlier
        messages = self._wanted(unpacked.entry, unpacked.messages, delivery.ack_set)
        self._settings.counts.entry_received(len(messages), len(payload), delivery.redelivery_count)
        # A reader acknowledges nothing, so it would remember them forever.
        if self._entries.chunks.lacks_some and self._settings.durable and self._acknowledges:
            self._behind_chunks[delivery.ledger_id, delivery.entry_id] = None
        elif self._behind_chunks:
            self._behind_chunks.clear()
        dead = self._settings.dead_letters
        if dead is not None and messages and dead.policy.is_over(delivery.redelivery_count):
            self._give_up(dead, messages, unpacked.permits, len(payload))
            return []
        self._give_permits(unpacked.permits, len(payload))
        if self._timeouts is not None and messages:
            self._timeouts.handed_out((delivery.ledger_id, delivery.entry_id), trio.current_time())
            self._timed.set()
        return messages

    def hand_out(self, waiting: Waiting) -> None:
        """Note that an entry leaves the queue as it was stored: the broker may send another one."""
        self._pay_back(waiting.delivery, waiting.payload)

    def _settle_dropped_chunks(self) -> None:
        """Have chunks delivered again, or acknowledge them, that cannot be joined now."""
        chunks, limits = self._entries.chunks, self._settings.limits
        again = list(chunks.take_again())
        for key in chunks.take_dropped():
            if limits.ack_incomplete_chunks:
                self._acks.tracker.ack(key, -1)
                self._acks.changed()
            else:
                again.append(key)
        # Nothing comes again to a reader: asking would only drop what waits for it.
        if self._settings.durable and self._acknowledges:
            for key in again:
                # The others may never come.  On an exclusive subscription each request has all
                # delivered again that is not acknowledged.
                self._redelivery.nack(key, chunks.times(key), _CHUNK_DELAY_MAX_S)
                if not self._settings.type.shares:  # A shared one may come to another consumer.
                    chunks.owe(key)
        if chunks.deadline is not None:
            self._chunks_wait.set()

    async def _expire_chunks(self) -> None:
        """Drop messages whose chunks are not all there in time."""
        chunks = self._entries.chunks
        while True:
            deadline = chunks.deadline
            if deadline is None:
                self._chunks_wait = trio.Event()
                await self._chunks_wait.wait()
                continue
            await trio.sleep_until(deadline)
            chunks.expire(trio.current_time())
            self._settle_dropped_chunks()

    def _give_up(self, dead: DeadLetters, messages: list[Message], permits: int, size: int) -> None:
        """Send dead letters for messages of one entry, which the application does not get.

        The permits are given back when all letters are settled: until then the broker sends less.
        """
        left, attachment, generation = len(messages), self._attachments, self.generation
        entry = messages[0].entry
        key = (entry.ledger_id, entry.entry_id)

        def settled() -> None:
            nonlocal left
            left -= 1
            # The permits of an earlier attachment are void.
            if not left and attachment == self._attachments:
                self._give_permits(permits, size)

        def acknowledge(index: int) -> None:
            if generation == self.generation:
                self.ack_run(key, index, index, is_batch=entry.is_batch)

        for message in messages:
            dead.give_up(
                message,
                partial(acknowledge, message.index),
                partial(self.nack, key, entry.redelivery_count),
                settled,
            )

    def _wanted(self, entry: Entry, messages: list[Message], ack_set: int | None) -> list[Message]:
        """Return the messages without those that are acknowledged or before the start position."""
        unwanted = 0
        if self._start.sought is not None:
            unwanted = self._start.before(messages)
        if self._entries.met_compacted:
            for index, message in enumerate(messages):
                unwanted |= message.compacted_out << index
        everything = pending = (1 << len(messages)) - 1
        if self._settings.durable and self._acknowledges:
            key, acks = (entry.ledger_id, entry.entry_id), self._acks.tracker
            if entry.is_batch:
                pending = acks.delivered(key, len(messages), ack_set)
                acks.skip(key, unwanted)
            elif unwanted:
                acks.ack(key, -1)
            if unwanted:
                self._acks.changed()
        wanted = pending & ~unwanted
        if wanted == everything:
            return messages
        return [message for index, message in enumerate(messages) if wanted >> index & 1]

    def _pay_back(self, delivery: Delivery, payload: bytes | memoryview) -> None:
        """Give back the permits of an entry that is dropped: the broker has counted them."""
        self._give_permits(permits_of(delivery, payload), len(payload))

    def _give_permits(self, messages: int, size: int) -> None:
        grant = self._permits.taken(messages, size) if messages else 0
        if grant:
            self._flow(grant)

    def _flow(self, permits: int) -> None:
        if self.connection is not None:
            self.connection.send_command(
                pb.CommandFlow(consumer_id=self._id, messagePermits=permits)
            )

    # -- acknowledgements

    def ack(self, key: tuple[int, int], batch_index: int) -> None:
        """Acknowledge a message."""
        if not self._acknowledges:
            return
        self._settings.counts.acked += 1
        self._acks.tracker.ack(key, batch_index)
        self._ack_chunks(key)
        self._acks.changed()
        self._settle_entry(key)

    def ack_run(self, key: tuple[int, int], first: int, last: int, *, is_batch: bool) -> None:
        """Acknowledge the messages `first` to `last` of one entry."""
        if not self._acknowledges:
            return
        self._settings.counts.acked += last - first + 1
        if is_batch:
            self._acks.tracker.skip(key, ((1 << (last - first + 1)) - 1) << first)
        else:
            self._acks.tracker.ack(key, -1)
            self._ack_chunks(key)
        self._acks.changed()
        self._settle_entry(key)

    def _ack_chunks(self, key: tuple[int, int]) -> None:
        """Acknowledge the other entries of a message in chunks."""
        if self._chunked:
            for each in self._chunked.pop(key, ()):
                self._acks.tracker.ack(each, -1)

    def _settle_entry(self, key: tuple[int, int]) -> None:
        if self._behind_chunks and not self._acks.tracker.is_pending(key):
            self._behind_chunks.pop(key, None)
        if self._timeouts is not None and not self._acks.tracker.is_pending(key):
            self._timeouts.settled(key)

    def ack_too_late(self, generation: int) -> None:
        """Note an acknowledgement of a message from before a move: it may be void."""
        if generation < self._moved_generation:
            self._acks.note_void(1)

    def ack_cumulative(self, key: tuple[int, int], batch_index: int) -> None:
        if not self._acknowledges:
            return
        first = self._entries.chunks.first
        if first is not None and first < key:
            # A message whose chunks are not all there yet is not acknowledged by a later one.
            for each in [each for each in self._behind_chunks if first < each < key]:
                self.ack(each, -1)
            self.ack_run(key, 0, max(0, batch_index), is_batch=batch_index >= 0)
            # With the entry -1 it means all ledgers before this one.
            key, batch_index = (first[0], first[1] - 1), -1
        self._acks.tracker.ack_cumulative(key, batch_index)
        self._acks.changed()
        for known in [known for known in self._chunked if known <= key]:
            del self._chunked[known]
        for known in [known for known in self._behind_chunks if known <= key]:
            del self._behind_chunks[known]
        if self._timeouts is not None:
            self._timeouts.settled_up_to((key[0], key[1] - 1))
            self._settle_entry(key)

    async def flush_acks(self) -> None:
        """Return when the broker has confirmed that all acknowledgements so far are durable."""
        await self._acks.flush()

    def nack(self, key: tuple[int, int], redeliveries: int = 0) -> None:
        """Have an entry delivered again that was redelivered so often before."""
        if not self._acknowledges:
            return
        self._settings.counts.nacked += 1
        if self._timeouts is not None:
            self._timeouts.settled(key)
        for each in (*self._chunked.get(key, ()), key):
            self._redelivery.nack(each, redeliveries)

    # -- its tasks

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acks.run)
            nursery.start_soon(self._redelivery.run)
            if self._timeouts is not None:
                nursery.start_soon(self._watch_timeouts, self._timeouts)
            if self._settings.limits.expire_incomplete_chunks_s is not None:
                nursery.start_soon(self._expire_chunks)
            await super().run()
            nursery.cancel_scope.cancel()

    async def _watch_timeouts(self, timeouts: AckTimeouts) -> None:
        """Ask again for entries that were not acknowledged in time."""
        while True:
            deadline = timeouts.deadline
            if deadline is None:
                self._timed = trio.Event()
                await self._timed.wait()
                continue
            await trio.sleep_until(deadline)
            expired = timeouts.expired(trio.current_time())
            self._settings.counts.timeouts += len(expired)
            if self._settings.interceptors is not None:
                partition, topic = self._partition, self.topic.full
                self._settings.interceptors.on_ack_timeout(
                    [MessageId(*key, -1, partition, topic) for key in sorted(expired)]
                )
            others = [each for key in expired for each in self._chunked.get(key, ())]
            await self._redelivery.ask_now(sorted((*others, *expired)))

    def _drop(self) -> None:
        """Drop the entries that wait here, and give back their permits."""
        for waiting in self._queue.drop(self):
            self._pay_back(waiting.delivery, waiting.payload)
        self._acks.tracker.dropped()
        if self._timeouts is not None:
            self._timeouts.forget()

    # -- positions

    async def seek(self, start: Start) -> None:
        """Continue at `start`; forget everything that was delivered before."""
        await self.persist(lambda connection: self._seek(connection, start))
        # The broker closes the consumers of a subscription that is moved; `run` attaches it again.
        await self.wait_connection()

    async def _seek(self, connection: BrokerConnection, start: Start) -> None:
        request = pb.CommandSeek(consumer_id=self._id)
        match start:
            case MessageId():
                request.message_id.CopyFrom(start.to_proto())
            case Offset():
                self._check_offsets(connection)
                request.offset = start.value
            case datetime():
                request.message_publish_time = milliseconds(start)
        self._seeking = True
        self._forget(moved_by_us=True)
        self._start.seek(start)
        try:
            answer = await connection.request(request)
            if answer.HasField("moved"):
                self._moved = answer.moved
        except BaseException:
            self._start.seek_failed()
            self._start_over(connection)
            raise
        finally:
            self._seeking = False

    def _start_over(self, connection: BrokerConnection) -> None:
        """Subscribe again after a seek without an answer: the position is unknown.

        Then the broker delivers again the entries that were dropped here.
        """
        if self.connection is connection:
            self._take_back(connection)
            self.on_detached("a seek failed")

    def _forget(self, *, moved_by_us: bool) -> None:
        self._drop()
        self._acks.forget(moved_by_us=moved_by_us)
        self._redelivery.forget()
        self._entries.chunks.forget()
        self._chunked.clear()
        self._behind_chunks.clear()
        self.generation += 1
        if not moved_by_us:
            self._moved_generation = self.generation

    async def last_message_id(
        self, *, with_ledgers: bool = False
    ) -> tuple[MessageId, pb.CommandGetLastMessageIdResponse]:
        """Return the id of the last message, and the whole answer of the broker.

        `with_ledgers` asks for the sealed ledgers of the topic, too.
        """

        async def ask(connection: BrokerConnection) -> pb.CommandGetLastMessageIdResponse:
            request = pb.CommandGetLastMessageId(consumer_id=self._id)
            if with_ledgers and _is_ours(connection):
                request.with_ledgers = True
            found: pb.CommandGetLastMessageIdResponse = await connection.request(request)
            return found

        answer = await self.persist(ask)
        last = MessageId.of_proto(
            answer.last_message_id, partition=self._partition, topic=self.topic.full
        )
        return last, answer

    async def schema(self, version: bytes) -> SchemaInfo:
        """Return a version of the schema of the topic.  Raise TopicNotFoundError if none."""

        async def ask(connection: BrokerConnection) -> pb.CommandGetSchemaResponse:
            found: pb.CommandGetSchemaResponse = await connection.request(
                pb.CommandGetSchema(topic=self.topic.full, schema_version=version)
            )
            return found

        return SchemaInfo.from_wire((await self.persist(ask)).schema)

    async def unsubscribe(self) -> None:
        """Delete the subscription; the consumer is closed with it."""

        async def ask(connection: BrokerConnection) -> None:
            await connection.request(pb.CommandUnsubscribe(consumer_id=self._id))
            self.abandon()  # Or `run` would attach it again, and so create the subscription anew.

        if not self._unsubscribed:
            await self.persist(ask)
            self._unsubscribed = True

    def _check_offsets(self, connection: BrokerConnection) -> None:
        if not _is_ours(connection):
            raise NotAllowedError(
                pb.NotAllowedError,
                f"the broker ({connection.server_version}) does not number messages, so they"
                " have no offsets",
            )

    # -- what the connection handler calls

    async def _register(self, connection: BrokerConnection) -> None:
        settings = self._settings
        request = settings.request(self.topic.full, self._id, self._redelivery.epoch)
        if settings.identity and self._ever_attached:
            request.force_subscription_creation = False
        if not settings.durable:
            self._start_reading(connection, request)
        connection.consumers[self._id] = self
        answer = await connection.request(request)
        if settings.durable:
            self._check_identity(answer)
            self._check_moved(answer)
        elif self._start.at_moving_end:
            await self._pin_latest(connection)

    def _check_identity(self, answer: pb.CommandSuccess) -> None:
        """Raise NotAllowedError if this is another subscription of the same name."""
        stored = {each.key: each.value for each in answer.subscription_properties}
        identity = self._settings.identity
        if identity and self._ever_attached and stored.get(identity) != self.stored.get(identity):
            raise NotAllowedError(
                pb.NotAllowedError,
                f"{self.topic}: the subscription {self._settings.subscription} is not the one of"
                " before: somebody deleted it, or the topic, and it was created anew",
            )
        self.stored = stored

    def _check_moved(self, answer: pb.CommandSuccess) -> None:
        """Forget what was delivered before another client moved the subscription.

        No entry can arrive in between: the broker has no permits yet.
        """
        if answer.HasField("moved") and answer.moved != self._moved:
            self._moved = answer.moved
            # While a seek of ours is under way, nothing from before it is left to be void.
            self._forget(moved_by_us=self._seeking)

    async def _pin_latest(self, connection: BrokerConnection) -> None:
        answer = await connection.request(pb.CommandGetLastMessageId(consumer_id=self._id))
        end = answer.last_message_id
        if answer.HasField("consumer_mark_delete_position"):
            end = answer.consumer_mark_delete_position
        self._start.pin((signed(end.ledgerId), signed(end.entryId)))

    def _start_reading(self, connection: BrokerConnection, request: pb.CommandSubscribe) -> None:
        """Set the start of a reader; when it is attached again, that is its last entry."""
        start = self._start.now
        if self._settings.read_compacted and self._start.resumes:
            request.metadata.add(key=RESUMES, value="true")
        if isinstance(start, Offset):
            self._check_offsets(connection)
            request.start_offset = start.value
        elif isinstance(start, MessageId):
            request.start_message_id.CopyFrom(start.to_proto())
        else:
            request.start_message_id.CopyFrom(EARLIEST.to_proto())

    def _attached(self, connection: BrokerConnection) -> None:
        self._seeking = False
        self._attachments += 1
        if self._timeouts is not None:
            self._timeouts.forget()  # The broker delivers all of it anyhow.
        self._start.attached()
        if self._settings.durable:
            self._redelivery.forget()  # The broker delivers all of it anyhow.
        self._acks.attached(connection, tells_moves=_is_ours(connection))
        here = self._queue.waiting_of(self)  # A reader has kept the entries that wait.
        if permits := self._permits.restart(sum(permits_of(e.delivery, e.payload) for e in here)):
            self._flow(permits)
        self._queue.wake()

    def _unregister(self, connection: BrokerConnection) -> None:
        if connection.consumers.get(self._id) is self:
            del connection.consumers[self._id]

    async def close(self) -> None:
        """Have the broker confirm the acknowledgements, waiting 5 s at most, and close."""
        if self.failure is None:
            with trio.move_on_after(CLOSE_TIMEOUT_S), suppress(BrokerError):
                await self._acks.settle()
        await super().close()

    async def _close_at_broker(self, connection: BrokerConnection) -> None:
        self._acks.send()  # The broker may not have confirmed them in time.
        await connection.request(pb.CommandCloseConsumer(consumer_id=self._id))

    def _take_back(self, connection: BrokerConnection) -> None:
        request_id = connection.next_request_id()
        connection.send_command(
            pb.CommandCloseConsumer(consumer_id=self._id, request_id=request_id)
        )

    def _ended(self, failure: BrokerError) -> None:
        del failure
        self._queue.shares.count -= 1
        self._queue.wake()

    # -- what else the connection calls

    def on_detached(self, reason: str) -> None:
        super().on_detached(reason)
        if self._settings.durable:
            self._queue.drop(self)  # The broker delivers all of them again.
            self._acks.tracker.dropped()

    def on_active(self, active: bool) -> None:
        self.active = active
        if not active:  # Another consumer gets what is not acknowledged.
            self._acks.tracker.all_given_back()

    def on_end_of_topic(self) -> None:
        self.end_of_topic = True
        self._queue.wake()


def _is_ours(connection: BrokerConnection) -> bool:
    """Return True if the broker numbers messages, and tells when a subscription was moved."""
    return connection.server_version.lower().startswith(CLIENT_NAME)
