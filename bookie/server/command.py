"""Read-only by command of an operator: a file in the first directory says so, across restarts.

    <directory>/READONLY    there as long as the bookie is to take no new entries

It is one reason of several (`LedgerStore.set_read_only`): taking it back does not end the others.
"""

from contextlib import suppress

from bookie.storage.disk import Disk
from bookie.storage.store import LedgerStore

READ_ONLY_FILE = "READONLY"
_REASON = "command"


class ReadOnlyCommand:
    def __init__(self, disk: Disk, directory: str, store: LedgerStore) -> None:
        self._disk = disk
        self._path = f"{directory}/{READ_ONLY_FILE}"
        self._store = store

    async def load(self) -> None:
        """As it was left."""
        with suppress(FileNotFoundError):
            await self._disk.read_file(self._path)
            self._store.set_read_only(True, _REASON)

    async def give(self, read_only: bool) -> None:
        """In force from now on, and kept when this returns."""
        self._store.set_read_only(read_only, _REASON)
        if read_only:
            await self._disk.write_file(self._path, b"by command\n")
        else:
            with suppress(FileNotFoundError):
                await self._disk.remove(self._path)
