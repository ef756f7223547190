"""The acknowledged messages of a batch, in the words of Pulsar's commands and records.

A set is an integer with one bit for each message that is still pending.
"""

from collections.abc import Sequence

from daybook.wire.errors import MalformedError

_WORD_BITS = 64
_WORD_MASK = (1 << _WORD_BITS) - 1
_ACK_SET_WORDS_MAX = 1 << 12  # 262,144 messages in an entry


def decode_ack_set(words: Sequence[int]) -> int | None:
    """Return the pending messages as the bits of an int; None for the whole entry."""
    if not words:
        return None
    if len(words) > _ACK_SET_WORDS_MAX:
        raise MalformedError(f"an acknowledgement set has {len(words)} words, which is too many")
    return int.from_bytes(
        b"".join((word & _WORD_MASK).to_bytes(8, "little") for word in words), "little"
    )


def encode_ack_set(pending: int | None) -> list[int]:
    """Return the words of a set: one zero word if nothing is pending, none for the whole entry."""
    if pending is None:
        return []
    words: list[int] = []
    while pending or not words:
        word = pending & _WORD_MASK
        words.append(word - (1 << _WORD_BITS) if word >> 63 else word)
        pending >>= _WORD_BITS
    return words
