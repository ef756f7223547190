"""The error when ZooKeeper's address has another server, or none."""

import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from daybook.wire.metadata.probe import addresses, why_no_session
from daybook.wire.metadata.store import NoContactError
from daybook.wire.metadata.zookeeper import open_zookeeper

# Kazoo takes this frame for a session without a password: an int, the timeout, an id, -1 bytes.
NONSENSE = struct.pack(">iiiqi", 20, 0, 4000, 7, -1)


@asynccontextmanager
async def a_server(answer: bytes | None, *, waits_for: bytes = b"") -> AsyncIterator[str]:
    """Run a server that hangs up after its answer; with None it stays silent."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            heard = b""
            while waits_for not in heard or not heard:
                data = await stream.receive_some()
                if not data:
                    return
                heard += data
            if answer is None:
                await trio.sleep_forever()
            await stream.send_all(answer or b"")

    async with trio.open_nursery() as nursery:
        listeners: Sequence[trio.SocketListener] = await nursery.start(
            partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        )
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "waits_for", "said"),
    [
        (b"", b"", "hangs up: that is not ZooKeeper, perhaps the port of a broker"),
        (None, b"", "takes connections, and says nothing"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", b"\r\n\r\n", "is not ZooKeeper: it speaks HTTP"),
        (NONSENSE, b"", "is not ZooKeeper: it answers in another protocol"),
        (b"Zookeeper version: 3.9.3", b"", "and gives no session"),
        (b"srvr is not executed because it is not in the whitelist.", b"", "and gives no session"),
        (b"This ZooKeeper instance is not currently serving requests", b"", "does not serve"),
    ],
)
async def test_what_is_at_the_address_is_said(
    answer: bytes | None, waits_for: bytes, said: str
) -> None:
    async with a_server(answer, waits_for=waits_for) as address:
        why = await why_no_session(f"{address},{address}/chroot")
    assert said in why
    assert why.count(address) == 1


async def test_that_nobody_listens_is_said() -> None:
    assert await why_no_session("127.0.0.1:1") == "nobody listens at 127.0.0.1:1"


def test_addresses_are_those_of_all_servers() -> None:
    assert addresses("one,two:9, [::1]:39/chroot") == [("one", 2181), ("two", 9), ("::1", 39)]


async def test_nonsense_at_the_address_is_said_without_a_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Once, kazoo's thread ended with a TypeError."""
    async with a_server(NONSENSE) as address:
        with pytest.raises(NoContactError, match="it answers in another protocol"):
            async with open_zookeeper(address, session_timeout_s=10, connect_timeout_s=0.5):
                raise AssertionError
    assert capfd.readouterr().err == ""


async def test_it_is_asked_again_after_nonsense() -> None:
    """Without that thread nobody would find ZooKeeper when it is back."""
    asked = 0
    with socket.create_server(("127.0.0.1", 0)) as sock:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock.dup()))
        enough = trio.Event()

        async def serve(stream: trio.SocketStream) -> None:
            nonlocal asked
            async with stream:
                asked += 1
                if asked >= 3:
                    enough.set()
                await stream.receive_some()
                await stream.send_all(NONSENSE)

        async def connect() -> None:
            hosts = f"127.0.0.1:{sock.getsockname()[1]}"
            async with open_zookeeper(hosts, session_timeout_s=10, connect_timeout_s=60):
                raise AssertionError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            nursery.start_soon(connect)
            with trio.fail_after(30):
                await enough.wait()
            nursery.cancel_scope.cancel()
