"""The metadata store while the process has no file descriptor left: it goes on, or tries again."""

import errno
import os
import selectors
import socket
from typing import Any, NoReturn

import pytest
import trio

from daybook.wire.metadata import kazoo_client
from daybook.wire.metadata.kazoo_client import new_client, stop_client
from daybook.wire.metadata.store import SessionState, StoreUnavailableError
from daybook.wire.metadata.zookeeper import open_zookeeper

PATIENCE_S = 60.0


def no_descriptor(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def listen() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sock.settimeout(PATIENCE_S)
    return sock


def accept(sock: socket.socket) -> None:
    sock.accept()[0].close()


async def test_a_client_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, `start_async` ended the broker with exit code 3."""
    with listen() as zookeeper:
        tried = 0

        def fail_twice() -> tuple[socket.socket, socket.socket]:
            nonlocal tried
            tried += 1
            if tried <= 2:
                no_descriptor()
            return pair()

        pair = socket.socketpair
        monkeypatch.setattr("socket.socketpair", fail_twice)

        async def connect() -> None:
            hosts = f"127.0.0.1:{zookeeper.getsockname()[1]}"
            async with open_zookeeper(hosts, session_timeout_s=10.0, connect_timeout_s=PATIENCE_S):
                raise AssertionError("nobody has answered")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await trio.to_thread.run_sync(accept, zookeeper)
            nursery.cancel_scope.cancel()
        assert tried == 3


async def test_what_is_short_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socketpair", no_descriptor)
    with pytest.raises(StoreUnavailableError, match="Too many open files"):
        async with open_zookeeper("127.0.0.1:1", session_timeout_s=1.0, connect_timeout_s=0.3):
            raise AssertionError("nobody has answered")


def test_waiting_for_the_connection_needs_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, each wait of kazoo opened an epoll; without descriptors a healthy session was lost."""
    for name in ("DefaultSelector", "EpollSelector"):
        monkeypatch.setattr(selectors, name, no_descriptor)
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        handler: Any = kazoo_client._InConnectionThread()
        assert handler.select([other], [one], [], 1.0)[:2] == ([other], [one])
        assert handler.select([one], [], [], 0)[0] == []


def test_a_lookup_that_finds_no_descriptor_does_not_end_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with listen() as zookeeper:
        tried = 0
        look_up = socket.getaddrinfo

        def fail_twice(*args: Any, **kwargs: Any) -> Any:
            nonlocal tried
            tried += 1
            return no_descriptor() if tried <= 2 else look_up(*args, **kwargs)

        monkeypatch.setattr(socket, "getaddrinfo", fail_twice)
        states: list[SessionState] = []
        hosts = f"127.0.0.1:{zookeeper.getsockname()[1]}"
        client = new_client(hosts, 10.0, lambda _client, state, _id: states.append(state))
        client.start_async()
        accept(zookeeper)
        assert tried >= 3
        assert SessionState.LOST not in states
        stop_client(client)
