"""The port of a bookie: it accepts connections, and limits how much of the bookie each may use.

    accept -> Session -> frames -> V2Handler or V3Handler -> store -> answers
                  '-> Reception: TLS, and who the peer is, if the settings ask for either

The first frame tells which protocol a peer speaks.  One task receives for each connection and
handles each batch of frames without a checkpoint.  After a commit of the store the answers of each
connection are sent as one buffer.

`ServerLimits` bounds what a peer can do to others:

- The number of connections is limited, and so is the number of newcomers, which have not sent a
  whole frame yet, or have not got past the reception.  If a newcomer too many connects, the oldest
  of them is cut.
- An idle connection owns no memory that others need (`wire.connection`).  A connection that is idle
  for too long is cut, and so is a peer that does not receive its answers.
- A frame that has begun must make progress: a byte in 5 s, and 16 KiB/s over 30 s.  While memory to
  receive into is short, the frame with the least progress is cut (`wire.arena`).
- All newcomers share an arena pool of their own, so they take no memory from others.
- The server does not receive from a peer that has too much in progress.  If the unsent answers of
  all peers are too many, the peer with the most of them is cut.
- Answers hold few windows of the store, and are copies beyond that (`response_buffers`).
- A malformed frame ends its connection, after the answers that are queued have been sent.

No other peer notices.  Any other exception is a bug of the bookie and ends it: the entries that it
acknowledged are on the disk, and a restart continues from there.
"""

from collections.abc import Container
from dataclasses import asdict, dataclass
from itertools import chain
from math import inf
from typing import TypeAlias

import trio

from daybook.bookie.server.reception import Reception, RefusedPeerError
from daybook.bookie.server.session import Received, ServerLimits, Session, Sessions
from daybook.bookie.server.v2 import V2Handler
from daybook.bookie.server.v3 import ReadDiskSpace, V3Handler
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

_LOG_LINES_MAX = 20  # in a minute, about connections that strangers can open
_IDLE_CHECKS = 5  # in the shortest timeout of an idle connection
Handler: TypeAlias = V2Handler | V3Handler


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    connections_made: int
    connections_refused: int
    connections_cut: int  # for what they sent, or did not receive
    add_bytes: int  # adds that are not durable yet
    answer_bytes: int  # answers that peers have not received yet
    viewed_bytes: int  # windows of the store that these answers hold
    arena_bytes: int
    unproven: int = 0  # connections without credentials, in the mode permit
    tls_connections_made: int = 0
    handshakes_failed: int = 0
    peers_authenticated: int = 0
    peers_refused: int = 0  # refused requests, and connections
    peers_without_credentials: int = 0  # let in, in the mode permit


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
        disk_space: ReadDiskSpace,
        reserved: Container[str] = (),
        reception: Reception | None = None,
    ) -> None:
        """`reserved` has the peers that are served however many others there are.

        The bookie connects from these addresses to its own port, to find out whether it serves.
        All others have to get past the reception, if there is one.
        """
        self._limits = limits
        self._clock = clock
        self._flusher = flusher
        self._arenas = ArenaPool(total_bytes_max=limits.arena_bytes_max)
        self._newcomer_arenas = ArenaPool(total_bytes_max=limits.newcomer_arena_bytes_max)
        self._pace = FramePace(
            limits.frame_stall_s, limits.frame_bytes_per_s, limits.frame_window_s
        )
        self._log = LogLimiter(log, lines_max=_LOG_LINES_MAX)
        self._disk_space = disk_space
        self._reserved = reserved
        self._reception = reception
        self._sessions = Sessions(store, limits=limits, flusher=flusher, log=self._log)
        self._crowd = Crowd()
        self._connections_made = 0
        self._connections_refused = 0
        store.answer_within(flusher.together)

    def statistics(self) -> ServerStatistics:
        sessions = self._sessions
        reception = self._reception
        counts = {} if reception is None else asdict(reception.counts)
        return ServerStatistics(
            connections=len(sessions),
            connections_made=self._connections_made,
            connections_refused=self._connections_refused,
            connections_cut=sessions.sessions_cut,
            add_bytes=sessions.add_bytes,
            answer_bytes=sessions.answer_bytes,
            viewed_bytes=sessions.window_memory.total,
            arena_bytes=self._arenas.total_bytes + self._newcomer_arenas.total_bytes,
            unproven=self.unproven(),
            **counts,
        )

    def unproven(self) -> int:
        """Return the number of connections without credentials, in the mode permit."""
        return 0 if self._reception is None else self._reception.unproven

    async def serve(self, listener: Listener) -> None:
        """Serve until cancelled; then close the port and every connection."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._arenas.run)
                nursery.start_soon(self._newcomer_arenas.run)
                nursery.start_soon(self._cut_idle)
                while True:
                    self._admit(await listener.accept(), nursery)
                    # A flood of connections must not keep other tasks from running.
                    await trio.lowlevel.checkpoint()
        finally:
            listener.close()

    def _admit(self, stream: Stream, nursery: trio.Nursery) -> None:
        if len(self._sessions) < self._limits.connections_max or stream.peer in self._reserved:
            nursery.start_soon(self._serve, stream)
            return
        self._connections_refused += 1
        self._log.warning("connection refused", peer=stream.peer, why="there are too many")
        stream.close()

    async def _cut_idle(self) -> None:
        """Cut idle connections; the check is periodic, because a timer for each costs more."""
        limits = self._limits
        interval_s = min(limits.first_frame_timeout_s, limits.idle_timeout_s) / _IDLE_CHECKS
        while True:
            await trio.sleep(interval_s)
            self._sessions.cut_idle()

    # -- one connection

    async def _serve(self, stream: Stream) -> None:
        is_probe = stream.peer in self._reserved
        reception = None if is_probe else self._reception
        connection = FrameConnection(
            stream,
            arenas=self._arenas,
            flusher=self._flusher,
            frame_bytes_max=self._limits.frame_bytes_max,
            newcomer_arenas=self._newcomer_arenas,
            newcomer_frame_bytes_max=None if reception is None else reception.frame_bytes_max,
            pace=self._pace,
            name="bookie",
        )
        async with trio.open_nursery() as nursery:
            session = Session(connection, self._sessions, nursery)
            self._connections_made += 1
            self._sessions.enter(session, newcomer=not is_probe)
            try:
                handler = None
                if reception is not None:
                    handler = await self._let_in(session, reception)
                await self._receive(session, handler)
            except RefusedPeerError as error:
                await connection.aclose(str(error))
            except WireError as error:
                self._sessions.log_cut(session, str(error))
                await connection.aclose(str(error))
            finally:
                if reception is not None:
                    reception.left(session)
                self._sessions.leave(session)
                self._crowd.left(len(self._sessions))
                nursery.cancel_scope.cancel()

    async def _let_in(self, session: Session, reception: Reception) -> Handler | None:
        """Let a peer in, and handle the frames that have come by then.

        Return the handler of its requests; None if none has come, or the connection has ended.
        """
        received = await reception.let_in(session)
        if received is None:
            return None
        self._sessions.trust(session)
        first = next(received.frames, None)
        if first is None:
            return None
        handler = self._handler_for(session, first)
        received.frames = chain((first,), received.frames)
        while not handler.handle(received):
            self._sessions.flush()
            await session.wait_room()
        self._sessions.flush()
        return handler

    def _handler_for(self, session: Session, first: memoryview) -> Handler:
        if is_v3(first):
            return V3Handler(session, self._clock, self._disk_space)
        return V2Handler(session)

    async def _receive(self, session: Session, handler: Handler | None) -> None:
        """Receive and handle frames until the connection ends."""
        connection, flush = session.connection, self._sessions.flush
        while True:
            session.idle_since = trio.current_time()
            frames, span = await connection.receive_span()
            session.idle_since = inf
            if not frames:
                if connection.cut_reason:
                    self._sessions.log_cut(session, connection.cut_reason)
                return
            if handler is None:
                self._sessions.trust(session)
                handler = self._handler_for(session, frames[0])
            received = Received(iter(frames), span)
            del frames, span  # A view that is kept longer than needed keeps its arena.
            done = False
            while not done:
                # No checkpoint between the check and the handling: all connections together
                # exceed a limit by one batch at most.
                if not session.has_room():
                    await session.wait_room()
                done = handler.handle(received)
                flush()
            del received
