"""The choice of a broker for an unowned bundle, and of a bundle to move.  The module is pure.

Placement chooses the broker with the fewest bundles, then the fewest topics.  A hash of bundle and
broker (rendezvous hashing) breaks ties.  So brokers that decide independently tend to decide alike,
and equal brokers get equal shares.  A wrong guess costs a redirect, never more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from daybook.broker.protocol.bundles import BundleName


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker, as far as the deciding broker knows it."""

    broker_id: str
    bundles: int
    topics: int = 0


def place(bundle: BundleName, brokers: Iterable[BrokerLoad]) -> str | None:
    """Return the id of the broker that should own `bundle`; None if there is no broker."""
    chosen = min(
        brokers,
        key=lambda load: (load.bundles, load.topics, _score(bundle, load.broker_id)),
        default=None,
    )
    return None if chosen is None else chosen.broker_id


@dataclass(frozen=True, slots=True)
class Move:
    bundle: BundleName
    source: str
    target: str


def next_move(owned: dict[str, list[BundleName]], *, slack: int = 2) -> Move | None:
    """Return a move from the fullest to the emptiest broker, if they differ by `slack` or more.

    `slack` is at least 2: with a difference of one, a move would only swap the two brokers.
    """
    assert slack >= 2
    if not owned:
        return None
    order = sorted(owned, key=lambda broker_id: (len(owned[broker_id]), broker_id))
    emptiest, fullest = order[0], order[-1]
    if len(owned[fullest]) - len(owned[emptiest]) < slack:
        return None
    bundle = min(owned[fullest], key=lambda name: (_score(name, emptiest), name))
    return Move(bundle, fullest, emptiest)


def _score(bundle: BundleName, broker_id: str) -> int:
    return crc32(f"{bundle} {broker_id}".encode())
