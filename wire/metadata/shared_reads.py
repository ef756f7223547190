"""One read of the metadata store for all callers that ask for the same at the same time.

A caller never gets a value that was read before it asked.  A caller that asks while a read is under
way shares the next one.  So a path is read at most twice for any number of callers that ask
together.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from daybook.wire.metadata.store import MetadataError

T = TypeVar("T")


class _Read(Generic[T]):
    __slots__ = ("done", "error", "known", "value")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.known = False  # False at the end: the reading task was cancelled
        self.value: T | None = None
        self.error: MetadataError | None = None


class SharedReads(Generic[T]):
    """The reads of one kind, by path.  `read` is a method of the store that may return None."""

    def __init__(self, read: Callable[[str], Awaitable[T | None]]) -> None:
        self._read_path = read
        self._current: dict[str, _Read[T]] = {}  # under way
        self._next: dict[str, _Read[T]] = {}  # wait for the read that is under way

    async def get(self, path: str) -> T | None:
        """Return what a read finds that begins after this call.  Raise MetadataError."""
        while True:
            shared = self._next.get(path)
            if shared is None:
                shared = await self._read(path)
            else:
                await shared.done.wait()
            if shared.error is not None:
                raise shared.error
            if shared.known:
                return shared.value

    async def _read(self, path: str) -> _Read[T]:
        read = self._next[path] = _Read[T]()
        try:
            current = self._current.get(path)
            if current is not None:
                await current.done.wait()
            del self._next[path]  # Later callers need a read that begins after this one.
            self._current[path] = read
            try:
                read.value = await self._read_path(path)
            except MetadataError as error:
                read.error = error
            read.known = True
        finally:
            for reads in (self._next, self._current):
                if reads.get(path) is read:
                    del reads[path]
            read.done.set()
        return read
