"""A preallocated file: appended data is there, wherever the zeros ahead of it end."""

import os
from pathlib import Path
from random import Random

import pytest

from daybook.bookie.storage import disk
from daybook.bookie.storage.disk import BLOCK_BYTES, PreallocatedFile


def appended(file: PreallocatedFile, pieces: list[bytes]) -> bytes:
    for piece in pieces:
        file.append([piece])
    return b"".join(pieces)


@pytest.mark.parametrize("seed", range(8))
def test_what_was_appended_is_there_and_zeros_behind_it(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    sizes = [rng.choice([1, 100, 4095, 4096, 4097, 70_000, 1 << 20]) for _ in range(38)]
    sizes += [5 << 20, 4 << 20]  # more than one write takes
    path = tmp_path / "log"
    file = PreallocatedFile(str(path))
    expected = appended(file, [rng.randbytes(size) for size in sizes])
    growing_content = path.read_bytes()
    assert growing_content[: len(expected)] == expected
    assert not any(growing_content[len(expected) :])
    file.close()
    content = path.read_bytes()
    assert content[: len(expected)] == expected
    assert len(content) - len(expected) < BLOCK_BYTES
    assert not any(content[len(expected) :])


def test_small_appends_do_not_make_the_file_longer_each_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = PreallocatedFile(str(path))
    file.append([b"head"])
    lengths: set[int] = set()
    for _ in range(100):
        file.append([b"x" * BLOCK_BYTES])
        lengths.add(path.stat().st_size)
    file.close()
    if len(lengths) == 100:
        pytest.skip("the file system does not write past the page cache")
    assert len(lengths) <= 2


def test_without_room_for_zeros_there_may_be_room_for_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        if len(buffers[0]) > 1 << 20:
            raise OSError("no room")
        return os.pwritev(descriptor, buffers, offset, flags)

    monkeypatch.setattr(disk, "write_fully", write)
    path = tmp_path / "log"
    file = PreallocatedFile(str(path))
    expected = appended(file, [b"a" * 5000, b"b" * 5000, b"c" * 5000])
    file.close()
    assert path.read_bytes().rstrip(b"\0") == expected
