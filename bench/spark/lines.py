"""The results of a run: medians and ranges of each line, what was asked for, and the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table

from bench.peers.rows import Demand

KINDS = ("brokers", "bookies", "kafka", "jvm", "workers")


@dataclass(slots=True)
class Used:
    """The processor time of a turn in seconds, by kind of process, and other loads.

    `waited_s` is the time for which our threads were ready to run and had no core.  `others_s` is
    the processor time of programs that are no part of the measurement.
    """

    took_s: float = 0.0
    by_kind: dict[str, float] = field(default_factory=dict[str, float])
    waited_s: float = 0.0
    others_s: float = 0.0

    def add(self, other: "Used") -> None:
        self.took_s += other.took_s
        self.waited_s += other.waited_s
        self.others_s += other.others_s
        for kind, used_s in other.by_kind.items():
            self.by_kind[kind] = self.by_kind.get(kind, 0.0) + used_s


@dataclass(slots=True)
class Line:
    """The turns of one system in one case.

    `values` has one figure for each turn that counts, in `unit`; `rows` is the number of rows of
    a turn, if its processor time is shown for a million of them.
    """

    case: str
    way: str
    unit: str
    rows: int = 0
    values: list[float] = field(default_factory=list[float])
    used: Used = field(default_factory=Used)

    def add(self, value: float, used: Used | None = None) -> None:
        self.values.append(value)
        if used is not None:
            self.used.add(used)

    @property
    def median(self) -> float:
        return median(self.values)

    def used_s_per_million(self, kind: str) -> float:
        """Return the processor seconds of this kind for a million rows."""
        return self.used.by_kind.get(kind, 0.0) * 1e6 / (self.rows * len(self.values))


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a case: its lines, and the targets."""

    lines: Sequence[Line]
    demands: Mapping[str, Demand]  # by what it is asked of


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def share_of(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values is."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measured(lines: Sequence[Line]) -> Table:
    """Return the table of the medians and ranges."""
    table = Table("what", "way", "median", "range", "", "turns", title="measured")
    for line in lines:
        low, high = number(min(line.values)), number(max(line.values))
        table.add_row(
            *(line.case, line.way, number(line.median), f"{low} - {high}", line.unit),
            str(len(line.values)),
        )
    return table


def processor(lines: Sequence[Line]) -> Table:
    """Return the table of processor time; lines whose turns have no rows are left out."""
    names = [f"{kind}" for kind in KINDS]
    table = Table(
        *("what", "way", *names, "all", "waited", "others"),
        title="processor seconds for 1,000,000 rows; waited for a core, and others: of the time",
    )
    for line in lines:
        if not line.rows or not line.used.took_s:
            continue
        each = [line.used_s_per_million(kind) for kind in KINDS]
        table.add_row(
            *(line.case, line.way, *(f"{used_s:.3f}" for used_s in each), f"{sum(each):.2f}"),
            f"{line.used.waited_s / line.used.took_s:.2f}",
            f"{line.used.others_s / line.used.took_s:.2f}",
        )
    return table


def asked(demands: Mapping[str, Demand]) -> Table:
    """Return the table of what was asked for."""
    table = Table("what", "is", "asked", "", title="what was asked")
    for what, demand in demands.items():
        met = "" if not demand.asked else "met" if demand.met else "MISSED"
        name = f"{what}: {demand.what}" if demand.what else what
        table.add_row(name, number(demand.value), demand.asked, met)
    return table
