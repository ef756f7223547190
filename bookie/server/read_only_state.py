"""The read-only state that an operator commands: a file in each directory keeps it over restarts.

    <directory>/READONLY    present as long as the bookie must take no new entries

One file is enough: directories may be reordered, added or replaced, and the command holds until the
operator takes it back.  The command is one reason of several (`LedgerStore.set_read_only`): taking
it back does not end the others.
"""

from collections.abc import Sequence
from contextlib import suppress

import trio

from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.store import LedgerStore

READ_ONLY_FILE = "READONLY"
_REASON = "command"


class ReadOnlyState:
    def __init__(self, disk: Disk, directories: Sequence[str], store: LedgerStore) -> None:
        self._disk = disk
        self._paths = [f"{directory}/{READ_ONLY_FILE}" for directory in directories]
        self._store = store
        self._giving = trio.Lock()

    async def load(self) -> None:
        """Set the bookie read-only if the file is in any directory."""
        for path in self._paths:
            with suppress(FileNotFoundError):
                await self._disk.read_file(path)
                self._store.set_read_only(True, _REASON)

    async def change(self, read_only: bool) -> None:
        """Command read-only or take it back, durably on return; one call at a time.

        After an `OSError` the command may be in force without being durable: the bookie then takes
        no entries, and a restart may forget that.
        """
        async with self._giving:
            if read_only:
                # In force before the files: no plain add is accepted while they are written.
                self._store.set_read_only(True, _REASON)
                for path in self._paths:
                    await self._disk.write_file(path, b"by command\n")
                return
            for path in self._paths:
                with suppress(FileNotFoundError):
                    await self._disk.remove(path)
            self._store.set_read_only(False, _REASON)
