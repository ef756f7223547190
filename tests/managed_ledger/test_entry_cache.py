"""The cache of entries is bounded in bytes and in time."""

import pytest
import trio
from trio.testing import MockClock

from daybook.managed_ledger import entry_cache
from daybook.managed_ledger.entry_cache import CACHE_OVERHEAD_BYTES, KEPT_S, EntryCache
from daybook.managed_ledger.position import Position


def drop_all_old(cache: EntryCache, now_s: float) -> int:
    """Drop what is too old, and return in how many turns."""
    turns = 0
    while cache.drop_old(now_s):
        turns += 1
    return turns


def held(cache: EntryCache, count: int) -> list[int]:
    """Return which of the first entries of ledger 1 are there."""
    return [entry_id for entry_id in range(count) if cache.get(Position(1, entry_id)) is not None]


def test_an_entry_is_dropped_when_it_is_old() -> None:
    cache = EntryCache()
    cache.put(Position(1, 0), b"x")
    drop_all_old(cache, 0.0)
    cache.put(Position(1, 1), b"x")
    drop_all_old(cache, 5.0)
    cache.put(Position(1, 2), b"x")
    drop_all_old(cache, KEPT_S - 0.1)
    assert held(cache, 3) == [0, 1, 2]
    drop_all_old(cache, KEPT_S)
    assert held(cache, 3) == [1, 2]
    drop_all_old(cache, KEPT_S + 5.0)
    assert held(cache, 3) == [2]
    drop_all_old(cache, 3 * KEPT_S)
    assert held(cache, 3) == []
    assert cache.bytes == 0


def test_an_entry_that_was_pushed_out_takes_no_younger_one_along() -> None:
    cache = EntryCache(3 * (1 + CACHE_OVERHEAD_BYTES))
    for entry_id in range(3):
        cache.put(Position(1, entry_id), b"x")
    drop_all_old(cache, 0.0)
    for entry_id in range(3, 5):
        cache.put(Position(1, entry_id), b"x")
    drop_all_old(cache, KEPT_S)
    assert held(cache, 5) == [3, 4]


def test_entries_that_were_read_ahead_leave_room_when_they_are_dropped() -> None:
    cache = EntryCache(1000)
    cache.put_ahead(Position(1, 0), b"x" * 400, 0.0)
    drop_all_old(cache, 0.0)
    drop_all_old(cache, KEPT_S)
    assert held(cache, 1) == []
    assert cache.has_room_ahead(Position(1, 1), 500, 1.0)


def test_many_entries_are_dropped_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_cache, "_DROPPED_PER_TURN", 10)
    cache = EntryCache()
    for entry_id in range(95):
        cache.put(Position(1, entry_id), b"x")
    drop_all_old(cache, 0.0)
    assert drop_all_old(cache, KEPT_S) == 10


async def test_a_host_with_nothing_to_do_gives_the_memory_back(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    trimmed: list[float] = []
    monkeypatch.setattr(entry_cache, "trim", lambda: trimmed.append(trio.current_time()))
    cache = EntryCache()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.run)
        for entry_id in range(20):
            cache.put(Position(1, entry_id), bytes(1 << 20))
        await trio.sleep(KEPT_S)
        assert len(held(cache, 20)) == 20
        await trio.sleep(11.0)
        assert not held(cache, 20)
        assert len(trimmed) == 1
        await trio.sleep(10 * KEPT_S)
        assert len(trimmed) == 1
        nursery.cancel_scope.cancel()


async def test_under_a_steady_load_the_memory_is_kept(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(entry_cache, "trim", lambda: pytest.fail("it is needed again at once"))
    cache = EntryCache()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.run)
        for entry_id in range(200):
            cache.put(Position(1, entry_id), bytes(1 << 20))
            await trio.sleep(0.6)
        assert len(held(cache, 200)) in range(45, 65)
        nursery.cancel_scope.cancel()
