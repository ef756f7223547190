"""One read of a record for all who ask for it at the same time.

Nobody is given what was read before he asked: whoever asks while a read is under way shares the
next one.  So a record is read at most twice for any number of those who ask together.
"""

import trio

from daybook.wire.metadata.store import MetadataError, MetadataStore, Record


class _Read:
    __slots__ = ("done", "error", "known", "record")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.known = False  # False at the end: whoever read it was cancelled
        self.record: Record | None = None
        self.error: MetadataError | None = None


class SharedReads:
    """See the module."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._current: dict[str, _Read] = {}  # under way
        self._next: dict[str, _Read] = {}  # waits for the one that is under way

    async def get(self, path: str) -> Record | None:
        """The record, None if there is none.  Raises MetadataError."""
        while True:
            shared = self._next.get(path)
            if shared is None:
                shared = await self._read(path)
            else:
                await shared.done.wait()
            if shared.error is not None:
                raise shared.error
            if shared.known:
                return shared.record

    async def _read(self, path: str) -> _Read:
        read = self._next[path] = _Read()
        try:
            current = self._current.get(path)
            if current is not None:
                await current.done.wait()
            del self._next[path]  # Whoever asks from now on has to have another one.
            self._current[path] = read
            try:
                read.record = await self._store.get(path)
            except MetadataError as error:
                read.error = error
            read.known = True
        finally:
            for reads in (self._next, self._current):
                if reads.get(path) is read:
                    del reads[path]
            read.done.set()
        return read
