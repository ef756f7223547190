"""Trimming drops the ledgers that are not needed, and no others.  Orphans are removed."""

from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.trim import Retention
from daybook.managed_ledger.records import custom_metadata
from tests.managed_ledger.world import BOOKIES, CONFIG, NOW, TREE, World, append, play, read_all

CONFIG_NOW = replace(CONFIG, retention=NOW)


def test_acknowledged_ledgers_go_when_the_acks_are_durable() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG_NOW, flush_s=1000.0))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(23))
            before = await world.ids_of(host)
            cursor.ack(positions[:13])
            assert await log.trim() == []  # only in memory
            await cursor.flush()
            gone = await log.trim()
            left = [i for i in before if i not in gone]
            assert gone == before[: len(gone)]
            assert gone == sorted({p.ledger_id for p in positions[:13]})[: len(gone)]
            assert positions[13].ledger_id == left[0] or positions[12].ledger_id == left[0]
            assert await world.ids_of(host) == left
            assert not set(gone) & set(await world.ledgers(host))
            assert cursor.backlog_entries == 10
            numbers = await read_all(log, cursor.read_start)
            assert numbers == list(range(13, 23))
            log.abandon()
            log = await host.open(CONFIG_NOW)
            assert await read_all(log, log.cursors["s"].read_start) == list(range(13, 23))

    play(scenario)


def test_retention_keeps_what_is_acknowledged() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=Retention(time_ms=100_000)))
            await append(log, range(12))
            await trio.sleep(60)
            assert await log.trim() == []
            await trio.sleep(60)
            gone = await log.trim()
            assert len(gone) >= 2
            assert await read_all(log) == list(range(12 - log.current_entries, 12))

    play(scenario)


def test_rolling_trims_by_itself() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(CONFIG_NOW)
            await append(log, range(60))
            await trio.sleep(1)
            assert len(await world.ids_of(host)) <= 3

    play(scenario)


def test_a_cursor_that_is_set_back_holds_what_lies_there_at_once() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=Retention(time_ms=5_000)))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(12))
            cursor.ack_cumulative(positions[-1])
            await cursor.flush()
            await trio.sleep(60)
            for name in BOOKIES:
                world.network.block("a", name)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cursor.reset, EARLIEST)
                await trio.sleep(0.01)
                assert await log.trim() == []
                assert cursor.stored_mark_delete == positions[-1]
                for name in BOOKIES:
                    world.network.unblock("a", name)
                world.network.cut("a")
            assert cursor.backlog_entries == 12

    play(scenario)


def test_positions_that_were_trimmed_lead_to_what_is_left() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(CONFIG_NOW)
            positions = await append(log, range(12))
            volatile = log.new_volatile_cursor("r", EARLIEST)
            await log.trim()
            left = await read_all(log)
            assert await read_all(log, positions[0]) == left
            assert volatile.backlog_entries == len(left)
            assert log.entries_between(EARLIEST, log.last_confirmed) == len(left)
            cursor = await log.open_cursor("s", initial=positions[0])
            assert cursor.mark_delete == log.before_first
            cursor.ack([positions[1]])
            cursor.ack_cumulative(positions[1])
            assert cursor.backlog_entries == len(left)

    play(scenario)


def test_what_cannot_be_deleted_now_is_an_orphan_later() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(CONFIG_NOW)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(12))
            cursor.ack(positions[:2])
            await cursor.flush()
            kept = cursor.ledger_id
            ours = await host.client.create(
                CONFIG.quorums, custom=custom_metadata(log.name, tree=TREE)
            )
            cursors = await host.client.create(
                CONFIG.quorums, custom=custom_metadata(log.name, "x", TREE)
            )
            other = await host.client.create(
                CONFIG.quorums, custom=custom_metadata("t/n/other", tree=TREE)
            )
            schema = await host.client.create(
                CONFIG.quorums,
                custom={**custom_metadata(log.name, tree=TREE), "component": b"schema"},
            )
            bare = await host.client.create(CONFIG.quorums)
            log.abandon()
            assert list(await host.logs.remove_orphans()) == []  # Nobody knows what is named.
            log = await host.open(CONFIG_NOW)
            younger = await host.client.create(
                CONFIG.quorums, custom=custom_metadata(log.name, tree=TREE)
            )
            await host.open(name="t/n/persistent/b")  # younger still
            removed = await host.logs.remove_orphans()
            assert list(removed) == [ours.ledger_id, cursors.ledger_id, younger.ledger_id]
            left = await world.ledgers(host)
            for writer in (other, schema, bare):
                assert writer.ledger_id in left
            assert kept in left
            assert set(await world.ids_of(host)) <= set(left)
            assert await read_all(log) == list(range(12))

    play(scenario)


def test_a_stale_owner_removes_nothing() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            await one.open(CONFIG_NOW)
            lost = await one.client.create(
                CONFIG.quorums, custom=custom_metadata("t/n/persistent/a", tree=TREE)
            )
            old = await one.open(CONFIG_NOW)
            await two.open(CONFIG_NOW)
            assert old.usable
            assert list(await one.logs.remove_orphans()) == []
            assert lost.ledger_id in await world.ledgers(two)
            with pytest.raises(FencedError):
                await old.ledgers.guarded([])

    play(scenario)


def test_trimming_when_the_log_is_somebody_elses() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open(replace(CONFIG, retention=Retention(time_ms=5_000)))
            await append(old, range(12))
            await trio.sleep(60)
            new = await two.open()
            with pytest.raises(FencedError):
                await old.trim()
            assert old.fenced is not None
            assert await read_all(new) == list(range(12))
            assert new.before_first == Position(new.ledgers.ids[0], -1)

    play(scenario)


def test_deletions_that_fail_after_the_list_was_written_leave_orphans_and_no_harm() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=Retention(time_ms=5_000)))
            positions = await append(log, range(14))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack(positions[:12])
            await cursor.flush()
            await trio.sleep(60)
            before = await world.ids_of(host)
            held = [host.link.hold_next("delete", "/ledgers") for _ in range(2)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.trim)
                for each in held:
                    await each.caught.wait()
                host.store.suspend()
                await trio.sleep(60)
            host.store.resume()
            after = await world.ids_of(host)
            assert list(log.ledgers.ids) == after == before[2:]
            assert set(before[:2]) <= set(await world.ledgers(host))
            assert await log.trim() == []
            assert await read_all(log) == [12, 13]
            await append(log, range(14, 17))
            log.abandon()
            log = await host.open(replace(CONFIG, retention=Retention(time_ms=None)))
            assert await read_all(log) == [12, 13, 14, 15, 16]
            removed = await host.logs.remove_orphans()
            assert set(removed) >= set(before[:2])
            assert not set(before[:2]) & set(await world.ledgers(host))
            assert await read_all(log) == [12, 13, 14, 15, 16]

    play(scenario)


@pytest.mark.parametrize("who", ["reset", "new"])
@pytest.mark.parametrize("first", ["trim", "cursor", "another write"])
def test_a_cursor_that_comes_to_what_is_being_trimmed(who: str, first: str) -> None:
    """The cursor holds the ledger or starts behind it; it never stands in a dropped ledger."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=Retention(time_ms=5_000)))
            positions = await append(log, range(14))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack_cumulative(positions[12])
            await cursor.flush()
            await trio.sleep(60)

            async def come() -> None:
                if who == "reset":
                    await cursor.reset(EARLIEST)
                else:
                    await log.open_cursor("new", initial=EARLIEST)

            operation = "multi" if first == "cursor" and who == "new" else "set"
            held = host.link.hold_next(operation, "/managed-ledgers")
            async with trio.open_nursery() as nursery:
                if first == "another write":  # They wait for it in the order in which they come.
                    nursery.start_soon(log.set_property, "a", "b")
                    await trio.sleep(1)
                for task in (come, log.trim) if first == "cursor" else (log.trim, come):
                    nursery.start_soon(task)
                    await trio.sleep(1)
                if held.caught.is_set():
                    held.let_go()
                else:
                    host.link.hold_no_more()
            kept = await read_all(log)
            name = "s" if who == "reset" else "new"
            assert log.cursors[name].backlog_entries == len(kept)
            assert kept == ([12, 13] if first == "trim" else list(range(14)))
            assert log.cursors[name].stored_mark_delete >= log.before_first
            log.abandon()
            log = await host.open()
            found = log.cursors[name]
            assert found.mark_delete >= log.before_first
            assert await read_all(log, found.read_start) == kept

    play(scenario)


def test_two_who_trim_at_once_write_the_list_once() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=Retention(time_ms=5_000)))
            await append(log, range(14))
            await trio.sleep(60)
            before = log.ledgers.version
            gone: list[int] = []

            async def trim() -> None:
                gone.extend(await log.trim())

            host.link.delay_s = 0.1
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(trim)
            assert len(gone) == len(set(gone)) == 2
            assert log.ledgers.version == before + 1

    play(scenario)
