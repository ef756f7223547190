"""The workload `ledgers` in one round: processes write, recover and read; then all are audited."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from tests.history.recorder import FileSink, Recorder
from tests.simulation.workloads.drain import LivenessError
from tests.soak.cluster import python
from tests.soak.ledgers.audit import audit, compare
from tests.soak.ledgers.tally import Tally
from tests.soak.ledgers.worker import Worker
from tests.soak.round import Round

LIVENESS_S = 180.0
_WRITERS, _RECOVERERS, _READERS = 3, 2, 2


class Ledgers:
    """SEAM workload: the ledgers of one round."""

    def __init__(self, one: Round, first_id: int) -> None:
        """Begin a round in which the cluster assigns ids from `first_id` on."""
        self._round = one
        self._zookeeper = one.cluster.zookeeper
        self._first_id = first_id
        self._tally = Tally(one.directory)
        self._contents: dict[int, int] = {}  # checksums by ledger, at the end

    def describe(self) -> str:
        counts = self.counts()
        return (
            f"{counts['ledger_create']} ledgers, {counts['append']} appended,"
            f" {counts['entries confirmed']} confirmed, {counts['entries read']} read,"
            f" {counts['recover']} recoveries"
        )

    def counts(self) -> Counter[str]:
        return self._tally.counts

    @asynccontextmanager
    async def work(self) -> AsyncGenerator[None]:
        async with (
            self._round.cluster.open_clients(client_names(), self._command),
            self._watched(),
        ):
            yield

    def _command(self, name: str, zookeeper: str, start: int) -> list[str]:
        one = self._round
        incarnation = f"{name}.{one.number}.{start}"
        return python(
            "tests.soak.ledgers.process",
            name.partition("-")[0],
            *("--name", incarnation, "--seed", str(one.seed), "--round", str(one.number)),
            *("--first-id", str(self._first_id), "--zookeeper", zookeeper),
            *("--history", str(one.directory / f"{incarnation}.jsonl")),
        )

    @asynccontextmanager
    async def _watched(self) -> AsyncGenerator[None]:
        """Count the lines that processes write into their files during the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tally.watch)
            yield
            nursery.cancel_scope.cancel()
        self._tally.look()

    async def wait_progress(self) -> None:
        """Wait until each process of writers has a confirmed entry that it sent after the call."""
        writers = [name for name in client_names() if name.startswith("writer")]
        with trio.move_on_after(LIVENESS_S) as scope:
            await self._tally.wait_confirmed(writers, self._round.recorder.now_ns())
        if scope.cancelled_caught:
            late = ", ".join(self._tally.missing(writers))
            raise LivenessError(f"nothing new of {late} is confirmed, and all is well")

    async def read_all(self) -> None:
        one = self._round
        with FileSink(one.directory / "auditor-1.jsonl") as sink:
            recorder = Recorder("auditor", now_ns=one.recorder.now_ns, sink=sink)
            worker = Worker("auditor", str(one.seed), one.number, self._first_id, recorder)
            async with self._watched():
                await audit(self._zookeeper, worker, self._contents, one.violations)

    async def read_again(self) -> None:
        await compare(self._zookeeper, self._contents, self._round.violations)


def client_names() -> list[str]:
    counts = {"writer": _WRITERS, "recoverer": _RECOVERERS, "reader": _READERS}
    return [f"{role}-{number + 1}" for role, count in counts.items() for number in range(count)]
