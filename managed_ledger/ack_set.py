"""Acknowledged positions above a mark-delete position, as one bit an entry.

A bit costs an eighth of a byte wherever the holes are.  So the number of holes has no limit, and
acknowledging one entry among half a million holes sets one bit.  Positions below mark-delete cost
nothing, since whole words at the front are cut off.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence

from daybook.managed_ledger.position import Position

ENTRIES_MAX = 1 << 26  # entries of one ledger; this many bits take 8 MB
_WORD_BYTES = 8
_WORD = 64


class AckSet:
    """A set of positions.  Each ledger takes a bit for each entry from its lowest to its highest.

    Entry ids are 0 to ENTRIES_MAX - 1; adding another one raises ValueError.
    """

    def __init__(self) -> None:
        self._ledgers: dict[int, _Bits] = {}
        self._count = 0

    def __contains__(self, position: Position) -> bool:
        bits = self._ledgers.get(position.ledger_id)
        return bits is not None and bits.has(position.entry_id)

    def __len__(self) -> int:
        """Return the number of positions in the set."""
        return self._count

    def add(self, position: Position) -> bool:
        """Add a position; return False if it was in the set already."""
        entry_id = position.entry_id
        bits = self._covered(position.ledger_id, entry_id, entry_id)
        byte, bit = divmod(entry_id - bits.base, 8)
        if bits.bits[byte] >> bit & 1:
            return False
        bits.bits[byte] |= 1 << bit
        self._count += 1
        return True

    def discard(self, position: Position) -> bool:
        """Remove a position; return False if it was not in the set."""
        bits = self._ledgers.get(position.ledger_id)
        if bits is None or not bits.has(position.entry_id):
            return False
        byte, bit = divmod(position.entry_id - bits.base, 8)
        bits.bits[byte] &= ~(1 << bit)
        self._count -= 1
        if not self._count:
            self._ledgers.clear()
        return True

    def discard_range(self, ledger_id: int, first: int, last: int) -> None:
        """Remove the entries first to last of a ledger."""
        bits = self._ledgers.get(ledger_id)
        if bits is not None:
            self._count -= bits.clear(first, last)
            if not self._count:
                self._ledgers.clear()

    def next_from(self, position: Position) -> Position | None:
        """Return the first position in the set at or behind `position`; None if there is none."""
        for ledger_id in sorted(self._ledgers):
            if ledger_id >= position.ledger_id:
                first = position.entry_id if ledger_id == position.ledger_id else 0
                entry_id = self._ledgers[ledger_id].next_from(first)
                if entry_id is not None:
                    return Position(ledger_id, entry_id)
        return None

    def highest(self) -> Position | None:
        """Return the highest position in the set; None if it is empty."""
        for ledger_id in sorted(self._ledgers, reverse=True):
            bits = self._ledgers[ledger_id]
            data = bytes(bits.bits).rstrip(b"\0")
            if data:
                return Position(
                    ledger_id, bits.base + 8 * (len(data) - 1) + data[-1].bit_length() - 1
                )
        return None

    def gaps(self, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of each run of entries from first to last that is not in the set."""
        bits = self._ledgers.get(ledger_id)
        at = first
        for run in () if bits is None else bits.runs():
            if run[0] > last:
                break
            if run[1] < at:
                continue
            if run[0] > at:
                yield at, run[0] - 1
            at = run[1] + 1
        if at <= last:
            yield at, last

    def add_range(self, ledger_id: int, first: int, last: int) -> None:
        """Add the entries first to last of a ledger; add none if `last` is below `first`."""
        if last < first:
            return
        bits = self._covered(ledger_id, first, last)
        start = first - first % 8
        ones = ((1 << (last - first + 1)) - 1) << (first - start)
        self._count += bits.merge(start, ones.to_bytes((last - start) // 8 + 1, "little"))

    def add_words(self, ledger_id: int, words: Sequence[int]) -> None:
        """Add the entries that `words` returned.

        Raise ValueError for an entry id that is too high, or a word of more than 64 bits.
        """
        try:
            data = struct.pack(f"<{len(words)}q", *words).rstrip(b"\0")
        except struct.error as error:
            raise ValueError(
                f"the acknowledged entries are not words of 64 bits: {error}"
            ) from error
        if data:
            bits = self._covered(ledger_id, 0, 8 * len(data) - 1)
            self._count += bits.merge(0, data)

    def _covered(self, ledger_id: int, first: int, last: int) -> "_Bits":
        """Return the bits of a ledger, with room for the entries first to last."""
        if first < 0 or last >= ENTRIES_MAX:
            raise ValueError(f"no ledger has the entries {first} to {last}")
        bits = self._ledgers.get(ledger_id)
        if bits is None:
            bits = self._ledgers[ledger_id] = _Bits(first - first % _WORD)
        bits.cover(first, last)
        return bits

    def run_end(self, position: Position) -> int:
        """Return the last entry of the run of `position`, which must be in the set."""
        return self._ledgers[position.ledger_id].run_end(position.entry_id)

    def discard_through(self, position: Position) -> None:
        """Remove everything at or below `position`."""
        for ledger_id in [i for i in self._ledgers if i < position.ledger_id]:
            self._count -= self._ledgers.pop(ledger_id).count()
        bits = self._ledgers.get(position.ledger_id)
        if bits is not None:
            self._count -= bits.cut(position.entry_id + 1)
            if not any(bits.bits):
                del self._ledgers[position.ledger_id]

    def keep_within(self, lengths: Mapping[int, int]) -> None:
        """Remove everything that is no entry of a ledger; `lengths` has the lengths of all."""
        for ledger_id, bits in list(self._ledgers.items()):
            self._count -= bits.cut_from(lengths.get(ledger_id, 0))
            if not any(bits.bits):
                del self._ledgers[ledger_id]

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ledger, first, last) of each run, in order."""
        for ledger_id in sorted(self._ledgers):
            for first, last in self._ledgers[ledger_id].runs():
                yield ledger_id, first, last

    def range_count(self, at_most: int) -> int:
        """Return the number of runs; counting stops above `at_most`."""
        count = 0
        for _ in self.ranges():
            count += 1
            if count > at_most:
                break
        return count

    def words(self) -> Iterator[tuple[int, list[int]]]:
        """Yield each ledger's bits as signed 64-bit words; word k has entries 64k to 64k+63."""
        for ledger_id in sorted(self._ledgers):
            bits = self._ledgers[ledger_id]
            data = bytes(bits.base // 8) + bytes(bits.bits).rstrip(b"\0")
            data += bytes(-len(data) % _WORD_BYTES)
            yield ledger_id, list(struct.unpack(f"<{len(data) // _WORD_BYTES}q", data))


class _Bits:
    """The entries of one ledger.  `base` is the entry of the first bit, a multiple of 64."""

    __slots__ = ("base", "bits")

    def __init__(self, base: int) -> None:
        self.base = base
        self.bits = bytearray()

    def has(self, entry_id: int) -> bool:
        byte, bit = divmod(entry_id - self.base, 8)
        return 0 <= byte < len(self.bits) and bool(self.bits[byte] >> bit & 1)

    def cover(self, first: int, last: int) -> None:
        """Make room for the entries first to last."""
        if first < self.base:
            base = first - first % _WORD
            self.bits[:0] = bytes((self.base - base) // 8)
            self.base = base
        missing = (last - self.base) // 8 + 1 - len(self.bits)
        if missing > 0:
            self.bits.extend(bytes(missing))

    def count(self) -> int:
        return int.from_bytes(self.bits, "little").bit_count()

    def merge(self, first: int, bits: bytes) -> int:
        """Set these bits and return the number of new ones.

        The first bit is that of entry `first`, a multiple of 8.  `cover` has made room for all.
        """
        assert (first - self.base) % 8 == 0
        start = (first - self.base) // 8
        part = slice(start, start + len(bits))
        before = int.from_bytes(self.bits[part], "little")
        after = before | int.from_bytes(bits, "little")
        self.bits[part] = after.to_bytes(len(bits), "little")
        return after.bit_count() - before.bit_count()

    def clear(self, first: int, last: int) -> int:
        """Clear the bits of entries first to last; return the number of those that were set."""
        first, last = max(first, self.base), min(last, self.base + 8 * len(self.bits) - 1)
        if last < first:
            return 0
        start = (first - self.base) // 8
        part = slice(start, (last - self.base) // 8 + 1)
        before = int.from_bytes(self.bits[part], "little")
        ones = ((1 << (last - first + 1)) - 1) << (first - self.base - 8 * start)
        after = before & ~ones
        self.bits[part] = after.to_bytes(part.stop - part.start, "little")
        return before.bit_count() - after.bit_count()

    def next_from(self, entry_id: int) -> int | None:
        """Return the first entry at or behind `entry_id` that is set; None if there is none."""
        byte, bit = divmod(max(0, entry_id - self.base), 8)
        rest = bytes(self.bits[byte:])
        if rest:  # The bits below `entry_id` do not count.
            rest = bytes((rest[0] >> bit << bit,)) + rest[1:]
        stripped = rest.lstrip(b"\0")
        if not stripped:
            return None
        lowest = (stripped[0] & -stripped[0]).bit_length() - 1
        return self.base + 8 * (byte + len(rest) - len(stripped)) + lowest

    def cut(self, end: int) -> int:
        """Clear all bits below entry `end`; return the number of those that were set."""
        if end <= self.base:
            return 0
        whole = min((end - self.base) // _WORD * _WORD_BYTES, len(self.bits))
        # Whole words are cut off; the rest of the first word is cleared below.
        gone = int.from_bytes(self.bits[:whole], "little").bit_count()
        del self.bits[:whole]
        self.base += whole * 8
        below = int.from_bytes(self.bits[:_WORD_BYTES], "little")
        kept = below >> (end - self.base) << (end - self.base) if end - self.base < _WORD else 0
        self.bits[:_WORD_BYTES] = kept.to_bytes(min(_WORD_BYTES, len(self.bits)), "little")
        return gone + below.bit_count() - kept.bit_count()

    def cut_from(self, end: int) -> int:
        """Clear the bits of entry `end` and above; return the number of those that were set."""
        before = self.count()
        whole, rest = divmod(max(0, end - self.base), 8)
        if whole < len(self.bits):
            self.bits[whole] &= (1 << rest) - 1
            del self.bits[whole + 1 :]
        return before - self.count()

    def run_end(self, entry_id: int) -> int:
        """Return the last entry of the run that begins at, or contains, `entry_id`."""
        bits = self.bits
        byte, bit = divmod(entry_id - self.base, 8)
        while byte < len(bits):
            if bit == 0 and bits[byte] == 0xFF:  # Long runs are passed in whole bytes.
                byte += 1
                continue
            while bit < 8 and bits[byte] >> bit & 1:
                bit += 1
            if bit < 8:
                break
            byte, bit = byte + 1, 0
        return self.base + byte * 8 + bit - 1

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of each run."""
        bits, base = self.bits, self.base
        entry_id, end = base, base + 8 * len(bits)
        while entry_id < end:
            byte, bit = divmod(entry_id - base, 8)
            rest = bits[byte] >> bit
            if not rest:
                entry_id += 8 - bit
            elif not rest & 1:
                entry_id += (rest & -rest).bit_length() - 1
            else:
                last = self.run_end(entry_id)
                yield entry_id, last
                entry_id = last + 2  # The entry behind a run is not set.
