"""One connection to a bookie: from wire messages to the store, and back.

Adds are handed to the store as they are parsed, without a task, an event or a copy: the entry is a
view into the arena in which it arrived.  Their answers gather in the session and leave together,
once for each commit of the store.  Whatever has to wait (reads, fences, waiting for the LAC) is a
task of the connection, and ends with it.

A session says when its peer has to wait (`has_room`): too many bytes of adds are not durable yet,
too many requests are under way, or the peer does not read its answers.  `serve` then leaves the
socket alone; nothing is refused for being early.

What the store says becomes a status of the protocol here.  *Unknown* has a code of its own in v3
only; v2 clients of others drop the connection when they see it, so there it is an I/O error, which
proves as little.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeVarTuple

import trio

from daybook.bookie.server.response_buffers import ResponseBuffers, WindowMemory
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.clock import WallClock
from daybook.wire.connection import FrameConnection
from daybook.wire.messages.bookie import FRAME_BYTES_MAX, Status
from daybook.wire.transport import Buffer

Ts = TypeVarTuple("Ts")

ANSWER_OVERHEAD_BYTES = 500  # Apache's bookies keep the same distance.

STATUSES: dict[StoreStatus, Status] = {
    StoreStatus.OK: Status.OK,
    StoreStatus.NO_LEDGER: Status.NO_LEDGER,
    StoreStatus.NO_ENTRY: Status.NO_ENTRY,
    StoreStatus.FENCED: Status.FENCED,
    StoreStatus.UNAUTHORIZED: Status.UNAUTHORIZED,
    StoreStatus.IO_ERROR: Status.IO_ERROR,
    StoreStatus.READ_ONLY: Status.READ_ONLY,
    StoreStatus.UNKNOWN: Status.UNKNOWN_LEDGER_STATE,
    StoreStatus.TOO_MANY: Status.TOO_MANY_REQUESTS,
    StoreStatus.BAD_REQUEST: Status.BAD_REQUEST,
}


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What all clients together, and each connection, may take.  Bytes and counts are bounds at
    which the bookie stops reading, so that a batch of frames (1 MB) may go beyond them."""

    connections_max: int = 2000
    newcomers_max: int = 200  # connections that have not sent a whole frame yet
    frame_bytes_max: int = FRAME_BYTES_MAX
    arena_bytes_max: int = 256 << 20
    first_frame_timeout_s: float = 30.0
    newcomer_arena_bytes_max: int = 64 << 20  # of those that have not sent a whole frame, together
    frame_stall_s: float = 5.0  # without a byte of a frame that has begun
    frame_bytes_per_s: int = 16 << 10  # at least, over the window
    frame_window_s: float = 30.0
    idle_timeout_s: float = 3600.0
    add_bytes_max: int = 128 << 20  # of adds that are not durable yet
    connection_add_bytes_max: int = 32 << 20
    answer_bytes_max: int = 128 << 20  # of answers that peers have not taken yet
    connection_answer_bytes_max: int = 4 << 20
    viewed_bytes_max: int = 128 << 20  # of what was read, and answers that wait are views of
    connection_viewed_bytes_max: int = 12 << 20  # two windows of the store, and room to align
    connection_calls_max: int = 128  # requests that have a task
    connection_reads_max: int = 8  # entries on their way from the disk to the peer
    connection_polls_max: int = 2000  # requests that wait for the LAC to move
    poll_timeout_s_max: float = 60.0
    stall_timeout_s: float = 60.0  # to take answers that are above the limit
    batch_entries_max: int = 5000

    @property
    def entry_bytes_max(self) -> int:
        """An entry has to fit into any answer, in either protocol."""
        return self.frame_bytes_max - ANSWER_OVERHEAD_BYTES


@dataclass(slots=True)
class Received:
    """Frames that came together."""

    frames: Iterator[memoryview]  # those that are not handled yet
    span: memoryview  # all of them, each behind its size
    at: int = 0  # in the span: where the next one begins


@dataclass(frozen=True, slots=True)
class DiskSpace:
    total_bytes: int
    free_bytes: int


class Host(Protocol):
    """What a session needs of the server around it."""

    store: LedgerStore
    clock: WallClock
    limits: ServerLimits
    add_bytes: int  # of adds of all connections that are not durable yet
    viewed: WindowMemory

    def mark(self, session: "Session") -> None:
        """The session has answers to adds: flush it with the others."""
        ...

    async def disk_space(self) -> DiskSpace: ...

    def cut(self, session: "Session", why: str) -> None:
        """Close its connection, and say why in the log."""
        ...

    def relieve(self) -> None:
        """A peer is slow to take its answers: see whether all of them together are too slow."""
        ...


class Session:
    """The state that both protocols share."""

    def __init__(self, connection: FrameConnection, host: Host, nursery: trio.Nursery) -> None:
        self.connection = connection
        self.host = host
        self.store = host.store
        self.limits = host.limits
        self.views = ResponseBuffers(
            connection, host.viewed, bytes_max=self.limits.connection_viewed_bytes_max
        )
        self.add_bytes = 0
        self.answers: list[bytes] = []  # to adds, until the next flush
        self.answered_bytes = 0  # of the adds to which they belong
        self.calls = 0
        self.polls = 0
        self.waits_since = inf  # for the next frame
        self.patience_s = self.limits.first_frame_timeout_s
        self._reading = trio.Semaphore(self.limits.connection_reads_max)
        self._nursery = nursery
        self._room: trio.Event | None = None

    # -- adds

    def accepted(self, size: int) -> None:
        """Adds of `size` bytes are on their way through the store."""
        self.add_bytes += size
        self.host.add_bytes += size

    def answered(self, answer: bytes, size: int) -> None:
        """The store has decided on an add; its answer leaves with the next flush."""
        if not self.answers:
            self.host.mark(self)
        self.answers.append(answer)
        self.answered_bytes += size

    def flush(self) -> None:
        """Send the answers that have gathered."""
        answers, self.answers = self.answers, []
        self.add_bytes -= self.answered_bytes
        self.host.add_bytes -= self.answered_bytes
        self.answered_bytes = 0
        self.connection.send([b"".join(answers)])
        self.wake()

    # -- everything else

    def start(self, call: Callable[[*Ts], Awaitable[None]], *args: *Ts) -> None:
        """Run `call` as a task of this connection."""
        self.calls += 1
        self._nursery.start_soon(self._run, call, *args)

    async def _run(self, call: Callable[[*Ts], Awaitable[None]], *args: *Ts) -> None:
        try:
            await call(*args)
        finally:
            self.calls -= 1
            self.wake()

    def takes_answers(self) -> bool:
        """The peer has taken most of what it asked for."""
        return self.connection.pending_bytes <= self.limits.connection_answer_bytes_max // 4

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """Around reading something for the peer and sending it.

        Few at a time, and only when the peer has taken what was read before: so what one that
        never reads can make the bookie keep is bounded.
        """
        async with self._reading:
            if not self.takes_answers():
                self.host.relieve()
                await self.connection.wait_below(self.limits.connection_answer_bytes_max)
            yield
            if not self.takes_answers():
                self.host.relieve()

    def send(self, buffers: Sequence[Buffer]) -> None:
        self.connection.send(buffers)

    # -- back-pressure

    def may_start(self) -> bool:
        """The peer takes its answers, and there is room for another call."""
        limits = self.limits
        return (
            self.calls - self.polls < limits.connection_calls_max
            and self.connection.pending_bytes <= limits.connection_answer_bytes_max
        )

    def has_room(self) -> bool:
        limits = self.limits
        return self.connection.closed or (
            self.add_bytes <= limits.connection_add_bytes_max
            and self.host.add_bytes <= limits.add_bytes_max
            and self.may_start()
        )

    async def wait_room(self) -> None:
        """Return when the next frames may be received."""
        while not self.has_room():
            if self.connection.pending_bytes > self.limits.connection_answer_bytes_max:
                await self._wait_taken()
            else:
                self._room = trio.Event()
                await self._room.wait()

    async def _wait_taken(self) -> None:
        self.host.relieve()
        with trio.move_on_after(self.limits.stall_timeout_s) as scope:
            await self.connection.wait_below(self.limits.connection_answer_bytes_max // 2)
        if scope.cancelled_caught:
            self.host.cut(self, "does not take its answers")

    def wake(self) -> None:
        """Look again whether there is room."""
        room, self._room = self._room, None
        if room is not None:
            room.set()

    def close(self, reason: str) -> None:
        self.connection.close(reason)
        self.views.close()
        self.wake()
