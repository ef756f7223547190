"""Frames over a stream: both protocols count a frame's bytes in four bytes in front of it.

Received frames are views into an arena: nothing is copied, and they stay valid for as long as
somebody holds them.  `receive` returns all whole frames that have arrived, so that work is done
once a batch.  Sending queues buffers and never waits; a `Flusher` sends them once a turn of the
loop.  Who has to slow down watches `pending_bytes` or waits in `wait_below`.

A connection that is idle lends its arena back; one that has begun a frame has `frame_timeout_s` to
finish it.  One task may receive; anybody may send.
"""

from collections.abc import Sequence
from math import inf
from struct import Struct

import trio

from wire.arena import ArenaPool
from wire.errors import ConnectionLostError, OversizeError
from wire.outbox import Flusher
from wire.transport import Buffer, Stream

SIZE_BYTES = 4
_SIZE = Struct(">I")
_IOV_MAX = 1000  # Linux takes 1024 buffers in one call.
_ROOM_BYTES_MIN = 1 << 16  # With less room left, the next arena is worth a copy of the tail.
_TURN_BYTES_MAX = 2 << 20  # Received without a checkpoint; then others get their turn.
_LINGER_S = 1.0
_FRAMES_MAX = 1 << 13  # of one `receive`: a view costs fifty times what an empty frame does


class FrameConnection:
    """One connection of a host, in frames."""

    def __init__(
        self,
        stream: Stream,
        *,
        arenas: ArenaPool,
        flusher: Flusher,
        frame_bytes_max: int,
        frame_timeout_s: float = 30.0,
        name: str = "",
    ) -> None:
        self.peer = stream.peer
        self.name = name
        self.pending_bytes = 0
        self.closed = False
        self.close_reason = ""
        self.received_bytes = 0
        self.sent_bytes = 0
        self._stream = stream
        self._arenas = arenas
        self._flusher = flusher
        self._frame_bytes_max = frame_bytes_max
        self._frame_timeout_s = frame_timeout_s
        self._arena: bytearray | None = None
        self._view = memoryview(b"")
        self._read = self._written = 0  # the bytes of the arena in between are not parsed yet
        self._turn_bytes = 0
        self._owes_since = inf
        self._waits = False
        self._out: list[Buffer] = []
        self._marked = False  # the flusher knows, or `drain` is running
        self._progress: trio.Event | None = None

    # -- receiving

    @property
    def owes_since(self) -> float:
        """Since when we wait for the rest of a frame that the peer has begun; inf if we do not."""
        return self._owes_since if self._waits else inf

    async def receive(self) -> list[memoryview]:
        """Whole frames that are there, at least one; [] when the connection has ended.

        Raises OversizeError for a frame above the limit; the stream is useless after that.
        """
        return (await self.receive_span())[0]

    async def receive_span(self) -> tuple[list[memoryview], memoryview]:
        """The same, and all of their bytes in one piece, each frame behind its size."""
        while not self.closed:
            begin = self._read
            frames, need = self._parse()
            if frames:
                self._owes_since = inf
                return frames, self._view[begin : self._read]
            try:
                if not await self._fill(need):
                    self.close("the peer closed the connection")
            except (ConnectionLostError, trio.ClosedResourceError) as error:
                self.close(str(error) or "the connection was closed")
        return [], memoryview(b"")

    def _parse(self) -> tuple[list[memoryview], int]:
        """The frames that are complete, and the size of the one after them if its size is known."""
        frames: list[memoryview] = []
        arena, view, read, written = self._arena, self._view, self._read, self._written
        need = SIZE_BYTES
        if arena is None:
            return frames, need
        for _ in range(_FRAMES_MAX):
            if written - read < SIZE_BYTES:
                break
            (size,) = _SIZE.unpack_from(arena, read)
            if size > self._frame_bytes_max:
                raise OversizeError(f"a frame of {size} bytes, at most {self._frame_bytes_max} fit")
            end = read + SIZE_BYTES + size
            if end > written:
                need = SIZE_BYTES + size
                break
            frames.append(view[read + SIZE_BYTES : end])
            read = end
        self._read = read
        return frames, need

    async def _fill(self, need: int) -> bool:
        """Receive something; False at the end of the stream.  `need` bytes are to fit in all."""
        if self._turn_bytes >= _TURN_BYTES_MAX:
            self._turn_bytes = 0
            await trio.lowlevel.checkpoint()
        while True:
            await self._make_room(need)
            count = self._stream.try_recv_into(self._view[self._written :])
            if count is not None:
                self._written += count
                self._turn_bytes += count
                self.received_bytes += count
                return count > 0
            self._turn_bytes = 0
            await self._wait_readable()

    async def _wait_readable(self) -> None:
        self._flusher.flush()
        begun = self._written > self._read
        if not begun:
            self._arenas.lend(self, self._give_back)
        elif self._owes_since == inf:
            self._owes_since = trio.current_time()
        self._waits = True
        try:
            if begun:
                await self._wait_for_the_rest()
            else:
                await self._stream.wait_readable()
        finally:
            self._waits = False
            self._arenas.keep(self)

    async def _wait_for_the_rest(self) -> None:
        """Whatever trickles in, the whole frame has to come in that time."""
        with trio.CancelScope(deadline=self._owes_since + self._frame_timeout_s) as scope:
            await self._stream.wait_readable()
        if scope.cancelled_caught:
            raise ConnectionLostError("a frame was begun and not finished in time")

    async def _make_room(self, need: int) -> None:
        """Have room for the frame that has begun, or for a good many small ones."""
        arena = self._arena
        if arena is not None:
            room = len(arena) - self._written
            if room >= _ROOM_BYTES_MIN and need <= len(arena) - self._read:
                return
        fresh = await self._arenas.acquire(need + _ROOM_BYTES_MIN)
        if self.closed:  # meanwhile; nobody would give it back
            self._arenas.release(fresh)
            raise ConnectionLostError(self.close_reason)
        left = self._written - self._read
        view = memoryview(fresh)
        view[:left] = self._view[self._read : self._written]
        self._give_back()
        self._arena, self._view = fresh, view
        self._read, self._written = 0, left

    def _give_back(self) -> None:
        """Return the arena to the pool; what was received and not parsed has been copied."""
        arena, self._arena = self._arena, None
        self._view = memoryview(b"")
        self._read = self._written = 0
        if arena is not None:
            self._arenas.release(arena)

    # -- sending

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue whole frames, their sizes included.  Does nothing once the connection is closed."""
        if self.closed:
            return
        self._out += buffers
        for buffer in buffers:
            self.pending_bytes += len(buffer)
        if not self._marked:
            self._marked = True
            self._flusher.mark(self)

    def flush(self) -> bool:
        """For the flusher: send what fits now; False if the rest has to wait."""
        try:
            done = self._send_some()
        except (ConnectionLostError, trio.ClosedResourceError) as error:
            self.close(str(error) or "the connection was closed")
            done = True
        if done:
            self._marked = False
        if self._progress is not None:
            self._progress.set()
            self._progress = None
        return done

    async def drain(self) -> None:
        """For the flusher: send the rest as the peer takes it."""
        while not self.closed:
            try:
                await self._stream.wait_writable()
            except (ConnectionLostError, trio.ClosedResourceError) as error:
                self.close(str(error) or "the connection was closed")
                return
            if self.flush():
                return

    def _send_some(self) -> bool:
        out = self._out
        while out:
            chunk = out if len(out) <= _IOV_MAX else out[:_IOV_MAX]
            sent = self._stream.try_send(chunk)
            self.pending_bytes -= sent
            self.sent_bytes += sent
            whole = 0
            for buffer in chunk:
                if sent < len(buffer):
                    break
                sent -= len(buffer)
                whole += 1
            if whole == len(chunk):
                del out[:whole]
                continue
            if sent:
                out[whole] = memoryview(out[whole])[sent:]
            del out[:whole]
            return False
        return True

    async def wait_below(self, pending_bytes: int) -> None:
        """Return when at most that many bytes wait to be sent, or the connection is closed."""
        while self.pending_bytes > pending_bytes and not self.closed:
            if self._progress is None:
                self._progress = trio.Event()
            await self._progress.wait()

    # -- closing

    def close(self, reason: str = "closed") -> None:
        """Close at once; what is queued is lost.  The first reason stays."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self._out.clear()
        self.pending_bytes = 0
        self._stream.close()
        self._arenas.keep(self)
        self._give_back()
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    async def aclose(self, reason: str = "closed") -> None:
        """Send what is queued, for a second at most, then close."""
        with trio.move_on_after(_LINGER_S) as scope:
            scope.shield = True
            await self.wait_below(0)
        self.close(reason)
