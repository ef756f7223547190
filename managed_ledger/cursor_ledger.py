"""How a cursor is stored: its record in the metadata store, and the records in its ledger.

The ledger holds whole snapshots, and small changes in between.  Each of these records is a valid
PositionInfo of Pulsar, and its ledgerId and entryId are the mark-delete position after the record.
A Pulsar broker takes each of them for a snapshot.  After a crash of Daybook the Pulsar broker
stands at exactly that position, and delivers again what was acknowledged above it.  Fields of
Daybook's own say what a record really is:

    none          snapshot     everything that is acknowledged
    change  1000  change       version 2, kind 1, reset (0 or 1), then for each run: ledger, first
                               entry, number of further entries - all varints.  It is applied to the
                               state before it.  The record has all properties of the cursor, and
                               those partly acknowledged entries that changed
    part    1001  part         version 2, number of the part, number of parts (varints), then bytes
                               of a snapshot that is too large for one entry
    holes   1002  in addition  version 1, mark-delete position, top (each: ledger, entry + 1), the
                               number of acknowledged entries above mark-delete, and messages and
                               bytes of the holes between mark-delete and top - all varints.  It is
                               there if there are holes, and their size is known

A record of the metadata store that has the whole state of a cursor has field 1002, too.  Pulsar
skips it.  A reader uses it only for the state that it names (`protocol.holes`).

Version 1 of changes and parts began with a zero byte, which Pulsar's parser skips.  Pulsar took
what follows for fields, and skipped messages.  Version 1 is read, and it is written while a broker
of the cluster does not announce `CHANGE_2` (`docs/formats/managed_ledger.md`).

    | 0 | version 1 | kind | ... |    kind 1 change, with mark-delete (ledger, entry + 1), reset and
                                      the number of runs; kind 2 part

The first record of a ledger is a snapshot, or the first part of one.  Recovery takes the last
complete snapshot and applies the changes behind it.

Each write of the record in the metadata store is a multi that checks the version of the log's list,
so a stale owner changes nothing.  It also replaces the exact version of the record that was written
last, so a write that the store carries out late changes nothing either.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from google.protobuf.message import DecodeError

from daybook.bookie.errors import NoSuchEntryError, NoSuchLedgerError
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import FencedError, LogCorruptError
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import Change, Part, Run, apply_change
from daybook.managed_ledger.protocol.holes import HoleCount
from daybook.managed_ledger.records import (
    LedgerOwner,
    cursor_path,
    message_ranges,
    nested,
    parse,
    position_of,
)
from daybook.managed_ledger.records_pb2 import (
    BatchedEntryDeletionIndexInfo,
    LongListMap,
    LongProperty,
    ManagedCursorInfo,
    MessageRange,
    PositionInfo,
)
from daybook.wire.ack_sets import decode_ack_set, encode_ack_set
from daybook.wire.errors import WireError
from daybook.wire.fields import DELIMITED, VARINT, decode_varint, encode_tag, encode_varint
from daybook.wire.metadata.store import (
    Create,
    Delete,
    NoRecordError,
    Operation,
    OutcomeUnknownError,
    RecordExistsError,
    Set,
    StoreUnavailableError,
    VersionConflictError,
)
from daybook.wire.protobuf import check_readable

IN_RECORD = -1  # the ledger id of a cursor whose state is in its record
CHANGE_2 = "cursor-change-2"  # the format's name, as brokers announce it
VERSION = 2
_VERSION_1 = 1
_CHANGE, _PART = 1, 2  # kinds
PART_BYTES_MAX = 1 << 20
RECORD_BYTES_MAX = 64 << 10  # A larger state stays in the cursor's ledger.
RANGES_MAX = 100  # With more runs than this the dense form is the smaller one.
_READ_ENTRIES = 1000
_READ_BYTES = 8 << 20

_HOLES_VERSION = 1

_LEDGER_TAG, _ENTRY_TAG = encode_tag(1, VARINT), encode_tag(2, VARINT)
_CHANGE_TAG, _PART_TAG = encode_tag(1000, DELIMITED), encode_tag(1001, DELIMITED)
_HOLES_TAG = encode_tag(1002, DELIMITED)


# -- records of the ledger: encoding


def encode_snapshot(
    mark_delete: Position,
    acked: AckSet,
    properties: dict[str, int],
    *,
    parts: Iterable[Part] = (),
    version: int = VERSION,
    whole_bytes_max: int | None = None,
    holes: bytes = b"",
) -> list[bytes]:
    """Return a snapshot as one record, or cut into parts.

    `version` is the version of parts; a whole snapshot is a record of Pulsar's own.  A snapshot of
    more than `whole_bytes_max` bytes (None: PART_BYTES_MAX) is cut.  `holes` is the result of
    `encode_holes`.
    """
    info = PositionInfo(ledgerId=mark_delete.ledger_id, entryId=mark_delete.entry_id)
    for name, value in sorted(properties.items()):
        info.properties.add(name=name, value=value)
    # Pulsar reads both forms: ranges for a few runs, words of bits for many.
    if acked.range_count(RANGES_MAX) > RANGES_MAX:
        for ledger_id, words in acked.words():
            info.individualDeletedMessageRanges.append(LongListMap(key=ledger_id, values=words))
    else:
        info.individualDeletedMessages.extend(message_ranges(acked.ranges()))
    _add_parts(info, parts)
    if holes:
        info.holes = holes
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
    # Each part is a record that Pulsar reads as a snapshot without holes.
    head, number = _head(mark_delete, encode_properties(properties)), encode_varint(VERSION)
    return [
        head + _delimited(_PART_TAG, number + encode_varint(i) + count + piece)
        for i, piece in enumerate(pieces)
    ]


def encode_properties(properties: dict[str, int]) -> bytes:
    """Return the properties as each change repeats them: Pulsar uses those of the last record."""
    if not properties:
        return b""
    info = PositionInfo()
    for name, value in sorted(properties.items()):
        info.properties.add(name=name, value=value)
    return info.SerializePartialToString()


def encode_holes(count: HoleCount | None) -> bytes:
    """Return the value of field 1002; empty if there are no holes, or their size is not known."""
    if count is None or count.top <= count.mark_delete:
        return b""
    numbers = (
        _HOLES_VERSION,
        count.mark_delete.ledger_id,
        count.mark_delete.entry_id + 1,
        count.top.ledger_id,
        count.top.entry_id + 1,
        count.acked,
        count.messages,
        count.bytes,
    )
    return b"".join(map(encode_varint, numbers))


def decode_holes(data: bytes) -> HoleCount | None:
    """Decode field 1002.  Return None if it is empty, of another version, or not valid.

    Nothing depends on it but a number for people, and that can be counted again.
    """
    try:
        version, ledger_id, entry, top_id, top, acked, messages, size = _varints(
            data, 0, at_least=8
        )
    except (LogCorruptError, ValueError):
        return None
    if version != _HOLES_VERSION:
        return None
    return HoleCount(
        Position(ledger_id, entry - 1), Position(top_id, top - 1), acked, messages, size
    )


def encode_change(change: Change, properties: bytes = b"", holes: bytes = b"") -> bytes:
    """Return a change record of version 2.

    `properties` and `holes` are the results of `encode_properties` and `encode_holes`.
    """
    body = bytearray((VERSION, _CHANGE, int(change.reset)))
    _add_runs(body, change.runs)
    fields = properties
    if change.parts:
        info = PositionInfo()
        _add_parts(info, change.parts)
        fields += info.SerializePartialToString()
    record = _head(change.mark_delete, fields) + _delimited(_CHANGE_TAG, body)
    return record + _delimited(_HOLES_TAG, holes) if holes else record


def encode_change_1(change: Change) -> bytes:
    """Return a change record of version 1."""
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
    """Return True for a change or a part of version 1, which Pulsar misreads."""
    return record.startswith(b"\0")


def _head(mark_delete: Position, properties: bytes) -> bytes:
    """Return the fields that Pulsar reads.  A message object would cost several times more."""
    ledger_id, entry_id = encode_varint(mark_delete.ledger_id), encode_varint(mark_delete.entry_id)
    return _LEDGER_TAG + ledger_id + _ENTRY_TAG + entry_id + properties


def _add_parts(info: PositionInfo, parts: Iterable[Part]) -> None:
    for position, left in parts:
        info.batchedEntryDeletionIndexInfo.add(
            position=nested(position), deleteSet=encode_ack_set(left)
        )


def _delimited(tag: bytes, body: bytes | bytearray) -> bytes:
    return tag + encode_varint(len(body)) + body


def _add_runs(out: bytearray, runs: Iterable[Run]) -> None:
    for ledger_id, first, last in runs:
        out += encode_varint(ledger_id) + encode_varint(first) + encode_varint(last - first)


# -- records of the ledger: decoding


def decode_change_1(data: bytes) -> Change:
    """Decode a change record of version 1.  Raise LogCorruptError."""
    ledger_id, entry, reset, count, *rest = _varints(data, 3, at_least=4)
    if len(rest) != 3 * count or reset > 1:
        raise LogCorruptError("a change record of a cursor has another number of runs than it says")
    return Change(Position(ledger_id, entry - 1), _runs(rest), bool(reset))


def decode_change(mark_delete: Position, body: bytes) -> Change:
    """Decode field 1000 of a record with that mark-delete position.  Raise LogCorruptError."""
    version, kind, reset, *rest = _varints(body, 0, at_least=3)
    if version != VERSION or kind != _CHANGE:
        raise LogCorruptError(
            f"a change record of a cursor, of version {version} and kind {kind}, was written by a "
            "newer Daybook; start that version to open the topic"
        )
    if len(rest) % 3 or reset > 1:
        raise LogCorruptError("a change record of a cursor ends inside a run")
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
    """The state that results from the records of a cursor's ledger, applied in order.

    `lengths` has the number of entries of the log's ledgers, for ranges that span several of them.
    `old_records` counts changes and parts of version 1, which Pulsar misreads.
    """

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self._lengths = lengths
        self.mark_delete: Position | None = None  # None until there is a complete snapshot
        self.acked = AckSet()
        self.partial: dict[Position, int] = {}  # pending messages; some entries may be done by now
        self.properties: dict[str, int] = {}
        self.holes: HoleCount | None = None  # as the last record states it
        self.old_records = 0
        self._parts: list[bytes] = []

    def start(self, info: ManagedCursorInfo) -> None:
        """Start from the state in the record of the metadata store.  Raise LogCorruptError."""
        if not (info.HasField("markDeleteLedgerId") and info.HasField("markDeleteEntryId")):
            raise LogCorruptError("the record of a cursor has no mark-delete position")
        self.mark_delete = Position(info.markDeleteLedgerId, info.markDeleteEntryId)
        self.properties = {p.name: p.value for p in info.properties}
        add_ranges(self.acked, info.individualDeletedMessages, self._lengths)
        self.acked.discard_through(self.mark_delete)
        self.holes = decode_holes(info.holes)
        # Pulsar writes these when it closes a cursor.
        self.partial = dict(_parts_of(info.batchedEntryDeletionIndexInfo))

    def apply(self, data: bytes) -> None:
        """Apply the next record.  Raise LogCorruptError."""
        if is_old(data):
            self._apply_1(data)
            return
        info = _parse(data)
        if info.HasField("part"):
            self._part_2(info.part)
        elif info.HasField("change"):
            # Without a snapshot before it, a change is ignored: the cursor's record is used then.
            change = decode_change(Position(info.ledgerId, info.entryId), info.change)
            if self.mark_delete is not None:
                self._change(change)
                self.holes = decode_holes(info.holes)
                self.properties = {p.name: p.value for p in info.properties}
                if change.reset:
                    self.partial.clear()
                self.partial.update(_parts_of(info.batchedEntryDeletionIndexInfo))
        else:
            self._snapshot(info)

    def _apply_1(self, data: bytes) -> None:
        if len(data) < 3 or data[1] != _VERSION_1:
            raise LogCorruptError(
                "a cursor record was written by a newer Daybook; start that version to open the"
                " topic"
            )
        self.old_records += 1
        self.holes = None
        if data[2] == _PART:
            self._part(data, 3)
        elif data[2] == _CHANGE:
            if self.mark_delete is not None:
                self._change(decode_change_1(data))
        else:
            raise LogCorruptError(f"a cursor record has the unknown kind {data[2]}")

    def _change(self, change: Change) -> None:
        assert self.mark_delete is not None
        try:
            self.mark_delete, self.acked = apply_change(self.mark_delete, self.acked, change)
        except ValueError as error:
            raise LogCorruptError(f"a change record of a cursor is not valid: {error}") from error

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
        if number == 0:  # A new snapshot begins, even if the one before was cut short.
            self._parts = []
        if number != len(self._parts):
            self._parts = []  # The snapshot was cut short; a later one follows.
            return
        self._parts.append(data[offset:])
        if len(self._parts) == count:
            self._snapshot(_parse(b"".join(self._parts)))

    def _snapshot(self, info: PositionInfo) -> None:
        self._parts = []
        self.mark_delete = Position(info.ledgerId, info.entryId)
        self.properties = {p.name: p.value for p in info.properties}
        self.holes = decode_holes(info.holes)
        self.partial = dict(_parts_of(info.batchedEntryDeletionIndexInfo))
        self.acked = AckSet()
        add_ranges(self.acked, info.individualDeletedMessages, self._lengths)
        # If a record has both forms, the ranges count.
        if not info.individualDeletedMessages:
            for ledger in info.individualDeletedMessageRanges:
                try:
                    self.acked.add_words(ledger.key, ledger.values)
                except ValueError as error:
                    raise LogCorruptError(
                        f"a snapshot of a cursor is not valid: {error}"
                    ) from error
        self.acked.discard_through(self.mark_delete)


def _parts_of(found: Iterable[BatchedEntryDeletionIndexInfo]) -> Iterator[Part]:
    """Yield the entries with pending messages, and the messages.  Raise LogCorruptError."""
    for each in found:
        try:
            left = decode_ack_set(each.deleteSet)
        except WireError as error:
            raise LogCorruptError(
                f"a partly acknowledged entry of a cursor is not valid: {error}"
            ) from error
        if left:  # No words, or only empty ones, say nothing: the whole entry comes again.
            yield position_of(each.position), left


def _parse(data: bytes) -> PositionInfo:
    info = PositionInfo()
    try:
        info.ParseFromString(data)
        check_readable(info)
    except (DecodeError, WireError) as error:
        raise LogCorruptError(f"a snapshot of a cursor does not parse: {error}") from error
    return info


def add_ranges(acked: AckSet, ranges: Iterable[MessageRange], lengths: Mapping[int, int]) -> None:
    """Add Pulsar's ranges, which may span ledgers.  Raise LogCorruptError."""
    ids = sorted(lengths)
    try:
        for found in ranges:
            lower, upper = position_of(found.lowerEndpoint), position_of(found.upperEndpoint)
            first = lower.entry_id + 1
            if lower.ledger_id != upper.ledger_id:
                behind = bisect_right(ids, lower.ledger_id)
                # The range covers the rest of the first ledger and all ledgers in between.
                if lower.ledger_id in lengths:
                    acked.add_range(lower.ledger_id, first, lengths[lower.ledger_id] - 1)
                for ledger_id in ids[behind : bisect_left(ids, upper.ledger_id)]:
                    acked.add_range(ledger_id, 0, lengths[ledger_id] - 1)
                first = 0
            acked.add_range(upper.ledger_id, first, upper.entry_id)
    except ValueError as error:
        raise LogCorruptError(f"an acknowledged range of a cursor is not valid: {error}") from error


def recover(records: Sequence[bytes], lengths: Mapping[int, int]) -> Recovered:
    """Return the state that results from these records."""
    recovered = Recovered(lengths)
    for record in records:
        recovered.apply(record)
    return recovered


# -- the record in the metadata store


class CursorRecord:
    """A cursor's record in the metadata store.

    `info` is the content of the record, or will be when `create` is called.
    """

    def __init__(self, context: LogContext, ledgers: LedgerList, name: str) -> None:
        self.path = cursor_path(ledgers.owner.log, name)
        self.info = ManagedCursorInfo(cursorsLedgerId=IN_RECORD)
        self.version = 0
        self._ledgers = ledgers
        self._context = context

    async def create(self, info: ManagedCursorInfo) -> None:
        """Create the record.

        Raise RecordExistsError if there is one with another value, FencedError, MetadataError.
        """
        value = info.SerializeToString()
        await self._write(Create(self.path, value), value, 0)
        self.info, self.version = info, 0

    async def store(self, info: ManagedCursorInfo) -> None:
        """Replace the content of the record.  Raise FencedError, MetadataError."""
        value = info.SerializeToString()
        following = self.version + 1
        await self._write(Set(self.path, value, self.version), value, following)
        self.info, self.version = info, following

    async def delete(self) -> None:
        """Delete the record, unless it is gone already.  Raise FencedError, MetadataError."""
        await self._write(Delete(self.path, self.version), None, 0)

    async def _write(self, operation: Operation, value: bytes | None, version: int) -> None:
        """Repeat an operation until it is carried out and the record has `value` and `version`."""
        while True:
            try:
                await self._ledgers.guarded([operation])
            except StoreUnavailableError:
                await self._context.pause()
            except OutcomeUnknownError:
                if await self._holds(value, version):
                    return
                await self._context.pause()
            except (NoRecordError, RecordExistsError, VersionConflictError) as error:
                # An earlier request whose answer was lost may have been carried out.
                if await self._holds(value, version):
                    return
                if isinstance(error, RecordExistsError):
                    raise
                raise FencedError(
                    f"another broker has changed the cursor record {self.path}: the topic was"
                    " taken over"
                ) from error
            else:
                return

    async def _holds(self, value: bytes | None, version: int) -> bool:
        record = await self._context.read_newest(self.path)
        if value is None or record is None:
            return value is None and record is None
        return record.value == value and record.stat.version == version


def set_position(info: ManagedCursorInfo, mark_delete: Position) -> None:
    info.markDeleteLedgerId, info.markDeleteEntryId = mark_delete.ledger_id, mark_delete.entry_id


def pointing(
    info: ManagedCursorInfo, ledger_id: int, mark_delete: Position, properties: Mapping[str, int]
) -> ManagedCursorInfo:
    """Return the record of a cursor whose state is in a ledger.

    If that ledger is lost, the cursor starts from the position and the properties in the record.
    They belong together, so the record keeps the old ones of both if the new ones are too large.
    """
    made = _at(info, ledger_id, mark_delete, properties)
    if made.ByteSize() > RECORD_BYTES_MAX:
        before = Position(info.markDeleteLedgerId, info.markDeleteEntryId)
        made = _at(info, ledger_id, before, {p.name: p.value for p in info.properties})
    return made


def _at(
    info: ManagedCursorInfo, ledger_id: int, mark_delete: Position, properties: Mapping[str, int]
) -> ManagedCursorInfo:
    """Return the record with another ledger, position and properties, and without other state."""
    made = ManagedCursorInfo()
    made.CopyFrom(info)
    made.cursorsLedgerId = ledger_id
    set_position(made, mark_delete)
    del made.properties[:]
    made.properties.extend(LongProperty(name=n, value=v) for n, v in sorted(properties.items()))
    del made.individualDeletedMessages[:]
    del made.batchedEntryDeletionIndexInfo[:]
    made.ClearField("holes")
    return made


def folded(
    info: ManagedCursorInfo,
    mark_delete: Position,
    runs: Iterable[tuple[int, int, int]],
    properties: Mapping[str, int],
    holes: bytes = b"",
) -> ManagedCursorInfo:
    """Return the record of a cursor whose whole state is in the record."""
    made = _at(info, IN_RECORD, mark_delete, properties)
    made.individualDeletedMessages.extend(message_ranges(runs))
    if holes:
        made.holes = holes
    return made


# -- recovery


async def stored_position(context: LogContext, owner: LedgerOwner, ledgers: LedgerList) -> Position:
    """Return the position where the durable cursor `owner` would stand after a recovery.

    This fences the cursor's ledger, so the log must have its list before.  Raise
    ManagedLedgerError, LedgerError.
    """
    info, _ = await read_record(ledgers, owner.cursor)
    mark_delete = (await recover_state(context, owner, info, ledgers.lengths)).mark_delete
    assert mark_delete is not None
    return mark_delete


async def read_record(ledgers: LedgerList, encoded: str | None) -> tuple[ManagedCursorInfo, int]:
    """Return the content and the version of the record of a cursor of this log.

    Each change of a cursor names the version of the list, so nobody has changed the record since
    this host wrote the list.
    """
    path = f"{ledgers.path}/{encoded}"
    found = await ledgers.read_record(path)
    if found is None:
        raise FencedError(f"the cursor record {path} was deleted while it was being recovered")
    return parse(ManagedCursorInfo(), found.value, path), found.stat.version


async def recover_state(
    context: LogContext, owner: LedgerOwner, info: ManagedCursorInfo, lengths: Mapping[int, int]
) -> Recovered:
    """Return the state of a cursor from its ledger, or from its record.

    The record is used if it names no ledger, or if the ledger is lost or has no snapshot.  The
    ledger of a cursor that cannot be read *now* is an error: the record may be far behind it.
    """
    if info.cursorsLedgerId >= 0:
        # Only the proof that the ledger or an entry is lost counts here, no other error.
        recovered = Recovered(lengths)
        with suppress(NoSuchLedgerError, NoSuchEntryError):
            await _replay(context, owner, info.cursorsLedgerId, recovered)
        if recovered.mark_delete is not None:
            return recovered
    recovered = Recovered(lengths)
    recovered.start(info)
    return recovered


async def _replay(
    context: LogContext, owner: LedgerOwner, ledger_id: int, recovered: Recovered
) -> None:
    """Fence the ledger and apply all its records."""
    reader = await context.retry_read(lambda: context.open_ledger(ledger_id, owner, recover=True))
    at = 0
    while at <= reader.last_add_confirmed:
        last = min(reader.last_add_confirmed, at + _READ_ENTRIES - 1)
        for entry in await reader.read(at, last, max_bytes=_READ_BYTES):
            recovered.apply(bytes(entry.payload))
            at = entry.entry_id + 1
