"""A stream that counts how often it is asked for bytes, and waited for."""

from collections.abc import Sequence

from daybook.wire.transport import Buffer, Stream


class CountedStream:
    """A stream that counts how often it is asked for bytes, and waited for."""

    encrypted = False
    certificate = None

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.peer = stream.peer
        self.asked = self.waited = 0

    def try_recv_into(self, buffer: memoryview) -> int | None:
        self.asked += 1
        return self._stream.try_recv_into(buffer)

    async def wait_readable(self, bytes_min: int = 1) -> None:
        self.waited += 1
        await self._stream.wait_readable(bytes_min)

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        return self._stream.try_send(buffers)

    async def wait_writable(self) -> None:
        await self._stream.wait_writable()

    def close(self) -> None:
        self._stream.close()
