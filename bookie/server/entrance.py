"""The entrance of a bookie: the frames of a connection before its requests are served.

    START_TLS -> TLS handshake -> AUTH, one or more -> requests

`Door` has what the settings say, and is shared; `Entrance` is the state of one connection.  It is
pure: `step` takes a frame and returns what is to be done, and the server does it.  A bookie whose
settings say nothing has no door, and serves the first frame at once.

    authentication   a peer with credentials          a peer without
    off              is told AuthDisabledPlugin       enters
    permit           proves them, or is refused       enters, and is counted
    require          proves them, or is refused       is refused

Credentials are a password (SASL DIGEST-MD5, the plugin `sasl` of Apache's bookies), or the
certificate of the TLS handshake, if its common name or one of its roles is allowed.  Wrong
passwords are refused in each mode.  A certificate that is not allowed counts as none, because it
may be there for TLS alone.  With `require_tls`, nothing but START_TLS is taken from a peer without
TLS.

Refusals are those of Apache's bookies: in v3 the status UNAUTHORIZED; in v2 the same in the answer
to an add or a read, and an end without an answer to anything else.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, TypeAlias

from daybook.wire.digest_md5 import DigestError, DigestServer
from daybook.wire.errors import MalformedError, WireError
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.blocks import BLOCK_HEADER, decode_block, encode_block_answer
from daybook.wire.messages.bookie import AUTH_DISABLED, Add, Auth, Read, Status
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import PeerCertificate

Mode: TypeAlias = Literal["off", "permit", "require"]
SASL = "sasl"
_REFUSALS_MAX = 100  # requests that one connection is refused before it is closed
_UNAUTHORIZED = int(Status.UNAUTHORIZED)
_ROLES = "0"  # the part of an organizational unit in which Apache's bookies look for roles


@dataclass(frozen=True, slots=True)
class Door:
    """The rules of one bookie.  `secret` returns the hash that stands for a user's password."""

    mode: Mode = "off"
    tls: bool = False  # START_TLS is served
    require_tls: bool = False
    secret: Callable[[str], bytes | None] | None = None
    allowed_certificates: Collection[str] = ()
    allowed_roles: Collection[str] = ()

    def identity_of(self, certificate: PeerCertificate | None) -> str:
        """Return whom a certificate of a TLS handshake proves, "" if it is nobody who may enter."""
        if certificate is None:
            return ""
        if certificate.common_name and certificate.common_name in self.allowed_certificates:
            return certificate.common_name
        if self.allowed_roles:
            return next((r for r in roles_of(certificate) if r in self.allowed_roles), "")
        return ""

    def may_change(self, certificate: PeerCertificate | None) -> bool:
        """Return True if a client of the HTTP ports may change something.

        Nobody shows a password there.  So where clients must prove who they are, only those may
        that have shown an allowed certificate.
        """
        return self.mode != "require" or bool(self.identity_of(certificate))


def roles_of(certificate: PeerCertificate) -> list[str]:
    """Return the roles in a certificate, as Apache's `BookieAuthZFactory` finds them.

    The organizational unit has parts, `0:role,role;1:cluster`; the roles are in part 0.
    """
    from cryptography import x509  # slow to import, and needed for certificates alone
    from cryptography.x509.oid import NameOID

    subject = x509.load_der_x509_certificate(certificate.der).subject
    for unit in subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME):
        for part in str(unit.value).split(";"):
            name, colon, roles = part.partition(":")
            if colon and name.strip() == _ROLES:
                return [role.strip() for role in roles.split(",") if role.strip()]
    return []


class Action(Enum):
    STAY = auto()  # send the answer, and go on with the next frame
    START_TLS = auto()  # send the answer, then begin the handshake
    ENTER = auto()  # send the answer, and serve the frames behind this one
    ENTER_HERE = auto()  # serve this frame, and those behind it
    LEAVE = auto()  # send the answer, and close the connection


@dataclass(frozen=True, slots=True)
class Step:
    action: Action
    answer: bytes = b""
    why: str = ""  # the reason of a refusal, for the log; it quotes nothing that the peer has sent


class _State(Enum):
    NEW = auto()
    CHALLENGED = auto()
    OVER = auto()


@dataclass(slots=True)
class Entrance:
    """One connection on its way in.  `new_nonce` returns a random text at each call."""

    door: Door
    new_nonce: Callable[[], str]
    encrypted: bool = False
    identity: str = ""  # the user or the name that the peer has proved
    _state: _State = _State.NEW
    _digest: DigestServer | None = None
    _refused: int = 0
    _began_in_plain: list[bytes] = field(default_factory=list[bytes])

    def step(self, frame: memoryview) -> Step:
        """Return what to do about a frame.  Raise WireError for bytes that cannot be answered."""
        assert self._state is not _State.OVER
        step = self._step_v3(frame) if bookie_v3.is_v3(frame) else self._step_v2(frame)
        if step.action in (Action.ENTER, Action.ENTER_HERE, Action.LEAVE):
            self._state = _State.OVER
        return step

    def started_tls(self, certificate: PeerCertificate | None) -> None:
        """Note that the handshake is complete; `taken` follows."""
        self.encrypted = True
        self.identity = self.door.identity_of(certificate)

    def taken(self) -> list[Step]:
        """Return the steps of the frames that came before the handshake."""
        begun, self._began_in_plain = self._began_in_plain, []
        return [self.step(memoryview(frame)) for frame in begun]

    def take_before_handshake(self, frame: memoryview) -> None:
        """Take a frame that has come in plain text between START_TLS and the handshake.

        Apache's client sends the beginning of its authentication there.  It says nothing but that
        the peer wants to authenticate, so it may count after the handshake, although anybody on
        the way may have written it.  Raise WireError for any other frame, or a second one.
        """
        if self._began_in_plain or not _begins_auth(frame):
            raise MalformedError("a request in plain text follows START_TLS")
        self._began_in_plain.append(bytes(frame))

    # -- protocol v3

    def _step_v3(self, frame: memoryview) -> Step:
        request = bookie_v3.decode_request(frame)
        operation = request.header.operation
        if operation == pb.START_TLS and request.HasField("startTLSRequest"):
            return self._start_tls(request)
        if self.door.require_tls and not self.encrypted:
            return self._leave_v3(request, "TLS is required")
        if operation == pb.AUTH and request.HasField("authRequest"):
            return self._auth_v3(request)
        if self.lets_in:
            return Step(Action.ENTER_HERE)
        return self._refuse(bookie_v3.encode(_response(request, Status.UNAUTHORIZED)))

    def _start_tls(self, request: pb.Request) -> Step:
        if self.encrypted or not self.door.tls or self._state is not _State.NEW:
            answer = bookie_v3.encode(_response(request, Status.BAD_REQUEST))
            if self.lets_in:
                return Step(Action.STAY, answer)
            return self._refuse(answer)
        response = _response(request, Status.OK)
        response.startTLSResponse.SetInParent()
        return Step(Action.START_TLS, bookie_v3.encode(response))

    def _auth_v3(self, request: pb.Request) -> Step:
        message = request.authRequest
        response = _response(request, Status.OK)
        response.authResponse.authPluginName = SASL
        if self.door.mode == "off":
            response.authResponse.authPluginName = AUTH_DISABLED
            response.authResponse.payload = b""
            return Step(Action.ENTER, bookie_v3.encode(response))
        if message.authPluginName != SASL or self.door.secret is None:
            return self._refuse(bookie_v3.encode(_response(request, Status.UNAUTHORIZED)))
        try:
            entered, response.authResponse.payload = self._exchange(message.payload)
        except DigestError as error:
            return self._leave_v3(request, str(error))
        return Step(Action.ENTER if entered else Action.STAY, bookie_v3.encode(response))

    def _leave_v3(self, request: pb.Request, why: str) -> Step:
        return Step(Action.LEAVE, bookie_v3.encode(_response(request, Status.UNAUTHORIZED)), why)

    # -- protocol v2

    def _step_v2(self, frame: memoryview) -> Step:
        plain = self.door.require_tls and not self.encrypted
        header = int.from_bytes(frame[:4], "big") if len(frame) >= 4 else 0
        if header == BLOCK_HEADER:
            if not plain and self.lets_in:
                return Step(Action.ENTER_HERE)
            block = decode_block(frame)
            answer = encode_block_answer(_UNAUTHORIZED, block.ledger_id, block.first, block.last)
            return self._refuse(answer, leaves=plain)
        match bookie.decode_request(frame):
            case Auth(header, plugin, payload) if not plain:
                return self._auth_v2(header >> 24, plugin, payload)
            case Add(header=header, ledger_id=ledger_id, entry_id=entry_id) if (
                plain or not self.lets_in
            ):
                answer = bookie.encode_add_answer(header, _UNAUTHORIZED, ledger_id, entry_id)
                return self._refuse(answer, leaves=plain)
            case Read(header=header, ledger_id=ledger_id, entry_id=entry_id) if (
                plain or not self.lets_in
            ):
                answer = bookie.encode_read_answer(header, _UNAUTHORIZED, ledger_id, entry_id)
                return self._refuse(answer, leaves=plain)
            case _ if not plain and self.lets_in:
                return Step(Action.ENTER_HERE)
            case _:
                why = "TLS is required" if plain else "it has not authenticated itself"
                return Step(Action.LEAVE, why=why)

    def _auth_v2(self, version: int, plugin: str, payload: bytes) -> Step:
        if self.door.mode == "off":
            return Step(Action.ENTER, bookie.encode_auth(AUTH_DISABLED, version=version))
        if plugin != SASL or self.door.secret is None:
            return Step(Action.LEAVE, why="it wants another way to authenticate")
        try:
            entered, answer = self._exchange(payload)
        except DigestError as error:
            return Step(Action.LEAVE, why=str(error))
        return Step(
            Action.ENTER if entered else Action.STAY,
            bookie.encode_auth(SASL, answer, version=version),
        )

    # -- for both

    def _exchange(self, payload: bytes) -> tuple[bool, bytes]:
        """Return True once the peer has proved who it is, and the token to answer with."""
        if self._digest is None:
            if payload:
                raise DigestError("the first token of DIGEST-MD5 is not empty")
            self._digest = DigestServer(self.new_nonce())
            self._state = _State.CHALLENGED
            return False, self._digest.challenge
        assert self.door.secret is not None
        self.identity, proof = self._digest.verify(payload, self.door.secret)
        return True, proof

    @property
    def lets_in(self) -> bool:
        """Return True if the peer may enter without an AUTH, or with what it has proved so far."""
        if self._state is _State.CHALLENGED:
            return False  # It has begun to authenticate itself, and has to end that.
        return bool(self.identity) or self.door.mode != "require"

    def _refuse(self, answer: bytes, *, leaves: bool = False) -> Step:
        self._refused += 1
        if leaves:
            return Step(Action.LEAVE, answer, "TLS is required")
        if self._refused > _REFUSALS_MAX:
            return Step(Action.LEAVE, answer, "it goes on without authenticating itself")
        return Step(Action.STAY, answer, "it has not authenticated itself")


def _begins_auth(frame: memoryview) -> bool:
    """Return True for an AUTH without a token, which is how each exchange begins."""
    try:
        if bookie_v3.is_v3(frame):
            request = bookie_v3.decode_request(frame)
            begins = request.header.operation == pb.AUTH and request.HasField("authRequest")
            return begins and not request.authRequest.payload
        asked = bookie.decode_request(frame)
    except WireError:
        return False
    return isinstance(asked, Auth) and not asked.payload


def _response(request: pb.Request, status: Status) -> pb.Response:
    return bookie_v3.response_to(request, status)
