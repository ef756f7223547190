"""A start: what it reads and finds, and how it treats a damaged disk."""

import pytest
import trio
import trio.lowlevel

from daybook.bookie.storage import records
from daybook.bookie.storage.disk import DirectoryInUseError
from daybook.bookie.storage.ledger_directory import LAST_ENTRY
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.records import SegmentHeader, UnsupportedVersionError
from daybook.bookie.storage.status import StoreStatus
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import entry, key

OK, FENCED, IO_ERROR = StoreStatus.OK, StoreStatus.FENCED, StoreStatus.IO_ERROR
UNKNOWN, READ_ONLY = StoreStatus.UNKNOWN, StoreStatus.READ_ONLY
SMALL_SEGMENTS = LogLimits(segment_bytes=5000, group_bytes_max=1000)


async def crash(host: Host, first: int, last: int, **limits: object) -> None:
    """Add entries to ledger 1, one batch for every ten, then die without a word."""
    async with host.doomed_store(**limits) as store:
        answers = Answers(store)
        for entry_id in range(first, last + 1):
            answers.add(1, entry_id, lac=entry_id - 1)
            if entry_id % 10 == 9:
                await answers.all()
        assert set(await answers.all()) <= {OK}
        host.platter.kill()


async def test_a_clean_stop_leaves_nothing_to_read(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        for entry_id in range(500):
            answers.add(1, entry_id)
        await answers.all()
    before = host.platter.bytes_read
    async with host.store() as store:
        assert host.platter.bytes_read - before < 100  # the header of one segment
        assert await store.read(1, LAST_ENTRY) == entry(1, 499)


async def test_a_start_reads_only_what_is_behind_the_checkpoint(host: Host) -> None:
    async with host.store(log=SMALL_SEGMENTS) as store:
        answers = Answers(store)
        for entry_id in range(500):
            answers.add(1, entry_id)
        await answers.all()
    await crash(host, 500, 519)
    before = host.platter.bytes_read
    async with host.store() as store:
        behind = 20 * (28 + 32 + 60) + 1000
        assert 0 < host.platter.bytes_read - before < behind
        assert store.statistics().replayed_bytes == host.platter.bytes_read - before
        for entry_id in range(520):
            assert await store.read(1, entry_id) == entry(
                1, entry_id, lac=entry_id - 1 if entry_id >= 500 else -1
            )
        assert store.last_add_confirmed(1) == 518


async def test_memory_does_not_grow_with_what_is_stored(host: Host) -> None:
    async with host.store(checkpoint_entries=100, blocks_cached=2) as store:
        answers = Answers(store)
        highest = 0
        for entry_id in range(3000):
            answers.add(1, entry_id, size=1)
            if entry_id % 50 == 49:
                await answers.all()
                highest = max(highest, store.statistics().recent_entries)
        assert store.statistics().checkpoints > 10
        assert highest <= 300
        for entry_id in (0, 1500, 2999, 7):
            assert await store.read(1, entry_id) == entry(1, entry_id, size=1)


async def test_the_log_pauses_when_the_index_cannot_follow(host: Host) -> None:
    async with host.store(checkpoint_entries=10, recent_entries_max=30) as store:
        slow = trio.Event()
        operate = host.platter.operate

        async def operate_slowly(name: str, generation: int) -> None:
            if name == "index_write":
                await slow.wait()
            await operate(name, generation)

        host.platter.operate = operate_slowly  # type: ignore[method-assign]
        answers = Answers(store)
        for entry_id in range(200):
            answers.add(1, entry_id)
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(0.05):
            await answers.all()
        assert store.bytes_in_flight > 0
        slow.set()
        assert await answers.all() == [OK] * 200


async def test_a_lost_index_is_made_again_from_the_log(host: Host) -> None:
    async with host.store(log=SMALL_SEGMENTS) as store:
        answers = Answers(store)
        for entry_id in range(300):
            answers.add(entry_id % 3, entry_id)
        await answers.all()
        await store.fence(2, key(2))
        await store.write_lac(1, key(1), 250, b"explicit")
    host.platter.lose_index("d0/index")
    async with host.store(checkpoint_entries=50) as store:
        assert not store.limbo
        assert store.statistics().checkpoints >= 3  # on the way, memory is bounded
        for entry_id in range(300):
            assert await store.read(entry_id % 3, entry_id) == entry(entry_id % 3, entry_id)
        answers = Answers(store)
        answers.add(2, 1000)
        assert await answers.all() == [FENCED]
        assert store.last_add_confirmed(1) == 250


async def test_the_end_of_a_torn_write_is_cut_and_nobody_is_in_doubt(host: Host) -> None:
    await crash(host, 0, 29)
    path = host.logs()[-1]
    host.platter.truncate(path, len(host.platter.content(path)) - 7)
    for _ in range(2):
        async with host.store() as store:
            assert not store.limbo
            for entry_id in range(20):
                assert await store.read(1, entry_id) == entry(1, entry_id, lac=entry_id - 1)
            answers = Answers(store)
            answers.add(1, 40)
            assert await answers.all() == [OK]


async def damage_middle(host: Host) -> None:
    path = host.logs()[0]
    content = host.platter.content(path)
    host.platter.corrupt(path, content.index(b"1:12:") + 3, b"XX")


async def damage_batch_header(host: Host) -> None:
    path = host.logs()[0]
    content = host.platter.content(path)
    at = content.rindex(b"\xdbBAT", 0, content.index(b"1:12:"))
    host.platter.corrupt(path, at, b"zap!")


async def lose_first_segment(host: Host) -> None:
    host.platter.forget(host.logs()[0])


async def lose_middle_segment(host: Host) -> None:
    host.platter.forget(host.logs()[2])


async def cut_first_segment(host: Host) -> None:
    host.platter.truncate(host.logs()[0], 2000)


async def damage_segment_header(host: Host) -> None:
    host.platter.corrupt(host.logs()[1], 3, b"?")


async def unreadable_sector(host: Host) -> None:
    host.platter.spoil(host.logs()[0], 1600)


@pytest.mark.parametrize(
    "damage",
    [
        damage_middle,
        damage_batch_header,
        lose_first_segment,
        lose_middle_segment,
        cut_first_segment,
        damage_segment_header,
        unreadable_sector,
    ],
)
async def test_after_a_loss_absence_is_unknown_and_nobody_writes_any_more(
    host: Host, damage: object
) -> None:
    await crash(host, 0, 149, log=SMALL_SEGMENTS)
    await damage(host)  # type: ignore[operator]
    for life in range(3):
        async with host.store(log=SMALL_SEGMENTS) as store:
            assert store.limbo
            assert not store.writable
            assert bool(store.statistics().losses) == (life == 0)
            lost = 0
            for entry_id in range(150):
                status = await status_of(store.read(1, entry_id))
                assert status in (OK, UNKNOWN)
                lost += status is UNKNOWN
                if status is OK:
                    data = await store.read(1, entry_id)
                    assert data == entry(1, entry_id, lac=entry_id - 1)
            assert 0 < lost < 120
            assert await status_of(store.read(1, 1000)) is UNKNOWN
            assert await status_of(store.read(99, 0)) is UNKNOWN
            assert await status_of(store.read_lac(99)) is UNKNOWN
            assert await status_of(store.fencing_read(98, 0, key(98))) is UNKNOWN
            assert await status_of(store.read_lac(98)) is UNKNOWN  # it is known now, and empty
            answers = Answers(store)
            answers.add(1, 2000)
            answers.add(50 + life, 0)
            answers.add(1, 3000 + life, recovery=True)
            assert await answers.all() == [READ_ONLY, READ_ONLY, OK]
            assert await store.read(1, 3000 + life) == entry(1, 3000 + life)


@pytest.mark.parametrize(
    ("damage", "lost"), [(damage_middle, range(12, 13)), (damage_batch_header, range(10, 20))]
)
async def test_what_lies_behind_the_damage_is_still_read(
    host: Host, damage: object, lost: range
) -> None:
    await crash(host, 0, 149)
    assert len(host.logs()) == 1
    await damage(host)  # type: ignore[operator]
    async with host.store() as store:
        found = [await status_of(store.read(1, entry_id)) for entry_id in range(150)]
    assert found == [UNKNOWN if entry_id in lost else OK for entry_id in range(150)]


@pytest.mark.parametrize("damaged", [28, 32, 512, 1024])  # with the first batch, or not
async def test_a_last_segment_without_a_header_was_there_if_it_has_more_than_one_write(
    host: Host, damaged: int
) -> None:
    """Seeds 681533, 692633: no later mark tells, and what had been acknowledged was denied."""
    await crash(host, 0, 29)
    (path,) = host.logs()
    host.platter.corrupt(path, 0, bytes(damaged))
    async with host.store() as store:
        assert store.limbo
        assert await status_of(store.read(1, 0)) is UNKNOWN


async def test_a_first_write_that_is_torn_was_never_acknowledged(host: Host) -> None:
    async with host.doomed_store() as store:
        answers = Answers(store)
        for entry_id in range(30):
            answers.add(1, entry_id)  # one batch
        await answers.all()
        host.platter.kill()
    (path,) = host.logs()
    host.platter.corrupt(path, 0, bytes(28))
    async with host.store() as store:
        assert not store.limbo


async def test_a_loss_is_remembered_when_nothing_shows_it_any_more(host: Host) -> None:
    """Bytes that one start cannot read lie behind the marks at the next one, as if torn."""
    await crash(host, 0, 29)
    path = host.logs()[-1]
    at = host.platter.content(path).index(b"1:25:")
    host.platter.spoil(path, at)
    async with host.doomed_store() as store:
        answers = Answers(store)
        answers.add(1, 500, recovery=True)
        assert await answers.all() == [OK]
        host.platter.kill()
    host.platter.file(path).bad_sectors.clear()
    async with host.store() as store:
        for entry_id in range(30):
            assert await status_of(store.read(1, entry_id)) in (OK, UNKNOWN)
        assert store.limbo
        assert await store.read(1, 500) == entry(1, 500)


async def test_one_lossy_directory_puts_the_whole_bookie_in_doubt(host: Host) -> None:
    host.directories = ["d0", "d1"]
    async with host.store() as store:
        answers = Answers(store)
        for ledger_id in range(4):
            answers.add(ledger_id, 0)
        await answers.all()
    for path in host.logs("d1"):
        host.platter.forget(path)
    async with host.store() as store:
        assert store.limbo
        answers = Answers(store)
        for ledger_id in range(5):
            assert await status_of(store.read(ledger_id, 7)) is UNKNOWN
            answers.add(ledger_id, 1)
        assert await answers.all() == [READ_ONLY] * 5


async def test_an_indexed_entry_that_has_changed_is_an_error_and_no_absence(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        for entry_id in range(10):
            answers.add(1, entry_id)
        await answers.all()
    path = host.logs()[0]
    content = host.platter.content(path)
    host.platter.corrupt(path, content.index(b"1:4:") + 9, b"\0")
    async with host.store() as store:
        assert await status_of(store.read(1, 4)) is IO_ERROR
        assert await store.read(1, 5) == entry(1, 5)
    host.platter.spoil(path, content.index(b"1:0:"))
    async with host.store() as store:
        assert await status_of(store.read(1, 0)) is IO_ERROR
    host.platter.forget(path)
    async with host.store() as store:
        assert store.limbo
        assert await status_of(store.read(1, 5)) is IO_ERROR
        assert await status_of(store.read(1, 50)) is UNKNOWN


async def test_a_directory_belongs_to_one_process(host: Host) -> None:
    async with host.store():
        with pytest.raises(DirectoryInUseError):
            async with host.store():
                pass
    async with host.store():
        pass


async def test_a_log_of_a_newer_release_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crash(host, 0, 3)
    monkeypatch.setattr(records, "VERSION", 2)
    newer = SegmentHeader(5).encode()
    monkeypatch.undo()
    host.platter.corrupt(host.logs()[0], 0, newer)
    with pytest.raises(UnsupportedVersionError):
        async with host.store():
            pass
