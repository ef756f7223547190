"""Recovery: close a ledger that its writer has left, such that all readers see the same end.

The metadata say IN_RECOVERY before this machine starts, and its fragments are those of that very
write (or read).  The phases:

    FENCING   every bookie of the last fragment is fenced and asked for its LAC, until no write set
              has an ack quorum left that could still accept entries
    READING   from the largest LAC on, entry by entry, with reads that fence as well.  One copy is
              enough, also one in the answer to a fencing request: the entry is recovered, and
              written back to its write set, in order.  After
              WQ - AQ + 1 negative answers the entry was never confirmed and never will be: the
              ledger ends before it.  If neither is possible, the entry is unknown: ABORTED
    CLOSING   all recovered entries are on an ack quorum; the end may be written to the metadata
    DONE      the machine has asked for that write

An aborted recovery does no harm; another attempt starts from fresh metadata.  Any number of
recoveries may run at once: they recover the same entries, and the first one to close wins.

Rules that look odd, and must stay (W1 to W6 of `python -m tests.mutants --invariants`):
- Reads go to the fragments as they were at the start, although write-back may change the ensemble.
- These ensemble changes are kept here until the closing write.  Published earlier, they would name
  bookies that do not hold entries which may be confirmed already.
- Entries are written back with the LAC found at the start: a reader must not learn from a recovery
  that may yet lose against another one.
- Silence, errors and overload are no negative answers.

Bookies that answered the fencing request are asked first, so a dead one delays nothing.

Reading goes one entry beyond the last one that any bookie has shown so far.  Most ledgers end
there, and each read beyond the end costs every bookie a request.  Only reads decide where the
ledger ends: a bookie that names an earlier last entry may have lost later ones.  A long tail soon
has `reads_max` entries under way, or as many as fit into 16 MB.
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
    ChangeEnsemble,
    Confirm,
    Send,
    Starved,
    Withdraw,
    WriteProtocol,
)

READS_MAX = 256  # under way at once
_READS_FIRST = 16
_READ_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The last entry of a bookie, without its payload."""

    entry_id: int
    lac: int
    length: int


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
    """The entry was read, and is not needed."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Write this end, if the ledger is still in recovery, with the version we marked."""

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
    """One attempt to recover one ledger."""

    def __init__(
        self, quorums: Quorums, fragments: Sequence[Fragment], *, reads_max: int = READS_MAX
    ) -> None:
        self.quorums = quorums
        self.phase = Phase.FENCING
        self._fragments = tuple(fragments)
        self._reads_max = reads_max
        self._fenced: set[BookieId] = set()
        self._silent: set[BookieId] = set()  # no answer, or one that proves no fence
        self._lengths: dict[int, int] = {}  # entry -> length of the ledger up to it
        self._shown = NO_ENTRY  # the highest of these entries
        self._base = NO_ENTRY  # reading begins behind this entry, which is confirmed
        self._found_lac = NO_ENTRY  # the largest LAC that a bookie has reported
        self._inquiries: dict[int, Inquiry] = {}  # entries being read
        self._found: set[int] = set()  # read, and not yet written back
        self._next_read = 0
        self._end: int | None = None  # the first entry known to be absent
        self._changes: list[Fragment] = []
        self._writing = WriteProtocol(fragments[-1].ensemble, quorums)
        self._effects: list[Effect] = []

    @property
    def lac(self) -> int:
        """The LAC that recovered entries carry: the one found at the start."""
        return self._base

    @property
    def ensemble(self) -> Ensemble:
        """The bookies to which recovered entries go."""
        return self._writing.ensemble

    @property
    def _last(self) -> Fragment:
        return self._fragments[-1]

    def wants(self, entry_id: int) -> bool:
        """Return True if the entry is still undecided."""
        return entry_id in self._inquiries

    @property
    def _is_over(self) -> bool:
        return self.phase in (Phase.DONE, Phase.ABORTED)

    @property
    def _is_writing(self) -> bool:
        """True if recovered entries may be on their way to bookies."""
        return self.phase in (Phase.READING, Phase.CLOSING)

    # -- FENCING

    def start(self) -> list[Effect]:
        """Begin to fence."""
        if not self._is_over:
            self._effects.append(Fence(self._last.ensemble))
        return self._proceed()

    def fence_answered(
        self, bookie: BookieId, fenced: bool, last: LastEntry | None = None
    ) -> list[Effect]:
        """The bookie has answered a fencing request, or it has not in time.

        `fenced`: the bookie will accept no entry of the old writer any more, durably.  `last` is
        None if the bookie has no entry, or a damaged one.
        """
        if not self._is_over:
            self._fence_answered(bookie, fenced, last)
        return self._proceed()

    def _fence_answered(self, bookie: BookieId, fenced: bool, last: LastEntry | None) -> None:
        if self.phase is not Phase.FENCING or bookie not in self._last.ensemble:
            return
        (self._fenced if fenced else self._silent).add(bookie)
        if fenced and last is not None:
            self._found_lac = max(self._found_lac, last.lac)
            self._has_length(last.entry_id, last.length)
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
        # A fragment starts at LAC + 1, so all entries before the last fragment are confirmed.
        self._base = max(self._found_lac, self._last.first_entry_id - 1)
        self._next_read = self._base + 1
        self._writing = WriteProtocol(self._last.ensemble, self.quorums, lac=self._base)

    # -- READING

    def read_answered(
        self, bookie: BookieId, entry_id: int, verdict: Verdict, length: int = 0
    ) -> list[Effect]:
        """The bookie has answered a read.

        `length` is the ledger length up to the entry; it counts if the entry was found.
        """
        if not self._is_over:
            self._read_answered(bookie, entry_id, verdict, length)
        return self._proceed()

    def _read_on(self) -> None:
        """Keep a window of entries under way, up to the end as far as it is known."""
        beyond = max(self._shown, self._base) + 1
        last = min(self._writing.lac + self._window, beyond)
        while self._end is None and self._next_read <= last:
            if self._next_read in self._lengths:
                self._found.add(self._next_read)  # It was the last entry of a fenced bookie.
            else:
                self._inquire(self._next_read)
            self._next_read += 1

    @property
    def _window(self) -> int:
        """The largest number of entries that are read and not yet written back."""
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
            return  # An earlier answer decided this entry.
        if verdict is Verdict.FOUND:
            del self._inquiries[entry_id]
            self._has_length(entry_id, length)
            if entry_id > self._base:
                self._found.add(entry_id)
            return
        inquiry.answered(bookie, verdict)
        if entry_id > self._base and inquiry.absences >= self.quorums.absent:
            self._ends_before(entry_id)
        elif inquiry.exhausted:
            del self._inquiries[entry_id]
            if entry_id >= self._last.first_entry_id:
                self._abort(f"no bookie can tell whether entry {entry_id} was confirmed")
            else:
                # The bookies of an older fragment may be gone forever.  They are asked only for the
                # length of the ledger, and an estimate is enough.
                self._lengths[entry_id] = self._length_at_least(entry_id)
        else:
            # One negative answer rarely comes alone: ask all other bookies at once.
            for other in inquiry.rest():
                self._effects.append(FencingRead(other, entry_id))

    def _ends_before(self, entry_id: int) -> None:
        """End the ledger: the entry was never confirmed, so no later one was."""
        assert entry_id > self._writing.last_add_pushed, "a recovered entry is not denied"
        self._end = entry_id
        # Entries above the end may exist on some bookies; a confirmed prefix has no gap.
        for later in [e for e in self._inquiries if e >= entry_id]:
            del self._inquiries[later]
        for later in sorted(e for e in self._found if e > entry_id):
            self._found.discard(later)
            self._effects.append(Drop(later))

    def _has_length(self, entry_id: int, length: int) -> None:
        self._lengths[entry_id] = length
        self._shown = max(self._shown, entry_id)

    def _length_at_least(self, entry_id: int) -> int:
        return max((n for e, n in self._lengths.items() if e <= entry_id), default=0)

    # -- writing back.  These are inputs of the `WriteProtocol`; before READING they mean nothing.

    def added(self, bookie: BookieId, first: int, count: int = 1) -> list[Effect]:
        """The bookie holds these recovered entries, durably."""
        if self._is_writing:
            self._take_over(self._writing.added(bookie, first, count))
        return self._proceed()

    def add_failed(self, bookie: BookieId) -> list[Effect]:
        """The bookie did not take a recovered entry."""
        if self._is_writing:
            self._take_over(self._writing.add_failed(bookie))
        return self._proceed()

    def ensemble_changed(self, ensemble: Ensemble) -> list[Effect]:
        """The entries that are not confirmed go to these bookies."""
        if self._is_writing:
            # The change is published only by the closing write.
            self._changes.append(Fragment(self._writing.lac + 1, ensemble))
            self._take_over(self._writing.ensemble_changed(ensemble))
        return self._proceed()

    def change_postponed(self) -> list[Effect]:
        """There is no spare bookie."""
        if self._is_writing:
            self._take_over(self._writing.change_postponed())
        return self._proceed()

    def _write_back(self) -> None:
        while (entry_id := self._writing.last_add_pushed + 1) in self._found:
            self._found.discard(entry_id)
            self._take_over(self._writing.append())

    def _take_over(self, effects: list[write.Effect]) -> None:
        """Pass on the effects of the `WriteProtocol`."""
        for effect in effects:
            match effect:
                case Send() | ChangeEnsemble() | Confirm():
                    self._effects.append(effect)
                case Starved():
                    pass  # Aborting is decided below, once a replacement was tried.
                case Withdraw():
                    raise AssertionError("a recovery does not withdraw")
                case _:
                    assert_never(effect)
        if self._writing.starved and self._writing.state is write.State.OPEN:
            # The change to spare bookies was tried already, and the rest cannot confirm.
            away = _names(self._writing.missing)
            self._abort(f"too few bookies take recovered entries; no answer from {away}")

    # -- CLOSING

    def _proceed(self) -> list[Effect]:
        """Do everything that is possible now; return the effects of an input."""
        if self.phase is Phase.FENCING and self._covered:
            self._start_reading()
        if self.phase is Phase.READING:
            self._read_on()
            self._write_back()
            if self._end is not None and self._writing.lac == self._end - 1:
                self.phase = Phase.CLOSING
        if self.phase is Phase.CLOSING:
            self._close()
        effects, self._effects = self._effects, []
        return effects

    def _close(self) -> None:
        assert self._end is not None
        last_entry_id = self._end - 1
        # The end is written to the metadata only when an ack quorum holds all entries before it.
        if last_entry_id == NO_ENTRY:
            length = 0
        elif last_entry_id in self._lengths:
            length = self._lengths[last_entry_id]
        else:
            # Nothing was recovered, and no bookie reported this entry as its last one: read it
            # for the length it carries.
            if last_entry_id not in self._inquiries:
                self._inquire(last_entry_id)
            return
        self.phase = Phase.DONE
        changes = tuple(c for c in self._changes if c.first_entry_id <= last_entry_id)
        self._effects.append(CloseLedger(last_entry_id, length, changes))

    def _abort(self, reason: str) -> None:
        self.phase = Phase.ABORTED
        self._effects.append(Abort(reason))

    # -- for the model checker

    def snapshot(self) -> Snapshot:
        """Return the whole state between two inputs."""
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
        self._shown = max(self._lengths, default=NO_ENTRY)
        self._inquiries = {e: Inquiry.restored(i) for e, i in snapshot.inquiries}
        self._found = set(snapshot.found)
        self._next_read, self._end = snapshot.next_read, snapshot.end
        self._changes = list(snapshot.changes)
        self._writing.restore(snapshot.writing)
        self._effects.clear()

    def canonical(self) -> Snapshot:
        """Return the same value for states that behave the same; `restore` accepts it."""
        if self.phase is Phase.FENCING:
            return self.snapshot()
        # The silent bookies and the LAC that was found matter only until reading begins.
        return replace(self.snapshot(), silent=(), found_lac=NO_ENTRY)


def _names(bookies: Collection[BookieId]) -> str:
    return ", ".join(sorted(bookies)) or "none"
