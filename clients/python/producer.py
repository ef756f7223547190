"""A producer: sends messages to a topic, or to the partitions of one, batched and in order.

    producer = await client.create_producer("orders")
    message_id = await producer.send(b"...", key="customer-7")     # stored when it returns
    producer.send_nowait(b"...")                                   # stored when flush() returns
    await producer.flush()

`send_nowait` is the fast way: it takes a microsecond.  `on_result`, if given, is called with the
result; without it, a failure is raised by the next `flush` or `aclose`.  While `pending_bytes_max`
have no receipt, it raises QueueFullError: `await wait_room()`.

Messages of one key, or of a topic without partitions, are stored in the order of their sends.  This
holds when a broker dies: all messages without a receipt are sent again to the next broker.  A send
whose receipt was lost may then be stored twice.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, cast

import trio

from daybook.clients.python.arguments import check_delay, check_details, check_properties
from daybook.clients.python.errors import BrokerError, ClosedError, QueueFullError
from daybook.clients.python.interceptors import OutgoingMessage, ProducerInterceptors
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import ValueT
from daybook.clients.python.protocol.batching import Batch
from daybook.clients.python.protocol.routing import Router
from daybook.clients.python.schemas.schema import Schema
from daybook.clients.python.statistics import ProducerStats, SendCounts
from daybook.clients.python.topic_producer import OnResult, SendBudget, TopicProducer
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer

OpenPartitions: TypeAlias = Callable[[list[TopicName], int], Awaitable[list[TopicProducer]]]
"""Opens producers of these partitions; the number is the index of the first."""


class Producer(Generic[ValueT]):
    """A producer; `Client.create_producer` makes it."""

    def __init__(
        self,
        topic: TopicName,
        producers: list[TopicProducer],
        router: Router,
        budget: SendBudget,
        open_partitions: OpenPartitions,
        on_closed: Callable[["Producer[Any]"], None],
        schema: Schema[ValueT] | None = None,
        *,
        counts: SendCounts,
        interceptors: ProducerInterceptors | None = None,
    ) -> None:
        self.topic = topic.full
        self._name = topic
        self._open_partitions = open_partitions
        self._partition_producers = producers
        self._router = router
        self._budget = budget
        self._only = producers[0] if len(producers) == 1 else None
        self._on_closed = on_closed
        self._schema = schema
        self._counts = counts
        self._interceptors = interceptors
        # Set if that is all that has to be done with a value.
        self._encode: Callable[[ValueT], bytes] | None = None
        if schema is not None and interceptors is None and not schema.separates_key:
            self._encode = schema.encoder()
        # False on the path of a producer that sends bytes as they are.
        self.prepares = schema is not None or interceptors is not None
        self._closed = False
        self._ended = trio.Event()
        self._removed = False  # True once the client has removed it from its list

    def __repr__(self) -> str:
        return f"<Producer {self.name!r} of {self.topic}, {self._state}>"

    @property
    def _state(self) -> str:
        if self._closed:
            return "closed"
        return "connected" if self.connected else "not connected"

    @property
    def closed(self) -> bool:
        """Return True if it was closed, or refused for good."""
        return self._closed or any(each.failure is not None for each in self._partition_producers)

    @property
    def name(self) -> str:
        return self._partition_producers[0].name

    @property
    def partitions(self) -> int:
        """The number of partitions it sends to; 0 for a topic without partitions."""
        return (
            len(self._partition_producers)
            if self._partition_producers[0].topic.partition >= 0
            else 0
        )

    @property
    def deduplicated(self) -> bool:
        """True if the topic stores each message once, as far as its broker says so."""
        return all(producer.deduplicated for producer in self._partition_producers)

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id of a message that was sent; -1 before the first."""
        return max(producer.last_sequence_id for producer in self._partition_producers)

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages in entries that have neither a receipt nor an error yet."""
        return self._budget.used

    @property
    def pending_messages(self) -> int:
        """The number of messages that have neither a receipt nor an error yet."""
        return sum(producer.pending_messages for producer in self._partition_producers)

    @property
    def failed_messages(self) -> int:
        """The number of messages without `on_result` that have failed since the last `flush`."""
        return self._budget.failed_messages

    @property
    def has_room(self) -> bool:
        """Return True if `send_nowait` may be called; if not, `await wait_room()` first."""
        return self._budget.used < self._budget.bytes_max

    async def grow(self, partitions: int) -> None:
        """Send to the new partitions, too."""
        known = len(self._partition_producers)
        topics = [self._name.partition_name(index) for index in range(known, partitions)]
        producers = await self._open_partitions(topics, known)
        if self._closed:
            for producer in producers:
                producer.abandon()
            return
        self._partition_producers += producers
        self._only = None
        self._router.grow(partitions)

    @property
    def connected(self) -> bool:
        """Return True if all partitions are attached to their brokers now."""
        return all(producer.connection is not None for producer in self._partition_producers)

    def send_nowait(
        self,
        data: ValueT | Buffer | OutgoingMessage | None,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_s: float | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        """Queue a message.  See the module.  `on_result` is called once, in the trio thread.

        Raise QueueFullError, ClosedError, MessageTooLargeError, TypeError or ValueError; then the
        message was not queued, and `on_result` is not called.
        """
        if self._closed:
            raise ClosedError(f"{self.topic}: this producer was closed")
        if self._budget.used >= self._budget.bytes_max:
            raise QueueFullError(
                f"{self._budget.used} bytes wait for their receipts, which is the limit: await"
                " `wait_room()`, or raise pending_bytes_max"
            )
        producer = self._only
        if (
            type(data) is bytes
            and producer is not None
            and sequence_id is None
            and on_result is None
            and properties is None
            and event_time_ms is None
            and ordering_key is None
            and deliver_at_ms is None
            and deliver_after_s is None
            and not self.prepares
            and (key is None or type(key) is str)
            and producer.send_plain(data, key)
        ):
            return
        if self.prepares:
            if self._encode is not None and type(data) is not OutgoingMessage:
                if data is not None:
                    data = self._encode(cast("ValueT", data))
            else:
                message = self.prepare(data, key, ordering_key, properties, event_time_ms)
                data, key, properties = message.data, message.key, message.properties
                ordering_key, event_time_ms = message.ordering_key, message.event_time_ms
                if self._interceptors is not None:
                    on_result = _Intercepted(self._interceptors, self._budget, message, on_result)
        if not isinstance(data, bytes):
            data = _as_value(data)
        if event_time_ms is not None or sequence_id is not None or on_result is not None:
            check_details(event_time_ms, sequence_id, on_result)
        if deliver_at_ms is not None or deliver_after_s is not None:
            check_delay(deliver_at_ms, deliver_after_s)
            if deliver_after_s is not None:
                now_ms = self._partition_producers[0].now_ms
                deliver_at_ms = now_ms + round(deliver_after_s * 1000)
        if producer is None:
            router = self._router
            producer = self._partition_producers[
                router.turn if key is None else router.for_key(key)
            ]
        producer.send(
            data,
            key,
            properties,
            event_time_ms,
            sequence_id,
            on_result,
            deliver_at_ms,
            ordering_key,
        )

    def send_batch_nowait(self, batch: Batch) -> None:
        """Queue messages that were encoded as a batch before, by the schema if there is one.

        It is for a producer of one partition, or of a topic without partitions, and passes
        interceptors by.  The batch gets its sequence ids here.  Raise as `send_nowait`.
        """
        if self._closed:
            raise ClosedError(f"{self.topic}: this producer was closed")
        if self._budget.used >= self._budget.bytes_max:
            raise QueueFullError(f"{self.topic}: await `wait_room()` before a batch is sent")
        assert self._only is not None, "a batch goes to one partition"
        self._only.send_batch(batch)

    async def send(
        self,
        data: ValueT | Buffer | OutgoingMessage | None,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_s: float | None = None,
    ) -> MessageId:
        """Send a message; return its id when it is stored.

        `data` is what the schema of the producer says; without a schema, it is bytes.  None sends a
        tombstone, a message without a value: it says that its key was deleted.
        `deliver_at_ms` or `deliver_after_s`: shared subscriptions deliver the message then, not
        before; others deliver it in its turn.
        `ordering_key` takes the place of the key where key_shared consumers share the messages.

        Raise a BrokerError; its `outcome` says whether the message may be stored nevertheless.  A
        cancellation ends only the wait: the message is sent.
        """
        await self.wait_room()
        result = _Result()
        self.send_nowait(
            data,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time_ms=event_time_ms,
            sequence_id=sequence_id,
            deliver_at_ms=deliver_at_ms,
            deliver_after_s=deliver_after_s,
            on_result=result.set,
        )
        await result.arrived.wait()
        if result.failure is not None:
            raise result.failure
        assert result.message_id is not None
        return result.message_id

    def prepare(
        self,
        data: ValueT | Buffer | OutgoingMessage | None,
        key: str | bytes | None,
        ordering_key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int | None,
    ) -> OutgoingMessage:
        """Return the message as it is sent: encoded by the schema, and seen by the interceptors.

        `send` and `send_nowait` take the result as `data`.  Any thread may call this.  Raise
        TypeError or ValueError for a value that is not of the schema.
        """
        if isinstance(data, OutgoingMessage):
            return data
        encoded, key = self._encoded(data, key)
        if not isinstance(encoded, bytes):
            encoded = _as_value(encoded)
        added = dict(check_properties(properties))
        message = OutgoingMessage(self.topic, encoded, key, ordering_key, added, event_time_ms)
        if self._interceptors is not None:
            message = self._interceptors.before_send(message)
        return message

    def _encoded(
        self, value: ValueT | Buffer | OutgoingMessage | None, key: str | bytes | None
    ) -> tuple[Any, str | bytes | None]:
        """Return the data and the key of a value by the schema, if there is one."""
        schema = self._schema
        if schema is None:
            return value, key
        if schema.separates_key:
            if key is not None:
                raise ValueError("the key of the message is that of the pair: leave `key` away")
            pair = schema.encode_pair(cast("ValueT", value))
            return pair[1], pair[0]
        return (None if value is None else schema.encode(cast("ValueT", value))), key

    @property
    def schema_version(self) -> int | None:
        """The version of its schema in the topic; None if the producer has no schema."""
        version = self._partition_producers[0].schema_version
        return int.from_bytes(version, "big") if version else None

    def stats(self) -> ProducerStats:
        """Return the statistics of this producer, see `clients.python.statistics`."""
        counts, now = self._counts, trio.current_time()
        messages_per_s, bytes_per_s = counts.stored.per_second(now)
        return ProducerStats(
            topic=self.topic,
            name=self.name,
            connected=self.connected,
            messages_sent=counts.sent,
            bytes_sent=counts.sent_bytes,
            entries_sent=counts.entries,
            messages_stored=counts.stored.count,
            messages_failed=counts.failed,
            pending_messages=self.pending_messages,
            pending_bytes=self.pending_bytes,
            messages_per_s=messages_per_s,
            bytes_per_s=bytes_per_s,
            latency_p50_s=counts.latencies.percentile(now, 0.5),
            latency_p99_s=counts.latencies.percentile(now, 0.99),
            latency_max_s=counts.latencies.percentile(now, 1.0),
        )

    async def wait_room(self) -> None:
        """Return when `send_nowait` may be called; other tasks, and the network, get a turn."""
        await trio.lowlevel.checkpoint()
        while self._budget.used >= self._budget.bytes_max:
            await self._budget.wait_changed()

    async def flush(self) -> None:
        """Return when everything that was sent so far is stored.

        Raise the first failure of a message without `on_result`, once.
        """
        await trio.lowlevel.checkpoint()
        for producer in self._partition_producers:
            producer.ship()
        marks = [(producer, producer.last_sequence_id) for producer in self._partition_producers]
        while not all(producer.is_resolved(mark) for producer, mark in marks):
            await self._budget.wait_changed()
        self._budget.raise_failure()

    async def aclose(self) -> None:
        """Flush, then close.  Raise as `flush` does; the producer is closed then, too."""
        if self._closed:
            await self._ended.wait()  # Another task closes it: what was sent is not stored yet.
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            try:
                for producer in self._partition_producers:
                    await producer.close()
            finally:
                self.abandon()

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

    def abandon(self) -> None:
        """Close without a flush: messages without a receipt fail.  Idempotent."""
        self._closed = True
        for producer in self._partition_producers:
            producer.abandon()
        self._ended.set()
        self._remove_from_client()

    def on_forked(self, error: ClosedError) -> None:
        """Refuse everything in a process that was forked."""
        self._budget.failure = error
        for producer in self._partition_producers:
            producer.on_forked(error)

    def _remove_from_client(self) -> None:
        if not self._removed:
            self._removed = True
            self._on_closed(self)


class _Intercepted:
    """Tells interceptors of the result of a message, before its own `on_result`."""

    __slots__ = ("_budget", "_interceptors", "_message", "_on_result")

    def __init__(
        self,
        interceptors: ProducerInterceptors,
        budget: SendBudget,
        message: OutgoingMessage,
        on_result: OnResult | None,
    ) -> None:
        self._interceptors = interceptors
        self._budget = budget
        self._message = message
        self._on_result = on_result

    def __call__(self, message_id: MessageId | None, error: BrokerError | None) -> None:
        self._interceptors.after_send(self._message, message_id, error)
        if self._on_result is not None:
            self._on_result(message_id, error)
        elif error is not None:  # The next `flush` raises it.
            self._budget.failure = self._budget.failure or error
            self._budget.failed_messages += 1


class _Result:
    """The result of a message, for which `send` waits."""

    __slots__ = ("arrived", "failure", "message_id")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.message_id: MessageId | None = None
        self.failure: BrokerError | None = None

    def set(self, message_id: MessageId | None, failure: BrokerError | None) -> None:
        self.message_id, self.failure = message_id, failure
        self.arrived.set()


def _as_value(data: object) -> bytes | None:
    """Return the value of a message: memory that may change later is copied."""
    if data is None:
        return None
    if isinstance(data, bytearray | memoryview):
        return bytes(cast("bytearray", data))
    raise TypeError(f"data must be bytes, or None for a tombstone, not {type(data).__name__}")
