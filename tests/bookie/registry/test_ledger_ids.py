"""No ledger id is given twice, and a listing misses none."""

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing

from daybook.bookie.errors import LayoutError
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.ledger_ids import LedgerIds, list_ledgers, prune_parents
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.memory import MemorySession
from daybook.wire.metadata.store import ANY, Operation, Record, StoreUnavailableError, Watch

PATHS = LedgerPaths()


async def test_ids_are_counted_by_the_store_and_leave_nothing_behind(store: MemorySession) -> None:
    async with trio.open_nursery() as nursery:
        ids = [await LedgerIds(store, PATHS).new(nursery) for _ in range(3)]
    assert ids == [0, 1, 2]
    assert await store.get_children("/ledgers/idgen") == []


async def test_an_id_whose_answer_was_lost_is_skipped(store: MemorySession) -> None:
    store.link.lose_next(operation="create", path="/ledgers/idgen/ID-", applied=True)  # type: ignore[attr-defined]
    await store.create("/ledgers/idgen", b"", make_parents=True)
    async with trio.open_nursery() as nursery:
        assert await LedgerIds(store, PATHS).new(nursery) == 1


async def test_without_an_answer_at_all_there_is_no_id(
    store: MemorySession, autojump_clock: trio.testing.MockClock
) -> None:
    store.suspend()
    async with trio.open_nursery() as nursery:
        with pytest.raises(StoreUnavailableError):
            await LedgerIds(store, PATHS).new(nursery)
        nursery.cancel_scope.cancel()


async def test_long_ids_count_in_generations(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create("/ledgers/idgen-long", b"", make_parents=True)
    async with trio.open_nursery() as nursery:
        assert await LedgerIds(store, PATHS).new(nursery) == 1 << 32
        assert await LedgerIds(store, PATHS).new(nursery) == (1 << 32) + 1
        overflow(store, monkeypatch, "HOB-0000000001")
        assert await LedgerIds(store, PATHS).new(nursery) == 2 << 32


async def test_short_ids_that_are_used_up_become_long_ones(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow(store, monkeypatch, "/idgen/")
    async with trio.open_nursery() as nursery:
        assert await LedgerIds(store, PATHS).new(nursery) == 1 << 32


async def test_that_ids_are_short_is_read_once_until_it_changes(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, get = list[str](), store.get

    async def counted(path: str, watch: Watch | None = None) -> Record | None:
        reads.append(path)
        return await get(path, watch)

    monkeypatch.setattr(store, "get", counted)
    ids = LedgerIds(store, PATHS)
    async with trio.open_nursery() as nursery:
        assert [await ids.new(nursery) for _ in range(3)] == [0, 1, 2]
        assert reads == ["/ledgers/idgen-long"]
        await store.create("/ledgers/idgen-long", b"")
        assert await ids.new(nursery) == 1 << 32


async def test_a_watch_that_fires_before_the_answer_counts(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = store.get

    async def late(path: str, watch: Watch | None = None) -> Record | None:
        answer = await get(path, watch)
        if answer is None:
            await store.create(path, b"")
        return answer

    monkeypatch.setattr(store, "get", late)
    await store.create("/ledgers", b"")
    ids = LedgerIds(store, PATHS)
    async with trio.open_nursery() as nursery:
        assert await ids.new(nursery) == 0
        assert await ids.new(nursery) == 1 << 32


async def count_quickly(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch, *, loses: bool = False
) -> list[int]:
    """Allocate twenty ids while deletions take long; return the sizes of those that are shared.

    With `loses`, somebody else deletes a record of each shared deletion first.
    """
    sizes, multi, delete = list[int](), store.multi, store.delete

    async def slow_multi(operations: Sequence[Operation]) -> list[int]:
        sizes.append(len(operations))
        await trio.sleep(1)
        if loses:
            await delete(operations[0].path, ANY)
        return await multi(operations)

    async def slow_delete(path: str, version: int) -> None:
        await trio.sleep(1)
        await delete(path, version)

    monkeypatch.setattr(store, "multi", slow_multi)
    monkeypatch.setattr(store, "delete", slow_delete)
    ids = LedgerIds(store, PATHS)
    async with trio.open_nursery() as janitor:
        for number in range(20):
            assert await ids.new(janitor) == number
            await trio.sleep(0.1)
    return sizes


async def test_records_that_come_during_a_deletion_share_the_next_one(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    sizes = await count_quickly(store, monkeypatch)
    assert sizes[0] > 5, sizes
    assert await store.get_children("/ledgers/idgen") == []


async def test_a_record_that_is_gone_does_not_keep_those_that_share_its_deletion(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    assert await count_quickly(store, monkeypatch, loses=True)
    assert await store.get_children("/ledgers/idgen") == []


def overflow(store: MemorySession, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Let the numbers wrap to negative ones, as ZooKeeper's do."""
    create: Callable[..., Awaitable[str]] = store.create

    async def wrapped(path: str, value: bytes, **options: bool) -> str:
        if where in path:
            return f"{path}-2147483648"
        return await create(path, value, **options)

    monkeypatch.setattr(store, "create", wrapped)


async def test_listing_finds_all_ledgers_and_nothing_else(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    ids = [0, 7, 12345, 2147483646, 2147483647, 9223372036854775807]
    for ledger_id in ids:
        await store.create(PATHS.ledger(ledger_id), b"", make_parents=True)
    await store.create("/ledgers/underreplication/ledgers", b"", make_parents=True)
    await store.create("/ledgers/00/0000/other", b"")
    assert [ledger_id async for ledger_id in list_ledgers(store, PATHS)] == ids


async def test_a_missing_root_is_no_empty_list(store: MemorySession) -> None:
    with pytest.raises(LayoutError):
        async for _ in list_ledgers(store, PATHS):
            pass


async def test_empty_directories_are_removed_and_others_stay(store: MemorySession) -> None:
    for ledger_id in (1, 2, 10_000):
        await store.create(PATHS.ledger(ledger_id), b"", make_parents=True)
    for ledger_id in (1, 10_000):
        await store.delete(PATHS.ledger(ledger_id), 0)
        await prune_parents(store, PATHS, ledger_id)
    assert await store.get_children("/ledgers/00") == ["0000"]
    await store.delete(PATHS.ledger(2), 0)
    await prune_parents(store, PATHS, 2)
    assert await store.get_children("/ledgers") == []
