"""Senseless positions and names get a clear answer, and do no harm."""

import random

import pytest

from daybook.managed_ledger.errors import InvalidNameError
from daybook.managed_ledger.position import EARLIEST, LATEST, Position
from tests.managed_ledger.world import (
    CONFIG,
    NAME,
    World,
    append,
    play,
    read_all,
)

HUGE = (2**26, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**70)
IMPOSSIBLE = ["", ".", "..", "x" * 5000, "\ud800", "%" * 2000]
POSSIBLE = ["a/b", "a b", "ü€😀", "...", ".a", "a\0b", "~", "*", "%2F", "a%2Fb", "/", "//", "+"]


@pytest.mark.parametrize("entry_id", [-1, -2, -7, -(2**31), -(2**63), *HUGE])
def test_a_cursor_that_is_set_to_an_entry_that_cannot_be(entry_id: int) -> None:
    """No entry behind the position is skipped, neither now nor after a recovery."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(12))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            ledger_id = positions[6].ledger_id
            target = Position(ledger_id, entry_id)
            expected = [p <= target for p in positions]
            await cursor.reset(positions[-1])
            await cursor.reset(target)  # a change record
            assert [cursor.is_acked(p) for p in positions] == expected
            assert cursor.backlog_entries == expected.count(False)
            fresh = await log.open_cursor("t", initial=target)
            volatile = log.new_volatile_cursor("v", target)
            assert fresh.mark_delete == volatile.mark_delete == cursor.mark_delete
            log.abandon()
            log = await host.open()
            for cursor in log.cursors.values():
                assert [cursor.is_acked(p) for p in positions] == expected
                assert cursor.backlog_entries == expected.count(False)
                cursor.ack([p for p, done in zip(positions, expected, strict=True) if not done])
                assert cursor.mark_delete == positions[-1]
                assert cursor.acked_above == 0

    play(scenario)


def test_acks_drawn_at_random_never_reach_what_was_not_named() -> None:
    """Memory stays bounded, since a position without an entry is not kept."""

    async def scenario(world: World) -> None:
        rng = random.Random(5)
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(17))
            single = await log.open_cursor("single", initial=EARLIEST)
            cumulative = await log.open_cursor("cumulative", initial=EARLIEST)
            acked: set[Position] = set()
            upto = EARLIEST
            for _ in range(400):
                position = Position(
                    rng.choice([-(2**63), -1, *range(6), 2**40, *HUGE]),
                    rng.choice([-(2**63), -2, -1, *range(7), 10**6, *HUGE]),
                )
                single.ack([position])
                acked.add(position)
                if position <= positions[8]:
                    cumulative.ack_cumulative(position)
                    upto = max(upto, position)
            assert [single.is_acked(p) for p in positions] == [p in acked for p in positions]
            assert [cumulative.is_acked(p) for p in positions] == [p <= upto for p in positions]
            assert single.acked_above <= len(positions)
            await single.flush()
            await cumulative.flush()
            later = await append(log, range(17, 30))
            assert not any(single.is_acked(p) or cumulative.is_acked(p) for p in later)
            log.abandon()
            log = await host.open()
            every = [*positions, *later]
            found = log.cursors["single"]
            assert [found.is_acked(p) for p in every] == [p in acked for p in positions] + 13 * [
                False
            ]

    play(scenario)


@pytest.mark.parametrize("start", [EARLIEST, LATEST, Position(-5, 3), Position(2**63, -1)])
@pytest.mark.parametrize("entry_id", [None, -9, 2**62])
def test_reading_from_anywhere(start: Position, entry_id: int | None) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(12))
            at = start if entry_id is None else Position(positions[4].ledger_id, entry_id)
            expected = [number for number, p in enumerate(positions) if p >= at]
            assert await read_all(log, at) == expected
            assert log.entries_between(at, log.last_confirmed) <= len(positions)

    play(scenario)


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_names_that_cannot_be_stored_are_refused(name: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            with pytest.raises(InvalidNameError, match="cannot be named"):
                await log.open_cursor(name, initial=EARLIEST)
            await log.delete_cursor(name)  # There is none.
            if "%" in name:
                return  # Too long when it is encoded; names of logs are already.
            for whole in (f"t/n/persistent/{name}", f"{name}/n/persistent/a"):
                with pytest.raises(InvalidNameError, match="cannot be named"):
                    await host.logs.open(whole, CONFIG)
                with pytest.raises(InvalidNameError, match="cannot be named"):
                    await host.logs.exists(whole)
            await append(log, range(7))
            assert log.fenced is None

    play(scenario)


def test_all_other_names_come_back_as_they_were() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(len(POSSIBLE) + 1))
            for name, position in zip(POSSIBLE, positions, strict=False):
                cursor = await log.open_cursor(name, initial=EARLIEST)
                cursor.ack_cumulative(position)
                await cursor.flush()
            for end in ("abandon", "close"):
                log.abandon() if end == "abandon" else await log.close()
                log = await host.open()
                assert {n: c.mark_delete for n, c in log.cursors.items()} == dict(
                    zip(POSSIBLE, positions, strict=False)
                )
            for name in POSSIBLE:
                await log.delete_cursor(name)
            assert await host.store.get_children(f"/managed-ledgers/{NAME}") == []

    play(scenario)


def test_a_very_long_name_is_a_name() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(2))
            name = "ü" * 600
            cursor = await log.open_cursor(name, initial=EARLIEST)
            cursor.ack_cumulative(log.last_confirmed)
            await cursor.flush()
            log.abandon()
            assert (await host.open()).cursors[name].backlog_entries == 0

    play(scenario)
