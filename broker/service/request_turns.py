"""Which requests of clients are begun, and when: a bounded number at once, and all clients in turn.

A request is what a client asks for that takes a while: opening a producer, a look-up, a seek.  A
connection has a `RequestQueue` for each kind of request, and all queues of one kind share one
`RequestTurns`.  A request is begun at once if there is a place for it; else it waits in its queue,
and the connection reads on, so that sends, acknowledgements and pings never wait for requests.

Bounds: each connection has a limit of requests under way, and so has the broker.  A connection with
nothing under way always gets a place, so that nobody can shut others out.  Waiting requests are
bounded in count and in bytes; a request beyond that is refused, and its client may ask again.

Turns: a few requests are begun between two passes of the loop, one from each queue before any queue
gets a second one.  So what one client asks for delays others by a few requests, not by all of them.
"""

from collections.abc import Awaitable, Callable

import trio

from daybook.broker.limits import RequestLimits
from daybook.broker.service.connection import ClientConnection

REQUEST_OVERHEAD_BYTES = 1024  # of a request that waits, besides the bytes of its frame
_BEGUN_IN_A_TURN = 16  # by all connections together; then other tasks run


class Request:
    """`run` carries it out in a task of its own; `frame_bytes` is how large its frame was.

    `begin` comes before, in the very turn in which the request is begun: tasks that are started one
    after the other run in any order.  It raises nothing.
    """

    __slots__ = ("begin", "counted", "run", "size_bytes")

    def __init__(
        self,
        run: Callable[[], Awaitable[None]],
        frame_bytes: int,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.run = run
        self.begin = begin
        self.size_bytes = REQUEST_OVERHEAD_BYTES + frame_bytes
        self.counted = False  # as one that is under way


class RequestTurns:
    """The turns of all connections, for one kind of request.  `run` belongs into the broker's
    nursery.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.under_way = 0
        self.waiting_bytes = 0
        self._ready: dict[RequestQueue, None] = {}  # may go on, in the order of their turns
        self._crowded_out: dict[RequestQueue, None] = {}  # wait until fewer are under way in all
        self._begun = 0  # since this task last ran
        self._wake = trio.Event()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._begun = 0
            while self._ready:
                self._take_turns()
                await trio.lowlevel.checkpoint()

    def _take_turns(self) -> None:
        self._begun = 0
        while self._ready and self._begun < _BEGUN_IN_A_TURN:
            queue = next(iter(self._ready))
            del self._ready[queue]
            if queue.begin_next():
                self._ready[queue] = None  # behind all others
            self._admit_another()

    # -- what queues say

    def enter(self, queue: "RequestQueue") -> None:
        """The queue has requests to begin; nothing happens if that is known."""
        if queue in self._crowded_out:
            if not self.has_place_for(queue):
                return  # It keeps its place among those that wait.
            del self._crowded_out[queue]
        if queue not in self._ready:
            self._ready[queue] = None
            self._wake.set()

    def leave(self, queue: "RequestQueue") -> None:
        self._ready.pop(queue, None)
        self._crowded_out.pop(queue, None)
        self._admit_another()  # The place that it would have taken is for somebody else.

    def has_place_for(self, queue: "RequestQueue") -> bool:
        """May the queue have one more under way, as far as others are concerned?"""
        return self.under_way < self.limits.total_max or not queue.under_way

    def wait_for_place(self, queue: "RequestQueue") -> None:
        self._crowded_out[queue] = None

    @property
    def in_this_turn(self) -> bool:
        """May one more be begun before other tasks run?"""
        if self._begun < _BEGUN_IN_A_TURN:
            return True
        self._wake.set()  # The next turn begins as soon as `run` has run.
        return False

    def began(self) -> None:
        self._begun += 1
        self.under_way += 1

    def ended(self) -> None:
        self.under_way -= 1
        self._admit_another()

    def _admit_another(self) -> None:
        if self._crowded_out and self.under_way < self.limits.total_max:
            self.enter(next(iter(self._crowded_out)))


class RequestQueue:
    """The requests of one kind of one connection."""

    def __init__(self, turns: RequestTurns, connection: ClientConnection) -> None:
        self.under_way = 0
        self._turns = turns
        self._limits = turns.limits
        self._connection = connection
        self._waiting: dict[Request, None] = {}
        self._waiting_bytes = 0
        self._awaits_client = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, request: Request) -> bool:
        """Begin it now or in its turn; False if too many wait, and then nothing was done."""
        if self._closed:
            return True  # Nobody would hear the answer.
        if not self._waiting and self._may_begin() and self._turns.in_this_turn:
            self._start(request)
            return True
        if self._is_full(request.size_bytes):
            return False
        self._waiting[request] = None
        self._count_bytes(request.size_bytes)
        self._turns.enter(self)
        return True

    def _is_full(self, size_bytes: int) -> bool:
        limits = self._limits
        return (
            len(self._waiting) >= limits.waiting_max
            or self._waiting_bytes + size_bytes > limits.waiting_bytes_max
            or self._turns.waiting_bytes + size_bytes > limits.waiting_total_bytes
        )

    def withdraw(self, request: Request) -> bool:
        """Take it out again; False if it does not wait any more."""
        if request not in self._waiting:
            return False
        del self._waiting[request]
        self._count_bytes(-request.size_bytes)
        return True

    def step_aside(self, request: Request) -> None:
        """It waits for something that may never come: others do not wait for it."""
        if request.counted:
            request.counted = False
            self._ended()

    def close(self) -> None:
        """The connection ends: what waits is forgotten."""
        self._closed = True
        self._waiting.clear()
        self._count_bytes(-self._waiting_bytes)
        self._turns.leave(self)

    # -- for the turns

    def begin_next(self) -> bool:
        """Begin the one that has waited longest; True if there may be another turn for us."""
        if not self._waiting:
            return False
        if not self._turns.has_place_for(self):
            self._turns.wait_for_place(self)
            return False
        if not self._may_begin():
            self._wait_for_client()
            return False  # Or one of ours ends: then we enter again.
        request = next(iter(self._waiting))
        self.withdraw(request)
        self._start(request)
        return bool(self._waiting)

    def _may_begin(self) -> bool:
        return (
            self.under_way < self._limits.under_way_max
            and self._turns.has_place_for(self)
            and self._connection.takes_answers
        )

    def _wait_for_client(self) -> None:
        if not self._awaits_client and not self._connection.takes_answers:
            self._awaits_client = True
            self._connection.start_task(self._enter_again)

    async def _enter_again(self) -> None:
        await self._connection.wait_takes_answers()
        self._awaits_client = False
        self._enter()

    # -- one request

    def _start(self, request: Request) -> None:
        request.counted = True
        self.under_way += 1
        self._turns.began()
        if request.begin is not None:
            request.begin()
        self._connection.start_task(self._carry_out, request)

    async def _carry_out(self, request: Request) -> None:
        try:
            await request.run()
        finally:
            self.step_aside(request)

    def _ended(self) -> None:
        self.under_way -= 1
        self._turns.ended()
        self._enter()

    def _enter(self) -> None:
        if self._waiting and not self._closed:
            self._turns.enter(self)

    def _count_bytes(self, change: int) -> None:
        self._waiting_bytes += change
        self._turns.waiting_bytes += change
