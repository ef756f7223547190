"""An entry that cannot be read is accepted again; a readable entry is not replaced."""

import errno
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.segments import ReadLimits
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import EAGER, entry

OK, IO_ERROR, FENCED = StoreStatus.OK, StoreStatus.IO_ERROR, StoreStatus.FENCED
SMALL: dict[str, object] = {
    "log": LogLimits(segment_bytes=4000, reading=ReadLimits(windows_bytes_max=1)),
    "space_check_s": 1e6,
    "reclaim": EAGER,
}
ENTRIES = 60


async def fill(host: Host) -> None:
    async with host.store(**SMALL) as store:
        answers = Answers(store)
        for entry_id in range(ENTRIES):
            answers.add(1, entry_id)
            assert await answers.all() == [OK]


def damage(host: Host, number: int = 0) -> None:
    """A sector somewhere in the middle of that segment."""
    path = host.logs()[number]
    host.platter.corrupt(path, 1500, b"\xa5" * 300)


async def unreadable(store: LedgerStore) -> list[int]:
    lost: list[int] = []
    for entry_id in range(ENTRIES):
        status = await status_of(store.read(1, entry_id))
        if status is not OK:
            assert status is IO_ERROR
            lost.append(entry_id)
        else:
            assert await store.read(1, entry_id) == entry(1, entry_id)
    return lost


async def bring(store: LedgerStore, entry_ids: Sequence[int], **how: object) -> set[StoreStatus]:
    answers = Answers(store)
    for entry_id in entry_ids:
        answers.add(1, entry_id, recovery=True, **how)  # type: ignore[arg-type]
    return set(await answers.all())


async def test_a_flood_of_damaged_entries_has_no_more_memory_than_any_other(host: Host) -> None:
    await fill(host)
    damage(host)
    async with host.store(**SMALL, in_flight_bytes_max=1000) as store:
        lost = await unreadable(store)
        assert await bring(store, lost * 50) == {OK, StoreStatus.TOO_MANY}
        assert store.bytes_in_flight == 0
        assert await unreadable(store) == []


async def test_damaged_entries_are_taken_again_and_stay(host: Host) -> None:
    await fill(host)
    damage(host)
    async with host.store(**SMALL) as store:
        lost = await unreadable(store)
        assert lost
        assert store.maintenance.damaged_entries() == [(1, entry_id) for entry_id in lost]
        assert await bring(store, range(ENTRIES)) == {OK}
        assert await unreadable(store) == []
        assert store.maintenance.damaged_entries() == []
    async with host.store(**SMALL) as store:
        assert await unreadable(store) == []
        await store.maintenance.scrub()
        assert store.statistics().damaged_entries == 0
        await store.maintenance.reclaim()
        assert await unreadable(store) == []


async def test_what_the_disk_gives_is_not_replaced(host: Host) -> None:
    await fill(host)
    damage(host)
    async with host.store(**SMALL) as store:
        lost = await unreadable(store)
        before = store.statistics().log_bytes
        whole = [entry_id for entry_id in range(ENTRIES) if entry_id not in lost]
        assert await bring(store, whole, note="other") == {OK}
        assert store.statistics().log_bytes == before
        assert await unreadable(store) == lost


async def test_bytes_of_another_size_are_not_those_that_were_here(host: Host) -> None:
    await fill(host)
    damage(host)
    async with host.store(**SMALL) as store:
        lost = await unreadable(store)
        assert await bring(store, lost, size=61) == {IO_ERROR}
        assert await unreadable(store) == lost


async def test_what_no_checkpoint_holds_yet_is_healed_too(host: Host) -> None:
    async with host.store(**SMALL) as store:
        answers = Answers(store)
        for entry_id in range(ENTRIES):
            answers.add(1, entry_id)
            assert await answers.all() == [OK]
        damage(host)
        lost = await unreadable(store)
        assert lost
        assert await bring(store, lost) == {OK}
        assert await unreadable(store) == []


async def test_of_a_deleted_ledger_nothing_is_healed(host: Host) -> None:
    await fill(host)
    damage(host)
    async with host.store(**SMALL) as store:
        lost = await unreadable(store)
        await store.delete(1)
        assert await bring(store, lost) == {FENCED}


@pytest.mark.parametrize("operations", range(1, 12))
async def test_a_crash_at_any_moment_leaves_it_damaged_or_whole(
    host: Host, operations: int
) -> None:
    await fill(host)
    damage(host)
    answered: set[StoreStatus] = set()
    lost: list[int] = []
    async with host.doomed_store(**SMALL) as store:
        lost += await unreadable(store)
        host.platter.crash_before(operations)
        answered |= await bring(store, lost)
        host.platter.lose_power()
    async with host.store(**SMALL) as store:
        left = await unreadable(store)
        assert set(left) <= set(lost)
        if answered == {OK}:
            assert left == []
        assert await bring(store, left) <= {OK}
        assert await unreadable(store) == []


async def test_what_waits_to_be_healed_when_the_log_fails_is_an_error_and_ends_nothing(
    host: Host,
) -> None:
    await fill(host)
    damage(host)
    async with host.store(**SMALL) as store:
        lost = await unreadable(store)
        assert len(lost) > 1
        answers = Answers(store)
        host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        freed = host.platter.stick()
        answers.add(1, lost[0], recovery=True)
        await trio.testing.wait_all_tasks_blocked()
        for entry_id in lost[1:]:
            answers.add(1, entry_id, recovery=True)
        freed.set()
        assert set(await answers.all()) == {IO_ERROR}
        answers.add(1, lost[0], recovery=True)
        assert await answers.all() == [IO_ERROR]


async def test_a_log_that_fails_while_the_index_is_brought_up_to_date_for_a_heal(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That checkpoint is done, and nothing may be appended behind it."""
    await fill(host)
    damage(host)
    async with host.store(**SMALL) as store:
        lost = await unreadable(store)
        answers = Answers(store)
        operate = host.platter.operate
        failed: list[StoreStatus] = []

        async def operate_late(name: str, generation: int) -> None:
            if name == "index_write" and not failed:
                host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
                others = Answers(store)
                others.add(2, 0)
                failed.extend(await others.all())
            await operate(name, generation)

        monkeypatch.setattr(host.platter, "operate", operate_late)
        answers.add(1, lost[0], recovery=True)
        assert await answers.all() == [IO_ERROR]
        assert failed == [IO_ERROR]


async def test_nothing_is_written_again_that_the_index_cannot_be_told_of(host: Host) -> None:
    await fill(host)
    damage(host)
    async with host.store(**SMALL) as store:
        lost = await unreadable(store)
        host.platter.fail_next("index_write", OSError(errno.EIO, "index broken"))
        assert await bring(store, lost[:1]) == {IO_ERROR}
        before = store.statistics().log_bytes
        assert await bring(store, lost * 10) == {IO_ERROR}
        assert await bring(store, [ENTRIES]) == {OK}
        assert store.statistics().log_bytes < before + 2 * len(entry(1, ENTRIES)) + 1000
