"""Topics that end, or go, after the commit: the batch is blocked, and an operator decides."""

import pytest

from daybook.broker.errors import PreconditionError
from daybook.wire.topics import TopicName
from tests.broker.sinks.world import PARTITIONS, TOPIC, World, partition, simulated

BATCH = [[(0, "a0"), (1, "b0"), (0, "a1")]]


def states(view: object) -> dict[str, str]:
    return {each.topic: each.state for each in view.partitions}  # type: ignore[attr-defined]


def test_a_terminated_topic_blocks_the_batch_until_it_is_skipped() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, BATCH)
        await world.commit(0, shares)
        operations = world.cluster.broker("broker-1").operations  # type: ignore[union-attr]
        await operations.terminate_partitions(TopicName.parse(TOPIC))
        view = await world.roll_forward()
        assert view.state == "BLOCKED"
        assert set(states(view).values()) == {"blocked"}
        assert await world.ledgers_of_sinks() != set()
        await world.call(lambda sinks: sinks.skip("orders", partition(0)))
        assert (await world.roll_forward(1)).state == "BLOCKED"
        await world.call(lambda sinks: sinks.skip("orders", partition(1)))
        assert (await world.roll_forward()).state == "APPLIED"
        assert await world.read(0) == []
        assert await world.ledgers_of_sinks() == set()

    simulated(story)


def test_a_topic_that_is_written_by_a_sink_is_deleted_only_by_force() -> None:
    async def story(world: World) -> None:
        topic = TopicName.parse(partition(0))
        operations = world.cluster.broker("broker-1").operations  # type: ignore[union-attr]
        await world.write(0, BATCH)
        shares = await world.stage_all(1, BATCH)
        await world.commit(1, shares)
        with pytest.raises(PreconditionError, match="being applied"):
            await operations.delete_partitioned(TopicName.parse(TOPIC), force=False)
        await operations.delete_partitioned(TopicName.parse(TOPIC), force=True)
        view = await world.roll_forward()
        assert view.state == "BLOCKED"
        await operations.create_partitioned(TopicName.parse(TOPIC), PARTITIONS)
        assert await world.read(0) == []  # It is another topic.
        assert topic.partition == 0
        await world.call(lambda sinks: sinks.abandon_batch("orders"))
        assert (await world.roll_forward()).state == "APPLIED"
        await world.write(2, [[(0, "c")]])
        assert await world.read(0) == ["c"]

    simulated(story)


def test_a_topic_that_was_made_anew_before_it_was_applied_takes_nothing() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [[(0, "a")]])
        await world.commit(0, shares)
        operations = world.cluster.broker("broker-1").operations  # type: ignore[union-attr]
        await operations.delete_partitioned(TopicName.parse(TOPIC), force=True)
        await operations.create_partitioned(TopicName.parse(TOPIC), PARTITIONS)
        assert await world.read(0) == []
        view = await world.roll_forward()
        assert (view.state, states(view)[partition(0)]) == ("BLOCKED", "blocked")
        assert await world.read(0) == []

    simulated(story)
