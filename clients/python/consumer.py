"""A consumer: the messages of a topic, or of all its partitions, and what was done with them.

    consumer = await client.subscribe("orders", "billing")
    async for message in consumer:
        work_on(message.data)
        await consumer.ack(message)

Everything that is not acknowledged comes again: after a `nack`, after a takeover, to the next
consumer of the subscription.  `ack` tells the broker within a moment; with `ack_receipts` it
returns when the acknowledgement is durable, and what it returned for never comes again.

`receive_batch` is the fast way.  Messages of one partition come in order.  Several tasks may
receive from one consumer: each message goes to one of them, and all of them hear of the end.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, TypeAlias

import trio

from daybook.clients.python.consumer_settings import ConsumerSettings, SubscriptionType
from daybook.clients.python.errors import (
    BrokerError,
    ClosedError,
    CorruptMessageError,
    EndOfTopicError,
)
from daybook.clients.python.messages import EARLIEST, LATEST, Entry, Message, MessageId, Offset
from daybook.clients.python.positions import Start, parse_start
from daybook.clients.python.topic_consumer import TopicConsumer, Waiting
from daybook.wire.topics import TopicName

Ackable: TypeAlias = Message | MessageId
OpenEnds: TypeAlias = Callable[[list[TopicName]], Awaitable[list[TopicConsumer]]]
_TURNS = 64  # messages that are handed out between two checkpoints
_TURN_ENTRIES = 8  # of a batch, between two turns of the loop


class MessageQueue:
    """The messages that have arrived, of all partitions; consumers and readers have one each."""

    def __init__(self) -> None:
        self._entries: deque[Waiting] = deque()
        self._ready: deque[Message] = deque()
        self._arrived = trio.Event()
        self._failure: CorruptMessageError | None = None
        self._turn = 0

    # -- what topics' consumers call

    def put(self, waiting: Waiting) -> None:
        self._entries.append(waiting)
        self._arrived.set()

    def waiting_of(self, source: TopicConsumer) -> list[Waiting]:
        return [each for each in self._entries if each.source is source]

    def drop(self, source: TopicConsumer) -> list[Waiting]:
        dropped = self.waiting_of(source)
        if dropped:
            self._entries = deque(each for each in self._entries if each.source is not source)
        if self._ready:
            self._ready = deque(m for m in self._ready if m.entry.source() is not source)
        return dropped

    def wake(self) -> None:
        self._arrived.set()

    def clear(self) -> None:
        """Nobody wants them any more."""
        self._entries.clear()
        self._ready.clear()

    # -- what the application calls

    @property
    def has_messages(self) -> bool:
        """Whether something has arrived that was not taken yet."""
        return bool(self._ready or self._entries)

    async def take(self, sources: list[TopicConsumer]) -> Message | None:
        """The next message; None behind the last one of topics that have ended."""
        self._turn += 1
        if self._ready and self._turn % _TURNS:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
            if not await self._fill(sources):
                return None
        return self._ready.popleft()

    def take_nowait(self, count_max: int, sources: list[TopicConsumer]) -> list[Message]:
        """Return messages that have arrived, or [] behind the last one.

        Raise trio.WouldBlock if none has arrived.
        """
        found: list[Message] = []
        if not self._fill_nowait(sources):
            return found
        while True:
            room = min(count_max - len(found), len(self._ready))
            found += [self._ready.popleft() for _ in range(room)]
            if len(found) >= count_max or not self._entries:
                return found
            try:
                self._unpack()
            except CorruptMessageError as error:
                self._failure = error  # The next call raises it.
                return found

    async def take_many(self, count_max: int, sources: list[TopicConsumer]) -> list[Message]:
        """At least one message, at most `count_max`; none behind the last one."""
        await trio.lowlevel.checkpoint()
        if not self._ready and not await self._fill(sources):
            return []
        found: list[Message] = []
        entries = 0
        while True:
            ready = self._ready  # Another one each time: `drop` replaces it, between two turns.
            room = count_max - len(found)
            if len(ready) <= room:
                found += ready
                ready.clear()
            else:
                found += [ready.popleft() for _ in range(room)]
            if len(found) >= count_max or not self._entries:
                return found
            try:
                self._unpack()
            except CorruptMessageError as error:
                self._failure = error  # The next call raises it.
                return found
            entries += 1
            if entries % _TURN_ENTRIES == 0:
                # The permits for what was taken have to leave, or the broker waits for us.  A
                # cancellation would lose what was found.
                await trio.lowlevel.cancel_shielded_checkpoint()

    async def _fill(self, sources: list[TopicConsumer]) -> bool:
        """Wait until a message is ready; return False if there will never be one again."""
        while True:
            try:
                return self._fill_nowait(sources)
            except trio.WouldBlock:
                await self._wait_for_news()

    def _fill_nowait(self, sources: list[TopicConsumer]) -> bool:
        """Return as `_fill`; raise trio.WouldBlock if no message has arrived."""
        while not self._ready:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._entries:
                self._unpack()
                continue
            for source in sources:
                if source.failure is not None:
                    raise source.failure
            if all(source.end_of_topic for source in sources):
                return False
            raise trio.WouldBlock
        return True

    async def _wait_for_news(self) -> None:
        """Until something arrives or ends, which wakes all who wait: each looks for itself."""
        if self._arrived.is_set():
            self._arrived = trio.Event()  # Nobody waits for one that is set.
        await self._arrived.wait()

    def _unpack(self) -> None:
        waiting = self._entries.popleft()
        self._ready.extend(waiting.source.unpack(waiting))


class MessageSource:
    """What consumers and readers have in common: messages, and positions."""

    def __init__(
        self,
        topic: TopicName,
        name: str,
        ends: list[TopicConsumer],
        queue: MessageQueue,
        open_ends: OpenEnds,
        on_closed: Callable[["MessageSource"], None],
    ) -> None:
        self.topic = topic.full
        self._topic_name = topic
        self._open_ends = open_ends
        self.name = name
        self._ends = ends
        self._queue = queue
        self._on_closed = on_closed
        self._closed = False
        self._ended = trio.Event()
        self._gone = False  # its client has forgotten it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._subject}, {self._state}>"

    @property
    def _subject(self) -> str:
        return self.topic

    @property
    def _state(self) -> str:
        if self._closed:
            return "closed"
        return "connected" if self.connected else "not connected"

    @property
    def closed(self) -> bool:
        """Return True if it was closed by its owner."""
        return self._closed

    @property
    def partitions(self) -> int:
        """How many partitions it receives from; 0 for a topic that has none."""
        return len(self._ends) if self._ends[0].topic.partition >= 0 else 0

    async def grow(self, partitions: int) -> None:
        """The topic has so many partitions now: receive from the new ones, too, all they have."""
        known = range(len(self._ends), partitions)
        ends = await self._open_ends([self._topic_name.partition_name(index) for index in known])
        if self._closed:
            for end in ends:
                end.abandon()
            return
        self._ends += ends

    @property
    def connected(self) -> bool:
        """Whether all partitions are attached to their brokers now."""
        return all(end.connection is not None for end in self._ends)

    async def receive(self) -> Message:
        """The next message.  Raises EndOfTopicError behind the last one of a terminated topic.

        CorruptMessageError is for one message only: the next call goes on behind it.
        """
        message = await self._queue.take(self._ends)
        if message is None:
            raise EndOfTopicError(f"{self.topic} was terminated")
        return message

    async def receive_batch(self, count_max: int = 1000) -> list[Message]:
        """Wait for a message; return it and what else is there.  [] behind the last one."""
        if count_max < 1:
            raise ValueError(f"count_max is at least 1, not {count_max}")
        return await self._queue.take_many(count_max, self._ends)

    def receive_nowait(self, count_max: int = 1000) -> list[Message]:
        """Return messages that have arrived, or [] behind the last one of a terminated topic.

        Raise trio.WouldBlock if no message has arrived.
        """
        return self._queue.take_nowait(count_max, self._ends)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        message = await self._queue.take(self._ends)
        if message is None:
            raise StopAsyncIteration
        return message

    async def seek(self, start: Start | int | str) -> None:
        """Go to a place in all partitions: to a message, an offset, a time, `earliest`, `latest`.

        What was received and not acknowledged before is forgotten.  A message id or an offset is a
        place in one partition only.
        """
        where = parse_start(start)
        ends = self._ends
        if isinstance(where, MessageId) and where not in (EARLIEST, LATEST):
            ends = [self._end_of(where.partition)]
        elif isinstance(where, Offset) and len(ends) > 1:
            raise ValueError("an offset is a place in one partition: seek by time, or by message")
        for end in ends:
            await end.seek(where)

    async def last_message_ids(self) -> list[MessageId]:
        """The last message of each partition; (-1, -1) where there is none."""
        return [(await end.last_message_id())[0] for end in self._ends]

    async def aclose(self) -> None:
        """Tell the broker what is acknowledged, then end."""
        if self._closed:
            await self._ended.wait()  # Another task closes it: acknowledgements are on their way.
            return
        self._closed = True
        try:
            for end in self._ends:
                await end.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End at once.  Idempotent, also after `aclose`."""
        self._closed = True
        for end in self._ends:
            end.abandon()
        self._ended.set()
        self._go()

    def _go(self) -> None:
        if not self._gone:
            self._gone = True
            self._queue.clear()
            self._on_closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            self.abandon()

    def _end_of(self, partition: int) -> TopicConsumer:
        for end in self._ends:
            if end.topic.partition == partition or len(self._ends) == 1:
                return end
        raise ValueError(f"{self.topic} has no partition {partition}")


class Consumer(MessageSource):
    """Made by `Client.subscribe`."""

    def __init__(
        self,
        topic: TopicName,
        name: str,
        ends: list[TopicConsumer],
        queue: MessageQueue,
        open_ends: OpenEnds,
        on_closed: Callable[[MessageSource], None],
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(topic, name, ends, queue, open_ends, on_closed)
        self.subscription = settings.subscription
        self.type = settings.type
        self._ack_receipts = settings.ack_receipts

    @property
    def _subject(self) -> str:
        return f"{self.topic}, {self.type.value} subscription {self.subscription!r}"

    @property
    def active(self) -> bool:
        """Whether it is the one of a failover subscription that gets messages, somewhere."""
        return any(end.active for end in self._ends)

    async def ack(self, messages: Ackable | Iterable[Ackable]) -> None:
        """The application is done with a message, or with several.

        With `ack_receipts` it raises InDoubtError if somebody else has moved the subscription since
        the message was delivered: then the acknowledgement is void.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        told = self.ack_nowait(messages)
        if self._ack_receipts:
            for end in told:
                await end.flush_acks()

    def ack_nowait(self, messages: Ackable | Iterable[Ackable]) -> list[TopicConsumer]:
        """As `ack`, without waiting for a receipt."""
        if isinstance(messages, (Message, MessageId)):
            messages = (messages,)
        _check_iterable(messages)
        told: list[TopicConsumer] = []
        entry: Entry | None = None  # of a run of messages, from `first` to `last`
        first = last = 0
        for each in messages:
            if isinstance(each, Message):
                index = each.index
                if each.entry is entry and index == last + 1:
                    last = index
                    continue
                if entry is not None:
                    _ack_run(entry, first, last, told)
                entry, first, last = each.entry, index, index
            else:
                _check_ackable(each, "messages")
                end = self._end_of(each.partition)
                end.ack((each.ledger_id, each.entry_id), each.batch_index)
                _note(end, told)
        if entry is not None:
            _ack_run(entry, first, last, told)
        return told

    async def ack_cumulative(self, message: Ackable) -> None:
        """The application is done with this message and all before it (in its partition)."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.type is SubscriptionType.SHARED:
            raise ValueError("on a shared subscription messages are acknowledged one by one")
        _check_ackable(message)
        if isinstance(message, Message):
            entry = message.entry
            end = _live_end(entry)
            if entry.generation == end.generation:
                end.ack_cumulative((entry.ledger_id, entry.entry_id), message.batch_index)
            else:
                end.ack_too_late(entry.generation)
        else:
            end = self._end_of(message.partition)
            end.ack_cumulative((message.ledger_id, message.entry_id), message.batch_index)
        if self._ack_receipts:
            await end.flush_acks()

    def nack(self, message: Ackable) -> None:
        """Deliver this message again, after a while.

        On a shared subscription, with its whole batch; else with everything behind it.  What of
        that is acknowledged does not come again.
        """
        _check_ackable(message)
        if isinstance(message, Message):
            entry = message.entry
            end = _live_end(entry)
            if entry.generation == end.generation:
                end.nack((entry.ledger_id, entry.entry_id))
        else:
            self._end_of(message.partition).nack((message.ledger_id, message.entry_id))

    async def flush_acks(self) -> None:
        """Return when the broker has confirmed that all that is acknowledged so far is durable.

        With or without receipts, and through takeovers.  Raises BrokerError if that cannot be
        known; RequestTimedOutError when no broker has confirmed it for `operation_timeout_s`.
        """
        failures: list[BrokerError] = []

        async def flush(end: TopicConsumer) -> None:
            try:
                await end.flush_acks()
            except BrokerError as error:  # The others are flushed all the same.
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for end in self._ends:
                nursery.start_soon(flush, end)
        if failures:
            raise failures[0]

    async def unsubscribe(self) -> None:
        """End the subscription: its position is forgotten."""
        for end in self._ends:
            await end.unsubscribe()
        self.abandon()


def _live_end(entry: Entry) -> TopicConsumer:
    """Where it came from, as long as its own consumer is there."""
    end = entry.source()
    if not isinstance(end, TopicConsumer):
        raise ClosedError(f"{entry.topic}: the consumer of this message is gone")
    return end


def _check_ackable(value: object, argument: str = "message") -> None:
    """TypeError for what an application cannot have received."""
    if not isinstance(value, (Message, MessageId)):
        kind = type(value).__name__
        raise TypeError(f"{argument}: a Message or a MessageId is wanted here, not {kind}")


def _check_iterable(value: object) -> None:
    if not isinstance(value, Iterable):
        _check_ackable(value, "messages")


def _ack_run(entry: Entry, first: int, last: int, told: list[TopicConsumer]) -> None:
    """The application is done with these messages of an entry."""
    end = _live_end(entry)
    if entry.generation == end.generation:
        end.ack_run((entry.ledger_id, entry.entry_id), first, last, is_batch=entry.is_batch)
    else:
        end.ack_too_late(entry.generation)
    _note(end, told)


def _note(end: TopicConsumer, told: list[TopicConsumer]) -> None:
    if end not in told:
        told.append(end)
