"""The read-only state that an operator sets: a file in each directory keeps it across restarts.

    <directory>/READONLY    exists as long as the bookie must accept no new entries

A file in one directory is enough: directories may be reordered, added or replaced, and the state
lasts until the operator ends it.  It is one of several reasons for which a bookie is read-only
(`LedgerStore.set_read_only`); to end it does not end the others.
"""

from collections.abc import Sequence
from contextlib import suppress

import trio

from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.store import LedgerStore

READ_ONLY_FILE = "READONLY"
_REASON = "command"


class ReadOnlyState:
    """One instance per bookie."""

    def __init__(self, disk: Disk, directories: Sequence[str], store: LedgerStore) -> None:
        self._disk = disk
        self._paths = [f"{directory}/{READ_ONLY_FILE}" for directory in directories]
        self._store = store
        self._changing = trio.Lock()

    async def load(self) -> None:
        """Set the bookie read-only if the file is in any directory."""
        for path in self._paths:
            with suppress(FileNotFoundError):
                await self._disk.read_file(path)
                self._store.set_read_only(True, _REASON)

    async def change(self, read_only: bool) -> None:
        """Set or end the read-only state; it is durable on return.  Calls run one at a time.

        After an `OSError` the bookie may be read-only without a durable file: it then accepts no
        entries, and a restart may forget that.
        """
        async with self._changing:
            if read_only:
                # The store comes before the files: no plain add is accepted while they are written.
                self._store.set_read_only(True, _REASON)
                for path in self._paths:
                    await self._disk.write_file(path, b"by command\n")
                return
            # The files go first: if one cannot be removed, the bookie stays read-only.
            for path in self._paths:
                with suppress(FileNotFoundError):
                    await self._disk.remove(path)
            self._store.set_read_only(False, _REASON)
