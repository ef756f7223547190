"""Refuses the requests of one connection: at once, or later if the client repeats a refused one.

Only the answer is delayed.  One timer serves all delayed answers of the connection.  Their number
is bounded: beyond the bound, the answer that is due next is sent early.

`hold` delays a request itself, in the place that it has among those of its connection, if its
client is refused too often: on this connection, or on all those of its role or address together
(`shared_pace`).  So the requests behind it wait, too, and cost nothing meanwhile.  Its place among
those of all connections is given to others.  One request of a connection waits at a time.
"""

from contextlib import AbstractContextManager
from heapq import heappop, heappush
from typing import Any

import trio
from google.protobuf.message import Message

from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.protocol.refusals import RefusalPace, Repeats, refusal, repeated_as
from daybook.broker.service.connection import ClientConnection
from daybook.broker.service.request_counts import RefusalLog, RequestCounts
from daybook.broker.service.shared_pace import SharedPace
from daybook.wire.proto import pulsar_pb2 as pb

REASON_CHARS_MAX = 4_096
_WAITING_MAX = 1_000
_NEVER_LATE = frozenset({int(pb.BaseCommand.ACK)})


class RefusedRequests:
    """One instance per client connection."""

    def __init__(
        self,
        connection: ClientConnection,
        log: RefusalLog,
        shared: SharedPace,
        counts: RequestCounts,
    ) -> None:
        self._connection = connection
        self._log = log
        self._shared = shared
        self._counts = counts
        self._repeats = Repeats()
        self._pace = RefusalPace()
        self._holding = trio.Lock()
        self._waiting: list[tuple[float, int, Message]] = []  # a heap, by the time of the answer
        self._count = 0  # makes heap items unique: messages cannot be compared
        self._timed = False  # the timer runs
        self._sooner = trio.Event()

    def __len__(self) -> int:
        """Return how many answers are delayed now."""
        return len(self._waiting)

    async def hold(self, error: BrokerError, giving_way: AbstractContextManager[None]) -> None:
        """Wait until a request that has this error may be refused.

        The wait is inside `giving_way`, by which other connections get the place of the request.
        """
        if isinstance(error, UnavailableError):
            return  # It is not the client's fault, and the next try may succeed.
        waits = self._holding.locked()
        delay_s = 0.0 if waits else self._delay_s(error)
        if waits or delay_s:
            with giving_way:
                async with self._holding:
                    await trio.sleep(self._delay_s(error) if waits else delay_s)

    def _delay_s(self, error: BrokerError) -> float:
        own_s = self._pace.delay_s(trio.current_time())
        if own_s:
            self._counts.held["service", "connection"] += 1
        connection = self._connection
        shared_s = self._shared.delay_s(error, connection.caller, connection.peer, "service")
        return max(own_s, shared_s)

    def refuse(self, command: int, body: Any, error: BrokerError) -> None:  # noqa: ANN401
        """Answer the request with the error, in the form that its kind of request has."""
        self._log.refused(command, error, self._connection.peer)
        # A reason may quote a name of megabytes, and many answers may wait here.
        answer = refusal(command, body, error.code, error.reason[:REASON_CHARS_MAX])
        if command in _NEVER_LATE:
            self._connection.send_command(answer)
            return
        now_s = trio.current_time()
        delay_s = self._repeats.delay_s(repeated_as(command, body), now_s)
        if not delay_s:
            self._connection.send_command(answer)
            return
        self._answer_at(now_s + delay_s, answer)

    def _answer_at(self, due_s: float, answer: Message) -> None:
        self._count += 1
        heappush(self._waiting, (due_s, self._count, answer))
        if len(self._waiting) > _WAITING_MAX:
            self._connection.send_command(heappop(self._waiting)[2])
        if not self._timed:
            self._timed = True
            self._connection.start_task(self._send_delayed)
        elif self._waiting[0][0] == due_s:
            # The new answer is due before the one that the timer waits for.
            self._sooner.set()

    async def _send_delayed(self) -> None:
        while self._waiting:
            self._sooner = trio.Event()
            with trio.move_on_at(self._waiting[0][0]):
                await self._sooner.wait()
            now_s = trio.current_time()
            while self._waiting and self._waiting[0][0] <= now_s:
                self._connection.send_command(heappop(self._waiting)[2])
        self._timed = False
