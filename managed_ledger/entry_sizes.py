"""Remembers how many messages and bytes recent entries have.

A cursor must know the size of an entry when it is acknowledged out of order, without reading it
again.  The dispatcher has the entry in its hands when it delivers it, and notes the size here.

All logs of a host share one instance, because ids of ledgers are unique in a cluster.  Sizes are
kept in blocks of consecutive entries, at 8 bytes for each entry.  The memory is bounded: the block
that was begun first is forgotten first.  A size that was forgotten is unknown, which is no error:
whoever needs it reads the entry.
"""

from array import array
from collections.abc import Sequence

BYTES_MAX = 32 << 20
_BLOCK_BITS = 8
_BLOCK = 1 << _BLOCK_BITS  # entries
_BLOCK_BYTES = 8 * _BLOCK + 300
_ZEROS = bytes(4 * _BLOCK)

Size = tuple[int, int]  # messages, bytes
Span = tuple[int, int]  # first and last entry


class EntrySizes:
    """One instance per host.  An entry has at least one message, so 0 messages are unknown."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._blocks: dict[tuple[int, int], tuple[array[int], array[int]]] = {}
        self._blocks_max = max(1, bytes_max // _BLOCK_BYTES)

    def knows(self, ledger_id: int, first: int, last: int) -> bool:
        """Return True if the first and the last of these entries are known.

        Readers note whole runs, so the entries in between are known then, too, or acknowledged.
        """
        return self.get(ledger_id, first) is not None and self.get(ledger_id, last) is not None

    def note(
        self, ledger_id: int, first: int, messages: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """Note consecutive entries from `first` on.  Those with 0 messages are left as they are."""
        at, end = first, first + len(messages)
        while at < end:
            number, offset = divmod(at, _BLOCK)
            count = min(end - at, _BLOCK - offset)
            i = at - first
            self._note(ledger_id, number, offset, messages[i : i + count], sizes[i : i + count])
            at += count

    def _note(
        self,
        ledger_id: int,
        number: int,
        offset: int,
        messages: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        key = ledger_id, number
        block = self._blocks.get(key)
        if block is None:
            while len(self._blocks) >= self._blocks_max:
                del self._blocks[next(iter(self._blocks))]
            block = self._blocks[key] = array("I", _ZEROS), array("I", _ZEROS)
        if 0 in messages:
            for i, count in enumerate(messages, offset):
                if count:
                    block[0][i], block[1][i] = count, sizes[i - offset]
            return
        end = offset + len(messages)
        block[0][offset:end] = array("I", messages)
        block[1][offset:end] = array("I", sizes)

    def get(self, ledger_id: int, entry_id: int) -> Size | None:
        """Return the messages and bytes of an entry, or None if they are not known."""
        block = self._blocks.get((ledger_id, entry_id >> _BLOCK_BITS))
        if block is None:
            return None
        offset = entry_id & (_BLOCK - 1)
        messages = block[0][offset]
        return (messages, block[1][offset]) if messages else None

    def total(self, ledger_id: int, first: int, last: int) -> tuple[int, int, list[Span]]:
        """Return the messages and bytes of these entries, and the spans that are not known."""
        messages = size = 0
        unknown: list[Span] = []

        def miss(first: int, last: int) -> None:
            if unknown and unknown[-1][1] == first - 1:
                first = unknown.pop()[0]
            unknown.append((first, last))

        at = first
        while at <= last:
            number, offset = divmod(at, _BLOCK)
            end = min(last, at - offset + _BLOCK - 1)
            block = self._blocks.get((ledger_id, number))
            if block is None:
                miss(at, end)
            else:
                counts = block[0][offset : offset + end - at + 1]
                messages += sum(counts)
                # The bytes of an entry that is not known are 0.
                size += sum(block[1][offset : offset + end - at + 1])
                if 0 in counts:
                    for i, count in enumerate(counts, at):
                        if not count:
                            miss(i, i)
            at = end + 1
        return messages, size, unknown
