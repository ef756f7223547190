"""The results of a run: medians and ranges of each figure, ratios within rounds, and the tables.

line = Line("alone", "p50, ms")
line.add(0, "Daybook", 0.9)
line.ratio("Daybook", "Pulsar")     # the median of the ratios within a round
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table

DAYBOOK, PULSAR, KAFKA = SYSTEMS = ("Daybook", "Pulsar", "Kafka")
LIMIT = "limit"  # the bound of the machine, in the same unit
# Figures about the conditions of a turn, in a table of their own.
IDLE, OTHERS = "idle systems, cores", "others, cores"
CONDITIONS = ("servers waited", "client waited", IDLE, OTHERS)
_DISTURBED_CORES = 0.2


@dataclass(slots=True)
class Line:
    """One figure of one case: its values by system, each by the number of its round."""

    case: str
    figure: str
    values: dict[str, dict[int, float]] = field(default_factory=dict[str, dict[int, float]])

    def add(self, round_: int, system: str, value: float) -> None:
        self.values.setdefault(system, {})[round_] = value

    def median(self, system: str) -> float | None:
        values = self.values.get(system)
        return median(values.values()) if values else None

    def range(self, system: str) -> tuple[float, float]:
        values = self.values[system].values()
        return min(values), max(values)

    def ratios(self, system: str, other: str) -> list[float]:
        """Return the ratios within each round that both have, and in which the other is not 0."""
        ours, theirs = self.values.get(system, {}), self.values.get(other, {})
        return [ours[n] / theirs[n] for n in sorted(ours.keys() & theirs.keys()) if theirs[n]]

    def ratio(self, system: str, other: str) -> float | None:
        """Return the median of the ratios within a round.

        A disturbance that lasts for a whole round is in both values of it, and cancels.
        """
        ratios = self.ratios(system, other)
        return median(ratios) if ratios else None


class Lines:
    """All lines of a run, in the order in which they came."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], Line] = {}

    def add(self, case: str, round_: int, system: str, figures: Mapping[str, float]) -> None:
        for figure, value in figures.items():
            key = (case, figure)
            self._lines.setdefault(key, Line(*key)).add(round_, system, value)

    def all(self, case: str | None = None) -> list[Line]:
        return [line for line in self._lines.values() if case in (None, line.case)]


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _with_range(line: Line, system: str) -> str:
    if (middle := line.median(system)) is None:
        return "-"
    if len(line.values[system]) == 1:
        return number(middle)
    low, high = line.range(system)
    return f"{number(middle)} ({number(low)}-{number(high)})"


def _ratio(line: Line, other: str) -> str:
    if not (ratios := line.ratios(DAYBOOK, other)):
        return "-"
    low, high = min(ratios), max(ratios)
    range_ = f" ({low:.2f}-{high:.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}{range_}"


def measured(lines: Sequence[Line], systems: Sequence[str]) -> Table:
    """Return the table of the figures, with the ratios of Daybook to each other system."""
    others = [system for system in systems if system != DAYBOOK]
    table = Table(
        *("case", "figure", *systems, *(f"D/{system[0]}" for system in others), LIMIT),
        title="medians (ranges) of the rounds; D/P and D/K are medians of ratios within a round",
    )
    for line in lines:
        if line.figure in CONDITIONS:
            continue
        table.add_row(
            *(line.case, line.figure, *(_with_range(line, system) for system in systems)),
            *(_ratio(line, other) for other in others),
            _with_range(line, LIMIT),
        )
    return table


def conditions(lines: Sequence[Line], systems: Sequence[str]) -> Table:
    """Return the table of how far the turns were disturbed."""
    table = Table(
        *("case", "", *systems),
        title="waited: threads that were ready and had no core, on average; idle systems: those"
        " whose turn it was not; others: other programs",
    )
    for line in lines:
        if line.figure in CONDITIONS:
            each = (_with_range(line, system) for system in systems)
            table.add_row(line.case, line.figure, *each)
    return table


def warning(lines: Sequence[Line]) -> str:
    """Return what to think of a run beside which other programs used the cores; "" if none did."""
    used = [
        line.median(system) or 0.0
        for line in lines
        for system in line.values
        if line.figure == OTHERS
    ]
    disturbed = [cores for cores in used if cores > _DISTURBED_CORES]
    if not disturbed:
        return ""
    return (
        f"Other programs used {min(disturbed):.1f} to {max(disturbed):.1f} cores in"
        f" {len(disturbed)} of {len(used)} measurements: times say little then, ratios say more."
    )
