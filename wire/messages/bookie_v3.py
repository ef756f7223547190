"""Requests and answers of a bookie, protocol v3: protobuf in frames.

Protocol v3 adds to v2: the LAC (with each read, by itself, and by waiting for it to move), explicit
LACs, forcing, lists of entries, and a `txnId` that ties an answer to its request.  A client chooses
v2 or v3 for each connection by its first frame (`is_v3`).

Answers repeat version, operation and txnId of the request.  Every encoder returns a whole frame.
"""

from google.protobuf.message import DecodeError, Message

from daybook.wire.errors import MalformedError
from daybook.wire.fields import U32, encode_tag, encode_varint
from daybook.wire.messages.bookie import Status
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import Buffer

_FIRST_BYTE = 0x0A  # field 1, with a length: the header; no v2 packet begins with it
HIGH_PRIORITY = 100
DEFERRED_SYNC = 1  # flag of an add: the bookie may answer before the entry is on disk

_LENGTH_DELIMITED = 2
_ADD_TAG = encode_tag(pb.Request.ADDREQUEST_FIELD_NUMBER, _LENGTH_DELIMITED)
_BODY_TAG = encode_tag(pb.AddRequest.BODY_FIELD_NUMBER, _LENGTH_DELIMITED)

_V3_CODES = {
    Status.OK: pb.EOK,
    Status.NO_LEDGER: pb.ENOLEDGER,
    Status.NO_ENTRY: pb.ENOENTRY,
    Status.BAD_REQUEST: pb.EBADREQ,
    Status.IO_ERROR: pb.EIO,
    Status.UNAUTHORIZED: pb.EUA,
    Status.BAD_VERSION: pb.EBADVERSION,
    Status.FENCED: pb.EFENCED,
    Status.READ_ONLY: pb.EREADONLY,
    Status.TOO_MANY_REQUESTS: pb.ETOOMANYREQUESTS,
    Status.UNKNOWN_LEDGER_STATE: pb.EUNKNOWNLEDGERSTATE,
}
_STATUSES: dict[int, Status] = {code: status for status, code in _V3_CODES.items()}


def to_v3(status: Status) -> pb.StatusCode:
    return _V3_CODES[status]


def from_v3(code: int) -> Status:
    """Return the status of a v3 code.

    An unknown code counts as an I/O error, which proves nothing.
    """
    return _STATUSES.get(code, Status.IO_ERROR)


def is_v3(first_frame: memoryview) -> bool:
    return len(first_frame) > 0 and first_frame[0] == _FIRST_BYTE


def encode(message: Message) -> bytes:
    """Return `message` as a whole frame."""
    body = message.SerializeToString()
    return U32.pack(len(body)) + body


def decode_request(frame: Buffer) -> pb.Request:
    request = pb.Request()
    _parse(request, frame)
    return request


def decode_response(frame: Buffer) -> pb.Response:
    response = pb.Response()
    _parse(response, frame)
    return response


def _parse(message: Message, frame: Buffer) -> None:
    try:
        message.ParseFromString(bytes(frame))
    except DecodeError as error:
        raise MalformedError(f"a {message.DESCRIPTOR.name} cannot be parsed") from error
    # An operation that we do not know counts as missing.
    if not message.IsInitialized():
        raise MalformedError(f"a {message.DESCRIPTOR.name} lacks a required field")


def _header(operation: pb.OperationType, txn_id: int, priority: int = 0) -> pb.BKPacketHeader:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=txn_id)
    if priority:
        header.priority = priority
    return header


# -- requests


def encode_add(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    entry: Buffer,
    *,
    recovery: bool = False,
) -> bytes:
    add = pb.AddRequest(
        ledgerId=ledger_id, entryId=entry_id, masterKey=master_key, body=bytes(entry)
    )
    if recovery:
        add.flag = pb.AddRequest.RECOVERY_ADD
    header = _header(pb.ADD_ENTRY, txn_id, HIGH_PRIORITY if recovery else 0)
    return encode(pb.Request(header=header, addRequest=add))


def encode_add_header(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    entry_bytes: int,
    *,
    recovery: bool = False,
    deferred_sync: bool = False,
) -> bytes:
    """Return the bytes in front of an entry of `entry_bytes`, so that the entry is not copied."""
    add = pb.AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=master_key)
    if recovery:
        add.flag = pb.AddRequest.RECOVERY_ADD
    if deferred_sync:
        add.writeFlags = DEFERRED_SYNC
    fields = add.SerializePartialToString() + _BODY_TAG + encode_varint(entry_bytes)
    header = _header(pb.ADD_ENTRY, txn_id, HIGH_PRIORITY if recovery else 0)
    front = pb.Request(header=header).SerializeToString() + _ADD_TAG
    front += encode_varint(len(fields) + entry_bytes) + fields
    return U32.pack(len(front) + entry_bytes) + front


def encode_read(
    txn_id: int, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None
) -> bytes:
    """Return a read request; with `fence_key`, the master key, it fences the ledger first."""
    read = pb.ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if fence_key is not None:
        read.masterKey = fence_key
        read.flag = pb.ReadRequest.FENCE_LEDGER
    header = _header(pb.READ_ENTRY, txn_id, 0 if fence_key is None else HIGH_PRIORITY)
    return encode(pb.Request(header=header, readRequest=read))


def encode_long_poll(txn_id: int, ledger_id: int, previous_lac: int, timeout_ms: int) -> bytes:
    """Return a request that waits until the LAC is above `previous_lac`.

    The answer has the LAC and the entry behind it.
    """
    read = pb.ReadRequest(
        ledgerId=ledger_id,
        entryId=-1,
        previousLAC=previous_lac,
        timeOut=timeout_ms,
        flag=pb.ReadRequest.ENTRY_PIGGYBACK,
    )
    return encode(pb.Request(header=_header(pb.READ_ENTRY, txn_id), readRequest=read))


def encode_write_lac(
    txn_id: int, ledger_id: int, lac: int, master_key: bytes, packet: bytes
) -> bytes:
    write = pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=master_key, body=packet)
    return encode(pb.Request(header=_header(pb.WRITE_LAC, txn_id), writeLacRequest=write))


def encode_read_lac(txn_id: int, ledger_id: int) -> bytes:
    read = pb.ReadLacRequest(ledgerId=ledger_id)
    return encode(pb.Request(header=_header(pb.READ_LAC, txn_id), readLacRequest=read))


def encode_force(txn_id: int, ledger_id: int) -> bytes:
    force = pb.ForceLedgerRequest(ledgerId=ledger_id)
    return encode(pb.Request(header=_header(pb.FORCE_LEDGER, txn_id), forceLedgerRequest=force))


def encode_bookie_info(txn_id: int) -> bytes:
    flags = pb.GetBookieInfoRequest
    info = pb.GetBookieInfoRequest(requested=flags.TOTAL_DISK_CAPACITY | flags.FREE_DISK_SPACE)
    header = _header(pb.GET_BOOKIE_INFO, txn_id)
    return encode(pb.Request(header=header, getBookieInfoRequest=info))


def encode_list_entries(txn_id: int, ledger_id: int) -> bytes:
    entries = pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id)
    header = _header(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, txn_id)
    return encode(pb.Request(header=header, getListOfEntriesOfLedgerRequest=entries))


def encode_start_tls(txn_id: int) -> bytes:
    request = pb.Request(header=_header(pb.START_TLS, txn_id))
    request.startTLSRequest.SetInParent()
    return encode(request)


def encode_auth(txn_id: int, plugin: str, payload: bytes) -> bytes:
    message = pb.AuthMessage(authPluginName=plugin, payload=payload)
    return encode(pb.Request(header=_header(pb.AUTH, txn_id), authRequest=message))


# -- answers


def response_to(request: pb.Request, status: Status) -> pb.Response:
    """Return the answer without the part that depends on the operation."""
    header = _header(request.header.operation, request.header.txnId)
    return pb.Response(header=header, status=to_v3(status))
