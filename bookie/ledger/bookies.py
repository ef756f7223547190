"""Connections to bookies: adds, reads and fencing reads, in BookKeeper's v2 protocol.

A *lane* is what one ledger has under way on one connection.  Sending never waits and starts no
task; a channel connects by itself when there is something to send.  What comes of it is told to
the lane's listener, or to the callback of a read, synchronously and exactly once:

- an answer, of adds in runs;
- or a failure: the connection was lost or could not be made, or there was no answer in time.

Time-outs are looked for in one sweep over all that is under way, and are as coarse as that.

v2 answers carry no request id, so two users of one ledger must not share a connection where that
could confuse them: each writer and each recovery has a lane of its own, on another connection if
the first one has a lane for that ledger (or still waits for answers of an earlier one).  In
particular no fencing read can be answered by the answer to a read that did not fence.  Plain reads
share a connection: whose answer it was does not matter there.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

import trio

from bookie.ledger.protocol.placement import BookieId
from wire.arena import ArenaPool
from wire.connection import FrameConnection
from wire.errors import ConnectionLostError, WireError
from wire.messages.bookie import (
    FRAME_BYTES_MAX,
    LAST_ENTRY,
    AddRun,
    ReadAnswer,
    Status,
    decode_add_answers,
    decode_answer,
    encode_read,
)
from wire.outbox import Flusher
from wire.transport import Buffer, Network

_NOTHING = memoryview(b"")
_TOO_SLOW = "it does not keep up"
_FRAME_OVERHEAD_BYTES = 500  # the distance that Apache's bookies keep

ReadCallback: TypeAlias = Callable[[Status | None, memoryview], None]
"""Status and entry; None if there was no answer."""

Resolve: TypeAlias = Callable[[BookieId], Awaitable[tuple[str, int]]]


class Purpose(Enum):
    ADD = auto()
    READ = auto()
    RECOVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieLimits:
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


class AddListener(Protocol):
    """Who sends adds hears of them here."""

    def added(self, bookie: BookieId, first: int, count: int) -> None: ...

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        """Nothing is known of what is under way there."""
        ...

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        """Fenced, or unauthorized: no bookie will take it."""
        ...


class Observer(Protocol):
    """Who remembers which bookies fail."""

    def bookie_failed(self, bookie: BookieId, reason: str) -> None:
        """It was not reached, or did not answer in time; it may be well again at any time."""
        ...

    def bookie_refused(self, bookie: BookieId, status: Status) -> None:
        """It answers, and cannot store anything now."""
        ...


class Lane:
    """What one ledger has under way on one connection.  Made by `Bookies`."""

    __slots__ = ("_adds", "_channel", "_reads", "ledger_id", "listener")

    def __init__(self, channel: "Channel", ledger_id: int, listener: AddListener | None) -> None:
        self.ledger_id = ledger_id
        self.listener = listener
        self._channel = channel
        self._adds: dict[int, int] = {}  # entry -> tick of the sweep at which it was sent
        self._reads: dict[int, deque[tuple[ReadCallback, int]]] = {}

    @property
    def bookie(self) -> BookieId:
        return self._channel.bookie

    @property
    def idle(self) -> bool:
        return not self._adds and not self._reads

    def add(self, entry_id: int, frame: Sequence[Buffer]) -> None:
        self._adds[entry_id] = self._channel.tick
        self._channel.send(frame)

    def read(
        self, entry_id: int, callback: ReadCallback, *, fence_key: bytes | None = None
    ) -> None:
        waiting = self._reads.setdefault(entry_id, deque())
        waiting.append((callback, self._channel.tick))
        self._channel.send([encode_read(self.ledger_id, entry_id, fence_key=fence_key)])

    def close(self) -> None:
        """Nobody listens any more.  The ledger keeps its place here until all answers are in."""
        self.listener = None
        self._channel.forget_if_idle(self)

    # For the channel

    def add_answered(self, run: AddRun) -> None:
        adds = self._adds
        for entry_id in range(run.first, run.last + 1):
            adds.pop(entry_id, None)
        if self.listener is None:
            self._channel.forget_if_idle(self)
            return
        match run.status:
            case Status.OK:
                self.listener.added(self.bookie, run.first, run.last - run.first + 1)
            case Status.FENCED | Status.UNAUTHORIZED:
                self.listener.add_refused(self.bookie, Status(run.status))
            case _:
                status = status_of(run.status)
                self._channel.observer.bookie_refused(self.bookie, status)
                self.listener.add_failed(self.bookie, f"it answered {status.name}")

    def read_answered(self, entry_id: int, status: Status | None, entry: memoryview) -> None:
        waiting = self._reads.get(entry_id)
        if waiting is None:
            return
        callback, _ = waiting.popleft()
        if not waiting:
            del self._reads[entry_id]
        self._channel.forget_if_idle(self)
        callback(status, entry)

    def fail(self, reason: str) -> None:
        """Everything that is under way has no answer."""
        self._fail_adds(reason)
        for entry_id, waiting in list(self._reads.items()):
            for _ in range(len(waiting)):
                self.read_answered(entry_id, None, _NOTHING)
        self._channel.forget_if_idle(self)

    def sweep(self, adds_before: int, reads_before: int) -> bool:
        """Give up what was sent before; True if there was something."""
        late = next(iter(self._adds.values()), adds_before) < adds_before
        if late:
            self._fail_adds("it did not answer in time")
        for entry_id, waiting in list(self._reads.items()):
            while waiting and waiting[0][1] < reads_before:
                late = True
                self.read_answered(entry_id, None, _NOTHING)
        self._channel.forget_if_idle(self)
        return late

    def _fail_adds(self, reason: str) -> None:
        if self._adds:
            self._adds.clear()
            if self.listener is not None:
                self.listener.add_failed(self.bookie, reason)


def status_of(number: int) -> Status:
    """A status that we do not know proves nothing, like an I/O error."""
    try:
        return Status(number)
    except ValueError:
        return Status.IO_ERROR


class Channel:
    """One connection to one bookie; made, and made again, when there is something to send."""

    def __init__(self, bookies: "Bookies", bookie: BookieId, observer: Observer) -> None:
        self.bookie = bookie
        self.observer = observer
        self.tick = 0
        self.lanes: dict[int, Lane] = {}
        self._bookies = bookies
        self._connection: FrameConnection | None = None
        self._scope: trio.CancelScope | None = None  # of the task that connects and receives
        self._why_closed = ""
        self._queue: list[Buffer] = []  # until there is a connection
        self._queue_bytes = 0
        self._used = 0

    def open_lane(self, ledger_id: int, listener: AddListener | None) -> Lane:
        assert ledger_id not in self.lanes
        lane = self.lanes[ledger_id] = Lane(self, ledger_id, listener)
        return lane

    def forget_if_idle(self, lane: Lane) -> None:
        if lane.listener is None and lane.idle and self.lanes.get(lane.ledger_id) is lane:
            del self.lanes[lane.ledger_id]

    def send(self, buffers: Sequence[Buffer]) -> None:
        self._used = self.tick
        connection = self._connection
        if connection is None or connection.closed:
            self._send_later(buffers)
            return
        connection.send(buffers)
        if connection.pending_bytes > self._bookies.limits.queue_bytes_max:
            connection.close(_TOO_SLOW)

    def _send_later(self, buffers: Sequence[Buffer]) -> None:
        """Queue until there is a connection; make one, unless one is being made."""
        self._queue += buffers
        self._queue_bytes += sum(map(len, buffers))
        if self._scope is None:
            self._scope, self._why_closed = trio.CancelScope(), ""
            self._bookies.nursery.start_soon(self._serve, self._scope)
        elif self._queue_bytes > self._bookies.limits.queue_bytes_max:
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
            self._connection = connection
            connection.send(self._queue)
            self._queue, self._queue_bytes = [], 0
            while frames := await connection.receive():
                self._received(frames)
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
        runs, others = decode_add_answers(frames)
        for run in runs:
            lane = self.lanes.get(run.ledger_id)
            if lane is not None:
                lane.add_answered(run)
        for frame in others:
            answer = decode_answer(frame)
            if isinstance(answer, ReadAnswer):
                lane = self.lanes.get(answer.ledger_id)
                if lane is not None:
                    status = status_of(answer.status)
                    lane.read_answered(answer.entry_id, status, answer.entry)

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
                self._connection.close("it did not answer in time")
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
        observer: Observer,
        nursery: trio.Nursery,
        limits: BookieLimits,
    ) -> None:
        self.nursery = nursery
        self.limits = limits
        self._network = network
        self._arenas = arenas
        self._flusher = flusher
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
        channels.append(Channel(self, bookie, self._observer))
        return channels[-1].open_lane(ledger_id, listener)

    def read(self, bookie: BookieId, ledger_id: int, entry_id: int, callback: ReadCallback) -> None:
        channels = self._channels.setdefault((bookie, Purpose.READ), [])
        if not channels:
            channels.append(Channel(self, bookie, self._observer))
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
            flusher=self._flusher,
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
