"""Which partition a message goes to.

A key decides by its hash, Murmur3 (32 bits, seed 0, sign bit cleared) of its UTF-8 bytes, modulo
the number of partitions: messages of one key stay in order.  Messages without a key take turns, a
whole batch to each partition.  (Clients of other languages can be set to the same hash.)
"""

_KNOWN_MAX = 1 << 16
_M = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """MurmurHash3, x86, 32 bits, seed 0."""
    value = 0
    whole = len(data) & ~3
    for offset in range(0, whole, 4):
        value ^= _scramble(int.from_bytes(data[offset : offset + 4], "little"))
        value = (value << 13 | value >> 19) & _M
        value = (value * 5 + 0xE6546B64) & _M
    value ^= _scramble(int.from_bytes(data[whole:], "little")) ^ len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _M
    value = (value ^ value >> 13) * 0xC2B2AE35 & _M
    return value ^ value >> 16


def _scramble(block: int) -> int:
    block = block * 0xCC9E2D51 & _M
    block = (block << 15 | block >> 17) & _M
    return block * 0x1B873593 & _M


class Router:
    """Chooses a partition.  Their number may grow; then keys move to other partitions."""

    def __init__(self, partitions: int, *, first: int = 0) -> None:
        assert partitions > 0
        self.partitions = partitions
        self.turn = first % partitions  # the partition for messages without a key
        self._known: dict[str | bytes, int] = {}

    def for_key(self, key: str | bytes) -> int:
        """Return the partition of a key."""
        index = self._known.get(key)
        if index is None:
            data = key if isinstance(key, bytes) else key.encode()
            index = (murmur3(data) & 0x7FFFFFFF) % self.partitions
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = index
        return index

    def batch_ended(self, index: int) -> None:
        """Note that a partition has sent a batch: the next partition has its turn."""
        if index == self.turn:
            self.turn = (index + 1) % self.partitions

    def grow(self, partitions: int) -> None:
        assert partitions >= self.partitions
        self.partitions = partitions
        self._known.clear()
