"""Sends acknowledgements to the broker: in groups after a moment, or at once with a receipt.

Without receipts, a group is sent every `ack_group_s`; if it is lost with its connection, its
messages are delivered again.  An acknowledgement that was sent without a receipt is in doubt until
a receipt covers it: the broker is asked for a receipt every `ack_settle_s`, and `flush` sends again
everything that is in doubt and returns when the broker has confirmed it.  With receipts, `ack`
waits until the broker has made the acknowledgement durable, through takeovers too.

A broker that closes a consumer ignores what the client sends before it hears of that.  So whatever
is in doubt when an attachment ends is sent again at the begin of the next one, if that broker says
when somebody has moved the subscription: an acknowledgement from before a move must not come
behind it.
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
    """One instance per topic consumer, which runs `run` as a task."""

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
        self._sent_without_receipt = trio.Event()  # set when a group was sent without a receipt
        self._lock = trio.Lock()
        self._moves = 0  # how often another client moved the subscription, so that acks were void
        self._void = 0  # void acknowledgements that no `flush` has reported yet

    def changed(self) -> None:
        """Send soon: the tracker has more acknowledgements."""
        self._waiting.set()
        if self.tracker.waiting >= self._limits.ack_group_max:
            self.send()

    def send(self) -> None:
        """Send the acknowledgements that wait, without receipts."""
        connection = self._handler.connection
        if connection is None or self._receipts:
            return  # They wait for the next connection, or for a task that awaits the receipt.
        while self.tracker.waiting:
            cumulative, single = self.tracker.take(self._limits.ack_group_max)
            self._send(connection, cumulative, single)
            self.tracker.note_sent(cumulative, single)
            self._sent_without_receipt.set()

    def attached(self, connection: BrokerConnection, *, tells_moves: bool) -> None:
        """Send what is acknowledged, before the broker delivers: or it would deliver that again."""
        self.tracker.in_doubt.attached()
        if tells_moves:
            self.tracker.recall()
        if self._receipts:  # The task that awaits the receipt sends it again, with a request.
            self._send(connection, *self.tracker.unsent())
        else:
            self.send()

    def _send(
        self, connection: BrokerConnection, cumulative: AckTuple | None, single: list[AckTuple]
    ) -> None:
        if cumulative is not None:
            connection.send((encode_ack(self._id, [cumulative], cumulative=True),))
        if single:
            connection.send((encode_ack(self._id, single),))

    def forget(self, *, moved_by_us: bool) -> None:
        """Forget all acknowledgements: the subscription was moved."""
        void = self.tracker.forget()
        if void and not moved_by_us:
            self.note_void(void)

    def note_void(self, count: int) -> None:
        """Note acknowledgements that are void because another client moved the subscription."""
        self._moves += 1
        self._void += count

    async def flush(self) -> None:
        """Return when the broker has confirmed that all acknowledgements so far are durable.

        Raise BrokerError if that is not known; then they are sent again, or the messages are
        delivered again.
        """
        moves = self._moves
        await self._flush()
        void, self._void = self._void, 0
        if void or moves != self._moves:  # Another task's flush may have taken the count.
            raise InDoubtError(
                f"{self._handler.topic}: somebody moved the subscription, so acknowledgements of"
                " what was delivered before are void: receive again, and acknowledge what comes"
            )
        lost, self.tracker.in_doubt.lost = self.tracker.in_doubt.lost, 0
        if lost:
            raise InDoubtError(
                self._doubt(f"{lost} of an earlier connection were more than the client keeps")
            )

    async def settle(self) -> None:
        """Return when the broker has confirmed what it can still confirm.  Raise BrokerError."""
        await self._flush()

    async def _flush(self) -> None:
        # The first flush has taken the acknowledgements from the tracker: a second one would find
        # nothing, and must not return before the first.
        async with self._lock:
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
        """Send the acknowledgements that wait; with receipts, if the consumer has them."""
        if self._receipts:
            # A task that awaits the receipt gets the error; if none does, messages come again.
            with suppress(BrokerError):
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
        """Ask for a receipt now and then: it covers everything that was sent before it."""
        doubt = self.tracker.in_doubt
        while True:
            await self._sent_without_receipt.wait()
            await trio.sleep(self._limits.ack_settle_s)
            self._sent_without_receipt = trio.Event()
            connection, newest, number = self._handler.connection, doubt.newest, doubt.last_group
            if connection is None or newest is None:
                continue  # The attachment has ended: no receipt can cover what it sent.
            with suppress(BrokerError):  # Without the receipt all of it stays in doubt.
                await self._confirm(connection, *newest)
                doubt.settled(number)

    async def _confirm_all(self, connection: BrokerConnection) -> None:
        tracker = self.tracker
        groups = tracker.take_all(self._limits.ack_group_max)
        number, moved = tracker.in_doubt.last_group, tracker.times_moved
        try:
            while groups and tracker.times_moved == moved:
                await self._confirm(connection, *groups[0])
                tracker.confirmed(*groups.pop(0))
        finally:
            if tracker.times_moved == moved:  # After a seek, none of them is of interest.
                for group in groups:
                    tracker.give_back(*group)
        tracker.in_doubt.settled(number)

    async def _confirm(
        self,
        connection: BrokerConnection,
        cumulative: AckTuple | None,
        single: Sequence[AckTuple],
    ) -> None:
        """Send these, and return when the broker has confirmed that they are durable."""
        if cumulative is not None:
            number = connection.next_request_id()
            frame = encode_ack(self._id, [cumulative], cumulative=True, request_id=number)
            await connection.ack_answer(number, frame)
        if single:
            number = connection.next_request_id()
            await connection.ack_answer(number, encode_ack(self._id, single, request_id=number))
