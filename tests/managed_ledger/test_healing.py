"""Rollovers that restore a missing copy: soon when they help, seldom when they do not."""

import itertools
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.protocol.healing import Healing
from tests.managed_ledger.world import CONFIG, World, append, play, read_all, until

HOUR = 3600.0
HEALING = replace(CONFIG, roll_entries=10_000, heal_interval_s=60.0)


def rolls(healing: Healing, until_s: float, interval_s: float = 60.0) -> list[float]:
    """Return the times of rollovers, checked each second, if no ledger is ever whole."""
    found: list[float] = []
    now_s = 0.0
    while now_s < until_s:
        if healing.due(now_s, interval_s, replaceable=True):
            found.append(now_s)
        now_s += 1.0
    return found


def test_a_bookie_that_never_takes_anything_does_not_fill_the_list() -> None:
    times = rolls(Healing(0.0), 24 * HOUR)
    assert times[:7] == [0, 60, 180, 420, 900, 1860, 3780]
    assert all(b - a <= 64 * 60 for a, b in itertools.pairwise(times))
    assert len(times) < 30  # once a minute would be 1440


def test_many_logs_do_not_roll_in_one_moment() -> None:
    first = [rolls(Healing(chance / 10), 20)[0] for chance in range(10)]
    assert first == sorted(set(first))
    assert first[-1] <= 15


def test_a_ledger_that_stays_whole_ends_the_rest() -> None:
    healing = Healing(0.0)
    assert rolls(healing, 100) == [0, 60]
    healing.whole(150.0)  # not yet: the rest lasts until 180
    assert healing.rolls == 2
    assert not healing.due(179.0, 60.0, replaceable=True)
    healing.whole(180.0)
    assert healing.rolls == 0
    assert healing.due(181.0, 60.0, replaceable=True)
    assert healing.due(241.0, 60.0, replaceable=True)


def test_with_nobody_to_take_the_copy_nothing_happens() -> None:
    healing = Healing(1.0)
    for second in range(1000):
        assert not healing.due(float(second), 60.0, replaceable=False)
    assert not healing.due(1000.0, 60.0, replaceable=True)  # seen for the first time
    assert healing.due(1015.0, 60.0, replaceable=True)


@given(
    st.floats(0, 1),
    st.lists(st.tuples(st.floats(0, 200), st.sampled_from(["whole", "away", "back"]))),
)
def test_two_rolls_are_never_nearer_than_the_interval(
    chance: float, steps: list[tuple[float, str]]
) -> None:
    healing = Healing(chance)
    now_s, last_s = 0.0, float("-inf")
    for pause_s, what in steps:
        now_s += pause_s
        copy = Healing(chance)
        copy.restore(healing.snapshot())
        assert copy.canonical() == healing.canonical()
        if what == "whole":
            healing.whole(now_s)
        elif healing.due(now_s, 60.0, replaceable=what == "back"):
            assert what == "back"
            assert now_s - last_s >= 60.0
            last_s = now_s


@pytest.mark.parametrize("entries", [0, 1])
def test_a_bookie_that_looks_usable_and_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """A bookie whose disk fails does that again and again, so every new ledger lacks copies."""
    monkeypatch.setattr(LedgerWriter, "replaceable", True)

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(HEALING, heal_interval_s=1.0))
            number = 0
            world.network.block("a", "bookie-2")
            created: set[int] = set()
            for _ in range(60):
                if entries or not number:
                    await append(log, range(number, number + 1))
                    number += 1
                log.check_roll()
                await trio.sleep(1)
                created.update(await world.ledgers(host))
            assert log.fenced is None
            assert 1 < len(created) <= 7
            assert await read_all(log) == list(range(number))

    play(scenario)


def test_a_ledger_is_healed_when_the_bookie_is_back_and_then_left_alone() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(HEALING, heal_interval_s=1.0))
            await append(log, range(3))
            world.kill("bookie-2")
            await append(log, range(3, 6))
            degraded = log.current_ledger_id
            await trio.sleep(2)
            log.check_roll()
            assert log.current_ledger_id == degraded
            await world.start("bookie-2")

            async def look() -> None:
                while True:
                    log.check_roll()
                    await trio.sleep(0.2)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(look)
                await until(lambda: log.current_ledger_id != degraded)
                healed = log.current_ledger_id
                await trio.sleep(20)
                assert log.current_ledger_id == healed
                nursery.cancel_scope.cancel()
            assert await read_all(log) == list(range(6))

    play(scenario)
