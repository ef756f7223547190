"""Tells the broker what is done: in groups after a moment, or at once with a receipt.

Without receipts, groups go out every `ack_group_s`; one that is lost with its connection leads to
another delivery.  With receipts, whoever acknowledges waits until the broker has made it durable,
through takeovers too.
"""

from contextlib import suppress

import trio

from clients.python.connection import BrokerConnection
from clients.python.errors import BrokerError, may_retry
from clients.python.limits import ConsumerLimits
from clients.python.link import Link
from clients.python.protocol.acks import AckTracker, AckTuple
from wire.messages.consumer import encode_ack


class Acknowledger:
    """The acknowledgements of one consumer on one topic; `run` is a task of the link."""

    def __init__(
        self,
        link: Link,
        consumer_id: int,
        limits: ConsumerLimits,
        *,
        receipts: bool,
        operation_timeout_s: float,
    ) -> None:
        self.tracker = AckTracker()
        self._link = link
        self._id = consumer_id
        self._limits = limits
        self._receipts = receipts
        self._operation_timeout_s = operation_timeout_s
        self._waiting = trio.Event()
        self._lock = trio.Lock()

    def changed(self) -> None:
        """Something more is done: tell it soon."""
        self._waiting.set()
        if self.tracker.waiting >= self._limits.ack_group_max:
            self.send()

    def send(self) -> None:
        """Tell what has gathered, without a receipt."""
        connection = self._link.connection
        if connection is None or self._receipts:
            return  # It waits for the next one, or for somebody who awaits the receipt.
        while self.tracker.waiting:
            cumulative, single = self.tracker.take(self._limits.ack_group_max)
            self._tell(connection, cumulative, single)
            self.tracker.confirmed(cumulative, single)  # It will have to do.

    def attached(self, connection: BrokerConnection) -> None:
        """Before anything is delivered anew: tell what is done, or it would be delivered."""
        if self._receipts:  # Whoever awaits one tells it again.
            self._tell(connection, *self.tracker.untold())
        else:
            self.send()

    def _tell(
        self, connection: BrokerConnection, cumulative: AckTuple | None, single: list[AckTuple]
    ) -> None:
        if cumulative is not None:
            connection.send((encode_ack(self._id, [cumulative], cumulative=True),))
        if single:
            connection.send((encode_ack(self._id, single),))

    async def flush(self) -> None:
        """Return when the broker has made everything that is done so far durable."""
        deadline = trio.current_time() + self._operation_timeout_s
        async with self._lock:  # Who comes second must not return before the first.
            while self.tracker.waiting:
                connection = await self._link.wait_connection()
                try:
                    await self._confirm(connection)
                except BrokerError as error:
                    if not may_retry(error, idempotent=True) or trio.current_time() >= deadline:
                        raise
                    await trio.lowlevel.checkpoint()

    async def send_or_flush(self) -> None:
        """Tell what has gathered; with receipts, if they are asked for."""
        if self._receipts:
            with suppress(BrokerError):  # Whoever awaits them is told; else it is delivered again.
                await self.flush()
        else:
            self.send()

    async def run(self) -> None:
        while True:
            await self._waiting.wait()
            await trio.sleep(self._limits.ack_group_s)
            self._waiting = trio.Event()
            await self.send_or_flush()

    async def _confirm(self, connection: BrokerConnection) -> None:
        cumulative, single = self.tracker.take(self._limits.ack_group_max)
        next_id = connection.next_request_id
        try:
            if cumulative is not None:
                number = next_id()
                frame = encode_ack(self._id, [cumulative], cumulative=True, request_id=number)
                await connection.ack_answer(number, frame)
            if single:
                number = next_id()
                await connection.ack_answer(number, encode_ack(self._id, single, request_id=number))
        except BaseException:
            self.tracker.give_back(cumulative, single)
            raise
        self.tracker.confirmed(cumulative, single)
