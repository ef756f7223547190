"""Two marker files in each directory: the dirty marker and the cookie generation.

    <directory>/DIRTY    exists while adds are acknowledged before they are on the disk.  A start
                         that finds it knows that the last process was cut off and may have lost
                         any add.  The file is written before the first add and removed last.
    <directory>/BIRTH    the cookie generation: the transaction id of the metadata when the bookie
                         last lost records.  It may have forgotten older ledgers and their fences;
                         it remembers every ledger that was created later.

A directory without BIRTH has never lost records.  If the directories of a bookie name different
generations, one of them was away or is an old image, so any record may be missing.
"""

from collections.abc import Sequence
from contextlib import suppress

from daybook.bookie.storage.disk import Disk

DIRTY_FILE = "DIRTY"
BIRTH_FILE = "BIRTH"
NEVER_LOST = 0  # the generation of a bookie that remembers all of its ledgers
# The generation of a bookie that does not know yet what it lost: all ledgers are older.
IN_DOUBT = (1 << 64) - 1
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
    """Return the generation that all directories name; None if they differ or one is invalid."""
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
