"""A run with faults that are drawn from its seed.

The run has four bookies, two brokers, a topic of two partitions, and a query with a number of
batches.  Drivers are killed, frozen until later batches are done, and come twice; a copy of the
checkpoint and a wiped one try to write to the same sink.  Once, maybe, the sink is forgotten, and
another query begins with the batch 0.  Meanwhile brokers, bookies and the metadata store fail.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from daybook.clients.python.errors import BrokerError
from tests.simulation.cluster import Life
from tests.simulation.metadata import Odds
from tests.simulation.settings import Settings
from tests.simulation.sinks.audit import SINK
from tests.simulation.sinks.drivers import Checkpoint, Habits
from tests.simulation.sinks.run import BOOKIES, BROKERS, LIMIT_S, Stage, play

BATCHES = 6
FAULTS = 9
_BATCHES_AFTER = 3  # The query that follows when the sink was forgotten has so many.
_STRANGER_S = 60.0
_REQUEST_S = 30.0  # A broker has done what a dead driver has asked for.

Act = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Result:
    batches: int
    drivers: int
    faults: list[str]
    replays: int
    virtual_s: float


class Story:
    def __init__(self, stage: Stage, faults: int, *, forgets: bool) -> None:
        self.stage = stage
        self.rng = stage.rng
        self.cluster = stage.cluster
        self.audit = stage.audit
        self.checkpoint = Checkpoint("query", "/checkpoint")
        self.batches = BATCHES
        self.faults: list[str] = []
        self._count = faults
        self._forgets = forgets
        self._calm = False  # No driver is killed any more.
        self._lives: list[Life] = []
        self._free = False  # The sink belongs to nobody, or soon will.

    async def play(self) -> None:
        self.audit.owners = {self.checkpoint.source}
        async with trio.open_nursery() as work:
            work.start_soon(self._disturb)
            work.start_soon(self._supervise)

    # -- drivers

    async def _supervise(self) -> None:
        """Run drivers, one behind the other or two at a time, until all batches are done."""
        await self._run_query()
        if self._forgets:
            await self._forget()
            self.checkpoint, self.batches = Checkpoint("other", "/other"), _BATCHES_AFTER
            self.audit.owners = {self.checkpoint.source}
            self._free = False
            await self._run_query()
        self._end_drivers()

    async def _run_query(self) -> None:
        async with trio.open_nursery() as nursery:
            while self.checkpoint.done < self.batches - 1:
                life = await self.stage.drivers.start(self.checkpoint, self.batches)
                self._lives.append(life)
                limit_s = LIMIT_S if self._calm else self.rng.uniform(0.3, 8.0)
                with trio.move_on_after(limit_s):
                    await life.ended.wait()
                    await trio.sleep(0.2)
                drawn = self.rng.random()
                if life.ended.is_set() or drawn < 0.2:
                    continue  # It lives on beside the next one.
                if drawn < 0.7:
                    self.stage.drivers.kill(life)
                else:
                    nursery.start_soon(self._freeze_driver, life)
            nursery.cancel_scope.cancel()

    async def _freeze_driver(self, life: Life) -> None:
        """Freeze a driver until the query has done another batch, or two."""
        self.stage.say(f"{life.host} is frozen")
        self.cluster.freeze(life.host)
        until = self.checkpoint.done + self.rng.randint(1, 2)
        while self.checkpoint.done < min(until, self.batches - 1):  # noqa: ASYNC110
            await trio.sleep(0.1)
        self.stage.say(f"{life.host} goes on")
        self.cluster.thaw(life)

    def _end_drivers(self) -> None:
        for life in self._lives:
            self.cluster.thaw(life)
            self.stage.drivers.kill(life)
        self._lives.clear()

    async def _forget(self) -> None:
        """Forget the sink, as an operator who knows that nobody writes to it any more.

        A free sink belongs to the next one who commits.
        """
        self._free = True
        self._end_drivers()
        await trio.sleep(_REQUEST_S)
        requests = self.stage.drivers.requests("operator")
        while True:
            try:
                await requests.roll_forward(SINK, timeout_s=20.0)
                await requests.forget(SINK)
            except BrokerError as error:  # also a NotAppliedError
                self.stage.say(f"the sink is not forgotten: {error}")
                await trio.sleep(1.0)
            else:
                self.stage.say("the sink is forgotten")
                break

    async def _stranger(self, checkpoint: Checkpoint) -> None:
        """Start a driver that does not own the sink; the audit knows whose batches may come."""
        record = self.audit.record
        if self._free or record is None or record.source not in self.audit.owners:
            return
        life = await self.stage.drivers.start(checkpoint, checkpoint.done + 2)
        self._lives.append(life)
        with trio.move_on_after(_STRANGER_S):
            await life.ended.wait()
        self.stage.drivers.kill(life)

    async def _copy(self) -> None:
        here = self.checkpoint
        await self._stranger(Checkpoint(here.query_id, "/copy", here.done))

    async def _wipe(self) -> None:
        await self._stranger(Checkpoint("wiped", self.checkpoint.path))

    # -- faults

    async def _disturb(self) -> None:
        acts: list[tuple[str, Act]] = [
            ("a broker is killed", self._kill_broker),
            ("a broker is killed soon after a commit", self._kill_after_commit),
            ("a bookie loses power", self._kill_bookie),
            ("the store loses answers", self._lose_answers),
            ("a broker is frozen", self._freeze_broker),
            ("a session expires", self._expire),
            ("the topic is unloaded", lambda: self.stage.unload(self._broker())),
            ("a task is killed", self._kill_task),
            ("a copy of the checkpoint runs", self._copy),
            ("a wiped checkpoint runs", self._wipe),
        ]
        for _ in range(self._count):
            await trio.sleep(self.rng.uniform(0.2, 3.0))
            name, act = self.rng.choice(acts)
            self.faults.append(name)
            self.stage.say(name)
            await act()
        self._calm = True
        self.stage.say("no more faults")

    def _broker(self) -> str:
        return self.rng.choice(BROKERS)

    async def _kill_broker(self) -> None:
        name = self._broker()
        if name in self.cluster.lives:
            self.cluster.kill(name)
        await trio.sleep(self.rng.uniform(0.5, 4.0))
        await self.cluster.revive(name)

    async def _kill_after_commit(self) -> None:
        before = len(self.audit.committed)
        with trio.move_on_after(10.0):
            while len(self.audit.committed) == before:  # noqa: ASYNC110
                await trio.sleep(0.005)
        await trio.sleep(self.rng.uniform(0.0, 0.1))
        await self._kill_broker()

    async def _kill_bookie(self) -> None:
        name = self.rng.choice(BOOKIES)
        self.cluster.kill(name, power=True)
        await trio.sleep(self.rng.uniform(0.5, 4.0))
        await self.cluster.revive(name)

    async def _kill_task(self) -> None:
        await trio.lowlevel.checkpoint()
        for name in self.stage.drivers.tasks[-3:]:
            if name in self.cluster.lives:
                self.cluster.kill(name)
                return

    async def _lose_answers(self) -> None:
        self.cluster.metadata.odds = Odds(0.03, 0.05, 0.05, 0.3)
        await trio.sleep(self.rng.uniform(2.0, 8.0))
        self.cluster.metadata.odds = Odds()

    async def _freeze_broker(self) -> None:
        name = self._broker()
        if name in self.cluster.lives:
            life = self.cluster.freeze(name)
            await trio.sleep(self.rng.uniform(0.5, 6.0))
            self.cluster.thaw(life)

    async def _expire(self) -> None:
        await trio.lowlevel.checkpoint()
        name = self._broker()
        if name in self.cluster.lives:
            self.cluster.metadata.expire(name)


def run_sinks(seed: int, say: Callable[[str], None] | None = None) -> Result:
    """Run one seed.  Raise AssertionError if a promise was broken."""
    stories: list[Story] = []

    async def main(stage: Stage) -> None:
        story = Story(stage, FAULTS, forgets=seed % 3 == 0)
        stories.append(story)
        await story.play()

    habits = Habits(pause_s=(0.0, 3.0), row_s=(0.0, 0.05), task_dies=0.01)
    settings = Settings(http=True, roll_entries=(7, 40, 50_000)[seed // 2 % 3])
    stage = play(seed, main, settings=settings, habits=habits, deduplication=seed % 2 == 1, say=say)
    (story,) = stories
    return Result(
        len(stage.audit.committed),
        stage.drivers.count,
        story.faults,
        stage.audit.replays,
        stage.scheduler.clock.now,
    )
