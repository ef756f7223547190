"""The port of a bookie: who may connect, for how long, and how much of the bookie each may use.

    accept -> Session -> frames -> V2Handler or V3Handler -> store -> answers

One task receives for each connection, and handles each batch of frames in one go.  After a commit
of the store the answers of each connection leave as one buffer.

What a peer can do to others is bounded by `ServerLimits`:

- connections in all, and those that have not sent a whole frame yet: one more of these, and the
  oldest of them goes;
- an idle connection owns no memory that others need (`wire.connection`); an idle connection and a
  peer that does not take its answers have their time, then the connection is cut;
- half a frame has to get on: a byte in 5 s, and 16 KiB/s over 30 s; while memory to receive into is
  short, the one that gets on least is cut (`wire.arena`);
- all connections that have not sent a whole frame yet share an arena pool of their own, so they
  keep no memory from others;
- who has too much under way is not read from; who makes all answers together too many by not
  taking its own is cut;
- answers keep few windows of the store, and are copies beyond that (`views`);
- a frame that makes no sense: what had been answered is sent, and the connection is cut.

Nobody else notices.  An exception other than that is a mistake of ours and ends the bookie: what it
has acknowledged is on the disk, and it starts again from there.
"""

from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import trio

from daybook.bookie.server.response_buffers import WindowMemory
from daybook.bookie.server.session import DiskSpace, Received, ServerLimits, Session
from daybook.bookie.server.v2 import V2Handler
from daybook.bookie.server.v3 import V3Handler
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.connection import FrameConnection, FramePace
from daybook.wire.errors import WireError
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.messages.bookie_v3 import is_v3
from daybook.wire.outbox import Flusher
from daybook.wire.process import Crowd
from daybook.wire.transport import Listener, Stream

Protocol: TypeAlias = V2Handler | V3Handler

_LOG_LINES_MAX = 20  # in a minute, about connections that strangers can open
_IDLE_CHECKS = 5  # in the shortest time that may pass in silence


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    connections_made: int
    connections_refused: int
    connections_cut: int  # for what they sent, or did not take
    add_bytes: int  # of adds that are not durable yet
    answer_bytes: int  # that peers have not taken yet
    viewed_bytes: int  # of the windows of the store that these keep
    arena_bytes: int


class BookieServer:
    """Serves one store to any number of connections."""

    def __init__(
        self,
        store: LedgerStore,
        *,
        limits: ServerLimits,
        clock: WallClock,
        flusher: Flusher,
        log: Log,
        disk_space: Callable[[], Awaitable[DiskSpace]],
        reserved: Container[str] = (),
    ) -> None:
        """Peers in `reserved` are served however many others there are: by them the bookie asks
        itself whether it serves."""
        self.store = store
        self.limits = limits
        self.clock = clock
        self.add_bytes = 0
        self.viewed = WindowMemory(limits.viewed_bytes_max)
        self._flusher = flusher
        self._arenas = ArenaPool(total_bytes_max=limits.arena_bytes_max)
        self._newcomer_arenas = ArenaPool(total_bytes_max=limits.newcomer_arena_bytes_max)
        self._pace = FramePace(
            limits.frame_stall_s, limits.frame_bytes_per_s, limits.frame_window_s
        )
        self._log = log
        self._gate = LogLimiter(log, lines_max=_LOG_LINES_MAX)
        self._disk_space = disk_space
        self._reserved = reserved
        self._sessions: dict[Session, None] = {}  # in the order in which they came
        self._crowd = Crowd()
        self._newcomers: dict[Session, None] = {}
        self._dirty: list[Session] = []
        self._connections_made = 0
        self._connections_refused = 0
        self._connections_cut = 0
        store.add_commit_listener(self._committed)

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            connections=len(self._sessions),
            connections_made=self._connections_made,
            connections_refused=self._connections_refused,
            connections_cut=self._connections_cut,
            add_bytes=self.add_bytes,
            answer_bytes=sum(s.connection.pending_bytes for s in self._sessions),
            viewed_bytes=self.viewed.total,
            arena_bytes=self._arenas.total_bytes + self._newcomer_arenas.total_bytes,
        )

    async def serve(self, listener: Listener) -> None:
        """Serve until cancelled; then the port is closed, and every connection."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cut_idle)
                while True:
                    self._admit(await listener.accept(), nursery)
                    await trio.lowlevel.checkpoint()  # A flood must not keep others from running.
        finally:
            listener.close()

    def _admit(self, stream: Stream, nursery: trio.Nursery) -> None:
        if len(self._sessions) < self.limits.connections_max or stream.peer in self._reserved:
            nursery.start_soon(self._serve, stream)
            return
        self._connections_refused += 1
        self._gate.warning("connection refused", peer=stream.peer, why="there are too many")
        stream.close()

    async def _cut_idle(self) -> None:
        """Who sends nothing for too long has gone, or wants nothing; checked now and then."""
        limits = self.limits
        interval_s = min(limits.first_frame_timeout_s, limits.idle_timeout_s) / _IDLE_CHECKS
        while True:
            await trio.sleep(interval_s)
            now = trio.current_time()
            for session in list(self._sessions):
                if now - session.waits_since > session.patience_s:
                    self.cut(session, f"nothing received for {session.patience_s:g} s")

    # -- one connection

    async def _serve(self, stream: Stream) -> None:
        connection = FrameConnection(
            stream,
            arenas=self._arenas,
            flusher=self._flusher,
            frame_bytes_max=self.limits.frame_bytes_max,
            newcomer_arenas=self._newcomer_arenas,
            pace=self._pace,
            name="bookie",
        )
        async with trio.open_nursery() as nursery:
            session = Session(connection, self, nursery)
            self._enter(session)
            try:
                await self._converse(session)
            except WireError as error:
                self._complain(session, str(error))
                await connection.aclose(str(error))
            finally:
                self._leave(session)
                nursery.cancel_scope.cancel()

    def _enter(self, session: Session) -> None:
        self._connections_made += 1
        if len(self._newcomers) >= self.limits.newcomers_max:
            oldest = next(iter(self._newcomers))
            del self._newcomers[oldest]
            self.cut(oldest, "has sent nothing, and others want to connect")
        self._sessions[session] = None
        if session.connection.peer not in self._reserved:
            self._newcomers[session] = None

    def _leave(self, session: Session) -> None:
        self._sessions.pop(session, None)
        self._newcomers.pop(session, None)
        session.close("done")
        self._crowd.left(len(self._sessions))

    def _complain(self, session: Session, why: str) -> None:
        self._connections_cut += 1
        self._gate.warning("connection cut", peer=session.connection.peer, why=why)

    async def _converse(self, session: Session) -> None:
        connection = session.connection
        protocol: Protocol | None = None
        while True:
            session.waits_since = trio.current_time()
            frames, span = await connection.receive_span()
            session.waits_since = inf
            if not frames:
                if connection.cut_reason:
                    self._complain(session, connection.cut_reason)
                return
            if protocol is None:
                self._newcomers.pop(session, None)
                connection.trust()
                protocol = V3Handler(session) if is_v3(frames[0]) else V2Handler(session)
                session.patience_s = self.limits.idle_timeout_s
            # Looking and handling are one step, so that all connections together pass a bound
            # by one batch at most.
            received = Received(iter(frames), span)
            del frames, span  # A view that is kept longer than needed keeps its arena.
            done = False
            while not done:
                if not session.has_room():
                    await session.wait_room()
                done = protocol.handle(received)
                self.flush()
            del received

    # -- what sessions need

    def mark(self, session: Session) -> None:
        if not self._dirty:
            self._flusher.mark(self)  # for the add that is decided by itself, between two commits
        self._dirty.append(session)

    def flush(self) -> bool:
        """Send the answers that have gathered; after each commit, and for what needed none."""
        if not self._dirty:
            return True
        full = self.add_bytes > self.limits.add_bytes_max
        dirty, self._dirty = self._dirty, []
        for session in dirty:
            session.flush()
        if full and self.add_bytes <= self.limits.add_bytes_max:
            for session in self._sessions:
                session.wake()
        return True

    def _committed(self) -> None:
        self.flush()
        self._flusher.flush()

    async def drain(self) -> None:
        """For the flusher; there is never anything left to do."""

    def cut(self, session: Session, why: str) -> None:
        self._complain(session, why)
        self._sessions.pop(session, None)
        self._newcomers.pop(session, None)
        session.close(why)

    def relieve(self) -> None:
        total = sum(session.connection.pending_bytes for session in self._sessions)
        if total > self.limits.answer_bytes_max:
            worst = max(self._sessions, key=lambda session: session.connection.pending_bytes)
            self.cut(worst, "does not take its answers, and all of them are too many")

    async def disk_space(self) -> DiskSpace:
        return await self._disk_space()
