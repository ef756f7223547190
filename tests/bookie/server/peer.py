"""The other end of a connection to a bookie: frames are sent and read by hand."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from daybook.wire import entry
from daybook.wire.digest import Digester, master_key
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.bookie import Answer, Status
from daybook.wire.proto import bookkeeper_pb2 as pb

KEY = master_key(b"")
DIGESTER = Digester()
PATIENCE_S = 120.0  # only so that nothing hangs forever


def make_entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int = -1) -> bytes:
    header = entry.encode_header(ledger_id, entry_id, lac, len(payload), DIGESTER, [payload])
    return header + payload


def add_frame(
    ledger_id: int,
    entry_id: int,
    payload: bytes = b"payload",
    *,
    lac: int = -1,
    key: bytes = KEY,
    recovery: bool = False,
) -> bytes:
    data = make_entry(ledger_id, entry_id, payload, lac)
    return bookie.encode_add_header(key, len(data), recovery=recovery) + data


class Peer:
    """A client whose requests the test writes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))

    async def receive(self) -> bytes | None:
        """Return the next frame, without its size; None at the end of the stream."""
        while True:
            if len(self._buffer) >= 4:
                (size,) = struct.unpack_from(">I", self._buffer)
                if len(self._buffer) >= 4 + size:
                    frame = bytes(self._buffer[4 : 4 + size])
                    del self._buffer[: 4 + size]
                    return frame
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._buffer += data

    async def answer(self) -> Answer:
        with trio.fail_after(PATIENCE_S):
            frame = await self.receive()
        assert frame is not None, "the bookie has closed the connection"
        return bookie.decode_answer(memoryview(frame))

    async def response(self) -> pb.Response:
        with trio.fail_after(PATIENCE_S):
            frame = await self.receive()
        assert frame is not None, "the bookie has closed the connection"
        return bookie_v3.decode_response(frame)

    async def ask(self, request: bytes) -> Answer:
        await self.send(request)
        return await self.answer()

    async def ask_v3(self, request: bytes) -> pb.Response:
        await self.send(request)
        return await self.response()

    async def add(self, ledger_id: int, entry_id: int, payload: bytes = b"payload") -> Status:
        answer = await self.ask(add_frame(ledger_id, entry_id, payload))
        assert isinstance(answer, bookie.AddRun)
        assert (answer.ledger_id, answer.first) == (ledger_id, entry_id)
        return Status(answer.status)

    async def read(
        self, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None
    ) -> bookie.ReadAnswer:
        answer = await self.ask(bookie.encode_read(ledger_id, entry_id, fence_key=fence_key))
        assert isinstance(answer, bookie.ReadAnswer)
        assert (answer.ledger_id, answer.entry_id) == (ledger_id, entry_id)
        return answer

    async def is_cut(self) -> bool:
        """Return True if the bookie closes the connection, after any answers."""
        with trio.move_on_after(PATIENCE_S):
            while await self.receive() is not None:
                pass
            return True
        return False


async def dial(port: int, *, receive_bytes: int = 0) -> Peer:
    """Connect; with `receive_bytes` the receive buffer is small."""
    sock = trio.socket.socket()
    if receive_bytes:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_bytes)
    await sock.connect(("127.0.0.1", port))
    return Peer(trio.SocketStream(sock))


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Peer]:
    peer = await dial(port)
    async with peer.stream:
        yield peer
