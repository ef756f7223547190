"""Read-only by command of an operator: a file in each directory says so, across restarts.

    <directory>/READONLY    there as long as the bookie is to take no new entries

One is enough: directories may be put in another order, join, or be replaced, and the command holds
until it is taken back.  It is one reason of several (`LedgerStore.set_read_only`): taking it back
does not end the others.
"""

from collections.abc import Sequence
from contextlib import suppress

import trio

from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.store import LedgerStore

READ_ONLY_FILE = "READONLY"
_REASON = "command"


class ReadOnlyCommand:
    def __init__(self, disk: Disk, directories: Sequence[str], store: LedgerStore) -> None:
        self._disk = disk
        self._paths = [f"{directory}/{READ_ONLY_FILE}" for directory in directories]
        self._store = store
        self._giving = trio.Lock()

    async def load(self) -> None:
        """As it was left."""
        for path in self._paths:
            with suppress(FileNotFoundError):
                await self._disk.read_file(path)
                self._store.set_read_only(True, _REASON)

    async def give(self, read_only: bool) -> None:
        """In force from now on, and kept when this returns; one after the other.

        After an `OSError` it may be in force and not kept: then the bookie takes no entries.
        """
        async with self._giving:
            if read_only:
                self._store.set_read_only(True, _REASON)
                for path in self._paths:
                    await self._disk.write_file(path, b"by command\n")
                return
            for path in self._paths:
                with suppress(FileNotFoundError):
                    await self._disk.remove(path)
            self._store.set_read_only(False, _REASON)
