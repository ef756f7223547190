"""Rounds, one after the other, on one cluster; and the report."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import trio

from daybook.clients import ledgers
from tests.soak.ledgers.audit import compare
from tests.soak.ledgers.cluster import Cluster, open_cluster
from tests.soak.ledgers.storm import Round, run_round
from tests.soak.ledgers.tally import Tally
from tests.soak.ledgers.whole import Wholeness, wait_whole
from tests.soak.ledgers.worker import OWN_IDS
from tests.soak.progress import Progress

BOOKIES = 6
_SHOWN_MAX = 20
_LOST = {"lost-entry", "late-confirm", "read-lost", "false-no", "unread-ledger"}
_BYTES = {"entry-changed", "entry-phantom", "changed", "copies-differ", "length"}
_ENDS = {"end-changed"}


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    directory: Path  # for the histories, and the cluster
    minutes: float
    bookies: int = BOOKIES
    storm_s: float = 150.0  # of each round, at most
    mend_s: float = 300.0  # in which every copy has to be made again; 0: they are not looked at


@dataclass(slots=True)
class Report:
    """What came of all rounds."""

    settings: Settings
    rounds: int = 0
    violations: list[str] = field(default_factory=list[str])
    rules: Counter[str] = field(default_factory=Counter[str])  # that were broken
    counts: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    wholeness: Wholeness | None = None

    @property
    def ok(self) -> bool:
        return not self.violations

    def add(self, one: Round) -> None:
        self.rounds += 1
        self.violations += one.violations
        self.rules += Counter(each.rule for each in one.judged)
        self.counts += one.tally.counts
        self.faults += one.faults

    def lines(self) -> list[str]:
        """For people."""
        counts, rules = self.counts, self.rules
        lost, changed, ends = (sum(rules[each] for each in group) for group in _groups())
        shown = self.violations[:_SHOWN_MAX]
        if len(self.violations) > len(shown):
            shown.append(f"... {len(self.violations) - len(shown)} more")
        stopped = {k: n for k, n in sorted(counts.items()) if k.startswith("writers stopped")}
        return [
            *shown,
            *(f"{count:6d} {kind}" for kind, count in sorted(self.faults.items())),
            *(f"{count:6d} {kind}" for kind, count in stopped.items()),
            f"{counts['fault']} faults in {self.rounds} rounds; {counts['ledger_create']} ledgers,"
            f" {counts['append']} entries appended, {counts['entries confirmed']} confirmed;"
            f" {counts['recover']} recoveries by others; {counts['ends by close']} ends by close,"
            f" {counts['ends by recovery']} by recovery, {counts['ends by read']} by readers;"
            f" {counts['ledger_delete']} deleted; {counts['entries read']} entries read",
            *([f"copies: {self.wholeness}"] if self.wholeness is not None else []),
            f"{lost} lost, {changed} with other bytes, {ends} other ends,"
            f" {len(self.violations) - lost - changed - ends} others",
            f"history: python -m tests.history {self.settings.directory}/round-001/*.jsonl",
            f"seed {self.settings.seed}: {'ok' if self.ok else 'FAILED'}",
        ]


def _groups() -> tuple[set[str], set[str], set[str]]:
    return _LOST, _BYTES, _ENDS


async def soak(settings: Settings, out: TextIO = sys.stdout) -> Report:
    """Run it.  The data of the cluster stay in the directory."""
    report, rounds = Report(settings), list[Round]()
    progress = Progress(settings.minutes * 60, out)
    progress.say(f"seed {settings.seed}, in {settings.directory}")
    path = settings.directory / "cluster"
    async with (
        open_cluster(path, bookies=settings.bookies) as cluster,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(progress.run)
        end = trio.current_time() + settings.minutes * 60
        while (left_s := end - trio.current_time()) > 0:
            directory = settings.directory / f"round-{len(rounds) + 1:03}"
            one = Round(cluster, directory, settings.seed, len(rounds), Tally(directory))
            rounds.append(one)
            progress.watch(one)
            await run_round(one, min(settings.storm_s, left_s), await _first_id(cluster))
            progress.say(one.describe())
            if one.violations:
                break
        contents = {ledger: found for one in rounds for ledger, found in one.contents.items()}
        rounds[-1].phase = "once more"
        await compare(cluster.zookeeper, contents, report.violations)
        if settings.mend_s:
            rounds[-1].phase = "copies"
            report.wholeness = await wait_whole(cluster.zookeeper, settings.mend_s)
            if report.wholeness.problem:
                report.violations.append(f"copies: {report.wholeness.problem}")
        report.violations += [f"death: {each}" for each in cluster.failures]
        nursery.cancel_scope.cancel()
    for one in rounds:
        report.add(one)
    return report


async def _first_id(cluster: Cluster) -> int:
    """The first of those that the cluster will give from now on."""
    async with ledgers.connect(f"zk://{cluster.zookeeper}/ledgers") as client:
        given = [each async for each in client.list_ledgers() if each < OWN_IDS]
    return max(given, default=-1) + 1
