"""The service port under a flood of connections."""

import json
from functools import partial
from pathlib import Path

import pytest
import trio
from google.protobuf.message import Message
from trio.testing import wait_all_tasks_blocked

from daybook.broker.ownership.peers import greeting, why_not_served
from daybook.broker.security.audit import Audit
from daybook.broker.security.broker_token import BrokerToken
from daybook.broker.service.accept import ClientPort, Prove, _answer_plain
from daybook.broker.service.places import Places
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import MalformedError
from daybook.wire.logging import silent_log
from daybook.wire.messages.registry import NO_ID, Command, decode_frame, encode
from daybook.wire.outbox import Flusher
from daybook.wire.probe import PortProbe
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork
from daybook.wire.transport import Stream
from tests.harness.clocks import FixedClock


async def test_a_client_too_many_is_told_and_cut() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0)
    served: list[Stream] = []

    async def serve(stream: Stream, prove: Prove) -> None:
        prove("")
        served.append(stream)
        await stream.wait_readable()

    port = ClientPort(listener, serve, places=Places(2), log=silent_log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        streams = [await network.connect("127.0.0.1", listener.port) for _ in range(2)]
        # Connections that are accepted in one turn of the loop take their places in any order.
        with trio.fail_after(120):
            while len(served) < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
        streams.append(await network.connect("127.0.0.1", listener.port))
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

    async def serve(_: Stream, prove: Prove) -> None:
        nonlocal ended
        await trio.lowlevel.checkpoint()
        ended += 1
        if (error := errors.pop(0)) is not None:
            raise error

    port = ClientPort(listener, serve, places=Places(9), log=silent_log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        for _ in range(3):
            stream = await network.connect("127.0.0.1", listener.port)
            await stream.wait_readable()
            assert stream.try_recv_into(memoryview(bytearray(10))) == 0
        assert ended == 3
        assert port.connections == 0
        listener.close()


async def test_the_brokers_own_probe_is_served_when_all_connections_are_taken() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0)
    arenas, flusher = ArenaPool(), Flusher()
    serving = True
    taken = trio.Event()

    async def serve(stream: Stream, prove: Prove) -> None:
        prove("")
        taken.set()
        frames = FrameConnection(stream, arenas=arenas, flusher=flusher, frame_bytes_max=1000)
        if await frames.receive() and serving:
            frames.send([encode(pb.CommandConnected(server_version="x"))])
            await frames.aclose()
        await trio.sleep_forever()

    probe = PortProbe("0.0.0.0", listener.port, greeting, why_not_served)
    port = ClientPort(listener, serve, places=Places(1), log=silent_log(), reserved=probe.reserved)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        nursery.start_soon(port.run)
        idle = await network.connect("127.0.0.1", listener.port)
        await taken.wait()
        assert await probe.why_not_ready() == ""
        assert (port.connections, port.refused, probe.reserved) == (2, 0, set())
        stranger = PortProbe("127.0.0.1", listener.port, greeting, why_not_served)
        assert "accepts no more" in await stranger.why_not_ready()
        serving = False
        said: list[str] = []

        async def ask() -> None:
            said.append(await probe.why_not_ready())

        async with trio.open_nursery() as asking:
            for _ in range(3):
                asking.start_soon(ask)
        assert said == [f"127.0.0.1:{listener.port} did not answer in time"] * 3
        assert port.connections == 3  # All connections at once have shared one probe.
        idle.close()
        nursery.cancel_scope.cancel()


async def test_each_probe_has_the_token_that_the_file_has_now(tmp_path: Path) -> None:
    """The broker would go on with a token that was exchanged, and refuse it, every few seconds."""
    file, seen = tmp_path / "own", list[bytes]()
    token = BrokerToken(str(file))
    network, arenas, flusher = TcpNetwork(), ArenaPool(), Flusher()
    listener = await network.listen("127.0.0.1", 0)

    async def serve(stream: Stream, _prove: Prove) -> None:
        frames = FrameConnection(stream, arenas=arenas, flusher=flusher, frame_bytes_max=1000)
        (frame,) = await frames.receive()
        command = decode_frame(frame)
        assert isinstance(command, Command)
        seen.append(command.body.auth_data)
        frames.send([encode(pb.CommandConnected(server_version="x"))])
        await frames.aclose()

    probe = PortProbe("127.0.0.1", listener.port, partial(greeting, token), why_not_served)
    port = ClientPort(listener, serve, places=Places(1), log=silent_log(), reserved=probe.reserved)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        nursery.start_soon(port.run)
        for content in (b"old", b"new"):
            file.write_bytes(content)
            assert await probe.why_not_ready() == ""
        assert seen == [b"old", b"new"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (pb.CommandConnected(server_version="x"), ""),
        (pb.CommandError(request_id=0, error=pb.AuthenticationError, message="who?"), ""),
        (pb.CommandError(request_id=0, error=pb.AuthorizationError, message="no"), ""),
        (
            pb.CommandError(request_id=0, error=pb.ServiceNotReady, message="no"),
            "refuses the connection: no",
        ),
        (pb.CommandPing(), "did not answer with CONNECTED"),
    ],
)
def test_what_counts_as_an_answer(answer: Message, why: str) -> None:
    said = why_not_served(encode(answer)[4:])
    assert why in said
    assert bool(said) == bool(why)


async def half_open(stream: Stream, prove: Prove) -> None:
    """Serve a client that proves who it is with its first byte."""
    await stream.wait_readable()
    if stream.try_recv_into(memoryview(bytearray(1))):
        assert not prove("")
        stream.try_send([b"welcome"])
        await trio.sleep_forever()


async def welcome(network: TcpNetwork, number: int) -> Stream:
    stream = await network.connect("127.0.0.1", number)
    stream.try_send([b"x"])
    await stream.wait_readable()
    assert stream.try_recv_into(memoryview(bytearray(10))) == len(b"welcome")
    return stream


async def test_half_open_connections_keep_no_client_out(tmp_path: Path) -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0)
    path = tmp_path / "audit"
    audit = Audit(str(path), FixedClock(), silent_log())
    port = ClientPort(listener, half_open, places=Places(4), log=silent_log(), audit=audit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        with trio.fail_after(120):
            flood = [await network.connect("127.0.0.1", listener.port) for _ in range(20)]
            clients = [await welcome(network, listener.port) for _ in range(4)]
            flood.append(await network.connect("127.0.0.1", listener.port))
            await flood[-1].wait_readable()  # It is refused: no client makes room for it.
        assert port.refused == 1
        assert port.cut >= 16
        assert port.bugs == 0
        assert len(clients) == 4
        nursery.cancel_scope.cancel()
    audit._write()
    noted = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(each["action"], each["allowed"]) for each in noted} == {("CONNECT", False)}
    assert len(noted) == port.cut


def test_a_request_without_tls_is_told_the_url_with_tls() -> None:
    for request in (b"GET /admin/v2/clu", b"OPTIONS * HTTP/1"):
        head, _, body = _answer_plain(request).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"begin the service URL with pulsar+ssl://" in body
    for other in (b"\0\0\0\x20\0\0\0\x1c\x08\x02", b"GET", b""):
        answer = _answer_plain(other)
        command = decode_frame(memoryview(answer)[4:])
        assert isinstance(command, Command)
        assert command.body.error == pb.NotAllowedError
        assert "pulsar+ssl://" in command.body.message
