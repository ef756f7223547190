"""The bookies that hold an entry, and how many of them have to answer.

The ensemble of a fragment has E bookies.  Entry e goes to WQ of them, round robin from position e
mod E on: its *write set*.  The entry is confirmed when AQ of these bookies hold it.

    E = 4, WQ = 3        b0  b1  b2  b3
              entry 0     x   x   x
              entry 1         x   x   x
              entry 2     x       x   x

Two thresholds follow.  Both are counted for each write set separately:

- A ledger is *fenced* when no write set has AQ bookies left that might still accept an entry.
- An entry is *absent* when WQ - AQ + 1 bookies of its write set answered that they do not have it
  and will not accept it any more: AQ bookies can then never hold it.  Silence, timeouts and errors
  are no negative answers.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType, TypeAlias

BookieId = NewType("BookieId", str)
Ensemble: TypeAlias = tuple[BookieId, ...]

NO_ENTRY = -1  # the LAC before the first confirmed entry, and the end of an empty ledger


@dataclass(frozen=True, slots=True)
class Quorums:
    """The number of bookies that share a ledger, hold an entry, and have to confirm it."""

    ensemble: int = 3
    write: int = 3
    ack: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.ack <= self.write <= self.ensemble:
            raise ValueError(
                f"the quorums must satisfy 1 <= ack <= write <= ensemble, but they are {self}"
            )

    @property
    def absent(self) -> int:
        """The number of negative answers which prove that an entry cannot be confirmed any more."""
        return self.write - self.ack + 1

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return the positions in the ensemble that hold the entry, in the order to ask them."""
        return _in_order(self.ensemble, self.write)[entry_id % self.ensemble]

    def write_sets(self) -> Sequence[tuple[int, ...]]:
        """Return all different write sets: one for each position, or the whole ensemble."""
        all_sets = _in_order(self.ensemble, self.write)
        return all_sets if self.write < self.ensemble else all_sets[:1]

    def holds(self, position: int, entry_id: int) -> bool:
        return (position - entry_id) % self.ensemble < self.write

    def is_covered(self, answered: Collection[int]) -> bool:
        """Return True if no write set has an ack quorum among the positions without an answer."""
        return all(
            sum(position not in answered for position in write_set) < self.ack
            for write_set in self.write_sets()
        )

    def can_confirm(self, live: Collection[int]) -> bool:
        """Return True if each write set has an ack quorum among these positions."""
        return all(
            sum(position in live for position in write_set) >= self.ack
            for write_set in self.write_sets()
        )


@lru_cache
def _in_order(ensemble: int, write: int) -> tuple[tuple[int, ...], ...]:
    """Return the write set that begins at each position."""
    return tuple(tuple((first + i) % ensemble for i in range(write)) for first in range(ensemble))


@dataclass(frozen=True, slots=True)
class Fragment:
    """The bookies of the entries from this one up to the next fragment."""

    first_entry_id: int
    ensemble: Ensemble


def fragment_at(fragments: Sequence[Fragment], entry_id: int) -> Fragment:
    """Return the fragment of an entry: the last one that does not start after it."""
    for fragment in reversed(fragments):
        if fragment.first_entry_id <= entry_id:
            return fragment
    raise ValueError(f"no fragment of the ledger holds entry {entry_id}")


def with_fragment(fragments: tuple[Fragment, ...], fragment: Fragment) -> tuple[Fragment, ...]:
    """Append a fragment; it replaces a last fragment that starts at the same entry."""
    last = fragments[-1]
    # Nothing was confirmed in that last fragment, so no entry is looked for there.
    if fragment.first_entry_id == last.first_entry_id:
        return (*fragments[:-1], fragment)
    if fragment.first_entry_id < last.first_entry_id:
        raise ValueError(
            f"the fragment from entry {fragment.first_entry_id} on comes before the one from"
            f" {last.first_entry_id} on"
        )
    return (*fragments, fragment)
