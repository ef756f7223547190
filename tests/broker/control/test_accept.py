"""The service port in a flood."""

import trio
from trio.testing import wait_all_tasks_blocked

from broker.accept import ClientPort
from broker.logs import silent_log
from wire.arena import ArenaPool
from wire.connection import FrameConnection
from wire.errors import MalformedError
from wire.messages.registry import NO_ID, Command, decode_frame
from wire.outbox import Flusher
from wire.tcp import TcpNetwork
from wire.transport import Stream


async def test_a_client_too_many_is_told_and_cut() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0)
    served: list[Stream] = []

    async def serve(stream: Stream) -> None:
        served.append(stream)
        await stream.wait_readable()

    port = ClientPort(listener, serve, connections_max=2, log=silent_log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        streams = [await network.connect("127.0.0.1", listener.port) for _ in range(3)]
        connection = FrameConnection(
            streams[2], arenas=ArenaPool(), flusher=Flusher(), frame_bytes_max=1000
        )
        (frame,) = await connection.receive()
        command = decode_frame(frame)
        assert isinstance(command, Command)
        assert command.body.request_id == NO_ID
        assert await connection.receive() == []
        assert (port.connections, port.refused, len(served)) == (2, 1, 2)
        streams[0].close()
        with trio.fail_after(120):
            while port.connections == 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
        fourth = await network.connect("127.0.0.1", listener.port)
        await wait_all_tasks_blocked()
        assert port.refused == 1
        fourth.close()
        nursery.cancel_scope.cancel()


async def test_what_goes_wrong_in_one_connection_ends_only_that() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0)
    errors = [MalformedError("bytes"), RuntimeError("a mistake"), None]
    ended = 0

    async def serve(_: Stream) -> None:
        nonlocal ended
        await trio.lowlevel.checkpoint()
        ended += 1
        if (error := errors.pop(0)) is not None:
            raise error

    port = ClientPort(listener, serve, connections_max=9, log=silent_log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        for _ in range(3):
            stream = await network.connect("127.0.0.1", listener.port)
            await stream.wait_readable()
            assert stream.try_recv_into(memoryview(bytearray(10))) == 0
        assert ended == 3
        assert port.connections == 0
        listener.close()
