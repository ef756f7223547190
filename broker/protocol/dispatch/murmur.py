"""Murmur3 with 32 bits, seed 0, without the sign bit: Pulsar's hash of names and keys."""

_MASK = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """Return the hash of `data`, 0 to 2**31 - 1."""
    value = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        value = (_rotated(value, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _scrambled(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = ((value ^ value >> 16) * 0x85EBCA6B) & _MASK
    value = ((value ^ value >> 13) * 0xC2B2AE35) & _MASK
    return (value ^ value >> 16) & 0x7FFFFFFF


def _scrambled(word: int) -> int:
    return (_rotated((word * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
