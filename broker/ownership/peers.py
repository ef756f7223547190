"""Finds out whether the process of another broker is dead, and removes its records if so.

Each broker keeps a connection to the service port of every other broker.  The incarnation in the
answer to CONNECT tells which start of the process it talks to.  A broken connection proves little.
A process is dead if its host answers that *nothing listens* on the port any longer, or if *another
incarnation* answers in its place.  Silence is not death: if the host does not answer, or the port
cannot be reached, the records stay until the session ends.

A wrong verdict costs a takeover and never data: the new owner fences the ledgers of the old one.

Each verdict but ALIVE has a reason in words, which goes to the log.  The log of the broker that
cannot be reached would not tell it.
"""

from dataclasses import dataclass
from enum import Enum, auto

import trio

from daybook.broker.ownership.membership import Identity, Member, members, remove
from daybook.broker.ownership.peer_network import PeerNetwork, address_of, has_tls, preferred
from daybook.broker.security.broker_token import BrokerToken
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, NobodyListensError, WireError
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.messages.registry import BROKER_PROTOCOL_VERSION, Command, decode_frame, encode
from daybook.wire.metadata.store import MetadataError, MetadataStore, SessionState
from daybook.wire.outbox import Flusher
from daybook.wire.probe import READY_S, NoAnswerError, NotAskedError, SilentError, ask_port
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tls import TlsClient
from daybook.wire.version import __version__

_PRODUCT = f"Daybook/{__version__}"
_FRAME_BYTES_MAX = 1 << 16  # no command that a peer sends here is larger
_CONNECT_TIMEOUT_S = 2.0
_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_STORE_RETRY_S = 0.2


class Verdict(Enum):
    ALIVE = auto()
    DEAD = auto()
    SILENT = auto()  # it is unknown whether the process is alive


@dataclass(frozen=True, slots=True)
class Probed:
    """The verdict about a broker, with its reason, and the connection if it is ALIVE."""

    verdict: Verdict
    why: str = ""
    connection: FrameConnection | None = None


def server_version(incarnation: str) -> str:
    """Return the version that a broker sends in CONNECTED."""
    return f"{_PRODUCT} {incarnation}"


def greeting(token: BrokerToken | None = None) -> bytes:
    """Return the frame by which a broker introduces itself to another one, or to itself."""
    token = token or BrokerToken()
    hello = pb.CommandConnect(
        client_version=f"{_PRODUCT} peer",
        auth_method_name=token.method,
        auth_data=token.read(),
        protocol_version=BROKER_PROTOCOL_VERSION,
    )
    hello.feature_flags.supports_auth_refresh = True
    return encode(hello)


def why_not_served(frame: bytes) -> str:
    """Return "" if `frame` shows that a broker serves, else what is wrong with it.

    A broker that asks for credentials serves, too: the error is an answer of its protocol.
    """
    try:
        command = decode_frame(memoryview(frame))
    except WireError as error:
        return f"the answer is not one of a broker: {error}"
    match command:
        case Command(body=pb.CommandConnected()):
            return ""
        case Command(body=pb.CommandError() as refused):
            if refused.error in (pb.AuthenticationError, pb.AuthorizationError):
                return ""
            return f"the broker refuses the connection: {refused.message}"
        case _:
            return "the broker did not answer with CONNECTED"


def serves(
    member: Member,
    token: BrokerToken,
    tls: TlsClient | None = None,
    *,
    prefers_tls: bool = False,
) -> bool | None:
    """Return True if the process that registered as `member` answers now.

    Return None if its port accepts connections and is silent, and False in all other cases.  The
    call blocks, so it belongs in a thread.
    """
    record = member.record
    plain, encrypted = record.pulsar_service_url, record.pulsar_service_url_tls
    url = preferred(plain, encrypted, prefers_tls=prefers_tls) or ""
    address = address_of(url)
    if address is None or member.record.incarnation is None:
        return False  # Not a broker of this project: its answer would not name an incarnation.
    if has_tls(url) and tls is None:
        return False
    context = tls.contexts.latest if tls is not None and has_tls(url) else None
    try:
        command = decode_frame(memoryview(ask_port(*address, greeting(token), READY_S, context)))
    except SilentError:
        return None
    except (NoAnswerError, NotAskedError, WireError):
        return False
    match command:
        case Command(body=pb.CommandConnected() as connected):
            return connected.server_version == server_version(member.record.incarnation)
        case _:
            return False


class PeerProbe:
    """Connects to a broker's service port and finds out which process answers."""

    def __init__(
        self,
        network: PeerNetwork,
        arenas: ArenaPool,
        flusher: Flusher,
        token: BrokerToken | None = None,
    ) -> None:
        self.token = token or BrokerToken()
        self._network = network
        self._arenas = arenas
        self._flusher = flusher

    async def probe(self, member: Member) -> Probed:
        """Find out whether the process that registered as `member` is alive."""
        probed = await self.connect(member)
        if probed.connection is not None:
            probed.connection.close()
        return probed

    async def connect(self, member: Member) -> Probed:
        """Return the verdict, and the connection if it is ALIVE.  The caller closes it."""
        record = member.record
        url = self._network.url_of(record.pulsar_service_url, record.pulsar_service_url_tls) or ""
        if address_of(url) is None or member.record.incarnation is None:
            await trio.lowlevel.checkpoint()
            # Not a broker of this project: only its session tells.
            return Probed(Verdict.SILENT, f"it is no broker of Daybook ({url!r})")
        connection: FrameConnection | None = None
        probed = Probed(Verdict.SILENT, f"{url} did not answer within {_CONNECT_TIMEOUT_S:g} s")
        try:
            with trio.move_on_after(_CONNECT_TIMEOUT_S):
                stream = await self._network.connect(url)
                connection = FrameConnection(
                    stream,
                    arenas=self._arenas,
                    flusher=self._flusher,
                    frame_bytes_max=_FRAME_BYTES_MAX,
                    name=f"peer {member.broker_id}",
                )
                probed = await self._handshake(connection, url, member.record.incarnation)
        except NobodyListensError:
            probed = Probed(Verdict.DEAD, f"nothing listens at {url}")
        except (ConnectionLostError, WireError) as error:
            probed = Probed(Verdict.SILENT, f"{url} cannot be used: {error}")
        finally:
            if connection is not None and probed.verdict is not Verdict.ALIVE:
                connection.close()
        return probed

    async def _handshake(self, connection: FrameConnection, url: str, incarnation: str) -> Probed:
        connection.send([greeting(self.token)])
        frames = await connection.receive()
        if not frames:
            return Probed(Verdict.SILENT, f"{url} has ended the connection without an answer")
        match decode_frame(frames[0]):
            case Command(body=pb.CommandConnected() as connected):
                product, _, answered = connected.server_version.rpartition(" ")
                if answered == incarnation:
                    return Probed(Verdict.ALIVE, "", connection)
                if product.startswith("Daybook/"):
                    return Probed(Verdict.DEAD, f"another process answers at {url}")
                return Probed(Verdict.SILENT, f"what answers at {url} is no broker of Daybook")
            case Command(body=pb.CommandError() as refused):
                # Something answers, but does not accept us now.
                return Probed(Verdict.SILENT, f"{url} refuses this broker: {refused.message}")
            case _:
                return Probed(Verdict.SILENT, f"{url} did not answer as a broker does")


async def _hold(connection: FrameConnection, token: BrokerToken) -> None:
    """Keep a connection alive until it ends."""
    while frames := await connection.receive():
        for frame in frames:
            match decode_frame(frame):
                case Command(body=pb.CommandPing()):
                    connection.send([encode(pb.CommandPong())])
                case Command(body=pb.CommandAuthChallenge()):
                    # The token has expired: the file may have a new one by now.
                    answer = pb.AuthData(auth_method_name=token.method, auth_data=token.read())
                    connection.send([encode(pb.CommandAuthResponse(response=answer))])
                case _:
                    pass  # No other command concerns a peer.


class Peers:
    """The other brokers, as this broker sees them."""

    def __init__(
        self, store: MetadataStore, identity: Identity, probe: PeerProbe, log: Log
    ) -> None:
        self._log = log
        self._limited_log = LogLimiter(log)
        self._store = store
        self._identity = identity
        self._probe = probe
        self._monitored: dict[tuple[str, int], trio.CancelScope] = {}
        self._connected: set[str] = set()
        self._dead: set[int] = set()  # sessions whose process was found dead
        self._look = trio.Event()  # set when the registrations may have changed
        self.registered: tuple[Member, ...] = ()
        """The other registered brokers, as last read from the store."""

    @property
    def token(self) -> BrokerToken:
        return self._probe.token

    def is_dead(self, session: int) -> bool:
        """Return True if this broker has found the process behind the session dead."""
        return session in self._dead

    def is_connected(self, broker_id: str) -> bool:
        """Return True if there is a connection to that broker now."""
        return broker_id in self._connected

    async def run(self) -> None:
        self._store.add_session_listener(self._session_changed)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    # Renewed before the read: a change during the read is not missed.
                    self._look = trio.Event()
                    await self._monitor_all(nursery)
                    await self._look.wait()
        finally:
            self._store.remove_session_listener(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._look.set()

    async def _monitor_all(self, nursery: trio.Nursery) -> None:
        """Run one task for each registration of another broker."""
        try:
            found = await members(self._store, self._look.set)
        except MetadataError:
            await trio.sleep(_STORE_RETRY_S)
            if self._store.session_state is SessionState.CONNECTED:
                self._look.set()
            return
        others = {
            (member.broker_id, member.session): member
            for member in found
            if member.record.incarnation != self._identity.incarnation
        }
        self.registered = tuple(others.values())
        for key in [key for key in self._monitored if key not in others]:
            self._monitored.pop(key).cancel()
        self._dead &= {member.session for member in others.values()}
        for key, member in others.items():
            if key not in self._monitored:
                self._dead.discard(member.session)
                scope = self._monitored[key] = trio.CancelScope()
                nursery.start_soon(self._monitor, member, scope)

    async def _monitor(self, member: Member, scope: trio.CancelScope) -> None:
        with scope:
            failures = 0
            while True:
                probed = await self._probe.connect(member)
                connection = probed.connection
                if probed.verdict is Verdict.DEAD:
                    await self._remove(member, probed.why)
                    # If it lives after all, it joins again, perhaps in the same session and before
                    # this broker reads the registrations: then it is monitored from the start.
                    await trio.sleep(_STORE_RETRY_S)
                    key = member.broker_id, member.session
                    if self._monitored.get(key) is scope:
                        del self._monitored[key]
                        self._look.set()
                    return
                if connection is not None:
                    since = trio.current_time()
                    self._connected.add(member.broker_id)
                    try:
                        await _hold_until_broken(connection, self.token)
                    finally:
                        self._connected.discard(member.broker_id)
                    if trio.current_time() - since > _PAUSES_S[-1]:
                        failures = 0
                        continue  # without a pause: a peer that has just died is found out here
                elif failures >= len(_PAUSES_S):
                    self._tell_silent(member, probed.why)
                await trio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1

    def _tell_silent(self, member: Member, why: str) -> None:
        """Log, once a minute, why a broker that may be alive cannot be asked."""
        if member.record.incarnation is not None:
            self._limited_log.warning(
                "another broker cannot be reached, and keeps its bundles until its session ends",
                kind=(member.broker_id, why),
                peer=member.broker_id,
                why=why,
            )

    async def _remove(self, member: Member, why: str) -> None:
        """Remove the records of a dead broker, so that its bundles are free."""
        # Noted first: this broker places no bundle there while the records are being removed.
        self._dead.add(member.session)
        self._log.warning(
            "another broker is dead; its bundles will be released", peer=member.broker_id, why=why
        )
        while True:
            try:
                if await remove(self._store, member):
                    self._log.info(
                        "the bundles of a dead broker are released", peer=member.broker_id
                    )
                    return
            except MetadataError:
                pass
            await trio.sleep(_STORE_RETRY_S)


async def _hold_until_broken(connection: FrameConnection, token: BrokerToken) -> None:
    try:
        await _hold(connection, token)
    except WireError:
        pass
    finally:
        connection.close()
