"""Murmur3 with 32 bits, seed 0, without the sign bit: Pulsar's hash of names and keys."""

from collections.abc import Iterable, Iterator
from struct import Struct

_WORD = Struct("<I")
_MASK = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """Return the hash of `data`, 0 to 2**31 - 1."""
    # The same as below, in one loop: this runs for each entry of a key_shared subscription.
    value, whole = 0, len(data) & ~3
    for (word,) in _WORD.iter_unpack(data[:whole]):
        mixed = word * 0xCC9E2D51 & _MASK
        value ^= (mixed << 15 | mixed >> 17) * 0x1B873593 & _MASK
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        mixed = int.from_bytes(data[whole:], "little") * 0xCC9E2D51 & _MASK
        value ^= (mixed << 15 | mixed >> 17) * 0x1B873593 & _MASK
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return (value ^ value >> 16) & 0x7FFFFFFF


def murmur3_each(prefix: bytes, ends: Iterable[bytes]) -> Iterator[int]:
    """Yield the hash of `prefix + end` for each of `ends`."""
    whole = len(prefix) & ~3
    begun = _absorbed(0, prefix[:whole])
    for end in ends:
        rest = prefix[whole:] + end
        words = len(rest) & ~3
        value = _absorbed(begun, rest[:words])
        if words < len(rest):
            value ^= _scrambled(int.from_bytes(rest[words:], "little"))
        value ^= whole + len(rest)
        value = ((value ^ value >> 16) * 0x85EBCA6B) & _MASK
        value = ((value ^ value >> 13) * 0xC2B2AE35) & _MASK
        yield (value ^ value >> 16) & 0x7FFFFFFF


def _absorbed(value: int, data: bytes) -> int:
    """Return the state after whole words."""
    for at in range(0, len(data), 4):
        value ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        value = (_rotated(value, 13) * 5 + 0xE6546B64) & _MASK
    return value


def _scrambled(word: int) -> int:
    return (_rotated((word * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
