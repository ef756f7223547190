"""Requests and answers of a bookie, protocol v2: by struct, entries passed on as they are.

A packet begins with `version << 24 | opcode << 16 | flags`.  After it (and after the length that
frames it):

    add request    master key 20 | entry                       the entry as in `wire.entry`
    read request   ledger 8 | entry 8 [ | master key 20 ]      entry -1: the last one
                   the key counts only with DO_FENCING
    batch read     ledger 8 | entry 8 | request id 8 | max entries 4 | max bytes 8 [ | key 20 ]
    auth           AuthMessage (protobuf), both ways; an answer has no status

    add answer     status 4 | ledger 8 | entry 8
    read answer    status 4 | ledger 8 | entry 8 [ | entry as stored ]      ids as requested
    batch answer   status 4 | ledger 8 | entry 8 | request id 8 { | size 4 | entry }

Answers carry version and opcode of their request and no flags.  They come in any order, and have
nothing but the ids to tell which request they answer: a client that reads the same entry twice at a
time takes either answer for either request.

The sender of an add puts `[encode_add_header(...), header of the entry, *payload]` on the
connection; nothing is copied.  A bookie writes add answers with `ADD_ANSWER` in its hot loop, and a
writer reads them in runs with `decode_add_answers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from struct import Struct
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from daybook.wire.digest import MASTER_KEY_BYTES, Digester
from daybook.wire.entry import ENTRY_HEADER_BYTES, FIELDS
from daybook.wire.errors import MalformedError, TruncatedError
from daybook.wire.proto.bookkeeper_pb2 import AuthMessage
from daybook.wire.transport import Buffer

VERSION = 2
# Room for the largest message of Pulsar's clients (5 MiB), and for its headers.
FRAME_BYTES_MAX = 5 * 1024 * 1024 + 64 * 1024
FRAME_BYTES_MIN = 1 << 20  # no bookie can be set to less
APACHE_FRAME_BYTES_MAX = 5 * 1024 * 1024  # the default limit of Apache's bookies and clients
FRAME_BYTES_PROPERTY = "daybook.frame-bytes"
"""In the registration of a bookie: the largest frame that it accepts, decimal.

A bookie that does not say it is taken for one of Apache's with the default limit.
"""
AUTH_DISABLED = "AuthDisabledPlugin"  # the answer of a bookie that asks for no credentials
LAST_ENTRY = -1


class Operation(IntEnum):
    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7
    ADD_BLOCK = 64  # ours (`wire.messages.blocks`); Apache's opcodes end at 7


class Flag(IntFlag):
    DO_FENCING = 1
    RECOVERY_ADD = 2
    HIGH_PRIORITY = 4


class Status(IntEnum):
    """The status in an answer of a bookie.  `wire.messages.bookie_v3` has other numbers."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = (
        107  # limbo: the bookie does not know; v2 clients of others do not know this status
    )


_HEADER = Struct(">I")
_ADD = Struct(">I20sqq")
_READ = Struct(">Iqq")
_BATCH_READ = Struct(">Iqqqiq")
_ANSWER = Struct(">IIqq")
_BATCH_ANSWER = Struct(">IIqqq")
_FRAMED_ADD = Struct(">II20s")
_FRAMED_READ = Struct(">IIqq")
_FRAMED_BATCH_READ = Struct(">IIqqqiq")
_SIZE = Struct(">I")

ADD_ANSWER = Struct(">IIIqq")
"""A whole frame: ADD_ANSWER_BYTES, ADD_HEADER, status, ledger, entry."""
ADD_ANSWER_BYTES = _ANSWER.size
ADD_REQUEST_HEADER_BYTES = 4 + MASTER_KEY_BYTES
assert (ADD_ANSWER_BYTES, ADD_REQUEST_HEADER_BYTES) == (24, 24)


def packet_header(operation: Operation, flags: int = 0, version: int = VERSION) -> int:
    return version << 24 | operation << 16 | flags


ADD_HEADER = packet_header(Operation.ADD)
_READ_HEADER = packet_header(Operation.READ)
_FENCING_READ_HEADER = packet_header(Operation.READ, Flag.DO_FENCING | Flag.HIGH_PRIORITY)


@dataclass(frozen=True, slots=True)
class Add:
    header: int  # the header of the packet, which the answer repeats
    flags: int
    master_key: bytes
    ledger_id: int
    entry_id: int
    entry: memoryview


@dataclass(frozen=True, slots=True)
class Read:
    header: int
    flags: int
    ledger_id: int
    entry_id: int
    master_key: bytes | None  # present if the read fences


@dataclass(frozen=True, slots=True)
class BatchRead:
    header: int
    flags: int
    ledger_id: int
    first_entry_id: int
    request_id: int
    entries_max: int  # <= 0: as many as the bytes allow
    bytes_max: int
    master_key: bytes | None


@dataclass(frozen=True, slots=True)
class Auth:
    header: int
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A request with an opcode or a version that this bookie does not serve."""

    header: int
    status: Status


Request: TypeAlias = Add | Read | BatchRead | Auth | Unsupported


# -- requests


def encode_add_header(
    master_key: bytes, entry_bytes: int, *, recovery: bool = False, high_priority: bool = False
) -> bytes:
    """Return the bytes in front of an entry of `entry_bytes`, header and digest included."""
    flags = (Flag.RECOVERY_ADD if recovery else 0) | (Flag.HIGH_PRIORITY if high_priority else 0)
    size = ADD_REQUEST_HEADER_BYTES + entry_bytes
    return _FRAMED_ADD.pack(size, ADD_HEADER | flags, master_key)


def encode_adds(
    master_key: bytes,
    ledger_id: int,
    first: int,
    lac: int,
    lengths: Sequence[int],
    digester: Digester,
    payloads: Sequence[Sequence[Buffer]],
) -> list[list[Buffer]]:
    """Return whole plain adds of consecutive entries, each as `[head, *payload]`.

    `lengths` has the ledger length up to and including each entry.  The result is that of
    `encode_add_header` and `encode_header` (`wire.entry`) for each entry, at a third of their cost.
    """
    frames: list[list[Buffer]] = []
    packet = _HEADER.pack(ADD_HEADER) + master_key
    own = len(packet) + ENTRY_HEADER_BYTES + digester.size
    pack_size, pack_fields, compute = _SIZE.pack, FIELDS.pack, digester.compute
    entry_id = first
    for length, payload in zip(lengths, payloads, strict=True):
        size = own
        for buffer in payload:
            size += len(buffer)
        fields = pack_fields(ledger_id, entry_id, lac, length)
        frames.append(
            [b"".join((pack_size(size), packet, fields, compute(fields, *payload))), *payload]
        )
        entry_id += 1
    return frames


def encode_read(ledger_id: int, entry_id: int, *, fence_key: bytes | None = None) -> bytes:
    """Return a whole read request; with `fence_key`, the master key, it fences the ledger first."""
    if fence_key is None:
        return _FRAMED_READ.pack(_READ.size, _READ_HEADER, ledger_id, entry_id)
    size = _READ.size + MASTER_KEY_BYTES
    return _FRAMED_READ.pack(size, _FENCING_READ_HEADER, ledger_id, entry_id) + fence_key


def encode_batch_read(
    ledger_id: int, first_entry_id: int, request_id: int, *, entries_max: int, bytes_max: int
) -> bytes:
    header = packet_header(Operation.BATCH_READ)
    return _FRAMED_BATCH_READ.pack(
        _BATCH_READ.size, header, ledger_id, first_entry_id, request_id, entries_max, bytes_max
    )


def encode_auth(plugin: str, payload: bytes = b"", *, version: int = VERSION) -> bytes:
    """Return a whole AUTH packet; a request and an answer look alike."""
    body = AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()
    header = packet_header(Operation.AUTH, version=version)
    return _SIZE.pack(4 + len(body)) + _HEADER.pack(header) + body


def decode_request(frame: memoryview) -> Request:
    """Return the request.  Raise WireError for bytes that cannot even be answered."""
    if len(frame) < 4:
        raise TruncatedError(f"a packet has {len(frame)} bytes, too few for its header")
    (header,) = _HEADER.unpack_from(frame)
    version, operation, flags = header >> 24, header >> 16 & 0xFF, header & 0xFFFF
    if version == 0:  # Very old clients have the opcode in the last byte, and no flags.
        operation, flags = header & 0xFF, 0
    if version > VERSION:
        return Unsupported(header, Status.BAD_VERSION)
    match operation:
        case Operation.ADD:
            return _decode_add(frame, flags)
        case Operation.READ:
            return _decode_read(frame, flags)
        case Operation.BATCH_READ:
            return _decode_batch_read(frame, flags)
        case Operation.AUTH:
            return _decode_auth(frame, header)
        case _:
            return Unsupported(header, Status.BAD_REQUEST)


def _decode_add(frame: memoryview, flags: int) -> Add:
    if len(frame) < _ADD.size:
        raise TruncatedError(f"an add request has {len(frame)} bytes, which is too few")
    header, key, ledger_id, entry_id = _ADD.unpack_from(frame)
    return Add(header, flags, key, ledger_id, entry_id, frame[ADD_REQUEST_HEADER_BYTES:])


def _decode_read(frame: memoryview, flags: int) -> Read:
    if len(frame) < _READ.size:
        raise TruncatedError(f"a read request has {len(frame)} bytes, which is too few")
    header, ledger_id, entry_id = _READ.unpack_from(frame)
    key = _fence_key(frame, _READ.size, header, flags)
    return Read(header, flags, ledger_id, entry_id, key)


def _decode_batch_read(frame: memoryview, flags: int) -> BatchRead:
    if len(frame) < _BATCH_READ.size:
        raise TruncatedError(f"a batch read request has {len(frame)} bytes, which is too few")
    header, ledger_id, entry_id, request_id, count, size = _BATCH_READ.unpack_from(frame)
    key = _fence_key(frame, _BATCH_READ.size, header, flags)
    return BatchRead(header, flags, ledger_id, entry_id, request_id, count, size, key)


def _fence_key(frame: memoryview, offset: int, header: int, flags: int) -> bytes | None:
    if not flags & Flag.DO_FENCING or header >> 24 < VERSION:
        return None
    key = bytes(frame[offset : offset + MASTER_KEY_BYTES])
    if len(key) < MASTER_KEY_BYTES:
        raise TruncatedError("a fencing read request has no master key")
    return key


def _decode_auth(frame: memoryview, header: int) -> Auth:
    message = _auth_message(frame)
    return Auth(header, message.authPluginName, message.payload)


def _auth_message(frame: memoryview) -> AuthMessage:
    message = AuthMessage()
    try:
        message.ParseFromString(bytes(frame[4:]))
    except DecodeError as error:
        raise MalformedError("an AUTH packet cannot be parsed") from error
    return message


# -- answers


class AddRun(NamedTuple):
    """Answers to adds of consecutive entries of one ledger, all with one status.

    If a connection serves many ledgers, each run holds one answer.  A tuple is made in a third of
    the time of a dataclass.
    """

    status: int
    ledger_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    status: int
    ledger_id: int
    entry_id: int  # as requested: -1 if the last entry was asked for
    entry: memoryview  # empty unless the status is OK


@dataclass(frozen=True, slots=True)
class BatchReadAnswer:
    status: int
    ledger_id: int
    first_entry_id: int
    request_id: int
    entries: list[memoryview]  # ascending, without gaps


@dataclass(frozen=True, slots=True)
class AuthAnswer:
    plugin: str
    payload: bytes


Answer: TypeAlias = AddRun | ReadAnswer | BatchReadAnswer | AuthAnswer


def encode_add_answer(header: int, status: int, ledger_id: int, entry_id: int) -> bytes:
    return ADD_ANSWER.pack(ADD_ANSWER_BYTES, _echo(header), status, ledger_id, entry_id)


def encode_read_answer(
    header: int, status: int, ledger_id: int, entry_id: int, entry_bytes: int = 0
) -> bytes:
    """Return the bytes in front of the entry, which has `entry_bytes`, with the requested ids."""
    size = _ANSWER.size + entry_bytes
    return ADD_ANSWER.pack(size, _echo(header), status, ledger_id, entry_id)


def encode_batch_answer_header(request: BatchRead, status: int, entries_bytes: int = 0) -> bytes:
    """Return the bytes in front of the entries, each of which follows its size in four bytes."""
    return _SIZE.pack(_BATCH_ANSWER.size + entries_bytes) + _BATCH_ANSWER.pack(
        _echo(request.header),
        status,
        request.ledger_id,
        request.first_entry_id,
        request.request_id,
    )


def _echo(header: int) -> int:
    """Return the header of an answer: version and opcode of the request, without flags."""
    return header if header < 1 << 24 else header & 0xFFFF0000


def decode_add_answers(frames: Sequence[memoryview]) -> tuple[list[AddRun], list[memoryview]]:
    """Return the received answers to adds, in runs, and all frames that are something else."""
    runs: list[AddRun] = []
    rest: list[memoryview] = []
    run_status = run_ledger = run_first = run_last = -2
    unpack = _ANSWER.unpack
    for frame in frames:
        if len(frame) != ADD_ANSWER_BYTES or frame[1] != 1:
            rest.append(frame)
            continue
        header, status, ledger_id, entry_id = unpack(frame)
        if header != ADD_HEADER:
            raise MalformedError(f"the answer to an add has the unknown header {header:#010x}")
        if entry_id == run_last + 1 and ledger_id == run_ledger and status == run_status:
            run_last = entry_id
            continue
        if run_last != -2:
            runs.append(AddRun(run_status, run_ledger, run_first, run_last))
        run_status, run_ledger, run_first, run_last = status, ledger_id, entry_id, entry_id
    if run_last != -2:
        runs.append(AddRun(run_status, run_ledger, run_first, run_last))
    return runs, rest


def decode_answer(frame: memoryview) -> Answer:
    """Return one answer of any kind; an answer to an add is a run of one."""
    if len(frame) < 4:
        raise TruncatedError(f"an answer has {len(frame)} bytes, which is too few")
    (header,) = _HEADER.unpack_from(frame)
    if header >> 24 > VERSION or header & 0xFFFF:
        raise MalformedError(f"an answer has the unknown header {header:#010x}")
    operation = header >> 16 & 0xFF
    if operation == Operation.AUTH:
        message = _auth_message(frame)
        return AuthAnswer(message.authPluginName, message.payload)
    if len(frame) < _ANSWER.size:
        raise TruncatedError(f"an answer has {len(frame)} bytes, which is too few")
    _, status, ledger_id, entry_id = _ANSWER.unpack_from(frame)
    match operation:
        case Operation.ADD:
            return AddRun(status, ledger_id, entry_id, entry_id)
        case Operation.READ:
            entry = frame[_ANSWER.size :]
            if status == Status.OK and len(entry) < ENTRY_HEADER_BYTES:
                raise TruncatedError(
                    f"the answer to a read has an entry of {len(entry)} bytes, which is too few"
                )
            return ReadAnswer(status, ledger_id, entry_id, entry)
        case Operation.BATCH_READ:
            return _decode_batch_answer(frame)
        case _:
            raise MalformedError(f"an answer has the unknown header {header:#010x}")


def _decode_batch_answer(frame: memoryview) -> BatchReadAnswer:
    if len(frame) < _BATCH_ANSWER.size:
        raise TruncatedError(f"the answer to a batch read has {len(frame)} bytes, which is too few")
    _, status, ledger_id, entry_id, request_id = _BATCH_ANSWER.unpack_from(frame)
    entries: list[memoryview] = []
    offset = _BATCH_ANSWER.size
    while offset < len(frame):
        if len(frame) - offset < _SIZE.size:
            raise TruncatedError("the answer to a batch read ends inside the size of an entry")
        (size,) = _SIZE.unpack_from(frame, offset)
        offset += _SIZE.size + size
        if offset > len(frame):
            raise TruncatedError("the answer to a batch read ends inside an entry")
        entries.append(frame[offset - size : offset])
    return BatchReadAnswer(status, ledger_id, entry_id, request_id, entries)
