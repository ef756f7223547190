"""Connections to bookies: adds, reads and fencing reads, in the protocol that a bookie speaks.

A `LedgerChannel` holds the requests of one ledger that are under way on one connection.  Sending
never waits and starts no task; a connection is made when there is something to send.  Every request
has exactly one outcome, reported synchronously to the channel's listener or to the callback of a
read:

- an answer; answers to adds come in runs;
- or a failure: the connection could not be made or was lost, or no answer came in time.

A bookie that takes entries more slowly than the others confirm them is given up, since its queue
would keep the memory of confirmed entries.  Entries that their senders hold anyway, until they are
confirmed, are no sign of that: nobody has confirmed anything yet right after a burst, or when all
writers send what waits to a bookie that is back (`BookieClient.held_bytes`).

One sweep over all requests under way finds the late ones, so timeouts are as coarse as the interval
of the sweep.

A v2 answer carries no request id, so two users of one ledger must not share a connection if an
answer for one could be taken for the other's.  Each writer and each recovery has a channel of its
own; it is on another connection if the first one has a channel for that ledger, or still waits for
answers to an earlier one.  The answer to a plain read can thus never be taken for the answer to a
fencing read.  Plain reads share a connection, since any of their answers serves all of them.

A connection is made ready by `bookie.ledger.security` first, if there is TLS or a password: nothing
else is sent before.  A bookie that refuses that counts as one that has failed.

Adds with a deferred sync have connections of their own, in v3 (`Purpose.ADD_DEFERRED`).  The
listener of such a channel hears of every connection that ends, even if no request was under way:
entries that the bookie acknowledged and did not force may be lost with it.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

import trio

from daybook.bookie.ledger.codecs import (
    AddBatch,
    Codec,
    ForceAnswer,
    ProtocolVersion,
    ProtocolVersions,
    V2Codec,
    V3Codec,
    VersionChoice,
)
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.security import (
    ANSWER_BYTES_MAX,
    BookieRefusalError,
    BookieSecurity,
    BookieSecurityError,
)
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.messages.bookie import FRAME_BYTES_MAX, LAST_ENTRY, AddRun, Status
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Buffer, Network

_log = logging.getLogger(__name__)
_NOTHING = memoryview(b"")
_OK = int(Status.OK)  # The lookup of an enum member costs more than the rest of the loop.
_REFUSALS = (Status.FENCED, Status.UNAUTHORIZED)

ReadCallback: TypeAlias = Callable[[Status | None, memoryview], None]
"""Called with the status and the entry; the status is None if there was no answer."""


class AddListener(Protocol):
    """Gets the results of adds; implemented by writers, recoveries and rereplication."""

    def added(self, bookie: BookieId, first: int, count: int) -> None: ...

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        """Report that nothing is known of the adds under way at this bookie."""
        ...

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        """Report FENCED or UNAUTHORIZED: no bookie will accept the entry."""
        ...


class LedgerChannel:
    """The requests of one ledger on one connection.  `BookieClient` makes it; users close it."""

    __slots__ = (
        "_adds",
        "_connection",
        "_deferred",
        "_force",
        "_force_tick",
        "_forced",
        "_reads",
        "ledger_id",
        "listener",
    )

    def __init__(
        self,
        connection: "BookieConnection",
        ledger_id: int,
        listener: AddListener | None,
        *,
        deferred: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.listener = listener
        self._connection = connection
        self._deferred = deferred
        # Each entry, or the last entry of a block, with the tick of the sweep when it was sent.
        # The dict is ordered by time, so a sweep has to look at the first item only.
        self._adds: dict[int, int] = {}
        self._reads: dict[int, deque[tuple[ReadCallback, int]]] = {}
        self._force = 0  # the id of the force request under way
        self._force_tick = 0
        self._forced: Callable[[], None] | None = None

    @property
    def bookie(self) -> BookieId:
        return self._connection.bookie

    @property
    def idle(self) -> bool:
        return not self._adds and not self._reads and self._forced is None

    def add(self, entry_id: int, frame: Sequence[Buffer]) -> None:
        """Send an add.  `frame` begins as `wire.messages.bookie.encode_add_header` encodes it."""
        connection = self._connection
        self._adds[entry_id] = connection.tick
        connection.asked[self] = None
        connection.send_add(self.ledger_id, entry_id, frame)

    def add_all(self, adds: AddBatch) -> None:
        """Send several adds; whether they share a frame is up to the codec."""
        tick = self._connection.tick
        self._connection.asked[self] = None
        if self._connection.send_adds(self.ledger_id, adds):
            self._adds[adds.last] = tick  # One answer is about the whole block.
        else:
            self._adds.update(dict.fromkeys(range(adds.first, adds.last + 1), tick))

    def read(
        self, entry_id: int, callback: ReadCallback, *, fence_key: bytes | None = None
    ) -> None:
        # Answers to several reads of one entry are interchangeable, and are taken in order.
        waiting = self._reads.setdefault(entry_id, deque())
        waiting.append((callback, self._connection.tick))
        self._connection.asked[self] = None
        self._connection.send_read(self.ledger_id, entry_id, fence_key)

    def force(self, forced: Callable[[], None]) -> None:
        """Call `forced` once everything acknowledged on this channel so far is on the bookie's
        disk.

        The request uses the same connection as the adds: another connection may lead to a bookie
        that has restarted without them.  The listener is told of any other outcome as a failure.  A
        new force replaces the one under way.
        """
        assert self._deferred
        self._forced, self._force_tick = forced, self._connection.tick
        self._connection.asked[self] = None
        self._force = self._connection.send_force(self.ledger_id)

    def close(self) -> None:
        """Stop listening.

        The ledger keeps its place on the connection until all answers are in, so that a later
        channel cannot take them for its own.
        """
        self.listener = None
        self._forced = None
        self._connection.forget_if_idle(self)

    # -- called by the connection

    def add_answered(self, run: AddRun) -> None:
        adds, (status, _, first, last) = self._adds, run
        # A block has one item, under the id of its last entry; plain adds have one for each.
        for entry_id in range(first, last + 1):
            adds.pop(entry_id, None)
        if not adds:
            self._adds = {}  # A dict that was filled keeps its memory, and most are empty.
        listener = self.listener
        if listener is None:
            self._connection.forget_if_idle(self)
        elif status == _OK:
            listener.added(self._connection.bookie, first, last - first + 1)
        elif status in _REFUSALS:
            listener.add_refused(self.bookie, Status(status))
        else:
            self._connection.not_stored(status_of(status))
            listener.add_failed(self.bookie, f"it answered {status_of(status).name}")

    def read_answered(self, entry_id: int, status: Status | None, entry: memoryview) -> None:
        waiting = self._reads.get(entry_id)
        if waiting is None:
            return
        callback, _ = waiting.popleft()
        if not waiting:
            del self._reads[entry_id]
        # The callback comes last: it may send, or open another channel for this ledger.
        self._connection.forget_if_idle(self)
        callback(status, entry)

    def force_answered(self, answer: ForceAnswer) -> None:
        forced = self._forced
        if forced is None or answer.request_id != self._force:
            return  # The answer is to a replaced request, and covers too few entries.
        self._forced = None
        if answer.status == Status.OK:
            forced()
        elif self.listener is not None:
            status = status_of(answer.status)
            self._connection.not_stored(status)
            self.listener.add_failed(self.bookie, f"it answered {status.name}")

    def fail(self, reason: str) -> None:
        """Fail all requests under way: the connection has ended."""
        self._fail_adds(reason, ended=True)
        for entry_id, waiting in list(self._reads.items()):
            for _ in range(len(waiting)):
                self.read_answered(entry_id, None, _NOTHING)
        self._connection.forget_if_idle(self)

    def sweep(self, adds_before: int, reads_before: int) -> bool:
        """Fail the requests sent before these ticks; return True if there were any."""
        # The oldest add comes first.  One late answer fails them all: the bookie may answer none.
        late = next(iter(self._adds.values()), adds_before) < adds_before
        late |= self._forced is not None and self._force_tick < adds_before
        if late:
            self._fail_adds("it did not answer in time")
        for entry_id, waiting in list(self._reads.items()):
            while waiting and waiting[0][1] < reads_before:
                late = True
                self.read_answered(entry_id, None, _NOTHING)
        self._connection.forget_if_idle(self)
        return late

    def _fail_adds(self, reason: str, *, ended: bool = False) -> None:
        # The listener of deferred adds needs to know of the end even if nothing was under way:
        # the bookie may have lost what it acknowledged and did not force.
        under_way = bool(self._adds) or self._forced is not None
        self._adds.clear()
        self._forced = None
        if self.listener is not None and (under_way or (ended and self._deferred)):
            self.listener.add_failed(self.bookie, reason)


def status_of(number: int) -> Status:
    """Return the status; an unknown number proves nothing, like an I/O error."""
    try:
        return Status(number)
    except ValueError:
        return Status.IO_ERROR


_BAD_VERSION = int(Status.BAD_VERSION)
_TOO_SLOW = "it does not keep up"
_FRAME_OVERHEAD_BYTES = 500  # as Apache's bookies reserve it

Resolve: TypeAlias = Callable[[BookieId], Awaitable[tuple[str, int]]]


class Purpose(Enum):
    """Users with different purposes never share a connection; see the module."""

    ADD = auto()
    ADD_DEFERRED = auto()
    READ = auto()
    RECOVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieLimits:
    protocol: VersionChoice = "auto"  # "auto": v2 where the bookie speaks it, else v3
    protocol_retry_s: float = 60.0  # how long v3 is used after v2 failed
    blocks: bool = True  # many adds in one frame, if the bookie announces support
    connect_timeout_s: float = 3.0
    secure_timeout_s: float = 5.0  # for TLS and authentication, after that
    add_timeout_s: float = 5.0
    read_timeout_s: float = 5.0
    sweep_interval_s: float = 0.5
    idle_close_s: float = 60.0
    queue_bytes_max: int = 64 << 20  # More unsent bytes that nobody else holds close a connection.
    frame_bytes_max: int = FRAME_BYTES_MAX
    batch_entries_min: int = 2  # fewer entries are read one by one
    batch_entry_bytes_max: int = 16 << 10  # larger entries are read one by one
    batch_bytes_max: int = 900 << 10  # one answer; it fits into a recycled arena
    batch_retry_s: float = 60.0  # no batch is asked for after one was not answered

    def entry_bytes_max(self, accepted_bytes: int) -> int:
        """Return the largest entry with header and digest, if bookies accept frames of that size.

        Bookies need room for headers of their own when they store it.
        """
        return min(self.frame_bytes_max, accepted_bytes) - _FRAME_OVERHEAD_BYTES


class BookieConnection:
    """One connection to one bookie; made, and made again, when there is something to send."""

    def __init__(self, bookies: "BookieClient", bookie: BookieId, purpose: Purpose) -> None:
        self.bookie = bookie
        self.tick = 0
        self.channels: dict[int, LedgerChannel] = {}
        # The channels that may have a request under way.  A sweep looks at no others: most of the
        # ledgers of a broker with many topics are idle.
        self.asked: dict[LedgerChannel, None] = {}
        self._bookies = bookies
        self._deferred = purpose is Purpose.ADD_DEFERRED
        self._codec: Codec = V2Codec()  # codec of the current or next connection
        self._blocks = False  # The bookie takes adds in blocks.
        self._answered = False  # True once this connection has brought an answer
        self._connection: FrameConnection | None = None
        self._scope: trio.CancelScope | None = None  # the task that connects and receives
        self._why_closed = ""
        self._queue: list[Buffer] = []  # sent once there is a connection
        self._queue_bytes = 0
        self._used = 0  # the tick of the last request

    def open_channel(self, ledger_id: int, listener: AddListener | None) -> LedgerChannel:
        assert ledger_id not in self.channels
        channel = self.channels[ledger_id] = LedgerChannel(
            self, ledger_id, listener, deferred=self._deferred
        )
        return channel

    def forget_if_idle(self, channel: LedgerChannel) -> None:
        if (
            channel.listener is None
            and channel.idle
            and self.channels.get(channel.ledger_id) is channel
        ):
            del self.channels[channel.ledger_id]

    def send_add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> None:
        if self._scope is None:
            self._begin()
        self._send(self._codec.add(ledger_id, entry_id, frame))

    def send_adds(self, ledger_id: int, adds: AddBatch) -> bool:
        """Send the adds; return True if one answer will be about all of them."""
        if self._scope is None:
            self._begin()
        self._send(self._codec.adds(ledger_id, adds))
        return self._blocks and adds.first < adds.last

    def send_read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> None:
        if self._scope is None:
            self._begin()
        self._send(self._codec.read(ledger_id, entry_id, fence_key))

    def send_force(self, ledger_id: int) -> int:
        """Send a force request; return its id."""
        if self._scope is None:
            self._begin()
        assert isinstance(self._codec, V3Codec)
        request_id, frame = self._codec.force(ledger_id)
        self._send(frame)
        return request_id

    def not_stored(self, status: Status) -> None:
        """Report that the bookie answers, and did not store an entry."""
        self._bookies.on_refused(self.bookie, status)

    def _begin(self) -> None:
        """Connect, in the protocol version that the bookie is known to speak."""
        wire = self._bookies.versions.for_bookie(self.bookie, trio.current_time())
        if self._deferred or wire is ProtocolVersion.V3:
            self._blocks = False
            self._codec = V3Codec(deferred=self._deferred)
        else:
            self._blocks = self._bookies.limits.blocks and self._bookies.takes_blocks(self.bookie)
            self._codec = V2Codec(blocks=self._blocks)
        self._answered = False
        # The scope marks the connection as begun before the task runs: only one task is started.
        self._scope, self._why_closed = trio.CancelScope(), ""
        self._bookies.nursery.start_soon(self._serve, self._scope)

    def _send(self, buffers: Sequence[Buffer]) -> None:
        self._used = self.tick
        connection = self._connection
        if connection is None or connection.closed:
            self._send_later(buffers)
            return
        connection.send(buffers)
        if self._lags(connection.pending_bytes):
            self._why_closed = self._why_closed or _TOO_SLOW
            connection.close(_TOO_SLOW)

    def _send_later(self, buffers: Sequence[Buffer]) -> None:
        """Queue until there is a connection."""
        self._queue += buffers
        self._queue_bytes += sum(map(len, buffers))
        if self._lags(self._queue_bytes):
            self.close(_TOO_SLOW)

    def _lags(self, unsent_bytes: int) -> bool:
        """Return True if this queue surely keeps more than the limit of confirmed entries."""
        bookies = self._bookies
        return unsent_bytes > bookies.limits.queue_bytes_max + bookies.held_bytes

    async def _serve(self, scope: trio.CancelScope) -> None:
        reason = ""
        with scope:
            try:
                reason = await self._connect_and_receive()
            except (ConnectionLostError, WireError) as error:
                reason = str(error) or type(error).__name__
        reason = reason or self._why_closed
        if reason:
            self._bookies.on_failed(self.bookie, reason)
        self._ended(reason)

    async def _connect_and_receive(self) -> str:
        """Connect, and receive until the connection ends; return the reason of its end."""
        connection = await self._bookies.connect(self.bookie)
        try:
            if self._blocks and not self._bookies.takes_blocks(self.bookie):
                return "it takes no blocks any more"  # The queue was encoded for the old one.
            # From here on requests are sent directly, behind those that waited.
            self._connection = connection
            connection.send(self._queue)
            self._queue, self._queue_bytes = [], 0
            while frames := await connection.receive():
                with connection.together():  # receipts to producers, and entries that waited
                    self._received(frames)
            # A bookie that does not speak the version closes the connection without an answer.
            if not self._answered and not self._why_closed:
                self._bookies.versions.handle_cut(
                    self.bookie, self._codec.wire, trio.current_time()
                )
            return connection.close_reason
        finally:
            connection.close("the ledger client closed it")

    def _ended(self, reason: str) -> None:
        """Fail what is under way; the next request begins a new connection."""
        # The state is reset before the listeners run: what they send begins a new connection.
        self._connection = None
        self._scope = None
        self._queue, self._queue_bytes = [], 0
        for channel in list(self.channels.values()):
            channel.fail(reason)

    def _received(self, frames: list[memoryview]) -> None:
        if not self._answered:
            self._answered = True
            self._bookies.versions.answered(self.bookie)
        answers = self._codec.decode(frames)
        channels = self.channels
        for run in answers.adds:
            if run.status == _BAD_VERSION:
                self._bad_version()
            channel = channels.get(run.ledger_id)
            if channel is not None:
                channel.add_answered(run)
        for answer in answers.reads:
            if answer.status == _BAD_VERSION:
                self._bad_version()
            channel = channels.get(answer.ledger_id)
            if channel is not None:
                status = status_of(answer.status)
                channel.read_answered(answer.entry_id, status, answer.entry)
        for force in answers.forces:
            channel = channels.get(force.ledger_id)
            if channel is not None:
                channel.force_answered(force)

    def _bad_version(self) -> None:
        """Close the connection; the next one speaks the other protocol version."""
        self._bookies.versions.refused(self.bookie, self._codec.wire, trio.current_time())
        if self._connection is not None:
            self._connection.close(f"it does not speak {self._codec.wire.value}")

    def sweep(self) -> None:
        """Fail late requests, and close the connection if it is idle."""
        self.tick += 1
        limits = self._bookies.limits
        adds_before = self.tick - limits.add_timeout_s / limits.sweep_interval_s
        reads_before = self.tick - limits.read_timeout_s / limits.sweep_interval_s
        late = False
        self.asked = {channel: None for channel in self.asked if not channel.idle}
        for channel in list(self.asked):
            late |= channel.sweep(int(adds_before), int(reads_before))
        if late:
            self._bookies.on_failed(self.bookie, "it did not answer in time")
            if self._connection is not None and self._connection.pending_bytes:
                # The bookie does not even receive.  Closing releases the buffers pinned here.
                self.close("it did not answer in time")
        idle_s = (self.tick - self._used) * limits.sweep_interval_s
        if not self.channels and idle_s > limits.idle_close_s:
            self.close()

    def close(self, reason: str = "") -> None:
        """Close the connection; with a reason, the bookie has failed."""
        if self._scope is not None:
            self._why_closed = self._why_closed or reason
            self._scope.cancel()


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    final: bool  # Another attempt with the same credentials would end in the same way.


class BookieClient:
    """All connections of one host to bookies."""

    def __init__(
        self,
        *,
        network: Network,
        arenas: ArenaPool,
        flusher: Flusher,
        resolve: Resolve,
        takes_blocks: Callable[[BookieId], bool],
        on_failed: Callable[[BookieId, str], None],
        on_refused: Callable[[BookieId, Status], None],
        nursery: trio.Nursery,
        limits: BookieLimits,
        security: BookieSecurity | None = None,
    ) -> None:
        self.nursery = nursery
        self.limits = limits
        # Payloads that writers and recoveries have sent, and keep until they are confirmed.  They
        # take this memory whether or not a connection still has to send them.
        self.held_bytes = 0
        self.versions = ProtocolVersions(limits.protocol, limits.protocol_retry_s)
        self.on_failed = on_failed
        self.on_refused = on_refused
        self._network = network
        self._arenas = arenas
        self.takes_blocks = takes_blocks
        self.flusher = flusher
        self._resolve = resolve
        self._security = security
        self._refusals: dict[BookieId, _Refusal] = {}  # the last one of each bookie, in the log
        self._connections: dict[tuple[BookieId, Purpose], list[BookieConnection]] = {}

    def open_channel(
        self, bookie: BookieId, ledger_id: int, purpose: Purpose, listener: AddListener
    ) -> LedgerChannel:
        """Return a channel that no other user shares; the caller closes it."""
        connections = self._connections.setdefault((bookie, purpose), [])
        for connection in connections:
            # A closed channel that still waits for answers keeps its place.
            if ledger_id not in connection.channels:
                return connection.open_channel(ledger_id, listener)
        connections.append(BookieConnection(self, bookie, purpose))
        return connections[-1].open_channel(ledger_id, listener)

    def read(self, bookie: BookieId, ledger_id: int, entry_id: int, callback: ReadCallback) -> None:
        """Read an entry over the shared connection, and call `callback` with the result."""
        connections = self._connections.setdefault((bookie, Purpose.READ), [])
        if not connections:
            connections.append(BookieConnection(self, bookie, Purpose.READ))
        connection = connections[0]
        channel = connection.channels.get(ledger_id) or connection.open_channel(ledger_id, None)
        channel.read(entry_id, callback)

    async def probe(self, bookie: BookieId) -> bool:
        """Return True if the bookie answers, and does not refuse this client.

        The request is for the last entry of ledger 0, which hardly ever exists.
        """
        answered = trio.Event()
        alive = False

        def callback(status: Status | None, entry: memoryview) -> None:
            nonlocal alive
            alive = status not in (None, Status.UNAUTHORIZED)
            if alive:
                self._refusals.pop(bookie, None)
            if status is Status.UNAUTHORIZED:
                self._log_refusal(
                    bookie,
                    f"bookie {bookie} demands TLS or credentials of its clients: set bookie_tls, or"
                    " bookie_user and bookie_password_file",
                    final=True,
                )
            answered.set()

        self.read(bookie, 0, LAST_ENTRY, callback)
        await answered.wait()
        return alive

    async def connect(self, bookie: BookieId) -> FrameConnection:
        """Connect to the bookie; raise ConnectionLostError if that fails or takes too long.

        Raise BookieSecurityError if the bookie refuses TLS or the credentials.
        """
        try:
            with trio.fail_after(self.limits.connect_timeout_s):
                host, port = await self._resolve(bookie)
                stream = await self._network.connect(host, port)
        except trio.TooSlowError:
            raise ConnectionLostError(f"bookie {bookie} could not be reached in time") from None
        connection = FrameConnection(
            stream,
            arenas=self._arenas,
            flusher=self.flusher,
            frame_bytes_max=self.limits.frame_bytes_max,
            newcomer_frame_bytes_max=None if self._security is None else ANSWER_BYTES_MAX,
            name=f"bookie {bookie}",
        )
        if self._security is not None:
            await self._secure(self._security, connection, bookie, host)
        return connection

    async def _secure(
        self, security: BookieSecurity, connection: FrameConnection, bookie: BookieId, host: str
    ) -> None:
        secured = False
        try:
            await security.secure(connection, bookie, host, self.limits.secure_timeout_s)
            secured = True
        except BookieSecurityError as error:
            self._log_refusal(bookie, str(error), final=isinstance(error, BookieRefusalError))
            raise
        finally:
            if not secured:
                connection.close("the connection could not be secured")
        self._refusals.pop(bookie, None)
        connection.trust()

    def is_refused_by(self, bookie: BookieId) -> bool:
        """Return True if the bookie has refused the last connection, or what was asked on it.

        It is there then, and this client lacks TLS or the credentials that it demands.
        """
        return bookie in self._refusals

    def refusal_of(self, bookie: BookieId) -> str:
        """Return why the bookie refuses this client, "" if it does not, or if that is not sure."""
        refusal = self._refusals.get(bookie)
        return refusal.why if refusal is not None and refusal.final else ""

    def _log_refusal(self, bookie: BookieId, why: str, *, final: bool) -> None:
        """Log why a bookie refuses this client, unless that was the last thing said about it."""
        refusal = _Refusal(why, final)
        if self._refusals.get(bookie) != refusal:
            self._refusals[bookie] = refusal
            _log.log(logging.ERROR if final else logging.WARNING, "%s", why)

    async def run(self) -> None:
        """Look for late requests, forever."""
        while True:
            await trio.sleep(self.limits.sweep_interval_s)
            for connections in list(self._connections.values()):
                for connection in connections:
                    connection.sweep()
