"""Count row by row what was sent, acknowledged and delivered, and what went wrong."""

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts of one run over rows 0 to rows-1.  Times are seconds since its start."""

    rows: int
    sent: int = 0
    acknowledged: int = 0
    repeated: int = 0  # acknowledged as stored before: sent again after the kill
    delivered: int = 0  # distinct rows
    duplicated: int = 0
    out_of_order: int = 0
    refused: list[str] = field(default_factory=list[str])
    killed: str | None = None
    killed_at_s: float | None = None
    pause_s: float = 0.0  # the longest between two acknowledgements of a partition, since the kill
    acknowledged_at_s: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    _deliveries: "array[int]" = field(init=False)
    _acknowledged: bytearray = field(init=False)
    _newest: dict[int, int] = field(default_factory=dict[int, int])  # row, by partition
    _latest_s: dict[int, float] = field(default_factory=dict[int, float])  # by partition

    def __post_init__(self) -> None:
        self._deliveries = array("H", bytes(2 * self.rows))
        self._acknowledged = bytearray(self.rows)

    def note_killed(self, name: str, now_s: float) -> None:
        self.killed, self.killed_at_s = name, now_s

    def note_refused(self, row: int, why: str) -> None:
        self.refused.append(f"row {row}: {why}")

    def note_acknowledged(self, row: int, partition: int, now_s: float) -> None:
        assert not self._acknowledged[row], f"row {row} was acknowledged twice"
        self._acknowledged[row] = 1
        self.acknowledged += 1
        if self.killed_at_s is not None and partition in self._latest_s:
            self.pause_s = max(self.pause_s, now_s - self._latest_s[partition])
        self._latest_s[partition] = now_s
        point = (now_s, self.acknowledged)
        if self.acknowledged_at_s and self.acknowledged_at_s[-1][0] == now_s:
            self.acknowledged_at_s[-1] = point
        else:
            self.acknowledged_at_s.append(point)

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
        """The number of acknowledged rows that were never delivered."""
        return sum(
            1
            for acked, count in zip(self._acknowledged, self._deliveries, strict=True)
            if acked and not count
        )
