"""Damage anywhere in the log is found, reported, and read as an error: never as an absence."""

import errno
import random
from math import inf

import pytest
import trio
import trio.testing

from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.scrub import Finding
from daybook.bookie.storage.segments import ReadLimits
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import EAGER, entry

OK, IO_ERROR, UNKNOWN = StoreStatus.OK, StoreStatus.IO_ERROR, StoreStatus.UNKNOWN
SMALL: dict[str, object] = {
    "log": LogLimits(segment_bytes=4000, reading=ReadLimits(windows_bytes_max=1)),
    "scrub_bytes_per_s": inf,
    "space_check_s": 1e6,
    "reclaim": EAGER,
}
ENTRIES = 120


async def fill(host: Host) -> None:
    async with host.store(**SMALL) as store:
        answers = Answers(store)
        for entry_id in range(ENTRIES):
            answers.add(1 + entry_id % 2, entry_id)
            assert await answers.all() == [OK]


async def unreadable(store: LedgerStore) -> list[tuple[int, int]]:
    """Return the entries that cannot be read, after checking that the others are unchanged."""
    lost: list[tuple[int, int]] = []
    for entry_id in range(ENTRIES):
        ledger_id = 1 + entry_id % 2
        status = await status_of(store.read(ledger_id, entry_id))
        if status is OK:
            assert await store.read(ledger_id, entry_id) == entry(ledger_id, entry_id)
        else:
            assert status is IO_ERROR
            lost.append((ledger_id, entry_id))
    return lost


async def test_a_log_that_is_whole_has_no_findings(host: Host) -> None:
    await fill(host)
    async with host.store(**SMALL) as store:
        await store.maintenance.scrub()
        statistics = store.statistics()
        assert (statistics.scrubs, statistics.damaged_ranges) == (1, 0)
        assert statistics.bytes_scrubbed > 0.9 * statistics.log_bytes
        assert store.maintenance.findings() == []


@pytest.mark.parametrize("seed", range(30))
async def test_a_bit_that_flips_anywhere_is_found_and_no_absence(host: Host, seed: int) -> None:
    await fill(host)
    rng = random.Random(seed)
    path = rng.choice(host.logs())
    content = host.platter.content(path)
    used = len(content.rstrip(b"\0"))
    at = rng.randrange(28 if seed % 5 == 0 else used)
    async with host.store(**SMALL) as store:
        host.platter.corrupt(path, at, bytes([content[at] ^ 1 << rng.randrange(8)]))
        found: list[Finding] = []
        store.maintenance.add_finding_listener(found.append)
        await store.maintenance.scrub()
        assert found == store.maintenance.findings() != []
        assert {finding.path for finding in found} == {path}
        named = {each for finding in found for each in finding.entries}
        assert set(await unreadable(store)) <= named
        assert store.statistics().damaged_entries == len(named)
        await store.maintenance.scrub()
        assert len(found) == len(store.maintenance.findings())  # reported once
    async with host.store(**SMALL) as store:
        assert set(await unreadable(store)) == named


async def test_a_sector_that_cannot_be_read_is_found(host: Host) -> None:
    await fill(host)
    path = host.logs()[1]
    host.platter.spoil(path, 1500)
    async with host.store(**SMALL) as store:
        await store.maintenance.scrub()
        lost = await unreadable(store)
        assert 0 < len(lost) < 10  # the bytes around it are read
        assert {
            each for finding in store.maintenance.findings() for each in finding.entries
        } == set(lost)


async def test_what_is_still_in_memory_is_written_again(host: Host) -> None:
    await fill(host)
    async with host.store(scrub_bytes_per_s=inf, reclaim=EAGER) as store:
        assert await unreadable(store) == []  # so the log was read
        path = host.logs()[1]
        for at in range(28, len(host.platter.content(path)), 40):
            host.platter.corrupt(path, at, b"XX")
        await store.maintenance.scrub()
        assert {finding.entries for finding in store.maintenance.findings()} == {()}
    async with host.store(**SMALL) as store:
        assert await unreadable(store) == []


async def test_where_there_is_no_room_it_is_left_to_others(host: Host) -> None:
    await fill(host)
    host.platter.free_bytes = 1
    async with host.store(scrub_bytes_per_s=inf, free_bytes_min=1000) as store:
        assert await unreadable(store) == []
        path = host.logs()[1]
        for at in range(28, len(host.platter.content(path)), 40):
            host.platter.corrupt(path, at, b"XX")
        before = store.statistics().log_bytes
        await store.maintenance.scrub()
        assert any(finding.entries for finding in store.maintenance.findings())
        assert store.statistics().log_bytes == before


@pytest.mark.parametrize("how", ["flipped", "unreadable"])
async def test_nothing_is_written_behind_a_header_that_is_gone(host: Host, how: str) -> None:
    """Seed 681306: repaired entries were written there, and repaired again, forever."""
    async with host.store(scrub_bytes_per_s=inf, reclaim=EAGER) as store:
        answers = Answers(store)
        for entry_id in range(ENTRIES):
            answers.add(1 + entry_id % 2, entry_id)
        assert set(await answers.all()) == {OK}
        (path,) = host.logs()
        if how == "flipped":
            host.platter.corrupt(path, 9, b"X")
        else:
            host.platter.spoil(path, 9)
        await store.maintenance.scrub()
        lost = [each for finding in store.maintenance.findings() for each in finding.entries]
        assert len(lost) == (0 if how == "flipped" else 4)  # those in the sector itself
        answers.add(3, 0)
        assert await answers.all() == [OK]
    async with host.store(**SMALL) as store:
        assert set(await unreadable(store)) == set(lost)
        assert await store.read(3, 0) == entry(3, 0)


async def test_a_segment_that_is_gone_is_found(host: Host) -> None:
    await fill(host)
    async with host.store(**SMALL) as store:
        path = host.logs()[1]
        host.platter.forget(path)
        await store.maintenance.scrub()
        (finding,) = store.maintenance.findings()
        assert finding.path == path
        assert set(finding.entries) == set(await unreadable(store))


async def test_what_nobody_points_to_is_a_finding_without_entries(host: Host) -> None:
    await fill(host)
    async with host.store(**SMALL) as store:
        await store.delete(1)
        await store.maintenance.checkpoint()
        path = host.logs()[1]
        content = host.platter.content(path)
        host.platter.corrupt(path, content.index(b"1:"), b"X")
        await store.maintenance.scrub()
        assert [finding.entries for finding in store.maintenance.findings()] == [()]


async def test_torn_writes_and_removed_segments_are_no_findings(host: Host) -> None:
    for life in range(3):
        async with host.doomed_store(**SMALL) as store:
            answers = Answers(store)
            for entry_id in range(40):
                answers.add(life, entry_id)
                await answers.all()
            host.platter.kill()
        path = [path for path in host.logs() if path.endswith(".log")][-1]
        host.platter.truncate(path, len(host.platter.content(path)) - 5)
    async with host.store(**SMALL) as store:
        await store.delete(1)
        await store.maintenance.reclaim()
        assert store.statistics().segments_removed > 0
        await store.maintenance.scrub()
        assert store.maintenance.findings() == []


async def test_a_finding_goes_with_its_segment(host: Host) -> None:
    await fill(host)
    async with host.store(**SMALL) as store:
        path = host.logs()[1]
        content = host.platter.content(path)
        host.platter.corrupt(path, content.index(b"1:"), b"X")
        await store.maintenance.scrub()
        assert len(store.maintenance.findings()) == 1
        host.platter.corrupt(path, 0, content)
        await store.maintenance.scrub()
        assert store.maintenance.findings() == []
        assert store.statistics().damaged_entries == 0


async def test_a_look_at_everything_keeps_to_its_rate(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    await fill(host)
    async with host.store(**{**SMALL, "scrub_bytes_per_s": 1000}) as store:
        started = trio.current_time()
        await store.maintenance.scrub()
        assert trio.current_time() - started >= 0.99 * store.statistics().bytes_scrubbed / 1000


async def test_an_index_that_fails_meanwhile_is_counted_and_harms_nobody(host: Host) -> None:
    await fill(host)
    async with host.store(**SMALL) as store:
        path = host.logs()[0]
        host.platter.corrupt(path, host.platter.content(path).index(b"1:"), b"X")
        host.platter.fail_next("index_scan", OSError(errno.EMFILE, "too many open files"))
        await store.maintenance.scrub()
        assert store.statistics().scrub_failures == 1
        await store.maintenance.scrub()
        assert len(store.maintenance.findings()) == 1


async def test_a_segment_that_is_gone_is_found_though_none_is_in_front_of_it(host: Host) -> None:
    """No neighbor is cut off then: neither at the front of the log nor behind a gap."""
    await fill(host)
    async with host.store(**SMALL) as store:
        first = host.logs()[0]
        host.platter.forget(first)
        await store.maintenance.scrub()
    async with host.store(**SMALL) as store:
        await store.maintenance.scrub()
        named = {each for finding in store.maintenance.findings() for each in finding.entries}
        assert named == set(await unreadable(store)) != set()
        assert store.statistics().damaged_ranges == 1
        await store.maintenance.scrub()
        assert store.statistics().damaged_ranges == 1


async def test_a_segment_that_is_gone_behind_removed_ones_is_found(host: Host) -> None:
    for life in range(3):
        async with host.store(**SMALL) as store:
            answers = Answers(store)
            for entry_id in range(40):
                answers.add(1 + min(life, 1), 40 * life + entry_id)
                await answers.all()
    async with host.store(**SMALL) as store:
        await store.delete(1)
        await store.maintenance.reclaim()
        removed = store.statistics().segments_removed
        assert removed
    lost = next(path for path in host.logs() if path.endswith(".log"))
    host.platter.forget(lost)
    async with host.store(**SMALL) as store:
        await store.maintenance.scrub()
        named = {each for finding in store.maintenance.findings() for each in finding.entries}
        missing = [e for e in range(40, 120) if await status_of(store.read(2, e)) is IO_ERROR]
        assert named == {(2, entry_id) for entry_id in missing} != set()


async def test_what_is_looked_at_entry_by_entry_keeps_to_the_rate_as_well(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    await fill(host)
    path = host.logs()[1]
    host.platter.spoil(path, 0)  # then each entry of it is tried
    async with host.store(**{**SMALL, "scrub_bytes_per_s": 1000}) as store:
        started = trio.current_time()
        await store.maintenance.scrub()
        looked_at = store.statistics().bytes_scrubbed + 3000
        assert store.statistics().damaged_entries > 20
        assert trio.current_time() - started >= looked_at / 1000


@pytest.mark.parametrize("at", range(3, 12))
async def test_a_segment_that_is_removed_while_the_scrub_reads_in_it_harms_nobody(
    host: Host, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A sector could not be read for a moment, so its entries are tried one by one."""
    await fill(host)
    async with host.store(**SMALL) as store:
        log = store._directories.ledger_directories[0].log
        segment = log.segments[0]
        host.platter.fail_next("read", OSError(errno.EIO, "not now"), after=2)
        operate = host.platter.operate
        reads = 0

        async def remove_meanwhile(name: str, generation: int) -> None:
            nonlocal reads
            await operate(name, generation)
            reads += name == "read"
            if reads == at and segment in log.segments:
                log.forget(segment)

        monkeypatch.setattr(host.platter, "operate", remove_meanwhile)
        await store.maintenance.scrub()
        assert segment not in log.segments
        assert all(finding.path != segment.path for finding in store.maintenance.findings())


async def test_padding_behind_the_last_record_is_no_damage_after_a_restart(host: Host) -> None:
    """Files are preallocated; once, after a kill, the zeros at the end stayed a finding."""
    await fill(host)
    path = host.logs()[-1]
    host.platter.corrupt(path, len(host.platter.content(path)), bytes(4096))
    async with host.store(**SMALL) as store:
        await store.maintenance.scrub()
        assert store.maintenance.findings() == []
        assert store.statistics().scrubs == 1
        answers = Answers(store)
        answers.add(1, 5000)
        assert await answers.all() == [StoreStatus.OK]
        await store.maintenance.scrub()
        assert store.maintenance.findings() == []


async def test_damage_of_the_last_segment_is_found_though_there_is_padding(host: Host) -> None:
    await fill(host)
    path = host.logs()[-1]
    content = host.platter.content(path)
    host.platter.corrupt(path, len(content), bytes(4096))
    async with host.store(**SMALL) as store:
        host.platter.corrupt(path, content.rindex(b"1:"), b"X")
        await store.maintenance.scrub()
        assert len(store.maintenance.findings()) == 1
