"""The records of a log and of its cursors in the metadata store, in Pulsar's formats.

    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>           the list of ledgers
    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>/<cursor>  one record each cursor

Unknown fields are kept: a message is changed in place, never built again.  Values that Pulsar
compressed are read; Daybook writes plain values.

Daybook adds four properties:

    index               of a list     the offset of the last message when the list was written;
                                      offsets do not start again when everything was trimmed
    daybook.last        of a ledger   the offset of its last message
    daybook.instance    of a list     the INSTANCEID of the root where its ledgers are
    daybook.opening     of a list     while a log with a long list is being opened: the id of the
                                      ledger that will be put on the list (`open`)

The metadata of a ledger name its owner, as Pulsar does it, and in `daybook/tree` the tree of logs
for which the ledger was created.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError

from daybook.managed_ledger.errors import InvalidNameError, LogCorruptError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records_pb2 import (
    CompressedInfo,
    KeyValue,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    MessageRange,
    NestedPositionInfo,
)
from daybook.wire.compression import decompress
from daybook.wire.errors import WireError
from daybook.wire.protobuf import check_readable
from daybook.wire.topics import url_encode

ROOT = "/managed-ledgers"
INDEX = "index"
INSTANCE = "daybook.instance"
LAST_OFFSET = "daybook.last"
OPENING = "daybook.opening"
OWNER = "daybook.owner"
LOG_NAME = "pulsar/managed-ledger"
CURSOR_NAME = "pulsar/cursor"
TREE = "daybook/tree"
COMPACTED_TOPIC = "pulsar/compactedTopic"
COMPACTED_TO = "pulsar/compactedTo"
_OURS = {"application": b"pulsar", "component": b"managed-ledger"}
_COMPACTED = {"application": b"pulsar", "component": b"compacted-ledger"}
_UNNAMED = "no log"
_COMPRESSED = b"\x47\x78"
_INFLATED_BYTES_MAX = 64 << 20
_NAME_BYTES_MAX = 4096  # the length of a name, and of its encoded form

LedgerInfo = ManagedLedgerInfo.LedgerInfo
_M = TypeVar("_M", ManagedLedgerInfo, ManagedCursorInfo)


def log_path(name: str) -> str:
    """Return the path of a log's record.  Raise InvalidNameError.

    `name` is `tenant/namespace/persistent/topic`, encoded.
    """
    for part in name.split("/"):
        _check_part(part, name)
    if "\0" in name:
        raise InvalidNameError(f"a log cannot be named {name!r}")
    return f"{ROOT}/{name}"


def cursor_path(log_name: str, cursor: str) -> str:
    """Return the path of a cursor's record.  Raise InvalidNameError."""
    check_cursor_name(cursor)
    return f"{log_path(log_name)}/{url_encode(cursor)}"


def check_cursor_name(cursor: str) -> None:
    """Raise InvalidNameError for a name under which nothing can be stored."""
    _check_part(cursor, cursor)
    _check_part(url_encode(cursor), cursor)


def _check_part(part: str, name: str) -> None:
    """Raise InvalidNameError if the metadata store rejects this part of a path.

    URL-encoding leaves dots alone.
    """
    try:
        size = len(part.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        size = -1
    if part in ("", ".", "..") or not 0 < size <= _NAME_BYTES_MAX:
        shown = name if len(name) <= 64 else f"{name[:64]}..."
        raise InvalidNameError(f"a log or cursor cannot be named {shown!r}")


def custom_metadata(
    log_name: str, cursor: str | None = None, tree: str | None = None
) -> dict[str, bytes]:
    """Return the custom metadata of a ledger: its owner in Pulsar's form, and its tree (`tree`)."""
    custom = {**_OURS, LOG_NAME: log_name.encode()}
    if cursor is not None:
        custom[CURSOR_NAME] = url_encode(cursor).encode()
    if tree is not None:
        custom[TREE] = tree.encode()
    return custom


def compacted_metadata(
    topic: str, compacted_to: bytes, tree: str | None = None
) -> dict[str, bytes]:
    """Return the custom metadata of a compacted ledger, which name the topic and not its log.

    `compacted_to` is the id of the last message that the compaction has read.
    """
    custom = {**_COMPACTED, COMPACTED_TOPIC: topic.encode(), COMPACTED_TO: compacted_to}
    if tree is not None:
        custom[TREE] = tree.encode()
    return custom


def compacted_topic_of(custom: Mapping[str, bytes]) -> str | None:
    """Return the full name of the topic if the ledger is a compacted one, else None."""
    if any(custom.get(key) != value for key, value in _COMPACTED.items()):
        return None
    topic = custom.get(COMPACTED_TOPIC)
    try:
        return None if topic is None else topic.decode()
    except UnicodeDecodeError:
        return None


def tree_of(custom: Mapping[str, bytes]) -> str | None:
    """Return the tree of logs for which a ledger was created; None if it names none."""
    tree = custom.get(TREE)
    return None if tree is None else tree.decode(errors="replace")


def owner_of(custom: Mapping[str, bytes]) -> tuple[str, str | None] | None:
    """Return the log, and the encoded name of the cursor if the ledger belongs to one.

    Return None for a ledger of another application.
    """
    if any(custom.get(key) != value for key, value in _OURS.items()) or LOG_NAME not in custom:
        return None
    try:
        cursor = custom.get(CURSOR_NAME)
        return custom[LOG_NAME].decode(), None if cursor is None else cursor.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class LedgerOwner:
    """The owner of a ledger: a log, one of its cursors by its encoded name, or a compacted topic.

    `topic` is the full name of the topic if the ledger is a compacted one.
    """

    log: str
    cursor: str | None = None
    topic: str | None = None

    def __str__(self) -> str:
        if self.topic is not None:
            return f"{self.log}, compacted"
        return self.log if self.cursor is None else f"{self.log}, cursor {self.cursor}"

    def contradicted_by(self, custom: Mapping[str, bytes]) -> str | None:
        """Return the other owner that a ledger names; None if it names none.

        A ledger without names passes, since old versions of Pulsar wrote no names.  A ledger that
        names the log and no cursor holds messages, so it cannot be a cursor's.
        """
        for key, value in (_OURS if self.topic is None else _COMPACTED).items():
            if custom.get(key, value) != value:
                return f"the {key} {_shown(custom[key])}"
        if self.topic is not None:
            topic = custom.get(COMPACTED_TOPIC)
            return None if topic in (None, self.topic.encode()) else _shown(topic)
        log, cursor = custom.get(LOG_NAME), custom.get(CURSOR_NAME)
        wanted = None if self.cursor is None else self.cursor.encode()
        if log is None and cursor is None:
            return None
        if log == self.log.encode() and cursor == wanted:
            return None
        named = _UNNAMED if log is None else _shown(log)
        return named if cursor is None else f"{named}, cursor {_shown(cursor)}"


def _shown(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def parse(message: _M, value: bytes, what: str) -> _M:
    """Parse a value into an empty message; an empty value is an empty message.

    Raise LogCorruptError.
    """
    try:
        message.ParseFromString(_inflate(value))
        check_readable(message)
    except (DecodeError, WireError) as error:
        raise LogCorruptError(f"{what} does not parse: {error}") from error
    return message


def _inflate(value: bytes) -> bytes:
    if not value.startswith(_COMPRESSED):
        return value
    # Magic, size of the header, header, compressed message: as Pulsar's MetaStoreImpl writes it.
    size = int.from_bytes(value[2:6], "big")
    head = CompressedInfo()
    head.ParseFromString(value[6 : 6 + size])
    return bytes(
        decompress(
            head.compressionType,
            memoryview(value)[6 + size :],
            head.uncompressedSize,
            _INFLATED_BYTES_MAX,
        )
    )


def get_property(properties: Iterable[KeyValue], key: str) -> str | None:
    return next((p.value for p in properties if p.key == key), None)


def set_property(message: ManagedLedgerInfo | LedgerInfo, key: str, value: str) -> None:
    for found in message.properties:
        if found.key == key:
            found.value = value
            return
    message.properties.add(key=key, value=value)


def properties_of(message: ManagedLedgerInfo) -> dict[str, str]:
    return {each.key: each.value for each in message.properties}


def set_properties(message: ManagedLedgerInfo, properties: Mapping[str, str]) -> None:
    del message.properties[:]
    for key, value in properties.items():
        message.properties.add(key=key, value=value)


def clear_property(message: ManagedLedgerInfo, key: str) -> None:
    for i, found in enumerate(message.properties):
        if found.key == key:
            del message.properties[i]
            return


def message_ranges(runs: Iterable[tuple[int, int, int]]) -> list[MessageRange]:
    """Return runs (ledger, first, last) in Pulsar's form, in which the lower end is exclusive."""
    return [
        MessageRange(
            lowerEndpoint=nested(Position(ledger_id, first - 1)),
            upperEndpoint=nested(Position(ledger_id, last)),
        )
        for ledger_id, first, last in runs
    ]


def nested(position: Position) -> NestedPositionInfo:
    return NestedPositionInfo(ledgerId=position.ledger_id, entryId=position.entry_id)


def position_of(info: NestedPositionInfo) -> Position:
    return Position(info.ledgerId, info.entryId)
