"""The client for asyncio: the same names and options as the client for trio.

    async with daybook.aio.connect("pulsar://localhost:6650") as client:
        async with await client.create_producer("orders") as producer:
            await producer.send(b"...", key="customer-7")
        async with await client.subscribe("orders", "billing") as consumer:
            async for message in consumer:
                await consumer.ack(message)

It is the client for trio, which runs on top of the event loop, in the same thread (`guest.py`).
Everything that does not wait is called directly: `send_nowait`, acknowledgements without receipts,
and a `receive` for which a message has arrived.  A `send` waits for a future that its receipt sets.

A cancelled call has taken nothing: a message that arrives for a `receive` that was cancelled is the
first one that the next `receive` returns.  A `send` that was cancelled is sent all the same.
`on_result` is called in the event loop, and must not wait.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, Unpack

import trio

from daybook.clients.python import client as trio_client
from daybook.clients.python import connect as trio_connect
from daybook.clients.python import consumer as trio_consumer
from daybook.clients.python import producer as trio_producer
from daybook.clients.python import reader as trio_reader
from daybook.clients.python import table_view as trio_table_view
from daybook.clients.python.aio_admin import Admin, connect_admin
from daybook.clients.python.aio_table_view import TableView
from daybook.clients.python.arguments import InitialPosition, check_timeout, check_url
from daybook.clients.python.consumer import Ackable
from daybook.clients.python.credentials import Basic, Credentials, Token
from daybook.clients.python.errors import BrokerError, EndOfTopicError
from daybook.clients.python.guest import Guest, wait_for_asyncio
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.listener import Call, Listener, check_listener
from daybook.clients.python.message_id import EARLIEST, LATEST, MessageId, Offset
from daybook.clients.python.messages import Message, ValueT
from daybook.clients.python.options import (
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    TableViewOptions,
)
from daybook.clients.python.portal import Block, like
from daybook.clients.python.reader import DeliveredEntry, OffsetRange, TopicLedgers
from daybook.clients.python.schemas.schema import Schema, SchemaVersion
from daybook.clients.python.start_position import Start
from daybook.clients.python.statistics import ClientStats, ConsumerStats, ProducerStats
from daybook.clients.python.tls import TlsOptions
from daybook.clients.python.topic_choice import Topics
from daybook.clients.python.topic_producer import OnResult
from daybook.clients.python.transformation import Result, Transform
from daybook.wire.transport import Buffer

__all__ = [
    "EARLIEST",
    "LATEST",
    "Admin",
    "Client",
    "Consumer",
    "Message",
    "MessageId",
    "Offset",
    "OffsetRange",
    "Producer",
    "Reader",
    "TableView",
    "connect",
    "connect_admin",
]

_TURNS = 64  # messages that are handed out between two turns of the event loop


class connect:  # noqa: N801  (it is used like a function)
    """`async with connect(service_url) as client:`; see `daybook.connect`."""

    def __init__(
        self,
        service_url: str,
        *,
        token: Token | None = None,
        basic: Basic | None = None,
        timeout_s: float | None = trio_connect.FIRST_CONTACT_S,
        limits: ClientLimits | None = None,
        tls: TlsOptions | None = None,
    ) -> None:
        check_url("service_url", service_url)
        check_timeout("timeout_s", timeout_s)
        Credentials(token, basic)  # Mistakes are errors here.
        self._token = token
        self._basic = basic
        self._service_url = service_url
        self._timeout_s = timeout_s
        self._limits = limits
        self._tls = tls
        self._guest: Guest | None = None
        self._block: Block[trio_client.Client] | None = None
        self._client: trio_client.Client | None = None

    async def __aenter__(self) -> "Client":
        guest = self._guest = await Guest.enter()
        try:
            self._client = await guest.call(self._open, guest)
        except BaseException:
            await self._leave()
            raise
        return Client(guest, self._client)

    async def _open(self, guest: Guest) -> trio_client.Client:
        block = self._block = Block(
            trio_connect.connect(
                self._service_url,
                token=self._token,
                basic=self._basic,
                timeout_s=self._timeout_s,
                limits=self._limits,
                tls=self._tls,
            )
        )
        guest.start(block.run)
        return await block.opened()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._guest is not None
        assert self._block is not None
        assert self._client is not None
        try:
            self._guest.check()
            if error is not None:
                self._client.abandon()
            try:
                await self._guest.call(self._block.close)
            except BaseException:
                self._client.abandon()
                raise
        finally:
            await self._leave()

    async def _leave(self) -> None:
        assert self._guest is not None
        if self._block is not None:
            self._block.leave_soon()
        await self._guest.leave()


class Client:
    """See `clients.python.client.Client`."""

    def __init__(self, guest: Guest, client: trio_client.Client) -> None:
        self._guest = guest
        self._client = client
        self.service_url = client.service_url

    def __repr__(self) -> str:
        return repr(self._client)

    @like(trio_client.Client.partitions)
    async def partitions(self, topic: str, *, create: bool = True) -> int:
        return await self._guest.call(lambda: self._client.partitions(topic, create=create))

    @like(trio_client.Client.lookup)
    async def lookup(self, topic: str) -> str:
        return await self._guest.call(self._client.lookup, topic)

    @like(trio_client.Client.topics)
    async def topics(self, namespace: str = "public/default") -> list[str]:
        return await self._guest.call(self._client.topics, namespace)

    @like(trio_client.Client.schema)
    async def schema(self, topic: str, version: bytes | None = None) -> SchemaVersion:
        return await self._guest.call(self._client.schema, topic, version)

    @like(trio_client.Client.last_message_id)
    async def last_message_id(self, topic: str) -> MessageId:
        return await self._guest.call(self._client.last_message_id, topic)

    @like(trio_client.Client.offsets)
    async def offsets(self, topic: str) -> OffsetRange:
        return await self._guest.call(self._client.offsets, topic)

    @like(trio_client.Client.offset_ranges)
    async def offset_ranges(self, topic: str) -> list[OffsetRange]:
        return await self._guest.call(self._client.offset_ranges, topic)

    @like(trio_client.Client.offsets_of)
    async def offsets_of(self, names: Sequence[str]) -> list[OffsetRange]:
        return await self._guest.call(self._client.offsets_of, names)

    @like(trio_client.Client.ledgers)
    async def ledgers(self, topic: str) -> list[TopicLedgers]:
        return await self._guest.call(self._client.ledgers, topic)

    @like(trio_client.Client.ledgers_of)
    async def ledgers_of(self, names: Sequence[str]) -> list[TopicLedgers]:
        return await self._guest.call(self._client.ledgers_of, names)

    @like(trio_client.Client.create_producer)
    async def create_producer(
        self,
        topic: str,
        *,
        schema: Schema[ValueT] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> "Producer[ValueT]":
        made = await self._guest.call(
            lambda: self._client.create_producer(topic, schema=schema, **options),
            unwanted=trio_producer.Producer[ValueT].abandon,
        )
        return Producer(self._guest, made)

    @like(trio_client.Client.subscribe)
    async def subscribe(
        self,
        topic: Topics,
        subscription: str,
        *,
        schema: Schema[ValueT] | None = None,
        listener: "Listener[Consumer[ValueT], ValueT] | None" = None,
        **options: Unpack[ConsumerOptions],
    ) -> "Consumer[ValueT]":
        check_listener(listener)
        made = await self._guest.call(
            lambda: self._client.subscribe(topic, subscription, schema=schema, **options),
            unwanted=trio_consumer.Consumer[ValueT].abandon,
        )
        consumer = Consumer(self._guest, made, receipts=bool(options.get("ack_receipts")))
        if listener is not None:
            self._client.start_listener(made, consumer.caller_of(listener))
        return consumer

    @like(trio_client.Client.pipe)
    async def pipe(
        self,
        source: str,
        target: str,
        transform: Transform,
        *,
        name: str,
        at_least_once: bool = False,
        initial_position: InitialPosition = "earliest",
        dead_letter_topic: str | None = None,
    ) -> int:
        loop = asyncio.get_running_loop()

        async def on_asyncio(message: Message) -> Result | Iterable[Result]:
            made = transform(message)
            if not inspect.isawaitable(made):
                return made
            return await wait_for_asyncio(loop, made)

        return await self._guest.call(
            lambda: self._client.pipe(
                source,
                target,
                on_asyncio,
                name=name,
                at_least_once=at_least_once,
                initial_position=initial_position,
                dead_letter_topic=dead_letter_topic,
            )
        )

    @like(trio_client.Client.create_reader)
    async def create_reader(
        self,
        topic: str,
        *,
        schema: Schema[ValueT] | None = None,
        **options: Unpack[ReaderOptions],
    ) -> "Reader[ValueT]":
        made = await self._guest.call(
            lambda: self._client.create_reader(topic, schema=schema, **options),
            unwanted=trio_reader.Reader[ValueT].abandon,
        )
        return Reader(self._guest, made)

    @like(trio_client.Client.table_view)
    async def table_view(
        self,
        topic: str,
        *,
        schema: Schema[ValueT] | None = None,
        **options: Unpack[TableViewOptions],
    ) -> TableView[ValueT]:
        made = await self._guest.call(
            lambda: self._client.table_view(topic, schema=schema, **options),
            unwanted=trio_table_view.TableView[ValueT].abandon,
        )
        return TableView(self._guest, made)

    @like(trio_client.Client.stats)
    def stats(self) -> ClientStats:
        self._guest.check()
        return self._client.stats()


class Producer(Generic[ValueT]):
    """See `clients.python.producer`."""

    def __init__(self, guest: Guest, producer: trio_producer.Producer[ValueT]) -> None:
        self._guest = guest
        self._producer = producer

    def __repr__(self) -> str:
        return repr(self._producer)

    @property
    def topic(self) -> str:
        return self._producer.topic

    @property
    def name(self) -> str:
        return self._producer.name

    @property
    def partitions(self) -> int:
        return self._producer.partitions

    @property
    def last_sequence_id(self) -> int:
        return self._producer.last_sequence_id

    @property
    def schema_version(self) -> int | None:
        return self._producer.schema_version

    @like(trio_producer.Producer.stats)
    def stats(self) -> ProducerStats:
        self._guest.check()
        return self._producer.stats()

    @property
    def connected(self) -> bool:
        return self._producer.connected

    @property
    def has_room(self) -> bool:
        """Return True if `send_nowait` may be called; if not, `await wait_room()` first."""
        return self._producer.has_room

    @like(trio_producer.Producer.send_nowait)
    def send_nowait(
        self,
        data: ValueT | Buffer | None,
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
        self._guest.check()
        self._producer.send_nowait(
            data,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time_ms=event_time_ms,
            sequence_id=sequence_id,
            deliver_at_ms=deliver_at_ms,
            deliver_after_s=deliver_after_s,
            on_result=on_result,
        )

    @like(trio_producer.Producer.send)
    async def send(
        self,
        data: ValueT | Buffer | None,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_s: float | None = None,
    ) -> MessageId:
        while not self._producer.has_room:
            await self.wait_room()
        stored: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()

        def on_result(place: MessageId | None, error: BrokerError | None) -> None:
            if stored.done():  # The caller was cancelled.
                return
            if error is not None:
                stored.set_exception(error)
            else:
                assert place is not None
                stored.set_result(place)

        self.send_nowait(
            data,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time_ms=event_time_ms,
            sequence_id=sequence_id,
            deliver_at_ms=deliver_at_ms,
            deliver_after_s=deliver_after_s,
            on_result=on_result,
        )
        return await stored

    @like(trio_producer.Producer.wait_room)
    async def wait_room(self) -> None:
        await self._guest.call(self._producer.wait_room)

    @like(trio_producer.Producer.flush)
    async def flush(self) -> None:
        await self._guest.call(self._producer.flush)

    @like(trio_producer.Producer.aclose)
    async def aclose(self) -> None:
        await self._guest.call(self._producer.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._guest.check()
        if error is None:
            await self.aclose()
        else:
            self._producer.abandon()


class _Source(Generic[ValueT]):
    """The common base of consumers and readers."""

    def __init__(self, guest: Guest, source: trio_consumer.MessageSource[ValueT]) -> None:
        self._guest = guest
        self._source = source
        self._before_receive = source.take_before_receive()
        self._turn = 0

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def topics(self) -> list[str]:
        return self._source.topics

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def partitions(self) -> int:
        return self._source.partitions

    @property
    def connected(self) -> bool:
        return self._source.connected

    async def receive(self) -> Message[ValueT]:
        """Return the next message; raise EndOfTopicError behind the last of a terminated topic.

        CorruptMessageError is for one message only: the next call continues behind it.  With
        `asyncio.timeout`, a message that comes too late is for the next call.
        """
        messages = await self._receive(1)
        if not messages:
            raise EndOfTopicError(f"{self.topic} was terminated, and its last message was received")
        return messages[0]

    async def receive_batch(self, count_max: int = 1000) -> list[Message[ValueT]]:
        """Wait for a message; return it and others that have arrived, or [] behind the last one."""
        if count_max < 1:
            raise ValueError(f"count_max must be at least 1, not {count_max}")
        self._turn += _TURNS // 4  # A batch is work for many messages.
        return await self._receive(count_max)

    async def _receive(self, count_max: int) -> list[Message[ValueT]]:
        self._guest.check()
        self._source.check_process()
        self._turn += 1
        if self._turn >= _TURNS:
            # The event loop, and trio in it, get a turn, before anything is taken.
            self._turn = 0
            await asyncio.sleep(0)
        try:
            found = self._source.receive_nowait(count_max)
        except trio.WouldBlock:
            self._turn = 0
            found = await self._guest.call(
                self._source.receive_batch, count_max, unwanted=self._source.give_back
            )
        else:
            if self._source.needs_schemas(found):
                found = await self._guest.call(
                    self._with_schemas, found, unwanted=self._source.give_back
                )
        return self._handed_out(found)

    async def _with_schemas(self, messages: list[Message[ValueT]]) -> list[Message[ValueT]]:
        await self._source.load_schemas(messages)
        return messages

    def _handed_out(self, messages: list[Message[ValueT]]) -> list[Message[ValueT]]:
        if self._before_receive is None:
            return messages
        return list(map(self._before_receive, messages))

    def receive_nowait(self, count_max: int = 1000) -> list[Message[ValueT]]:
        """Return messages that have arrived, or [] behind the last one of a terminated topic.

        Raise BlockingIOError if no message has arrived.  If a message has a version of the schema
        that was not met before, its `value` raises UnavailableError: use `receive` then.
        """
        self._guest.check()
        self._source.check_process()
        try:
            return self._handed_out(self._source.receive_nowait(count_max))
        except trio.WouldBlock:
            raise BlockingIOError(f"{self.topic}: no message is waiting") from None

    def __aiter__(self) -> AsyncIterator[Message[ValueT]]:
        return self

    async def __anext__(self) -> Message[ValueT]:
        messages = await self._receive(1)
        if not messages:
            raise StopAsyncIteration
        return messages[0]

    @like(trio_consumer.MessageSource.stats)
    def stats(self) -> ConsumerStats:
        self._guest.check()
        return self._source.stats()

    @like(trio_consumer.MessageSource.seek)
    async def seek(self, start: Start | int | str) -> None:
        await self._guest.call(self._source.seek, start)

    @like(trio_consumer.MessageSource.last_message_ids)
    async def last_message_ids(self) -> list[MessageId]:
        return await self._guest.call(self._source.last_message_ids)

    async def aclose(self) -> None:
        """Have the broker confirm the acknowledgements, waiting 5 s at most, then close."""
        await self._guest.call(self._source.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._guest.check()
        if error is None:
            await self.aclose()
        else:
            self._source.abandon()


class Consumer(_Source[ValueT]):
    """See `clients.python.consumer`."""

    def __init__(
        self, guest: Guest, consumer: trio_consumer.Consumer[ValueT], *, receipts: bool
    ) -> None:
        super().__init__(guest, consumer)
        self._consumer = consumer
        self._receipts = receipts

    def caller_of(self, listener: "Listener[Consumer[ValueT], ValueT]") -> Call:
        """Return the function that hands a message to a listener, in the event loop."""
        loop = asyncio.get_running_loop()

        async def call(message: Message[ValueT]) -> None:
            try:
                made = listener(self, self._handed_out([message])[0])
            except asyncio.CancelledError as error:  # It looked at a task of its own.
                raise RuntimeError("the function of the application was cancelled") from error
            if inspect.isawaitable(made):
                await wait_for_asyncio(loop, made)

        return call

    @property
    def subscription(self) -> str:
        return self._consumer.subscription

    @property
    def active(self) -> bool:
        return self._consumer.active

    @like(trio_consumer.Consumer.ack)
    async def ack(self, messages: Ackable | Iterable[Ackable]) -> None:
        if self._receipts:
            await self._guest.call(self._consumer.ack, messages)
        else:
            self.ack_nowait(messages)

    def ack_nowait(self, messages: Ackable | Iterable[Ackable]) -> None:
        """Acknowledge as `ack`, without waiting for a receipt."""
        self._guest.check()
        self._consumer.ack_nowait(messages)

    @like(trio_consumer.Consumer.ack_cumulative)
    async def ack_cumulative(self, message: Ackable) -> None:
        await self._guest.call(self._consumer.ack_cumulative, message)

    @like(trio_consumer.Consumer.nack)
    def nack(self, message: Ackable) -> None:
        self._guest.check()
        self._consumer.nack(message)

    @like(trio_consumer.Consumer.reconsume_later)
    async def reconsume_later(
        self,
        message: Message[Any],
        delay_s: float = 0.0,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        await self._guest.call(self._consumer.reconsume_later, message, delay_s, properties)

    @like(trio_consumer.Consumer.flush_acks)
    async def flush_acks(self) -> None:
        await self._guest.call(self._consumer.flush_acks)

    @like(trio_consumer.Consumer.unsubscribe)
    async def unsubscribe(self) -> None:
        await self._guest.call(self._consumer.unsubscribe)


class Reader(_Source[ValueT]):
    """See `clients.python.reader`."""

    def __init__(self, guest: Guest, reader: trio_reader.Reader[ValueT]) -> None:
        super().__init__(guest, reader)
        self._reader = reader

    @like(trio_reader.Reader.has_message_available)
    async def has_message_available(self) -> bool:
        return await self._guest.call(self._reader.has_message_available)

    @like(trio_reader.Reader.offset_ranges)
    async def offset_ranges(self) -> list[OffsetRange]:
        return await self._guest.call(self._reader.offset_ranges)

    @like(trio_reader.Reader.ledgers)
    async def ledgers(self) -> list[TopicLedgers]:
        return await self._guest.call(self._reader.ledgers)

    @like(trio_reader.Reader.receive_entries)
    async def receive_entries(self) -> list[DeliveredEntry]:
        return await self._guest.call(self._reader.receive_entries)
