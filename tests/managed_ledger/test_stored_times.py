"""Expiry by age passes nothing that is young, whatever clocks say; and positions by size."""

import random

import pytest

from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.stored_times import (
    first_stored_since,
    position_with_behind,
    stored_ms,
)
from daybook.wire.batch import parse_metadata, split_broker_metadata
from tests.harness.clocks import EPOCH_MS, VirtualClock
from tests.managed_ledger.test_offsets import pulsar_log
from tests.managed_ledger.world import Host, World, append, play


async def times_of(log: ManagedLedger) -> list[tuple[Position, int]]:
    """Return all positions, with the times that count."""
    found: list[tuple[Position, int]] = []
    at = log.next_position(log.before_first)
    while entries := await log.read(at, max_entries=100, max_bytes=1 << 20):
        for entry in entries:
            dated_ms, _, payload = split_broker_metadata(entry.data)
            time_ms = parse_metadata(payload)[0].publish_time if dated_ms is None else dated_ms
            found.append((entry.position, time_ms))
        at = log.next_position(entries[-1].position)
    return found


async def check(log: ManagedLedger) -> None:
    """Compare with a full scan, from each entry and for each time."""
    times = await times_of(log)
    end = log.next_position(log.last_confirmed)
    for index, (start, _) in enumerate(times):
        for since_ms in sorted({t + d for _, t in times for d in (0, 1)}):
            wanted = next((p for p, t in times[index:] if t >= since_ms), end)
            assert await first_stored_since(log, start, since_ms) == wanted, (start, since_ms)


async def opened_at(host: Host, offset_ms: int) -> tuple[ManagedLedger, VirtualClock]:
    """Open the log on a host whose clock is wrong."""
    log = await host.open()
    clock = log.context.clock
    assert isinstance(clock, VirtualClock)
    clock.offset_ms = offset_ms
    return log, clock


@pytest.mark.parametrize("seed", range(6))
def test_the_first_young_entry_is_found_whatever_the_clocks_of_brokers_say(seed: int) -> None:
    chance = random.Random(seed)

    async def scenario(world: World) -> None:
        number = 0
        for host_name in ("a", "b", "c"):
            async with world.host(host_name) as host:
                log, clock = await opened_at(host, chance.choice((0, -50_000, 90_000)))
                for _ in range(chance.randrange(1, 4)):
                    count = chance.randrange(1, 4)
                    await append(log, range(number, number + count))
                    number += count
                    clock.offset_ms += chance.choice((0, 40, -3_000))
                if host_name == "c":
                    await check(log)
                await log.close()

    play(scenario)


def test_times_in_a_ledger_never_fall() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log, clock = await opened_at(host, 0)
            await append(log, range(2))
            clock.offset_ms = -3_600_000
            await append(log, range(2, 4))
            times = [t for _, t in await times_of(log)]
            assert times == sorted(times)
            assert times[0] >= EPOCH_MS

    play(scenario)


def test_entries_without_a_brokers_time_have_that_of_their_producer() -> None:
    async def scenario(world: World) -> None:
        await pulsar_log(world, [[1, 1, 5], [2], [3, 3, 3]])
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(50, 53))
            await check(log)
            assert await stored_ms(log, log.next_position(log.before_first)) == 0

    play(scenario)


def test_an_empty_log_has_no_times() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            begin = Position(log.current_ledger_id, 0)
            assert await first_stored_since(log, begin, 5) == begin
            assert await stored_ms(log, begin) is None

    play(scenario)


def test_the_first_position_with_so_many_bytes_behind_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(23))
            positions = [log.before_first, *(p for p, _ in await times_of(log))]
            total = log.behind(log.before_first).bytes
            for size in range(-1, total + 3, 7):
                for start in positions[::4]:
                    fits = (p for p in positions if p >= start and log.behind(p).bytes <= size)
                    wanted = next(fits, log.last_confirmed)
                    found = position_with_behind(log, start, size)
                    if size >= 0:
                        assert log.behind(found).bytes <= size
                    assert log.behind(found).entries == log.behind(wanted).entries
                    assert found >= start

    play(scenario)
