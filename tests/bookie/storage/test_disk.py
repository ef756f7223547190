"""The disk contract, on files and in the simulation, and the behavior of only one of them."""

import errno
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.bookie.storage.disk import Buffer, Disk, FileDisk, PreallocatedFile
from tests.conformance.disk import DiskSuite
from tests.harness.disk import HostCrashedError, Platter

MIB = 1 << 20


def held_open(root: str) -> list[str]:
    """Return the removed files of the directory that this process has open, by descriptor."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [path for path in found if path.startswith(root) and path.endswith("(deleted)")]


class TestFileDisk(DiskSuite):
    @pytest.fixture
    def disk(self) -> Disk:
        return FileDisk()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)

    async def test_a_file_system_without_direct_writes_will_do(
        self, disk: Disk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If O_DIRECT is refused (tmpfs), appending works all the same."""
        opened = os.open

        def refuse_direct(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_DIRECT:
                # Some file systems create the file first.
                os.close(opened(path, flags & ~os.O_DIRECT, mode))
                raise OSError(errno.EINVAL, "no direct writes here")
            return opened(path, flags, mode)

        monkeypatch.setattr(os, "open", refuse_direct)
        await self.test_appended_bytes_are_there_in_order(disk, root)

    async def test_the_loop_writes_a_few_bytes_itself_while_the_disk_is_quick(
        self, disk: Disk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now_s, takes_s = 0.0, 0.0
        in_loop: list[bool] = []
        really = PreallocatedFile.append

        def append(file: PreallocatedFile, buffers: Sequence[Buffer]) -> None:
            nonlocal now_s
            in_loop.append(threading.current_thread() is loop)
            really(file, buffers)
            now_s += takes_s

        loop = threading.current_thread()
        monkeypatch.setattr(PreallocatedFile, "append", append)
        monkeypatch.setattr(time, "perf_counter", lambda: now_s)
        appender = disk.open_appender()
        await appender.start(f"{root}/log", [b"start"])
        for size, seconds in ((9, 0.0), (20_000, 0.0), (9, 0.5), (9, 0.5), (9, 0.0), (9, 0.0)):
            takes_s = seconds
            await appender.write([bytes(size)])
        await appender.aclose()
        assert in_loop == [False, True, False, True, False, False, True]
        assert (Path(root) / "log").stat().st_size >= 5 + 20_000 + 5 * 9

    @pytest.mark.parametrize("size", [9, 20_000])
    async def test_after_a_failed_write_nothing_is_written_any_more(
        self, disk: Disk, root: str, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        appender = disk.open_appender()
        await appender.start(f"{root}/log", [b"start"])
        await appender.write([b"quick"])

        def fail(file: PreallocatedFile, buffers: Sequence[Buffer]) -> None:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr(PreallocatedFile, "append", fail)
        with pytest.raises(OSError, match="input/output"):
            await appender.write([bytes(size)])
        monkeypatch.undo()
        with pytest.raises(OSError, match="earlier write"):
            await appender.write([bytes(size)])
        await appender.aclose()

    async def test_readers_see_every_byte_that_is_durable_while_the_file_grows(
        self, disk: Disk, root: str
    ) -> None:
        """Writes bypass the page cache, reads use it: the kernel keeps them consistent."""
        rng = random.Random(3)
        appender = disk.open_appender()
        await appender.start(f"{root}/log", [b"start"])
        written = bytearray(b"start")
        reader = await disk.open_reader(f"{root}/log")
        done = False

        async def read_the_end() -> None:
            while not done:
                durable = len(written)
                first = max(0, durable - rng.randrange(1, 9000))
                data = bytes(await reader.read(first, 10_000))
                assert data[: durable - first] == written[first:durable]

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read_the_end)
            for _ in range(300):
                piece = rng.randbytes(rng.choice((1, 100, 3000, 4096, 20_000)))
                await appender.write([piece])
                written += piece
            done = True
        assert bytes(await reader.read(0, len(written))) == written
        await appender.aclose()
        reader.close()

    async def test_a_large_file_loses_its_name_durably_and_then_a_few_bytes_at_a_time(
        self, disk: Disk, root: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
    ) -> None:
        path = Path(root) / "log"
        done: list[str | int] = []
        truncate, fsync = os.ftruncate, os.fsync

        def truncated(descriptor: int, size: int) -> None:
            assert threading.current_thread() is not loop
            done.append(size)
            truncate(descriptor, size)

        def synced(descriptor: int) -> None:
            done.append("there" if path.exists() else "gone")
            fsync(descriptor)

        loop = threading.current_thread()
        with path.open("wb") as file:
            file.truncate(20 * MIB)
        monkeypatch.setattr(os, "ftruncate", truncated)
        monkeypatch.setattr(os, "fsync", synced)
        began_s = trio.current_time()
        await disk.remove_in_steps(str(path))
        assert done == ["gone", 12 * MIB, 4 * MIB, 0]
        assert trio.current_time() - began_s >= 0.06, "others get the disk in between"

    @pytest.mark.parametrize("size", [5000, MIB])
    async def test_a_reader_never_finds_a_removed_file_shorter(
        self, disk: Disk, root: str, size: int, autojump_clock: MockClock
    ) -> None:
        content = random.Random(1).randbytes(size)
        await disk.write_file(f"{root}/log", content)
        reader = await disk.open_reader(f"{root}/log")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.remove_in_steps, f"{root}/log")
            # A thread takes real time, and the clock jumps meanwhile.
            while await disk.list_directory(root):  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert bytes(await reader.read(0, size)) == content
            reader.close()

    async def test_a_reader_that_stays_open_keeps_the_bytes_and_does_not_stop_the_removal(
        self, disk: Disk, root: str, autojump_clock: MockClock
    ) -> None:
        await disk.write_file(f"{root}/log", b"bytes")
        reader = await disk.open_reader(f"{root}/log")
        await disk.remove_in_steps(f"{root}/log")
        assert bytes(await reader.read(0, 5)) == b"bytes"
        reader.close()

    async def test_the_bytes_under_a_reader_that_stays_open_go_in_steps_when_it_is_closed(
        self, disk: Disk, root: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
    ) -> None:
        freed: list[int] = []
        monkeypatch.setattr(os, "ftruncate", lambda _, size: freed.append(size))
        for name in ("log", "other"):
            await disk.write_file(f"{root}/{name}", bytes(20 * MIB))
        reader, other = [await disk.open_reader(f"{root}/{name}") for name in ("log", "other")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.run)
            await wait_all_tasks_blocked()
            for name in ("log", "other"):
                await disk.remove_in_steps(f"{root}/{name}")
            assert freed == []
            assert len(held_open(root)) == 6  # Each reader has two descriptors, and `run` has one.
            assert bytes(await reader.read(20 * MIB - 5, 5)) == bytes(5)
            reader.close()
            # A thread takes real time, and the clock jumps meanwhile.
            while len(held_open(root)) > 3:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert freed == [12 * MIB, 4 * MIB, 0]
            nursery.cancel_scope.cancel()
        assert len(held_open(root)) == 2
        other.close()

    async def test_a_reader_that_could_not_be_opened_does_not_count(
        self, disk: Disk, root: str, autojump_clock: MockClock
    ) -> None:
        with pytest.raises(FileNotFoundError):
            await disk.open_reader(f"{root}/log")
        await disk.write_file(f"{root}/log", b"bytes")
        began_s = trio.current_time()
        await disk.remove_in_steps(f"{root}/log")
        assert trio.current_time() - began_s < 0.05

    @pytest.mark.parametrize("fails", [True, False])
    async def test_a_removal_that_is_cut_short_keeps_no_bytes(
        self, disk: Disk, root: str, fails: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its truncation fails, or it is cancelled: the file is closed and so the rest is free."""
        path = Path(root) / "log"
        with path.open("wb") as file:
            file.truncate(20 * MIB)
        kept: list[int] = []

        def truncate(descriptor: int, size: int) -> None:
            kept.append(descriptor)
            if fails:
                raise OSError(errno.EIO, "input/output error")
            trio.from_thread.run_sync(scope.cancel)

        monkeypatch.setattr(os, "ftruncate", truncate)
        with trio.CancelScope() as scope:
            await disk.remove_in_steps(str(path))
        assert scope.cancelled_caught != fails
        assert not path.exists()
        (descriptor,) = kept
        with suppress(FileNotFoundError):  # Another thread may have the number by now.
            assert str(path) not in os.readlink(f"/proc/self/fd/{descriptor}")

    async def test_another_process_cannot_have_the_lock(self, disk: Disk, root: str) -> None:
        lock = await disk.lock_directory(root)
        attempt = (
            "import sys, trio; from daybook.bookie.storage.disk import *\n"
            "try: trio.run(FileDisk().lock_directory, sys.argv[1])\n"
            "except DirectoryInUseError: print('in use')"
        )
        command = [sys.executable, "-c", attempt, root]
        assert (await trio.run_process(command, capture_stdout=True)).stdout == b"in use\n"
        lock.release()
        assert (await trio.run_process(command, capture_stdout=True)).stdout == b""


class TestSimulatedDisk(DiskSuite):
    @pytest.fixture
    def disk(self) -> Disk:
        return Platter(random.Random(1)).mount()

    @pytest.fixture
    async def root(self, disk: Disk) -> str:
        await disk.make_directory("root")
        return "root"


async def test_only_its_owner_enters_a_new_directory(tmp_path: Path) -> None:
    disk = FileDisk()
    old, new = tmp_path / "old", tmp_path / "parent" / "new"
    before = os.umask(0o022)
    try:
        old.mkdir()
        for path in (old, new, new / "log"):
            await disk.make_directory(str(path))
            await disk.make_directory(str(path))
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (old, new.parent, new, new / "log")]
    assert modes == [0o755, 0o755, 0o700, 0o700]


async def test_a_loss_of_power_keeps_what_was_promised_and_anything_of_the_rest() -> None:
    outcomes: set[bytes] = set()
    for seed in range(60):
        platter = Platter(random.Random(seed))
        disk = platter.mount()
        await disk.make_directory("d")
        appender = disk.open_appender()
        await appender.start("d/log", [b"A" * 600])
        platter.crash_before(1)  # between the write and its sync
        with pytest.raises(HostCrashedError):
            await appender.write([b"B" * 2000])
        platter.lose_power()
        content = platter.content("d/log")
        assert content[:600] == b"A" * 600
        outcomes.add(content[600:])
    assert b"" in outcomes
    assert b"B" * 2000 in outcomes
    assert any(len(outcome.rstrip(b"B")) > 0 for outcome in outcomes), "no write was ever torn"


async def test_a_name_is_lost_unless_it_was_synced() -> None:
    lost = 0
    for seed in range(20):
        platter = Platter(random.Random(seed))
        disk = platter.mount()
        await disk.make_directory("d")
        platter.crash_before(3)  # created, written, synced; the name is not durable
        with pytest.raises(HostCrashedError):
            await disk.open_appender().start("d/log", [b"A"])
        platter.lose_power()
        lost += platter.paths() == []
    assert 0 < lost < 20


async def test_a_dead_host_does_nothing_any_more() -> None:
    platter = Platter(random.Random(1))
    disk = platter.mount()
    await disk.make_directory("d")
    platter.kill()
    with pytest.raises(HostCrashedError):
        await disk.write_file("d/file", b"late")
    assert platter.paths() == []


async def test_after_a_failed_sync_the_bytes_look_written_and_are_gone() -> None:
    for seed in range(20):
        platter = Platter(random.Random(seed))
        disk = platter.mount()
        await disk.make_directory("d")
        appender = disk.open_appender()
        await appender.start("d/log", [b"A"])
        platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        with pytest.raises(OSError, match="input/output"):
            await appender.write([b"B"])
        assert platter.content("d/log") == b"AB"
        platter.lose_power()
        if platter.content("d/log") == b"A":
            return
    raise AssertionError("the bytes were never lost")


async def test_a_stuck_disk_answers_when_it_is_freed() -> None:
    platter = Platter(random.Random(1))
    disk = platter.mount()
    free = platter.stick()
    with trio.move_on_after(0.01) as scope:
        await disk.make_directory("d")
    assert scope.cancelled_caught
    free.set()
    await disk.make_directory("d")
