"""The acknowledged messages of a batch, in the words of Pulsar's commands and records.

A set is an integer with one bit for each message that is still pending.  A word is a signed number
of 64 bits, lowest first.
"""

import struct
from collections.abc import Sequence

from daybook.wire.errors import MalformedError

_WORD_BITS = 64
_ACK_SET_WORDS_MAX = 1 << 12  # 262,144 messages in an entry


def decode_ack_set(words: Sequence[int]) -> int | None:
    """Return the pending messages as the bits of an int; None for the whole entry."""
    if not words:
        return None
    if len(words) > _ACK_SET_WORDS_MAX:
        raise MalformedError(f"an acknowledgement set has {len(words)} words, which is too many")
    return int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")


def encode_ack_set(pending: int | None) -> list[int]:
    """Return the words of a set: one zero word if nothing is pending, none for the whole entry."""
    if pending is None:
        return []
    # The bytes are made at once: to shift a large number by a word copies the whole number.
    count = max(1, -(-pending.bit_length() // _WORD_BITS))
    return list(struct.unpack(f"<{count}q", pending.to_bytes(8 * count, "little")))
