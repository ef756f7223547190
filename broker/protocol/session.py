"""One client's connection: handshake, admitted commands, keep-alive.  The module is pure.

    GREETING --connect--> OPEN --(violation, silence, end)--> CLOSED
        |                  ^                                    ^
        |   with authentication:                                |
        +--connect--> PROVING --proven--> OPEN                  |
        |                |                                      |
        +----------------+--(any other command, or a timeout)---+

Credentials may expire while the session is OPEN, or the key of their token may be removed.  Then
the client is asked for new ones, and its commands are still carried out.  New credentials must
prove the same role.  A client whose token is revoked is closed at once.

    expired() while            the client can renew      it cannot
      nothing was asked        Challenge                 closed
      it was asked             closed                    -

A client may answer with credentials that have expired, too: it keeps them for as long as they last
by its own clock, which is a moment too long.  Such a client is asked again (`ask_again`), until
the caller says `expired` a second time.

A violation of the protocol is answered with an error whose request id is -1, and the connection is
closed.  A command that is known but not offered is answered with its error and changes nothing.

Keep-alive: at each tick of the interval, a client that sent nothing since the last tick is sent a
PING.  If it has sent nothing by the next tick either, it counts as dead.  Any byte counts.  While
the broker does not read, because of back-pressure, silence says nothing.  A client that takes no
byte of what is queued for it in that time counts as dead, too, whatever it sends.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from daybook.wire.messages.registry import (
    BROKER_PROTOCOL_VERSION,
    CLIENT_NAME,
    VERSION_ACTIVE_CONSUMER,
    type_name,
)
from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand

VERSION_MIN = VERSION_ACTIVE_CONSUMER
"""Clients before Pulsar 2.2 know neither last message ids nor acknowledgements of several entries.
They are refused with this reason."""

_IDLE_TICKS_MAX = 2  # as many as a silent client has: one until it is asked, one to answer


class ClientState(Enum):
    GREETING = auto()
    PROVING = auto()  # the credentials of its CONNECT are being checked
    OPEN = auto()
    CLOSED = auto()


class Renewal(Enum):
    """The state of credentials that have expired."""

    NOT_DUE = auto()
    ASKED = auto()  # the client was sent a challenge
    CHECKED = auto()  # the client has answered, and the answer is being checked
    LATE = auto()  # the client has answered with credentials that have expired


class Admission(Enum):
    """The decision about a command."""

    SERVE = auto()
    REFUSE = auto()  # known, but not offered
    VIOLATION = auto()


# -- effects


@dataclass(frozen=True, slots=True)
class Greet:
    """Answer CONNECT with CONNECTED, in this version of the protocol."""

    protocol_version: int


@dataclass(frozen=True, slots=True)
class CheckCredentials:
    """Find out which role the credentials prove that the client has just sent."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask the client to send its credentials again, because they have expired."""


@dataclass(frozen=True, slots=True)
class SendPing:
    pass


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send the error, with the request id -1, and close."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    reason: str


Effect: TypeAlias = Greet | CheckCredentials | Challenge | SendPing | Refuse | Close

_SERVED = frozenset(
    {
        T.CONNECT,
        T.SUBSCRIBE,
        T.PRODUCER,
        T.SEND,
        T.ACK,
        T.FLOW,
        T.UNSUBSCRIBE,
        T.CLOSE_PRODUCER,
        T.CLOSE_CONSUMER,
        T.PING,
        T.PONG,
        T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        T.PARTITIONED_METADATA,
        T.LOOKUP,
        T.CONSUMER_STATS,
        T.SEEK,
        T.GET_LAST_MESSAGE_ID,
        T.GET_TOPICS_OF_NAMESPACE,
        T.GET_SCHEMA,
        T.GET_OR_CREATE_SCHEMA,
        T.WATCH_TOPIC_LIST,
        T.WATCH_TOPIC_LIST_CLOSE,
    }
)
NOT_OFFERED = frozenset(
    {
        T.NEW_TXN,
        T.ADD_PARTITION_TO_TXN,
        T.ADD_SUBSCRIPTION_TO_TXN,
        T.END_TXN,
        T.END_TXN_ON_PARTITION,
        T.END_TXN_ON_SUBSCRIPTION,
        T.TC_CLIENT_CONNECT_REQUEST,
        T.SCALABLE_TOPIC_LOOKUP,
        T.SCALABLE_TOPIC_CLOSE,
        T.SCALABLE_TOPIC_SUBSCRIBE,
        T.WATCH_SCALABLE_TOPICS,
        T.WATCH_SCALABLE_TOPICS_CLOSE,
        T.WATCH_TC_ASSIGNMENTS,
        T.WATCH_TC_ASSIGNMENTS_CLOSE,
    }
)
"""Commands that clients may send and this broker does not offer; `refusals` answers them."""


class SessionProtocol:
    """The session of one client connection.

    `own_urls` are the URLs that clients may name when they ask for a proxy to this broker.  With
    `authenticates`, a client has to prove its role before anything is done for it.
    """

    def __init__(self, own_urls: tuple[str, ...], *, authenticates: bool = False) -> None:
        self.state = ClientState.GREETING
        self.renewal = Renewal.NOT_DUE
        self._authenticates = authenticates
        self._renews = False  # The client can answer a challenge.
        self._role = ""
        self.client_version = ""
        self.protocol_version = 0
        self.sends_broker_metadata = False
        self._own_urls = own_urls
        self._received_bytes = 0
        self._sent_bytes = 0
        self._idle_ticks = 0  # in which the client took nothing of what waited for it
        self._pinged = False

    @property
    def is_ours(self) -> bool:
        """Return True for a client of this project.

        Such a client knows our extra fields, and commands that other clients cannot parse.
        """
        return self.client_version.startswith(CLIENT_NAME)

    # -- commands

    def admit(self, command: int) -> Admission:
        if self.state is ClientState.GREETING:
            return Admission.SERVE if command == T.CONNECT else Admission.VIOLATION
        if self.state is ClientState.CLOSED or command == T.CONNECT:
            return Admission.VIOLATION
        if self.state is ClientState.PROVING:
            return Admission.VIOLATION
        if command == T.AUTH_RESPONSE:
            asked = self.renewal is Renewal.ASKED
            return Admission.SERVE if asked else Admission.VIOLATION
        if command in _SERVED:
            return Admission.SERVE
        return Admission.REFUSE if command in NOT_OFFERED else Admission.VIOLATION

    def violation(self, command: int) -> str:
        """Return what is wrong with a command that was not admitted."""
        if self.state is ClientState.GREETING:
            return f"the client sent {type_name(command)} before CONNECT"
        if self.state is ClientState.PROVING:
            return f"the client sent {type_name(command)} before it was told that it is connected"
        return f"the client sent {type_name(command)}, which is not allowed now"

    # -- inputs

    def connect(
        self,
        client_version: str,
        protocol_version: int,
        *,
        wants_broker_metadata: bool = False,
        renews: bool = False,
        proxy_to: str = "",
    ) -> list[Effect]:
        """Open the session because the client sent CONNECT, or refuse the client.

        With authentication, the session opens when the credentials have been checked.  `renews`:
        the client can answer a challenge.

        `proxy_to` is the URL of another broker, to which the client wants a proxy.
        """
        if self.state is ClientState.CLOSED:
            return []
        assert self.state is ClientState.GREETING
        if protocol_version < VERSION_MIN:
            self.state = ClientState.CLOSED
            reason = (
                f"the client speaks protocol version {protocol_version}, but"
                f" {VERSION_MIN} or newer is needed: use a newer client"
            )
            return [Refuse(pb.UnsupportedVersionError, reason)]
        if proxy_to and proxy_to not in self._own_urls:
            self.state = ClientState.CLOSED
            return [Refuse(pb.NotAllowedError, f"this broker is not a proxy to {proxy_to}")]
        self.client_version = client_version
        self.protocol_version = min(protocol_version, BROKER_PROTOCOL_VERSION)
        self.sends_broker_metadata = wants_broker_metadata and self.is_ours
        if self._authenticates:
            self._renews = renews
            self.state = ClientState.PROVING
            return [CheckCredentials()]
        self.state = ClientState.OPEN
        return [Greet(self.protocol_version)]

    def greeting_overdue(self) -> list[Effect]:
        """Close the session if the client is not connected by now."""
        if self.state is ClientState.GREETING:
            return self._close("the client did not send CONNECT in time")
        if self.state is ClientState.PROVING:
            return self._close("the credentials of the client could not be checked in time")
        return []

    # -- authentication

    def proven(self, role: str) -> list[Effect]:
        """Note that the credentials which were being checked prove this role."""
        if self.state is ClientState.PROVING:
            self.state = ClientState.OPEN
            self._role = role
            return [Greet(self.protocol_version)]
        if self.state is ClientState.CLOSED:
            return []
        assert self.renewal is Renewal.CHECKED
        if role != self._role:
            return self._refuse("the renewed credentials are those of another role")
        self.renewal = Renewal.NOT_DUE
        return []

    def not_proven(self, code: int, reason: str, *, expired: bool = False) -> list[Effect]:
        """Refuse the client: the credentials which were being checked prove nothing.

        With `expired` they were right once, and a client that was asked for new ones stays.
        """
        if self.state is ClientState.CLOSED:
            return []
        assert self.state is ClientState.PROVING or self.renewal is Renewal.CHECKED
        if expired and self.renewal is Renewal.CHECKED:
            self.renewal = Renewal.LATE
            return []
        self.state = ClientState.CLOSED
        return [Refuse(code, reason)]

    def expired(self, why: str = "the credentials have expired") -> list[Effect]:
        """Note that the credentials no longer count, or that they are still not renewed."""
        if self.state is not ClientState.OPEN:
            return []
        if self.renewal is not Renewal.NOT_DUE:
            return self._refuse(f"{why}, and were not renewed in time")
        if not self._renews:
            return self._refuse(why)
        self.renewal = Renewal.ASKED
        return [Challenge()]

    def revoked(self) -> list[Effect]:
        """Close the session, because the token of the client was revoked."""
        if self.state is ClientState.CLOSED:
            return []
        return self._refuse("the token of the client was revoked")

    def ask_again(self) -> list[Effect]:
        """Ask a client again that has answered with credentials that have expired."""
        if self.state is ClientState.CLOSED:
            return []
        assert self.renewal is Renewal.LATE
        self.renewal = Renewal.ASKED
        return [Challenge()]

    def answered(self) -> list[Effect]:
        """Note that the client has answered the challenge."""
        if self.state is ClientState.CLOSED:
            return []
        assert self.renewal is Renewal.ASKED
        self.renewal = Renewal.CHECKED
        return [CheckCredentials()]

    def _refuse(self, reason: str) -> list[Effect]:
        self.state = ClientState.CLOSED
        return [Refuse(pb.AuthenticationError, reason)]

    # -- silence and the end

    def ticked(
        self,
        received_bytes: int,
        *,
        reading: bool = True,
        sent_bytes: int = 0,
        pending_bytes: int = 0,
    ) -> list[Effect]:
        """Note that the keep-alive interval has passed.

        `received_bytes` and `sent_bytes` count from the beginning of the connection;
        `pending_bytes` wait for the client now.
        """
        if self.state is ClientState.CLOSED:
            return []
        return self._check_taken(sent_bytes, pending_bytes) or self._check_heard(
            received_bytes, reading
        )

    def violated(self, reason: str) -> list[Effect]:
        """End the session because the client broke the protocol."""
        if self.state is ClientState.CLOSED:
            return []
        self.state = ClientState.CLOSED
        return [Refuse(pb.NotAllowedError, reason)]

    def ended(self) -> list[Effect]:
        """Note that the connection is closed, by either side."""
        self.state = ClientState.CLOSED
        return []

    # -- keep-alive

    def _check_taken(self, sent_bytes: int, pending_bytes: int) -> list[Effect]:
        """Close a client that has taken no queued byte for two ticks."""
        taken = sent_bytes != self._sent_bytes or not pending_bytes
        self._sent_bytes = sent_bytes
        self._idle_ticks = 0 if taken else self._idle_ticks + 1
        if self._idle_ticks < _IDLE_TICKS_MAX:
            return []
        return self._close("the client reads nothing of the data that wait for it")

    def _check_heard(self, received_bytes: int, reading: bool) -> list[Effect]:
        """Ask a client that has sent nothing since the last tick; close it if it was asked then."""
        heard = received_bytes != self._received_bytes
        self._received_bytes = received_bytes
        if self.state is not ClientState.OPEN:
            return []
        if heard or not reading:
            self._pinged = False
            return []
        if self._pinged:
            return self._close("the client has fallen silent")
        self._pinged = True
        return [SendPing()]

    def _close(self, reason: str) -> list[Effect]:
        self.state = ClientState.CLOSED
        return [Close(reason)]
