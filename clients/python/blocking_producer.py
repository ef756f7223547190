"""The producer for code without trio: messages are handed over to the client's thread, in order.

`send_nowait` costs the caller an append; the thread takes all that has gathered.  The bytes that
are on their way to the thread are bounded: above the bound the caller waits.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, cast

from daybook.clients.python import producer as trio_producer
from daybook.clients.python.arguments import (
    check_delay,
    check_details,
    check_message,
    check_ordering_key,
)
from daybook.clients.python.errors import BrokerError, ClosedError, NotSentError
from daybook.clients.python.interceptors import OutgoingMessage
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import ValueT
from daybook.clients.python.portal import Closing, Drain, Portal, like
from daybook.clients.python.statistics import ProducerStats
from daybook.clients.python.topic_producer import OnResult
from daybook.wire.transport import Buffer

_log = logging.getLogger("daybook.client")
_HANDED_BYTES_MAX = 8 << 20  # messages on their way to the thread


@dataclass(slots=True)
class _Handed:
    """A message on its way to the client's thread."""

    data: Buffer | OutgoingMessage | None
    key: str | bytes | None
    ordering_key: bytes | None
    properties: Mapping[str, str] | None
    event_time_ms: int | None
    sequence_id: int | None
    on_result: OnResult | None
    deliver_at_ms: int | None
    deliver_after_s: float | None

    @property
    def size(self) -> int:
        return 0 if self.data is None else len(self.data)


class Producer(Closing, Generic[ValueT]):
    """See `clients.python.producer`."""

    def __init__(
        self,
        portal: Portal,
        producer: trio_producer.Producer[ValueT],
        on_closed: Callable[["Producer[Any]"], None],
    ) -> None:
        self._portal = portal
        self._producer = producer
        self._on_closed: Callable[[Producer[Any]], None] | None = on_closed
        self._handed: deque[_Handed] = deque()
        self._handed_bytes = 0
        self._handing = threading.Lock()  # Behind `_closed` nothing is handed over.
        self._closed = False
        self._failure: Exception | None = None  # the first failure of a message without `on_result`
        self._failed_messages = 0  # how many of them failed
        self._drain = Drain(portal, self._empty, self._ended)
        portal.finish_at_exit(self, self._flush, self._left)

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
    def schema_version(self) -> int | None:
        return self._producer.schema_version

    @property
    def last_sequence_id(self) -> int:
        return self._producer.last_sequence_id

    @property
    def connected(self) -> bool:
        return self._producer.connected

    @like(trio_producer.Producer.stats)
    def stats(self) -> ProducerStats:

        async def stats() -> ProducerStats:
            found, handed = self._producer.stats(), len(self._handed)
            return replace(found, pending_messages=found.pending_messages + handed)

        return self._portal.call(stats)

    @like(trio_producer.Producer.send)
    def send(
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
        found: ValueT | Buffer | OutgoingMessage | None = data
        if self._producer.prepares:  # Here: the value may change when this returns.
            found = self._producer.prepare(data, key, ordering_key, properties, event_time_ms)

        async def send() -> MessageId:
            await self._drain.now()
            return await self._producer.send(
                found,
                key=key,
                ordering_key=ordering_key,
                properties=properties,
                event_time_ms=event_time_ms,
                sequence_id=sequence_id,
                deliver_at_ms=deliver_at_ms,
                deliver_after_s=deliver_after_s,
            )

        return self._portal.call(send)

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
        """Queue a message; wait only while more is queued than memory is meant for.

        `on_result` is called once, in the client's thread: with the id of the stored message, or
        with its error.  The error of a message without `on_result` is raised by the next `flush` or
        `close`.  Raise at once TypeError or ValueError for a wrong argument, and ClosedError if the
        producer is closed.
        """
        prepared: OutgoingMessage | None = None
        if self._producer.prepares:
            prepared = self._producer.prepare(data, key, ordering_key, properties, event_time_ms)
            data, key, properties = prepared.data, prepared.key, prepared.properties
            ordering_key, event_time_ms = prepared.ordering_key, prepared.event_time_ms
        check_message(data, key, properties)
        check_ordering_key(ordering_key)
        check_details(event_time_ms, sequence_id, on_result)
        check_delay(deliver_at_ms, deliver_after_s)
        # Copied now: the caller may change mutable arguments as soon as this returns.
        found = cast("Buffer | None", data)
        if found is not None and not isinstance(found, bytes):
            found = bytes(found)
        if properties is not None:
            properties = dict(properties)
        message = _Handed(
            prepared or found,
            key,
            ordering_key,
            properties,
            event_time_ms,
            sequence_id,
            on_result,
            deliver_at_ms,
            deliver_after_s,
        )
        self._portal.check_process()
        # Wait before the message is queued: an error of the wait then means "not sent".
        if self._handed_bytes > _HANDED_BYTES_MAX and not self._portal.is_here:
            self._portal.call(self._drain.now)
        with self._handing:
            if self._closed:
                raise ClosedError(f"{self.topic}: this producer was closed")
            self._handed.append(message)
            self._handed_bytes += message.size
            self._drain.soon()

    def flush(self) -> None:
        """Return when everything that was sent so far is stored; raise the first failure."""
        self._portal.call(self._flush)

    def close(self) -> None:
        """Flush, then close.  Raise the first failure that was not raised before."""
        if not self._portal.closed:
            self._portal.call(self.close_here)
        self._raise_failure()

    async def close_here(self) -> None:
        """Close the producer; called in the client's thread."""
        with self._handing:
            self._closed = True
        try:
            try:
                await self._drain.now()
            finally:
                await self._producer.aclose()
            self._raise_failure()
        except Exception:
            self._failed_messages = 0  # They are reported by this error.
            raise
        finally:
            self._leave()

    def abandon_here(self) -> None:
        """Close without a flush; called in the client's thread.

        Callbacks are called for the messages that were not stored.
        """
        self._producer.abandon()
        self._leave()

    def _leave(self) -> None:
        self._drain.end()
        self._portal.finished(self)
        if self._on_closed is not None:
            self._on_closed(self)
            self._on_closed = None

    def _ended(self) -> None:
        """Report what is left in the queue when the producer or its client was closed."""
        with self._handing:
            self._closed = True
            left, self._handed, self._handed_bytes = self._handed, deque(), 0
        for message in left:  # Callbacks may try to send again, which takes the lock.
            self._report(
                message,
                ClosedError(f"{self.topic}: the producer was closed before this message was sent"),
            )
        self._producer.abandon()
        unseen = self._failed_messages + self._producer.failed_messages
        if unseen:
            _log.warning(
                "the client was closed: %d messages to %s have no receipt, so they may be lost;"
                " close the producer, which waits for the receipts, before the client",
                unseen,
                self.topic,
            )

    async def _flush(self) -> None:
        await self._drain.now()
        await self._producer.flush()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure, self._failed_messages = self._failure, None, 0
        if failure is not None:
            raise failure

    def _left(self) -> str:
        count = len(self._handed) + self._producer.pending_messages
        return f"{count} messages to {self.topic} have no receipt" if count else ""

    async def _empty(self) -> None:
        """Return when everything that was handed over is with the inner producer."""
        while self._handed:
            await self._producer.wait_room()
            if self._handed:  # It may have been closed meanwhile.
                self._take(self._handed.popleft())

    def _take(self, message: _Handed) -> None:
        with self._handing:
            self._handed_bytes -= message.size
        try:
            self._producer.send_nowait(
                message.data,
                key=message.key,
                ordering_key=message.ordering_key,
                properties=message.properties,
                event_time_ms=message.event_time_ms,
                sequence_id=message.sequence_id,
                deliver_at_ms=message.deliver_at_ms,
                deliver_after_s=message.deliver_after_s,
                on_result=message.on_result,
            )
        except Exception as error:  # No exception may end the thread of the client.
            self._report(message, error)

    def _report(self, message: _Handed, error: Exception) -> None:
        """Tell the callback of a message that was not sent, or keep the error for `flush`."""
        if message.on_result is None:
            self._failure = self._failure or error
            self._failed_messages += 1
            return
        if not isinstance(error, BrokerError):
            refusal = NotSentError(str(error))
            refusal.__cause__ = error
            error = refusal
        try:
            message.on_result(None, error)
        except Exception as raised:
            self._failure = self._failure or raised
