"""What was sent, acknowledged and delivered, row by row, and what of it was wrong."""

import itertools
from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts of one run over rows 0 to rows-1.  Times are seconds since its start."""

    rows: int
    sent: int = 0
    acknowledged: int = 0
    delivered: int = 0  # distinct rows
    duplicated: int = 0
    out_of_order: int = 0
    killed_at_s: float | None = None
    acknowledged_at_s: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    _deliveries: "array[int]" = field(init=False)
    _acknowledged: bytearray = field(init=False)
    _newest: dict[int, int] = field(default_factory=dict[int, int])  # by partition

    def __post_init__(self) -> None:
        self._deliveries = array("H", bytes(2 * self.rows))
        self._acknowledged = bytearray(self.rows)

    def note_acknowledged(self, row: int, now_s: float) -> None:
        assert not self._acknowledged[row], f"row {row} was acknowledged twice"
        self._acknowledged[row] = 1
        self.acknowledged += 1
        if not self.acknowledged_at_s or self.acknowledged_at_s[-1][0] != now_s:
            self.acknowledged_at_s.append((now_s, self.acknowledged))
        else:
            self.acknowledged_at_s[-1] = (now_s, self.acknowledged)

    def note_delivered(self, row: int, partition: int) -> None:
        self._deliveries[row] += 1
        if self._deliveries[row] > 1:
            self.duplicated += 1
            return
        self.delivered += 1
        if row < self._newest.get(partition, -1):
            self.out_of_order += 1
        self._newest[partition] = max(row, self._newest.get(partition, -1))

    @property
    def lost(self) -> int:
        """Acknowledged rows that were never delivered."""
        return sum(
            1
            for acked, count in zip(self._acknowledged, self._deliveries, strict=True)
            if acked and not count
        )

    @property
    def complete(self) -> bool:
        return self.acknowledged == self.delivered == self.rows

    def longest_pause_s(self) -> float:
        """The longest time without an acknowledgement that contains, or follows, the kill."""
        if self.killed_at_s is None:
            return 0.0
        times = [at for at, _ in self.acknowledged_at_s]
        pauses = [
            after - before
            for before, after in itertools.pairwise(times)
            if after >= self.killed_at_s
        ]
        return max(pauses, default=0.0)
