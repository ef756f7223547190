"""What may wait to be sent to all consumers together: the more of them are slow, the less each.

A client that takes everything as it comes may have much on its way, which is what makes it fast.
One that does not read has that much too, for a moment, and then counts as slow.
"""

_SHARE_BYTES_MIN = 64 << 10


class DispatchMemoryLimit:
    """One for all connections of a broker."""

    def __init__(self, *, total_bytes: int, connection_bytes: int) -> None:
        self.slow = 0  # connections that have as much as they may
        self._total_bytes = total_bytes
        self._connection_bytes = connection_bytes

    @property
    def share_bytes(self) -> int:
        """What may wait for one connection."""
        share = self._total_bytes // max(1, self.slow)
        return max(_SHARE_BYTES_MIN, min(share, self._connection_bytes))
