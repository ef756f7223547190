"""The client for code without trio: scripts, workers, notebooks.  The same names, no `await`.

    with daybook.blocking.connect("pulsar://localhost:6650") as client:
        with client.create_producer("orders") as producer:
            producer.send(b"...", key="customer-7")
        with client.subscribe("orders", "billing", initial_position="earliest") as consumer:
            for message in consumer:
                consumer.ack(message)

A thread runs the real client.  A call to it costs some tens of microseconds, so frequent operations
do not wait for it: `send_nowait` and `ack` (without receipts) are queued, and messages are fetched
many at a time.  `on_result` is called in that thread, where no call of the client may wait.
Objects may be used from any thread, but not in a process that was forked.
"""

import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic  # noqa: TID251  the threads of callers have no clock of trio's
from typing import Any, Generic, Unpack

import trio

from daybook.clients.python import client as trio_client
from daybook.clients.python import connect as trio_connect
from daybook.clients.python import consumer as trio_consumer
from daybook.clients.python import reader as trio_reader
from daybook.clients.python import table_view as trio_table_view
from daybook.clients.python.arguments import (
    InitialPosition,
    check_timeout,
    check_url,
)
from daybook.clients.python.blocking_admin import Admin, connect_admin
from daybook.clients.python.blocking_producer import Producer
from daybook.clients.python.blocking_table_view import TableView
from daybook.clients.python.consumer import Ackable
from daybook.clients.python.credentials import Basic, Credentials, Token
from daybook.clients.python.errors import BrokerError, ClosedError, EndOfTopicError, InDoubtError
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.listener import (
    Call,
    Listener,
    calling,
    check_listener,
    is_inside,
)
from daybook.clients.python.message_id import EARLIEST, LATEST, MessageId, Offset
from daybook.clients.python.messages import Message, ValueT
from daybook.clients.python.options import (
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    TableViewOptions,
)
from daybook.clients.python.portal import Block, Closing, Portal, like
from daybook.clients.python.reader import DeliveredEntry, OffsetRange, TopicLedgers
from daybook.clients.python.schemas.schema import Schema, SchemaVersion
from daybook.clients.python.start_position import Start
from daybook.clients.python.statistics import ClientStats, ConsumerStats
from daybook.clients.python.tls import TlsOptions
from daybook.clients.python.topic_choice import Topics
from daybook.clients.python.transformation import Result, Transform, WrongResultError

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

_FETCHED_MAX = 1000


def connect(
    service_url: str,
    *,
    token: Token | None = None,
    basic: Basic | None = None,
    timeout_s: float | None = trio_connect.FIRST_CONTACT_S,
    limits: ClientLimits | None = None,
    tls: TlsOptions | None = None,
) -> "Client":
    """Return a client of the cluster at `service_url`; use it in a `with` block, or `close` it.

    `timeout_s` bounds the first contact with a broker; with None, the client does not wait for one.
    `token`, `basic` and the errors are those of `daybook.connect`.
    """
    check_url("service_url", service_url)
    check_timeout("timeout_s", timeout_s)
    Credentials(token, basic)  # Mistakes are errors here, before a thread is started.

    def begin() -> trio_connect.connect:
        return trio_connect.connect(
            service_url, token=token, basic=basic, timeout_s=timeout_s, limits=limits, tls=tls
        )

    portal = Portal(closed=ClosedError, cut=InDoubtError)
    try:
        return portal.call(_open, portal, begin)
    except BaseException:
        portal.close()
        raise


async def _open(portal: Portal, begin: Callable[[], trio_connect.connect]) -> "Client":
    block = Block(begin())
    portal.start(block.run)
    return Client(portal, await block.opened(), block.close)


class Client(Closing):
    """See `clients.python.client.Client`."""

    def __init__(
        self, portal: Portal, client: trio_client.Client, close: Callable[[], Awaitable[None]]
    ) -> None:
        self._portal = portal
        self._client = client
        self._close = close
        self.service_url = client.service_url
        self._closed = False
        self._producers: list[Producer[Any]] = []  # changed in the thread of the portal only
        portal.finish_at_exit(self, close, lambda: "")

    def __repr__(self) -> str:
        return repr(self._client)

    @like(trio_client.Client.partitions)
    def partitions(self, topic: str, *, create: bool = True) -> int:
        return self._portal.call(lambda: self._client.partitions(topic, create=create))

    @like(trio_client.Client.lookup)
    def lookup(self, topic: str) -> str:
        return self._portal.call(self._client.lookup, topic)

    @like(trio_client.Client.topics)
    def topics(self, namespace: str = "public/default") -> list[str]:
        return self._portal.call(self._client.topics, namespace)

    @like(trio_client.Client.schema)
    def schema(self, topic: str, version: bytes | None = None) -> SchemaVersion:
        return self._portal.call(self._client.schema, topic, version)

    @like(trio_client.Client.last_message_id)
    def last_message_id(self, topic: str) -> MessageId:
        return self._portal.call(self._client.last_message_id, topic)

    @like(trio_client.Client.offsets)
    def offsets(self, topic: str) -> OffsetRange:
        return self._portal.call(self._client.offsets, topic)

    @like(trio_client.Client.offset_ranges)
    def offset_ranges(self, topic: str) -> list[OffsetRange]:
        return self._portal.call(self._client.offset_ranges, topic)

    @like(trio_client.Client.offsets_of)
    def offsets_of(self, names: Sequence[str]) -> list[OffsetRange]:
        return self._portal.call(self._client.offsets_of, names)

    @like(trio_client.Client.ledgers)
    def ledgers(self, topic: str) -> list[TopicLedgers]:
        return self._portal.call(self._client.ledgers, topic)

    @like(trio_client.Client.ledgers_of)
    def ledgers_of(self, names: Sequence[str]) -> list[TopicLedgers]:
        return self._portal.call(self._client.ledgers_of, names)

    @like(trio_client.Client.stats)
    def stats(self) -> ClientStats:

        async def stats() -> ClientStats:
            return self._client.stats()

        return self._portal.call(stats)

    @like(trio_client.Client.create_producer)
    def create_producer(
        self,
        topic: str,
        *,
        schema: Schema[ValueT] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> "Producer[ValueT]":

        async def create() -> Producer[ValueT]:
            made = await self._client.create_producer(topic, schema=schema, **options)
            # Made in this thread: were the client closed now, nothing would tell the producer.
            producer = Producer(self._portal, made, self._producers.remove)
            self._producers.append(producer)
            return producer

        return self._portal.call(create, unwanted=Producer[ValueT].abandon_here)

    @like(trio_client.Client.subscribe)
    def subscribe(
        self,
        topic: Topics,
        subscription: str,
        *,
        schema: Schema[ValueT] | None = None,
        listener: "Listener[Consumer[ValueT], ValueT] | None" = None,
        **options: Unpack[ConsumerOptions],
    ) -> "Consumer[ValueT]":
        check_listener(listener)
        made = self._portal.call(
            lambda: self._client.subscribe(topic, subscription, schema=schema, **options),
            unwanted=trio_consumer.Consumer[ValueT].abandon,
        )
        # The time for an acknowledgement begins when a message is fetched: fetch one by one then.
        ahead = 1 if options.get("ack_timeout_s") is not None else _FETCHED_MAX
        receipts = bool(options.get("ack_receipts"))
        consumer = Consumer(self._portal, made, receipts=receipts, ahead=ahead)
        if listener is not None:

            async def listen() -> None:
                self._client.start_listener(made, consumer.caller_of(listener))

            self._portal.call(listen)
        return consumer

    @like(trio_client.Client.create_reader)
    def create_reader(
        self,
        topic: str,
        *,
        schema: Schema[ValueT] | None = None,
        **options: Unpack[ReaderOptions],
    ) -> "Reader[ValueT]":
        made = self._portal.call(
            lambda: self._client.create_reader(topic, schema=schema, **options),
            unwanted=trio_reader.Reader[ValueT].abandon,
        )
        return Reader(self._portal, made)

    @like(trio_client.Client.table_view)
    def table_view(
        self,
        topic: str,
        *,
        schema: Schema[ValueT] | None = None,
        **options: Unpack[TableViewOptions],
    ) -> TableView[ValueT]:
        made = self._portal.call(
            lambda: self._client.table_view(topic, schema=schema, **options),
            unwanted=trio_table_view.TableView[ValueT].abandon,
        )
        return TableView(self._portal, made)

    @like(trio_client.Client.pipe)
    def pipe(
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

        async def in_a_thread(message: Message) -> Result | Iterable[Result]:
            made = await trio.to_thread.run_sync(transform, message)
            if inspect.isawaitable(made):
                raise WrongResultError(
                    "without an event loop, `transform` must be a plain function"
                )
            return made

        return self._portal.call(
            lambda: self._client.pipe(
                source,
                target,
                in_a_thread,
                name=name,
                at_least_once=at_least_once,
                initial_position=initial_position,
                dead_letter_topic=dead_letter_topic,
            )
        )

    def close(self) -> None:
        """Store everything that was sent, then close all that the client has opened.

        Raise the first error of a message that could not be stored and has no `on_result`.
        """
        if self._closed:
            return
        self._portal.check_thread()
        if self._client.has_open(calling()):
            raise RuntimeError(
                "a listener cannot close its client, which would wait for the listener: close the"
                " consumer here, and the client in another thread"
            )
        self._closed = True
        try:
            if not self._portal.was_forked:
                self._portal.call(self._close_all)
        finally:
            self._portal.close()

    async def _close_all(self) -> None:
        failure: Exception | None = None
        # Producers first: what was handed over to them is not with the inner client yet, whose
        # close stores only what it has.
        for close in [*(producer.close_here for producer in self._producers), self._close]:
            try:
                await close()
            except Exception as error:  # The others are closed all the same.
                failure = failure or error
        if failure is not None:
            raise failure


class _Source(Closing, Generic[ValueT]):
    """The common base of consumers and readers."""

    def __init__(
        self, portal: Portal, source: trio_consumer.MessageSource[ValueT], ahead: int = _FETCHED_MAX
    ) -> None:
        self._portal = portal
        self._ahead = ahead  # how many messages `receive` fetches at once
        self._source = source
        self._before_receive = source.take_before_receive()
        self._fetched: deque[Message[ValueT]] = deque()
        self._fetching = threading.Lock()  # One thread fetches, for all threads that wait.

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

    def receive(self, timeout_s: float | None = None) -> Message[ValueT]:
        """Return the next message; with `timeout_s` 0, only one that has arrived.

        Raise TimeoutError, or EndOfTopicError behind the last message of a terminated topic.
        """
        check_timeout("timeout_s", timeout_s)
        if self._before_receive is None:
            try:
                return self._fetched.popleft()
            except IndexError:
                pass
        messages, in_time = self._take(1, self._ahead, timeout_s)
        if not in_time:
            raise TimeoutError(
                f"{self.topic}: no message arrived in {timeout_s:g} s"
                if timeout_s
                else f"{self.topic}: no message is waiting"
            )
        if not messages:
            raise EndOfTopicError(f"{self.topic} was terminated, and its last message was received")
        return messages[0]

    def receive_batch(
        self, count_max: int = _FETCHED_MAX, timeout_s: float | None = None
    ) -> list[Message[ValueT]]:
        """Wait for a message; return it and the messages that have arrived with it.

        Return [] if none came in time, or behind the last message of a terminated topic.
        """
        return self._take(count_max, count_max, timeout_s)[0]

    def _take(
        self, count_max: int, fetch_max: int, timeout_s: float | None
    ) -> tuple[list[Message[ValueT]], bool]:
        """Return messages, and whether messages or the end of the topic came in time.

        A thread that waits takes messages that another thread fetched and does not need.
        """
        check_timeout("timeout_s", timeout_s)
        deadline = inf if timeout_s is None else monotonic() + timeout_s
        while not (found := self._take_fetched(count_max)):
            # In a forked process, and in the portal's thread, the lock would never be released.
            self._portal.check_process()
            self._portal.check_thread()
            left_s = deadline - monotonic()
            if not self._fetching.acquire(timeout=-1 if left_s == inf else _lock_s(left_s)):
                return [], False
            try:
                if not self._fetched:
                    came, in_time = self._fetch(fetch_max, max(0.0, deadline - monotonic()))
                    if not came:
                        return [], in_time
            finally:
                self._fetching.release()
        return found, True

    def _take_fetched(self, count_max: int) -> list[Message[ValueT]]:
        found: list[Message[ValueT]] = []
        with suppress(IndexError):  # Another thread may take the last one.
            while len(found) < count_max:
                found.append(self._fetched.popleft())
        if self._before_receive is not None:
            return list(map(self._before_receive, found))
        return found

    def _fetch(self, count_max: int, timeout_s: float) -> tuple[bool, bool]:
        """Fetch messages; return whether some came, and whether they, or the end, came in time."""

        async def fetch() -> tuple[bool, bool]:
            messages: list[Message[ValueT]] = []
            with trio.move_on_after(timeout_s) as scope:
                messages = await self._source.receive_batch(count_max)
            in_time = not scope.cancelled_caught
            if not in_time:
                # With a timeout of 0 the wait is cancelled before it looks at the queue.
                with suppress(trio.WouldBlock):
                    messages = self._source.receive_nowait(count_max)
                    in_time = True
                    await self._source.load_schemas(messages)
            self._fetched.extend(messages)  # Here: the caller may be interrupted.
            return bool(messages), in_time

        return self._portal.call(fetch)

    @like(trio_consumer.MessageSource.stats)
    def stats(self) -> ConsumerStats:

        async def stats() -> ConsumerStats:
            found = self._source.stats()
            return replace(found, queued_messages=found.queued_messages + len(self._fetched))

        return self._portal.call(stats)

    def __iter__(self) -> Iterator[Message[ValueT]]:
        while True:
            try:
                yield self.receive()
            except EndOfTopicError:
                return

    @like(trio_consumer.MessageSource.seek)
    def seek(self, start: Start | int | str) -> None:
        self._fetched.clear()
        self._portal.call(self._source.seek, start)

    @like(trio_consumer.MessageSource.last_message_ids)
    def last_message_ids(self) -> list[MessageId]:
        return self._portal.call(self._source.last_message_ids)

    def close(self) -> None:
        """Have the broker confirm the acknowledgements, waiting 5 s at most, then close."""
        if not self._portal.closed:
            self._portal.call(self._source.aclose)


def _lock_s(seconds: float) -> float:
    """Return the seconds in the range that a lock accepts."""
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)


class Consumer(_Source[ValueT]):
    """See `clients.python.consumer`."""

    def __init__(
        self,
        portal: Portal,
        consumer: trio_consumer.Consumer[ValueT],
        *,
        receipts: bool,
        ahead: int,
    ) -> None:
        super().__init__(portal, consumer, ahead)
        self._consumer = consumer
        self._receipts = receipts
        self._failure: BrokerError | None = None  # the failure of an `ack` that did not wait

    def caller_of(self, listener: "Listener[Consumer[ValueT], ValueT]") -> Call:
        """Return the function that hands a message to a listener, in a thread."""
        limiter = trio.CapacityLimiter(1)

        def in_a_thread(message: Message[ValueT]) -> None:
            if self._before_receive is not None:
                message = self._before_receive(message)
            if inspect.isawaitable(listener(self, message)):
                raise TypeError("without an event loop, `listener` must be a plain function")

        async def call(message: Message[ValueT]) -> None:
            await trio.to_thread.run_sync(in_a_thread, message, limiter=limiter)

        return call

    def close(self) -> None:
        """Send the acknowledgements that wait, then close."""
        if self._portal.closed:
            return
        inside = is_inside(self._consumer)

        async def close() -> None:
            await self._consumer.stop_listening(inside=inside)
            await self._consumer.aclose()

        self._portal.call(close)

    @property
    def subscription(self) -> str:
        return self._consumer.subscription

    @property
    def active(self) -> bool:
        return self._consumer.active

    @like(trio_consumer.Consumer.ack)
    def ack(self, messages: Ackable | Iterable[Ackable]) -> None:
        if self._consumer.closed and not self._portal.closed:
            raise ClosedError(f"{self.topic}: this consumer was closed")
        if isinstance(messages, Message) and not self._receipts:
            self._portal.soon(partial(self._ack_soon, messages))
        else:
            self._portal.call(self._consumer.ack, messages)

    @like(trio_consumer.Consumer.ack_cumulative)
    def ack_cumulative(self, message: Ackable) -> None:
        self._portal.call(self._consumer.ack_cumulative, message)

    @like(trio_consumer.Consumer.nack)
    def nack(self, message: Ackable) -> None:

        async def nack() -> None:
            self._consumer.nack(message)

        self._portal.call(nack)

    @like(trio_consumer.Consumer.reconsume_later)
    def reconsume_later(
        self,
        message: Message[Any],
        delay_s: float = 0.0,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._portal.call(self._consumer.reconsume_later, message, delay_s, properties)

    @like(trio_consumer.Consumer.flush_acks)
    def flush_acks(self) -> None:

        async def flush() -> None:
            await self._consumer.flush_acks()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

        self._portal.call(flush)

    @like(trio_consumer.Consumer.unsubscribe)
    def unsubscribe(self) -> None:
        self._portal.call(self._consumer.unsubscribe)

    def _ack_soon(self, message: Message[Any]) -> None:
        """Acknowledge in the portal's thread, which an exception would end."""
        try:
            self._consumer.ack_nowait(message)
        except BrokerError as error:
            self._failure = self._failure or error


class Reader(_Source[ValueT]):
    """See `clients.python.reader`."""

    def __init__(self, portal: Portal, reader: trio_reader.Reader[ValueT]) -> None:
        super().__init__(portal, reader)
        self._reader = reader

    @like(trio_reader.Reader.has_message_available)
    def has_message_available(self) -> bool:
        return bool(self._fetched) or self._portal.call(self._reader.has_message_available)

    @like(trio_reader.Reader.offset_ranges)
    def offset_ranges(self) -> list[OffsetRange]:
        return self._portal.call(self._reader.offset_ranges)

    @like(trio_reader.Reader.ledgers)
    def ledgers(self) -> list[TopicLedgers]:
        return self._portal.call(self._reader.ledgers)

    def receive_entries(self, timeout_s: float | None = None) -> list[DeliveredEntry]:
        """See `clients.python.reader.Reader.receive_entries`.

        Raise TimeoutError if no entry arrives for `timeout_s`.
        """

        async def receive() -> list[DeliveredEntry]:
            with trio.fail_after(inf if timeout_s is None else timeout_s):
                return await self._reader.receive_entries()

        try:
            return self._portal.call(receive)
        except trio.TooSlowError:
            raise TimeoutError(f"{self.topic}: no entry arrived in {timeout_s:g} s") from None
