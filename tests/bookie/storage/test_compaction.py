"""Compaction frees space and does nothing else: live records stay, whatever fails meanwhile."""

import errno
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from daybook.bookie.storage.batches import scan
from daybook.bookie.storage.compaction import Compactor
from daybook.bookie.storage.deleted_segments import Gap, decode_gaps, encode_gaps, with_gap
from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import open_rocks_index, shares_key
from daybook.bookie.storage.limits import CompactionLimits, StoreLimits
from daybook.bookie.storage.log import Log, LogLimits
from daybook.bookie.storage.records import Kind
from daybook.bookie.storage.segments import Segment
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import EAGER, entry, key
from tests.harness.clocks import FixedClock

OK, NO_LEDGER, NO_ENTRY = StoreStatus.OK, StoreStatus.NO_LEDGER, StoreStatus.NO_ENTRY
FENCED, READ_ONLY, IO_ERROR = StoreStatus.FENCED, StoreStatus.READ_ONLY, StoreStatus.IO_ERROR
UNAUTHORIZED = StoreStatus.UNAUTHORIZED

SMALL: dict[str, object] = {
    "log": LogLimits(segment_bytes=4000),
    "reclaim": EAGER,
    "space_check_s": 1e6,
}
EVERYTHING: dict[str, object] = {**SMALL, "reclaim": replace(EAGER, live_share_max=2.0)}
ROUNDS = 60


async def fill(store: LedgerStore, *ledger_ids: int, first: int = 0) -> None:
    """Add entries of all these ledgers in turn, over many segments."""
    answers = Answers(store)
    for entry_id in range(first, first + ROUNDS):
        for ledger_id in ledger_ids:
            answers.add(ledger_id, entry_id)
        assert set(await answers.all()) == {OK}


async def check(store: LedgerStore, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        for entry_id in range(ROUNDS):
            assert await store.read(ledger_id, entry_id) == entry(ledger_id, entry_id)
        assert await store.entry_ids(ledger_id) == list(range(ROUNDS))


async def test_a_deleted_ledger_gives_its_room_back(host: Host) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1)
        await fill(store, 2)
        before = store.statistics()
        await store.delete(1)
        await store.maintenance.reclaim()
        after = store.statistics()
        assert after.segments_removed > 2
        assert after.log_bytes < before.log_bytes - 4000
        assert after.segments == len(host.logs()) - 1  # and the list of deleted segments
        await check(store, 2)
        assert await status_of(store.read(1, 0)) is NO_LEDGER
    async with host.store(**SMALL) as store:
        assert not store.limbo
        await check(store, 2)
        assert await status_of(store.read(1, 0)) is NO_LEDGER


async def test_what_still_counts_is_written_again_sorted_by_ledger(host: Host) -> None:
    async with host.store(**{**SMALL, "reclaim": CompactionLimits(spare_bytes=0)}) as store:
        await fill(store, 1, 2, 3, 4, 5)
        for ledger_id in (2, 4, 5):
            await store.delete(ledger_id)
        old = {path: await kinds_in(host, path) for path in host.logs() if path.endswith(".log")}
        await store.maintenance.reclaim()
        await check(store, 1, 3)
        assert store.statistics().bytes_rewritten > 0
        new = [path for path in host.logs() if path.endswith(".log") and path not in old]
        written = [
            (ledger_id, entry_id)
            for path in new
            for kind, ledger_id, entry_id in await kinds_in(host, path)
            if kind is Kind.ENTRY
        ]
        assert len(written) > 60
        runs = sum(a[0] != b[0] for a, b in pairwise(written))
        assert runs < len(written) / 5  # in the order of arrival, nearly all of them would be runs


async def kinds_in(host: Host, path: str) -> list[tuple[Kind, int, int]]:
    segment = Segment(int(path.rpartition("/")[2].removesuffix(".log")), path)
    return [
        (record.kind, record.ledger_id, record.entry_id)
        async for piece in scan(host.platter.mount(), segment, 1 << 60)
        for record in getattr(piece, "records", [])
    ]


async def test_segments_of_which_enough_counts_are_left_alone(host: Host) -> None:
    limits = {**SMALL, "reclaim": CompactionLimits(live_share_max=0.5, spare_bytes=0)}
    async with host.store(**limits) as store:
        await fill(store, 1, 2, 3)
        await store.delete(2)
        await store.maintenance.reclaim()
        statistics = store.statistics()
        assert (statistics.segments_removed, statistics.bytes_rewritten) == (0, 0)
        await check(store, 1, 3)


async def test_fences_keys_and_explicit_lacs_outlive_their_segments(host: Host) -> None:
    """This holds even if the index is lost behind them: the log has them once more."""
    async with host.store(**EVERYTHING) as store:
        await fill(store, 1, 2)
        await store.fence(1, key(1))
        await store.fence(3, key(3))  # not known before: only its key and its fence exist
        await store.write_lac(2, key(2), 40, b"explicit")
        await fill(store, 4)
        await store.delete(4)
        await store.maintenance.reclaim()
        gone = {path for path in host.logs() if path.endswith(".log")}
        for round_number in range(2):
            await fill(store, 5, first=ROUNDS * round_number)
            await store.maintenance.reclaim()
        assert not gone & set(host.logs())
    for lose_index in (False, True):
        if lose_index:
            host.platter.lose_indexes()
        async with host.store(**SMALL) as store:
            assert not store.limbo
            await check(store, 1, 2)
            answers = Answers(store)
            answers.add(1, 500)
            answers.add(3, 0)
            answers.add(4, 500)  # deleted: no late writer may create it again
            answers.add(2, 500, master_key=b"wrong")
            assert await answers.all() == [FENCED, FENCED, FENCED, UNAUTHORIZED]
            assert store.last_add_confirmed(2) == 40
            assert (await store.read_lac(2))[0] == b"explicit"
            assert await status_of(store.read(4, 0)) is NO_LEDGER


async def test_a_limbo_mark_outlives_its_segment(host: Host) -> None:
    async with host.doomed_store(**SMALL) as store:
        await fill(store, 1, 2)
        host.platter.kill()
    path = marked = host.logs()[0]
    host.platter.corrupt(path, host.platter.content(path).index(b"1:3:"), b"X")
    for life in range(3):
        async with host.store(**EVERYTHING) as store:
            assert store.limbo
            marked = host.logs()[-1] if life == 0 else marked
            answers = Answers(store)
            for entry_id in range(100):
                answers.add(10 + life, entry_id, recovery=True)
                await answers.all()
            await store.maintenance.reclaim()
            assert path in host.logs()  # a damaged segment stays as it is
    assert marked not in host.logs()
    host.platter.lose_indexes()
    host.platter.forget(path)
    async with host.store(**SMALL) as store:
        assert store.limbo


async def test_readers_do_not_notice_that_entries_move(host: Host) -> None:
    """Each operation of the disk lets other tasks run: readers are in all states meanwhile."""
    limits = {**SMALL, "blocks_cached": 1}
    async with host.store(**limits) as store:
        await fill(store, 1, 2, 3)
        read = 0
        done = trio.Event()

        async def read_on(ledger_id: int, first: int) -> None:
            nonlocal read
            entry_id = first
            while not done.is_set():
                data = await store.read(ledger_id, entry_id)
                assert data == entry(ledger_id, entry_id)
                await trio.lowlevel.checkpoint()
                entry_id = (entry_id + 7) % ROUNDS
                read += 1

        async with trio.open_nursery() as nursery:
            for reader in range(4):
                nursery.start_soon(read_on, 1 + 2 * (reader % 2), 11 * reader)
            await store.delete(2)
            for _ in range(3):
                await store.maintenance.reclaim()
            done.set()
        assert store.statistics().segments_removed > 3
        assert read > 20


async def test_a_read_that_has_looked_up_its_place_finds_it_moved(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
        directory = store._directories.ledger_directories[0]
        await store.maintenance.checkpoint()
        place = await directory.locations.find(directory.ledgers[1], 3)
        assert place is not None
        await store.delete(2)
        await store.maintenance.reclaim()
        moved = await directory.locations.find(directory.ledgers[1], 3)
        assert moved is not None
        assert moved != place
        assert await status_of(directory.log.read(*place)) is IO_ERROR
        find = directory.locations.find
        looked = iter([place, moved])

        async def find_late(*asked: Any) -> Any:
            await find(*asked)
            return next(looked)

        monkeypatch.setattr(directory.locations, "find", find_late)
        assert await directory.read(1, 3) == entry(1, 3)


async def test_a_copy_that_is_not_where_the_index_points_does_not_free_the_segment(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two proofs start from two sides: without a checkpoint of the moves nothing is deleted."""

    async def forget_the_moves(self: Compactor, portion: Any) -> None:
        del portion
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Compactor, "_move", forget_the_moves)
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
        await store.delete(2)
        await store.maintenance.reclaim()
        assert store.statistics().segments_removed == 0
        await check(store, 1)


async def test_segments_that_no_checkpoint_covers_stay(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written during the checkpoint: the index does not know them yet."""
    async with host.store(**SMALL) as store:
        await fill(store, 1)
        operate = host.platter.operate
        filled = False

        async def operate_late(name: str, generation: int) -> None:
            nonlocal filled
            if name == "index_write" and not filled:
                filled = True
                await fill(store, 9)
            await operate(name, generation)

        monkeypatch.setattr(host.platter, "operate", operate_late)
        await store.maintenance.reclaim()
        assert filled
        await check(store, 1, 9)
    async with host.store(**SMALL) as store:
        assert not store.limbo
        await check(store, 1, 9)


async def test_a_wrong_count_of_what_is_live_removes_nothing_that_is(host: Host) -> None:
    """The usage counts say that no record is live; every record is looked up nevertheless."""
    async with host.store(**SMALL) as store:
        await fill(store, 1)
        await store.maintenance.checkpoint()
        places = store._directories.ledger_directories[0].locations
        for segment in store._directories.ledger_directories[0].log.segments:
            places.usage.change({segment.first: -places.usage.live_bytes(segment.first)})
        await store.maintenance.reclaim()
        await check(store, 1)


async def test_a_damaged_segment_stays_and_what_it_has_is_an_error_and_no_absence(
    host: Host,
) -> None:
    """apache/bookkeeper#4607: one wrong header made the garbage collection delete live data."""
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
    path = host.logs()[1]
    at = host.platter.content(path).index(b"1:20:")
    host.platter.corrupt(path, at, b"X")
    async with host.store(**SMALL) as store:
        await store.delete(2)
        await store.maintenance.reclaim()
        assert path in host.logs()
        assert store.statistics().segments_kept_damaged >= 1
        assert store.statistics().segments_removed > 1
        for entry_id in range(ROUNDS):
            status = await status_of(store.read(1, entry_id))
            assert status is (IO_ERROR if entry_id == 20 else OK)


async def test_a_gap_that_nobody_noted_is_a_loss(host: Host) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
        await store.delete(1)
        await store.maintenance.reclaim()
        assert store.statistics().segments_removed > 1
    host.platter.forget("d0/log/REMOVED")
    host.platter.lose_indexes()
    async with host.store(**SMALL) as store:
        assert store.limbo


async def test_a_segment_that_is_lost_is_a_loss_though_its_neighbours_were_removed(
    host: Host,
) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
        await store.delete(1)
        await store.maintenance.reclaim()
    host.platter.lose_indexes()
    segments = [path for path in host.logs() if path.endswith(".log")]
    host.platter.forget(segments[0])
    async with host.store(**SMALL) as store:
        assert store.limbo


async def test_a_removal_that_was_cut_short_is_finished_at_the_start(host: Host) -> None:
    async with host.doomed_store(**SMALL) as store:
        await fill(store, 1, 2)
        await store.delete(1)
        host.platter.fail_next("remove", OSError(errno.EIO, "cannot remove"))
        await store.maintenance.reclaim()
        assert store.statistics().reclaim_failures == 1
        noted = decode_gaps(host.platter.content("d0/log/REMOVED"))
        left = [path for path in host.logs() if in_gaps(path, noted)]
        assert len(left) == 1
        await check(store, 2)
        host.platter.kill()
    async with host.store(**SMALL) as store:
        assert left[0] not in host.logs()
        await check(store, 2)


def in_gaps(path: str, gaps: list[Gap]) -> bool:
    name = path.rpartition("/")[2].removesuffix(".log")
    return name.isdecimal() and any(gap.first <= int(name) < gap.end for gap in gaps)


async def test_a_torn_write_before_a_removed_segment_does_not_come_back(host: Host) -> None:
    """An entry that was never acknowledged does not reappear when the index is rebuilt."""
    async with host.doomed_store(**SMALL) as store:
        await fill(store, 7)
        host.platter.kill()
    # The last batch had two records; its second one was torn.
    async with host.doomed_store(**SMALL) as store:
        answers = Answers(store)
        answers.add(1, 0, note="torn")
        answers.add(1, 1, note="torn")
        await answers.all()
        path = host.logs()[-1]
        host.platter.kill()
    size = len(host.platter.content(path))
    host.platter.truncate(path, size - 30)
    async with host.store(**SMALL) as store:
        assert not store.limbo
        assert await status_of(store.read(1, 0)) is NO_LEDGER
        answers = Answers(store)
        answers.add(1, 0, note="true")
        assert await answers.all() == [OK]
        await fill(store, 2)  # so that the segment is full, and its end gone
    async with host.store(**SMALL) as store:
        await fill(store, 3)
        await store.delete(2)
        compactor = store._directories.runners[0].compactor
        await store.maintenance.checkpoint()
        for segment in list(store._directories.ledger_directories[0].log.segments):
            last = segment is store._directories.ledger_directories[0].log.segments[-1]
            if path < segment.path and not last:
                await compactor._compact(segment)
        assert store.statistics().segments_removed > 0
        assert path in host.logs()
    host.platter.lose_indexes()
    async with host.store(**SMALL) as store:
        assert not store.limbo
        assert await store.read(1, 0) == entry(1, 0, note="true")
        assert await status_of(store.read(1, 1)) is NO_ENTRY


async def test_shares_are_counted_again_if_they_are_not_those_of_the_checkpoint(
    host: Host,
) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
        await store.maintenance.checkpoint()
        shares = shares_of(store)
        assert sum(shares.values()) == sum(
            28 + len(entry(ledger, number)) for ledger in (1, 2) for number in range(ROUNDS)
        )
    index = host.platter.index("d0/index")
    for wrong in (None, b"", b"\0" * 40, b"short"):
        index.apply({} if wrong is None else {shares_key(): wrong}, [shares_key()])
        async with host.store(**SMALL) as store:
            assert {first: live for first, live in shares_of(store).items() if live} == shares


def shares_of(store: LedgerStore) -> dict[int, int]:
    directory = store._directories.ledger_directories[0]
    shares = directory.locations.usage
    return {each.first: shares.live_bytes(each.first) for each in directory.log.segments}


async def test_without_room_for_entries_there_is_room_to_make_room(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    limits = {**SMALL, "free_bytes_min": 100_000, "space_check_s": 1}
    async with host.store(**limits) as store:
        await fill(store, 1, 2)
        host.platter.free_bytes = 99_999
        await trio.sleep(2)
        answers = Answers(store)
        answers.add(1, 100)
        answers.add(1, 101, recovery=True)
        assert await answers.all() == [READ_ONLY, OK]
        host.platter.free_bytes = 49_999
        await trio.sleep(2)
        answers.add(1, 102, recovery=True)
        assert await answers.all() == [READ_ONLY]
        await store.fence(1, key(1))
        assert store.out_of_space
        assert not store.takes_recovery
        await store.delete(2)
        await store.maintenance.reclaim()
        assert store.statistics().segments_removed > 0
        for entry_id in range(ROUNDS):
            assert await store.read(1, entry_id) == entry(1, entry_id)
        host.platter.free_bytes = 1 << 30
        await trio.sleep(2)
        answers.add(3, 0)
        assert await answers.all() == [OK]


async def test_what_does_not_fit_is_not_begun(host: Host) -> None:
    """A segment is compacted only if all its live data fits; empty segments are deleted anyway."""
    limits = {**SMALL, "reclaim": CompactionLimits(live_share_max=0.9, spare_bytes=5000)}
    async with host.store(**limits) as store:
        await fill(store, 1)
        await fill(store, 2, 3)
        for ledger_id in (1, 2):
            await store.delete(ledger_id)
        host.platter.free_bytes = 5000
        await store.maintenance.reclaim()
        assert store.statistics().bytes_rewritten == 0
        assert store.statistics().segments_removed > 0
        host.platter.free_bytes = 1 << 30
        await store.maintenance.reclaim()
        assert store.statistics().bytes_rewritten > 0
        await check(store, 3)


async def test_writing_again_keeps_to_its_rate(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    limits = {**SMALL, "reclaim": CompactionLimits(bytes_per_s=1000, spare_bytes=0)}
    async with host.store(**limits) as store:
        await fill(store, 1, 2, 3)
        for ledger_id in (1, 2):
            await store.delete(ledger_id)
        started = trio.current_time()
        await store.maintenance.reclaim()
        statistics = store.statistics()
        moved = statistics.bytes_rewritten + statistics.bytes_removed
        assert trio.current_time() - started >= 0.9 * moved / 1000


async def test_a_log_that_fails_meanwhile_ends_the_round_and_loses_nothing(host: Host) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2)
        await store.delete(2)
        host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        await store.maintenance.reclaim()
        await check(store, 1)
        await store.maintenance.reclaim()
    async with host.store(**SMALL) as store:
        await check(store, 1)


async def test_requests_get_their_turn_while_many_small_entries_are_moved(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0  # since the last turn of `watch`
    most: list[int] = []
    is_live, append = Compactor._is_live, Log.append

    async def looked_up(self: Compactor, *args: Any) -> bool:
        nonlocal done
        done += 1
        return await is_live(self, *args)

    def appended(self: Log[Any], *args: Any) -> int:
        nonlocal done
        done += 1
        return append(self, *args)

    async def watch() -> None:
        nonlocal done
        while True:
            most.append(done)
            done = 0
            await trio.lowlevel.checkpoint()

    reclaim = replace(EAGER, portion_bytes=1 << 20, chunk_bytes=1 << 20)
    limits = {**SMALL, "log": LogLimits(segment_bytes=200_000), "reclaim": reclaim}
    async with host.store(**limits) as store, trio.open_nursery() as nursery:
        answers = Answers(store)
        for ledger_id in (1, 2):  # in one batch
            for entry_id in range(2000):
                answers.add(ledger_id, entry_id, size=50)
        assert set(await answers.all()) == {OK}
        await fill(store, 3)  # in the next segment
        await store.delete(1)
        await store.maintenance.checkpoint()
        monkeypatch.setattr(Compactor, "_is_live", looked_up)
        monkeypatch.setattr(Log, "append", appended)
        nursery.start_soon(watch)
        await store.maintenance.reclaim()
        nursery.cancel_scope.cancel()
        assert store.statistics().segments_removed == 1
        assert await store.entry_ids(2) == list(range(2000))
    assert sum(most) >= 6000
    assert max(most) <= 600  # The scheduler may give one task two turns before the other.


async def test_on_real_files(tmp_path: Path) -> None:
    limits = StoreLimits(log=LogLimits(segment_bytes=200_000), reclaim=EAGER, free_bytes_min=0)
    for life in range(2):
        async with open_store(
            disk=FileDisk(),
            directories=[str(tmp_path / "d0")],
            index=open_rocks_index,
            clock=FixedClock(1000 + life),
            limits=limits,
        ) as store:
            if life == 0:
                for ledger_id in range(4):
                    answers = Answers(store)
                    for entry_id in range(100):
                        answers.add(ledger_id, entry_id, size=5000)
                        answers.add(9, 100 * ledger_id + entry_id, size=1000)
                    await answers.all()
                for ledger_id in range(3):
                    await store.delete(ledger_id)
                await store.maintenance.reclaim()
                assert store.statistics().segments_removed > 1
                assert store.statistics().segments_kept_damaged == 0
            for entry_id in range(400):
                assert await store.read(9, entry_id) == entry(9, entry_id, size=1000)
            for entry_id in range(100):
                assert await store.read(3, entry_id) == entry(3, entry_id, size=5000)
    used = sum(path.stat().st_size for path in (tmp_path / "d0" / "log").iterdir())
    assert used < 1_500_000


# ---- the list of deleted segments


def test_gaps_that_touch_are_one() -> None:
    gaps = with_gap([], Gap(100, 90, 200))
    gaps = with_gap(gaps, Gap(400, 380, 500))
    gaps = with_gap(gaps, Gap(0, 0, 100))
    assert gaps == [Gap(0, 0, 200), Gap(400, 380, 500)]
    assert with_gap(gaps, Gap(200, 200, 400)) == [Gap(0, 0, 500)]


def test_a_list_of_gaps_that_is_damaged_is_none() -> None:
    gaps = [Gap(0, 0, 200), Gap(400, 380, 500)]
    data = encode_gaps(gaps)
    assert decode_gaps(data) == gaps
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert decode_gaps(bytes(damaged)) == []
        assert decode_gaps(data[:at]) == []
