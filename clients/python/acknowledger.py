"""Tells the broker what is done: in groups after a moment, or at once with a receipt.

Without receipts, groups go out every `ack_group_s`; one that is lost with its connection leads to
another delivery.  What was told so is in doubt until a receipt covers it: the broker is asked for
one every `ack_settle_s`, and `flush` tells again what is in doubt and returns when the broker has
confirmed it.  With receipts, whoever acknowledges waits until the broker has made it durable,
through takeovers too.
"""

from collections.abc import Sequence
from contextlib import suppress

import trio

from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.connection_handler import ConnectionHandler
from daybook.clients.python.errors import (
    BrokerError,
    InDoubtError,
    RequestTimedOutError,
    may_retry,
)
from daybook.clients.python.limits import ConsumerLimits
from daybook.clients.python.protocol.acks import AckTracker
from daybook.clients.python.protocol.acks_in_doubt import AckTuple
from daybook.wire.messages.consumer import encode_ack


class Acknowledger:
    """The acknowledgements of one consumer on one topic; `run` is a task of the link."""

    def __init__(
        self,
        handler: ConnectionHandler,
        consumer_id: int,
        limits: ConsumerLimits,
        *,
        receipts: bool,
    ) -> None:
        self.tracker = AckTracker(
            in_doubt_max=limits.acks_in_doubt_max, given_back_max=limits.given_back_max
        )
        self._handler = handler
        self._id = consumer_id
        self._limits = limits
        self._receipts = receipts
        self._waiting = trio.Event()
        self._told = trio.Event()  # something, without a receipt
        self._lock = trio.Lock()
        self._moves = 0  # of the subscription, by somebody else, that made acknowledgements void
        self._void = 0  # acknowledgements that are, and of which nobody was told yet

    def changed(self) -> None:
        """Something more is done: tell it soon."""
        self._waiting.set()
        if self.tracker.waiting >= self._limits.ack_group_max:
            self.send()

    def send(self) -> None:
        """Tell what has gathered, without a receipt."""
        connection = self._handler.connection
        if connection is None or self._receipts:
            return  # It waits for the next one, or for somebody who awaits the receipt.
        while self.tracker.waiting:
            cumulative, single = self.tracker.take(self._limits.ack_group_max)
            self._tell(connection, cumulative, single)
            self.tracker.told(cumulative, single)
            self._told.set()

    def attached(self, connection: BrokerConnection) -> None:
        """Before anything is delivered anew: tell what is done, or it would be delivered."""
        self.tracker.in_doubt.attached()
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

    def forget(self, *, moved_by_us: bool) -> None:
        """The subscription was moved: what was acknowledged before is of no interest any more."""
        void = self.tracker.forget()
        if void and not moved_by_us:
            self.note_void(void)

    def note_void(self, count: int) -> None:
        """So many acknowledgements came to nothing because somebody else moved the subscription."""
        self._moves += 1
        self._void += count

    async def flush(self) -> None:
        """Return when the broker has confirmed that everything that is done so far is durable.

        Raises BrokerError if that is not known; what the broker lacks is told again, or comes
        again.
        """
        moves = self._moves
        await self._flush()
        void, self._void = self._void, 0
        if void or moves != self._moves:  # Another flush may have told of those.
            raise InDoubtError(
                f"{self._handler.topic}: somebody moved the subscription, so acknowledgements of"
                " what was delivered before are void: receive again, and acknowledge what comes"
            )
        lost, self.tracker.in_doubt.lost = self.tracker.in_doubt.lost, 0
        if lost:
            raise InDoubtError(self._doubt(f"{lost} of an earlier connection were too many"))

    async def _flush(self) -> None:
        async with self._lock:  # Who comes second must not return before the first.
            if self.tracker.waiting or len(self.tracker.in_doubt):
                try:
                    await self._handler.persist(self._confirm_all)
                except BrokerError as error:
                    if not may_retry(error, idempotent=True):
                        raise
                    raise RequestTimedOutError(self._doubt(str(error))) from error

    def _doubt(self, why: str) -> str:
        waiting = self.tracker.waiting
        entries = f" of {waiting} entries" if waiting else ""
        return (
            f"{self._handler.topic}: it is not known whether acknowledgements{entries} are durable;"
            f" messages whose acknowledgement was lost come again: {why}"
        )

    async def send_or_flush(self) -> None:
        """Tell what has gathered; with receipts, if they are asked for."""
        if self._receipts:
            with suppress(BrokerError):  # Whoever awaits them is told; else it is delivered again.
                await self._flush()
        else:
            self.send()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            if not self._receipts:
                nursery.start_soon(self._settle)
            while True:
                await self._waiting.wait()
                await trio.sleep(self._limits.ack_group_s)
                self._waiting = trio.Event()
                await self.send_or_flush()

    async def _settle(self) -> None:
        """Ask for a receipt now and then, which covers all that was told before it."""
        doubt = self.tracker.in_doubt
        while True:
            await self._told.wait()
            await trio.sleep(self._limits.ack_settle_s)
            self._told = trio.Event()
            connection, newest, number = self._handler.connection, doubt.newest, doubt.told
            if connection is None or newest is None:
                continue  # An attachment has ended; nothing covers what it told.
            with suppress(BrokerError):  # Then it stays in doubt.
                await self._confirm(connection, *newest)
                doubt.settled(number)

    async def _confirm_all(self, connection: BrokerConnection) -> None:
        tracker = self.tracker
        groups = tracker.take_all(self._limits.ack_group_max)
        number, moved = tracker.in_doubt.told, tracker.times_moved
        try:
            while groups and tracker.times_moved == moved:
                await self._confirm(connection, *groups[0])
                tracker.confirmed(*groups.pop(0))
        finally:
            if tracker.times_moved == moved:  # Else a seek came, and took it all back.
                for group in groups:
                    tracker.give_back(*group)
        tracker.in_doubt.settled(number)

    async def _confirm(
        self,
        connection: BrokerConnection,
        cumulative: AckTuple | None,
        single: Sequence[AckTuple],
    ) -> None:
        """Tell these, and return when the broker says that they are durable."""
        if cumulative is not None:
            number = connection.next_request_id()
            frame = encode_ack(self._id, [cumulative], cumulative=True, request_id=number)
            await connection.ack_answer(number, frame)
        if single:
            number = connection.next_request_id()
            await connection.ack_answer(number, encode_ack(self._id, single, request_id=number))
