"""Reads of records of the metadata store that several callers share."""

import trio

from daybook.wire.metadata.store import MetadataError, MetadataStore, Record


class _Read:
    __slots__ = ("done", "error", "known", "record")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.known = False  # False at the end: the reading task was cancelled
        self.record: Record | None = None
        self.error: MetadataError | None = None


class SharedReads:
    """One read of a record for all callers that ask for it at the same time.

    A caller never gets a value that was read before it asked.  A caller that asks while a read is
    under way shares the next one.  So a record is read at most twice for any number of callers that
    ask together.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._current: dict[str, _Read] = {}  # under way
        self._next: dict[str, _Read] = {}  # wait for the read that is under way

    async def get(self, path: str) -> Record | None:
        """Return the record, None if there is none.  Raise MetadataError."""
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
            del self._next[path]  # Later callers need a read that begins after this one.
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
