"""The producer for code without trio: what is sent is handed over to the thread, in order.

`send_nowait` costs the caller an append; the thread takes what has gathered.  How much may be on
its way is bounded in bytes: then the caller waits.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from daybook.clients.python import producer as trio_producer
from daybook.clients.python.arguments import check_message
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.messages import MessageId
from daybook.clients.python.portal import Closing, Drain, Portal
from daybook.clients.python.topic_producer import OnResult
from daybook.wire.transport import Buffer

_HANDED_BYTES_MAX = 8 << 20  # messages on their way to the thread


@dataclass(slots=True)
class _Handed:
    """A message on its way to the thread."""

    data: Buffer | None
    key: str | bytes | None
    properties: Mapping[str, str] | None
    event_time_ms: int | None
    sequence_id: int | None
    on_result: OnResult | None

    @property
    def size(self) -> int:
        return 0 if self.data is None else len(self.data)


class Producer(Closing):
    """See `clients.python.producer`."""

    def __init__(self, portal: Portal, producer: trio_producer.Producer) -> None:
        self._portal = portal
        self._producer = producer
        self._handed: deque[_Handed] = deque()
        self._handed_bytes = 0
        self._counting = threading.Lock()
        self._failure: Exception | None = None
        self._drain = Drain(portal, self._empty)
        portal.finish_at_exit(self, self._flush, self._left)

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
    def connected(self) -> bool:
        return self._producer.connected

    def send(
        self,
        data: Buffer | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
    ) -> MessageId:
        """Send a message; return its id when it is stored."""

        async def send() -> MessageId:
            await self._drain.now()
            return await self._producer.send(
                data,
                key=key,
                properties=properties,
                event_time_ms=event_time_ms,
                sequence_id=sequence_id,
            )

        return self._portal.call(send)

    def send_nowait(
        self,
        data: Buffer | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        """Queue a message; waits only while more is queued than memory is meant for.

        TypeError, which names the argument, is raised at once.  Any other failure is told to
        `on_result`, or raised by the next `flush` or `close`.
        """
        check_message(data, key, properties)
        message = _Handed(data, key, properties, event_time_ms, sequence_id, on_result)
        with self._counting:
            self._handed_bytes += message.size
        self._handed.append(message)
        self._drain.soon()
        if self._handed_bytes > _HANDED_BYTES_MAX:
            self._portal.call(self._drain.now)

    def flush(self) -> None:
        """Return when everything that was sent so far is stored; raises the first failure."""
        self._portal.call(self._flush)

    def close(self) -> None:
        """Flush, then end."""

        async def close() -> None:
            try:
                await self._drain.now()
            finally:
                await self._producer.aclose()
            if self._failure is not None:
                raise self._failure

        try:
            self._portal.call(close)
        finally:
            self._portal.finished(self)

    async def _flush(self) -> None:
        await self._drain.now()
        await self._producer.flush()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _left(self) -> str:
        count = len(self._handed) + self._producer.pending_messages
        return f"{count} messages to {self.topic} have no receipt" if count else ""

    async def _empty(self) -> None:
        """Everything that was handed over is with the producer when this returns."""
        while self._handed:
            try:
                await self._producer.wait_room()
                self._take(self._handed.popleft())
            except (BrokerError, ValueError, TypeError) as error:
                self._failure = self._failure or error

    def _take(self, message: _Handed) -> None:
        with self._counting:
            self._handed_bytes -= message.size
        try:
            self._producer.send_nowait(
                message.data,
                key=message.key,
                properties=message.properties,
                event_time_ms=message.event_time_ms,
                sequence_id=message.sequence_id,
                on_result=message.on_result,
            )
        except BrokerError as error:
            if message.on_result is None:
                raise
            message.on_result(None, error)
