"""Records of the metadata store that are read often and change seldom, kept until they change.

`get` reads a record once and leaves a watch; it reads again after the watch has fired.  While the
store is out of reach it returns the last value that it saw; a record that it never saw is then
unavailable, which is not the same as absent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from daybook.broker.errors import UnavailableError
from daybook.wire.metadata.store import MetadataStore, SessionState, StoreUnavailableError

ValueT = TypeVar("ValueT")

_ENTRIES_MAX = 10_000  # Beyond, records are read each time, without a watch.


@dataclass(slots=True, eq=False)
class _Entry(Generic[ValueT]):
    value: ValueT | None
    fresh: bool = False


class Watched(Generic[ValueT]):
    """Decoded records by path.  What `decode` raises comes out of `get`."""

    def __init__(self, store: MetadataStore, decode: Callable[[bytes], ValueT]) -> None:
        self._store = store
        self._decode = decode
        self._entries: dict[str, _Entry[ValueT]] = {}

    async def get(self, path: str) -> ValueT | None:
        """The record, None if there is none.  Raises UnavailableError."""
        entry = self._entries.get(path)
        if entry is not None and (entry.fresh or not self._in_contact):
            return entry.value
        fresh = _Entry[ValueT](None, fresh=True)

        def touched() -> None:
            fresh.fresh = False

        try:
            record = await self._store.get(path, None if entry is None else touched)
            if record is not None and entry is None and len(self._entries) < _ENTRIES_MAX:
                # It is there, so a watch is worth its memory.  Names that are not there are many.
                record = await self._store.get(path, touched)
        except StoreUnavailableError as error:
            if entry is None:
                raise UnavailableError(f"{path}: {error}") from error
            return entry.value
        if record is None:
            self._entries.pop(path, None)
            return None
        fresh.value = self._decode(record.value)
        if entry is not None or len(self._entries) < _ENTRIES_MAX:
            self._entries[path] = fresh
        return fresh.value

    @property
    def _in_contact(self) -> bool:
        return self._store.session_state is SessionState.CONNECTED

    def known(self, path: str) -> ValueT | None:
        """The last value that was seen, without asking."""
        entry = self._entries.get(path)
        return None if entry is None else entry.value
