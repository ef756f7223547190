"""Single faults at the places where a batch could be lost or be there twice."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import pytest
import trio

from daybook.broker.errors import BrokerError, ConflictError
from daybook.broker.namespaces.policy_table import DEDUPLICATION, RETENTION
from daybook.broker.namespaces.policy_types import Retention
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.protocol.sink import SinkRecord
from daybook.managed_ledger.sinks.batch import Demand
from daybook.managed_ledger.sinks.progress import progress_of
from daybook.managed_ledger.sinks.record import decode_record, record_path
from daybook.wire.metadata.store import Operation, OutcomeUnknownError, Record
from daybook.wire.topics import TopicName
from tests.broker.sinks.world import SINK, TOPIC, World, partition, simulated

ROWS = [(0, f"a{i}") for i in range(30)]
TEXTS = [text for _, text in ROWS]


# -- the commit


def lose_answer(world: World, *, carried_out: bool) -> list[int]:
    """Lose the answer of the next transaction; return a list that grows with each transaction."""
    store = world.sinks.sinks.store
    real: Callable[[Sequence[Operation]], Awaitable[list[int]]] = store.multi
    calls: list[int] = []

    async def multi(operations: Sequence[Operation]) -> list[int]:
        if not any(each.path == record_path(SINK) for each in operations):
            return await real(operations)
        calls.append(len(operations))
        if len(calls) > 1:
            return await real(operations)
        if carried_out:
            await real(operations)
        raise OutcomeUnknownError("the answer was lost")

    store.multi = multi  # type: ignore[method-assign]
    return calls


def test_a_commit_whose_answer_was_lost_is_recognized() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        calls = lose_answer(world, carried_out=True)
        assert (await world.commit(0, shares)).outcome == "committed"
        assert len(calls) == 1
        assert (await world.roll_forward()).state == "APPLIED"
        assert await world.read(0) == TEXTS

    simulated(story)


def test_a_commit_that_was_not_carried_out_is_repeated() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        calls = lose_answer(world, carried_out=False)
        assert (await world.commit(0, shares)).outcome == "committed"
        assert len(calls) == 2
        assert (await world.roll_forward()).state == "APPLIED"
        assert await world.read(0) == TEXTS
        assert await world.ledgers_of_sinks() == set()

    simulated(story)


def before_the_commit(world: World, act: Callable[[], Awaitable[object]]) -> None:
    """Run `act` once when the staging was looked at, before the transaction."""
    sinks = world.sinks
    real = sinks._admit

    async def admit(demands: Mapping[str, Demand]) -> dict[str, int]:
        sinks._admit = real  # type: ignore[method-assign]
        await act()
        return await real(demands)

    sinks._admit = admit  # type: ignore[method-assign]


def test_staging_that_is_aborted_during_the_commit_is_not_committed() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        other = world.sinks_of("broker-2")
        body = world.batch(0, shares)

        async def abort() -> None:
            await world.cluster.call("broker-2", lambda: other.abort(SINK, body))

        before_the_commit(world, abort)
        with pytest.raises(ConflictError, match="gone"):
            await world.commit(0, shares)
        assert await world.read(0) == []
        assert await world.ledgers_of_sinks() == set()

    simulated(story)


def test_staging_that_an_operator_deletes_during_the_commit_is_not_committed() -> None:
    async def story(world: World) -> None:
        (share,) = await world.stage_all(0, [ROWS])
        assert share is not None
        client = world.sinks.sinks.ledgers.client
        before_the_commit(world, lambda: client.delete(share.ledger_id))
        with pytest.raises(ConflictError, match="gone"):
            await world.commit(0, [share])
        assert (await world.stage(0, ROWS)).rows == len(ROWS)

    simulated(story)


def test_two_brokers_commit_the_same_batch() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        other, body = world.sinks_of("broker-2"), world.batch(0, shares)

        async def commit() -> None:
            await world.cluster.call("broker-2", lambda: other.commit(SINK, body))

        before_the_commit(world, commit)
        assert (await world.commit(0, shares)).outcome in ("committed", "done")
        assert (await world.roll_forward()).state == "APPLIED"
        assert await world.read(0) == TEXTS
        assert await world.ledgers_of_sinks() == set()

    simulated(story)


# -- staging that nobody commits


def test_staging_is_deleted_only_while_its_attempt_is_abandoned() -> None:
    async def story(world: World) -> None:
        (share,) = await world.stage_all(0, [ROWS])
        assert share is not None
        records: list[SinkRecord] = []
        abandoned: list[bool] = []
        path = world.sinks.sinks.ledgers.path(share.ledger_id)

        def observe(_writer: str, changed: str, record: Record | None) -> None:
            if changed == record_path(SINK) and record is not None:
                records.append(decode_record(record.value, SINK))
            elif changed == path and record is None:
                abandoned.append(share.attempt in records[-1].abandoned if records else False)

        world.cluster.metadata.tree.observer = observe
        await world.call(lambda sinks: sinks.abort(SINK, world.batch(0, [share])))
        assert abandoned == [True]
        assert records[-1].abandoned == frozenset()

    simulated(story)


def test_litter_is_removed_when_the_record_is_past_it() -> None:
    async def story(world: World) -> None:
        await world.stage(0, ROWS)  # The task was repeated.
        later = await world.stage(1, [(0, "b")])
        await world.write(0, [ROWS])
        with trio.fail_after(60):
            while await world.ledgers_of_sinks() != {later.ledger_id}:  # noqa: ASYNC110
                await trio.sleep(1.0)  # the search for orphans comes every 3 s
        assert (await world.commit(1, [later])).outcome == "committed"
        assert (await world.roll_forward()).state == "APPLIED"
        assert await world.read(0) == [*TEXTS, "b"]

    simulated(story)


# -- the owner


@pytest.mark.parametrize("appended", [1, 7, 29])
def test_the_owner_is_killed_while_it_applies(appended: int) -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        owner = await world.owner(partition(0))
        await world.commit(0, shares)
        async with trio.open_nursery() as nursery:
            world.here = "broker-2" if owner == "broker-1" else "broker-1"
            await world.after_appends(partition(0), appended)
            world.cluster.kill(owner)
            nursery.cancel_scope.cancel()
        while (view := await world.roll_forward()).state != "APPLIED":
            assert view.state == "COMMITTED"
        assert await world.read(0) == TEXTS

    simulated(story)


def test_a_frozen_owner_adds_nothing_when_it_wakes() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        owner = await world.owner(partition(0))
        await world.commit(0, shares)
        world.here = "broker-2" if owner == "broker-1" else "broker-1"
        await world.after_appends(partition(0), 5)
        life = world.cluster.freeze(owner)
        while (await world.roll_forward()).state != "APPLIED":
            pass
        world.cluster.thaw(life)
        await trio.sleep(30)
        assert await world.read(0) == TEXTS

    simulated(story)


def test_nobody_has_to_ask_for_a_committed_batch() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        await world.commit(0, shares)
        with trio.fail_after(60):
            while (await world.sinks.show(SINK)).state != "APPLIED":  # noqa: ASYNC110
                await trio.sleep(1.0)
        assert await world.read(0) == TEXTS

    simulated(story)


def test_staging_that_cannot_be_read_is_waited_for() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, [ROWS])
        await world.read(0)
        world.cluster.kill("bookie-1")
        world.cluster.kill("bookie-2")
        body = world.batch(0, shares)
        sinks = world.sinks
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.cluster.call, "broker-1", lambda: _tried(sinks.commit, body))
            await trio.sleep(600)
            nursery.cancel_scope.cancel()
        await world.cluster.revive("bookie-1")
        await world.cluster.revive("bookie-2")
        assert (await world.commit(0, shares)).outcome in ("committed", "done")
        while (await world.roll_forward()).state != "APPLIED":
            pass
        assert await world.read(0) == TEXTS

    async def _tried(act: Callable[..., Awaitable[object]], body: object) -> None:
        with suppress(BrokerError):  # The answer does not matter here.
            await act(SINK, body)

    simulated(story)


def test_a_topic_with_deduplication_and_messages_of_others() -> None:
    async def story(world: World) -> None:
        broker = world.cluster.broker("broker-1")
        assert broker is not None
        topic = TopicName.parse(TOPIC)
        await broker.operations.set_topic_policy(topic, DEDUPLICATION, True)
        async with world.client() as client, await client.create_producer(partition(0)) as producer:
            for number in range(5):
                await producer.send(b"x%d" % number)
            await world.write(0, [ROWS])
            await producer.send(b"x5")
            await world.write(1, [[(0, "b")]])
        assert await world.read(0) == ["x0", "x1", "x2", "x3", "x4", *TEXTS, "x5", "b"]

    simulated(story)


# -- trimming


def test_a_log_is_not_trimmed_while_a_sink_applies_and_is_trimmed_after_it() -> None:
    async def story(world: World) -> None:
        broker = world.cluster.broker("broker-1")
        assert broker is not None
        namespace = TopicName.parse(TOPIC)
        await broker.operations.set_topic_policy(namespace, RETENTION, Retention(0, 0))
        shares = await world.stage_all(0, [ROWS])
        owner = await world.owner(partition(0))
        await world.commit(0, shares)
        running = world.cluster.broker(owner)
        assert running is not None
        log = running.topics.loaded[partition(0)].log
        assert isinstance(log, ManagedLedger)
        await world.after_appends(partition(0), 1)
        (progress,) = progress_of(log.properties).values()
        assert progress.applying

        async def roll() -> list[int]:
            log.roll()
            while log.current_entries:
                await log.wait_changed()
            return await log.truncate() or []

        held = await world.cluster.call(owner, roll) if progress_of(log.properties) else []
        applying = any(each.applying for each in progress_of(log.properties).values())
        assert not (held and applying)
        assert (await world.roll_forward()).state == "APPLIED"
        assert not any(each.applying for each in progress_of(log.properties).values())
        await world.write(1, [[(0, "b")]])
        assert [each.sequence for each in progress_of(log.properties).values()] == [len(ROWS)]

    simulated(story)
