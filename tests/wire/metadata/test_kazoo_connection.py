"""A connection of kazoo that sends and receives in large pieces, with a server that is scripted."""

import struct
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import CLOSE_RESPONSE
from kazoo.protocol.serialization import Auth, GetData

from daybook.wire.metadata.kazoo_connection import Waker, hasten

FRAME = struct.Struct("!i")


class Socket:
    """Gives what has arrived, at most `size` bytes at a time; b"" is the end."""

    def __init__(self, *arrived: bytes) -> None:
        self.arrived = deque(arrived)
        self.calls = 0
        self.sent: list[bytes] = []

    def recv(self, size: int) -> bytes:
        self.calls += 1
        if not self.arrived:
            raise BlockingIOError
        return self.arrived.popleft()

    def send(self, data: bytes) -> int:
        self.sent.append(data)
        return len(data)

    def close(self) -> None:
        self.sent.append(b"closed")


class Handler:
    """Lets more bytes arrive when somebody waits for them."""

    timeout_exception = TimeoutError

    def __init__(self) -> None:
        self.later: deque[bytes] = deque()

    def select(
        self, readers: list[Socket], writers: object, errors: object, timeout: float
    ) -> tuple[list[Socket], object, object]:
        if not self.later:
            return [], [], []
        readers[0].arrived.append(self.later.popleft())
        return readers, [], []


class Connection:
    def __init__(self, socket: Socket) -> None:
        self.handler = Handler()
        self._socket = socket
        self._xid = 0
        self._read_sock = Socket(b"\0")
        self._wakes = Socket()
        self._write_sock = Waker(self._wakes)
        self.handled: list[bytes] = []
        self.written: list[bytes] = []
        self.breaks = False
        self._read: Any
        self._send_request: Any

    @contextmanager
    def _socket_error_handling(self) -> Generator[None]:
        yield

    def _read_socket(self, timeout_s: float) -> object:
        (length,) = FRAME.unpack(self._read(4, timeout_s))
        self.handled.append(self._read(length, timeout_s))
        return CLOSE_RESPONSE if self.handled[-1] == b"close" else None

    def _write(self, data: bytes, timeout_s: float) -> None:
        if self.breaks:
            raise ConnectionDropped("broken")
        self.written.append(data)


class Client:
    def __init__(self, *arrived: bytes) -> None:
        self._connection = Connection(Socket(*arrived))
        self._queue: deque[tuple[Any, str]] = deque()
        self._pending: deque[tuple[Any, str, int]] = deque()
        hasten(self)

    def ask(self, *names: str) -> None:
        for name in names:
            self._queue.append((GetData(f"/{name}", None), name))
            self._connection._write_sock.send(b"\0")


def frame(body: bytes) -> bytes:
    return FRAME.pack(len(body)) + body


def test_all_requests_that_wait_leave_in_one_piece_and_in_order() -> None:
    client = Client()
    client.ask("a", "b", "c")
    connection = client._connection
    assert len(connection._wakes.sent) == 1
    connection._send_request(1.0, 1.0)
    (written,) = connection.written
    assert [xid for _, _, xid in client._pending] == [1, 2, 3]
    assert [name for _, name, _ in client._pending] == ["a", "b", "c"]
    assert not client._queue
    bodies: list[bytes] = []
    while written:
        (length,) = FRAME.unpack(written[:4])
        bodies.append(written[4 : 4 + length])
        written = written[4 + length :]
    assert [FRAME.unpack(body[:4])[0] for body in bodies] == [1, 2, 3]
    assert [b"/a" in bodies[0], b"/b" in bodies[1], b"/c" in bodies[2]] == [True] * 3


def test_a_request_that_comes_while_others_are_sent_is_sent_or_wakes_the_thread() -> None:
    """The thread may have read the queue already, and waits for a byte then."""
    client = Client()
    client.ask("a")
    connection, queue = client._connection, client._queue

    class Late(deque[Any]):
        """When it is found to be empty, another thread adds a request."""

        asked = False

        def __len__(self) -> int:
            left = super().__len__()
            if not left and not Late.asked:
                Late.asked = True
                client.ask("late")
            return left

    client._queue = Late(queue)
    connection._send_request(1.0, 1.0)
    sent = [name for _, name, _ in client._pending]
    assert sent == ["a", "late"] or len(connection._wakes.sent) == 2


def test_a_request_of_a_connection_that_breaks_counts_as_sent() -> None:
    client = Client()
    client.ask("a", "b")
    client._connection.breaks = True
    with pytest.raises(ConnectionDropped):
        client._connection._send_request(1.0, 1.0)
    assert [name for _, name, _ in client._pending] == ["a", "b"]


def test_the_proof_of_an_identity_has_the_number_that_zookeeper_wants() -> None:
    client = Client()
    client._queue.append((Auth(0, "digest", "u:p"), "auth"))
    client.ask("a")
    client._connection._send_request(1.0, 1.0)
    assert [xid for _, _, xid in client._pending] == [-4, 1]


def test_everything_that_has_arrived_is_read_at_once() -> None:
    client = Client(frame(b"one") + frame(b"two") + frame(b"three")[:-2])
    connection = client._connection
    connection._read_socket(1.0)
    assert connection.handled == [b"one", b"two"]
    assert connection._socket.calls == 1
    connection._socket.arrived.append(b"ee" + frame(b""))
    connection._read_socket(1.0)
    assert connection.handled == [b"one", b"two", b"three", b""]
    assert connection._socket.calls == 2


def test_a_frame_that_is_cut_is_waited_for() -> None:
    client = Client(frame(b"one")[:2])
    connection = client._connection
    connection.handler.later.extend([frame(b"one")[2:5], frame(b"one")[5:]])
    connection._read_socket(1.0)
    assert connection.handled == [b"one"]
    connection._socket.arrived.append(frame(b"two")[:3])
    with pytest.raises(TimeoutError):
        connection._read_socket(1.0)


def test_nothing_of_an_earlier_connection_is_read() -> None:
    client = Client(frame(b"one") + b"\0\0")
    connection = client._connection
    connection._read_socket(1.0)
    connection._socket = Socket(frame(b"two"))
    connection._read_socket(1.0)
    assert connection.handled == [b"one", b"two"]


def test_the_end_of_a_connection_is_an_error() -> None:
    client = Client(b"\0", b"")
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1.0)


def test_nothing_is_read_behind_the_answer_to_a_close() -> None:
    client = Client(frame(b"close") + frame(b"more"))
    assert client._connection._read_socket(1.0) is CLOSE_RESPONSE
    assert client._connection.handled == [b"close"]


def test_a_thread_is_woken_once_until_it_looks() -> None:
    socket = Socket()
    waker = Waker(socket)
    waker.send(b"\0")
    waker.send(b"\0")
    waker.taken()
    waker.send(b"\0")
    waker.close()
    assert socket.sent == [b"\0", b"\0", b"closed"]
