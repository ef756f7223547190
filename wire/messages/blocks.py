"""Many adds in one frame with one answer: an extension of protocol v2 among bookies of ours.

A bookie that takes blocks says so in its registration record (`BLOCKS_PROPERTY`).  No writer sends
a block to another bookie, and Apache's software ignores the property.

    block     header 4 | { size 4 | add }      adds as in `wire.messages.bookie`, with their sizes
    answer    header 4 | status 4 | ledger 8 | first entry 8 | last entry 8

A writer thus sends the same bytes as to a bookie that takes single adds, behind four more bytes.
The adds are plain ones (no flags), of one ledger, with one master key and consecutive ids.  The
answer is about all of them together: OK means that each entry is durable, and any other status
proves nothing about any of them.
"""

from dataclasses import dataclass
from struct import Struct

from daybook.wire.entry import ENTRY_HEADER_BYTES
from daybook.wire.errors import MalformedError, TruncatedError
from daybook.wire.fields import U32
from daybook.wire.messages.bookie import (
    ADD_HEADER,
    ADD_REQUEST_HEADER_BYTES,
    AddRun,
    Operation,
    packet_header,
)

BLOCKS_PROPERTY = "daybook.blocks"
"""In the registration of a bookie; any value but an empty one: it takes blocks."""

_FRAMED = Struct(">II")
_ADD = Struct(">I24sqq")  # size, packet header and master key, ledger, entry
_ANSWER = Struct(">IIqqq")
_FRAMED_ANSWER = Struct(">IIIqqq")
_HEADER_BYTES = 4
ADD_BYTES = 4 + ADD_REQUEST_HEADER_BYTES  # the fields of an add in front of its entry
BLOCK_HEADER = packet_header(Operation.ADD_BLOCK)


@dataclass(frozen=True, slots=True)
class AddBlock:
    """Plain adds of consecutive entries to one ledger."""

    ledger_id: int
    first: int
    master_key: bytes
    adds: memoryview  # each entry behind ADD_BYTES of its add
    sizes: list[int]  # the bytes of all entries

    @property
    def last(self) -> int:
        return self.first + len(self.sizes) - 1


def encode_block_header(adds_bytes: int) -> bytes:
    """Return the bytes in front of `adds_bytes` of adds, each behind its size."""
    return _FRAMED.pack(_HEADER_BYTES + adds_bytes, BLOCK_HEADER)


def decode_block(frame: memoryview) -> AddBlock:
    """Return the adds of a block; raise WireError unless they are complete and belong together."""
    adds = frame[_HEADER_BYTES:]
    end = len(adds)
    if end < _ADD.size:
        raise TruncatedError(f"a block of adds has {len(frame)} bytes, which is too few")
    _, first_packet, ledger_id, first = _ADD.unpack_from(adds)
    if U32.unpack_from(first_packet)[0] != ADD_HEADER:
        raise MalformedError("a block holds something else than plain adds")
    sizes: list[int] = []
    at, entry_id = 0, first
    unpack = _ADD.unpack_from
    while at < end:
        if end - at < ADD_BYTES + ENTRY_HEADER_BYTES:
            raise TruncatedError("a block of adds ends inside an add")
        size, packet, ledger, entry = unpack(adds, at)
        if entry != entry_id or ledger != ledger_id or packet != first_packet:
            raise MalformedError(
                f"entry {entry} of ledger {ledger} is not the next one of its block"
            )
        size -= ADD_REQUEST_HEADER_BYTES
        at += ADD_BYTES + size
        if size < ENTRY_HEADER_BYTES or at > end:
            raise TruncatedError(f"a block holds an entry of {size} bytes, which is too few")
        sizes.append(size)
        entry_id += 1
    return AddBlock(ledger_id, first, first_packet[U32.size :], adds, sizes)


def encode_block_answer(status: int, ledger_id: int, first: int, last: int) -> bytes:
    return _FRAMED_ANSWER.pack(_ANSWER.size, BLOCK_HEADER, status, ledger_id, first, last)


def decode_block_answer(frame: memoryview) -> AddRun:
    if len(frame) != _ANSWER.size:
        raise MalformedError(f"the answer to a block has {len(frame)} bytes, which is wrong")
    _, status, ledger_id, first, last = _ANSWER.unpack(frame)
    if first > last:
        raise MalformedError(
            f"the answer to a block names entries {first} to {last}, which is no range"
        )
    return AddRun(status, ledger_id, first, last)
