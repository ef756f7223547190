"""A run of the soak: rounds, one after the other, on one cluster."""

import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import trio

from daybook.clients import ledgers
from tests.soak.cluster import Cluster, Shape, open_cluster
from tests.soak.faults import CLIENT, kinds_of
from tests.soak.kills import kill_owners
from tests.soak.ledgers.whole import wait_whole
from tests.soak.ledgers.worker import OWN_IDS
from tests.soak.ledgers.workload import Ledgers
from tests.soak.nemesis import Nemesis
from tests.soak.progress import Progress
from tests.soak.report import Report
from tests.soak.round import Round, open_round, run_round
from tests.soak.topics.plan import draw_plan, steady_plan
from tests.soak.topics.workload import Topics

TOPICS, LEDGERS = "topics", "ledgers"
WORKLOADS = (TOPICS, LEDGERS)
_BROKERS = 3
_BOOKIES = {TOPICS: 4, LEDGERS: 6}  # a ledger may have an ensemble of five
_KILLS_A_ROUND = 50


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    directory: Path  # the directory of the histories and of the cluster
    minutes: float = 0.0  # the time for rounds of faults
    workloads: tuple[str, ...] = (TOPICS,)
    kills: int = 0  # the number of owners to kill, instead of rounds of faults
    bookies: int = 0  # 0 for as many as the workloads need
    storm_s: float = 150.0  # the longest storm of a round
    repair_s: float = 300.0  # the time for repairing all copies; 0 if they are not checked

    def shape(self) -> Shape:
        return Shape(
            bookies=self.bookies or max(_BOOKIES[each] for each in self.workloads),
            brokers=_BROKERS if TOPICS in self.workloads else 0,
            breakable=not self.kills,
        )


async def soak(settings: Settings, out: TextIO = sys.stdout) -> Report:
    """Run the plan; keep the data of the cluster if something is wrong."""
    report = Report(settings.seed, settings.directory)
    progress = Progress(settings.minutes * 60, out)
    progress.say(f"seed {settings.seed}, in {settings.directory}")
    path = settings.directory / "cluster"
    async with open_cluster(path, settings.shape()) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(progress.run)
        run = _Run(settings, cluster, report, progress)
        await (run.rounds_of_kills() if settings.kills else run.rounds_of_faults())
        await run.finish()
        nursery.cancel_scope.cancel()
    if report.ok:
        await trio.to_thread.run_sync(shutil.rmtree, path)
    return report


class _Run:
    """One run on a cluster."""

    def __init__(
        self, settings: Settings, cluster: Cluster, report: Report, progress: Progress
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._report = report
        self._progress = progress
        self._rounds: list[Round] = []

    async def rounds_of_faults(self) -> None:
        """Run until the time is over, or something is wrong."""
        settings = self._settings
        layers = self._cluster.layers() + ([CLIENT] if LEDGERS in settings.workloads else [])
        self._report.expect(kinds_of(layers))
        end = trio.current_time() + settings.minutes * 60
        while (left_s := end - trio.current_time()) > 0 and self._is_fine():
            storm_s = min(settings.storm_s, left_s)
            async with self._open_round() as one:
                topics = None
                if TOPICS in settings.workloads:
                    topics = Topics(one, draw_plan(settings.seed, one.number, storm_s))
                    one.workloads.append(topics)
                if LEDGERS in settings.workloads:
                    one.workloads.append(Ledgers(one, await _first_id(self._cluster)))
                await run_round(one, partial(_strike, one, topics, storm_s))

    async def rounds_of_kills(self) -> None:
        """Kill owners of topics until all kills are done, or something is wrong."""
        settings = self._settings
        for done in range(0, settings.kills, _KILLS_A_ROUND):
            if not self._is_fine():
                break
            count = min(settings.kills - done, _KILLS_A_ROUND)
            async with self._open_round() as one:
                topics = Topics(one, steady_plan(settings.seed, one.number))
                one.workloads.append(topics)
                await run_round(one, partial(kill_owners, one, topics, count))

    def _is_fine(self) -> bool:
        return not any(one.violations for one in self._rounds)

    @asynccontextmanager
    async def _open_round(self) -> AsyncGenerator[Round]:
        number = len(self._rounds)
        directory = self._settings.directory / f"round-{number + 1:03}"
        with open_round(self._cluster, directory, self._settings.seed, number) as one:
            self._rounds.append(one)
            self._progress.watch(one)
            yield one
        self._progress.say(one.describe())

    async def finish(self) -> None:
        """Read everything of all rounds once more, check every copy, and fill the report."""
        last, report = self._rounds[-1], self._report
        last.phase = "reading again"
        for one in self._rounds:
            for workload in one.workloads:
                await workload.read_again()
        for one in self._rounds:
            report.add(one)
        if LEDGERS in self._settings.workloads and self._settings.repair_s:
            last.phase = "copies"
            report.wholeness = await wait_whole(self._cluster.zookeeper, self._settings.repair_s)
            if report.wholeness.problem:
                report.violations.append(f"copies: {report.wholeness.problem}")
        report.violations += [f"death: {each}" for each in self._cluster.deaths()]


async def _strike(one: Round, topics: Topics | None, seconds: float) -> None:
    rng = one.rng("nemesis")
    await Nemesis(one.cluster, one.recorder, rng, one.faults, topics).strike(seconds)


async def _first_id(cluster: Cluster) -> int:
    """Return the first of the ids that the cluster will give from now on."""
    async with ledgers.connect(f"zk://{cluster.zookeeper}/ledgers") as client:
        given = [each async for each in client.list_ledgers() if each < OWN_IDS]
    return max(given, default=-1) + 1
