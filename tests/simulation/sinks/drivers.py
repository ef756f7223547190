"""Drivers and tasks of streaming queries, as Spark has them, each as a process of its own.

A *driver* begins behind its checkpoint.  It lets tasks stage the rows of a batch, commits what they
return, rolls it forward, and notes the batch in the checkpoint.  If a commit fails it aborts, as
Spark does whenever `commit` raised, and ends.  A driver that repeats a batch has the same rows, in
other tasks and in another order; each row's text names the driver, so the rows in a topic tell
whose commit it was.  A *task* that dies, or fails, is started again, and what it has staged is
litter.

A process that is killed does nothing any more; the tasks of a dead driver go on.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import trio

from daybook.clients.python.errors import BrokerError
from daybook.clients.python.sink_requests import (
    Batch,
    NotAppliedError,
    Share,
    SinkRequests,
    StagingAttempt,
)
from daybook.managed_ledger.protocol.sink import Source
from daybook.managed_ledger.sinks.staging import staged_entry
from daybook.wire.proto import pulsar_pb2 as pb
from tests.simulation.cluster import Cluster, Life
from tests.simulation.sinks.audit import SINK, Rows, SinkAudit

TOPIC = "persistent://public/default/s"
PARTITIONS = 2
TASKS = 3
ADMIN_URL = "http://broker-1:8080,broker-2:8080"
_AGAIN_S = 0.1


class DriverEndsError(Exception):
    """The driver ends here, as its habits say."""


@dataclass
class Checkpoint:
    """The directory in which a query notes what is done."""

    query_id: str
    path: str
    done: int = -1  # the last batch that is applied, as far as the query knows

    @property
    def source(self) -> Source:
        return Source(self.query_id, self.path)


@dataclass
class Habits:
    """The ways of a driver that make a run meet more of the protocol; the defaults are Spark's."""

    rows: Callable[[int], int] = lambda batch_id: 3 + 7 * (batch_id % 4)
    pause_s: tuple[float, float] = (0.0, 0.0)  # before a batch is staged
    row_s: tuple[float, float] = (0.0, 0.0)  # before each row is staged
    task_dies: float = 0.0  # before each row: the probability
    litter: set[int] = field(default_factory=set[int])  # batches with a task whose result is lost
    aborted: set[int] = field(default_factory=set[int])  # batches that are aborted once
    unnoted: set[int] = field(default_factory=set[int])  # done; the driver dies before it notes it


class Drivers:
    def __init__(
        self,
        cluster: Cluster,
        audit: SinkAudit,
        rng: Random,
        habits: Habits,
        say: Callable[[str], None],
    ) -> None:
        self.count = 0
        self.current = ""  # the driver that was started last
        self.tasks: list[str] = []  # those that have been started, in order
        self._cluster = cluster
        self._audit = audit
        self._rng = rng
        self._habits = habits
        self._say = say
        self._serial = count(1)

    def requests(self, host: str) -> SinkRequests:
        return SinkRequests(ADMIN_URL, network=self._cluster.network.of(host), timeout_s=5.0)

    async def start(self, checkpoint: Checkpoint, batches: int) -> Life:
        """Start a driver, which ends when so many batches are done, or at an error."""
        self.count += 1
        name = self.current = f"driver-{self.count}"

        async def drive(driver: _Driver) -> None:
            while checkpoint.done < batches - 1:
                await driver.run_batch()

        driver = _Driver(self, name, self.count, checkpoint)
        return await self.live(name, lambda: drive(driver))

    async def live(self, name: str, work: Callable[[], Awaitable[None]]) -> Life:
        """Start a process; it ends when the work is done, or fails with the error of a broker."""
        lives: list[Life] = []

        async def main(life: Life, status: trio.TaskStatus[object]) -> None:
            lives.append(life)
            status.started(None)
            try:
                await work()
            except (BrokerError, DriverEndsError) as error:
                self._say(f"{name} ends: {error}")

        await self._cluster.live(name, main)
        return lives[0]

    def kill(self, life: Life) -> None:
        if self._cluster.lives.get(life.host) is life:
            self._say(f"{life.host} is killed")
            self._cluster.kill(life.host)


class _Driver:
    """The process of one driver."""

    def __init__(self, drivers: Drivers, name: str, number: int, checkpoint: Checkpoint) -> None:
        self._drivers = drivers
        self._number = number
        self._checkpoint = checkpoint
        self._requests = drivers.requests(name)

    async def run_batch(self) -> None:
        drivers, checkpoint, habits = self._drivers, self._checkpoint, self._drivers._habits
        number = checkpoint.done + 1
        batch = Batch(checkpoint.query_id, number, {TOPIC: PARTITIONS})
        await trio.sleep(drivers._rng.uniform(*habits.pause_s))
        tasks = rows_of(checkpoint.query_id, number, self._number, habits.rows(number))
        shares = await self._stage_all(batch, tasks)
        if number in habits.aborted:
            habits.aborted.discard(number)
            await self._abort(batch, shares)
            return
        names = ["" if share is None else share.attempt for share in shares]
        digest = drivers._audit.staged(number, names, tasks)
        await self._commit(batch, shares, digest)
        with suppress(NotAppliedError):
            await self._requests.roll_forward(SINK, timeout_s=20.0)
            if number in habits.unnoted:
                habits.unnoted.discard(number)
                raise DriverEndsError(f"the batch {number} is done, and nobody notes it")
            if number > checkpoint.done:
                drivers._say(f"driver {self._number} has done the batch {number}")
            checkpoint.done = max(checkpoint.done, number)

    async def _stage_all(self, batch: Batch, tasks: Sequence[Rows]) -> list[Share | None]:
        shares: list[Share | None] = [None] * len(tasks)

        async def run(index: int) -> None:
            shares[index] = await self._run_task(batch, tasks[index])

        habits = self._drivers._habits
        async with trio.open_nursery() as nursery:
            if batch.batch_id in habits.litter:
                habits.litter.discard(batch.batch_id)
                nursery.start_soon(self._run_task, batch, tasks[0])
            for index, rows in enumerate(tasks):
                if rows:
                    nursery.start_soon(run, index)
        return shares

    async def _run_task(self, batch: Batch, rows: Rows) -> Share:
        """Run a task until it has a result."""
        drivers, results = self._drivers, list[Share]()
        while not results:
            name = f"task-{next(drivers._serial)}"
            drivers.tasks.append(name)

            async def work(name: str = name) -> None:
                share = await self._stage(drivers.requests(name), batch, rows)
                if share is not None:
                    results.append(share)

            life = await drivers.live(name, work)
            await life.ended.wait()
            if not results:
                await trio.sleep(_AGAIN_S)
        return results[0]

    async def _stage(self, requests: SinkRequests, batch: Batch, rows: Rows) -> Share | None:
        rng, habits = self._drivers._rng, self._drivers._habits
        attempt = await requests.begin(SINK, batch)
        for row in rows:
            if rng.random() < habits.task_dies:
                return None
            await trio.sleep(rng.uniform(*habits.row_s))
            await append(attempt, row)
        return await attempt.close(rows=len(rows), hash_=len(rows))

    async def _commit(self, batch: Batch, shares: list[Share | None], digest: str) -> None:
        path, audit = self._checkpoint.path, self._drivers._audit
        try:
            while True:
                done = await self._requests.commit(
                    SINK, batch, shares, checkpoint=path, timeout_s=6.0
                )
                audit.answered(batch.batch_id, digest, done.outcome)
                if done.outcome != "wait":
                    return
                with suppress(NotAppliedError):
                    await self._requests.roll_forward(SINK, timeout_s=20.0)
        except BrokerError as error:
            self._drivers._say(f"driver {self._number} could not commit: {error}")
            await self._abort(batch, shares)
            raise

    async def _abort(self, batch: Batch, shares: list[Share | None]) -> None:
        with suppress(BrokerError):
            await self._requests.abort(
                SINK, batch, shares, checkpoint=self._checkpoint.path, timeout_s=3.0
            )


async def append(attempt: StagingAttempt, row: tuple[str, str]) -> None:
    topic, text = row
    await attempt.append(topic, [staged_entry(pb.MessageMetadata(event_time=1), text.encode())])


def partition(index: int) -> str:
    return f"{TOPIC}-partition-{index}"


def rows_of(query_id: str, batch_id: int, driver: int, rows: int) -> list[Rows]:
    """Return the rows of a batch by task: the same number for each driver, in other tasks."""
    chance = Random(f"{query_id}/{batch_id}/{driver}")
    tasks: list[list[tuple[str, str]]] = [[] for _ in range(TASKS)]
    for number in chance.sample(range(rows), rows):
        text = f"<{query_id}.{batch_id}.{driver}.{number}>"
        chance.choice(tasks).append((partition(number % PARTITIONS), text))
    return list(tasks)
