"""The appends of one log that are not confirmed yet, in order.

`waiting` were taken and wait for a ledger; `submitted` were handed to the present one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.wire.transport import Buffer

ENTRY_OVERHEAD_BYTES = 1024  # objects, here and in the ledger client
Done: TypeAlias = Callable[[Position | None, Exception | None], None]


@dataclass(slots=True)
class Pending:
    buffers: Sequence[Buffer]
    bytes: int
    last_offset: int
    done: Done


class Appends:
    def __init__(self) -> None:
        self.bytes = 0
        self._waiting: deque[Pending] = deque()
        self._submitted: deque[Pending] = deque()

    @property
    def held_bytes(self) -> int:
        """Of memory, about: a small entry costs more than its bytes."""
        entries = len(self._waiting) + len(self._submitted)
        return self.bytes + entries * ENTRY_OVERHEAD_BYTES

    def take(self, entry: Pending) -> None:
        self.bytes += entry.bytes
        self._waiting.append(entry)

    def submit(self) -> Pending | None:
        """The next one, to be handed to a ledger now; None if all were failed meanwhile."""
        if not self._waiting:
            return None
        entry = self._waiting.popleft()
        self._submitted.append(entry)
        return entry

    def confirm(self) -> Pending:
        """The next one, which is confirmed now."""
        entry = self._submitted.popleft()
        self.bytes -= entry.bytes
        return entry

    def fail(self, error: ManagedLedgerError) -> None:
        """None of them will be confirmed."""
        entries = [*self._submitted, *self._waiting]
        self._submitted.clear()
        self._waiting.clear()
        self.bytes = 0
        for entry in entries:
            entry.done(None, error)
