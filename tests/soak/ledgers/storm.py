"""A round: clients work while faults strike, everything is healed, recovered, read and judged.

storm      processes of clients write, recover and read
healing    everything works again: each writing process has something new confirmed
audit      clients are gone; each ledger is opened with recovery, and read from 0 to its end
judging    the checkers of `tests/history` over what is in the files
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import trio

from tests.history.check import check
from tests.history.events import Healed, HistoryError, Run
from tests.history.record import Violation
from tests.history.recorder import FileSink, Recorder, load
from tests.soak.ledgers.audit import audit
from tests.soak.ledgers.cluster import Cluster, python
from tests.soak.ledgers.nemesis import Nemesis
from tests.soak.ledgers.tally import Tally
from tests.soak.ledgers.worker import Clock, Worker

LIVENESS_S = 180.0  # for each step of healing
_WRITERS, _RECOVERERS, _READERS = 3, 2, 2


@dataclass(slots=True)
class Round:
    """What happens in it, and what came of it."""

    cluster: Cluster
    directory: Path
    seed: int
    number: int
    tally: Tally
    phase: str = "start"
    violations: list[str] = field(default_factory=list[str])
    judged: list[Violation] = field(default_factory=list[Violation])
    faults: Counter[str] = field(default_factory=Counter[str])
    contents: dict[int, int] = field(default_factory=dict[int, int])  # of ledgers, at the end

    def describe(self) -> str:
        counts = self.tally.counts
        return (
            f"round {self.number} {self.phase}: {counts['ledger_create']} ledgers,"
            f" {counts['append']} appended, {counts['entries confirmed']} confirmed,"
            f" {counts['entries read']} read, {counts['recover']} recoveries,"
            f" {counts['fault']} faults"
        )


async def run_round(one: Round, storm_s: float, first_id: int) -> None:
    """Faults strike for so long; what comes of it is in the round."""
    one.directory.mkdir(parents=True)
    clock = Clock()
    with FileSink(one.directory / "run.jsonl") as sink:
        recorder = Recorder("nemesis", now_ns=clock.now_ns, sink=sink)
        recorder.note(
            Run(name=f"python -m tests.soak.ledgers --seed {one.seed}, round {one.number}")
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.tally.watch)
            await _storm(one, storm_s, first_id, recorder)
            one.phase = "audit"
            worker = Worker(
                "auditor", str(one.seed), one.number, first_id, recorder.named("auditor")
            )
            await audit(one.cluster.zookeeper, worker, one.contents, one.violations)
            nursery.cancel_scope.cancel()
    one.tally.look()
    one.phase = "judging"
    try:
        files = sorted(one.directory.glob("*.jsonl"))
        one.judged = await trio.to_thread.run_sync(lambda: check(load(*files)))
    except HistoryError as error:
        one.violations.append(f"history: {error}")
    one.violations += map(str, one.judged)


def client_names() -> list[str]:
    counts = {"writer": _WRITERS, "recoverer": _RECOVERERS, "reader": _READERS}
    return [f"{role}-{number + 1}" for role, count in counts.items() for number in range(count)]


async def _storm(one: Round, storm_s: float, first_id: int, recorder: Recorder) -> None:
    names = client_names()

    def command(name: str, zookeeper: str, start: int) -> list[str]:
        incarnation = f"{name}.{one.number}.{start}"
        return python(
            "tests.soak.ledgers.process",
            name.partition("-")[0],
            *("--name", incarnation, "--seed", str(one.seed), "--round", str(one.number)),
            *("--first-id", str(first_id), "--zookeeper", zookeeper),
            *("--history", str(one.directory / f"{incarnation}.jsonl")),
        )

    async with one.cluster.open_clients(names, command):
        one.phase = "storm"
        rng = Random(f"{one.seed}/{one.number}/nemesis")
        await Nemesis(one.cluster, recorder, rng, one.faults).strike(storm_s)
        one.phase = "healing"
        recorder.note(Healed())
        with trio.move_on_after(LIVENESS_S) as scope:
            await one.cluster.wait_running()
        if scope.cancelled_caught:
            one.violations.append("liveness: a part does not start though nothing is broken")
        writers = [name for name in names if name.startswith("writer")]
        with trio.move_on_after(LIVENESS_S) as scope:
            await one.tally.wait_confirmed(writers, recorder.now_ns())
        if scope.cancelled_caught:
            late = ", ".join(one.tally.missing(writers))
            one.violations.append(f"liveness: nothing new of {late} is confirmed, and all is well")
