"""What a directory says of the memory of its bookie, in two small files.

    <directory>/DIRTY    there while adds are acknowledged before they are on the disk: who finds it
                         at a start knows that the last process was cut off, and what it lost
                         nobody knows.  Put there before the first add, taken away last of all.
    <directory>/BIRTH    the transaction id of the metadata from which on this bookie remembers
                         all: what it knew of older ledgers, fences too, may be lost.

A directory without BIRTH has never lost anything.  Directories that do not say the same are not of
the same time: one was away, or is an old image; then nobody knows what is missing either.
"""

from collections.abc import Sequence
from contextlib import suppress

from daybook.bookie.storage.disk import Disk

DIRTY_FILE = "DIRTY"
BIRTH_FILE = "BIRTH"
NEVER_LOST = 0  # the birth of a bookie that remembers all of its ledgers
IN_DOUBT = (1 << 64) - 1  # of one that does not know yet what is lost: all ledgers are older
_FORMAT = "1"


async def is_dirty(disk: Disk, directory: str) -> bool:
    with suppress(FileNotFoundError):
        await disk.read_file(f"{directory}/{DIRTY_FILE}")
        return True
    return False


async def mark_dirty(disk: Disk, directory: str) -> None:
    await disk.write_file(f"{directory}/{DIRTY_FILE}", b"adds may be lost\n")


async def mark_clean(disk: Disk, directory: str) -> None:
    with suppress(FileNotFoundError):
        await disk.remove(f"{directory}/{DIRTY_FILE}")


async def read_generation(disk: Disk, directories: Sequence[str]) -> int | None:
    """What all of them say; None if they do not agree, or one does not parse."""
    found = {await _read_generation(disk, directory) for directory in directories}
    return found.pop() if len(found) == 1 else None


async def _read_generation(disk: Disk, directory: str) -> int | None:
    try:
        text = await disk.read_file(f"{directory}/{BIRTH_FILE}")
    except FileNotFoundError:
        return NEVER_LOST
    version, _, number = text.decode("ascii", "replace").strip().partition(" ")
    if version != _FORMAT or not (number.isascii() and number.isdecimal()) or len(number) > 19:
        return None
    return int(number)


async def write_generation(disk: Disk, directory: str, generation: int) -> None:
    await disk.write_file(f"{directory}/{BIRTH_FILE}", f"{_FORMAT} {generation}\n".encode())
