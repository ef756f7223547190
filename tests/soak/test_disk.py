"""A disk misbehaves as its mood says; an appender that has failed once rejects everything."""

import errno
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from daybook.bookie.storage.disk import FileDisk
from tests.soak.damage import damage_index, rot
from tests.soak.disk import FINE, Mood, MoodFile, MoodyDisk


class Place:
    """A directory, its disk, and its mood."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moods = MoodFile(path / "mood")
        self.disk = MoodyDisk(FileDisk(), MoodFile(path / "mood").read, Random(1))

    def file(self, name: str) -> str:
        return str(self.path / name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_disk_that_is_fine_is_the_one_below(place: Place) -> None:
    await place.disk.write_file(place.file("a"), b"x")
    assert await place.disk.read_file(place.file("a")) == b"x"
    assert await place.disk.size(place.file("a")) == 1
    assert await place.disk.free_bytes(str(place.path)) > 0


async def test_a_full_disk_takes_nothing_and_gives_room_back(place: Place) -> None:
    await place.disk.write_file(place.file("a"), b"x")
    appender = place.disk.open_appender()
    await appender.start(place.file("log"), [b"first"])
    place.moods.write(Mood(full=True))
    assert await place.disk.free_bytes(str(place.path)) == 0
    with pytest.raises(OSError, match="no space left") as full:
        await appender.write([b"second"])
    assert full.value.errno == errno.ENOSPC
    await place.disk.remove(place.file("a"))
    place.moods.write(FINE)
    with pytest.raises(OSError, match="earlier write failed"):
        await appender.write([b"third"])
    await appender.aclose()


async def test_of_a_torn_write_a_part_gets_there(place: Place) -> None:
    whole = bytes(range(256)) * 40
    appender = place.disk.open_appender()
    await appender.start(place.file("log"), [b"first"])
    place.moods.write(Mood(torn=True))
    with pytest.raises(OSError, match="input/output") as torn:
        await appender.write([whole[:5000], whole[5000:]])
    assert torn.value.errno == errno.EIO
    await appender.aclose()
    content = (place.path / "log").read_bytes().rstrip(b"\0")
    assert content.startswith(b"first")
    assert 5 < len(content) < 5 + len(whole)
    assert (b"first" + whole).startswith(content)


async def test_reads_fail_as_often_as_they_should(place: Place) -> None:
    await place.disk.write_file(place.file("a"), b"abc")
    reader = await place.disk.open_reader(place.file("a"))
    place.moods.write(Mood(read_errors=1.0))
    with pytest.raises(OSError, match="input/output"):
        await reader.read(0, 3)
    place.moods.write(FINE)
    assert bytes(await reader.read(0, 3)) == b"abc"
    reader.close()


async def test_what_hangs_goes_on_when_the_disk_does(place: Place) -> None:
    place.moods.write(Mood(stuck=True))
    done = trio.Event()

    async def write() -> None:
        await place.disk.write_file(place.file("a"), b"x")
        done.set()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            assert not (place.path / "a").exists()
            place.moods.write(FINE)
            await done.wait()
    assert (place.path / "a").read_bytes() == b"x"


def test_rot_changes_old_bytes_and_no_sizes(tmp_path: Path) -> None:
    assert not rot(tmp_path, Random(1))
    old, young = bytes(1 << 20), bytes(1000)
    (tmp_path / "0.log").write_bytes(old)
    (tmp_path / "1.log").write_bytes(young)
    assert rot(tmp_path, Random(1))
    rotten = (tmp_path / "0.log").read_bytes()
    assert (tmp_path / "1.log").read_bytes() == young
    assert rotten != old
    assert len(rotten) == len(old)


def test_damage_of_an_index_changes_bytes_of_its_tables_and_no_sizes(tmp_path: Path) -> None:
    assert not damage_index(tmp_path, Random(1))
    table = tmp_path / "index-2" / "000009.sst"
    table.parent.mkdir()
    table.write_bytes(bytes(10_000))
    assert damage_index(tmp_path, Random(1))
    assert table.read_bytes() != bytes(10_000)
    assert table.stat().st_size == 10_000
