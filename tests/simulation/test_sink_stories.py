"""Two drivers, copies of checkpoints, and operators: one story for each rule about who may commit.

The audit of `sinks` runs beside each story, and the topic is compared at its end.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from daybook.broker.sinks.topic_sinks import TopicSinks
from daybook.clients.python.errors import AdminInDoubtError, ConflictError
from daybook.clients.python.sink_requests import Batch, Committed, NotAppliedError, Share
from daybook.wire.metadata.memory import Request
from daybook.wire.topics import TopicName
from tests.simulation.metadata import Passage
from tests.simulation.settings import Settings
from tests.simulation.sinks.audit import SINK, Rows
from tests.simulation.sinks.drivers import (
    PARTITIONS,
    TOPIC,
    Checkpoint,
    Habits,
    append,
    partition,
    rows_of,
)
from tests.simulation.sinks.run import BOOKIES, Stage, play

ROWS = 12
HERE = Checkpoint("query", "/checkpoint")


class Driver:
    """A driver that does one step after the other, as a test says."""

    def __init__(self, stage: Stage, number: int, checkpoint: Checkpoint = HERE) -> None:
        self.checkpoint = checkpoint
        self._stage = stage
        self._number = number
        self._requests = stage.drivers.requests(f"driver-{number}")

    def batch(self, number: int) -> Batch:
        return Batch(self.checkpoint.query_id, number, {TOPIC: PARTITIONS})

    async def stage(self, number: int, rows: int = ROWS) -> list[Share | None]:
        tasks = rows_of(self.checkpoint.query_id, number, self._number, rows)
        shares = [await self._stage_task(number, each) for each in tasks]
        names = ["" if share is None else share.attempt for share in shares]
        self._stage.audit.staged(number, names, tasks)
        return shares

    async def _stage_task(self, number: int, rows: Rows) -> Share | None:
        if not rows:
            return None
        attempt = await self._requests.begin(SINK, self.batch(number))
        for row in rows:
            await append(attempt, row)
        return await attempt.close(rows=len(rows), hash_=len(rows))

    async def commit(self, number: int, shares: Sequence[Share | None]) -> Committed:
        return await self._requests.commit(
            SINK, self.batch(number), shares, checkpoint=self.checkpoint.path, timeout_s=20.0
        )

    async def abort(self, number: int, shares: Sequence[Share | None]) -> list[str]:
        return await self._requests.abort(
            SINK, self.batch(number), shares, checkpoint=self.checkpoint.path
        )

    async def roll_forward(self) -> str:
        return (await self._requests.roll_forward(SINK, timeout_s=60.0)).state

    async def write(self, number: int) -> list[Share | None]:
        """Stage, commit and apply a batch."""
        shares = await self.stage(number)
        assert (await self.commit(number, shares)).outcome == "committed"
        assert await self.roll_forward() == "APPLIED"
        return shares

    async def forget(self) -> None:
        await self._requests.forget(SINK)


def tell(
    story: Callable[[Stage], Awaitable[None]],
    *,
    deduplication: bool = False,
    tails: bool = True,
    seed: int = 1,
) -> Stage:
    return play(
        seed,
        story,
        settings=Settings(http=True),
        habits=Habits(),
        deduplication=deduplication,
        busy=False,
        tails=tails,
    )


def attempts(shares: Sequence[Share | None]) -> set[str]:
    return {share.attempt for share in shares if share is not None}


# -- two drivers


@pytest.mark.parametrize("deduplication", [False, True])
def test_a_replay_has_other_rows_in_other_tasks_and_the_topic_keeps_the_first(
    *, deduplication: bool
) -> None:
    async def story(stage: Stage) -> None:
        first, second = Driver(stage, 1), Driver(stage, 2)
        await first.write(0)
        again = await second.stage(0)
        assert (await second.commit(0, again)).outcome == "replay"
        assert not attempts(again) & {each.attempt for each in stage.audit.ledgers.values()}
        await second.write(1)

    stage = tell(story, deduplication=deduplication)
    assert [number for _, number in stage.audit.committed] == [0, 1]


def test_a_replay_with_another_number_of_rows_is_refused() -> None:
    async def story(stage: Stage) -> None:
        await Driver(stage, 1).write(0)
        second = Driver(stage, 2)
        fewer = await second.stage(0, ROWS - 1)
        with pytest.raises(ConflictError, match="does not give the same rows"):
            await second.commit(0, fewer)
        await second.abort(0, fewer)

    tell(story)


def test_a_driver_that_wakes_after_the_next_batch_commits_nothing() -> None:
    async def story(stage: Stage) -> None:
        zombie, other = Driver(stage, 1), Driver(stage, 2)
        late = await zombie.stage(0)
        await other.write(0)
        await other.write(1)
        with pytest.raises(ConflictError, match="lower than the batch 1"):
            await zombie.commit(0, late)
        assert await zombie.abort(0, late) == []

    tell(story)


def test_two_drivers_commit_the_same_batch_at_the_same_time() -> None:
    async def story(stage: Stage) -> None:
        drivers = Driver(stage, 1), Driver(stage, 2)
        staged = [await each.stage(0) for each in drivers]
        outcomes: list[str] = []

        async def commit(index: int) -> None:
            outcomes.append((await drivers[index].commit(0, staged[index])).outcome)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, 0)
            nursery.start_soon(commit, 1)
        assert sorted(outcomes) == ["committed", "replay"]
        assert await drivers[0].roll_forward() == "APPLIED"

    for seed in range(1, 6):
        tell(story, seed=seed)


def test_the_next_batch_waits_until_the_one_before_is_applied() -> None:
    async def story(stage: Stage) -> None:
        driver = Driver(stage, 1)
        first, second = await driver.stage(0), await driver.stage(1)
        stop_marks(stage)
        await driver.commit(0, first)
        assert (await driver.commit(1, second)).outcome == "wait"
        stage.cluster.metadata.gate = None
        assert await driver.roll_forward() == "APPLIED"
        assert (await driver.commit(1, second)).outcome == "committed"
        assert await driver.roll_forward() == "APPLIED"

    tell(story)


def test_a_batch_is_not_applied_while_one_partition_waits_for_its_owner() -> None:
    async def story(stage: Stage) -> None:
        driver = Driver(stage, 1)
        shares = await driver.stage(0)
        real, slow = TopicSinks._append, partition(1)

        async def append_slowly(self: TopicSinks, *given: Any) -> None:
            if self._topic().name.full == slow:
                await trio.sleep(15.0)
            await real(self, *given)

        TopicSinks._append = append_slowly  # type: ignore[method-assign, assignment]
        try:
            await driver.commit(0, shares)
            assert await driver.roll_forward() == "APPLIED"
        finally:
            TopicSinks._append = real  # type: ignore[method-assign]

    tell(story)


def test_a_batch_is_not_applied_before_slow_disks_have_it() -> None:
    async def story(stage: Stage) -> None:
        driver = Driver(stage, 1)
        shares = await driver.stage(0)
        for name in BOOKIES:
            stage.cluster.platter(name).slowness = 1000.0
        await driver.commit(0, shares)
        assert await driver.roll_forward() == "APPLIED"
        for name in BOOKIES:
            stage.cluster.platter(name).slowness = 1.0

    tell(story)


def stop_marks(stage: Stage) -> None:
    """Let no owner note that it has applied its share."""

    def gate(_host: str, request: Request) -> Passage:
        mark = request.operation == "set" and "/sinks-pending/" in request.path
        return Passage.STOPPED if mark else Passage.ANSWERED

    stage.cluster.metadata.gate = gate


# -- abort


def test_an_abort_behind_a_commit_that_raised_keeps_what_is_committed() -> None:
    async def story(stage: Stage) -> None:
        driver = Driver(stage, 1)
        shares = await driver.stage(0)
        await driver.commit(0, shares)  # Its answer is lost, so Spark calls abort.
        stop_marks(stage)
        assert set(await driver.abort(0, shares)) == attempts(shares)
        stage.cluster.metadata.gate = None
        assert (await driver.commit(0, shares)).outcome == "done"
        assert await driver.roll_forward() == "APPLIED"

    tell(story)


def test_what_was_abandoned_is_not_committed_even_before_it_is_deleted() -> None:
    async def story(stage: Stage) -> None:
        driver = Driver(stage, 1)
        shares = await driver.stage(0)
        running = stage.cluster.broker("broker-1")
        assert running is not None
        sinks = running.sinks.sinks
        await sinks.records.find_or_create(SINK)
        gone = attempts(shares)
        await stage.cluster.call(
            "broker-1", lambda: sinks.records.change(SINK, lambda record: record.abandon(gone, ()))
        )
        with pytest.raises(ConflictError, match="was abandoned"):
            await driver.commit(0, shares)
        await driver.abort(0, shares)
        await driver.write(0)

    tell(story)


# -- checkpoints


def test_a_copied_checkpoint_is_refused_and_the_query_goes_on() -> None:
    async def story(stage: Stage) -> None:
        driver = Driver(stage, 1)
        copy = Driver(stage, 2, Checkpoint(HERE.query_id, "/copy"))
        await driver.write(0)
        for number in (0, 1):
            shares = await copy.stage(number)
            with pytest.raises(ConflictError, match="needs another sink name"):
                await copy.commit(number, shares)
            await copy.abort(number, shares)
        await driver.write(1)

    tell(story)


def test_a_wiped_checkpoint_begins_with_batch_0_and_is_refused() -> None:
    async def story(stage: Stage) -> None:
        driver, wiped = Driver(stage, 1), Driver(stage, 2, Checkpoint("wiped", HERE.path))
        await driver.write(0)
        shares = await wiped.stage(0)
        with pytest.raises(ConflictError, match="wiped makes another query"):
            await wiped.commit(0, shares)
        await wiped.abort(0, shares)
        await driver.write(1)

    tell(story)


# -- operators


def test_a_forgotten_sink_takes_another_query_and_nothing_of_the_old_one() -> None:
    async def story(stage: Stage) -> None:
        old, new = Driver(stage, 1), Driver(stage, 2, Checkpoint("new", "/new"))
        shares = await old.write(0)
        await old.forget()
        with pytest.raises(ConflictError, match="is gone"):
            await old.commit(0, shares)
        await new.write(0)
        with pytest.raises(ConflictError, match="belongs to the query new"):
            await old.commit(0, shares)
        await new.write(1)

    stage = tell(story)
    assert len({sink_id for sink_id, _ in stage.audit.committed}) == 2


def test_a_sink_is_not_forgotten_while_its_batch_is_applied_or_its_staging_is_left() -> None:
    async def story(stage: Stage) -> None:
        driver = Driver(stage, 1)
        shares = await driver.stage(0)
        stop_marks(stage)
        await driver.commit(0, shares)
        with pytest.raises(ConflictError, match="cannot be forgotten"):
            await driver.forget()

        metadata = stage.cluster.metadata
        metadata.gate = None
        metadata.refusals = (1.0, "/ledgers/00", "not now")  # No ledger is deleted.
        assert await driver.roll_forward() == "APPLIED"
        with pytest.raises(AdminInDoubtError, match="cannot be deleted now"):
            await driver.forget()
        metadata.refusals = (0.0, "", "")
        await driver.forget()
        assert not attempts(shares) & {each.attempt for each in stage.audit.ledgers.values()}

    tell(story)


def test_a_topic_that_was_made_anew_blocks_the_batch() -> None:
    async def story(stage: Stage) -> None:
        stage.audit.may_block = True
        driver = Driver(stage, 1)
        shares = await driver.stage(0)
        stop_marks(stage)
        await driver.commit(0, shares)
        running = stage.cluster.broker("broker-1")
        assert running is not None
        operations, name = running.operations, TopicName.parse(TOPIC)
        await operations.delete_partitioned(name, force=True)
        await operations.create_partitioned(name, PARTITIONS)
        stage.audit.topics_are_new()
        stage.cluster.metadata.gate = None
        with pytest.raises(NotAppliedError, match="deleted"):
            await driver.roll_forward()
        sinks = running.sinks
        await stage.cluster.call("broker-1", lambda: sinks.abandon_batch(SINK))
        assert await driver.roll_forward() == "APPLIED"
        assert await stage.read() == {partition(index): [] for index in range(PARTITIONS)}
        await driver.write(1)

    tell(story, tails=False)
