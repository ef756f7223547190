"""When the requests of clients begin: a bounded number at once, and all clients in turn.

A request is a command that takes a while: opening a producer, a lookup, a seek.  A connection has a
`RequestQueue` for each kind of request, and all queues of one kind share one `RequestTurns`.  A
request begins at once if there is a place for it.  Otherwise it waits in its queue and the
connection reads on, so sends, acknowledgements and pings never wait for requests.

Bounds: each connection has a limit of requests under way, and so has the broker.  A connection with
nothing under way always gets a place, so no client can lock others out.  Waiting requests are
bounded in count and in bytes; a request beyond that is refused, and its client may ask again.

Turns: a few requests begin between two passes of the event loop, one from each queue before any
queue gets a second one.  So the requests of one client delay others by a few requests, not by all
of them.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import trio

from daybook.broker.limits import ConnectionLimits, RequestLimits
from daybook.broker.service.connection import ClientConnection

REQUEST_OVERHEAD_BYTES = 1024  # a waiting request takes so much in addition to its frame
_BEGUN_PER_TURN = 16  # by all connections together; then other tasks run


class Request:
    """One request: `run` carries it out in a task of its own, and is given the request.

    `begin` is called first, in the turn in which the request begins: tasks that are started one
    after the other run in any order.  It must not raise.  `frame_bytes` is the size of the frame.
    """

    __slots__ = ("begin", "counted", "run", "size_bytes")

    def __init__(
        self,
        run: "Callable[[Request], Awaitable[None]]",
        frame_bytes: int,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.run = run
        self.begin = begin
        self.size_bytes = REQUEST_OVERHEAD_BYTES + frame_bytes
        self.counted = False  # counted as under way


class RequestTurns:
    """The turns of all connections, for one kind of request.

    `run` belongs in the broker's nursery.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.under_way = 0
        self.waiting = 0
        self.waiting_bytes = 0
        self._ready: dict[RequestQueue, None] = {}  # may begin one, in turn
        self._crowded_out: dict[RequestQueue, None] = {}  # wait until fewer are under way
        self._begun = 0  # since `run` last ran
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
        while self._ready and self._begun < _BEGUN_PER_TURN:
            queue = next(iter(self._ready))
            del self._ready[queue]
            try:
                if queue.begin_next():
                    self._ready[queue] = None  # behind all others
            except Exception as bug:  # The queues of other connections go on.
                queue.failed(bug)
            self._admit_another()

    # -- calls of the queues

    def enter(self, queue: "RequestQueue") -> None:
        """Note that the queue has requests to begin; repeated calls have no effect."""
        if queue in self._crowded_out:
            if not self.has_place_for(queue):
                return  # It keeps its place among the queues that wait.
            del self._crowded_out[queue]
        if queue not in self._ready:
            self._ready[queue] = None
            self._wake.set()

    def leave(self, queue: "RequestQueue") -> None:
        self._ready.pop(queue, None)
        self._crowded_out.pop(queue, None)
        self._admit_another()  # Another queue may have the place that this one would have got.

    def has_place_for(self, queue: "RequestQueue") -> bool:
        """Return True if the limit of the broker allows the queue one more request."""
        return self.under_way < self.limits.total_max or not queue.under_way

    def wait_for_place(self, queue: "RequestQueue") -> None:
        self._crowded_out[queue] = None

    @property
    def in_this_turn(self) -> bool:
        """Return True if one more request may begin before other tasks run."""
        if self._begun < _BEGUN_PER_TURN:
            return True
        self._wake.set()  # The next turn begins when `run` runs.
        return False

    def began(self) -> None:
        self._begun += 1
        self.under_way += 1

    def resumed(self) -> None:
        self.under_way += 1  # It may be one too many for a moment: the request is about to end.

    def ended(self) -> None:
        self.under_way -= 1
        assert self.under_way >= 0
        self._admit_another()

    def _admit_another(self) -> None:
        if self._crowded_out and self.under_way < self.limits.total_max:
            self.enter(next(iter(self._crowded_out)))


class ClientTurns:
    """The turns of a broker: of requests that use a topic, and of lookups."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.requests = RequestTurns(limits.requests)
        self.lookups = RequestTurns(limits.lookups)

    @property
    def under_way(self) -> int:
        return self.requests.under_way + self.lookups.under_way

    @property
    def waiting(self) -> int:
        return self.requests.waiting + self.lookups.waiting


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
        """Begin the request now or in its turn; return False, with no effect, if too many wait."""
        if self._closed:
            return True  # Nobody would read the answer.
        if not self._waiting and self._may_begin() and self._turns.in_this_turn:
            self._start(request)
            return True
        if self._is_full(request.size_bytes):
            return False
        self._waiting[request] = None
        self._count(1, request.size_bytes)
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
        """Remove a waiting request; return False if it no longer waits."""
        if request not in self._waiting:
            return False
        del self._waiting[request]
        self._count(-1, -request.size_bytes)
        return True

    def step_aside(self, request: Request) -> None:
        """Give the place of a request to others: it waits for an event that may never happen."""
        if request.counted:
            request.counted = False
            self._ended()

    @contextmanager
    def giving_way(self, request: Request) -> Generator[None]:
        """Let other connections have the place of a request inside the block, which only waits.

        The other requests of this connection wait on.
        """
        if not request.counted:
            yield
            return
        self._turns.ended()
        try:
            yield
        finally:
            self._turns.resumed()

    def close(self) -> None:
        """Forget the waiting requests: the connection ends."""
        self._closed = True
        self._count(-len(self._waiting), -self._waiting_bytes)
        self._waiting.clear()
        self._turns.leave(self)

    # -- calls of the turns

    def failed(self, bug: Exception) -> None:
        """End the connection, because its request could not begin for a reason nobody expected."""
        self.close()
        self._connection.failed(bug)

    def begin_next(self) -> bool:
        """Begin the request that has waited longest; return True if another turn is wanted."""
        if not self._waiting:
            return False
        if not self._turns.has_place_for(self):
            self._turns.wait_for_place(self)
            return False
        if not self._may_begin():
            self._wait_for_client()
            return False  # `_ended` enters again, if a request of this queue is what it waits for.
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
            await request.run(request)
        finally:
            self.step_aside(request)

    def _ended(self) -> None:
        self.under_way -= 1
        self._turns.ended()
        self._enter()

    def _enter(self) -> None:
        if self._waiting and not self._closed:
            self._turns.enter(self)

    def _count(self, requests: int, size_bytes: int) -> None:
        self._waiting_bytes += size_bytes
        self._turns.waiting_bytes += size_bytes
        self._turns.waiting += requests
        assert 0 <= self._waiting_bytes <= self._turns.waiting_bytes
