"""A connection of kazoo with fewer system calls.

kazoo makes about eight system calls for a request and its answer.  Each of them lets go of Python's
global lock, and kazoo's thread waits for it again while trio's thread computes: up to 5 ms each
time.  With `hasten`, whatever has been asked for leaves in one piece, and whatever has arrived is
read in one piece; a request that comes while kazoo's thread has not begun with the last one does
not wake it again.

The order of requests and answers, and what a lost connection means for each, are those of kazoo.
"""

import ssl
from typing import Any

from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import (
    CLOSE_RESPONSE,
)
from kazoo.protocol.serialization import Auth, int_struct

_READ_BYTES = 256 << 10
_WRITE_BYTES = 256 << 10
_AUTH_XID = -4
_XID_MAX = (1 << 31) - 1
_HEADER_BYTES = 4


class Waker:
    """The end of kazoo's socket pair that wakes its thread.  Only the first byte does.

    Requests are put into kazoo's queue before `send`, and `taken` is called before the queue is
    read: a request is either found there, or wakes the thread.
    """

    def __init__(self, socket: Any) -> None:  # noqa: ANN401
        self._socket = socket
        self._woken = False

    def send(self, data: bytes) -> int:
        if not self._woken:
            self._woken = True
            self._socket.send(data)
        return len(data)

    def taken(self) -> None:
        self._woken = False

    def close(self) -> None:
        self._socket.close()


class _Connection:
    """The replacements of some methods of kazoo's `ConnectionHandler`."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401
        self._client = client
        self._connection = client._connection  # noqa: SLF001
        self._read_one = self._connection._read_socket  # noqa: SLF001
        self._socket: object = None  # the one from which `_received` comes
        self._received = bytearray()

    def read(self, length: int, timeout_s: float) -> bytes:
        """Return so many bytes.  Everything that has arrived is received for that."""
        received = self._fresh()
        with self._connection._socket_error_handling():  # noqa: SLF001
            while len(received) < length:
                self._receive(timeout_s)
        data = bytes(received[:length])
        del received[:length]
        return data

    def _fresh(self) -> bytearray:
        """Return what was received; nothing comes over from an earlier connection."""
        if self._socket is not self._connection._socket:  # noqa: SLF001
            self._socket, self._received = self._connection._socket, bytearray()  # noqa: SLF001
        return self._received

    def _receive(self, timeout_s: float) -> None:
        handler, socket = self._connection.handler, self._connection._socket  # noqa: SLF001
        try:
            chunk = socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not handler.select([socket], [], [], timeout_s)[0]:
                raise handler.timeout_exception("socket time-out during read") from None
            return
        if not chunk:
            raise ConnectionDropped("socket connection broken")
        self._received += chunk

    def read_all(self, timeout_s: float) -> object:
        """Handle all answers and events that have arrived, and wait for none that is cut."""
        while True:
            response = self._read_one(timeout_s)
            if response is CLOSE_RESPONSE or not self._has_frame():
                return response

    def _has_frame(self) -> bool:
        received = self._fresh()
        if len(received) < _HEADER_BYTES:
            return False
        length: int = int_struct.unpack(received[:_HEADER_BYTES])[0]
        return len(received) >= _HEADER_BYTES + length

    def send_all(self, read_timeout_s: float, connect_timeout_s: float) -> None:
        """Send all requests in the queue.  The socket that wakes the thread is readable."""
        client, connection = self._client, self._connection
        connection._read_sock.recv(1 << 10)  # noqa: SLF001
        waker = connection._write_sock  # noqa: SLF001
        if isinstance(waker, Waker):
            waker.taken()
        while client._queue:  # noqa: SLF001
            frames = bytearray()
            while client._queue and len(frames) < _WRITE_BYTES:  # noqa: SLF001
                request, answer = client._queue[0]  # noqa: SLF001
                xid = self._next_xid(request)
                body = int_struct.pack(xid) + int_struct.pack(request.type) + request.serialize()
                frames += int_struct.pack(len(body)) + body
                # A request counts as sent before it is: if the connection breaks while it is
                # written, nobody knows whether it arrived.
                client._pending.append((request, answer, xid))  # noqa: SLF001
                client._queue.popleft()  # noqa: SLF001
            connection._write(bytes(frames), connect_timeout_s)  # noqa: SLF001

    def _next_xid(self, request: Any) -> int:  # noqa: ANN401
        if request.type == Auth.type:
            return _AUTH_XID
        connection = self._connection
        connection._xid = connection._xid % _XID_MAX + 1  # noqa: SLF001
        xid: int = connection._xid  # noqa: SLF001
        return xid


def hasten(client: Any) -> None:  # noqa: ANN401
    """Change the connection of a client of kazoo that was not started yet."""
    connection, ours = client._connection, _Connection(client)  # noqa: SLF001
    connection._read = ours.read  # noqa: SLF001
    connection._read_socket = ours.read_all  # noqa: SLF001
    connection._send_request = ours.send_all  # noqa: SLF001
