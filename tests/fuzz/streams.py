"""Target: frames out of a stream, however its bytes arrive.

The stream is a script: pieces of any size, frames of any length among them, pauses, the end.
"""

from collections.abc import Mapping, Sequence

import trio
from trio.testing import MockClock

from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection, FramePace
from daybook.wire.errors import ConnectionLostError, OversizeError
from daybook.wire.fields import U32
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Buffer
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, require

_FRAME_BYTES_MAX = 2000
_ARENA_BYTES = 1 << 17
_POOL_BYTES = 1 << 20
_TIMEOUT_S = 1.0
_PAUSES_MAX = 5


class ScriptedStream:
    """Returns the given pieces one by one; a piece of None is a pause of a second."""

    encrypted = False
    certificate = None

    def __init__(self, pieces: Sequence[bytes | None], *, breaks: bool = False) -> None:
        self.peer = "script:1"
        self._pieces = list(pieces)
        self._breaks = breaks
        self._closed = False

    def try_recv_into(self, buffer: memoryview) -> int | None:
        if self._closed:
            raise trio.ClosedResourceError
        if not self._pieces:
            if self._breaks:
                raise ConnectionLostError("the script ends so")
            return 0
        piece = self._pieces[0]
        if piece is None:
            return None
        size = min(len(piece), len(buffer))
        buffer[:size] = piece[:size]
        if size < len(piece):
            self._pieces[0] = piece[size:]
        else:
            del self._pieces[0]
        return size

    async def wait_readable(self, bytes_min: int = 1) -> None:
        del bytes_min
        if self._pieces and self._pieces[0] is None:
            await trio.sleep(0.6)
            del self._pieces[0]
        await trio.lowlevel.checkpoint()

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self._closed = True


def run_stream(data: bytes) -> None:
    choices = Choices(data)
    breaks, keeps = choices.flag(), choices.flag()
    pieces: list[bytes | None] = []
    while choices:
        match choices.below(8):
            case 0:
                pieces += [None] * (pieces.count(None) < _PAUSES_MAX)
            case 1:
                pieces.append(choices.blob())
            case 2:
                pieces.append(U32.pack(choices.number() & 0xFFFFFFFF))
            case kind:
                body = choices.blob(32) * (1 if kind < 7 else 40)
                frame = U32.pack(len(body)) + body
                cut = choices.below(len(frame) + 1)
                pieces += [frame[:cut], frame[cut:]]
    pieces = [piece for piece in pieces if piece is None or piece]
    trio.run(_receive_all, pieces, breaks, keeps, clock=MockClock(autojump_threshold=0))


async def _receive_all(pieces: list[bytes | None], breaks: bool, keeps: bool) -> None:
    arenas = ArenaPool(arena_bytes=_ARENA_BYTES, total_bytes_max=_POOL_BYTES)
    connection = FrameConnection(
        ScriptedStream(pieces, breaks=breaks),
        arenas=arenas,
        flusher=Flusher(),
        frame_bytes_max=_FRAME_BYTES_MAX,
        pace=FramePace(stall_s=_TIMEOUT_S),
    )
    received: list[memoryview | bytes] = []
    failure: OversizeError | None = None
    try:
        while frames := await connection.receive():
            received += (frame[:] if keeps else bytes(frame) for frame in frames)
    except OversizeError as error:
        failure = error
    wanted, oversize = expected(b"".join(piece or b"" for piece in pieces))
    require([bytes(f) for f in received] == wanted[: len(received)], "other frames than were sent")
    if failure is not None:
        require(oversize, "a frame is refused that is small enough")
    elif not connection.cut_reason:
        require(len(received) == len(wanted) and not oversize, "frames are missing")
    require(arenas.total_bytes <= _POOL_BYTES, "more arenas than the pool may have")
    connection.close()


def expected(stream: bytes) -> tuple[list[bytes], bool]:
    """Return the whole frames in a stream, and True if one behind them is too large."""
    frames: list[bytes] = []
    at = 0
    while at + U32.size <= len(stream):
        (size,) = U32.unpack_from(stream, at)
        if size > _FRAME_BYTES_MAX:
            return frames, True
        if at + U32.size + size > len(stream):
            break
        frames.append(stream[at + U32.size : at + U32.size + size])
        at += U32.size + size
    return frames, False


def stream_seeds() -> Mapping[str, bytes]:
    frame = b"\x03\x05hello\x02"
    return {
        "frames": b"\0\0" + frame * 4,
        "kept": b"\0\1" + frame * 4,
        "paused": b"\1\0" + frame + b"\0" + b"\x01\x03\0\0\0" + b"\0\0\0",
        "long": b"\0\1" + b"\x07\x20" + bytes(range(32)) + b"\x09" + frame,
        "too long": b"\0\0" + frame + b"\x02\xff\x7f\xff\xff\xff\xff\xff\xff\xff",
    }


TARGETS = (
    Target(name="stream", run=run_stream, errors=(), seeds=stream_seeds, input_bytes_max=500),
)
