"""How a log that is open moves from one ledger to the next.

Rolling over: a new ledger is created and put on the list by compare-and-swap while appends go on
into the old one.  Then the new one takes over *after the old one's last confirmation*; appends in
between wait.  Then the old one is closed, and the list learns how long it is.  The next roll does
not begin before that: a crash at any point leaves at most two ledgers of the list unclosed, which
is what opening recovers.

          RollDue         Listed            last confirmation       Sealed
    OPEN --------> ROLLING ------> SWITCHING ----------------> SEALING ------> OPEN
                      |  CreateFailed -> OPEN (retried later)
    any ---- Lost ----> FENCED         any ---- Stop ----> CLOSED

Whatever ends the writer, or makes a list write fail for good, fences the log: appends that were
not confirmed are in doubt, and only opening the log anew says which of them it kept.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

# -- events


@dataclass(frozen=True, slots=True)
class Append:
    """`count` more entries; they are appended, or wait, in order."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class Confirmed:
    """`count` more entries of the present ledger are confirmed."""

    count: int


@dataclass(frozen=True, slots=True)
class RollDue:
    """The present ledger is full, old, or lacks a copy that it could have in a new one."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The new ledger exists and the list in the metadata store names it."""


@dataclass(frozen=True, slots=True)
class CreateFailed:
    """There is no new ledger now, and the list is as it was."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The old ledger is closed, and the list says how long it is."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The writer was withdrawn, or the list belongs to somebody else."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The owner closes the log."""


Event: TypeAlias = Append | Confirmed | RollDue | Listed | CreateFailed | Sealed | Lost | Stop

# -- effects


@dataclass(frozen=True, slots=True)
class Submit:
    """Append the next `count` entries that wait to the present ledger."""

    count: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a ledger and put it on the list."""


@dataclass(frozen=True, slots=True)
class Switch:
    """The ledger that was created last is the present one from here on."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Close the ledger that was the present one before, and write its length to the list."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The log is of no use any more; `waiting` entries were never appended, others are in doubt."""

    reason: str
    waiting: int


Effect: TypeAlias = Submit | Create | Switch | Seal | Fence


class State(Enum):
    OPEN = auto()
    ROLLING = auto()
    SWITCHING = auto()
    SEALING = auto()
    FENCED = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Snapshot:
    state: State
    unconfirmed: int
    waiting: int
    roll_wanted: bool


class LogProtocol:
    """A log that has been opened: its first ledger is on the list."""

    def __init__(self) -> None:
        self.state = State.OPEN
        self.unconfirmed = 0  # appended to the present ledger
        self.waiting = 0  # taken, and not appended yet
        self._roll_wanted = False
        self._effects: list[Effect] = []

    @property
    def usable(self) -> bool:
        return self.state not in (State.FENCED, State.CLOSED)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.state, self.unconfirmed, self.waiting, self._roll_wanted)

    def restore(self, snapshot: Snapshot) -> None:
        self.state = snapshot.state
        self.unconfirmed = snapshot.unconfirmed
        self.waiting = snapshot.waiting
        self._roll_wanted = snapshot.roll_wanted
        self._effects = []

    def canonical(self) -> Snapshot:
        return self.snapshot()

    def step(self, event: Event) -> list[Effect]:
        if self.usable:
            match event:
                case Append(count):
                    self._append(count)
                case Confirmed(count):
                    assert count <= self.unconfirmed
                    self.unconfirmed -= count
                    self._maybe_switch()
                case RollDue():
                    # While one roll goes on, no other is due: behind it the ledger is a new one.
                    self._roll_wanted = self.state in (State.OPEN, State.SEALING)
                    self._maybe_roll()
                case Listed():
                    assert self.state is State.ROLLING
                    self.state = State.SWITCHING
                    self._maybe_switch()
                case CreateFailed():
                    assert self.state is State.ROLLING
                    self.state = State.OPEN
                    self._roll_wanted = False  # Whoever asked for it asks again.
                case Sealed():
                    assert self.state is State.SEALING
                    self.state = State.OPEN
                    self._maybe_roll()
                case Lost(reason):
                    self.state = State.FENCED
                    self._effects.append(Fence(reason, self.waiting))
                case Stop():
                    self.state = State.CLOSED
                case _:
                    assert_never(event)
        effects, self._effects = self._effects, []
        return effects

    def _append(self, count: int) -> None:
        if self.state is State.SWITCHING:
            self.waiting += count
        else:
            self.unconfirmed += count
            self._effects.append(Submit(count))

    def _maybe_roll(self) -> None:
        if self._roll_wanted and self.state is State.OPEN:
            self.state = State.ROLLING
            self._roll_wanted = False
            self._effects.append(Create())

    def _maybe_switch(self) -> None:
        if self.state is not State.SWITCHING or self.unconfirmed:
            return
        self.state = State.SEALING
        self._effects += [Switch(), Seal()]
        if self.waiting:
            self.unconfirmed, self.waiting = self.waiting, 0
            self._effects.append(Submit(self.unconfirmed))
