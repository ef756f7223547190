"""How an open log moves from one ledger to the next.

Rolling over: the log creates a new ledger and puts it on the list by compare-and-swap, while
appends continue in the old one.  The new ledger takes over *after the old one's last confirmation*;
appends in between wait.  Then the log closes the old ledger and writes its length to the list.  The
next rollover does not begin before that.  So a crash at any point leaves at most two ledgers of the
list unclosed, which are the ones that opening recovers.

         roll_due         listed            last confirmation       sealed
    OPEN --------> ROLLING ------> SWITCHING ----------------> SEALING ------> OPEN
                      |  create_failed -> OPEN (retried later)
    any ---- lost ----> FENCED         any ---- stop ----> CLOSED

A log that nobody has written to for a whole opening begins the next one without a ledger to append
to.  It gets one with its first append, or when somebody wants one, and appends wait for it:

         append, want_ledger            listed
    IDLE ------------------> CREATING --------> OPEN
                                 |  create_failed -> IDLE; CREATING again if appends wait

Any error that ends the writer, or makes a write of the list fail for good, fences the log.  Appends
that were not confirmed are in doubt then, and only opening the log again decides which were kept.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

# -- effects


@dataclass(frozen=True, slots=True)
class Submit:
    """Append the next `count` waiting entries to the present ledger."""

    count: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a ledger and put it on the list."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Make the ledger that was created last the present one."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Close the former ledger, and write its length to the list."""


@dataclass(frozen=True, slots=True)
class Fence:
    """End the log: `waiting` entries were never submitted, all other pending ones are in doubt."""

    reason: str
    waiting: int


Effect: TypeAlias = Submit | Create | Switch | Seal | Fence


class LogState(Enum):
    """The states of an open log; see the pictures above."""

    IDLE = auto()
    CREATING = auto()
    OPEN = auto()
    ROLLING = auto()
    SWITCHING = auto()
    SEALING = auto()
    FENCED = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    state: LogState
    unconfirmed: int
    waiting: int
    roll_wanted: bool


class LogProtocol:
    """The machine of one log that was opened.

    Its first ledger is on the list; with `idle`, all ledgers of the list are closed.
    """

    def __init__(self, *, idle: bool = False) -> None:
        self.state = LogState.IDLE if idle else LogState.OPEN
        self.unconfirmed = 0  # submitted to the present ledger
        self.waiting = 0  # taken, and not submitted yet
        self._roll_wanted = False
        self._effects: list[Effect] = []

    @property
    def usable(self) -> bool:
        return self.state not in (LogState.FENCED, LogState.CLOSED)

    @property
    def at_rest(self) -> bool:
        """True if no ledger is being created, taken into use, or closed."""
        return self.state in (LogState.IDLE, LogState.OPEN)

    def snapshot(self) -> LogSnapshot:
        return LogSnapshot(self.state, self.unconfirmed, self.waiting, self._roll_wanted)

    def restore(self, snapshot: LogSnapshot) -> None:
        self.state = snapshot.state
        self.unconfirmed = snapshot.unconfirmed
        self.waiting = snapshot.waiting
        self._roll_wanted = snapshot.roll_wanted
        self._effects = []

    def canonical(self) -> LogSnapshot:
        return self.snapshot()

    # -- entries

    def append(self, count: int = 1) -> list[Effect]:
        """`count` more entries were taken; they are submitted, or wait, in order."""
        if not self.usable:
            return []
        if self.state in (LogState.IDLE, LogState.CREATING):
            self.waiting += count
            self._create_first()
        # The old ledger must drain before the switch, so it takes no more entries.
        elif self.state is LogState.SWITCHING:
            self.waiting += count
        else:
            assert not self.waiting  # An append must not overtake one that waits.
            self.unconfirmed += count
            self._effects.append(Submit(count))
        return self._pop_effects()

    def confirmed(self, count: int) -> list[Effect]:
        """The present ledger has confirmed `count` more entries."""
        if self.usable:
            assert count <= self.unconfirmed
            self.unconfirmed -= count
            self._maybe_switch()
        return self._pop_effects()

    # -- the first ledger of an idle log

    def want_ledger(self) -> list[Effect]:
        """An idle log is to get a ledger, although nothing is appended."""
        self._create_first()
        return self._pop_effects()

    def _create_first(self) -> None:
        if self.state is LogState.IDLE:
            self.state = LogState.CREATING
            self._effects.append(Create())

    # -- rolling over

    def roll_due(self) -> list[Effect]:
        """The present ledger is full, old, or lacks a copy that it could have in a new one."""
        if self.usable:
            # During a rollover no other is due: the ledger behind it is a new one.
            self._roll_wanted = self.state in (LogState.OPEN, LogState.SEALING)
            self._maybe_roll()
        return self._pop_effects()

    def listed(self) -> list[Effect]:
        """The new ledger exists, and the list in the metadata store names it."""
        if self.state is LogState.CREATING:
            self.state = LogState.OPEN
            self._effects.append(Switch())
            self._submit_waiting()
        elif self.usable:
            assert self.state is LogState.ROLLING
            self.state = LogState.SWITCHING
            self._maybe_switch()
        return self._pop_effects()

    def create_failed(self) -> list[Effect]:
        """The new ledger could not be created, and the list is unchanged."""
        if self.state is LogState.CREATING:
            self.state = LogState.IDLE
            if self.waiting:
                self._create_first()
        elif self.usable:
            assert self.state is LogState.ROLLING
            self.state = LogState.OPEN
            self._roll_wanted = False  # The timer asks again.
        return self._pop_effects()

    def sealed(self) -> list[Effect]:
        """The old ledger is closed, and the list has its length."""
        if self.usable:
            assert self.state is LogState.SEALING
            self.state = LogState.OPEN
            self._maybe_roll()
        return self._pop_effects()

    def _maybe_roll(self) -> None:
        # One rollover at a time: at most two ledgers of the list are unclosed.
        if self._roll_wanted and self.state is LogState.OPEN:
            self.state = LogState.ROLLING
            self._roll_wanted = False
            self._effects.append(Create())

    def _maybe_switch(self) -> None:
        # An entry of the new ledger must not be confirmed before one of the old ledger.
        if self.state is not LogState.SWITCHING or self.unconfirmed:
            return
        self.state = LogState.SEALING
        self._effects += [Switch(), Seal()]
        self._submit_waiting()

    def _submit_waiting(self) -> None:
        if self.waiting:
            self.unconfirmed, self.waiting = self.waiting, 0
            self._effects.append(Submit(self.unconfirmed))

    # -- the end

    def lost(self, reason: str) -> list[Effect]:
        """The writer has failed, or the list belongs to another owner."""
        if self.usable:
            self.state = LogState.FENCED
            self._effects.append(Fence(reason, self.waiting))
        return self._pop_effects()

    def stop(self) -> list[Effect]:
        """The owner closes or abandons the log."""
        if self.usable:
            self.state = LogState.CLOSED
        return self._pop_effects()

    def _pop_effects(self) -> list[Effect]:
        """Return the effects of an input."""
        effects, self._effects = self._effects, []
        return effects
