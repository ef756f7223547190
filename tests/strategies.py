"""Hypothesis strategies of all messages and records, and plain valid ones to begin with.

    messages(pb.CommandSeek)     any message of a generated class, required fields present
    frames, entries, ...         bytes of valid objects
    mutated(strategy)            the same with a few bytes changed, missing or added

New messages and records of the product are added here, so that the fuzzers know them.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState, encode_metadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.registry.cookies import Cookie
from daybook.bookie.registry.registrations import BookieInfo
from daybook.wire.batch import broker_entry_metadata, encode_batch, encode_payload
from daybook.wire.compression import CompressionType, compress
from daybook.wire.digest import Digester, DigestType, master_key
from daybook.wire.entry import encode_header
from daybook.wire.fields import U32
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.entry_list import encode_entry_list, group_entries
from daybook.wire.messages.registry import encode
from daybook.wire.proto import bookkeeper_pb2 as bk
from daybook.wire.proto import pulsar_pb2 as pb

NOW_MS = 1_700_000_000_000
KEY = master_key(b"")

# -- any generated message

_RANGES: dict[int, tuple[int, int]] = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_SINT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_SINT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
}
_NAMES = ("", "t", "persistent://public/default/t", "public/default", "p", "CRC32C", "a b/%2F")
_DEPTH_MAX = 3


def range_of(field: Any) -> tuple[int, int] | None:
    """Return the range of integers that a field takes; None if it takes no integers."""
    return _RANGES.get(field.type)


def messages(kind: type[Message]) -> SearchStrategy[Any]:
    """Generate messages of a generated class."""
    return st.builds(lambda fields: _message(kind, fields), _fields(kind.DESCRIPTOR, _DEPTH_MAX))


def _message(kind: type[Message], fields: dict[str, Any]) -> Message:
    message = kind()
    put_fields(message, fields)
    return message


def put_fields(message: Message, fields: dict[str, Any]) -> None:
    """Set fields by name; those of nested messages as a dict."""
    for name, value in fields.items():
        found = getattr(message, name)
        if isinstance(value, dict):
            found.SetInParent()
            put_fields(found, value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    put_fields(found.add(), each)
                else:
                    found.append(each)
        else:
            setattr(message, name, value)


def _fields(kind: Any, depth: int) -> SearchStrategy[dict[str, Any]]:
    required = {f.name: _one(f, depth) for f in kind.fields if f.is_required}
    optional = {
        f.name: _some(f, depth) for f in kind.fields if not f.is_required and _fits(f, depth)
    }
    return st.fixed_dictionaries(required, optional=optional)


def _fits(field: Any, depth: int) -> bool:
    entry = field.message_type
    return entry is None or (depth > 0 and not entry.GetOptions().map_entry)


def _some(field: Any, depth: int) -> SearchStrategy[Any]:
    one = _one(field, depth)
    return st.lists(one, max_size=3) if field.is_repeated else one


def _one(field: Any, depth: int) -> SearchStrategy[Any]:
    limits = range_of(field)
    if limits is not None:
        return st.integers(0, 9) | st.integers(*limits)
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_ENUM:
            return st.sampled_from([value.number for value in field.enum_type.values])
        case FieldDescriptor.TYPE_STRING:
            return st.sampled_from(_NAMES) | st.text(max_size=12)
        case FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=40)
        case FieldDescriptor.TYPE_MESSAGE:
            return st.deferred(lambda: _fields(field.message_type, depth - 1))
        case _:
            return st.just(0)


def plain(kind: Any) -> dict[str, Any]:
    """Return the fields of a short message: the required ones, and one of each other kind."""
    return {f.name: _plain_value(f) for f in kind.fields if f.is_required or _is_cheap(f)}


def _is_cheap(field: Any) -> bool:
    return not field.is_repeated and field.type in (
        FieldDescriptor.TYPE_STRING,
        FieldDescriptor.TYPE_BYTES,
    )


def _plain_value(field: Any) -> Any:
    if range_of(field) is not None:
        return 1
    match field.type:
        case FieldDescriptor.TYPE_ENUM:
            return field.enum_type.values[0].number
        case FieldDescriptor.TYPE_STRING:
            return "t"
        case FieldDescriptor.TYPE_BYTES:
            return b"b"
        case FieldDescriptor.TYPE_MESSAGE:
            return plain(field.message_type)
        case _:
            return True


# -- between clients and brokers

_SLICED = ("send", "send_receipt", "message", "ack")


def command_kinds() -> Iterator[type[Message]]:
    """Yield the classes of all commands except those that are read as slices."""
    for field in pb.BaseCommand.DESCRIPTOR.fields:
        if field.message_type is not None and field.name not in _SLICED:
            yield getattr(pb, field.message_type.name)


COMMANDS = [_message(kind, plain(kind.DESCRIPTOR)) for kind in command_kinds()]

commands = st.sampled_from(list(command_kinds())).flatmap(messages)


def _sliced_frame(base: dict[str, Any], payload: bytes) -> bytes:
    command = _message(pb.BaseCommand, base).SerializeToString()
    return U32.pack(len(command)) + command + payload


_sliced = st.sampled_from(
    [f for f in pb.BaseCommand.DESCRIPTOR.fields if f.name in _SLICED]
).flatmap(
    lambda field: st.builds(
        lambda fields, payload: _sliced_frame({"type": field.number, field.name: fields}, payload),
        _fields(field.message_type, _DEPTH_MAX),
        st.binary(max_size=40),
    )
)
frames = st.builds(lambda command: encode(command)[U32.size :], commands) | _sliced
"""Frames of the Pulsar protocol, without their length."""


# -- entries of topics


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=2, publish_time=NOW_MS, **fields)


def batch_body(count: int) -> bytes:
    singles = [
        pb.SingleMessageMetadata(payload_size=0, partition_key=f"k{i % 2}", sequence_id=i)
        for i in range(count)
    ]
    return encode_batch((single, b"%d" % i) for i, single in enumerate(singles))


def _compressed(codec: CompressionType) -> bytes:
    body = batch_body(3)
    head = metadata(num_messages_in_batch=3, uncompressed_size=len(body))
    head.compression = int(codec)  # type: ignore[assignment]
    return encode_payload(head, bytes(compress(codec, body)))


ENTRY = encode_payload(metadata(), b"hello")
ENTRIES = {
    "batch": broker_entry_metadata(NOW_MS, 41)
    + encode_payload(metadata(num_messages_in_batch=3), batch_body(3)),
    "properties": encode_payload(
        metadata(properties=[pb.KeyValue(key="k", value="v")], partition_key="k", event_time=1), b""
    ),
    "chunk": encode_payload(
        metadata(uuid="u", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=9), b"part"
    ),
    **{codec.name.lower(): _compressed(codec) for codec in CompressionType},
}

entries = st.builds(
    lambda head, body, block: (
        (broker_entry_metadata(*block) if block else b"") + encode_payload(head, body)
    ),
    messages(pb.MessageMetadata),
    st.binary(max_size=60) | st.integers(0, 4).map(batch_body),
    st.none() | st.tuples(st.integers(0, NOW_MS), st.integers(0, 1 << 40)),
)
"""Stored entries of a topic: the broker's block, checksum, metadata, body."""


# -- between ledger clients and bookies


def ledger_entry(
    ledger_id: int,
    entry_id: int,
    payload: bytes = b"payload",
    lac: int = -1,
    digest: DigestType = DigestType.CRC32C,
) -> bytes:
    """Return an entry as bookies store it."""
    digester = Digester(digest)
    header = encode_header(ledger_id, entry_id, lac, len(payload), digester, [payload])
    return header + payload


def add_frame(ledger_id: int, entry_id: int, payload: bytes = b"payload", **flags: bool) -> bytes:
    entry = ledger_entry(ledger_id, entry_id, payload)
    return bookie.encode_add_header(KEY, len(entry), **flags) + entry


_ids = st.integers(0, 9) | st.integers(-(1 << 63), (1 << 63) - 1)

bookie_requests = st.one_of(
    st.builds(add_frame, _ids, _ids, st.binary(max_size=40), recovery=st.booleans()),
    st.builds(bookie.encode_read, _ids, _ids, fence_key=st.none() | st.just(KEY)),
    st.builds(
        bookie.encode_batch_read,
        _ids,
        _ids,
        _ids,
        entries_max=st.integers(-(1 << 31), (1 << 31) - 1),
        bytes_max=_ids,
    ),
    st.builds(bookie.encode_auth, st.text(max_size=8), st.binary(max_size=8)),
).map(lambda frame: frame[U32.size :])
"""Requests in v2, without their length."""

bookie_v3_messages = (messages(bk.Request) | messages(bk.Response)).map(
    lambda message: bytes(bookie_v3.encode(message))[U32.size :]
)

entry_lists = st.sets(st.integers(0, 200) | st.integers(0, (1 << 62)), max_size=30).map(
    lambda ids: encode_entry_list(group_entries(sorted(ids)))
)


# -- records and files

_names = st.text(st.characters(codec="ascii", min_codepoint=45, max_codepoint=122), min_size=1)


@st.composite
def _ledger_metadata(draw: Callable[[SearchStrategy[Any]], Any]) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write = draw(st.integers(1, size))
    bookies = [BookieId(f"bookie-{i}:3181") for i in range(size + 2)]
    starts = [0, *sorted(draw(st.sets(st.integers(1, 1 << 40), max_size=3)))]
    fragments = tuple(
        Fragment(start, tuple(draw(st.permutations(bookies))[:size])) for start in starts
    )
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    version = draw(st.sampled_from((1, 2, 3)))
    return LedgerMetadata(
        quorums=Quorums(size, write, write if version == 1 else draw(st.integers(1, write))),
        fragments=fragments,
        state=state,
        last_entry_id=draw(st.integers(-1, 1 << 41)) if closed else -1,
        length=draw(st.integers(0, 1 << 50)) if closed else 0,
        digest_type=None if version == 1 else draw(st.sampled_from(DigestType)),
        password=None if version == 1 else draw(st.binary(max_size=8)),
        custom={}
        if version == 1
        else draw(st.dictionaries(_names, st.binary(max_size=8), max_size=2)),
        format_version=version,
    )


ledger_metadata = _ledger_metadata()
ledger_records = ledger_metadata.map(encode_metadata)

cookies = st.builds(
    Cookie,
    _names,
    st.lists(_names, min_size=1, max_size=2).map(tuple),
    st.lists(_names, min_size=1, max_size=3).map(tuple),
    _names,
)
bookie_infos = st.builds(
    BookieInfo,
    st.just("b:1"),
    _names,
    st.integers(0, 65535),
    st.dictionaries(_names, _names, max_size=2),
    st.none() | st.integers(0, 65535),
)


# -- damage


@st.composite
def mutated(draw: Callable[[SearchStrategy[Any]], Any], strategy: SearchStrategy[bytes]) -> bytes:
    """Draw from the strategy, and make up to three changes."""
    data = bytearray(draw(strategy))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 3)):
            case 0 if data:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 9))]
            case 2:
                data[at:at] = draw(st.binary(max_size=9))
            case _ if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


def joined(parts: SearchStrategy[bytes], max_size: int = 6) -> SearchStrategy[bytes]:
    """Join several parts, each after its length in four bytes."""
    return st.lists(parts, max_size=max_size).map(
        lambda each: b"".join(chain.from_iterable((U32.pack(len(p)), p) for p in each))
    )
