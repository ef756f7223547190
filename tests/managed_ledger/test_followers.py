"""The server that answers a host's reads may be behind: no decision depends on it alone.

A host sees an old state until it asks the server to sync, or writes something.
"""

from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.errors import NoSuchLogError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST
from daybook.managed_ledger.records import log_path
from tests.managed_ledger.world import (
    CONFIG,
    NAME,
    NOW,
    World,
    append,
    play,
    read_all,
    send,
    settle,
)


def test_a_list_that_is_old_is_not_taken_over() -> None:
    """An old list names ledgers that are gone, so the log would look damaged."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open(replace(CONFIG, retention=NOW))
            await append(old, range(3))
            world.fall_behind(two)
            await append(old, range(3, 12))  # rolls, and trims
            cursor = await old.open_cursor("s", initial=EARLIEST)
            positions = await append(old, range(12, 17))
            cursor.ack(positions[:2])
            await cursor.flush()
            assert two.link.stale is not None
            new = await two.open()
            assert await read_all(new, positions[0]) == list(range(12, 17))
            assert new.cursors["s"].is_acked(positions[1])

    play(scenario)


def test_a_log_that_an_old_answer_does_not_know_is_not_made_anew() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            world.fall_behind(two)
            log = await one.open()
            await append(log, range(3))
            world.fall_behind(one)
            assert await two.logs.exists(NAME)
            assert await read_all(await two.open(create=False)) == [0, 1, 2]

    play(scenario)


def test_a_ledger_that_an_old_answer_does_not_know_is_there() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            world.fall_behind(two)
            await append(await one.open(), range(3))
            (ledger_id,) = await world.ids_of(one)
            assert two.link.stale is not None
            reader = await two.client.open(ledger_id, recover=True)
            assert reader.last_add_confirmed == 2

    play(scenario)


def test_a_log_that_was_deleted_is_not_opened_from_an_old_answer() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await one.open()
            await append(log, range(3))
            world.fall_behind(two)
            await one.logs.delete(log)
            with pytest.raises(NoSuchLogError):
                await two.open(create=False)
            assert not await two.logs.exists(NAME)
            assert await read_all(await two.open()) == []

    play(scenario)


@pytest.mark.parametrize("what", ["list", "cursors"])
def test_another_session_in_the_middle_of_opening(what: str) -> None:
    """The new session is with a server that is behind; the old session's sync does not count."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open(replace(CONFIG, retention=NOW))
            await append(old, range(3))
            before = two.store.session_id
            world.fall_behind(two)
            behind = two.link.stale
            cursor = await old.open_cursor("s", initial=EARLIEST)
            positions = await append(old, range(3, 12))
            cursor.ack_cumulative(positions[3])
            await cursor.flush()
            await append(old, range(12, 14))
            held = two.link.hold_next("get" if what == "list" else "get_children", "/managed")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(two.open)
                await held.caught.wait()
                two.link.stale = behind
                held.let_go()  # The answer is old, and comes when the session is another one.
                world.metadata.expire(two.store.store_session_id)
            assert two.store.session_id != before
            (log,) = two.logs._open_logs.values()
            assert log.usable
            assert log.cursors["s"].is_acked(positions[3])
            assert await read_all(log, log.cursors["s"].read_start) == list(range(7, 14))

    play(scenario)


def test_reading_a_ledger_whose_closing_the_server_has_not_seen() -> None:
    """The metadata have an old end of the ledger; its last entries are confirmed and are read."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, roll_entries=50))
            sent = await settle(send(log, range(9)))
            world.fall_behind(host)
            behind = host.link.stale
            log.roll()
            await trio.sleep(5)
            assert log.current_ledger_id != sent.positions[0].ledger_id
            host.link.stale = behind
            host.logs.cache.bytes_max = 0
            assert await read_all(log) == list(range(9))

    play(scenario)


def test_the_cursors_are_read_in_the_session_that_has_written_the_list_or_behind_a_sync() -> None:
    """The server of the next session may not have what the session before it has seen."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            positions = await append(old, range(3))
            world.fall_behind(two)
            stale, two.link.stale = two.link.stale, None
            cursor = await old.open_cursor("s", initial=EARLIEST)
            cursor.ack(positions)
            await cursor.flush()
            held = two.link.hold_next("get_children", log_path(NAME))
            opened: list[ManagedLedger] = []

            async def take_over() -> None:
                opened.append(await two.open())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_over)
                await held.caught.wait()
                two.link.stale = stale
                world.metadata.expire(two.store.store_session_id)
            assert opened[0].cursors["s"].is_acked(positions[2])

    play(scenario)
