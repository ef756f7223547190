"""The results of a measurement: rows of the table, and the amount of work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.peers.sides import JAVA, JAVA_ON_OURS, OURS, OURS_ON_APACHE, PAIRS, Pair


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work.  `scale` 1 reads 2 GB, drains 5, and puts 10 on a killed bookie."""

    scale: float = 0.25
    first_s: float = 6.0  # each pair, before anything is measured: compilers have their time
    rounds: int = 3  # in which the pairs that append take turns; an odd number
    warm_s: float = 1.0
    measure_s: float = 4.0
    ledgers: int = 10_000  # open on one bookie
    interleaved_entries: int = 250  # in each of 1,000 ledgers
    recovered_entries: int = 10_000  # entries of one ledger
    relayed_bytes: int = 1 << 29  # to know the limit
    mixed: bool = True  # measure the mixed pairs, too

    @classmethod
    def quick(cls) -> "Sizes":
        return cls(
            scale=0.05,
            first_s=3.0,
            rounds=1,
            measure_s=2.0,
            ledgers=1_000,
            interleaved_entries=25,
            recovered_entries=1_000,
            relayed_bytes=1 << 27,
            mixed=False,
        )

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return PAIRS if self.mixed else (JAVA, OURS)


@dataclass(frozen=True, slots=True)
class Demand:
    """One target and the value that was reached; without a bound it is only shown."""

    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def asked(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.at_least is None else f">= {self.at_least:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the figure of each pair that was measured, and the targets."""

    name: str
    unit: str
    java: float | None = None
    ours: float | None = None
    ours_on_apache: float | None = None
    java_on_ours: float | None = None
    limit: float | None = None  # the limit of the machine, in the same unit
    demands: list[Demand] = field(default_factory=list[Demand])
    note: str = ""

    @classmethod
    def for_pairs(
        cls,
        name: str,
        unit: str,
        found: Mapping[Pair, float],
        demands: Sequence[Demand] = (),
        *,
        limit: float | None = None,
        note: str = "",
    ) -> "Row":
        return cls(
            name,
            unit,
            java=found.get(JAVA),
            ours=found.get(OURS),
            ours_on_apache=found.get(OURS_ON_APACHE),
            java_on_ours=found.get(JAVA_ON_OURS),
            limit=limit,
            demands=list(demands),
            note=note,
        )


def times_java(found: Mapping[Pair, float], wanted: float) -> list[Demand]:
    """Return a target: so many times the Java pair, and in mixed pairs at least as fast."""
    names = {OURS: "ours / Java", OURS_ON_APACHE: "ours on Apache's", JAVA_ON_OURS: "Java on ours"}
    return [
        Demand(name, found[pair] / found[JAVA], at_least=wanted if pair == OURS else 1.0)
        for pair, name in names.items()
        if pair in found
    ]
