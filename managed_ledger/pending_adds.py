"""The appends of one log that are not confirmed yet, in order.

An append waits until the present ledger takes it, and is submitted from then until it is confirmed.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.wire.transport import Buffer

_log = logging.getLogger(__name__)
ENTRY_OVERHEAD_BYTES = 1024  # for the objects here and in the ledger client
Done: TypeAlias = Callable[[Position | None, Exception | None], None]
"""Called once for an append: with the position of the entry, or with an error."""


@dataclass(slots=True)
class PendingAdd:
    """One entry; `done` is called once, with its position or with an error."""

    buffers: Sequence[Buffer]
    bytes: int
    last_offset: int
    done: Done


class PendingAdds:
    """Two queues: entries that wait for a ledger, and entries that the present ledger has."""

    def __init__(self) -> None:
        self.bytes = 0  # in both queues
        self._waiting: deque[PendingAdd] = deque()
        self._submitted: deque[PendingAdd] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._submitted)

    @property
    def held_bytes(self) -> int:
        """The memory that is held, roughly: a small entry costs more than its bytes."""
        entries = len(self._waiting) + len(self._submitted)
        return self.bytes + entries * ENTRY_OVERHEAD_BYTES

    def add(self, entry: PendingAdd) -> None:
        """Add an entry behind all others."""
        self.bytes += entry.bytes
        self._waiting.append(entry)

    def submit(self) -> PendingAdd | None:
        """Return the next entry for the present ledger; None if all entries failed meanwhile."""
        if not self._waiting:
            return None
        entry = self._waiting.popleft()
        self._submitted.append(entry)
        return entry

    def confirm(self) -> PendingAdd:
        """Remove and return the oldest submitted entry: the ledger confirms entries in order."""
        entry = self._submitted.popleft()
        self.bytes -= entry.bytes
        assert self.bytes >= 0
        return entry

    def fail(self, error: ManagedLedgerError) -> None:
        """End all entries with `error`: none of them will be confirmed."""
        entries = [*self._submitted, *self._waiting]
        # The queues are emptied first, since `done` may append again.
        self._submitted.clear()
        self._waiting.clear()
        self.bytes = 0
        for entry in entries:
            try:
                entry.done(None, error)
            except Exception:  # The others have to hear of their end all the same.
                _log.exception("an append could not be told that it failed, which is a bug")
