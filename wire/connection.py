"""Frames over a stream: in both protocols four bytes in front of a frame hold its size.

Received frames are views: nothing is copied.  `receive` returns all complete frames that have
arrived, so that callers work batch by batch.  The next `receive` ends these frames: it empties the
list and releases the last frame, so that no variable of a receive loop keeps memory while the
connection is idle.  A slice of a frame stays valid for as long as it is referenced.

Memory to receive into: a connection that has little to receive owns none.  It receives into memory
that all connections share, and keeps a copy of the received bytes in their exact size.  A
connection that has much to receive takes an arena, and lends it back while it is idle.  A large
frame takes an arena only when 16 KiB of it have come, so the four bytes that announce it pin no
memory.  Small frames and the end of the stream never need an arena.

A read that has not filled its memory, and ended with a whole frame, has most likely taken all that
was there.  The connection then waits without asking the socket once more; `wait_readable` returns
at once if bytes, the end or an error have come meanwhile, so nothing is missed.

A peer that has begun a frame must send the rest at the rate of `FramePace`.  Only time in which the
connection waits for the peer counts; a peer from which nobody reads is not late.

Sending queues buffers and never waits; a `Flusher` sends them once per turn of the loop.  A sender
that has to slow down watches `pending_bytes` or waits in `wait_below`.  Only one task may receive;
any task may send.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from struct import Struct

import trio

from daybook.wire.arena import LITTLE_BYTES, Arena, ArenaPool, HalfFrame, release_view
from daybook.wire.errors import ConnectionLostError, OversizeError, SpeaksTlsError
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Buffer, Stream

SIZE_BYTES = 4
_SIZE = Struct(">I")
_IOV_MAX = 1000  # Linux takes 1024 buffers in one call.
_ROOM_BYTES_MIN = 1 << 16  # With less room left, the next arena is worth a copy of the tail.
_TURN_BYTES_MAX = 2 << 20  # After so many bytes without a checkpoint other tasks get their turn.
_LINGER_S = 1.0
_FRAMES_MAX = 1 << 10  # in one `receive`: a view costs fifty times as much as an empty frame
_BEGUN_BYTES_MIN = 1 << 14  # So much of a large frame has come before it takes an arena.
_LOOKS = 5
_STRANGER_LOOKS = 2  # Each look of each of many strangers costs processor.
_WAKE_BYTES_MAX = 1 << 14  # The kernel has room for so much on any socket.
_NOTHING = memoryview(b"")
# How the first record of a client that speaks TLS begins, or that of a server that refuses one.
_TLS_RECORDS = tuple(kind << 16 | 0x0300 | version for kind in (0x15, 0x16) for version in range(4))


@dataclass(frozen=True, slots=True)
class FramePace:
    """The rate at which a begun frame must come in.  Only time spent waiting for it counts."""

    stall_s: float = 30.0  # at most, without a single byte
    bytes_per_s: int = 16 << 10  # at least, over `window_s`
    window_s: float = 30.0


CLIENT_PACE = FramePace()
"""The pace that clients expect of servers, which may stand still for a while."""


class PendingTotal:
    """The number of bytes that wait to be sent on several connections together."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class FrameConnection:
    """One connection of a host, in frames."""

    def __init__(
        self,
        stream: Stream,
        *,
        arenas: ArenaPool,
        flusher: Flusher,
        frame_bytes_max: int,
        pace: FramePace = CLIENT_PACE,
        newcomer_frame_bytes_max: int | None = None,
        newcomer_arenas: ArenaPool | None = None,
        pending_total: PendingTotal | None = None,
        name: str = "",
    ) -> None:
        """The `newcomer_` limits, where they are given, hold until `trust` is called."""
        self._pending_total = pending_total or PendingTotal()
        self.peer = stream.peer
        self.encrypted = stream.encrypted
        self.certificate = stream.certificate
        self.name = name
        self.pending_bytes = 0
        self.closed = False
        self.close_reason = ""
        self.cut_reason = ""  # why this side has cut the connection, if frames were the reason
        self.received_bytes = 0
        self.sent_bytes = 0
        self._stream = stream
        self._flusher = flusher
        self._trusted_limits = frame_bytes_max, arenas
        self._trusted = newcomer_frame_bytes_max is None and newcomer_arenas is None
        self._frame_bytes_max = newcomer_frame_bytes_max or frame_bytes_max
        self._arenas = newcomer_arenas or arenas
        self._pace = pace
        self._arena: Arena | None = None
        self._home = self._arenas  # where the arena came from
        self._view = _NOTHING  # The arena; without one, the received bytes not parsed yet.
        self._read: int = 0  # The bytes of the view between these two are not parsed yet.
        self._written: int = 0
        self._much = False  # The shared memory was filled, so an arena is worth having.
        self._drained = False  # The last read has not filled its memory.
        self._turn_bytes = 0
        self._begun = False  # A frame has come in part, and the rest was waited for.
        self._half = HalfFrame(self._cut)
        self._waited_s = 0.0  # for the rest of the frame, in this window
        self._window_bytes = 0
        self._handed: list[memoryview] = []  # the result of the last `receive`
        self._begin = 0  # where their sizes and frames begin in the view
        self._span = _NOTHING
        self._out: list[Buffer] = []
        self._marked = False  # The flusher knows this connection, or `drain` is running.
        self._progress: trio.Event | None = None

    # -- receiving

    def trust(self) -> None:
        """Apply the full limits from now on: the peer has shown that it speaks the protocol."""
        self._frame_bytes_max, self._arenas = self._trusted_limits
        self._trusted = True

    def allow_large_frames(self) -> None:
        """Apply the full limit on frames from now on; the memory stays that of newcomers."""
        self._frame_bytes_max = self._trusted_limits[0]

    async def upgrade(self, upgrade: Callable[[Stream, bytes], Awaitable[Stream]]) -> None:
        """Go on over the stream that `upgrade` makes of the present one: TLS on the same socket.

        `upgrade` gets the stream, and the bytes that have come and belong to no frame yet.  It runs
        when everything queued has been sent.  Nobody else may send meanwhile.  Raise what `upgrade`
        raises, or ConnectionLostError if the connection is closed before.
        """
        self._flusher.flush()
        await self.wait_below(0)
        self._end_handed()
        rest = bytes(self._view[self._read : self._written])
        self._give_back()
        self._begun = self._much = self._drained = False
        self._check_not_closed()
        try:
            stream = await upgrade(self._stream, rest)
        except trio.ClosedResourceError:
            raise ConnectionLostError(self.close_reason or "the connection was closed") from None
        assert not self._out, "nothing may be sent during an upgrade"
        if self.closed:
            stream.close()
        self._check_not_closed()
        self._stream = stream
        self.encrypted, self.certificate = stream.encrypted, stream.certificate

    def _check_not_closed(self) -> None:
        if self.closed:
            raise ConnectionLostError(self.close_reason)

    async def receive(self) -> list[memoryview]:
        """Return the complete frames, at least one; [] when the connection has ended.

        The frames are valid until the next `receive`, slices of them while they are referenced.
        Raise OversizeError for a frame above the limit; the stream is useless after that.
        """
        self._end_handed()
        while not self.closed and (need := self._hand_out()):
            await self._fill(need)
        return self._handed

    async def receive_span(self) -> tuple[list[memoryview], memoryview]:
        """Return the frames of `receive`, and all their bytes in one piece with the sizes."""
        self._end_handed()
        while not self.closed and (need := self._hand_out()):
            await self._fill(need)
        if self._handed:
            self._span = self._view[self._begin : self._read]
        return self._handed, self._span

    def _hand_out(self) -> int:
        """Note the complete frames and return 0; without any, return the size of the next one."""
        if self._read == self._written:
            return SIZE_BYTES
        self._begin = self._read
        frames, need = self._parse()
        if not frames:
            return need
        self._begun, self._handed = False, frames
        return 0

    def _end_handed(self) -> None:
        """Release the last frame, which a loop over the frames still has in a variable."""
        if self._handed:
            release_view(self._handed[-1])
            self._handed.clear()
            if self._span is not _NOTHING:
                release_view(self._span)
        self._span = _NOTHING

    def _parse(self) -> tuple[list[memoryview], int]:
        """Return the complete frames, and the size of the next one (or SIZE_BYTES if unknown)."""
        frames: list[memoryview] = []
        view, read, written = self._view, self._read, self._written
        need = SIZE_BYTES
        for _ in range(_FRAMES_MAX):
            if written - read < SIZE_BYTES:
                break
            (size,) = _SIZE.unpack_from(view, read)
            if size > self._frame_bytes_max:
                if frames:  # Handling the frames before it may raise the limit.
                    break
                if size >> 8 in _TLS_RECORDS and not self.encrypted:
                    raise SpeaksTlsError(
                        "the peer speaks TLS to a port without it: connect with pulsar:// or"
                        " http://, or to a port with TLS"
                    )
                raise OversizeError(
                    f"the peer sends a frame of {size} bytes, and at most {self._frame_bytes_max}"
                    " are allowed"
                )
            end = read + SIZE_BYTES + size
            if end > written:
                need = SIZE_BYTES + size
                break
            frames.append(view[read + SIZE_BYTES : end])
            read = end
        self._read = read
        return frames, need

    async def _fill(self, need: int) -> None:
        """Receive bytes, with room for `need` in all; close the connection if it has ended."""
        try:
            if self._turn_bytes >= _TURN_BYTES_MAX:
                self._turn_bytes = 0
                await trio.lowlevel.checkpoint()
            late = False
            while True:
                # Within a frame the rest is likely to be here already.
                expected = not self._drained or self._written > self._read
                self._drained = False
                if expected:
                    await self._make_room(need)
                    count = self._receive_some()
                    if count is not None:
                        break
                if late:
                    raise ConnectionLostError(
                        self._overdue("the peer began a frame and did not finish it")
                    )
                self._turn_bytes = 0
                late = not await self._wait_readable(need)
        except (ConnectionLostError, trio.ClosedResourceError) as error:
            self.close(str(error) or "the connection was closed")
        except MemoryError:
            self._cut("this process has no memory to receive into")
        else:
            self._turn_bytes += count
            self.received_bytes += count
            self._half.received_bytes += count
            self._window_bytes += count
            if not count:
                within = " in the middle of a frame" if self._written > self._read else ""
                self.close(f"the peer closed the connection{within}")

    def _receive_some(self) -> int | None:
        """Receive into the arena or the shared memory, and note if that was filled."""
        if self._arena is not None:
            room = self._view[self._written :]
            count = self._stream.try_recv_into(room)
            self._written += count or 0
        else:
            room = self._arenas.scratch
            count = self._receive_little(room)
        self._drained = count is not None and count < len(room)
        return count

    def _receive_little(self, scratch: memoryview) -> int | None:
        """Receive into the shared memory, and keep a copy of the bytes if any came.

        The copy is writable, as arenas are: a bookie builds its records in the received memory.
        """
        count = self._stream.try_recv_into(scratch)
        if count:
            left = self._view[self._read : self._written]
            self._view = memoryview(bytearray().join((left, scratch[:count])))
            self._read, self._written = 0, len(self._view)
            self._much = count == len(scratch)
        return count

    async def _wait_readable(self, need: int) -> bool:
        """Wait for the peer; return False if it stalls for too long inside a frame."""
        # The peer may be waiting for what is queued, so that leaves first.
        self._flusher.flush()
        if self._written > self._read:
            return await self._wait_for_the_rest(need)
        if self._arena is None:
            self._view, self._read, self._written = _NOTHING, 0, 0
            await self._stream.wait_readable()
            return True
        self._home.lend(self, self._give_back)
        try:
            await self._stream.wait_readable()
        finally:
            self._home.keep(self)
        return True

    async def _wait_for_the_rest(self, need: int) -> bool:
        if not self._begun:
            self._begun = True
            self._half.begin()
            self._waited_s, self._window_bytes = 0.0, 0
        self._check_pace()
        home = self._home
        if self._arena is not None:
            if self._written - self._read <= LITTLE_BYTES:
                home.lend(self, self._do_without)
            else:
                home.await_rest(self._half)
        # A stranger that sends byte by byte must not wake this process for each of them.
        left = need - (self._written - self._read)
        try:
            return await self._wait_stall(1 if self._trusted else min(left, _WAKE_BYTES_MAX))
        finally:
            home.keep(self)
            home.rest_came(self._half)

    async def _wait_stall(self, bytes_min: int) -> bool:
        """Wait in several looks, so that a pause of this process counts as one look at most.

        Bytes below `bytes_min` wake nobody, so the wait also ends with the window of the pace: then
        they are received and counted.
        """
        looks, window_s = (
            (_LOOKS, inf) if bytes_min == 1 else (_STRANGER_LOOKS, self._pace.window_s)
        )
        look_s = min(self._pace.stall_s / looks, window_s)
        for _ in range(looks):
            began = trio.current_time()
            with trio.move_on_at(began + look_s) as scope:
                await self._stream.wait_readable(bytes_min)
            self._waited_s += min(trio.current_time() - began, look_s)
            if not scope.cancelled_caught or self._waited_s >= window_s:
                return True
        return False

    def _check_pace(self) -> None:
        """Raise ConnectionLostError for a peer that sends, but below the pace of the window."""
        pace = self._pace
        if self._waited_s < pace.window_s:
            return
        if self._window_bytes < pace.bytes_per_s * self._waited_s:
            raise ConnectionLostError(self._overdue("the peer sends a frame too slowly"))
        self._waited_s, self._window_bytes = 0.0, 0

    def _overdue(self, what: str) -> str:
        pace = self._pace
        self.cut_reason = (
            f"{what}: it has to send a byte every {pace.stall_s:g} s, and"
            f" {pace.bytes_per_s} bytes/s on average over {pace.window_s:g} s"
        )
        return self.cut_reason

    def _cut(self, reason: str) -> None:
        if not self.closed:
            self.cut_reason = reason
            self.close(reason)

    # -- memory to receive into

    async def _make_room(self, need: int) -> None:
        """Make room for the frame that has begun, or for many small ones."""
        left = self._written - self._read
        little = need <= LITTLE_BYTES
        if self._arena is not None:
            if len(self._view) - self._written >= _ROOM_BYTES_MIN and (
                need <= len(self._view) - self._read
                or self._arenas.is_half_full(need)  # then fill this arena before taking more
            ):
                return
        elif little:
            if not (self._much and self._trusted):
                return
        elif left < _BEGUN_BYTES_MIN:
            return
        if little:
            # A small frame never waits for an arena: without one it uses the shared memory.
            self._move(self._arenas.try_acquire(need + _ROOM_BYTES_MIN) if self._trusted else None)
            return
        size = need + _ROOM_BYTES_MIN
        if left < self._arenas.arena_bytes // 2 and self._arenas.is_half_full(size):
            size = min(size, self._arenas.arena_bytes)  # More memory needs more received bytes.
        fresh = await self._arenas.acquire(size, lambda: self.closed)
        if self.closed:  # It was closed meanwhile, so nobody else would give the arena back.
            if fresh is not None:
                self._arenas.release(fresh)
            raise ConnectionLostError(self.close_reason)
        self._move(fresh)

    def _move(self, fresh: Arena | None) -> None:
        """Continue in another arena, or without one, with the bytes that are not parsed yet."""
        left = self._view[self._read : self._written]
        size = len(left)
        if fresh is None:
            view = memoryview(bytearray(left)) if size else _NOTHING
        else:
            view = memoryview(fresh)
            view[:size] = left
        # The bytes are copied by now: another connection may overwrite the arena once it is back.
        self._give_back()
        self._much = False
        self._arena, self._home, self._view = fresh, self._arenas, view
        self._read, self._written = 0, size

    def _do_without(self) -> None:
        """Give the arena to others, and keep a copy of the little that has come of a frame."""
        self._move(None)

    def _give_back(self) -> None:
        """Return the arena to the pool; the caller has copied the bytes that are not parsed yet."""
        arena, self._arena = self._arena, None
        self._view = _NOTHING
        self._read = self._written = 0
        if arena is not None:
            self._home.release(arena)

    # -- sending

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue whole frames, their sizes included.  A closed connection drops them."""
        if self.closed:
            return
        self._out += buffers
        size = 0
        for buffer in buffers:
            size += len(buffer)
        self.pending_bytes += size
        self._pending_total.bytes += size
        if not self._marked:
            self._marked = True
            self._flusher.mark(self)

    def together(self) -> Flusher:
        """Return a context manager: the sends of its block, of all connections, share one flush.

        The block must not wait (`Flusher.together`).
        """
        return self._flusher

    def flush(self) -> bool:
        """Send what fits now; return False if the rest has to wait.  The flusher calls this."""
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
        """Send the rest as the peer takes it.  The flusher runs this in a task."""
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
            all_sent = sent == self.pending_bytes
            self.pending_bytes -= sent
            self._pending_total.bytes -= sent
            self.sent_bytes += sent
            if all_sent:
                out.clear()
                return True
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
        """Close at once and drop the queued buffers.  The first reason is kept."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self._out.clear()
        self._pending_total.bytes -= self.pending_bytes
        self.pending_bytes = 0
        self._stream.close()
        self._home.keep(self)
        self._home.rest_came(self._half)
        self._half.forget()
        self._give_back()
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    async def aclose(self, reason: str = "closed") -> None:
        """Send the queued buffers, for a second at most, then close."""
        if self.pending_bytes:
            with trio.move_on_after(_LINGER_S) as scope:
                scope.shield = True
                await self.wait_below(0)
        self.close(reason)
