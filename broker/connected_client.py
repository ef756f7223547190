"""A connected client, as its producers and consumers see it.

A producer or consumer needs a few facts about its client and a few ways to reach it.  It gets
exactly these, and does not see how the connection reads commands.  All producers and consumers of
one connection share one `ConnectedClient`, so two of them belong to the same connection if theirs
are identical.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from daybook.broker.security.identity import Caller
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer

Call: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class SuccessorUrls:
    """The URLs of the broker to which a close sends clients; "" for each that is not known."""

    plain: str = ""
    tls: str = ""

    def assign(
        self, closed: pb.CommandCloseProducer | pb.CommandCloseConsumer, *, tls: bool
    ) -> None:
        """Tell the client where to go on: a client that came over TLS learns no other URL."""
        if self.tls:
            closed.assignedBrokerServiceUrlTls = self.tls
        if self.plain and not tls:
            closed.assignedBrokerServiceUrl = self.plain


NO_SUCCESSOR = SuccessorUrls()


@dataclass(frozen=True, slots=True, eq=False)
class ConnectedClient:
    """One instance per connection, made when the client has introduced itself."""

    peer: str
    client_version: str  # as the client introduced itself
    protocol_version: int
    connected_ms: int
    encrypted: bool  # it came over TLS
    is_ours: bool  # a client of this project, which knows our extensions of the protocol
    sends_broker_metadata: bool  # it understands the broker's own metadata in front of an entry
    send: Callable[[Sequence[Buffer]], None]
    get_room_bytes: Callable[[], int]
    is_alive: Callable[[float], Awaitable[bool]]
    """Ask the client for a sign of life within so many seconds."""
    call_at_flush: Callable[[Call], None]
    """Call once at the end of this turn of the loop; what it queues is sent in the same flush."""
    yield_soon: Callable[[], None]
    """Let other tasks run before the next command of this client, which has caused much work."""
    call_when_writable: Callable[[Call], None]
    """Call once when the client has room again."""
    note_refused_send: Callable[[int, str], None]
    """Record the code and the reason of a refused SEND for operators."""
    forget_producer: Callable[[Any], None]
    """Called with a producer that the broker has closed, after the client was told."""
    forget_consumer: Callable[[Any], None]
    """Called with a consumer that the broker has closed, before or after the client was told."""
    call_later: Callable[[float, Call], None]
    """Call after so many seconds, if the client is still connected then."""
    caller: Caller | None = None  # None if clients are not asked who they are

    @property
    def room_bytes(self) -> int:
        """The bytes that may still be queued for the client.  At 0 or below it gets no messages."""
        return self.get_room_bytes()
