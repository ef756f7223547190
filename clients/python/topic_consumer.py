"""A consumer of one topic, or of one partition: permits, entries, acknowledgements.

Entries come ahead of demand, as far as permits allow, and wait in the inbox that all partitions of
a consumer share.  They are taken apart when the application gets to them.  An entry that cannot be
read is an error for the application, and is not acknowledged: nothing is dropped in silence.

When the consumer is attached anew, the broker delivers again what is not acknowledged, so what
waits here is dropped first.  A reader has no such memory at its broker: it goes on behind the entry
that came last, and keeps what waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from random import Random
from typing import Protocol

import trio

from clients.python.acknowledger import Acknowledger
from clients.python.connection import BrokerConnection
from clients.python.entries import EntryReader, permits_of
from clients.python.errors import (
    BrokerError,
    CorruptMessageError,
    NotAllowedError,
    may_retry,
)
from clients.python.limits import ClientLimits, ConsumerLimits
from clients.python.link import Link
from clients.python.lookup import Lookups
from clients.python.messages import EARLIEST, LATEST, Entry, Message, MessageId, Offset
from clients.python.positions import Start, is_before, milliseconds
from clients.python.protocol.acks import NackTracker
from clients.python.protocol.permits import Permits
from wire.batch import num_messages, parse_metadata
from wire.errors import WireError
from wire.fields import signed
from wire.messages.consumer import Delivery
from wire.messages.registry import CLIENT_NAME
from wire.proto import pulsar_pb2 as pb
from wire.topics import TopicName


class SubscriptionType(Enum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"


_SUB_TYPES = {
    SubscriptionType.EXCLUSIVE: pb.CommandSubscribe.Exclusive,
    SubscriptionType.SHARED: pb.CommandSubscribe.Shared,
    SubscriptionType.FAILOVER: pb.CommandSubscribe.Failover,
}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    subscription: str
    type: SubscriptionType
    durable: bool
    start: Start  # of a new subscription: EARLIEST or LATEST; of a reader: anything
    consumer_name: str
    queue_size: int
    limits: ConsumerLimits
    ack_receipts: bool
    read_compacted: bool = False
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Waiting:
    """An entry in the inbox."""

    source: "TopicConsumer"
    delivery: Delivery
    payload: bytes


class Inbox(Protocol):
    """What a topic's consumer needs of the consumer that it is a part of."""

    def put(self, waiting: Waiting) -> None: ...

    def drop(self, source: "TopicConsumer") -> list[Waiting]:
        """Forget what came from there; return the entries that were not taken apart yet."""
        ...

    def wake(self) -> None:
        """Something is different: whoever waits for a message should look."""
        ...


class TopicConsumer(Link):
    """See the module."""

    def __init__(
        self,
        topic: TopicName,
        *,
        lookups: Lookups,
        limits: ClientLimits,
        rng: Random,
        consumer_id: int,
        settings: ConsumerSettings,
        inbox: Inbox,
    ) -> None:
        super().__init__(topic, lookups=lookups, limits=limits, rng=rng)
        self.active = settings.type is not SubscriptionType.FAILOVER
        self.end_of_topic = False
        self.generation = 0  # seeks so far; acknowledgements from before one are of no interest
        self._id = consumer_id
        self._settings = settings
        self._inbox = inbox
        self._partition = topic.partition
        self._permits = Permits(settings.queue_size, settings.limits.receiver_queue_bytes_max)
        self._acks = Acknowledger(
            self,
            consumer_id,
            settings.limits,
            receipts=settings.ack_receipts,
            operation_timeout_s=limits.operation_timeout_s,
        )
        self._nacks = NackTracker(settings.limits.nack_delay_s)
        self._entries = EntryReader(topic.full, topic.partition, self)
        self._from: Start | None = None if settings.durable else settings.start
        self._moves = 0  # attachments since the last seek
        self._last: tuple[int, int] | None = None  # the entry that came last, for readers
        self._epoch = 0
        self._seeking = False
        self._nacks_wait = trio.Event()

    # -- entries

    def on_delivery(self, delivery: Delivery) -> None:
        if self._seeking:
            self._give_permits(self._count(delivery), len(delivery.payload))
            return
        epoch = delivery.consumer_epoch
        key = (delivery.ledger_id, delivery.entry_id)
        if not self._settings.durable:
            if self._last is not None and key <= self._last:
                self._give_permits(self._count(delivery), len(delivery.payload))
                return
            self._last = key
        elif (epoch is not None and epoch < self._epoch) or not self._acks.tracker.arrived(key):
            self._give_permits(self._count(delivery), len(delivery.payload))
            return
        # The arena of the connection is for what is on its way, not for what waits here.
        payload, delivery.payload = bytes(delivery.payload), memoryview(b"")
        self._inbox.put(Waiting(self, delivery, payload))

    def unpack(self, waiting: Waiting) -> list[Message]:
        """The messages of an entry that left the inbox.  Raises CorruptMessageError."""
        delivery, payload, taken = waiting.delivery, waiting.payload, 1
        if not self._acks.tracker.taken((delivery.ledger_id, delivery.entry_id)):
            self._pay_back(waiting)
            return []
        try:
            unpacked = self._entries.unpack(delivery, payload, self.generation)
            taken = unpacked.permits
        except WireError as error:
            where = MessageId(delivery.ledger_id, delivery.entry_id, -1, self._partition)
            raise CorruptMessageError(str(error), where) from error
        finally:
            self._give_permits(taken, len(payload))
        return self._wanted(unpacked.entry, unpacked.messages, delivery.ack_set)

    def _wanted(self, entry: Entry, messages: list[Message], ack_set: int | None) -> list[Message]:
        """Without those that are acknowledged already, or lie before the place to start at."""
        unwanted = 0
        if self._from is not None:
            unwanted = self._before_start(messages)
        if self._entries.met_compacted:
            for index, message in enumerate(messages):
                unwanted |= message.compacted_out << index
        everything = pending = (1 << len(messages)) - 1
        if self._settings.durable:
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

    def _before_start(self, messages: list[Message]) -> int:
        """The messages (bits) in front of the place to start at.  It was found if one is not.

        An entry of a subscription that lies in front of it as a whole was not sought by us: who
        else moves the subscription wants it.
        """
        assert self._from is not None
        for index, message in enumerate(messages):
            if not is_before(message, self._from):
                self._from = None
                return (1 << index) - 1
        if self._settings.durable:
            self._from = None
            return 0
        return (1 << len(messages)) - 1

    def _count(self, delivery: Delivery) -> int:
        try:
            return permits_of(delivery, num_messages(parse_metadata(delivery.payload)[0]))
        except WireError:
            return 1

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
        """The application is done with a message."""
        self._acks.tracker.ack(key, batch_index)
        self._acks.changed()

    def ack_run(self, key: tuple[int, int], first: int, last: int, *, is_batch: bool) -> None:
        """The same for several messages of one entry."""
        if is_batch:
            self._acks.tracker.skip(key, ((1 << (last - first + 1)) - 1) << first)
        else:
            self._acks.tracker.ack(key, -1)
        self._acks.changed()

    def ack_cumulative(self, key: tuple[int, int], batch_index: int) -> None:
        self._acks.tracker.ack_cumulative(key, batch_index)
        self._acks.changed()

    async def flush_acks(self) -> None:
        """Return when the broker has made all acknowledgements so far durable."""
        await self._acks.flush()

    def nack(self, key: tuple[int, int]) -> None:
        self._nacks.nack(key, trio.current_time())
        self._nacks_wait.set()

    # -- its tasks

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acks.run)
            nursery.start_soon(self._nack_in_time)
            await super().run()
            nursery.cancel_scope.cancel()

    async def _nack_in_time(self) -> None:
        while True:
            deadline = self._nacks.deadline
            if deadline is None:
                self._nacks_wait = trio.Event()
                await self._nacks_wait.wait()
                continue
            await trio.sleep_until(deadline)
            due = self._nacks.due(trio.current_time())
            await self._acks.send_or_flush()  # first, or what is done comes again
            if due and self.connection is not None:  # Else all of it comes again anyhow.
                self._redeliver(self.connection, due)

    def _redeliver(self, connection: BrokerConnection, keys: Sequence[tuple[int, int]]) -> None:
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        if self._settings.type is SubscriptionType.SHARED:
            for ledger_id, entry_id in keys:
                request.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        else:
            # The broker goes back to the first entry that is not acknowledged: what waits here,
            # and what is on its way with an older epoch, comes again.
            self._epoch += 1
            request.consumer_epoch = self._epoch
            self._drop()
        connection.send_command(request)

    def _drop(self) -> None:
        """Forget what waits here, and let as much come again."""
        for waiting in self._inbox.drop(self):
            self._pay_back(waiting)
        self._acks.tracker.dropped()

    def _pay_back(self, waiting: Waiting) -> None:
        waiting.delivery.payload = memoryview(waiting.payload)
        self._give_permits(self._count(waiting.delivery), len(waiting.payload))

    # -- positions

    async def seek(self, start: Start) -> None:
        """Go to `start`; what was delivered before is forgotten."""
        deadline = trio.current_time() + self._limits.operation_timeout_s
        while True:
            connection = await self.wait_connection()
            try:
                await self._seek(connection, start)
            except BrokerError as error:
                if not may_retry(error, idempotent=True) or trio.current_time() >= deadline:
                    raise
                await trio.sleep(self._limits.backoff_initial_s)
            else:
                break
        await self.wait_connection()  # The broker closes a consumer that is moved; it comes back.

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
        self._forget()
        self._from, self._moves = start, 0
        try:
            await connection.request(request)
        except BaseException:
            if self._settings.durable:
                self._from = None
            self._start_over(connection)
            raise
        finally:
            self._seeking = False

    def _start_over(self, connection: BrokerConnection) -> None:
        """Nobody knows where we are: subscribe again, then what was dropped here comes again."""
        if self.connection is connection:
            request_id = connection.next_request_id()
            connection.send_command(
                pb.CommandCloseConsumer(consumer_id=self._id, request_id=request_id)
            )
            self.on_detached("a seek failed")

    def _forget(self) -> None:
        self._drop()
        self._acks.tracker.forget()
        self._nacks.forget()
        self._last = None
        self.generation += 1

    async def last_message_id(self) -> tuple[MessageId, pb.CommandGetLastMessageIdResponse]:
        """The id of the last message, and all that the broker says beside it."""
        connection = await self.wait_connection()
        answer = await connection.request(pb.CommandGetLastMessageId(consumer_id=self._id))
        last = MessageId.of_proto(answer.last_message_id, partition=self._partition)
        return last, answer

    async def unsubscribe(self) -> None:
        connection = await self.wait_connection()
        await connection.request(pb.CommandUnsubscribe(consumer_id=self._id))

    def _check_offsets(self, connection: BrokerConnection) -> None:
        if not connection.server_version.lower().startswith(CLIENT_NAME):
            raise NotAllowedError(
                pb.NotAllowedError, f"{connection.server_version} does not number messages"
            )

    # -- what the link needs

    async def _register(self, connection: BrokerConnection) -> None:
        settings = self._settings
        request = pb.CommandSubscribe(
            topic=self.topic.full,
            subscription=settings.subscription,
            subType=_SUB_TYPES[settings.type],
            consumer_id=self._id,
            consumer_name=settings.consumer_name,
            durable=settings.durable,
            initialPosition=pb.CommandSubscribe.Latest,
            read_compacted=settings.read_compacted,
        )
        if settings.start == EARLIEST:
            request.initialPosition = pb.CommandSubscribe.Earliest
        for key, value in settings.properties:
            request.metadata.add(key=key, value=value)
        if settings.type is not SubscriptionType.SHARED:
            request.consumer_epoch = (
                self._epoch
            )  # From 0 on, so that the broker stamps all it sends.
        if not settings.durable:
            self._start_reading(connection, request)
        connection.consumers[self._id] = self
        await connection.request(request)
        if not settings.durable and self._last is None and self._start() == LATEST:
            await self._pin_latest(connection)

    async def _pin_latest(self, connection: BrokerConnection) -> None:
        """Remember the end: a reader that comes back goes on there, not at the new one."""
        answer = await connection.request(pb.CommandGetLastMessageId(consumer_id=self._id))
        end = answer.last_message_id
        if answer.HasField("consumer_mark_delete_position"):
            end = answer.consumer_mark_delete_position
        self._last = (signed(end.ledgerId), signed(end.entryId))

    def _start(self) -> Start:
        return self._settings.start if self._from is None else self._from

    def _start_reading(self, connection: BrokerConnection, request: pb.CommandSubscribe) -> None:
        """A reader says where it starts; again, with its last entry, when it comes back."""
        start = self._start()
        if self._last is not None:
            start = MessageId(*self._last)
        if isinstance(start, Offset):
            self._check_offsets(connection)
            request.start_offset = start.value
        elif isinstance(start, MessageId):
            request.start_message_id.CopyFrom(start.to_proto())
        else:
            request.start_message_id.CopyFrom(EARLIEST.to_proto())

    def _attached(self, connection: BrokerConnection) -> None:
        self._seeking = False
        self._moves += 1
        if self._settings.durable:
            self._nacks.forget()  # What they asked for comes anyhow.
            if self._moves > 1:  # Once because of our seek; then somebody else may have moved us.
                self._from = None
        self._acks.attached(connection)
        if permits := self._permits.restart():
            self._flow(permits)
        self._inbox.wake()

    def _unregister(self, connection: BrokerConnection) -> None:
        if connection.consumers.get(self._id) is self:
            del connection.consumers[self._id]

    async def _say_goodbye(self, connection: BrokerConnection) -> None:
        await self._acks.send_or_flush()
        await connection.request(pb.CommandCloseConsumer(consumer_id=self._id))

    def _ended(self, failure: BrokerError) -> None:
        del failure
        self._inbox.wake()

    # -- what else the connection calls

    def on_detached(self, reason: str) -> None:
        super().on_detached(reason)
        if self._settings.durable:
            self._inbox.drop(self)  # All of it comes again.
            self._acks.tracker.dropped()

    def on_active(self, active: bool) -> None:
        self.active = active

    def on_end_of_topic(self) -> None:
        self.end_of_topic = True
        self._inbox.wake()
