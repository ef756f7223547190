"""The one change of metadata that re-replication makes: a newcomer takes a bookie's position.

The change is made only after every entry of the position is durable on the newcomer, and only while
the position has to hold no other entries: the ledger may have been closed, deleted, recovered, or
repaired by another worker meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment
from daybook.bookie.ledger.protocol.update import Decide, Ruling
from daybook.bookie.replication.protocol.copies import Stretch, settled_stretches


@dataclass(frozen=True, slots=True)
class Replacement:
    """`newcomer` has all entries of `stretch` that `position` holds."""

    stretch: Stretch
    position: int
    newcomer: BookieId


def replace_bookie(replacement: Replacement) -> Decide:
    stretch, position = replacement.stretch, replacement.position
    old = stretch.ensemble[position]

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        for number, now in enumerate(settled_stretches(metadata)):
            if now.first != stretch.first:
                continue
            if now.ensemble[position] == replacement.newcomer:
                return Ruling.KEEP
            if now.ensemble[position] != old or replacement.newcomer in now.ensemble:
                return Ruling.REFUSE  # Another worker has changed it.
            if now.last > stretch.last:
                return Ruling.REFUSE  # The position holds more than was copied.
            ensemble = list(now.ensemble)
            ensemble[position] = replacement.newcomer
            fragments = list(metadata.fragments)
            fragments[number] = Fragment(now.first, tuple(ensemble))
            return replace(metadata, fragments=tuple(fragments))
        return Ruling.REFUSE  # No such fragment, or it is not settled (any longer).

    return decide


def newcomers(stretch: Stretch, candidates: Sequence[BookieId]) -> list[BookieId]:
    """Return the candidates outside the ensemble: a bookie must count only once."""
    return [bookie for bookie in candidates if bookie not in stretch.ensemble]
