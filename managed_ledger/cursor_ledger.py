"""How a cursor is kept in its ledger: whole snapshots, and small changes in between.

Each record is a valid PositionInfo of Pulsar whose ledgerId and entryId are the mark-delete
position after the record.  A Pulsar broker takes each of them for a snapshot: after a crash of ours
it stands at exactly that position, and delivers again what was acknowledged above it.  Daybook's
own fields say what a record really is:

    none          snapshot     all that is acknowledged
    change  1000  change       version 2, kind 1, reset (0 or 1), then for each run: ledger, first
                               entry, entries behind it - all varints.  Applied to the state before;
                               the properties of the record are all that the cursor has
    part    1001  part         version 2, number of the part, number of parts (varints), then bytes
                               of a snapshot that is too large for one entry

Version 1 of changes and parts began with a zero byte, which Pulsar's parser skips: it took what
follows for fields, and skipped messages.  It is read, and written as long as a broker of the
cluster does not announce `CHANGE_2` (`docs/formats/managed_ledger.md`).

    | 0 | version 1 | kind | ... |    kind 1 change, with mark-delete (ledger, entry + 1), reset and
                                      the number of runs; kind 2 part

The first record of a ledger is a snapshot, or the first part of one.  Recovery takes the last
complete snapshot and applies the changes behind it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import Change, Run, apply_change
from daybook.managed_ledger.records import message_ranges, position_of
from daybook.managed_ledger.records_pb2 import (
    LongListMap,
    ManagedCursorInfo,
    MessageRange,
    PositionInfo,
)
from daybook.wire.errors import WireError
from daybook.wire.fields import DELIMITED, VARINT, decode_varint, encode_tag, encode_varint
from daybook.wire.protobuf import check_readable

CHANGE_2 = "cursor-change-2"  # the format's name, as brokers announce it
VERSION = 2
_VERSION_1 = 1
_CHANGE, _PART = 1, 2  # kinds
PART_BYTES_MAX = 1 << 20
RANGES_MAX = 100  # With more runs than this the dense form is the smaller one.

_LEDGER_TAG, _ENTRY_TAG = encode_tag(1, VARINT), encode_tag(2, VARINT)
_CHANGE_TAG, _PART_TAG = encode_tag(1000, DELIMITED), encode_tag(1001, DELIMITED)


def encode_snapshot(
    mark_delete: Position,
    acked: AckSet,
    properties: dict[str, int],
    *,
    version: int = VERSION,
    whole_bytes_max: int | None = None,
) -> list[bytes]:
    """One record, or the parts of one.  `version` is that of parts; snapshots are Pulsar's own.

    A snapshot of more than `whole_bytes_max` bytes (None: PART_BYTES_MAX) is cut into parts.
    """
    info = PositionInfo(ledgerId=mark_delete.ledger_id, entryId=mark_delete.entry_id)
    for name, value in sorted(properties.items()):
        info.properties.add(name=name, value=value)
    if acked.range_count(RANGES_MAX) > RANGES_MAX:
        for ledger_id, words in acked.words():
            info.individualDeletedMessageRanges.append(LongListMap(key=ledger_id, values=words))
    else:
        info.individualDeletedMessages.extend(message_ranges(acked.ranges()))
    data = info.SerializeToString()
    whole_bytes_max = whole_bytes_max or PART_BYTES_MAX
    if len(data) <= whole_bytes_max:
        return [data]
    size = min(PART_BYTES_MAX, whole_bytes_max)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    count = encode_varint(len(pieces))
    if version == _VERSION_1:
        head = bytes((0, _VERSION_1, _PART))
        return [head + encode_varint(i) + count + piece for i, piece in enumerate(pieces)]
    head, number = _head(mark_delete, encode_properties(properties)), encode_varint(VERSION)
    return [
        head + _delimited(_PART_TAG, number + encode_varint(i) + count + piece)
        for i, piece in enumerate(pieces)
    ]


def encode_properties(properties: dict[str, int]) -> bytes:
    """The properties as each change repeats them: Pulsar takes those of the last record."""
    if not properties:
        return b""
    info = PositionInfo()
    for name, value in sorted(properties.items()):
        info.properties.add(name=name, value=value)
    return info.SerializePartialToString()


def encode_change(change: Change, properties: bytes = b"") -> bytes:
    """Version 2.  `properties`: what `encode_properties` gave."""
    body = bytearray((VERSION, _CHANGE, int(change.reset)))
    _add_runs(body, change.runs)
    return _head(change.mark_delete, properties) + _delimited(_CHANGE_TAG, body)


def encode_change_1(change: Change) -> bytes:
    out = bytearray((0, _VERSION_1, _CHANGE))
    for number in (
        change.mark_delete.ledger_id,
        change.mark_delete.entry_id + 1,
        int(change.reset),
        len(change.runs),
    ):
        out += encode_varint(number)
    _add_runs(out, change.runs)
    return bytes(out)


def is_old(record: bytes) -> bool:
    """Is it a change or a part of version 1, which Pulsar misreads?"""
    return record.startswith(b"\0")


def _head(mark_delete: Position, properties: bytes) -> bytes:
    """The fields that Pulsar reads.  Written by hand: a message object costs several times more."""
    ledger_id, entry_id = encode_varint(mark_delete.ledger_id), encode_varint(mark_delete.entry_id)
    return _LEDGER_TAG + ledger_id + _ENTRY_TAG + entry_id + properties


def _delimited(tag: bytes, body: bytes | bytearray) -> bytes:
    return tag + encode_varint(len(body)) + body


def _add_runs(out: bytearray, runs: Iterable[Run]) -> None:
    for ledger_id, first, last in runs:
        out += encode_varint(ledger_id) + encode_varint(first) + encode_varint(last - first)


def decode_change_1(data: bytes) -> Change:
    """Raises LogCorruptError."""
    ledger_id, entry, reset, count, *rest = _varints(data, 3, at_least=4)
    if len(rest) != 3 * count or reset > 1:
        raise LogCorruptError("a change record of a cursor with the wrong number of runs")
    return Change(Position(ledger_id, entry - 1), _runs(rest), bool(reset))


def decode_change(mark_delete: Position, body: bytes) -> Change:
    """Decode field 1000 of a record with that mark-delete position.  Raises LogCorruptError."""
    version, kind, reset, *rest = _varints(body, 0, at_least=3)
    if version != VERSION or kind != _CHANGE:
        raise LogCorruptError(
            f"a change record of a cursor, of version {version} and kind {kind}, was written by a "
            "newer Daybook; start that version to open the topic"
        )
    if len(rest) % 3 or reset > 1:
        raise LogCorruptError("a change record of a cursor with half a run")
    return Change(mark_delete, _runs(rest), bool(reset))


def _runs(numbers: Sequence[int]) -> tuple[Run, ...]:
    return tuple(
        (numbers[i], numbers[i + 1], numbers[i + 1] + numbers[i + 2])
        for i in range(0, len(numbers), 3)
    )


def _varints(data: bytes, offset: int, *, at_least: int) -> list[int]:
    numbers: list[int] = []
    try:
        while offset < len(data):
            number, offset = decode_varint(data, offset)
            numbers.append(number)
    except WireError as error:
        raise LogCorruptError(f"a change record of a cursor does not parse: {error}") from error
    if len(numbers) < at_least:
        raise LogCorruptError("a change record of a cursor is cut off")
    return numbers


class Recovered:
    """What the records of a cursor's ledger come to, in order.

    `lengths`: the entries of the log's ledgers, for ranges that span several of them.
    `old_records` counts changes and parts of version 1, which Pulsar misreads.
    """

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self._lengths = lengths
        self.mark_delete: Position | None = None  # None until there is a complete snapshot
        self.acked = AckSet()
        self.properties: dict[str, int] = {}
        self.old_records = 0
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
        if is_old(data):
            self._apply_1(data)
            return
        info = _parse(data)
        if info.HasField("part"):
            self._part_2(info.part)
        elif info.HasField("change"):
            # Without a snapshot before it a change says too little; the cursor's record counts.
            change = decode_change(Position(info.ledgerId, info.entryId), info.change)
            if self.mark_delete is not None:
                self._change(change)
                self.properties = {p.name: p.value for p in info.properties}
        else:
            self._snapshot(info)

    def _apply_1(self, data: bytes) -> None:
        if len(data) < 3 or data[1] != _VERSION_1:
            raise LogCorruptError("a cursor record of a version that this Daybook does not know")
        self.old_records += 1
        if data[2] == _PART:
            self._part(data, 3)
        elif data[2] == _CHANGE:
            if self.mark_delete is not None:
                self._change(decode_change_1(data))
        else:
            raise LogCorruptError(f"a cursor record of the unknown kind {data[2]}")

    def _change(self, change: Change) -> None:
        assert self.mark_delete is not None
        try:
            self.mark_delete, self.acked = apply_change(self.mark_delete, self.acked, change)
        except ValueError as error:
            raise LogCorruptError(f"a change record of a cursor: {error}") from error

    def _part_2(self, body: bytes) -> None:
        if body[:1] != bytes((VERSION,)):
            raise LogCorruptError(
                "a part of a cursor snapshot was written by a newer Daybook; start that version to "
                "open the topic"
            )
        self._part(body, 1)

    def _part(self, data: bytes, offset: int) -> None:
        try:
            number, offset = decode_varint(data, offset)
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
            self._snapshot(_parse(b"".join(self._parts)))

    def _snapshot(self, info: PositionInfo) -> None:
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


def _parse(data: bytes) -> PositionInfo:
    info = PositionInfo()
    try:
        info.ParseFromString(data)
        check_readable(info)
    except (DecodeError, WireError) as error:
        raise LogCorruptError(f"a snapshot of a cursor does not parse: {error}") from error
    return info


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
