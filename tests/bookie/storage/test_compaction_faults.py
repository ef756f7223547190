"""A fault around one segment keeps no other from being reclaimed, and does not last forever."""

from typing import Any

import pytest

from daybook.bookie.storage.compaction import Compactor
from daybook.bookie.storage.deleted_segments import decode_gaps
from daybook.bookie.storage.entry_locations import EntryLocations
from daybook.bookie.storage.index import Checkpoint, checkpoint_key
from daybook.bookie.storage.recovery import load
from daybook.bookie.storage.status import StoreStatus
from tests.bookie.storage.conftest import Host, has, status_of
from tests.bookie.storage.test_compaction import SMALL, check, fill
from tests.harness.disk import HostCrashedError

NO_LEDGER = StoreStatus.NO_LEDGER


def segments(host: Host) -> list[str]:
    return [path for path in host.logs() if path.endswith(".log")]


async def test_one_segment_whose_front_is_unreadable_keeps_no_other_from_being_removed(
    host: Host,
) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1)
        await fill(store, 2)
        await store.delete(1)
        spoilt = segments(host)[1]
        host.platter.spoil(spoilt, 0)
        before = len(segments(host))
        await store.maintenance.reclaim()
        await store.maintenance.reclaim()
        assert spoilt in host.logs()
        assert store.statistics().segments_removed > 1
        assert len(segments(host)) < before
        await check(store, 2)


async def test_a_ledger_that_is_deleted_while_its_segment_is_emptied_is_no_damage(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
        await store.delete(1)
        move = Compactor._move

        async def delete_first(self: Compactor, portion: Any) -> None:
            if 2 in store.ledgers():
                await store.delete(2)
            await move(self, portion)

        monkeypatch.setattr(Compactor, "_move", delete_first)
        await store.maintenance.reclaim()
        assert store.statistics().segments_kept_damaged == 0
        await store.maintenance.reclaim()
        assert store.statistics().segments == 1
        assert await status_of(store.read(2, 0)) is NO_LEDGER


async def kill_behind_one_batch(host: Host) -> None:
    """Leave a log that goes on, with one batch, behind a gap that ends in a torn tail."""
    async with host.doomed_store(**SMALL) as store:
        await fill(store, 1)
        host.platter.kill()
    last = segments(host)[-1]
    size = len(host.platter.content(last))
    host.platter.truncate(last, size - 30)
    async with host.doomed_store(**SMALL) as store:
        await store.delete(1)
        await store.maintenance.checkpoint()
        compactor: Compactor = store._directories.runners[0].compactor
        # The last segment has only entries left, so nothing has to be copied.
        await compactor._compact(store._directories.ledger_directories[0].log.segments[-2])
        assert store.statistics().segments_removed == 1
        host.platter.kill()


async def test_an_index_that_ends_inside_a_gap_is_no_loss(host: Host) -> None:
    """A rebuild of the index from such a log, cut short, leaves such an index."""
    await kill_behind_one_batch(host)
    (gap,) = decode_gaps(host.platter.content("d0/log/REMOVED"))
    inside = 0
    for crash_at in range(110, 170):
        host.platter.lose_indexes()
        await die_while_starting(host, crash_at)
        stored = await host.platter.index("d0/index").get(checkpoint_key())
        if stored is not None and gap.first < Checkpoint.decode(stored).position < gap.end:
            inside += 1
            assert await losses_seen_by_a_check(host) == []  # A start would rebuild it.
        await die_while_starting(host, 1000)
    assert inside


async def losses_seen_by_a_check(host: Host) -> list[str]:
    """Return the losses that a read-only check reports."""
    index = host.platter.index("d0/index")
    places = EntryLocations(index, blocks_cached=16)
    _, replayed = await load(
        host.platter.mount(), "d0/log", index, places, checkpoint_entries=1 << 20, finish=False
    )
    return [str(loss) for loss in replayed.losses]


async def die_while_starting(host: Host, operations: int) -> None:
    """Die during the start, or right after it, and check that no loss was reported until then."""
    host.platter.crash_before(operations)

    async def live() -> None:
        async with host.store(**{**SMALL, "checkpoint_entries": 0}) as store:
            assert not store.limbo, store.statistics().losses
            host.platter.kill()

    with pytest.raises((HostCrashedError, BaseExceptionGroup)) as caught:
        await live()
    assert has(caught.value, HostCrashedError)
    assert not has(caught.value, AssertionError)
