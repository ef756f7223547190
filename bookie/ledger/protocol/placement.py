"""Which bookies hold which entry, and how many of them have to answer.

The ensemble of a fragment has E bookies.  Entry e goes to the WQ of them from position e mod E on,
round robin: its *write set*.  It is confirmed when AQ of these hold it.

    E = 4, WQ = 3        b0  b1  b2  b3
              entry 0     x   x   x
              entry 1         x   x   x
              entry 2     x       x   x

Two thresholds follow, and both are counted for each write set by itself:

- A ledger is *fenced* when in no write set AQ bookies are left that might still accept an entry.
- An entry is *absent* when WQ - AQ + 1 of its write set said that they do not have it, and accept
  it no more: then AQ can never hold it.  Silence, time-outs and errors are no negative answers.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NewType, TypeAlias

BookieId = NewType("BookieId", str)
Ensemble: TypeAlias = tuple[BookieId, ...]

NO_ENTRY = -1  # The LAC of a ledger in which nothing is confirmed, the end of an empty one.


@dataclass(frozen=True, slots=True)
class Quorums:
    """How many bookies share a ledger, hold an entry, and have to confirm it."""

    ensemble: int = 3
    write: int = 3
    ack: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.ack <= self.write <= self.ensemble:
            raise ValueError(f"quorums must be 1 <= ack <= write <= ensemble: {self}")

    @property
    def absent(self) -> int:
        """So many negative answers prove that an entry cannot be confirmed any more."""
        return self.write - self.ack + 1

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The positions in the ensemble that hold the entry, in the order in which to ask."""
        first = entry_id % self.ensemble
        return tuple((first + i) % self.ensemble for i in range(self.write))

    def write_sets(self) -> Iterator[tuple[int, ...]]:
        """All that there are: one for each position."""
        return (self.write_set(position) for position in range(self.ensemble))

    def holds(self, position: int, entry_id: int) -> bool:
        return (position - entry_id) % self.ensemble < self.write

    def is_covered(self, answered: Collection[int]) -> bool:
        """No ack quorum of any write set consists of positions that did not answer."""
        return all(
            sum(position not in answered for position in write_set) < self.ack
            for write_set in self.write_sets()
        )

    def can_confirm(self, live: Collection[int]) -> bool:
        """Each write set has an ack quorum among these positions."""
        return all(
            sum(position in live for position in write_set) >= self.ack
            for write_set in self.write_sets()
        )


@dataclass(frozen=True, slots=True)
class Fragment:
    """From this entry on, up to the next fragment, entries go to these bookies."""

    first_entry_id: int
    ensemble: Ensemble


def fragment_at(fragments: Sequence[Fragment], entry_id: int) -> Fragment:
    """The fragment that an entry belongs to: the last one that does not start behind it."""
    for fragment in reversed(fragments):
        if fragment.first_entry_id <= entry_id:
            return fragment
    raise ValueError(f"no fragment holds entry {entry_id}")


def with_fragment(fragments: tuple[Fragment, ...], fragment: Fragment) -> tuple[Fragment, ...]:
    """Append a fragment; one that starts where the last one does takes its place."""
    last = fragments[-1]
    if fragment.first_entry_id == last.first_entry_id:
        return (*fragments[:-1], fragment)
    if fragment.first_entry_id < last.first_entry_id:
        raise ValueError(f"a fragment from {fragment.first_entry_id} before {last.first_entry_id}")
    return (*fragments, fragment)
