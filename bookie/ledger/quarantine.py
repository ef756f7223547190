"""Who has failed lately, and who fails again and again.

    in quarantine    it was not reached, or did not answer, or cannot store now; it is asked how it
                     is, and leaves the quarantine when it answers
    refusing         it is in quarantine because it cannot store, and has answered ever since: of
                     another ledger it may take entries
    distrusted       it was put into quarantine `failures_max` times within `failure_window_s`: for
                     `distrust_s` it is chosen only where nobody else is left, though it answers

Time is an argument.  What many connections tell of one failure counts once.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from daybook.bookie.ledger.protocol.placement import BookieId


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineLimits:
    refused_s: float = 10.0  # a bookie that answers, and cannot store, is left alone for so long
    failures_max: int = 3
    failure_window_s: float = 60.0
    distrust_s: float = 300.0


class Quarantine:
    def __init__(self, limits: QuarantineLimits) -> None:
        self._limits = limits
        self._since: dict[BookieId, float] = {}  # from when on to ask how it is
        self._refusing: set[BookieId] = set()
        self._failures: dict[BookieId, deque[float]] = {}
        self._distrusted_until: dict[BookieId, float] = {}

    def __contains__(self, bookie: BookieId) -> bool:
        return bookie in self._since

    @property
    def members(self) -> Sequence[BookieId]:
        return tuple(self._since)

    def refuses(self, bookie: BookieId) -> bool:
        return bookie in self._refusing

    def trusted(self, bookie: BookieId, now: float) -> bool:
        return bookie not in self._since and now >= self._distrusted_until.get(bookie, now)

    def to_ask(self, now: float) -> Sequence[BookieId]:
        return [bookie for bookie, since in self._since.items() if since <= now]

    def failed(self, bookie: BookieId, now: float) -> None:
        self._refusing.discard(bookie)
        if bookie not in self._since:
            self._since[bookie] = now
            self._count(bookie, now)

    def refused(self, bookie: BookieId, now: float, *, counts: bool) -> None:
        """`counts`: it is a failure, and not what a sound bookie does at times."""
        if counts and bookie not in self._since:
            self._count(bookie, now)
        self._since[bookie] = now + self._limits.refused_s
        self._refusing.add(bookie)

    def answered(self, bookie: BookieId) -> bool:
        """False if it was not in quarantine."""
        self._refusing.discard(bookie)
        return self._since.pop(bookie, None) is not None

    def _count(self, bookie: BookieId, now: float) -> None:
        failures = self._failures.setdefault(bookie, deque())
        failures.append(now)
        while failures[0] <= now - self._limits.failure_window_s:
            failures.popleft()
        if len(failures) >= self._limits.failures_max:
            self._distrusted_until[bookie] = now + self._limits.distrust_s
            failures.clear()
