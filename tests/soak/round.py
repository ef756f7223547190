"""A round: clients work while faults strike, then everything is healed, read and judged.

start      the clients of the workloads start, and all make progress
storm      the work continues while faults strike, or while owners are killed
healing    every server runs again, and every workload makes new progress
calm       the clients finish
reading    all that was stored is read from beginning to end
judging    the checkers of `tests/history` judge the files of the round
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import trio

from tests.history.check import check
from tests.history.events import Healed, HistoryError, Run
from tests.history.record import Violation
from tests.history.recorder import FileSink, Recorder, load
from tests.simulation.workloads.drain import LivenessError, within
from tests.soak.clock import Clock
from tests.soak.cluster import Cluster

_START_S = 180.0  # the time in which all parts have to run once all faults have ended
_IN_FLIGHT_S = 5.0
_ACK_LOSS_S = 5.0
_SETTLE_S = 20.0


class Workload(Protocol):
    """The work of the clients in one round.  Violations are added to `Round.violations`.

    The methods that wait raise `LivenessError`, perhaps in a group, if something does not work.
    """

    def describe(self) -> str:
        """Return the figures so far, for the progress line."""
        ...

    def counts(self) -> Counter[str]:
        """Return the figures of the whole round, for the report."""
        ...

    def work(self) -> AbstractAsyncContextManager[None]:
        """Run the clients; they finish at the end of the block."""
        ...

    async def wait_progress(self) -> None:
        """Wait until something is done that was begun after the call."""
        ...

    async def read_all(self) -> None:
        """Read what was stored."""
        ...

    async def read_again(self) -> None:
        """Check, much later, that a read still finds the same as at the end of the round."""
        ...


@dataclass(slots=True)
class Round:
    """The state of a round, and its result."""

    cluster: Cluster
    directory: Path  # the directory of its history
    seed: int
    number: int
    recorder: Recorder  # for the events of this process
    workloads: list[Workload] = field(default_factory=list[Workload])
    phase: str = "start"
    violations: list[str] = field(default_factory=list[str])
    judged: list[Violation] = field(default_factory=list[Violation])
    faults: Counter[str] = field(default_factory=Counter[str])  # faults by kind

    def describe(self) -> str:
        figures = "; ".join(each.describe() for each in self.workloads)
        return f"round {self.number} {self.phase}: {self.faults.total()} faults; {figures}"

    def rng(self, name: str) -> Random:
        return Random(f"{self.seed}/{self.number}/{name}")


@contextmanager
def open_round(cluster: Cluster, directory: Path, seed: int, number: int) -> Generator[Round]:
    """Begin the history of a round in a new directory; the caller adds the workloads."""
    directory.mkdir(parents=True)
    with FileSink(directory / "run.jsonl") as sink:
        recorder = Recorder("nemesis", now_ns=Clock().now_ns, sink=sink)
        recorder.note(
            Run(
                name=f"python -m tests.soak --seed {seed}, round {number}",
                in_flight_s=_IN_FLIGHT_S,
                ack_loss_s=_ACK_LOSS_S,
                settle_s=_SETTLE_S,
            )
        )
        yield Round(cluster, directory, seed, number, recorder)


async def run_round(one: Round, trouble: Callable[[], Awaitable[None]]) -> None:
    """Run the workloads of the round while `trouble` strikes; the results are in the round."""
    try:
        await _play(one, trouble)
    except (LivenessError, BaseExceptionGroup) as error:
        one.violations += [f"liveness: {each}" for each in _liveness(error)]
    one.phase = "judging"
    try:
        files = sorted(one.directory.glob("*.jsonl"))
        one.judged = await trio.to_thread.run_sync(lambda: check(load(*files)))
    except HistoryError as error:
        one.violations.append(f"history: {error}")
    one.violations += map(str, one.judged)


async def _play(one: Round, trouble: Callable[[], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        for workload in one.workloads:
            await stack.enter_async_context(workload.work())
        await _wait_progress(one)
        one.phase = "storm"
        await trouble()
        one.phase = "healing"
        one.recorder.note(Healed())
        await within(_START_S, "all parts run", one.cluster.wait_running)
        await _wait_progress(one)
        one.phase = "calm"
    one.phase = "reading"
    for workload in one.workloads:
        await workload.read_all()


async def _wait_progress(one: Round) -> None:
    async with trio.open_nursery() as nursery:
        for workload in one.workloads:
            nursery.start_soon(workload.wait_progress)


def _liveness(error: BaseException) -> Iterator[str]:
    """Yield the texts of all `LivenessError`s; raise any other error, which is a bug."""
    match error:
        case LivenessError():
            yield str(error)
        case BaseExceptionGroup():
            for each in _parts(error):
                yield from _liveness(each)
        case _:
            raise error


def _parts(group: BaseExceptionGroup[BaseException]) -> Sequence[BaseException]:
    return group.exceptions
