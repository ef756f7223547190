"""Damage to a bookie's files behind its back: an old copy, a lost index, changed bytes.

Each kind of damage costs at most the contents of one disk, which an ack quorum of two survives.
"""

import os
import shutil
from pathlib import Path
from random import Random

_ROT_BYTES = 64
_YOUNG_BYTES = 256 << 10  # the end of a file is left alone: the bookie may write it again


def copy_image(data: Path) -> None:
    """Copy the directory of a bookie that is stopped."""
    shutil.copytree(data, _image_of(data))


def restore_image(data: Path) -> None:
    """Put the copy in the place of the directory, as an operator does from a backup."""
    shutil.rmtree(data)
    _image_of(data).rename(data)


def _image_of(data: Path) -> Path:
    return data.with_name(f"{data.name}.image")


def remove_index(data: Path) -> None:
    """Remove the index of a bookie that is stopped; the bookie rebuilds it from its log."""
    for index in data.glob("index*"):
        shutil.rmtree(index, ignore_errors=True)


def damage_index(data: Path, rng: Random) -> bool:
    """Change bytes of one file of the index in several places; return False if it has no file."""
    tables = [path for path in data.glob("index*/*.sst") if path.stat().st_size]
    if not tables:
        return False
    table = rng.choice(tables)
    size = table.stat().st_size
    descriptor = os.open(table, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for _ in range(rng.choice([1, 5, 20])):
            os.pwrite(descriptor, rng.randbytes(min(_ROT_BYTES, size)), rng.randrange(size))
        os.truncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def rot(log: Path, rng: Random) -> bool:
    """Change some old bytes of one segment; return False if no segment has old bytes."""
    segments = sorted(log.glob("*.log"))
    sizes = [max(0, each.stat().st_size - _YOUNG_BYTES) for each in segments]
    if not sum(sizes):
        return False
    (segment,) = rng.choices(segments, weights=sizes)
    offset = rng.randrange(sizes[segments.index(segment)])
    descriptor = os.open(segment, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, rng.randbytes(_ROT_BYTES), offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
