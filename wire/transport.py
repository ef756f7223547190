"""SEAM network: streams of bytes between hosts.  TCP in production, memory in the simulator.

A `Stream` carries bytes both ways, and moves them without waiting: `try_recv_into` fills the
caller's memory, `try_send` takes what fits now and returns how much that was.  Waiting is a
separate call, so that a connection needs no memory while it is idle.

    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0)
    stream = await network.connect("127.0.0.1", listener.port)

A stream that breaks from outside (reset, unreachable, refused) raises `ConnectionLostError`.
Using a stream after `close` raises `trio.ClosedResourceError`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A certificate by which a client has proved in a TLS handshake who it is."""

    common_name: str  # "" if the subject has none, or more than one
    subject: str  # as in RFC 4514: "CN=alice,O=Example"
    der: bytes


class Stream(Protocol):
    """One end of a connection.  One task receives; any task may send, which is synchronous."""

    @property
    def peer(self) -> str:
        """The address of the other end, `host:port`, for logs."""
        ...

    @property
    def encrypted(self) -> bool:
        """True for TLS."""
        ...

    @property
    def certificate(self) -> PeerCertificate | None:
        """The client's certificate, at a server that asked for one and has verified it."""
        ...

    def try_recv_into(self, buffer: memoryview) -> int | None:
        """Receive what is there; return the number of bytes, 0 at the end, None if nothing is."""
        ...

    async def wait_readable(self, bytes_min: int = 1) -> None:
        """Return when `try_recv_into` has so many bytes, the end or an error.

        A stream may return before the last of these bytes.  TLS also returns when a part of its
        next record has come, which holds no bytes yet.
        """
        ...

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """Send what fits without waiting, in order; return the number of bytes taken (maybe 0).

        The next call has to begin with the bytes that were not taken.
        """
        ...

    async def wait_writable(self) -> None:
        """Return when `try_send` may take bytes again."""
        ...

    def close(self) -> None:
        """Close both ways, and wake the tasks that wait in this stream.  Idempotent."""
        ...


class Listener(Protocol):
    """A port that accepts connections."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    async def accept(self) -> Stream:
        """Return the next connection.  A lack of descriptors or memory is waited out inside."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """The network as one host sees it."""

    async def connect(self, host: str, port: int) -> Stream: ...

    async def listen(self, host: str, port: int) -> Listener:
        """Listen; port 0 takes a free one.  Raise `OSError` if the port is taken."""
        ...
