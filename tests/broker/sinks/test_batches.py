"""Batches of sinks are in the topics once and whole, through any broker and any loss of a host."""

import pytest

from daybook.bookie.ledger.client import LedgerReader
from daybook.broker.errors import ConflictError
from daybook.managed_ledger.sinks.ledgers import SinkLedgers
from tests.broker.sinks.world import World, simulated

BATCH = [[(0, "a0"), (1, "b0"), (0, "a1")], [], [(1, "b1"), (0, "a2")]]


def test_a_batch_is_applied_in_the_order_of_its_tasks() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, BATCH)
        assert await world.read(0) == []
        committed = await world.commit(0, shares)
        assert committed.outcome == "committed"
        view = await world.roll_forward()
        assert (view.state, view.rows) == ("APPLIED", 5)
        assert await world.read(0) == ["a0", "a1", "a2"]
        assert await world.read(1) == ["b0", "b1"]
        assert await world.ledgers_of_sinks() == set()
        await world.write(1, [[(0, "a3")], [(1, "b2")]])
        assert await world.read(0) == ["a0", "a1", "a2", "a3"]
        assert [p.next for p in (await world.roll_forward()).partitions] == [4, 3]

    simulated(story)


def test_an_owner_opens_a_staging_ledger_once_for_all_its_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    open_ = SinkLedgers.open

    async def counted(
        ledgers: SinkLedgers, ledger_id: int, sink: str, attempt: str | None = None
    ) -> LedgerReader:
        if attempt is not None:
            opened.append(ledger_id)
        return await open_(ledgers, ledger_id, sink, attempt)

    async def story(world: World) -> None:
        tasks = [[(number % 2, f"{task}-{number}") for number in range(20)] for task in range(2)]
        shares = await world.stage_all(0, tasks)
        await world.commit(0, shares)
        opened.clear()
        assert (await world.roll_forward()).state == "APPLIED"
        # Two partitions read both ledgers, in ten pieces each.
        ledgers = sorted(share.ledger_id for share in shares if share is not None)
        assert sorted(opened) == sorted(2 * ledgers)
        for index in range(2):
            expected = [text for task in tasks for number, text in task if number == index]
            assert await world.read(index) == expected

    monkeypatch.setattr(SinkLedgers, "open", counted)
    simulated(story)


def test_a_commit_is_known_by_its_shares() -> None:
    async def story(world: World) -> None:
        shares = await world.write(0, BATCH)
        assert (await world.commit(0, shares)).outcome == "done"
        again = await world.stage_all(0, BATCH[::-1])
        replay = await world.commit(0, again)
        assert (replay.outcome, replay.warning) == ("replay", "")
        assert await world.ledgers_of_sinks() == set()
        fewer = await world.stage_all(0, BATCH[:1])
        with pytest.raises(ConflictError, match="does not give the same rows"):
            await world.commit(0, fewer)
        await world.write(1, [[(0, "a3")]])
        late = await world.stage_all(0, BATCH)
        with pytest.raises(ConflictError, match="lower than the batch 1"):
            await world.commit(0, late)
        assert await world.read(0) == ["a0", "a1", "a2", "a3"]

    simulated(story)


def test_another_query_and_a_copied_checkpoint_are_refused() -> None:
    async def story(world: World) -> None:
        await world.write(0, BATCH)
        share = await world.stage(1, [(0, "x")])
        with pytest.raises(ConflictError, match="sinks move"):
            await world.commit(1, [share], checkpoint="/copy")
        other = await world.stage(0, [(0, "x")], query="other")
        with pytest.raises(ConflictError, match="sinks forget"):
            await world.commit(0, [other], query_id="other")
        await world.call(lambda sinks: sinks.forget("orders"))
        done = await world.commit(0, [other], query_id="other")
        assert done.outcome == "committed"
        assert (await world.roll_forward()).state == "APPLIED"
        assert await world.read(0) == ["a0", "a1", "a2", "x"]

    simulated(story)


def test_what_is_aborted_is_deleted_and_cannot_be_committed() -> None:
    async def story(world: World) -> None:
        shares = await world.stage_all(0, BATCH)
        body = world.batch(0, shares)
        await world.call(lambda sinks: sinks.abort("orders", body))
        assert await world.ledgers_of_sinks() == set()
        with pytest.raises(ConflictError, match="gone"):
            await world.commit(0, shares)
        shares = await world.stage_all(0, BATCH)
        await world.commit(0, shares)
        # Spark aborts what it has just committed if the answer was lost.
        answer = await world.call(lambda sinks: sinks.abort("orders", world.batch(0, shares)))
        assert answer == {"abandoned": [], "kept": [s.attempt for s in shares if s is not None]}
        assert (await world.roll_forward()).state == "APPLIED"
        assert await world.read(0) == ["a0", "a1", "a2"]

    simulated(story)
