"""The memory that messages may take while they wait to be sent to slow clients.

A client that reads everything as it comes may have many bytes on their way, which makes it fast.  A
client that does not read has as many for a moment, and then counts as slow.  The more connections
are slow, the less each of them may have.
"""

_SHARE_BYTES_MIN = 64 << 10


class DispatchMemoryLimit:
    """One instance per broker, for all its connections."""

    def __init__(self, *, total_bytes: int, connection_bytes: int) -> None:
        self.slow = 0  # the number of connections that have reached their share
        self._total_bytes = total_bytes
        self._connection_bytes = connection_bytes

    @property
    def share_bytes(self) -> int:
        """The number of bytes that may wait for one connection."""
        share = self._total_bytes // max(1, self.slow)
        return max(_SHARE_BYTES_MIN, min(share, self._connection_bytes))
