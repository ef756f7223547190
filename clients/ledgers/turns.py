"""When whoever appends without a pause gives others their turn.

What is appended in one turn of the loop leaves together, to whichever ledgers: in one system call
for each bookie.  A turn is long enough for what that costs, and short enough for the bookies to
have work meanwhile: so it is counted for all ledgers of a client together.
"""

_ENTRIES_MAX = 256
_BYTES_MAX = 256 << 10


class Turns:
    """Of one client."""

    __slots__ = ("_bytes", "_entries")

    def __init__(self) -> None:
        self._entries = self._bytes = 0

    def ended_by(self, size: int) -> bool:
        """Whether others have their turn before an entry of `size` bytes is appended."""
        self._entries += 1
        self._bytes += size
        if self._entries < _ENTRIES_MAX and self._bytes < _BYTES_MAX:
            return False
        self._entries = self._bytes = 0
        return True
