"""Rounds, one after the other, on one cluster; and the report."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

import trio

from tests.simulation.plan import Plan
from tests.soak.cluster import open_cluster
from tests.soak.kills import kill_owners
from tests.soak.nemesis import Nemesis
from tests.soak.plan import draw_plan, steady_plan
from tests.soak.progress import Progress
from tests.soak.storm import Round, Trouble, read_again, run_round
from tests.soak.takeovers import describe

BROKERS, BOOKIES = 3, 4
_KILLS_A_ROUND = 50
_SHOWN_MAX = 20
_LOST = {"lost-write", "position", "undelivered", "poll-skip", "changed", "unlisted"}
_REORDERED = {
    *("receipts", "nonmonotonic-send", "realtime", "inconsistent", "read-order", "poll-order"),
}
_INVENTED = {"phantom", "duplicate", "acked-again", "not-new"}


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    directory: Path  # for the histories, and what is kept of the cluster
    minutes: float = 0.0  # of rounds of faults
    kills: int = 0  # instead: of owners
    storm_s: float = 150.0  # of each round, at most


@dataclass(slots=True)
class Report:
    """What came of all rounds."""

    settings: Settings
    histories: list[Path] = field(default_factory=list[Path])
    violations: list[str] = field(default_factory=list[str])
    rules: Counter[str] = field(default_factory=Counter[str])  # that were broken
    events: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    takeovers_s: list[float] = field(default_factory=list[float])
    troubled_s: list[float] = field(default_factory=list[float])

    @property
    def ok(self) -> bool:
        return not self.violations

    def add(self, one: Round) -> None:
        self.histories.append(one.history)
        self.violations += one.violations
        self.rules += Counter(each.rule for each in one.judged)
        self.events += one.stage.tally.counts
        self.faults += one.faults
        self.takeovers_s += one.takeovers_s
        self.troubled_s += one.troubled_s

    def lines(self) -> list[str]:
        """For people."""
        events, rules = self.events, self.rules
        lost, reordered, invented = (
            sum(rules[rule] for rule in group) for group in (_LOST, _REORDERED, _INVENTED)
        )
        others = len(self.violations) - lost - reordered - invented
        shown = self.violations[:_SHOWN_MAX]
        if len(self.violations) > len(shown):
            shown.append(f"... {len(self.violations) - len(shown)} more")
        return [
            *shown,
            *(f"{count:6d} {kind}" for kind, count in sorted(self.faults.items())),
            *describe(self.takeovers_s),
            *(
                ["while something else was broken:", *describe(self.troubled_s)]
                if self.troubled_s
                else []
            ),
            f"{events['Send']} sent, {events['Ok']} receipts, {events['Unknown']} in doubt,"
            f" {events['Error']} refused; {events['Deliver']} delivered, {events['Acked']}"
            f" acknowledgements with receipts, {events['Read']} read;"
            f" {events['Fault']} faults in {len(self.histories)} rounds",
            f"{lost} lost, {reordered} reordered, {invented} invented, {others} others",
            f"history: python -m tests.history {self.settings.directory}/round-*.jsonl",
            f"seed {self.settings.seed}: {'ok' if self.ok else 'FAILED'}",
        ]


async def soak(settings: Settings, out: TextIO = sys.stdout) -> Report:
    """Run it; the data of the cluster are kept if something is wrong."""
    report, directory = Report(settings), settings.directory
    progress = Progress(settings.minutes * 60, out)
    progress.say(f"seed {settings.seed}, in {directory}")
    async with (
        open_cluster(bookies=BOOKIES, brokers=BROKERS, linked=not settings.kills) as cluster,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(progress.run)
        rounds: list[Round] = []
        for plan, trouble in _rounds(settings):
            history = directory / f"round-{len(rounds) + 1:03}.jsonl"
            rounds.append(await run_round(cluster, plan, history, trouble, progress.watch))
            if rounds[-1].violations:
                break
        for one in rounds:
            await read_again(one)
            report.add(one)
        report.violations += [
            f"death: {name} ended by itself, {count} times"
            for name, count in (await cluster.died_alone()).items()
            if count
        ]
        if not report.ok:
            await trio.to_thread.run_sync(cluster.keep, directory / "cluster")
        nursery.cancel_scope.cancel()
    return report


def _rounds(settings: Settings) -> Iterator[tuple[Plan, Trouble]]:
    """Until the time is over, or all kills are done."""
    if settings.kills:
        for done in range(0, settings.kills, _KILLS_A_ROUND):
            count = min(settings.kills - done, _KILLS_A_ROUND)
            yield steady_plan(settings.seed, done), partial(kill_owners, count=count)
        return
    end, number = trio.current_time() + settings.minutes * 60, 0
    while (left_s := end - trio.current_time()) > 0:
        storm_s = min(settings.storm_s, left_s)
        yield draw_plan(settings.seed, number, storm_s), partial(_strike, seconds=storm_s)
        number += 1


async def _strike(one: Round, seconds: float) -> None:
    await Nemesis(one).strike(seconds)
