"""A reader that reads on finds the next entries in the cache; others cost nothing."""

import trio
import trio.lowlevel

from daybook.managed_ledger.entry_cache import CACHE_OVERHEAD_BYTES, EntryCache
from daybook.managed_ledger.position import Position
from tests.managed_ledger.world import World, append, number_of, play

MB = 1 << 20


def test_the_second_read_brings_what_the_third_wants() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(5))
            await append(log, range(5, 7))  # in the next ledger
            cache = host.logs.cache
            found = await log.read(positions[0], max_entries=1, max_bytes=MB)
            await trio.sleep(1)
            assert cache.bytes == 0  # One read is not reading on.
            found += await log.read(positions[1], max_entries=1, max_bytes=MB)
            await trio.sleep(1)
            hits = cache.hits
            found += await log.read(positions[2], max_entries=3, max_bytes=MB)
            assert cache.hits == hits + 3
            assert [number_of(entry.data) for entry in found] == [0, 1, 2, 3, 4]

    play(scenario)


def test_who_comes_while_it_is_on_its_way_waits_for_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(5))
            for position in positions[:2]:
                await log.read(position, max_entries=1, max_bytes=MB)
            found = await log.read(positions[2], max_entries=9, max_bytes=MB)
            assert [number_of(entry.data) for entry in found] == [2, 3, 4]
            assert host.logs.cache.hits == 3

    play(scenario)


def test_a_log_that_is_lost_while_it_is_read_begins_nothing() -> None:
    """The read returns its entries, and the broker lives on."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(5))
            await append(log, range(5, 7))
            await log.read(positions[0], max_entries=1, max_bytes=1)
            found: list[int] = []

            async def read_on() -> None:
                read = await log.read(positions[1], max_entries=1, max_bytes=1)
                found.extend(number_of(entry.data) for entry in read)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_on)
                await trio.lowlevel.checkpoint()
                log.lost("somebody else has taken it over")
            assert found == [1]

    play(scenario)


def test_reading_ahead_takes_half_of_the_cache_at_most() -> None:
    cache = EntryCache(1000 + 10 * CACHE_OVERHEAD_BYTES)
    half = cache.bytes_max // 2
    at = [Position(1, entry_id) for entry_id in range(20)]
    assert cache.has_room_ahead(at[0], half, 0.0)
    cache.put_ahead(at[0], bytes(half - 100), 0.0)
    assert not cache.has_room_ahead(at[1], 101, 0.0)
    assert cache.has_room_ahead(at[1], 100, 0.0)
    assert cache.get(at[0]) is not None  # a reader came for it
    assert cache.has_room_ahead(at[1], half, 0.0)


def test_what_nobody_comes_for_does_not_keep_others_from_reading_ahead() -> None:
    cache = EntryCache(1000 + 10 * CACHE_OVERHEAD_BYTES)
    half = cache.bytes_max // 2
    cache.put_ahead(Position(1, 0), bytes(half - 100), 0.0)
    assert not cache.has_room_ahead(Position(1, 1), half, 4.0)
    assert cache.has_room_ahead(Position(1, 1), half, 6.0)


def test_what_was_thrown_out_is_not_counted() -> None:
    cache = EntryCache(1000 + 10 * CACHE_OVERHEAD_BYTES)
    cache.put_ahead(Position(1, 0), bytes(cache.bytes_max // 2), 0.0)
    for entry_id in range(1, 11):
        cache.put(Position(1, entry_id), bytes(100))
    assert cache.get(Position(1, 0)) is None
    assert cache.has_room_ahead(Position(1, 11), cache.bytes_max // 2, 0.0)
