"""One client's connection: the handshake, keep-alive, and everything that goes out.

This module knows nothing of topics.  `broker.service.handlers` reads from the connection and
carries out commands; producers and consumers send on it.  So they can name the concrete class, and
no import points back.

Reading stops while a topic that this client sends to has too much to store, and while too much
waits to be sent to the client.  Requests never stop it: a request that cannot begin yet waits in a
queue (`broker.service.request_turns`), or is refused.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

import trio
from google.protobuf.message import Message

from daybook.broker.config import BrokerConfig
from daybook.broker.connected_client import Call, ConnectedClient
from daybook.broker.dispatch.memory_limit import DispatchMemoryLimit
from daybook.broker.errors import (
    AuthenticationError,
    BrokerError,
    ExpiredError,
    NotAllowedError,
    RefusedError,
    UnavailableError,
)
from daybook.broker.limits import ConnectionLimits
from daybook.broker.protocol import session
from daybook.broker.protocol.session import SessionProtocol
from daybook.broker.security.audit import Audit
from daybook.broker.security.authentication import Authentication, Credentials
from daybook.broker.security.identity import Caller, on_behalf
from daybook.broker.security.token_trust import Standing
from daybook.broker.service.places import address_of
from daybook.broker.service.request_counts import RefusalLog, RequestCounts
from daybook.broker.service.shared_pace import SharedPace
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.connection import FrameConnection, PendingTotal
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.messages.registry import NO_ID, encode, type_name
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer, PeerCertificate

_PING = encode(pb.CommandPing())
_PONG = encode(pb.CommandPong())
# The words that clients expect in a challenge which asks them for their credentials once more.
_REFRESH = b"PulsarAuthRefresh"
_EXPIRY_LOOK_S = 30.0  # The wall clock may be set while a connection waits for its expiry.
_ASK_AGAIN_S = 1.0  # between two questions to a client whose credentials have expired
_LATE_S = 10.0  # A client may repeat credentials that have expired for so long.
_EXPIRED = "the credentials have expired"
_KEY_REMOVED = "the credentials are a token whose key was removed"
FRAME_PADDING_BYTES = 10 * 1024  # for the headers of a message, as Pulsar reserves it
_CUT_LINES_MAX = 10  # in a minute, for all newcomers, and for each address of clients
_REASON_CHARS_MAX = 512
_UNREAD_BYTES_MIN = 64 << 10  # with less queued, a client is read, whatever waits for others


def _nothing() -> None:
    """Do nothing about the end of a session that has ended."""


def _nothing_about(_: object) -> None:
    """Do nothing about a producer or a consumer whose connection has ended."""


def _let_in(_role: str) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class ConnectionContext:
    """The parts of a broker that all client connections share, apart from topics."""

    config: BrokerConfig
    clock: WallClock
    arenas: ArenaPool
    flusher: Flusher
    server_version: str  # the name and version that the broker sends in CONNECTED
    own_urls: tuple[str, ...]  # the URLs under which clients know this broker
    log: Log
    stored_bytes_max: Callable[[], int]  # the largest entry that bookies take at the moment
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    audit: Audit | None = None
    own_probes: Container[str] = ()  # the peers by which the broker probes its own port
    authentication: Authentication | None = None  # None: clients are not asked who they are
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    dispatch_memory: DispatchMemoryLimit = field(init=False)
    unread: PendingTotal = field(default_factory=PendingTotal)  # queued for all clients
    refusal_log: RefusalLog = field(init=False)
    refusal_pace: SharedPace = field(init=False)
    cut_log: LogLimiter = field(init=False)

    def __post_init__(self) -> None:
        budget = DispatchMemoryLimit(
            total_bytes=self.limits.dispatch_total_bytes,
            connection_bytes=self.limits.dispatch_bytes_max,
        )
        # A frozen dataclass can set its derived fields only in this way.
        object.__setattr__(self, "dispatch_memory", budget)
        object.__setattr__(self, "refusal_log", RefusalLog(self.log, self.request_counts))
        pace = SharedPace(frozenset(self.config.super_users), self.request_counts, self.log)
        object.__setattr__(self, "refusal_pace", pace)
        object.__setattr__(self, "cut_log", LogLimiter(self.log, lines_max=_CUT_LINES_MAX))

    def message_bytes_max(self) -> int:
        """Return the size of the largest message, as clients are told.

        Clients send larger messages in chunks of this size, so bookies have to take it with its
        headers.
        """
        return min(self.config.max_message_size, self.stored_bytes_max() - FRAME_PADDING_BYTES)


class ClientConnection:
    """The broker's end of one client connection.

    `on_closing` is called when the session has ended: no request may begin from then on.
    `forget_producer` and `forget_consumer` are called by a producer or consumer that the broker has
    closed, after the client was told.  `prove` is called with the role that the client has proven,
    "" for one whose connections are not counted, and returns why it may have no connection, or "".
    """

    def __init__(
        self,
        frames: FrameConnection,
        context: ConnectionContext,
        *,
        on_closing: Callable[[], None],
        forget_producer: Callable[[Any], None],
        forget_consumer: Callable[[Any], None],
        prove: Callable[[str], str] = _let_in,
    ) -> None:
        self.closing = False  # the session has ended: nothing more is read or begun
        self.reading = True  # False while back-pressure stops the reading of frames
        self.must_yield = False  # the latest commands have caused much work
        self.awaits_client = False  # not read until the client takes what is queued for it
        self.connected_ms = context.clock.now_ms()
        self._connects_by_s = trio.current_time() + context.config.connect_timeout_s
        self._prove = prove
        self._forget_producer = forget_producer
        self._forget_consumer = forget_consumer
        self._frames = frames
        self._context = context
        self._limits = context.limits
        self._session = SessionProtocol(
            context.own_urls, authenticates=context.authentication is not None
        )
        self._caller: Caller | None = None  # None without authentication, and before it
        self._is_own_probe = frames.peer in context.own_probes
        self._noted = False  # The audit log knows why the client was not let in.
        self._original = ""  # the role for which a proxy says that it asks
        self._identified = trio.Event()  # set when credentials were checked; then renewed
        self._lapsed = trio.Event()  # set when the key of the token was removed; then renewed
        self._watching = False  # a task waits for the end of the credentials
        self._on_closing = on_closing
        self._nursery: trio.Nursery | None = None
        self._at_flush: list[Call] = []
        self._when_writable: dict[Call, None] = {}
        self._heard = trio.Event()  # set when bytes arrive or the session changes
        self._client: ConnectedClient | None = None
        self._pong_end = 0  # where the latest PONG ends, among all bytes that are sent

    # -- properties

    @property
    def client(self) -> ConnectedClient:
        """Return the client as its producers and consumers see it, after its CONNECT."""
        assert self._client is not None
        return self._client

    @property
    def caller(self) -> Caller | None:
        """Return who the client was when it connected; None before that, and if it is not asked.

        A client that later proves another role is refused, and never becomes that one.
        """
        return None if self._client is None else self._client.caller

    @property
    def peer(self) -> str:
        return self._frames.peer

    @property
    def is_lost(self) -> bool:
        """Return True if nothing can be sent to the client any more."""
        return self._frames.closed

    @property
    def encrypted(self) -> bool:
        """Return True if the client came over TLS."""
        return self._frames.encrypted

    @property
    def certificate(self) -> PeerCertificate | None:
        """Return the certificate by which the client has proved who it is, if it showed one."""
        return self._frames.certificate

    @property
    def session_state(self) -> session.ClientState:
        return self._session.state

    @property
    def is_ours(self) -> bool:
        """Return True for a client of this project, which knows the fields that Pulsar lacks."""
        return self._session.is_ours

    def _room_bytes(self) -> int:
        return self._context.dispatch_memory.share_bytes - self._frames.pending_bytes

    @property
    def takes_answers(self) -> bool:
        """Return False while so many answers wait for the client that no request may begin."""
        return self._frames.pending_bytes <= self._unread_bytes_max

    @property
    def _unread_bytes_max(self) -> int:
        """Return what may wait for this client: less, once much waits for all clients together."""
        free = self._limits.unread_total_bytes - self._context.unread.bytes
        return min(self._limits.unread_bytes_max, max(_UNREAD_BYTES_MIN, free))

    # -- lifetime

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Run the tasks of the connection inside the `with` block."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            self._forget()

    def _forget(self) -> None:
        """Drop the references to objects that refer to this connection.

        So all of them are freed now.  The garbage collector would stop the whole process for tens
        of milliseconds to find those of a few hundred clients.
        """
        self._nursery = self._client = None
        self._on_closing = _nothing
        self._forget_producer = self._forget_consumer = _nothing_about
        self._prove = _let_in

    def start_task(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run the task until it ends or the connection does."""
        assert self._nursery is not None
        self._nursery.start_soon(task, *args)

    async def receive_first(self) -> list[memoryview]:
        """Return the first frames of the client, and keep the connection alive from then on.

        An empty list means that it has ended, maybe because nothing came in time.  There is no task
        until then, so that strangers who stay silent cost little.
        """
        frames: list[memoryview] = []
        with trio.move_on_at(self._connects_by_s) as limit:
            frames = await self.receive()
        if limit.cancelled_caught:
            self._perform(self._session.greeting_overdue())
            return []
        if frames:
            self.start_task(self._keep_alive)
        return frames

    async def receive(self) -> list[memoryview]:
        """Return the frames that have arrived, at least one; an empty list at the end."""
        frames = await self._frames.receive()
        if frames:
            self._heard.set()
        return frames

    async def send_rest(self) -> None:
        """Send what is queued, for a moment, and close."""
        await self._frames.aclose(self._frames.close_reason or "closed")

    def end(self) -> None:
        """Note that the connection has ended, for whatever reason."""
        self._on_closing()
        self._perform(self._session.ended())
        self.closing = True
        if self._context.authentication is not None:
            self._context.authentication.forget(self)

    async def _keep_alive(self) -> None:
        config = self._context.config
        states = session.ClientState.GREETING, session.ClientState.PROVING
        with trio.move_on_at(self._connects_by_s):
            while self._session.state in states:
                await self._wait_heard()
        self._perform(self._session.greeting_overdue())
        while True:
            await trio.sleep(config.keep_alive_s)
            # Silence means nothing while the broker itself does not read.
            frames = self._frames
            effects = self._session.ticked(
                frames.received_bytes,
                reading=self.reading,
                sent_bytes=frames.sent_bytes,
                pending_bytes=frames.pending_bytes,
            )
            self._perform(effects)

    async def _is_alive(self, within_s: float) -> bool:
        """Return True if the client answers a PING in time.  Any byte that it sends will do."""
        if self.closing or self._frames.closed:
            return False
        if self.awaits_client:
            return await self._takes_something(within_s)
        if not self.reading:
            return True  # Its bytes are not read now, so nothing shows that it is dead.
        before = self._frames.received_bytes
        self.send_ping()
        with trio.move_on_after(within_s):
            while self._frames.received_bytes == before and not self.closing:
                await self._wait_heard()
        return self._frames.received_bytes != before and not self.closing

    async def _takes_something(self, within_s: float) -> bool:
        """Return True if the client takes a byte of what is queued for it in time."""
        frames, before = self._frames, self._frames.sent_bytes
        with trio.move_on_after(within_s):
            await frames.wait_below(frames.pending_bytes - 1)
        taken = frames.sent_bytes != before or not self.awaits_client
        return taken and not frames.closed

    async def _wait_heard(self) -> None:
        """Return when bytes have arrived or the session has changed."""
        if self._heard.is_set():
            self._heard = trio.Event()
        await self._heard.wait()

    # -- sending

    def send(self, buffers: Sequence[Buffer]) -> None:
        self._frames.send(buffers)

    def together(self) -> Flusher:
        """Return a context manager: all sends of its block, which must not wait, share a flush."""
        return self._frames.together()

    def answer_ping(self) -> None:
        """Send a PONG, unless one is queued: it answers any number of PINGs."""
        frames = self._frames
        if frames.sent_bytes >= self._pong_end:
            frames.send((_PONG,))
            self._pong_end = frames.sent_bytes + frames.pending_bytes

    def send_command(self, message: Message) -> None:
        self._frames.send((encode(message),))

    def send_ping(self) -> None:
        self._frames.send((_PING,))

    def _note_refused_send(self, code: int, reason: str) -> None:
        """Count a SEND that a topic has refused."""
        error = RefusedError(code, reason)
        self._context.refusal_log.refused(pb.BaseCommand.SEND, error, self.peer)

    def _call_at_next_flush(self, call: Call) -> None:
        """Call once, when the flusher runs at the end of this turn of the event loop."""
        if not self._at_flush:
            self._context.flusher.mark(self)
        self._at_flush.append(call)

    def flush(self) -> bool:
        """Send the receipts of this turn; the flusher calls this.  True means that none is left."""
        # Swapped first: a call may register itself for the next flush.  The frames that the calls
        # queue are sent by the same `Flusher.flush`, which goes on until nothing is marked.
        calls, self._at_flush = self._at_flush, []
        try:
            for call in calls:
                call()
        except Exception as bug:  # The flusher serves all connections.
            self.failed(bug)
        return True

    def failed(self, bug: Exception) -> None:
        """End the connection after an error that nobody expected."""
        self._context.request_counts.bugs += 1
        self._context.log.error(
            "a connection failed because of a bug: please report it", peer=self.peer, exc_info=bug
        )
        self._frames.close("the broker has a bug")

    async def drain(self) -> None:
        """Do nothing: the flusher calls this if `flush` has left a rest, which it never does."""
        await trio.lowlevel.checkpoint()

    def _yield_soon(self) -> None:
        self.must_yield = True

    async def wait_takes_answers(self) -> None:
        await self._frames.wait_below(self._unread_bytes_max // 2)

    def _call_once_writable(self, call: Call) -> None:
        """Call once, when at least half of what may wait for this client has been sent."""
        # One task waits for all callers.
        if not self._when_writable and self._nursery is not None and not self.closing:
            self._nursery.start_soon(self._wait_writable)
        self._when_writable[call] = None

    async def _wait_writable(self) -> None:
        """Wait until half of the share is sent.  A client that reads nothing at all is cut."""
        budget, frames = self._context.dispatch_memory, self._frames
        budget.slow += 1
        try:
            while frames.pending_bytes > budget.share_bytes // 2:
                before = frames.sent_bytes
                with trio.move_on_after(2 * self._context.config.keep_alive_s):
                    await frames.wait_below(budget.share_bytes // 2)
                if frames.sent_bytes == before:
                    frames.close("the client does not read what it has asked for")
        finally:
            budget.slow -= 1
        assert budget.slow >= 0
        calls, self._when_writable = self._when_writable, {}
        for call in calls:
            call()

    # -- session

    def admit(self, command: int) -> session.Admission:
        return self._session.admit(command)

    def not_admitted(self, command: int) -> None:
        """End the session because of a command that was not admitted."""
        self.violated(self._session.violation(command))

    def violated(self, reason: str) -> None:
        """End the session because the client broke the protocol."""
        self._perform(self._session.violated(reason))

    def _perform(
        self, effects: list[session.Effect], credentials: Credentials | None = None
    ) -> None:
        for effect in effects:
            match effect:
                case session.Greet(protocol_version):
                    self._greet(protocol_version)
                case session.CheckCredentials():
                    assert credentials is not None
                    self.start_task(self._identify, credentials)
                case session.Challenge():
                    self._challenge()
                case session.SendPing():
                    self.send_ping()
                case session.Refuse(code, reason):
                    error = pb.CommandError(request_id=NO_ID, message=reason)
                    error.error = code  # type: ignore[assignment]
                    self.send_command(error)
                    self._close(reason)
                case session.Close(reason):
                    self._close(reason)
                    self._frames.close(reason)
                case _:
                    assert_never(effect)

    def connect(self, body: pb.CommandConnect) -> None:
        """Handle the client's CONNECT."""
        effects = self._session.connect(
            body.client_version,
            body.protocol_version,
            wants_broker_metadata=body.feature_flags.supports_broker_entry_metadata,
            renews=body.feature_flags.supports_auth_refresh,
            proxy_to=body.proxy_to_broker_url,
        )
        self._original = body.original_principal
        credentials = Credentials(body.auth_method_name, body.auth_data, self._common_name)
        self._perform(effects, credentials)
        self._heard.set()  # `_keep_alive` waits for the end of the greeting

    # -- authentication

    @property
    def _common_name(self) -> str | None:
        certificate = self.certificate
        return None if certificate is None else certificate.common_name

    def auth_response(self, body: pb.CommandAuthResponse) -> None:
        """Handle the client's answer to a challenge."""
        response = body.response
        credentials = Credentials(response.auth_method_name, response.auth_data, self._common_name)
        self._perform(self._session.answered(), credentials)

    def _challenge(self) -> None:
        assert self._caller is not None
        challenge = pb.CommandAuthChallenge(
            server_version=self._context.server_version,
            protocol_version=self._session.protocol_version,
        )
        challenge.challenge.auth_method_name = self._caller.identity.method
        challenge.challenge.auth_data = _REFRESH
        self.send_command(challenge)

    async def _identify(self, credentials: Credentials) -> None:
        """Check the credentials, and go on with the session or end it."""
        context, first = self._context, self._caller is None
        assert context.authentication is not None
        try:
            identity = await context.authentication.identify(credentials)
            caller = on_behalf(identity, self._original, proxies=context.config.proxy_roles)
            if first and not self.closing:
                self._take_place(identity.role)
        except BrokerError as error:
            expired = isinstance(error, ExpiredError)
            if first or not expired:  # The others are asked again.
                command = pb.BaseCommand.CONNECT if first else pb.BaseCommand.AUTH_RESPONSE
                context.refusal_log.refused(command, error, self.peer)
                shown = bool(credentials.data) or credentials.common_name is not None
                self._note(type_name(command), error, with_credentials=shown)
                self._noted = True
                await self._hold_refusal(error)
            effects = self._session.not_proven(error.code, error.reason, expired=expired)
        else:
            self._caller = caller
            self._lapsed = trio.Event()
            effects = self._session.proven(identity.role)
            if first:
                self._note("CONNECT")
            self._note_not_renewed(effects)
            if identity.token is not None and not self.closing:
                context.authentication.watch(self, self._check_standing)
            if identity.expires_s is not None:
                self._begin_watch()
        self._perform(effects)
        self._heard.set()
        self._identified.set()
        await self._end_if_refused()

    async def _hold_refusal(self, error: BrokerError) -> None:
        """Wait until the client may be refused.  It may do nothing else meanwhile."""
        if not self._is_own_probe:
            pace = self._context.refusal_pace
            await trio.sleep(pace.delay_s(error, self._caller, self.peer, "service"))

    def _take_place(self, role: str) -> None:
        """Note the role of the connection.  Raise UnavailableError if it has too many."""
        counts = role not in self._context.config.super_users
        if why := self._prove(role if counts else ""):
            raise UnavailableError(why)

    def _note(
        self, action: str, error: BrokerError | None = None, *, with_credentials: bool = True
    ) -> None:
        # The broker is no client of itself: a line every few seconds would hide those of clients.
        if self._context.audit is not None and not self._is_own_probe:
            self._context.audit.note(
                action, self.peer, self._caller, refused=error, with_credentials=with_credentials
            )

    def _note_not_renewed(self, effects: list[session.Effect]) -> None:
        """Note that the session has refused the client, whose credentials are not renewed."""
        for effect in effects:
            if isinstance(effect, session.Refuse):
                assert self._context.authentication is not None
                self._context.authentication.note_not_renewed()
                self._note("AUTH_RESPONSE", AuthenticationError(effect.reason))

    def _check_standing(self) -> None:
        """End the session if the token was revoked, or begin its renewal if its key is gone."""
        authentication, caller = self._context.authentication, self._caller
        assert authentication is not None
        assert caller is not None
        if self.closing:
            return
        match authentication.standing(caller.identity):
            case Standing.REVOKED:
                effects = self._session.revoked()
                for effect in effects:
                    if isinstance(effect, session.Refuse):
                        authentication.note_revoked()
                        self._note("REVOKE", AuthenticationError(effect.reason))
                self._perform(effects)
                self.start_task(self._end_if_refused)
            case Standing.KEY_REMOVED:
                self._lapsed.set()
                self._begin_watch()
            case Standing.GOOD:
                pass

    def _expired(self) -> None:
        effects = self._session.expired(_KEY_REMOVED if self._lapsed.is_set() else _EXPIRED)
        self._note_not_renewed(effects)
        self._perform(effects)

    def _begin_watch(self) -> None:
        """Start the task that waits for the end of the credentials, unless it runs."""
        if not self._watching and not self.closing:
            self._watching = True
            self.start_task(self._watch_credentials)

    async def _watch_credentials(self) -> None:
        """Ask the client for new credentials when its own end; end the session without them."""
        try:
            await self._renew_in_time()
        finally:
            self._watching = False

    async def _renew_in_time(self) -> None:
        while not self.closing and await self._expiry():
            self._identified = trio.Event()
            self._expired()
            if not self.closing:
                with trio.move_on_after(self._context.config.auth_refresh_s) as limit:
                    await self._renewed(limit)
                if self._session.renewal is not session.Renewal.NOT_DUE:
                    self._expired()
            await self._end_if_refused()

    async def _renewed(self, limit: trio.CancelScope) -> None:
        """Wait until the client has renewed its credentials, or may not try again.

        `limit` is moved forward when the client turns out to have none but those that have expired.
        """
        await self._identified.wait()
        limit.deadline = min(limit.deadline, trio.current_time() + _LATE_S)
        while self._session.renewal is session.Renewal.LATE:
            await trio.sleep(_ASK_AGAIN_S)
            self._identified = trio.Event()
            self._perform(self._session.ask_again())
            await self._identified.wait()

    async def _expiry(self) -> bool:
        """Wait until the credentials end.  Return False at once if they never expire."""
        assert self._caller is not None
        expires_s = self._caller.identity.expires_s
        while not self._lapsed.is_set():
            if expires_s is None:
                return False
            left_s = expires_s - self._context.clock.now_ms() / 1000
            if left_s <= 0:
                return True
            with trio.move_on_after(min(left_s, _EXPIRY_LOOK_S)):
                await self._lapsed.wait()
        return True

    async def _end_if_refused(self) -> None:
        """Send the refusal and close, because the task that reads waits for the client."""
        if self.closing:
            await self.send_rest()

    # -- the session is open

    def _greet(self, protocol_version: int) -> None:
        if self._context.authentication is None:
            self._prove("")
        self._frames.trust()  # from now on frames may be larger than CONNECT
        self._client = ConnectedClient(
            self.peer,
            self._session.client_version,
            protocol_version,
            self.connected_ms,
            self.encrypted,
            self.is_ours,
            self._session.sends_broker_metadata,
            send=self._frames.send,
            get_room_bytes=self._room_bytes,
            is_alive=self._is_alive,
            call_at_flush=self._call_at_next_flush,
            yield_soon=self._yield_soon,
            call_when_writable=self._call_once_writable,
            note_refused_send=self._note_refused_send,
            forget_producer=self._forget_producer,
            forget_consumer=self._forget_consumer,
            call_later=partial(self.start_task, _call_later),
            caller=self._caller,
        )
        connected = pb.CommandConnected(
            server_version=self._context.server_version,
            protocol_version=protocol_version,
            max_message_size=self._context.message_bytes_max(),
        )
        connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
        connected.feature_flags.supports_topic_watchers = True
        if self.is_ours:
            connected.feature_flags.supports_broker_entry_metadata = True
        self.send_command(connected)

    def _close(self, reason: str) -> None:
        """Read no more.  Queued frames are still sent, for a moment."""
        # The queues close in the same turn, so no waiting request begins while frames are sent.
        self.closing = True
        self._on_closing()
        self._note_cut(reason)

    def note_if_cut(self) -> None:
        """Note that the connection was closed because the client was too slow."""
        if self._frames.cut_reason:
            self._note_cut(self._frames.cut_reason)

    def _note_cut(self, reason: str) -> None:
        """Log that the client is cut: a few lines a minute for all that did not get in."""
        context, is_open = self._context, self._client is not None
        context.request_counts.cut["open" if is_open else "greeting"] += 1
        context.cut_log.info(
            "the broker cuts a client",
            kind=address_of(self.peer) if is_open else None,
            peer=self.peer,
            why=reason[:_REASON_CHARS_MAX],
        )
        if not is_open and not self._noted:
            self._noted = True
            self._note("CONNECT", NotAllowedError(reason), with_credentials=False)


async def _call_later(seconds: float, call: Call) -> None:
    await trio.sleep(seconds)
    call()
