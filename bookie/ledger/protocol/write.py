"""How one writer appends entries to one ledger.

An entry is *confirmed* once AQ bookies of its write set hold it and every earlier entry is
confirmed.  The newest confirmed entry is the LAC (last add confirmed).  When a bookie fails, the
writer asks for an ensemble change: a fragment that starts at LAC + 1, in which another bookie takes
the place and is sent the unconfirmed entries.  The LAC stands still until the change is settled;
otherwise the new fragment would cover entries that its bookies were never sent.

If no bookie can take the place (`ChangePostponed`) the writer continues *degraded*: it sends the
missing bookie nothing, and the others confirm.  If too few are left for that, appends wait
(`Starved`).  A bookie that returns then is sent everything above the LAC, so that it has no gap
there.  As long as the others suffice, a bookie that returned is left out: the next ledger and
rereplication make up for its missing entries.

A fenced writer withdraws, and so does a writer whose ledger is no longer open.  Recovery decides
which of its unconfirmed entries the ledger keeps.

               add_failed, spare_found
        OPEN ------------------------> REPLACING
          ^                              |   |
          |`-- ensemble_changed ---------'   |
          |`-- change_postponed -------------'
          `--> WITHDRAWN, from both: refused, stop

Each input is a method.  Perform the effects that it returns in order.  Runs are (first, count).
The machine does not know payloads: `Send` names entries, and the shell has their bytes.
`append_direct` and `added_direct` do the same as `append` and `added`, which are called for every
entry, without making effects: these would cost a host that writes to thousands of ledgers more than
all the rest.

Recovery writes entries back with the same machine.  It follows the TLA+ specification of
BookKeeper: ClientSendsAddEntryRequests, ClientChangesEnsemble, ClientResendsPendingAddOp.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TypeAlias

from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId, Ensemble, Quorums

# -- Effects


@dataclass(frozen=True, slots=True)
class Send:
    """Send these entries to each of these bookies."""

    first: int
    count: int
    to: Ensemble


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """Replace these members, as far as there are spares, from that entry on."""

    first_entry_id: int
    failed: Ensemble


@dataclass(frozen=True, slots=True)
class Confirm:
    """These entries, and all before them, are on an ack quorum."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Starved:
    """Appends wait until one of these bookies is back, or a spare is found."""

    missing: Ensemble


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nothing is written any more; recovery decides which of these entries the ledger keeps."""

    first: int
    count: int
    reason: str


Effect: TypeAlias = Send | ChangeEnsemble | Confirm | Starved | Withdraw


# -- The state machine


class State(Enum):
    OPEN = auto()
    REPLACING = auto()
    WITHDRAWN = auto()


_OPEN, _WITHDRAWN = State.OPEN, State.WITHDRAWN  # An attribute of an enum is slow to look up.


@lru_cache
def _positions_in(ensemble: Ensemble) -> Mapping[BookieId, int]:
    """Return the position of each member.  Writers to the same bookies share the mapping."""
    return {bookie: position for position, bookie in enumerate(ensemble)}


Snapshot: TypeAlias = tuple[State, Ensemble, tuple[int, ...], int, int, tuple[int, ...], bool, bool]


class WriteProtocol:
    """The write side of one ledger; `missing` are members that are away from the start."""

    __slots__ = (
        "_ack",
        "_effects",
        "_held",
        "_live",
        "_missing",
        "_positions",
        "_starved",
        "_unstriped",
        "_untried",
        "ensemble",
        "lac",
        "last_add_pushed",
        "quorums",
        "state",
    )

    def __init__(
        self,
        ensemble: Ensemble,
        quorums: Quorums,
        *,
        lac: int = NO_ENTRY,
        missing: Iterable[BookieId] = (),
    ) -> None:
        assert len(set(ensemble)) == quorums.ensemble
        self.quorums = quorums
        self.state = State.OPEN
        self.ensemble = ensemble
        self.last_add_pushed = lac
        self.lac = lac
        # The positions that are sent nothing.
        self._missing = {ensemble.index(bookie) for bookie in missing}
        self._held = [0] * quorums.ensemble  # by position: bit i stands for entry LAC + 1 + i
        self._untried = False  # True if a member failed that no change has tried to replace
        self._starved = False
        self._effects: list[Effect] = []
        self._unstriped = quorums.write == quorums.ensemble  # each entry goes to every member
        self._ack = quorums.ack
        self._live: Ensemble = ()  # the members that are sent entries
        self._positions: Mapping[BookieId, int] = {}
        self._set_ensemble(ensemble)

    @property
    def under_replicated(self) -> bool:
        """True if some bookie is sent nothing."""
        return bool(self._missing)

    @property
    def missing(self) -> Ensemble:
        return tuple(self.ensemble[position] for position in sorted(self._missing))

    @property
    def starved(self) -> bool:
        """True if some write set has no ack quorum, so appends wait."""
        return self._starved

    # -- entries

    def append(self, count: int = 1) -> list[Effect]:
        """The owner appends so many more entries."""
        first = self.last_add_pushed + 1
        to = self.append_direct(count)
        if to is not None:
            self._emit(Send(first, count, to))
        elif self.state is not _WITHDRAWN:
            self.last_add_pushed += count
            for entry_id in range(first, first + count):
                positions = self.quorums.write_set(entry_id)
                to = tuple(self.ensemble[p] for p in positions if p not in self._missing)
                self._emit(Send(entry_id, 1, to))
        return self._pop_effects()

    def append_direct(self, count: int = 1) -> Ensemble | None:
        """Do the same as `append` if its only effect is one `Send`.

        Return the bookies to send to.  If there would be other effects, do nothing and return None.
        """
        if not self._unstriped or self.state is _WITHDRAWN:
            return None
        self.last_add_pushed += count
        return self._live

    def added(self, bookie: BookieId, first: int, count: int = 1) -> list[Effect]:
        """The bookie holds these entries, durably."""
        self._emit_confirmed(self.added_direct(bookie, first, count))
        return self._pop_effects()

    def added_direct(self, bookie: BookieId, first: int, count: int = 1) -> int:
        """Do the same as `added`, and return the number of entries that this confirms."""
        if self.state is _WITHDRAWN:
            return 0
        position = self._positions.get(bookie)
        if position is None:
            return 0  # The bookie was replaced: no reader would ask it for the entry.
        head = self.lac + 1
        start, end = first, first + count
        # Acknowledgements below the LAC or above the last entry sent mean nothing.
        if start < head:
            start = head
        if end > self.last_add_pushed + 1:
            end = self.last_add_pushed + 1
        if start < end:
            held = (1 << end - head) - (1 << start - head)
            if not self._unstriped:
                held &= self._sent_to(position, start, end)
            self._held[position] |= held
        return self._advance()

    def _sent_to(self, position: int, start: int, end: int) -> int:
        """Return, as bits, those of the entries whose write set includes the position."""
        bits = 0
        for entry_id in range(start, end):
            if self.quorums.holds(position, entry_id):
                bits |= 1 << entry_id - self.lac - 1
        return bits

    # -- bookies

    def add_failed(self, bookie: BookieId) -> list[Effect]:
        """The bookie answered with an error or too late, or the connection to it was lost."""
        if self.state is _WITHDRAWN:
            return []
        position = self._positions.get(bookie)
        if position is not None and position not in self._missing:
            # It is sent nothing until it is replaced, or needed again for an ack quorum.
            self._missing.add(position)
            self._membership_changed()
            self._untried = True
            self._replace()
        return self._pop_effects()

    def bookie_returned(self, bookie: BookieId) -> list[Effect]:
        """A missing bookie answers again."""
        if self.state is _WITHDRAWN:
            return []
        position = self._positions.get(bookie)
        # Only if it is needed: what it missed would have to be sent to it first.
        if self._starved and position in self._missing:
            self._missing.discard(position)
            self._membership_changed()
            self._send_pending(position)
        return self._pop_effects()

    def spare_found(self) -> list[Effect]:
        """A postponed change is worth another try."""
        if self.state is _WITHDRAWN:
            return []
        self._untried = bool(self._missing)
        self._replace()
        return self._pop_effects()

    # -- changes of the ensemble

    def _replace(self) -> None:
        if self._missing and self._untried and self.state is State.OPEN:
            # One change at a time, for all members that are missing now.
            self._untried = False
            self.state = State.REPLACING
            self._emit(ChangeEnsemble(self.lac + 1, self.missing))

    def ensemble_changed(self, ensemble: Ensemble) -> list[Effect]:
        """The metadata have the fragment that starts at LAC + 1 with these bookies."""
        if self.state is _WITHDRAWN:
            return []
        assert self.state is State.REPLACING
        assert len(set(ensemble)) == self.quorums.ensemble
        newcomers = [p for p, bookie in enumerate(self.ensemble) if ensemble[p] != bookie]
        for position in newcomers:
            # The new bookie holds nothing, whatever its predecessor has acknowledged.
            self._held[position] = 0
        self._missing.difference_update(newcomers)
        self._set_ensemble(ensemble)
        for position in newcomers:
            self._send_pending(position)
        self._settled()
        return self._pop_effects()

    def change_postponed(self) -> list[Effect]:
        """The metadata are certainly unchanged: there is no spare, or the store is away."""
        if self.state is _WITHDRAWN:
            return []
        assert self.state is State.REPLACING
        self._settled()
        return self._pop_effects()

    def _settled(self) -> None:
        self.state = State.OPEN
        self._untried = self._untried and bool(self._missing)
        # A bookie that failed meanwhile is replaced next.  `_replace` comes first: the LAC may only
        # move if no other change begins, since that one starts at the present LAC + 1.
        self._replace()
        self._emit_confirmed(self._advance())

    # -- the end

    def refused(self, reason: str) -> list[Effect]:
        """A bookie refused finally (fenced), or the ledger is no longer open in the metadata."""
        return self._withdraw(reason)

    def stop(self) -> list[Effect]:
        """The owner of the writer is done with the ledger."""
        return self._withdraw("stopped by its owner")

    def _withdraw(self, reason: str) -> list[Effect]:
        if self.state is _WITHDRAWN:
            return []
        self.state = State.WITHDRAWN
        self._emit(Withdraw(self.lac + 1, self.last_add_pushed - self.lac, reason))
        return self._pop_effects()

    # -- sends, the LAC, and the members

    def _send_pending(self, position: int) -> None:
        """Send the bookie the unconfirmed entries that it has not acknowledged."""
        bookie = (self.ensemble[position],)
        for first, count in self._runs_without(position):
            self._emit(Send(first, count, bookie))

    def _runs_without(self, position: int) -> Iterator[tuple[int, int]]:
        first = count = 0
        held = self._held[position]
        for entry_id in range(self.lac + 1, self.last_add_pushed + 1):
            if held >> entry_id - self.lac - 1 & 1 or not self.quorums.holds(position, entry_id):
                if count:
                    yield first, count
                count = 0
            else:
                first = first if count else entry_id
                count += 1
        if count:
            yield first, count

    def _advance(self) -> int:
        """Move the LAC over the entries that an ack quorum holds, and return their number.

        The result is computed anew each time, so no flag can be outdated.
        """
        if self.state is not _OPEN:
            return 0  # The new fragment starts at the LAC + 1 that the change was asked with.
        confirmed = self._on_ack_quorum()
        count = (~confirmed & confirmed + 1).bit_length() - 1  # the number of trailing ones
        if count:
            self._held = [held >> count for held in self._held]
            self.lac += count
            assert self.lac <= self.last_add_pushed
        return count

    def _emit_confirmed(self, count: int) -> None:
        if count:
            self._emit(Confirm(self.lac + 1 - count, count))

    def _on_ack_quorum(self) -> int:
        """Return, as bits from LAC + 1 on, the entries that an ack quorum holds."""
        by = [-1] + [0] * self._ack  # by[n]: entries held by n positions or more
        for held in self._held:
            if held:
                for number in range(self._ack, 0, -1):
                    by[number] |= by[number - 1] & held
        return by[-1]

    def _set_ensemble(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self._positions = _positions_in(ensemble)
        self._membership_changed()

    def _membership_changed(self) -> None:
        live = [p for p in range(self.quorums.ensemble) if p not in self._missing]
        all_live = len(live) == len(self.ensemble)
        self._live = self.ensemble if all_live else tuple(self.ensemble[p] for p in live)
        starved = not self.quorums.can_confirm(live)
        if starved:
            self._emit(Starved(self.missing))
        self._starved = starved

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _pop_effects(self) -> list[Effect]:
        """Return the effects of an input."""
        effects, self._effects = self._effects, []
        return effects

    # -- for the model checker

    def snapshot(self) -> Snapshot:
        """Return the whole state between two inputs."""
        return (
            self.state,
            self.ensemble,
            tuple(sorted(self._missing)),
            self.lac,
            self.last_add_pushed,
            tuple(self._held),
            self._untried,
            self._starved,
        )

    def restore(self, snapshot: Snapshot) -> None:
        state, ensemble, missing, lac, pushed, held, untried, starved = snapshot
        self.state, self.lac, self.last_add_pushed = state, lac, pushed
        self._missing, self._held = set(missing), list(held)
        self._set_ensemble(ensemble)
        self._untried, self._starved = untried, starved
        self._effects.clear()

    def canonical(self) -> Snapshot:
        """Return the same value for states that behave the same; `restore` accepts it."""
        if self.state is State.WITHDRAWN:
            return (self.state, self.ensemble, (), self.lac, self.last_add_pushed, (), False, False)
        return self.snapshot()
