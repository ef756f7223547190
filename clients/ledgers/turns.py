"""The yield policy: when a task that appends without a pause gives other tasks a turn.

Entries that are appended in one turn of the event loop leave together, in one system call for each
bookie, whatever their ledgers are.  A turn is long enough to be worth the system calls, and short
enough for the bookies to have work meanwhile.  So turns are counted for all ledgers of a client
together.
"""

_ENTRIES_MAX = 256
_BYTES_MAX = 256 << 10


class Turns:
    """The turns of one client."""

    __slots__ = ("_bytes", "_entries")

    def __init__(self) -> None:
        self._entries = self._bytes = 0

    def ended_by(self, size: int) -> bool:
        """Return True if other tasks get a turn before an entry of `size` bytes is appended."""
        self._entries += 1
        self._bytes += size
        if self._entries < _ENTRIES_MAX and self._bytes < _BYTES_MAX:
            return False
        self._entries = self._bytes = 0
        return True
