"""The order of repairs: the ledger with the fewest copies first, unless it just failed."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """`copies` is the most that its worst entry has, `size` an estimate of the bytes to copy."""

    ledger_id: int
    copies: int
    size: int


class Backlog:
    """The ledgers to repair; one that failed waits for a back-off that doubles each time."""

    def __init__(self, backoff_s: float, backoff_s_max: float) -> None:
        self._backoff_s = backoff_s
        self._backoff_s_max = backoff_s_max
        self._candidates: dict[int, Candidate] = {}
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    @property
    def pending(self) -> int:
        return len(self._candidates)

    @property
    def rest_bytes(self) -> int:
        return sum(candidate.size for candidate in self._candidates.values())

    def replace(self, candidates: Iterable[Candidate]) -> None:
        self._candidates = {candidate.ledger_id: candidate for candidate in candidates}
        self._failures = {i: n for i, n in self._failures.items() if i in self._candidates}
        self._not_before = {i: t for i, t in self._not_before.items() if i in self._candidates}

    def next(self, now: float) -> Candidate | None:
        """Return the worst ledger whose back-off has ended; None if there is none."""
        return min(
            (c for c in self._candidates.values() if self._not_before.get(c.ledger_id, 0) <= now),
            key=lambda candidate: (candidate.copies, candidate.ledger_id),
            default=None,
        )

    def ended(self, ledger_id: int, now: float, *, done: bool) -> None:
        if done:
            for kept in (self._candidates, self._failures, self._not_before):
                kept.pop(ledger_id, None)
            return
        failures = self._failures[ledger_id] = self._failures.get(ledger_id, 0) + 1
        backoff_s = min(self._backoff_s * 2 ** min(failures - 1, 20), self._backoff_s_max)
        self._not_before[ledger_id] = now + backoff_s

    def forget_failures(self) -> None:
        """End all back-offs, because the bookies have changed."""
        self._not_before.clear()
