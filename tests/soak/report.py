"""The result of a soak, in numbers and for people."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.faults import FaultKind
from tests.soak.ledgers.whole import Wholeness
from tests.soak.ledgers.workload import Ledgers
from tests.soak.round import Round
from tests.soak.takeovers import describe
from tests.soak.topics.workload import Topics

_SHOWN_MAX = 20
_GROUPS = {  # the rules of the checkers, and of the soak itself, by what went wrong
    "lost": {
        *("lost-write", "position", "undelivered", "poll-skip", "unlisted"),
        *("lost-entry", "late-confirm", "read-lost", "false-no", "unread-ledger"),
    },
    "reordered": {
        *("receipts", "nonmonotonic-send", "realtime", "inconsistent", "read-order", "poll-order"),
        "entry-order",
    },
    "invented": {"phantom", "duplicate", "acked-again", "not-new", "entry-phantom"},
    "changed": {"changed", "entry-changed", "copies-differ", "length"},
    "other ends": {"end-changed"},
}


@dataclass(slots=True)
class Report:
    """The result of all rounds."""

    seed: int
    directory: Path
    rounds: int = 0
    violations: list[str] = field(default_factory=list[str])
    rules: Counter[str] = field(default_factory=Counter[str])  # violations by rule
    faults: Counter[str] = field(default_factory=Counter[str])  # faults by kind
    topics: Counter[str] | None = None  # figures of the workload; None if it did not run
    ledgers: Counter[str] | None = None
    takeovers_s: list[float] = field(default_factory=list[float])
    troubled_s: list[float] = field(default_factory=list[float])
    wholeness: Wholeness | None = None

    @property
    def ok(self) -> bool:
        return not self.violations

    def expect(self, kinds: Iterable[FaultKind]) -> None:
        """Show these kinds of faults even if none of them happened."""
        for kind in kinds:
            self.faults[str(kind)] += 0

    def add(self, one: Round) -> None:
        """Add a round that is over."""
        self.rounds += 1
        self.violations += one.violations
        self.rules.update(each.rule for each in one.judged)
        self.faults.update(one.faults)
        for workload in one.workloads:
            match workload:
                case Topics():
                    self.topics = (self.topics or Counter()) + workload.counts()
                    self.takeovers_s += workload.takeovers_s
                    self.troubled_s += workload.troubled_s
                case Ledgers():
                    self.ledgers = (self.ledgers or Counter()) + workload.counts()
                case _:
                    raise ValueError(workload)

    def lines(self) -> list[str]:
        """Return the lines for people."""
        shown = self.violations[:_SHOWN_MAX]
        if len(self.violations) > len(shown):
            shown.append(f"... {len(self.violations) - len(shown)} more")
        missing = sorted(kind for kind, count in self.faults.items() if not count)
        return [
            *shown,
            f"{self.faults.total()} faults in {self.rounds} rounds:",
            *(f"{count:6d} {kind}" for kind, count in sorted(self.faults.items()) if count),
            *([f"     0 {'; '.join(missing)}"] if missing else []),
            *self._lines_of_topics(),
            *self._lines_of_ledgers(),
            self._verdict(),
            f"history: python -m tests.history {self.directory}/round-001/*.jsonl",
            f"seed {self.seed}: {'ok' if self.ok else 'FAILED'}",
        ]

    def _lines_of_topics(self) -> list[str]:
        if (counts := self.topics) is None:
            return []
        troubled = ["while something else was broken:", *describe(self.troubled_s)]
        return [
            *(describe(self.takeovers_s) if self.takeovers_s or not self.troubled_s else []),
            *(troubled if self.troubled_s else []),
            f"topics: {counts['Send']} sent, {counts['Ok']} receipts, {counts['Unknown']} in doubt,"
            f" {counts['Error']} refused; {counts['Deliver']} delivered, {counts['Acked']}"
            f" acknowledgements with receipts, {counts['Read']} read",
        ]

    def _lines_of_ledgers(self) -> list[str]:
        if (counts := self.ledgers) is None:
            return []
        stopped = {k: n for k, n in sorted(counts.items()) if k.startswith("writers stopped")}
        return [
            *(f"{count:6d} {kind}" for kind, count in stopped.items()),
            f"ledgers: {counts['ledger_create']} created, {counts['append']} entries appended,"
            f" {counts['entries confirmed']} confirmed; {counts['recover']} recoveries by others;"
            f" {counts['ends by close']} ends by close, {counts['ends by recovery']} by recovery,"
            f" {counts['ends by read']} by readers; {counts['ledger_delete']} deleted;"
            f" {counts['entries read']} entries read",
            *([f"copies: {self.wholeness}"] if self.wholeness is not None else []),
        ]

    def _verdict(self) -> str:
        found = {name: sum(self.rules[rule] for rule in rules) for name, rules in _GROUPS.items()}
        others = len(self.violations) - sum(found.values())
        return ", ".join(f"{count} {name}" for name, count in {**found, "others": others}.items())
