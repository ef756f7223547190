"""The refusals of one connection: at once, or later if the client repeats what was refused.

Only the answer waits.  One timer serves all answers that wait, and there is a bound to them: beyond
it the answer that is due next goes out early.
"""

from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from typing import Any, Protocol

import trio
from google.protobuf.message import Message

from daybook.broker.errors import BrokerError
from daybook.broker.protocol.refusals import refusal
from daybook.broker.protocol.repeats import Repeats, repeated_as
from daybook.broker.service.refusal_log import RefusalLog
from daybook.wire.proto import pulsar_pb2 as pb

_WAITING_MAX = 1_000
_NEVER_LATE = frozenset({int(pb.BaseCommand.ACK)})


class RefusingConnection(Protocol):
    """What is needed of the connection."""

    @property
    def peer(self) -> str: ...

    def tell(self, message: Message) -> None: ...

    def start_task(self, task: Callable[..., Awaitable[None]], *args: object) -> None: ...


class RefusedRequests:
    """See the module."""

    def __init__(self, connection: RefusingConnection, log: RefusalLog) -> None:
        self._connection = connection
        self._log = log
        self._repeats = Repeats()
        self._waiting: list[tuple[float, int, Message]] = []  # a heap, by the time of the answer
        self._count = 0
        self._timed = False  # the timer runs
        self._sooner = trio.Event()

    def __len__(self) -> int:
        """How many answers wait."""
        return len(self._waiting)

    def refuse(self, command: int, body: Any, error: BrokerError) -> None:  # noqa: ANN401
        """Answer the request with the error, in its own way."""
        self._log.refused(command, error, self._connection.peer)
        answer = refusal(command, body, error.code, error.reason)
        if command in _NEVER_LATE:
            self._connection.tell(answer)
            return
        now_s = trio.current_time()
        delay_s = self._repeats.delay_s(repeated_as(command, body), now_s)
        if not delay_s:
            self._connection.tell(answer)
            return
        self._answer_at(now_s + delay_s, answer)

    def _answer_at(self, due_s: float, answer: Message) -> None:
        self._count += 1
        heappush(self._waiting, (due_s, self._count, answer))
        if len(self._waiting) > _WAITING_MAX:
            self._connection.tell(heappop(self._waiting)[2])
        if not self._timed:
            self._timed = True
            self._connection.start_task(self._answer_in_time)
        elif self._waiting[0][0] == due_s:
            self._sooner.set()

    async def _answer_in_time(self) -> None:
        while self._waiting:
            self._sooner = trio.Event()
            with trio.move_on_at(self._waiting[0][0]):
                await self._sooner.wait()
            now_s = trio.current_time()
            while self._waiting and self._waiting[0][0] <= now_s:
                self._connection.tell(heappop(self._waiting)[2])
        self._timed = False
