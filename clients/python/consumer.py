"""A consumer: receives the messages of a topic or of all its partitions, and acknowledges them.

    consumer = await client.subscribe("orders", "billing")
    async for message in consumer:
        work_on(message.data)
        await consumer.ack(message)

Every message that is not acknowledged is delivered again: after a `nack`, after a takeover, or to
the next consumer of the subscription.  `ack` tells the broker within a moment; with `ack_receipts`
it returns when the acknowledgement is durable, and then the message never comes again.

`receive_batch` is the fast way.  Messages of one partition come in order.  Several tasks may
receive from one consumer: each message goes to one of them, and all of them hear of the end.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias

import trio

from daybook.clients.python.arguments import check_properties, check_timeout
from daybook.clients.python.errors import (
    BrokerError,
    ClosedError,
    EndOfTopicError,
)
from daybook.clients.python.interceptors import ConsumerInterceptors
from daybook.clients.python.message_id import EARLIEST, LATEST, MessageId, Offset
from daybook.clients.python.message_queue import MessageQueue
from daybook.clients.python.messages import Entry, Message, ValueT
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.python.schemas.versions import Ask, SchemaVersions, VersionDecoder
from daybook.clients.python.start_position import Start, parse_start
from daybook.clients.python.statistics import ConsumerStats, ReceiveCounts
from daybook.clients.python.topic_choice import TopicChoice
from daybook.clients.python.topic_consumer import ConsumerSettings, TopicConsumer
from daybook.wire.topics import TopicName

Ackable: TypeAlias = Message[Any] | MessageId
BeforeReceive: TypeAlias = Callable[[Message[Any]], Message[Any]]
StopListening: TypeAlias = Callable[[bool], Awaitable[None]]
OpenPartitions: TypeAlias = Callable[[list[TopicName]], Awaitable[list[TopicConsumer]]]
"""Opens consumers of these partitions."""


class MessageSource(Generic[ValueT]):
    """The common base of consumers and readers: receives messages, and seeks."""

    def __init__(
        self,
        topic: TopicName | TopicChoice,
        name: str,
        consumers: list[TopicConsumer],
        queue: MessageQueue,
        open_partitions: OpenPartitions,
        on_closed: Callable[["MessageSource[Any]"], None],
        versions: SchemaVersions | None = None,
        counts: ReceiveCounts | None = None,
        interceptors: ConsumerInterceptors | None = None,
    ) -> None:
        self.topic = str(topic)
        self._topic_name = topic
        self._open_partitions = open_partitions
        self.name = name
        self._partition_consumers = consumers
        self._queue = queue
        self._on_closed = on_closed
        self._versions = versions
        self._counts = counts or ReceiveCounts()
        self._interceptors = interceptors
        self._before_receive = None if interceptors is None else interceptors.before_receive
        self._closed = False
        self._ended = trio.Event()
        self._removed = False  # True once the client has removed it from its list
        self._forked: ClosedError | None = None

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
    def topics(self) -> list[str]:
        """The full names of the topics that it receives from, without partitions."""
        return [self.topic]

    @property
    def closed(self) -> bool:
        """Return True if it was closed by its owner."""
        return self._closed

    @property
    def partitions(self) -> int:
        """The number of partitions it receives from; 0 for a topic without partitions."""
        return (
            len(self._partition_consumers)
            if self._partition_consumers[0].topic.partition >= 0
            else 0
        )

    async def grow(self, partitions: int) -> None:
        """Receive from the new partitions, too, from their first message on."""
        assert isinstance(self._topic_name, TopicName)
        known = range(len(self._partition_consumers), partitions)
        consumers = await self._open_partitions(
            [self._topic_name.partition_name(index) for index in known]
        )
        if self._closed:
            for consumer in consumers:
                consumer.abandon()
            return
        self._partition_consumers += consumers

    @property
    def connected(self) -> bool:
        """Return True if all partitions are attached to their brokers now."""
        return all(consumer.connection is not None for consumer in self._partition_consumers)

    async def receive(self) -> Message[ValueT]:
        """Return the next message; raise EndOfTopicError behind the last of a terminated topic.

        CorruptMessageError is for one message only: the next call continues behind it.
        """
        message: Message[Any] | None = await self._queue.take(self._partition_consumers)
        if message is None:
            raise EndOfTopicError(f"{self.topic} was terminated, and its last message was received")
        if self._versions is not None and self._versions.unknown:
            await self.load_schemas((message,))
        if self._before_receive is not None:
            message = self._before_receive(message)
        return message

    async def receive_batch(self, count_max: int = 1000) -> list[Message[ValueT]]:
        """Wait for a message; return it and others that have arrived, or [] behind the last one."""
        if count_max < 1:
            raise ValueError(f"count_max must be at least 1, not {count_max}")
        messages: list[Message[Any]] = await self._queue.take_many(
            count_max, self._partition_consumers
        )
        if self._versions is not None and self._versions.unknown:
            await self.load_schemas(messages)
        if self._before_receive is not None:
            messages = list(map(self._before_receive, messages))
        return messages

    def take_before_receive(self) -> BeforeReceive | None:
        """Return the function of the interceptors for messages that are handed out.

        The caller applies it, when the application gets the messages; `receive` does not any more.
        """
        found, self._before_receive = self._before_receive, None
        return found

    def stats(self) -> ConsumerStats:
        """Return the statistics, see `clients.python.statistics`."""
        counts = self._counts
        messages_per_s, bytes_per_s = counts.received.per_second(trio.current_time())
        return ConsumerStats(
            topic=self.topic,
            name=self.name,
            subscription=None,
            connected=self.connected,
            messages_received=counts.received.count,
            bytes_received=counts.received.size,
            entries_received=counts.entries,
            messages_redelivered=counts.redelivered,
            messages_acked=counts.acked,
            messages_nacked=counts.nacked,
            ack_timeouts=counts.timeouts,
            dead_letters=0,
            queued_messages=self._queue.messages,
            messages_per_s=messages_per_s,
            bytes_per_s=bytes_per_s,
        )

    def give_back(self, messages: Sequence[Message[Any]]) -> None:
        """Put messages in front of the queue again: nobody wanted them."""
        for message in reversed(messages):
            consumer = message.entry.source()
            # After a seek the message is not to be received any more.
            if isinstance(consumer, TopicConsumer) and (
                consumer.generation == message.entry.generation
            ):
                self._queue.put_back(message)

    def receive_nowait(self, count_max: int = 1000) -> list[Message[ValueT]]:
        """Return messages that have arrived, or [] behind the last one of a terminated topic.

        Raise trio.WouldBlock if no message has arrived.  If a message has a version of the schema
        that was not met before, its `value` is known only after `load_schemas`.
        """
        found: list[Message[Any]] = self._queue.take_nowait(count_max, self._partition_consumers)
        if self._before_receive is not None:
            found = list(map(self._before_receive, found))
        return found

    def needs_schemas(self, messages: "Iterable[Message[Any]]") -> bool:
        """Return True if `load_schemas` has to be called before the values are looked at."""
        if self._versions is None or not self._versions.unknown:
            return False
        return any(not m.entry.decoder.ready for m in messages if m.entry.decoder is not None)

    async def load_schemas(self, messages: "Iterable[Message[Any]]") -> None:
        """Ask the broker for the versions of the schema that these messages need."""
        if self._versions is None:
            return
        missing: dict[int, tuple[VersionDecoder, Ask]] = {}
        for message in messages:
            decoder = message.entry.decoder
            if decoder is not None and not decoder.ready:
                missing[id(decoder)] = decoder, _live_consumer(message.entry).schema
        if missing:
            await self._versions.load(missing.values())

    def __aiter__(self) -> AsyncIterator[Message[ValueT]]:
        return self

    async def __anext__(self) -> Message[ValueT]:
        message: Message[Any] | None = await self._queue.take(self._partition_consumers)
        if message is None:
            raise StopAsyncIteration
        if self._versions is not None and self._versions.unknown:
            await self.load_schemas((message,))
        if self._before_receive is not None:
            message = self._before_receive(message)
        return message

    async def seek(self, start: Start | int | str) -> None:
        """Continue at a position: a message, an offset, a time, `earliest` or `latest`.

        Messages that were received before can no longer be acknowledged.  A message id or an offset
        is a position in one partition only; the others apply to all partitions.
        """
        where = parse_start(start)
        consumers = self._partition_consumers
        if isinstance(where, MessageId) and where not in (EARLIEST, LATEST):
            consumers = [self._consumer_of(where)]
        elif isinstance(where, Offset) and len(consumers) > 1:
            raise ValueError(
                "an offset is a position in one partition: seek to a time or to a message"
            )
        for consumer in consumers:
            await consumer.seek(where)

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each partition; (-1, -1) where there is none."""
        return [(await consumer.last_message_id())[0] for consumer in self._partition_consumers]

    async def aclose(self) -> None:
        """Have the broker confirm the acknowledgements, waiting 5 s at most, then close.

        Messages whose acknowledgement it has not confirmed by then may come again; `flush_acks`
        waits longer, and raises.
        """
        if self._closed:
            await self._ended.wait()  # Another task closes it: acknowledgements are on their way.
            return
        self._closed = True
        try:
            async with trio.open_nursery() as nursery:
                for consumer in self._partition_consumers:
                    nursery.start_soon(consumer.close)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without waiting for the broker.  Idempotent, also after `aclose`."""
        self._closed = True
        for consumer in self._partition_consumers:
            consumer.abandon()
        self._ended.set()
        self._remove_from_client()

    def on_forked(self, error: ClosedError) -> None:
        """Refuse everything in a process that was forked."""
        self._forked = error
        self._queue.clear()
        for consumer in self._partition_consumers:
            consumer.on_forked(error)

    def check_process(self) -> None:
        """Raise ClosedError in a process that was forked."""
        if self._forked is not None:
            raise self._forked

    def _remove_from_client(self) -> None:
        if not self._removed:
            self._removed = True
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

    def _consumer_of(self, place: MessageId) -> TopicConsumer:
        for consumer in self._partition_consumers:
            if consumer.topic.partition == place.partition or len(self._partition_consumers) == 1:
                return consumer
        raise ValueError(f"{self.topic} has no partition {place.partition}")


class Consumer(MessageSource[ValueT]):
    """A consumer; `Client.subscribe` makes it."""

    def __init__(
        self,
        topic: TopicName | TopicChoice,
        name: str,
        consumers: list[TopicConsumer],
        queue: MessageQueue,
        open_partitions: OpenPartitions,
        on_closed: Callable[[MessageSource[Any]], None],
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(
            topic,
            name,
            consumers,
            queue,
            open_partitions,
            on_closed,
            settings.versions,
            settings.counts,
            settings.interceptors,
        )
        self.subscription = settings.subscription
        self.type = settings.type
        self._ack_receipts = settings.ack_receipts
        self._dead_letters = settings.dead_letters
        self._retry = settings.retry
        self._stop_listening: StopListening | None = None

    @property
    def _subject(self) -> str:
        return f"{self.topic}, {self.type.value} subscription {self.subscription!r}"

    def stats(self) -> ConsumerStats:
        """Return the statistics, see `clients.python.statistics`."""
        dead = self._dead_letters
        return replace(
            super().stats(),
            subscription=self.subscription,
            dead_letters=0 if dead is None else dead.sent,
        )

    @property
    def active(self) -> bool:
        """Return True if it is the active consumer of a failover subscription in a partition."""
        return any(consumer.active for consumer in self._partition_consumers)

    async def ack(self, messages: Ackable | Iterable[Ackable]) -> None:
        """Acknowledge a message, or several.

        With `ack_receipts`, raise InDoubtError if another client has moved the subscription since
        the message was delivered: then the acknowledgement is void.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        told = self.ack_nowait(messages)
        if self._ack_receipts:
            for consumer in told:
                await consumer.flush_acks()

    def ack_nowait(self, messages: Ackable | Iterable[Ackable]) -> list[TopicConsumer]:
        """Acknowledge as `ack`, without waiting for a receipt; return the consumers concerned."""
        if self._forked is not None:
            raise self._forked
        told: list[TopicConsumer] = []
        if isinstance(messages, (Message, MessageId)):
            if isinstance(messages, Message) and self._interceptors is None:  # the usual call
                _ack_run(messages.entry, messages.index, messages.index, told)
                return told
            messages = (messages,)
        _check_iterable(messages)
        if self._interceptors is not None:
            messages = list(messages)
        # Messages of one entry that follow each other are acknowledged in one step, as a run from
        # `first` to `last`.
        entry: Entry | None = None
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
                consumer = self._consumer_of(each)
                consumer.ack((each.ledger_id, each.entry_id), each.batch_index)
                _note(consumer, told)
        if entry is not None:
            _ack_run(entry, first, last, told)
        if self._interceptors is not None:
            self._interceptors.on_ack(list(map(_id_of, messages)), cumulative=False)
        return told

    async def ack_cumulative(self, message: Ackable) -> None:
        """Acknowledge this message and all before it in its partition."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.type.shares:
            raise ValueError(
                f"a {self.type.value} subscription has no cumulative acknowledgements: acknowledge"
                " its messages one by one"
            )
        _check_ackable(message)
        self.check_process()
        if isinstance(message, Message):
            entry = message.entry
            consumer = _live_consumer(entry)
            if entry.generation == consumer.generation:
                consumer.ack_cumulative((entry.ledger_id, entry.entry_id), message.batch_index)
            else:
                consumer.ack_too_late(entry.generation)
        else:
            consumer = self._consumer_of(message)
            consumer.ack_cumulative((message.ledger_id, message.entry_id), message.batch_index)
        if self._interceptors is not None:
            self._interceptors.on_ack([_id_of(message)], cumulative=True)
        if self._ack_receipts:
            await consumer.flush_acks()

    def nack(self, message: Ackable) -> None:
        """Have this message delivered again, after `nack_delay_s`.

        On a shared or key_shared subscription its whole batch comes again; on any other, everything
        behind it, too.  Messages that are acknowledged do not come again.
        """
        _check_ackable(message)
        self.check_process()
        if self._interceptors is not None:
            self._interceptors.on_nack(_id_of(message))
        if isinstance(message, Message):
            entry = message.entry
            consumer = _live_consumer(entry)
            if entry.generation != consumer.generation:
                return
            dead, count = self._dead_letters, entry.redelivery_count
            again = partial(consumer.nack, (entry.ledger_id, entry.entry_id), count)
            if dead is not None and dead.policy.is_last(count) and dead.has_room:
                dead.give_up(message, partial(self.ack_nowait, message), again)
            else:
                again()
        else:
            self._consumer_of(message).nack((message.ledger_id, message.entry_id))

    async def reconsume_later(
        self,
        message: Message[Any],
        delay_s: float = 0.0,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Have a message delivered again after `delay_s`, by way of the retry topic.

        Return when it is stored there; the original is acknowledged then.  After
        `max_redeliveries` retries it is stored in the dead letter topic instead.  On subscriptions
        that are not shared the broker does not wait.  `properties` are added to the message.
        """
        check_timeout("delay_s", delay_s)
        added = dict(check_properties(properties))
        if self._dead_letters is None or not self._retry:
            raise ValueError("this consumer has no retry topic: subscribe with retry=True")
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"message must be a Message, not {type(message).__name__}")
        consumer = _live_consumer(message.entry)
        await self._dead_letters.send_retry(
            message, delay_s, added, partial(self.ack_nowait, message)
        )
        if self._ack_receipts:
            await consumer.flush_acks()

    def listen(self, stop: StopListening) -> None:
        """Note that a listener gets the messages; `stop` ends that."""
        self._stop_listening = stop

    async def stop_listening(self, *, inside: bool = False) -> None:
        """Call the listener no more; return when it has returned, or at once if `inside` of it."""
        stop, self._stop_listening = self._stop_listening, None
        if stop is not None:
            await stop(inside)

    async def aclose(self) -> None:
        """Have the broker confirm the acknowledgements, then close; see `MessageSource.aclose`."""
        if not self._closed:
            # Before the acknowledgements are sent: the listener may be about to make one.
            await self.stop_listening()
        if self._dead_letters is not None and not self._closed:
            # First, because the receipts of letters acknowledge their originals.
            await self._dead_letters.aclose()
        await super().aclose()

    def abandon(self) -> None:
        """Close without waiting for the broker.  Idempotent, also after `aclose`."""
        super().abandon()
        if self._dead_letters is not None:
            self._dead_letters.abandon()

    async def place(self) -> tuple[int, int | None, MessageId]:
        """Return the first offset and the next one of its only partition, and its mark-delete.

        The next offset is None if the broker does not number messages.  Everything up to the
        mark-delete position is acknowledged.
        """
        (consumer,) = self._partition_consumers
        _, answer = await consumer.last_message_id()
        mark = MessageId(-1, -1)
        if answer.HasField("consumer_mark_delete_position"):
            mark = MessageId.of_proto(answer.consumer_mark_delete_position)
        following = answer.next_offset if answer.HasField("next_offset") else None
        return answer.first_offset, following, mark

    @property
    def stored_properties(self) -> dict[str, str]:
        """The properties of the subscription in its only partition, if the broker tells them."""
        (consumer,) = self._partition_consumers
        return consumer.stored

    async def flush_acks(self) -> None:
        """Return when the broker has confirmed that all acknowledgements so far are durable.

        This works with and without receipts, and through takeovers.  Raise BrokerError if it cannot
        be known, and RequestTimedOutError if no broker confirms it within `operation_timeout_s`.
        """
        failures: list[BrokerError] = []

        async def flush(consumer: TopicConsumer) -> None:
            try:
                await consumer.flush_acks()
            except BrokerError as error:  # The other partitions are flushed all the same.
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for consumer in self._partition_consumers:
                nursery.start_soon(flush, consumer)
        if failures:
            raise failures[0]

    async def unsubscribe(self) -> None:
        """Delete the subscription with its position, and close."""
        for consumer in self._partition_consumers:
            await consumer.unsubscribe()
        self.abandon()


def _live_consumer(entry: Entry) -> TopicConsumer:
    """Return the consumer that received the entry; raise ClosedError if it no longer exists."""
    consumer = entry.source()
    if not isinstance(consumer, TopicConsumer):
        raise ClosedError(f"{entry.topic}: the consumer that received this message was closed")
    return consumer


async def schema_of(message: Message[Any]) -> SchemaInfo:
    """Return the schema that a message was written with.  Raise BrokerError."""
    return await _live_consumer(message.entry).schema(message.entry.schema_version)


def _id_of(each: Ackable) -> MessageId:
    return each.message_id if isinstance(each, Message) else each


def _check_ackable(value: object, argument: str = "message") -> None:
    """Raise TypeError for a value that no application can have received."""
    if not isinstance(value, (Message, MessageId)):
        kind = type(value).__name__
        raise TypeError(f"{argument} must be a Message or a MessageId, not {kind}")


def _check_iterable(value: object) -> None:
    if not isinstance(value, Iterable):
        _check_ackable(value, "messages")


def _ack_run(entry: Entry, first: int, last: int, told: list[TopicConsumer]) -> None:
    """Acknowledge the messages `first` to `last` of an entry."""
    consumer = _live_consumer(entry)
    if entry.generation == consumer.generation:
        consumer.ack_run((entry.ledger_id, entry.entry_id), first, last, is_batch=entry.is_batch)
    else:
        consumer.ack_too_late(entry.generation)
    _note(consumer, told)


def _note(consumer: TopicConsumer, told: list[TopicConsumer]) -> None:
    if consumer not in told:
        told.append(consumer)
