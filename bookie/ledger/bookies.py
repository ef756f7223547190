"""Connections to bookies: adds, reads and fencing reads, in the protocol that a bookie speaks.

A *lane* (`bookie.ledger.lanes`) is what one ledger has under way on one connection.  Sending never
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
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

import trio

from daybook.bookie.ledger.adds import Adds
from daybook.bookie.ledger.dialects import V2, V3, Dialect, Spoken, Wire, WireChoice
from daybook.bookie.ledger.lanes import AddListener, Lane, ReadCallback, status_of
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.messages.bookie import FRAME_BYTES_MAX, LAST_ENTRY, Status
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Buffer, Network

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
    protocol: WireChoice = "auto"  # v2 with whoever speaks it, else v3; or always one of them
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


class Channel:
    """One connection to one bookie; made, and made again, when there is something to send."""

    def __init__(
        self, bookies: "Bookies", bookie: BookieId, purpose: Purpose, observer: Observer
    ) -> None:
        self.bookie = bookie
        self.observer = observer
        self.tick = 0
        self.lanes: dict[int, Lane] = {}
        self._bookies = bookies
        self._deferred = purpose is Purpose.ADD_DEFERRED
        self._dialect: Dialect = V2()  # of the connection that is, or is being made
        self._blocks = False  # adds go there in blocks
        self._answered = False
        self._connection: FrameConnection | None = None
        self._scope: trio.CancelScope | None = None  # of the task that connects and receives
        self._why_closed = ""
        self._queue: list[Buffer] = []  # until there is a connection
        self._queue_bytes = 0
        self._used = 0

    def open_lane(self, ledger_id: int, listener: AddListener | None) -> Lane:
        assert ledger_id not in self.lanes
        lane = self.lanes[ledger_id] = Lane(self, ledger_id, listener, deferred=self._deferred)
        return lane

    def forget_if_idle(self, lane: Lane) -> None:
        if lane.listener is None and lane.idle and self.lanes.get(lane.ledger_id) is lane:
            del self.lanes[lane.ledger_id]

    def send_add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> None:
        if self._scope is None:
            self._begin()
        self._send(self._dialect.add(ledger_id, entry_id, frame))

    def send_adds(self, ledger_id: int, adds: Adds) -> bool:
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
        assert isinstance(self._dialect, V3)
        request_id, frame = self._dialect.force(ledger_id)
        self._send(frame)
        return request_id

    def not_stored(self, status: Status) -> None:
        self.observer.bookie_refused(self.bookie, status)

    def _begin(self) -> None:
        """Make a connection, in the protocol that the bookie speaks as far as we know."""
        wire = self._bookies.spoken.with_whom(self.bookie, trio.current_time())
        if self._deferred or wire is Wire.V3:
            self._blocks = False
            self._dialect = V3(deferred=self._deferred)
        else:
            self._blocks = self._bookies.limits.blocks and self._bookies.takes_blocks(self.bookie)
            self._dialect = V2(blocks=self._blocks)
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
                self._bookies.spoken.cut(self.bookie, self._dialect.wire, trio.current_time())
            return connection.close_reason
        finally:
            connection.close("the ledger client closed it")

    def _ended(self, reason: str) -> None:
        """What is sent from now on starts anew; what was under way has failed."""
        self._connection = None
        self._scope = None
        self._queue, self._queue_bytes = [], 0
        for lane in list(self.lanes.values()):
            lane.fail(reason)

    def _received(self, frames: list[memoryview]) -> None:
        if not self._answered:
            self._answered = True
            self._bookies.spoken.answered(self.bookie)
        answers = self._dialect.decode(frames)
        lanes = self.lanes
        for run in answers.adds:
            if run.status == _BAD_VERSION:
                self._misunderstood()
            lane = lanes.get(run.ledger_id)
            if lane is not None:
                lane.add_answered(run)
        for answer in answers.reads:
            if answer.status == _BAD_VERSION:
                self._misunderstood()
            lane = lanes.get(answer.ledger_id)
            if lane is not None:
                status = status_of(answer.status)
                lane.read_answered(answer.entry_id, status, answer.entry)
        for force in answers.forces:
            lane = lanes.get(force.ledger_id)
            if lane is not None:
                lane.force_answered(force)

    def _misunderstood(self) -> None:
        """The next connection speaks the other protocol."""
        self._bookies.spoken.refused(self.bookie, self._dialect.wire, trio.current_time())
        if self._connection is not None:
            self._connection.close(f"it does not speak {self._dialect.wire.value}")

    def sweep(self) -> None:
        self.tick += 1
        limits = self._bookies.limits
        adds_before = self.tick - limits.add_timeout_s / limits.sweep_interval_s
        reads_before = self.tick - limits.read_timeout_s / limits.sweep_interval_s
        late = False
        for lane in [lane for lane in self.lanes.values() if not lane.idle]:
            late |= lane.sweep(int(adds_before), int(reads_before))
        if late:
            self.observer.bookie_failed(self.bookie, "it did not answer in time")
            if self._connection is not None and self._connection.pending_bytes:
                # It does not even take what it is sent, and that pins memory here.
                self.close("it did not answer in time")
        idle_s = (self.tick - self._used) * limits.sweep_interval_s
        if not self.lanes and idle_s > limits.idle_close_s:
            self.close()

    def close(self, reason: str = "") -> None:
        """Close; with a reason, the bookie has failed."""
        if self._scope is not None:
            self._why_closed = self._why_closed or reason
            self._scope.cancel()


class Bookies:
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
        self.spoken = Spoken(limits.protocol, limits.protocol_retry_s)
        self._network = network
        self._arenas = arenas
        self.takes_blocks = takes_blocks
        self.flusher = flusher
        self._resolve = resolve
        self._observer = observer
        self._channels: dict[tuple[BookieId, Purpose], list[Channel]] = {}

    def open_lane(
        self, bookie: BookieId, ledger_id: int, purpose: Purpose, listener: AddListener
    ) -> Lane:
        """A lane of one's own.  Close it when done."""
        channels = self._channels.setdefault((bookie, purpose), [])
        for channel in channels:
            if ledger_id not in channel.lanes:
                return channel.open_lane(ledger_id, listener)
        channels.append(Channel(self, bookie, purpose, self._observer))
        return channels[-1].open_lane(ledger_id, listener)

    def read(self, bookie: BookieId, ledger_id: int, entry_id: int, callback: ReadCallback) -> None:
        channels = self._channels.setdefault((bookie, Purpose.READ), [])
        if not channels:
            channels.append(Channel(self, bookie, Purpose.READ, self._observer))
        channel = channels[0]
        lane = channel.lanes.get(ledger_id) or channel.open_lane(ledger_id, None)
        lane.read(entry_id, callback)

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
            for channels in list(self._channels.values()):
                for channel in channels:
                    channel.sweep()
