"""What the metadata store keeps of a log and of its cursors, in Pulsar's formats.

    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>           the list of ledgers
    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>/<cursor>  one record each cursor

Fields that we do not know are kept: messages are changed in place, never rebuilt.  Values that
Pulsar compressed are read; what is written is plain.

Four properties are ours.  `index` of the list: the offset of the last message when the list was
written; it keeps offsets from starting again when everything has been trimmed.  `daybook.last` of
a sealed ledger: the offset of its last message.  `daybook.instance` of the list: the INSTANCEID of
the root where its ledgers are.  `daybook.opening` of the list, while a log with a long list is
being opened: the id of the ledger that will be put on it (`open`).  A ledger says in its own
metadata whose it is, as Pulsar has it, and in `daybook/tree` for which tree of logs it was made.
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
LOG_NAME = "pulsar/managed-ledger"
CURSOR_NAME = "pulsar/cursor"
TREE = "daybook/tree"
_OURS = {"application": b"pulsar", "component": b"managed-ledger"}
_UNNAMED = "no log"
_COMPRESSED = b"\x47\x78"
_INFLATED_BYTES_MAX = 64 << 20
_NAME_BYTES_MAX = 4096  # as it is, and encoded

LedgerInfo = ManagedLedgerInfo.LedgerInfo
_M = TypeVar("_M", ManagedLedgerInfo, ManagedCursorInfo)


def log_path(name: str) -> str:
    """The record of a log; `name` is `tenant/namespace/persistent/topic`, encoded.

    InvalidNameError.
    """
    for part in name.split("/"):
        _check_part(part, name)
    if "\0" in name:
        raise InvalidNameError(f"no log can be called {name!r}")
    return f"{ROOT}/{name}"


def cursor_path(log_name: str, cursor: str) -> str:
    """InvalidNameError."""
    check_cursor_name(cursor)
    return f"{log_path(log_name)}/{url_encode(cursor)}"


def check_cursor_name(cursor: str) -> None:
    """InvalidNameError for a name under which nothing can be stored."""
    _check_part(cursor, cursor)
    _check_part(url_encode(cursor), cursor)


def _check_part(part: str, name: str) -> None:
    """The metadata store takes all but these; URL-encoding leaves dots alone."""
    try:
        size = len(part.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        size = -1
    if part in ("", ".", "..") or not 0 < size <= _NAME_BYTES_MAX:
        shown = name if len(name) <= 64 else f"{name[:64]}..."
        raise InvalidNameError(f"no log or cursor can be called {shown!r}")


def custom_metadata(
    log_name: str, cursor: str | None = None, tree: str | None = None
) -> dict[str, bytes]:
    """What a ledger says of itself: whose it is, as Pulsar has it, and of which tree (`tree`)."""
    custom = {**_OURS, LOG_NAME: log_name.encode()}
    if cursor is not None:
        custom[CURSOR_NAME] = url_encode(cursor).encode()
    if tree is not None:
        custom[TREE] = tree.encode()
    return custom


def tree_of(custom: Mapping[str, bytes]) -> str | None:
    """The tree of logs for which a ledger was made; None if it does not say that."""
    tree = custom.get(TREE)
    return None if tree is None else tree.decode(errors="replace")


def owner_of(custom: Mapping[str, bytes]) -> tuple[str, str | None] | None:
    """The log, and the encoded name of its cursor if it is one's; None for other ledgers."""
    if any(custom.get(key) != value for key, value in _OURS.items()) or LOG_NAME not in custom:
        return None
    try:
        cursor = custom.get(CURSOR_NAME)
        return custom[LOG_NAME].decode(), None if cursor is None else cursor.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a ledger: a log, or one of its cursors, by the encoded name."""

    log: str
    cursor: str | None = None

    def __str__(self) -> str:
        return self.log if self.cursor is None else f"{self.log}, cursor {self.cursor}"

    def contradicted_by(self, custom: Mapping[str, bytes]) -> str | None:
        """Return the other owner that the ledger names; None if it does not name another.

        A ledger that says nothing passes: old versions of Pulsar wrote no names.  One that names
        the log and no cursor holds messages: it is no cursor's.
        """
        for key, value in _OURS.items():
            if custom.get(key, value) != value:
                return f"the {key} {_shown(custom[key])}"
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
    """Parse into an empty message.  An empty value is an empty message.  LogCorruptError."""
    try:
        message.ParseFromString(_inflate(value))
        check_readable(message)
    except (DecodeError, WireError) as error:
        raise LogCorruptError(f"{what} does not parse: {error}") from error
    return message


def _inflate(value: bytes) -> bytes:
    if not value.startswith(_COMPRESSED):
        return value
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


def clear_property(message: ManagedLedgerInfo, key: str) -> None:
    for i, found in enumerate(message.properties):
        if found.key == key:
            del message.properties[i]
            return


def message_ranges(runs: Iterable[tuple[int, int, int]]) -> list[MessageRange]:
    """Pulsar's form of runs (ledger, first, last): the lower end is exclusive."""
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
