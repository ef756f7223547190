"""Connections to bookies: adds, reads and fencing reads, in the protocol that a bookie speaks.

A ledger channel is what one ledger has under way on one connection.  Sending never
waits and starts no task; a channel connects by itself when there is something to send.  What comes
of it is told to the lane's listener, or to the callback of a read, synchronously and exactly once:

- an answer, of adds in runs;
- or a failure: the connection was lost or could not be made, or there was no answer in time.

Time-outs are looked for in one sweep over all that is under way, and are as coarse as that.

v2 answers carry no request id, so two users of one ledger must not share a connection where that
could confuse them: each writer and each recovery has a lane of its own, on another connection if
the first one has a lane for that ledger (or still waits for answers of an earlier one).  In
particular no fencing read can be answered by the answer to a read that did not fence.  Plain reads
share a connection: whose answer it was does not matter there.

Adds whose sync may wait have connections of their own, in v3 (`Purpose.ADD_DEFERRED`).

FROM lanes: A lane: what one ledger has under way on one connection to one bookie.

Everything that is sent has exactly one outcome, told synchronously: an answer, or a failure.  A
lane whose adds are *deferred* is told of each connection that ends, also while nothing is under
way: what was acknowledged on it, and not forced, may be gone with the bookie.
"""

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
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.messages.bookie import FRAME_BYTES_MAX, LAST_ENTRY, AddRun, Status
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Buffer, Network

_NOTHING = memoryview(b"")
_OK = int(Status.OK)  # looking up a member of an enum takes longer than all the rest here
_REFUSALS = (Status.FENCED, Status.UNAUTHORIZED)

ReadCallback: TypeAlias = Callable[[Status | None, memoryview], None]
"""Status and entry; None if there was no answer."""


class AddListener(Protocol):
    """Who sends adds hears of them here."""

    def added(self, bookie: BookieId, first: int, count: int) -> None: ...

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        """Nothing is known of what is under way there."""
        ...

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        """Fenced, or unauthorized: no bookie will take it."""
        ...


class Carrier(Protocol):
    """The connection, and what it knows of its bookie."""

    bookie: BookieId
    tick: int

    def send_add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> None: ...

    def send_adds(self, ledger_id: int, adds: AddBatch) -> bool:
        """Whether one answer will be about all of them."""
        ...

    def send_read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> None: ...

    def send_force(self, ledger_id: int) -> int:
        """The id of the request."""
        ...

    def not_stored(self, status: Status) -> None:
        """The bookie answers, and did not store an entry."""
        ...

    def forget_if_idle(self, channel: "LedgerChannel") -> None: ...


class LedgerChannel:
    """Made by `BookieClient`; close it when done."""

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
        connection: Carrier,
        ledger_id: int,
        listener: AddListener | None,
        *,
        deferred: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.listener = listener
        self._connection = connection
        self._deferred = deferred
        # Each entry, or the last of a block, and the tick of the sweep at which it was sent.
        self._adds: dict[int, int] = {}
        self._reads: dict[int, deque[tuple[ReadCallback, int]]] = {}
        self._force = 0  # the id of the request that is under way
        self._force_tick = 0
        self._forced: Callable[[], None] | None = None

    @property
    def bookie(self) -> BookieId:
        return self._connection.bookie

    @property
    def idle(self) -> bool:
        return not self._adds and not self._reads and self._forced is None

    def add(self, entry_id: int, frame: Sequence[Buffer]) -> None:
        """`frame`: as `wire.messages.bookie.encode_add_header` begins it, in parts."""
        self._adds[entry_id] = self._connection.tick
        self._connection.send_add(self.ledger_id, entry_id, frame)

    def add_all(self, adds: AddBatch) -> None:
        """The same for several, of which no bookie need know that they are several."""
        tick = self._connection.tick
        if self._connection.send_adds(self.ledger_id, adds):
            self._adds[adds.last] = tick
        else:
            self._adds.update(dict.fromkeys(range(adds.first, adds.last + 1), tick))

    def read(
        self, entry_id: int, callback: ReadCallback, *, fence_key: bytes | None = None
    ) -> None:
        waiting = self._reads.setdefault(entry_id, deque())
        waiting.append((callback, self._connection.tick))
        self._connection.send_read(self.ledger_id, entry_id, fence_key)

    def force(self, forced: Callable[[], None]) -> None:
        """Call `forced` when everything that was acknowledged on this lane before is on disk.

        By this very connection: another one may lead to a bookie that has started anew, without
        it.  Any other outcome is told to the listener as a failure.  It takes the place of one
        that is under way.
        """
        assert self._deferred
        self._forced, self._force_tick = forced, self._connection.tick
        self._force = self._connection.send_force(self.ledger_id)

    def close(self) -> None:
        """Nobody listens any more.  The ledger keeps its place here until all answers are in."""
        self.listener = None
        self._forced = None
        self._connection.forget_if_idle(self)

    # For the channel

    def add_answered(self, run: AddRun) -> None:
        adds, (status, _, first, last) = self._adds, run
        for entry_id in range(first, last + 1):
            adds.pop(entry_id, None)
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
        self._connection.forget_if_idle(self)
        callback(status, entry)

    def force_answered(self, answer: ForceAnswer) -> None:
        forced = self._forced
        if forced is None or answer.request_id != self._force:
            return  # To one that was given up: more may have been acknowledged since.
        self._forced = None
        if answer.status == Status.OK:
            forced()
        elif self.listener is not None:
            status = status_of(answer.status)
            self._connection.not_stored(status)
            self.listener.add_failed(self.bookie, f"it answered {status.name}")

    def fail(self, reason: str) -> None:
        """The connection has ended: what is under way has no answer."""
        self._fail_adds(reason, ended=True)
        for entry_id, waiting in list(self._reads.items()):
            for _ in range(len(waiting)):
                self.read_answered(entry_id, None, _NOTHING)
        self._connection.forget_if_idle(self)

    def sweep(self, adds_before: int, reads_before: int) -> bool:
        """Give up what was sent before; True if there was something."""
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
        under_way = bool(self._adds) or self._forced is not None
        self._adds.clear()
        self._forced = None
        if self.listener is not None and (under_way or (ended and self._deferred)):
            self.listener.add_failed(self.bookie, reason)


def status_of(number: int) -> Status:
    """A status that we do not know proves nothing, like an I/O error."""
    try:
        return Status(number)
    except ValueError:
        return Status.IO_ERROR


_BAD_VERSION = int(Status.BAD_VERSION)  # looking up a member of an enum takes its time
_TOO_SLOW = "it does not keep up"
_FRAME_OVERHEAD_BYTES = 500  # the distance that Apache's bookies keep

Resolve: TypeAlias = Callable[[BookieId], Awaitable[tuple[str, int]]]


class Purpose(Enum):
    ADD = auto()
    ADD_DEFERRED = auto()
    READ = auto()
    RECOVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieLimits:
    protocol: VersionChoice = "auto"  # v2 with whoever speaks it, else v3; or always one of them
    protocol_retry_s: float = 60.0  # so long a bookie that did not answer to v2 is spoken to in v3
    blocks: bool = True  # many adds in one frame, with bookies that say that they take them
    connect_timeout_s: float = 3.0
    add_timeout_s: float = 5.0
    read_timeout_s: float = 5.0
    sweep_interval_s: float = 0.5
    idle_close_s: float = 60.0
    queue_bytes_max: int = 64 << 20  # a bookie that lags so far behind is given up
    frame_bytes_max: int = FRAME_BYTES_MAX
    batch_entries_min: int = 2  # fewer are read one by one
    batch_entry_bytes_max: int = 16 << 10  # larger ones too: they need not wait for the others
    batch_bytes_max: int = 900 << 10  # of one answer; it then fits into memory that is recycled
    batch_retry_s: float = 60.0  # so long a bookie that did not answer a batch is asked for none

    @property
    def entry_bytes_max(self) -> int:
        """With header and digest.  Bookies need room for their own headers when they store it."""
        return self.frame_bytes_max - _FRAME_OVERHEAD_BYTES


class Observer(Protocol):
    """Who remembers which bookies fail."""

    def bookie_failed(self, bookie: BookieId, reason: str) -> None:
        """It was not reached, or did not answer in time; it may be well again at any time."""
        ...

    def bookie_refused(self, bookie: BookieId, status: Status) -> None:
        """It answers, and cannot store anything now."""
        ...


class BookieConnection:
    """One connection to one bookie; made, and made again, when there is something to send."""

    def __init__(
        self, bookies: "BookieClient", bookie: BookieId, purpose: Purpose, observer: Observer
    ) -> None:
        self.bookie = bookie
        self.observer = observer
        self.tick = 0
        self.channels: dict[int, LedgerChannel] = {}
        self._bookies = bookies
        self._deferred = purpose is Purpose.ADD_DEFERRED
        self._dialect: Codec = V2Codec()  # of the connection that is, or is being made
        self._blocks = False  # adds go there in blocks
        self._answered = False
        self._connection: FrameConnection | None = None
        self._scope: trio.CancelScope | None = None  # of the task that connects and receives
        self._why_closed = ""
        self._queue: list[Buffer] = []  # until there is a connection
        self._queue_bytes = 0
        self._used = 0

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
        self._send(self._dialect.add(ledger_id, entry_id, frame))

    def send_adds(self, ledger_id: int, adds: AddBatch) -> bool:
        if self._scope is None:
            self._begin()
        self._send(self._dialect.adds(ledger_id, adds))
        return self._blocks and adds.first < adds.last

    def send_read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> None:
        if self._scope is None:
            self._begin()
        self._send(self._dialect.read(ledger_id, entry_id, fence_key))

    def send_force(self, ledger_id: int) -> int:
        if self._scope is None:
            self._begin()
        assert isinstance(self._dialect, V3Codec)
        request_id, frame = self._dialect.force(ledger_id)
        self._send(frame)
        return request_id

    def not_stored(self, status: Status) -> None:
        self.observer.bookie_refused(self.bookie, status)

    def _begin(self) -> None:
        """Make a connection, in the protocol that the bookie speaks as far as we know."""
        wire = self._bookies.versions.for_bookie(self.bookie, trio.current_time())
        if self._deferred or wire is ProtocolVersion.V3:
            self._blocks = False
            self._dialect = V3Codec(deferred=self._deferred)
        else:
            self._blocks = self._bookies.limits.blocks and self._bookies.takes_blocks(self.bookie)
            self._dialect = V2Codec(blocks=self._blocks)
        self._answered = False
        self._scope, self._why_closed = trio.CancelScope(), ""
        self._bookies.nursery.start_soon(self._serve, self._scope)

    def _send(self, buffers: Sequence[Buffer]) -> None:
        self._used = self.tick
        connection = self._connection
        if connection is None or connection.closed:
            self._send_later(buffers)
            return
        connection.send(buffers)
        if connection.pending_bytes > self._bookies.limits.queue_bytes_max:
            self._why_closed = self._why_closed or _TOO_SLOW
            connection.close(_TOO_SLOW)

    def _send_later(self, buffers: Sequence[Buffer]) -> None:
        """Queue until there is a connection."""
        self._queue += buffers
        self._queue_bytes += sum(map(len, buffers))
        if self._queue_bytes > self._bookies.limits.queue_bytes_max:
            self.close(_TOO_SLOW)

    async def _serve(self, scope: trio.CancelScope) -> None:
        reason = ""
        with scope:
            try:
                reason = await self._exchange()
            except (ConnectionLostError, WireError) as error:
                reason = str(error) or type(error).__name__
        reason = reason or self._why_closed
        if reason:
            self.observer.bookie_failed(self.bookie, reason)
        self._ended(reason)

    async def _exchange(self) -> str:
        """Connect, and receive until the connection ends; returns why it did."""
        connection = await self._bookies.connect(self.bookie)
        try:
            if self._blocks and not self._bookies.takes_blocks(self.bookie):
                return "it takes no blocks any more"  # What waits here was made for another one.
            self._connection = connection
            connection.send(self._queue)
            self._queue, self._queue_bytes = [], 0
            while frames := await connection.receive():
                self._received(frames)
            if not self._answered and not self._why_closed:
                self._bookies.versions.handle_cut(
                    self.bookie, self._dialect.wire, trio.current_time()
                )
            return connection.close_reason
        finally:
            connection.close("the ledger client closed it")

    def _ended(self, reason: str) -> None:
        """What is sent from now on starts anew; what was under way has failed."""
        self._connection = None
        self._scope = None
        self._queue, self._queue_bytes = [], 0
        for channel in list(self.channels.values()):
            channel.fail(reason)

    def _received(self, frames: list[memoryview]) -> None:
        if not self._answered:
            self._answered = True
            self._bookies.versions.answered(self.bookie)
        answers = self._dialect.decode(frames)
        channels = self.channels
        for run in answers.adds:
            if run.status == _BAD_VERSION:
                self._misunderstood()
            channel = channels.get(run.ledger_id)
            if channel is not None:
                channel.add_answered(run)
        for answer in answers.reads:
            if answer.status == _BAD_VERSION:
                self._misunderstood()
            channel = channels.get(answer.ledger_id)
            if channel is not None:
                status = status_of(answer.status)
                channel.read_answered(answer.entry_id, status, answer.entry)
        for force in answers.forces:
            channel = channels.get(force.ledger_id)
            if channel is not None:
                channel.force_answered(force)

    def _misunderstood(self) -> None:
        """The next connection speaks the other protocol."""
        self._bookies.versions.refused(self.bookie, self._dialect.wire, trio.current_time())
        if self._connection is not None:
            self._connection.close(f"it does not speak {self._dialect.wire.value}")

    def sweep(self) -> None:
        self.tick += 1
        limits = self._bookies.limits
        adds_before = self.tick - limits.add_timeout_s / limits.sweep_interval_s
        reads_before = self.tick - limits.read_timeout_s / limits.sweep_interval_s
        late = False
        for channel in [channel for channel in self.channels.values() if not channel.idle]:
            late |= channel.sweep(int(adds_before), int(reads_before))
        if late:
            self.observer.bookie_failed(self.bookie, "it did not answer in time")
            if self._connection is not None and self._connection.pending_bytes:
                # It does not even take what it is sent, and that pins memory here.
                self.close("it did not answer in time")
        idle_s = (self.tick - self._used) * limits.sweep_interval_s
        if not self.channels and idle_s > limits.idle_close_s:
            self.close()

    def close(self, reason: str = "") -> None:
        """Close; with a reason, the bookie has failed."""
        if self._scope is not None:
            self._why_closed = self._why_closed or reason
            self._scope.cancel()


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
        observer: Observer,
        nursery: trio.Nursery,
        limits: BookieLimits,
    ) -> None:
        self.nursery = nursery
        self.limits = limits
        self.versions = ProtocolVersions(limits.protocol, limits.protocol_retry_s)
        self._network = network
        self._arenas = arenas
        self.takes_blocks = takes_blocks
        self.flusher = flusher
        self._resolve = resolve
        self._observer = observer
        self._connections: dict[tuple[BookieId, Purpose], list[BookieConnection]] = {}

    def open_channel(
        self, bookie: BookieId, ledger_id: int, purpose: Purpose, listener: AddListener
    ) -> LedgerChannel:
        """A lane of one's own.  Close it when done."""
        connections = self._connections.setdefault((bookie, purpose), [])
        for connection in connections:
            if ledger_id not in connection.channels:
                return connection.open_channel(ledger_id, listener)
        connections.append(BookieConnection(self, bookie, purpose, self._observer))
        return connections[-1].open_channel(ledger_id, listener)

    def read(self, bookie: BookieId, ledger_id: int, entry_id: int, callback: ReadCallback) -> None:
        connections = self._connections.setdefault((bookie, Purpose.READ), [])
        if not connections:
            connections.append(BookieConnection(self, bookie, Purpose.READ, self._observer))
        connection = connections[0]
        channel = connection.channels.get(ledger_id) or connection.open_channel(ledger_id, None)
        channel.read(entry_id, callback)

    async def probe(self, bookie: BookieId) -> bool:
        """Does it answer at all?  The last entry of a ledger that hardly exists will do."""
        answered = trio.Event()
        alive = False

        def callback(status: Status | None, entry: memoryview) -> None:
            nonlocal alive
            alive = status is not None
            answered.set()

        self.read(bookie, 0, LAST_ENTRY, callback)
        await answered.wait()
        return alive

    async def connect(self, bookie: BookieId) -> FrameConnection:
        try:
            with trio.fail_after(self.limits.connect_timeout_s):
                host, port = await self._resolve(bookie)
                stream = await self._network.connect(host, port)
        except trio.TooSlowError:
            raise ConnectionLostError(f"bookie {bookie} could not be reached in time") from None
        return FrameConnection(
            stream,
            arenas=self._arenas,
            flusher=self.flusher,
            frame_bytes_max=self.limits.frame_bytes_max,
            name=f"bookie {bookie}",
        )

    async def run(self) -> None:
        """Look for time-outs, for ever."""
        while True:
            await trio.sleep(self.limits.sweep_interval_s)
            for connections in list(self._connections.values()):
                for connection in connections:
                    connection.sweep()
