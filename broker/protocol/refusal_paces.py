"""The pace at which all requests of one culprit are refused, whatever connection or port they use.

A client escapes the pace of its connection by opening more of them.  So each role has a pace, too,
and each address whose clients have proven no role.  The pace of an address is twice that of a role:
a proxy or a translated network has one address for many clients, and a mistake of one of them, such
as an expired token, must not delay the others much.

Only a request that is refused waits, and none longer than `HELD_MAX_S`.  So an innocent client that
shares the role or the address with a culprit loses these seconds when it is refused itself, and
nothing when it is not.  A connection has at most one request that waits for this pace (`held` by
its shell), so beyond `HELD_MAX_S` times the pace, each further connection of the culprit adds one
refusal in `HELD_MAX_S`.

The culprits that were refused last are remembered; their number is bounded.
"""

from enum import Enum
from typing import NamedTuple

from daybook.broker.protocol.refusals import RefusalPace

HELD_MAX_S = 5.0
ROLE_PER_S = 100
ROLE_BURST = 1_000
ADDRESS_PER_S = 200
ADDRESS_BURST = 2_000
CULPRITS_MAX = 10_000


class Kind(Enum):
    """The value is shown in metrics."""

    ROLE = "role"
    ADDRESS = "address"


class Culprit(NamedTuple):
    """A role, or the address of clients that have proven none."""

    kind: Kind
    name: str


class RefusalPaces:
    """The paces of all roles and addresses that were refused lately.  One instance per broker."""

    def __init__(self) -> None:
        self._paces: dict[Culprit, RefusalPace] = {}  # the one refused last is at the end

    def __len__(self) -> int:
        return len(self._paces)

    def delay_s(self, culprit: Culprit, now_s: float) -> float:
        """Return how long a request of the culprit that is refused now has to wait."""
        pace = self._paces.pop(culprit, None)
        if pace is None:
            if len(self._paces) >= CULPRITS_MAX:
                del self._paces[next(iter(self._paces))]
            pace = _pace_of(culprit.kind)
        self._paces[culprit] = pace
        return pace.delay_s(now_s)


def _pace_of(kind: Kind) -> RefusalPace:
    if kind is Kind.ROLE:
        return RefusalPace(ROLE_BURST, ROLE_PER_S, HELD_MAX_S)
    return RefusalPace(ADDRESS_BURST, ADDRESS_PER_S, HELD_MAX_S)
