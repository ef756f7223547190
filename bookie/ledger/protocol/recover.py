"""How a ledger that its writer has left is brought to its end, so that no two readers disagree.

The metadata say IN_RECOVERY before this machine starts; the fragments that it is given are those of
that very write (or read).  Then:

    FENCING   every bookie of the last fragment is fenced and asked for its LAC, until no write set
              has an ack quorum left that could still accept entries
    READING   from the largest LAC on, entry by entry, with reads that fence, too.  One copy is
              enough: the entry is recovered, and written back to its write set, in order.  When
              WQ - AQ + 1 bookies say that they do not have it, it was never confirmed and never
              will be: here the ledger ends.  If neither can be had, nobody knows: ABORTED
    CLOSING   all recovered entries are on an ack quorum; the end may be written to the metadata
    DONE      the machine has asked for that

Aborting changes nothing for the worse; another attempt starts from fresh metadata.  Any number of
recoveries may run at once: they recover the same entries, and the first that closes wins.

Rules that look odd, and are not to be improved upon (`safety` W1 to W6):
- Reads go to the fragments as they were at the start, though write-back may change the ensemble.
- Such changes are kept here until the closing write: published before, they would name bookies that
  do not hold what may be confirmed already.
- Entries are written back with the LAC found at the start: a reader must not learn from a recovery
  that may yet lose against another one.
- Silence, errors and overload are no negative answers.

Bookies that have answered the fencing request are asked first: a dead one delays nothing.

How many entries are under way at once grows with what was recovered: most ledgers end where their
LAC is, or a few entries behind it, and reads behind the end cost each bookie a request.  A long
tail soon has `reads_max` under way, or as many of its entries as 16 MB hold.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeAlias, assert_never

from daybook.bookie.ledger.protocol import write
from daybook.bookie.ledger.protocol.placement import (
    NO_ENTRY,
    BookieId,
    Ensemble,
    Fragment,
    Quorums,
)
from daybook.bookie.ledger.protocol.read import Inquiry, InquirySnapshot, Verdict, asking_order
from daybook.bookie.ledger.protocol.write import (
    Added,
    AddFailed,
    Append,
    ChangeEnsemble,
    ChangePostponed,
    Confirm,
    EnsembleChanged,
    Send,
    Starved,
    Withdraw,
    WriteProtocol,
)

READS_MAX = 256  # under way at once
_READS_FIRST = 16
_READ_BYTES_MAX = 16 << 20

# -- Events


@dataclass(frozen=True, slots=True)
class Start:
    pass


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The last entry that a bookie has, of which nothing but this matters."""

    entry_id: int
    lac: int
    length: int


@dataclass(frozen=True, slots=True)
class FenceAnswered:
    """`fenced`: the bookie accepts no entry of the old writer any more, durably.

    `last` is None if it has no entry, or one that cannot be believed.
    """

    bookie: BookieId
    fenced: bool
    last: LastEntry | None = None


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """`length` is that of the ledger up to the entry; it counts if the entry was found."""

    bookie: BookieId
    entry_id: int
    verdict: Verdict
    length: int = 0


Event: TypeAlias = (
    Start | FenceAnswered | ReadAnswered | Added | AddFailed | EnsembleChanged | ChangePostponed
)


# -- Effects


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask these bookies for their last entry, and fence the ledger there."""

    bookies: Ensemble


@dataclass(frozen=True, slots=True)
class FencingRead:
    """Read these entries from the bookie, and fence the ledger there."""

    bookie: BookieId
    first: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Drop:
    """What was read of this entry will not be needed."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Write this end, if the ledger is in recovery still, and of the version that we know."""

    last_entry_id: int
    length: int
    changes: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    reason: str


Effect: TypeAlias = (
    Fence | FencingRead | Drop | Send | ChangeEnsemble | Confirm | CloseLedger | Abort
)


# -- The state machine


class Phase(Enum):
    FENCING = auto()
    READING = auto()
    CLOSING = auto()
    DONE = auto()
    ABORTED = auto()


@dataclass(frozen=True, slots=True)
class Snapshot:
    phase: Phase
    fenced: tuple[BookieId, ...]
    silent: tuple[BookieId, ...]
    found_lac: int
    base: int
    lengths: tuple[tuple[int, int], ...]
    inquiries: tuple[tuple[int, InquirySnapshot], ...]
    found: tuple[int, ...]
    next_read: int
    end: int | None
    changes: tuple[Fragment, ...]
    writing: write.Snapshot


class RecoverProtocol:
    def __init__(
        self, quorums: Quorums, fragments: Sequence[Fragment], *, reads_max: int = READS_MAX
    ) -> None:
        self.quorums = quorums
        self.phase = Phase.FENCING
        self._fragments = tuple(fragments)
        self._reads_max = reads_max
        self._fenced: set[BookieId] = set()
        self._silent: set[BookieId] = set()  # did not answer, or not what would help
        self._lengths: dict[int, int] = {}  # entry -> length of the ledger up to it
        self._base = NO_ENTRY
        self._found_lac = NO_ENTRY
        self._inquiries: dict[int, Inquiry] = {}  # entries that are being read
        self._found: set[int] = set()  # read, and not yet written back
        self._next_read = 0
        self._end: int | None = None  # the first entry that is known to be absent
        self._changes: list[Fragment] = []
        self._writing = WriteProtocol(fragments[-1].ensemble, quorums)
        self._effects: list[Effect] = []

    @property
    def lac(self) -> int:
        """What recovered entries carry as their LAC: the one found at the start."""
        return self._base

    @property
    def ensemble(self) -> Ensemble:
        """Where recovered entries go."""
        return self._writing.ensemble

    @property
    def _last(self) -> Fragment:
        return self._fragments[-1]

    def wants(self, entry_id: int) -> bool:
        """An answer that holds this entry will be needed."""
        return entry_id in self._inquiries

    def step(self, event: Event) -> list[Effect]:
        if self.phase not in (Phase.DONE, Phase.ABORTED):
            match event:
                case Start():
                    self._effects.append(Fence(self._last.ensemble))
                case FenceAnswered(bookie, fenced, last):
                    self._fence_answered(bookie, fenced, last)
                case ReadAnswered(bookie, entry_id, verdict, length):
                    self._read_answered(bookie, entry_id, verdict, length)
                case Added() | AddFailed() | EnsembleChanged() | ChangePostponed():
                    self._write(event)
                case _:
                    assert_never(event)
            self._proceed()
        effects, self._effects = self._effects, []
        return effects

    # FENCING

    def _fence_answered(self, bookie: BookieId, fenced: bool, last: LastEntry | None) -> None:
        if self.phase is not Phase.FENCING or bookie not in self._last.ensemble:
            return
        (self._fenced if fenced else self._silent).add(bookie)
        if fenced and last is not None:
            self._found_lac = max(self._found_lac, last.lac)
            self._lengths[last.entry_id] = last.length
        if len(self._silent | self._fenced) == self.quorums.ensemble and not self._covered:
            silent = _names(self._silent - self._fenced)
            self._abort(f"too few bookies could be fenced; no answer from {silent}")

    @property
    def _covered(self) -> bool:
        ensemble = self._last.ensemble
        return self.quorums.is_covered({ensemble.index(bookie) for bookie in self._fenced})

    def _start_reading(self) -> None:
        assert self._covered, "entries are read only when the old writer cannot go on"
        self.phase = Phase.READING
        # What lies before the last fragment was confirmed when that was written.
        self._base = max(self._found_lac, self._last.first_entry_id - 1)
        self._next_read = self._base + 1
        self._writing = WriteProtocol(self._last.ensemble, self.quorums, lac=self._base)

    # READING

    def _read_on(self) -> None:
        """Keep a window of entries under way, up to the end as far as it is known."""
        last = self._writing.lac + self._window
        while self._end is None and self._next_read <= last:
            self._inquire(self._next_read)
            self._next_read += 1

    @property
    def _window(self) -> int:
        """So many entries are read and not yet written back, at most."""
        recovered = self._writing.lac - self._base
        if recovered < 2:
            return min(_READS_FIRST, self._reads_max)
        up_to, behind = (self._lengths.get(e, 0) for e in (self._writing.lac, self._base + 1))
        fit = _READ_BYTES_MAX * (recovered - 1) // max(1, up_to - behind)
        return min(_READS_FIRST + min(recovered, max(0, fit - _READS_FIRST)), self._reads_max)

    def _inquire(self, entry_id: int) -> None:
        order = asking_order(self.quorums, self._fragments, entry_id, prefer=self._fenced)
        inquiry = self._inquiries[entry_id] = Inquiry(order)
        bookie = inquiry.next()
        assert bookie is not None
        self._effects.append(FencingRead(bookie, entry_id))

    def _read_answered(
        self, bookie: BookieId, entry_id: int, verdict: Verdict, length: int
    ) -> None:
        inquiry = self._inquiries.get(entry_id)
        if inquiry is None:
            return  # Decided by an answer that came before.
        if verdict is Verdict.FOUND:
            del self._inquiries[entry_id]
            self._lengths[entry_id] = length
            if entry_id > self._base:
                self._found.add(entry_id)
            return
        inquiry.answered(bookie, verdict)
        if entry_id > self._base and inquiry.absences >= self.quorums.absent:
            self._ends_before(entry_id)
        elif inquiry.exhausted:
            del self._inquiries[entry_id]
            if entry_id >= self._last.first_entry_id:
                self._abort(f"nobody can tell whether entry {entry_id} was confirmed")
            else:
                # The bookies of an older fragment may be gone for good; only the length of the
                # ledger is asked of them, and a guess will do.
                self._lengths[entry_id] = self._length_at_least(entry_id)
        else:
            # One negative answer is rarely the only one: ask all the others at once.
            for other in inquiry.rest():
                self._effects.append(FencingRead(other, entry_id))

    def _ends_before(self, entry_id: int) -> None:
        """That entry was never confirmed, so nothing behind it was."""
        self._end = entry_id
        for later in [e for e in self._inquiries if e >= entry_id]:
            del self._inquiries[later]
        for later in sorted(e for e in self._found if e > entry_id):
            self._found.discard(later)
            self._effects.append(Drop(later))

    def _length_at_least(self, entry_id: int) -> int:
        return max((n for e, n in self._lengths.items() if e <= entry_id), default=0)

    # Writing back

    def _write_back(self) -> None:
        while (entry_id := self._writing.last_add_pushed + 1) in self._found:
            self._found.discard(entry_id)
            self._write(Append())

    def _write(self, event: write.Event) -> None:
        if self.phase is Phase.FENCING:
            return
        if isinstance(event, EnsembleChanged):
            self._changes.append(Fragment(self._writing.lac + 1, event.ensemble))
        for effect in self._writing.step(event):
            match effect:
                case Send() | ChangeEnsemble() | Confirm():
                    self._effects.append(effect)
                case Starved():
                    pass  # Only a change that nobody can make is a reason to give up.
                case Withdraw():
                    raise AssertionError("a recovery does not withdraw")
                case _:
                    assert_never(effect)
        if self._writing.starved and self._writing.state is write.State.OPEN:
            # Whoever could take the place of a missing bookie has been asked for.
            away = _names(self._writing.missing)
            self._abort(f"too few bookies take recovered entries; no answer from {away}")

    # CLOSING

    def _proceed(self) -> None:
        if self.phase is Phase.FENCING and self._covered:
            self._start_reading()
        if self.phase is Phase.READING:
            self._write_back()
            self._read_on()
            if self._end is not None and self._writing.lac == self._end - 1:
                self.phase = Phase.CLOSING
        if self.phase is Phase.CLOSING:
            self._close()

    def _close(self) -> None:
        assert self._end is not None
        last_entry_id = self._end - 1
        if last_entry_id == NO_ENTRY:
            length = 0
        elif last_entry_id in self._lengths:
            length = self._lengths[last_entry_id]
        else:
            # Nothing was recovered, and no bookie has just this entry as its last one.
            if last_entry_id not in self._inquiries:
                self._inquire(last_entry_id)
            return
        self.phase = Phase.DONE
        changes = tuple(c for c in self._changes if c.first_entry_id <= last_entry_id)
        self._effects.append(CloseLedger(last_entry_id, length, changes))

    def _abort(self, reason: str) -> None:
        self.phase = Phase.ABORTED
        self._effects.append(Abort(reason))

    # -- for searches

    def snapshot(self) -> Snapshot:
        """All of the state between two steps."""
        return Snapshot(
            self.phase,
            tuple(sorted(self._fenced)),
            tuple(sorted(self._silent)),
            self._found_lac,
            self._base,
            tuple(sorted(self._lengths.items())),
            tuple((e, i.snapshot()) for e, i in sorted(self._inquiries.items())),
            tuple(sorted(self._found)),
            self._next_read,
            self._end,
            tuple(self._changes),
            self._writing.snapshot(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        self.phase = snapshot.phase
        self._fenced, self._silent = set(snapshot.fenced), set(snapshot.silent)
        self._found_lac, self._base = snapshot.found_lac, snapshot.base
        self._lengths = dict(snapshot.lengths)
        self._inquiries = {e: Inquiry.restored(i) for e, i in snapshot.inquiries}
        self._found = set(snapshot.found)
        self._next_read, self._end = snapshot.next_read, snapshot.end
        self._changes = list(snapshot.changes)
        self._writing.restore(snapshot.writing)
        self._effects.clear()

    def canonical(self) -> Snapshot:
        """The same for states that nobody can tell apart; it can be restored, too."""
        if self.phase is Phase.FENCING:
            return self.snapshot()
        # Who was silent, and what LAC was found, matters only until reading begins.
        return replace(self.snapshot(), silent=(), found_lac=NO_ENTRY)


def _names(bookies: Collection[BookieId]) -> str:
    return ", ".join(sorted(bookies)) or "none"
