"""An entry, as it travels to a bookie, lies on its disk, and comes back to a reader.

    offset  size  field
         0     8  ledger_id
         8     8  entry_id
        16     8  lac        last add confirmed when the add was sent, -1 while nothing is confirmed
        24     8  length     payload bytes of the ledger up to and including this entry
        32     d  digest     of the fields above and the payload; d by the type (`wire.digest`)
      32+d     -  payload    may be empty

All integers are signed and big-endian.  These bytes are the same on the wire (v2 and v3), in the
log of a bookie and in an answer.  A re-written copy of an entry (recovery) has the same payload and
length, and its own lac.

An explicit LAC, which a writer sends to idle bookies, is a packet of its own:

         0     8  ledger_id
         8     8  lac
        16     d  digest     of the fields above
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from daybook.wire.digest import Digester
from daybook.wire.errors import ChecksumError, MalformedError, TruncatedError
from daybook.wire.transport import Buffer

FIELDS = Struct(">qqqq")
_IDS = Struct(">qq")
ENTRY_HEADER_BYTES = FIELDS.size
LAC_HEADER_BYTES = _IDS.size
assert (ENTRY_HEADER_BYTES, LAC_HEADER_BYTES) == (32, 16)  # disks of others have this layout


@dataclass(frozen=True, slots=True)
class Entry:
    ledger_id: int
    entry_id: int
    lac: int
    length: int
    payload: memoryview


def encode_header(
    ledger_id: int,
    entry_id: int,
    lac: int,
    length: int,
    digester: Digester,
    payload: Sequence[Buffer],
) -> bytes:
    """Return the fields and the digest, to be sent in front of the payload, which is not copied."""
    fields = FIELDS.pack(ledger_id, entry_id, lac, length)
    return fields + digester.compute(fields, *payload)


def decode_entry(
    buffer: memoryview, digester: Digester, ledger_id: int, entry_id: int | None
) -> Entry:
    """Verify and return the entry in `buffer`.  With `entry_id` None any id is right (last entry).

    Raise TruncatedError, ChecksumError or MalformedError.
    """
    start = ENTRY_HEADER_BYTES + digester.size
    if len(buffer) < start:
        raise TruncatedError(f"an entry has {len(buffer)} bytes, and its header alone has {start}")
    payload = buffer[start:]
    # The digest comes first: in an intact entry wrong ids are a peer's mistake, in a damaged one
    # they prove nothing.
    if bytes(buffer[ENTRY_HEADER_BYTES:start]) != digester.compute(
        buffer[:ENTRY_HEADER_BYTES], payload
    ):
        raise ChecksumError(
            f"entry {entry_id} of ledger {ledger_id} does not match its digest: it is damaged, or"
            " the password is wrong"
        )
    ledger, entry, lac, length = FIELDS.unpack_from(buffer)
    if ledger != ledger_id or (entry_id is not None and entry != entry_id):
        raise MalformedError(
            f"the bookie sent entry {entry} of ledger {ledger} instead of entry {entry_id} of"
            f" ledger {ledger_id}"
        )
    return Entry(ledger, entry, lac, length, payload)


def peek_ids(buffer: Buffer) -> tuple[int, int]:
    """Return the ledger and entry id of an entry without verifying it."""
    if len(buffer) < ENTRY_HEADER_BYTES:
        raise TruncatedError(f"an entry has {len(buffer)} bytes, too few for its header")
    ledger_id, entry_id = _IDS.unpack_from(buffer)
    return ledger_id, entry_id


def peek_lac(buffer: Buffer) -> int:
    """Return the LAC of an entry without verifying it."""
    if len(buffer) < ENTRY_HEADER_BYTES:
        raise TruncatedError(f"an entry has {len(buffer)} bytes, too few for its header")
    lac: int = FIELDS.unpack_from(buffer)[2]
    return lac


def encode_lac(ledger_id: int, lac: int, digester: Digester) -> bytes:
    fields = _IDS.pack(ledger_id, lac)
    return fields + digester.compute(fields)


def decode_lac(buffer: memoryview, digester: Digester, ledger_id: int) -> int:
    """Verify an explicit-LAC packet and return its LAC."""
    size = LAC_HEADER_BYTES + digester.size
    if len(buffer) < size:
        raise TruncatedError(f"a LAC packet has {len(buffer)} bytes instead of {size}")
    if bytes(buffer[LAC_HEADER_BYTES:size]) != digester.compute(buffer[:LAC_HEADER_BYTES]):
        raise ChecksumError(f"the LAC of ledger {ledger_id} does not match its digest")
    ledger, lac = _IDS.unpack_from(buffer)
    if ledger != ledger_id:
        raise MalformedError(
            f"the bookie sent the LAC of ledger {ledger} instead of ledger {ledger_id}"
        )
    return int(lac)
