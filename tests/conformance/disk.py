"""The contract of a disk, run on the simulated one and on real files.

A test module derives a class from `DiskSuite` and has the fixtures `disk` and `root`.
"""

import pytest
import trio

from daybook.bookie.storage.disk import DirectoryInUseError, Disk


class DiskSuite:
    async def test_a_directory_is_made_with_its_parents_and_may_be_there_already(
        self, disk: Disk, root: str
    ) -> None:
        await disk.make_directory(f"{root}/a/b")
        await disk.make_directory(f"{root}/a/b")
        assert await disk.list_directory(f"{root}/a") == ["b"]
        assert await disk.list_directory(f"{root}/a/b") == []

    async def test_names_come_sorted(self, disk: Disk, root: str) -> None:
        for name in ("c", "a", "b"):
            await disk.write_file(f"{root}/{name}", b"")
        assert await disk.list_directory(root) == ["a", "b", "c"]

    async def test_what_is_not_there_is_an_error(self, disk: Disk, root: str) -> None:
        attempts = (disk.read_file, disk.size, disk.open_reader, disk.remove, disk.remove_in_steps)
        for attempt in attempts:
            with pytest.raises(FileNotFoundError):
                await attempt(f"{root}/nothing")
        with pytest.raises(FileNotFoundError):
            await disk.list_directory(f"{root}/nothing")

    async def test_a_file_is_written_replaced_and_removed(self, disk: Disk, root: str) -> None:
        path = f"{root}/file"
        await disk.write_file(path, b"one")
        await disk.write_file(path, b"other")
        assert await disk.read_file(path) == b"other"
        assert await disk.size(path) == 5
        assert await disk.list_directory(root) == ["file"]
        await disk.remove(path)
        assert await disk.list_directory(root) == []
        await disk.write_file(path, b"third")
        await disk.remove_in_steps(path)
        assert await disk.list_directory(root) == []

    async def test_a_lock_excludes_others_until_it_is_released(self, disk: Disk, root: str) -> None:
        lock = await disk.lock_directory(root)
        with pytest.raises(DirectoryInUseError):
            await disk.lock_directory(root)
        lock.release()
        lock.release()
        (await disk.lock_directory(root)).release()

    async def test_there_is_room(self, disk: Disk, root: str) -> None:
        assert await disk.free_bytes(root) > 0

    async def test_appended_bytes_are_there_in_order(self, disk: Disk, root: str) -> None:
        pieces = [b"x" * size for size in (1, 4095, 1, 4096, 3, 10_000, 0, 5)]
        appender = disk.open_appender()
        await appender.start(f"{root}/log", [pieces[0]])
        for piece in pieces[1:]:
            await appender.write([piece, memoryview(b"|")])
        await appender.aclose()
        expected = pieces[0] + b"".join(piece + b"|" for piece in pieces[1:])
        reader = await disk.open_reader(f"{root}/log")
        assert bytes(await reader.read(0, len(expected))) == expected
        assert await disk.size(f"{root}/log") >= len(expected)
        reader.close()

    async def test_pieces_of_a_file_are_read_together(self, disk: Disk, root: str) -> None:
        content = b"".join(b"%07d|" % number for number in range(100_000))
        await disk.write_file(f"{root}/file", content)
        reader = await disk.open_reader(f"{root}/file")
        pieces = [(0, 9), (4095, 70_000), (400_000, 65_536), (100_000, 1), (799_990, 500)]
        found = await reader.read_pieces(pieces)
        assert [bytes(each) for each in found] == [
            content[offset : offset + size] for offset, size in pieces
        ]
        reader.close()
        with pytest.raises(OSError, match="closed"):
            await reader.read_pieces(pieces)

    async def test_behind_the_appended_bytes_there_are_zeros_at_most(
        self, disk: Disk, root: str
    ) -> None:
        appender = disk.open_appender()
        await appender.start(f"{root}/log", [b"some"])
        reader = await disk.open_reader(f"{root}/log")
        data = bytes(await reader.read(0, 10_000))
        assert data.rstrip(b"\0") == b"some"
        await appender.write([b"more"])
        assert bytes(await reader.read(0, 10_000)).rstrip(b"\0") == b"somemore"
        await appender.aclose()
        reader.close()

    async def test_a_write_may_have_thousands_of_buffers_and_be_larger_than_any_stage(
        self, disk: Disk, root: str
    ) -> None:
        small = [b"%04d" % number for number in range(3000)]
        large = [bytes([number]) * 700_001 for number in range(5)]
        appender = disk.open_appender()
        await appender.start(f"{root}/log", small)
        await appender.write([*large, *small])
        await appender.write([b"end"])
        await appender.aclose()
        expected = b"".join([*small, *large, *small, b"end"])
        reader = await disk.open_reader(f"{root}/log")
        assert bytes(await reader.read(0, len(expected))) == expected
        reader.close()

    async def test_an_appender_goes_on_to_a_new_file(self, disk: Disk, root: str) -> None:
        appender = disk.open_appender()
        await appender.start(f"{root}/0", [b"first"])
        await appender.start(f"{root}/1", [b"second"])
        await appender.write([b"more"])
        await appender.aclose()
        assert (await disk.read_file(f"{root}/0")).rstrip(b"\0") == b"first"
        assert (await disk.read_file(f"{root}/1")).rstrip(b"\0") == b"secondmore"

    async def test_an_appender_never_writes_into_an_old_file(self, disk: Disk, root: str) -> None:
        await disk.write_file(f"{root}/log", b"precious")
        appender = disk.open_appender()
        with pytest.raises(FileExistsError):
            await appender.start(f"{root}/log", [b"x"])
        with pytest.raises(OSError, match="earlier"):  # no more writes after an error
            await appender.start(f"{root}/other", [b"x"])
        await appender.aclose()
        assert await disk.read_file(f"{root}/log") == b"precious"

    async def test_a_write_that_has_begun_is_waited_for_also_when_it_is_cancelled(
        self, disk: Disk, root: str
    ) -> None:
        appender = disk.open_appender()
        await appender.start(f"{root}/log", [b"."])
        with trio.CancelScope() as scope:
            scope.cancel()
            await appender.write([b"written"])
        await appender.aclose()
        assert (await disk.read_file(f"{root}/log")).rstrip(b"\0") == b".written"

    async def test_a_closed_reader_lets_those_who_read_finish(self, disk: Disk, root: str) -> None:
        await disk.write_file(f"{root}/file", b"content")
        reader = await disk.open_reader(f"{root}/file")
        got: list[bytes] = []

        async def read() -> None:
            got.append(bytes(await reader.read(0, 7)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            reader.close()
            reader.close()
        assert got == [b"content"]
        with pytest.raises(OSError, match="closed"):
            await reader.read(0, 1)

    async def test_reading_stops_at_the_end(self, disk: Disk, root: str) -> None:
        await disk.write_file(f"{root}/file", b"0123456789")
        reader = await disk.open_reader(f"{root}/file")
        assert bytes(await reader.read(8, 100)) == b"89"
        assert bytes(await reader.read(10, 5)) == b""
        assert bytes(await reader.read(50, 5)) == b""
        reader.close()
