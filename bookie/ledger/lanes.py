"""A lane: what one ledger has under way on one connection to one bookie.

Everything that is sent has exactly one outcome, told synchronously: an answer, or a failure.  A
lane whose adds are *deferred* is told of each connection that ends, also while nothing is under
way: what was acknowledged on it, and not forced, may be gone with the bookie.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from daybook.bookie.ledger.adds import Adds
from daybook.bookie.ledger.dialects import ForceAnswer
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.wire.messages.bookie import AddRun, Status
from daybook.wire.transport import Buffer

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

    def send_adds(self, ledger_id: int, adds: Adds) -> bool:
        """Whether one answer will be about all of them."""
        ...

    def send_read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> None: ...

    def send_force(self, ledger_id: int) -> int:
        """The id of the request."""
        ...

    def not_stored(self, status: Status) -> None:
        """The bookie answers, and did not store an entry."""
        ...

    def forget_if_idle(self, lane: "Lane") -> None: ...


class Lane:
    """Made by `Bookies`; close it when done."""

    __slots__ = (
        "_adds",
        "_channel",
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
        channel: Carrier,
        ledger_id: int,
        listener: AddListener | None,
        *,
        deferred: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.listener = listener
        self._channel = channel
        self._deferred = deferred
        # Each entry, or the last of a block, and the tick of the sweep at which it was sent.
        self._adds: dict[int, int] = {}
        self._reads: dict[int, deque[tuple[ReadCallback, int]]] = {}
        self._force = 0  # the id of the request that is under way
        self._force_tick = 0
        self._forced: Callable[[], None] | None = None

    @property
    def bookie(self) -> BookieId:
        return self._channel.bookie

    @property
    def idle(self) -> bool:
        return not self._adds and not self._reads and self._forced is None

    def add(self, entry_id: int, frame: Sequence[Buffer]) -> None:
        """`frame`: as `wire.messages.bookie.encode_add_header` begins it, in parts."""
        self._adds[entry_id] = self._channel.tick
        self._channel.send_add(self.ledger_id, entry_id, frame)

    def add_all(self, adds: Adds) -> None:
        """The same for several, of which no bookie need know that they are several."""
        tick = self._channel.tick
        if self._channel.send_adds(self.ledger_id, adds):
            self._adds[adds.last] = tick
        else:
            self._adds.update(dict.fromkeys(range(adds.first, adds.last + 1), tick))

    def read(
        self, entry_id: int, callback: ReadCallback, *, fence_key: bytes | None = None
    ) -> None:
        waiting = self._reads.setdefault(entry_id, deque())
        waiting.append((callback, self._channel.tick))
        self._channel.send_read(self.ledger_id, entry_id, fence_key)

    def force(self, forced: Callable[[], None]) -> None:
        """Call `forced` when everything that was acknowledged on this lane before is on disk.

        By this very connection: another one may lead to a bookie that has started anew, without
        it.  Any other outcome is told to the listener as a failure.  It takes the place of one
        that is under way.
        """
        assert self._deferred
        self._forced, self._force_tick = forced, self._channel.tick
        self._force = self._channel.send_force(self.ledger_id)

    def close(self) -> None:
        """Nobody listens any more.  The ledger keeps its place here until all answers are in."""
        self.listener = None
        self._forced = None
        self._channel.forget_if_idle(self)

    # For the channel

    def add_answered(self, run: AddRun) -> None:
        adds, (status, _, first, last) = self._adds, run
        for entry_id in range(first, last + 1):
            adds.pop(entry_id, None)
        listener = self.listener
        if listener is None:
            self._channel.forget_if_idle(self)
        elif status == _OK:
            listener.added(self._channel.bookie, first, last - first + 1)
        elif status in _REFUSALS:
            listener.add_refused(self.bookie, Status(status))
        else:
            self._channel.not_stored(status_of(status))
            listener.add_failed(self.bookie, f"it answered {status_of(status).name}")

    def read_answered(self, entry_id: int, status: Status | None, entry: memoryview) -> None:
        waiting = self._reads.get(entry_id)
        if waiting is None:
            return
        callback, _ = waiting.popleft()
        if not waiting:
            del self._reads[entry_id]
        self._channel.forget_if_idle(self)
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
            self._channel.not_stored(status)
            self.listener.add_failed(self.bookie, f"it answered {status.name}")

    def fail(self, reason: str) -> None:
        """The connection has ended: what is under way has no answer."""
        self._fail_adds(reason, ended=True)
        for entry_id, waiting in list(self._reads.items()):
            for _ in range(len(waiting)):
                self.read_answered(entry_id, None, _NOTHING)
        self._channel.forget_if_idle(self)

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
        self._channel.forget_if_idle(self)
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
