"""A directory of a stopped bookie: checked, its index rebuilt, its entries exported."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daybook.bookie.storage.disk import DirectoryInUseError, FileDisk
from daybook.bookie.storage.index import open_rocks_index
from daybook.bookie.storage.limbo import LimboMark
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.markers import mark_dirty
from daybook.bookie.storage.offline import (
    ExportedEntry,
    OfflineError,
    check_directory,
    export_entries,
    log_bytes,
    remake_index,
)
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from tests.bookie.storage.conftest import Answers, status_of
from tests.bookie.storage.oracle import EAGER, entry, key
from tests.harness.clocks import FixedClock

ENTRIES = 300


@asynccontextmanager
async def opened(directory: Path, now_ms: int = 1000) -> AsyncGenerator[LedgerStore]:
    async with open_store(
        disk=FileDisk(),
        directories=[str(directory)],
        index=open_rocks_index,
        clock=FixedClock(now_ms),
        limits=StoreLimits(log=LogLimits(segment_bytes=20_000), reclaim=EAGER, free_bytes_min=0),
    ) as store:
        yield store


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """Write three ledgers: one is fenced, one is deleted and its space reclaimed."""
    directory = tmp_path / "d0"
    async with opened(directory) as store:
        answers = Answers(store)
        for entry_id in range(ENTRIES):
            for ledger_id in (1, 2, 3):
                answers.add(ledger_id, entry_id)
            if entry_id % 10 == 9:
                await answers.all()
        await store.fence(1, key(1))
        await store.delete(3)
        await store.maintenance.reclaim()
        assert store.statistics().segments_removed > 0
    return directory


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (directory / "log").iterdir()}


def damage(directory: Path) -> tuple[Path, int]:
    """Flip a byte of an entry of ledger 1; return the segment and the entry id."""
    path = sorted((directory / "log").glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    at = data.index(b"1:")
    entry_id = int(data[at + 2 : data.index(b":", at + 2)])
    data[at + 30] ^= 1
    path.write_bytes(data)
    return path, entry_id


async def exported(directory: Path, *ledger_ids: int) -> list[ExportedEntry]:
    return [each async for each in export_entries(directory, lambda _: None, frozenset(ledger_ids))]


async def test_a_directory_that_is_whole_has_no_problems(directory: Path) -> None:
    before = files(directory)
    read: list[int] = []
    report = await check_directory(directory, read.append)
    assert report.problems == []
    assert (report.ledgers, report.deleted, report.fenced) == (2, 1, 1)
    assert report.entries == 2 * ENTRIES
    assert report.clean_stop
    assert 0 < report.live_bytes <= report.log_bytes == log_bytes(directory)
    assert sum(read) > 0.5 * report.live_bytes
    assert files(directory) == before


async def test_damage_is_a_problem_and_named(directory: Path) -> None:
    path, entry_id = damage(directory)
    report = await check_directory(directory, lambda _: None)
    assert any(str(path) in problem for problem in report.problems)
    (lost,) = [each for each in await exported(directory) if each.data is None]
    assert (lost.ledger_id, lost.entry_id) == (1, entry_id)
    assert "damaged" in lost.error


async def test_a_segment_that_is_missing_is_a_problem(directory: Path) -> None:
    gone = sorted((directory / "log").glob("*.log"))[0]
    kept = gone.rename(gone.with_suffix(".kept"))
    assert len([each for each in await exported(directory) if each.data is None]) > 10
    kept.rename(gone)
    assert (await check_directory(directory, lambda _: None)).problems == []


async def test_entries_are_exported_in_order(directory: Path) -> None:
    expected = [
        ExportedEntry(ledger_id, entry_id, entry(ledger_id, entry_id))
        for ledger_id in (1, 2)
        for entry_id in range(ENTRIES)
    ]
    assert await exported(directory) == expected
    assert await exported(directory, 2, 3, 9) == expected[ENTRIES:]


async def test_an_index_is_made_again_from_the_log_alone(directory: Path) -> None:
    shutil.rmtree(directory / "index")
    with pytest.raises(OfflineError, match="rebuild-index"):
        await check_directory(directory, lambda _: None)
    before = files(directory)
    assert await remake_index(directory, lambda _: None) == []
    assert files(directory) == before
    assert sorted(os.listdir(directory)) == ["INDEX", "LOCK", "index-2", "log"]
    assert (await check_directory(directory, lambda _: None)).problems == []
    assert (directory / "INDEX").read_bytes() == b"1 index-2 whole\n"
    async with opened(directory, 2000) as store:
        assert not store.limbo
        assert store.statistics().replayed_bytes < 5000  # the end of the last file
        for entry_id in range(ENTRIES):
            assert await store.read(2, entry_id) == entry(2, entry_id)
        answers = Answers(store)
        answers.add(1, 999)
        answers.add(3, 999)
        assert await answers.all() == [StoreStatus.FENCED] * 2


async def test_an_index_that_its_bookie_found_damaged_is_made_again_and_stays_in_doubt(
    directory: Path,
) -> None:
    (directory / "INDEX").write_bytes(b"1 index damaged\n")
    with pytest.raises(OfflineError, match="damaged"):
        await check_directory(directory, lambda _: None)
    assert await remake_index(directory, lambda _: None) == []
    async with opened(directory, 2000) as store:
        assert store.limbo
        assert store.statistics().replayed_bytes < 5000


async def test_an_index_made_from_a_log_that_lost_records_knows_that(directory: Path) -> None:
    _, entry_id = damage(directory)
    assert len(await remake_index(directory, lambda _: None)) == 1
    async with opened(directory, 2000) as store:
        assert store.limbo
        assert await status_of(store.read(1, entry_id)) is StoreStatus.UNKNOWN


async def test_a_directory_in_use_is_left_alone(directory: Path) -> None:
    async with opened(directory, 2000):
        for work in (check_directory, remake_index):
            with pytest.raises(DirectoryInUseError):
                await work(directory, lambda _: None)
        with pytest.raises(DirectoryInUseError):
            await exported(directory)


async def test_what_is_no_directory_of_a_bookie_is_said(tmp_path: Path) -> None:
    for work in (check_directory, remake_index):
        with pytest.raises(OfflineError, match="not a directory of a bookie"):
            await work(tmp_path, lambda _: None)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("which", [0, 1, -2])
async def test_a_segment_that_is_gone_is_a_problem_whichever_it_is(
    directory: Path, which: int
) -> None:
    """This includes the first one of a log, and one behind a gap: no other one ends early then."""
    paths = sorted((directory / "log").glob("*.log"))
    paths[which].unlink()
    report = await check_directory(directory, lambda _: None)
    assert report.problems != []
    assert report.entries < 2 * ENTRIES


def everything(directory: Path) -> dict[str, bytes]:
    names = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in names}


async def test_checking_and_exporting_change_nothing_at_all(directory: Path) -> None:
    """The index is not changed either: it may be the last one that knows the log's losses."""
    damage(directory)
    before = everything(directory)
    await check_directory(directory, lambda _: None)
    await exported(directory)
    assert everything(directory) == before


async def test_an_index_that_is_empty_is_not_made_by_checking(directory: Path) -> None:
    shutil.rmtree(directory / "index")
    (directory / "index").mkdir()
    with pytest.raises(OfflineError, match="rebuild-index"):
        await check_directory(directory, lambda _: None)
    assert os.listdir(directory / "index") == []


async def test_a_torn_tail_is_no_problem_and_what_is_in_doubt_is_exported(tmp_path: Path) -> None:
    directory = tmp_path / "d0"
    async with opened(directory) as store:
        answers = Answers(store)
        for entry_id in range(20):
            answers.add(1, entry_id)
            await answers.all()
        copy = tmp_path / "killed"
        shutil.copytree(directory, copy)
    (segment,) = (copy / "log").glob("*.log")
    whole = segment.read_bytes().rstrip(b"\0")
    assert (await check_directory(copy, lambda _: None)).problems == []
    assert not (await check_directory(copy, lambda _: None)).clean_stop
    assert [each.entry_id for each in await exported(copy)] == list(range(20))
    segment.write_bytes(whole[:-30])
    assert (await check_directory(copy, lambda _: None)).problems == []
    assert [each.entry_id for each in await exported(copy)] == list(range(19))
    segment.write_bytes(whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])
    assert (await check_directory(copy, lambda _: None)).problems != []


async def test_a_check_says_what_may_be_lost(directory: Path) -> None:
    async with opened(directory, 2000) as store:
        await store.limbo_ledgers.mark([LimboMark(1, limbo=True, fence=True)])
    (problem,) = (await check_directory(directory, lambda _: None)).problems
    assert problem.startswith("1 ledgers are in limbo")
    await mark_dirty(FileDisk(), str(directory))
    dirty, _ = (await check_directory(directory, lambda _: None)).problems
    assert "not clean" in dirty
