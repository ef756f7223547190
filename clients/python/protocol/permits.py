"""How much a broker may send ahead: permits are counted in messages, memory in bytes.

A grant keeps `target` messages under way or waiting here; it is renewed when half of them were
taken.  `target` is the size that the consumer asked for, or less if messages are large: then as
many as fit into `bytes_max`, by the mean size of recent messages.  Until a size is known it is
small.

The permits of an entry are given back exactly as the broker has counted them, whatever became of
the entry: the broker would wait forever for permits that are not given back.

The topics of one consumer share its size and its bytes in equal parts.  When a topic joins, the
others grant less from their next grant on.

An entry is delivered whole, so one batch more than permitted may arrive.  A consumer of size 0
grants no permits: it asks questions and gets no messages.
"""

_CAUTIOUS = 64  # messages, before their size is known
_MEMORY = 0.875  # how much of the mean stays when another entry comes


class Shares:
    """The number of topics that share the queue of one consumer."""

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count


class Permits:
    """The permits of one consumer on one topic."""

    __slots__ = ("_bytes_max", "_mean", "_outstanding", "_shares", "_size")

    def __init__(self, size: int, bytes_max: int, shares: Shares | None = None) -> None:
        assert size >= 0
        self._shares = shares or Shares(1)
        self._size = size
        self._bytes_max = bytes_max
        self._mean = 0.0
        self._outstanding = 0

    @property
    def target(self) -> int:
        shares = self._shares.count or 1
        size = max(1, self._size // shares) if self._size else 0
        if not self._mean:
            return min(size, _CAUTIOUS)
        return min(size, max(1, int(self._bytes_max / shares / self._mean)))

    def restart(self, waiting: int = 0) -> int:
        """Start again after an attachment; return the grant.  `waiting` messages wait here."""
        self._outstanding = max(waiting, self.target)
        return self._outstanding - waiting

    def taken(self, messages: int, size: int) -> int:
        """Note that an entry left the queue; return the grant, or 0 for none yet."""
        assert messages > 0
        mean = size / messages
        self._mean = mean if not self._mean else _MEMORY * self._mean + (1 - _MEMORY) * mean
        self._outstanding -= messages
        target = self.target
        if self._outstanding > target // 2:
            return 0
        grant = target - self._outstanding
        self._outstanding = target
        return grant
