"""How a cursor is kept in its ledger: whole snapshots, and small changes in between.

A snapshot is Pulsar's PositionInfo.  A record of ours starts with a zero byte, which no protobuf
message does, so that a Pulsar broker refuses rather than misreads it:

    | 0 | version 1 | kind | ... |

    kind 1  change        mark-delete (ledger, entry + 1), reset 0 or 1, count of runs, then for
                          each run: ledger, first entry, entries behind it - all varints
    kind 2  part          part i, of n parts (varints), then bytes of a PositionInfo that is too
                          large for one entry

The first record of a ledger is a snapshot, or the first part of one.  Recovery takes the last
complete snapshot and applies the changes behind it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from managed_ledger.ack_set import AckSet
from managed_ledger.errors import LogCorruptError
from managed_ledger.position import Position
from managed_ledger.protocol.cursor import Change, apply_change
from managed_ledger.records import message_ranges, position_of
from managed_ledger.records_pb2 import (
    LongListMap,
    ManagedCursorInfo,
    MessageRange,
    PositionInfo,
)
from wire.errors import WireError
from wire.fields import decode_varint, encode_varint
from wire.protobuf import check_readable

CHANGE_2 = "cursor-change-2"  # the format's name, as brokers announce it
VERSION = 1
_CHANGE, _PART = 1, 2
PART_BYTES_MAX = 1 << 20
RANGES_MAX = 100  # With more runs than this the dense form is the smaller one.


def encode_snapshot(
    mark_delete: Position, acked: AckSet, properties: dict[str, int]
) -> list[bytes]:
    """One record, or the parts of one."""
    info = PositionInfo(ledgerId=mark_delete.ledger_id, entryId=mark_delete.entry_id)
    for name, value in sorted(properties.items()):
        info.properties.add(name=name, value=value)
    if acked.range_count(RANGES_MAX) > RANGES_MAX:
        for ledger_id, words in acked.words():
            info.individualDeletedMessageRanges.append(LongListMap(key=ledger_id, values=words))
    else:
        info.individualDeletedMessages.extend(message_ranges(acked.ranges()))
    data = info.SerializeToString()
    if len(data) <= PART_BYTES_MAX:
        return [data]
    pieces = [data[i : i + PART_BYTES_MAX] for i in range(0, len(data), PART_BYTES_MAX)]
    return [
        bytes((0, VERSION, _PART)) + encode_varint(i) + encode_varint(len(pieces)) + piece
        for i, piece in enumerate(pieces)
    ]


def encode_change(change: Change) -> bytes:
    out = bytearray((0, VERSION, _CHANGE))
    for number in (
        change.mark_delete.ledger_id,
        change.mark_delete.entry_id + 1,
        int(change.reset),
        len(change.runs),
    ):
        out += encode_varint(number)
    for ledger_id, first, last in change.runs:
        out += encode_varint(ledger_id) + encode_varint(first) + encode_varint(last - first)
    return bytes(out)


def decode_change(data: bytes) -> Change:
    """Raises LogCorruptError."""
    try:
        offset = 3
        numbers: list[int] = []
        while offset < len(data):
            number, offset = decode_varint(data, offset)
            numbers.append(number)
        ledger_id, entry, reset, count, *rest = numbers
        if len(rest) != 3 * count or reset > 1:
            raise LogCorruptError("a change record of a cursor with the wrong number of runs")
        runs = tuple(
            (rest[i], rest[i + 1], rest[i + 1] + rest[i + 2]) for i in range(0, len(rest), 3)
        )
        return Change(Position(ledger_id, entry - 1), runs, bool(reset))
    except (WireError, ValueError) as error:
        raise LogCorruptError(f"a change record of a cursor does not parse: {error}") from error


class Recovered:
    """What the records of a cursor's ledger come to, in order.

    `lengths`: the entries of the log's ledgers, for ranges that span several of them.
    """

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self._lengths = lengths
        self.mark_delete: Position | None = None  # None until there is a complete snapshot
        self.acked = AckSet()
        self.properties: dict[str, int] = {}
        self._parts: list[bytes] = []

    def start(self, info: ManagedCursorInfo) -> None:
        """What the record in the metadata store says itself.  Raises LogCorruptError."""
        if not (info.HasField("markDeleteLedgerId") and info.HasField("markDeleteEntryId")):
            raise LogCorruptError("the record of a cursor does not say where it stands")
        self.mark_delete = Position(info.markDeleteLedgerId, info.markDeleteEntryId)
        self.properties = {p.name: p.value for p in info.properties}
        add_ranges(self.acked, info.individualDeletedMessages, self._lengths)
        self.acked.discard_through(self.mark_delete)

    def apply(self, data: bytes) -> None:
        """The next record.  Raises LogCorruptError."""
        if not data.startswith(b"\0"):
            self._snapshot(data)
        elif len(data) < 3 or data[1] != VERSION:
            raise LogCorruptError("a cursor record of a version that this Daybook does not know")
        elif data[2] == _PART:
            self._part(data)
        elif data[2] == _CHANGE:
            if self.mark_delete is not None:
                self._change(decode_change(data))
        else:
            raise LogCorruptError(f"a cursor record of the unknown kind {data[2]}")

    def _change(self, change: Change) -> None:
        assert self.mark_delete is not None
        try:
            self.mark_delete, self.acked = apply_change(self.mark_delete, self.acked, change)
        except ValueError as error:
            raise LogCorruptError(f"a change record of a cursor: {error}") from error

    def _part(self, data: bytes) -> None:
        try:
            number, offset = decode_varint(data, 3)
            count, offset = decode_varint(data, offset)
        except WireError as error:
            raise LogCorruptError("a part of a cursor snapshot does not parse") from error
        if number == 0:
            self._parts = []
        if number != len(self._parts):
            self._parts = []  # An older, incomplete one: what counts comes later.
            return
        self._parts.append(data[offset:])
        if len(self._parts) == count:
            self._snapshot(b"".join(self._parts))

    def _snapshot(self, data: bytes) -> None:
        info = PositionInfo()
        try:
            info.ParseFromString(data)
            check_readable(info)
        except (DecodeError, WireError) as error:
            raise LogCorruptError(f"a snapshot of a cursor does not parse: {error}") from error
        self._parts = []
        self.mark_delete = Position(info.ledgerId, info.entryId)
        self.properties = {p.name: p.value for p in info.properties}
        self.acked = AckSet()
        add_ranges(self.acked, info.individualDeletedMessages, self._lengths)
        if not info.individualDeletedMessages:
            for ledger in info.individualDeletedMessageRanges:
                try:
                    self.acked.add_words(ledger.key, ledger.values)
                except ValueError as error:
                    raise LogCorruptError(f"a snapshot of a cursor: {error}") from error
        self.acked.discard_through(self.mark_delete)


def add_ranges(acked: AckSet, ranges: Iterable[MessageRange], lengths: Mapping[int, int]) -> None:
    """Add Pulsar's ranges, which may span ledgers.  LogCorruptError."""
    ids = sorted(lengths)
    try:
        for found in ranges:
            lower, upper = position_of(found.lowerEndpoint), position_of(found.upperEndpoint)
            first = lower.entry_id + 1
            if lower.ledger_id != upper.ledger_id:
                behind = bisect_right(ids, lower.ledger_id)
                if lower.ledger_id in lengths:
                    acked.add_range(lower.ledger_id, first, lengths[lower.ledger_id] - 1)
                for ledger_id in ids[behind : bisect_left(ids, upper.ledger_id)]:
                    acked.add_range(ledger_id, 0, lengths[ledger_id] - 1)
                first = 0
            acked.add_range(upper.ledger_id, first, upper.entry_id)
    except ValueError as error:
        raise LogCorruptError(f"a range of a cursor: {error}") from error


def recover(records: Sequence[bytes], lengths: Mapping[int, int]) -> Recovered:
    recovered = Recovered(lengths)
    for record in records:
        recovered.apply(record)
    return recovered
