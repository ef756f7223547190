"""The sessions of a bookie server: the state of each connection, and the memory that they share.

The handlers of the protocols (`v2`, `v3`) pass adds to the store as they parse them, without a
task, an event or a copy: the entry is a view into the arena in which it arrived.  The answers to
adds gather in the session and are sent together, once for each commit of the store.  A request that
has to wait (a read from the disk, a wait for the LAC) is a task of the connection and ends with it.

A session applies back-pressure (`has_room`) if the adds that are not durable have too many bytes,
too many requests are in progress, or the peer does not read its answers.  The server then stops
receiving from the socket.  No request is refused for being early.

`STATUSES` maps the result of the store to a status of the protocol.  UNKNOWN has a code of its own
in v3 only.  Apache's v2 clients drop the connection when they see that code, so v2 answers with an
I/O error, which proves just as little.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import TypeVarTuple

import trio

from daybook.bookie.server.response_buffers import ResponseBuffers, WindowMemory
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.connection import FrameConnection
from daybook.wire.logging import LogLimiter
from daybook.wire.messages.bookie import FRAME_BYTES_MAX, Status
from daybook.wire.outbox import Flusher
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
assert STATUSES.keys() == set(StoreStatus)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of all connections together, and of each connection.

    At a limit on bytes or requests the server stops receiving.  One batch of frames (1 MB) may
    exceed it.
    """

    connections_max: int = 2000
    newcomers_max: int = 200  # connections that have not sent a whole frame yet
    frame_bytes_max: int = FRAME_BYTES_MAX
    arena_bytes_max: int = 256 << 20
    first_frame_timeout_s: float = 30.0
    newcomer_arena_bytes_max: int = 64 << 20  # shared by all newcomers
    frame_stall_s: float = 5.0  # longest wait for a byte within a frame
    frame_bytes_per_s: int = 16 << 10  # minimum within a frame, over the window
    frame_window_s: float = 30.0
    idle_timeout_s: float = 3600.0
    add_bytes_max: int = 128 << 20  # adds that are not durable yet
    connection_add_bytes_max: int = 32 << 20
    answer_bytes_max: int = 128 << 20  # answers that peers have not received yet
    connection_answer_bytes_max: int = 4 << 20
    viewed_bytes_max: int = 128 << 20  # read windows that unsent answers are views of
    connection_viewed_bytes_max: int = 12 << 20  # two windows of the store, and room to align
    connection_calls_max: int = 128  # requests that wait for something
    connection_reads_max: int = 8  # entries on their way from the disk to the peer
    connection_polls_max: int = 2000  # requests that wait for the LAC to advance
    poll_timeout_s_max: float = 60.0
    stall_timeout_s: float = 60.0  # for the peer to receive answers that exceed the limit
    batch_entries_max: int = 5000

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry that fits into any answer of either protocol."""
        return self.frame_bytes_max - ANSWER_OVERHEAD_BYTES


@dataclass(slots=True)
class Received:
    """Frames that arrived together."""

    frames: Iterator[memoryview]  # the frames that are not handled yet
    span: memoryview  # all of the frames, each behind its size
    at: int = 0  # where the next frame begins in the span


class Sessions:
    """All sessions of one server, and the memory that they use together."""

    def __init__(
        self, store: LedgerStore, *, limits: ServerLimits, flusher: Flusher, log: LogLimiter
    ) -> None:
        self.store = store
        self.limits = limits
        self.add_bytes = 0  # adds of all sessions that are not durable yet
        self.window_memory = WindowMemory(limits.viewed_bytes_max)
        self.sessions_cut = 0
        self._flusher = flusher
        self._log = log
        self._sessions: dict[Session, None] = {}  # in the order in which they connected
        self._newcomers: dict[Session, None] = {}  # those that have not sent a whole frame yet
        self._with_answers: list[Session] = []  # answers to adds wait there for the next flush

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def answer_bytes(self) -> int:
        return sum(session.connection.pending_bytes for session in self._sessions)

    # -- connections

    def enter(self, session: "Session", *, newcomer: bool) -> None:
        """Add a new session; cut the oldest newcomer if there are too many of them."""
        if len(self._newcomers) >= self.limits.newcomers_max:
            oldest = next(iter(self._newcomers))
            del self._newcomers[oldest]
            self.cut(oldest, "has sent nothing, and others want to connect")
        self._sessions[session] = None
        if newcomer:
            self._newcomers[session] = None

    def trust(self, session: "Session") -> None:
        """Apply the full limits: the first whole frame shows that the peer speaks the protocol."""
        self._newcomers.pop(session, None)
        session.connection.trust()
        session.timeout_s = self.limits.idle_timeout_s

    def leave(self, session: "Session") -> None:
        """Remove a session whose connection has ended; harmless after `cut`."""
        self._sessions.pop(session, None)
        self._newcomers.pop(session, None)
        session.close("done")

    def cut(self, session: "Session", why: str) -> None:
        """Close the connection of a session, and log the reason."""
        self.log_cut(session, why)
        self._sessions.pop(session, None)
        self._newcomers.pop(session, None)
        session.close(why)

    def log_cut(self, session: "Session", why: str) -> None:
        """Count and log that a connection is closed for what its peer sent or did not receive."""
        self.sessions_cut += 1
        self._log.warning("connection cut", peer=session.connection.peer, why=why)

    def cut_idle(self) -> None:
        """Cut each session that has waited for a frame longer than its timeout."""
        now = trio.current_time()
        for session in list(self._sessions):
            if now - session.idle_since > session.timeout_s:
                self.cut(session, f"nothing received for {session.timeout_s:g} s")

    def relieve(self) -> None:
        """Cut the session with the most unsent answers if all of them together are too many."""
        if self.answer_bytes > self.limits.answer_bytes_max:
            worst = max(self._sessions, key=lambda session: session.connection.pending_bytes)
            self.cut(worst, "does not take its answers, and all of them are too many")

    # -- answers to adds

    def mark(self, session: "Session") -> None:
        """Flush `session` with the others: it has answers to adds."""
        if not self._with_answers:
            self._flusher.mark(self)
        self._with_answers.append(session)

    def flush(self) -> bool:
        """Send the answers that have gathered."""
        if not self._with_answers:
            return True
        # Looked at before the flush, which lowers `add_bytes`: only if the limit held sessions up
        # do they have to look again.
        full = self.add_bytes > self.limits.add_bytes_max
        with_answers, self._with_answers = self._with_answers, []
        for session in with_answers:
            session.flush()
        if full and self.add_bytes <= self.limits.add_bytes_max:
            for session in self._sessions:
                session.wake()
        return True

    async def drain(self) -> None:
        """Return at once: `flush` leaves nothing for the flusher to wait for."""


class Session:
    """The state of one connection that both protocols share."""

    def __init__(
        self, connection: FrameConnection, sessions: Sessions, nursery: trio.Nursery
    ) -> None:
        self.connection = connection
        self.store = sessions.store
        self.limits = sessions.limits
        self.buffers = ResponseBuffers(
            connection,
            sessions.window_memory,
            bytes_max=self.limits.connection_viewed_bytes_max,
        )
        self.polls = 0  # calls that wait for the LAC to advance
        self.unproven = False  # it was let in without credentials
        self.idle_since = inf  # when the session began to wait for the next frame
        self.timeout_s = self.limits.first_frame_timeout_s
        self._sessions = sessions
        self._add_bytes = 0  # adds that are not durable, or whose answers are not flushed
        self._answers: list[bytes] = []  # to adds, until the next flush
        self._answered_bytes = 0  # the bytes of the adds that `_answers` belong to
        self._calls = 0  # requests of this connection that wait for something
        self._reading = trio.Semaphore(self.limits.connection_reads_max)
        self._nursery = nursery
        self._room: trio.Event | None = None

    # -- adds

    def accepted(self, size: int) -> None:
        """Count adds of `size` bytes that are passed to the store."""
        self._add_bytes += size
        self._sessions.add_bytes += size

    def answered(self, answer: bytes, size: int) -> None:
        """Send the answer to adds of `size` bytes with the next flush."""
        if not self._answers:
            self._sessions.mark(self)
        self._answers.append(answer)
        self._answered_bytes += size

    def flush(self) -> None:
        """Send the answers that have gathered as one buffer."""
        answers, self._answers = self._answers, []
        self._add_bytes -= self._answered_bytes
        self._sessions.add_bytes -= self._answered_bytes
        assert self._add_bytes >= 0, "an add was answered that was not accepted"
        self._answered_bytes = 0
        self.connection.send([b"".join(answers)])
        self.wake()

    # -- everything else

    def start(self, call: Callable[[*Ts], Awaitable[None]], *args: *Ts) -> None:
        """Run `call` as a task of this connection."""
        self.begin_call()
        self._nursery.start_soon(self._run, call, *args)

    async def _run(self, call: Callable[[*Ts], Awaitable[None]], *args: *Ts) -> None:
        try:
            await call(*args)
        finally:
            self.end_call()

    def begin_call(self) -> None:
        """Count a request that has to wait; `end_call` follows."""
        self._calls += 1

    def end_call(self) -> None:
        """Note that a request has been answered, or will be by a task of its own."""
        self._calls -= 1
        self.wake()

    def takes_answers(self) -> bool:
        """Return True if the peer has received most of the answers to its requests."""
        return self.connection.pending_bytes <= self.limits.connection_answer_bytes_max // 4

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """Hold this around reading an entry for the peer and sending it.

        Only a few reads run at a time, and only while the peer receives earlier answers.  So the
        memory that a peer which never receives can occupy is bounded.
        """
        async with self._reading:
            if not self.takes_answers():
                self._sessions.relieve()
                await self.connection.wait_below(self.limits.connection_answer_bytes_max)
            yield
            if not self.takes_answers():
                self._sessions.relieve()

    def send(self, buffers: Sequence[Buffer]) -> None:
        self.connection.send(buffers)

    # -- back-pressure

    def may_start(self) -> bool:
        """Return True if the peer receives its answers, and another call may start."""
        limits = self.limits
        return (
            self._calls - self.polls < limits.connection_calls_max
            and self.connection.pending_bytes <= limits.connection_answer_bytes_max
        )

    def has_room(self) -> bool:
        """Return True if the next frames may be received; always once the connection is closed."""
        limits = self.limits
        return self.connection.closed or (
            self._add_bytes <= limits.connection_add_bytes_max
            and self._sessions.add_bytes <= limits.add_bytes_max
            and self.may_start()
        )

    async def wait_room(self) -> None:
        """Return when the next frames may be received."""
        while not self.has_room():
            if self.connection.pending_bytes > self.limits.connection_answer_bytes_max:
                await self._wait_received()
            else:
                # No checkpoint since `has_room`, so no call of `wake` is missed.
                self._room = trio.Event()
                await self._room.wait()

    async def _wait_received(self) -> None:
        """Return when the peer has received half of its answers; cut a peer that is too slow."""
        self._sessions.relieve()
        with trio.move_on_after(self.limits.stall_timeout_s) as scope:
            await self.connection.wait_below(self.limits.connection_answer_bytes_max // 2)
        if scope.cancelled_caught:
            self._sessions.cut(self, "does not take its answers")

    def wake(self) -> None:
        """Let `wait_room` check again."""
        room, self._room = self._room, None
        if room is not None:
            room.set()

    def close(self, reason: str) -> None:
        """Close the connection, release the windows, and end `wait_room`."""
        self.connection.close(reason)
        self.buffers.close()
        self.wake()
