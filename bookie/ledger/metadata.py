"""The metadata of a ledger: its state, its quorums, and the bookies that hold its entries.

    OPEN --> IN_RECOVERY --> CLOSED        and OPEN --> CLOSED, by its own writer

Metadata are immutable.  A transition returns a new value, and asserts that the state allows it.
The new value is written by compare-and-swap on the version it was derived from
(`bookie.ledger.protocol.update`).

The record is `BookieMetadataFormatVersion<TAB><version><LF>`, then

    version 1   text: write quorum, ensemble size, length, a line for each fragment, the end
    version 2   LedgerMetadataFormat as protobuf text
    version 3   its size as a varint, then LedgerMetadataFormat as bytes

New ledgers use version 3.  A record keeps its version, for the sake of old readers.  Unknown fields
are dropped: application data belong into `custom`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from daybook.bookie.errors import MalformedMetadataError
from daybook.bookie.ledger.protocol.placement import (
    NO_ENTRY,
    BookieId,
    Ensemble,
    Fragment,
    Quorums,
    fragment_at,
    with_fragment,
)
from daybook.wire.digest import DigestType
from daybook.wire.errors import WireError
from daybook.wire.fields import decode_varint, encode_varint
from daybook.wire.proto.bookkeeper_metadata_pb2 import LedgerMetadataFormat
from daybook.wire.protobuf import check_readable

_MAGIC = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS_MAX = 10
_V1_CLOSED = "CLOSED"
_V1_IN_RECOVERY = -102


class LedgerState(Enum):
    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """The metadata of one ledger; raises MalformedMetadataError if they contradict themselves."""

    quorums: Quorums
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY  # meaningful once CLOSED
    length: int = 0  # payload bytes, meaningful once CLOSED
    digest_type: DigestType | None = DigestType.CRC32C  # None for old ledgers without one
    password: bytes | None = b""  # None for old ledgers without one
    created_ms: int | None = None  # from the record, or else from the store
    keeps_created: bool = False  # `created_ms` is in the record
    custom: Mapping[str, bytes] = field(default_factory=dict[str, bytes], hash=False)
    creator_token: int = 0
    format_version: int = 3

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise MalformedMetadataError(problem)

    def _problem(self) -> str:
        if not self.fragments or self.fragments[0].first_entry_id != 0:
            return "the first fragment does not start at entry 0"
        starts = [fragment.first_entry_id for fragment in self.fragments]
        if any(after <= before for before, after in pairwise(starts)):
            return f"fragments do not start one after another: {starts}"
        for fragment in self.fragments:
            if len(fragment.ensemble) != self.quorums.ensemble:
                return (
                    f"a fragment of {len(fragment.ensemble)} bookies, not {self.quorums.ensemble}"
                )
            if len(set(fragment.ensemble)) < self.quorums.ensemble:
                return f"a fragment names a bookie twice: {fragment.ensemble}"
        if self.last_entry_id < NO_ENTRY or self.length < 0:
            return f"an end at {self.last_entry_id} with {self.length} bytes"
        if self.state is not LedgerState.CLOSED and (self.last_entry_id, self.length) != (-1, 0):
            return f"a ledger in state {self.state.name} has an end"
        return ""

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def ensemble_at(self, entry_id: int) -> Ensemble:
        return fragment_at(self.fragments, entry_id).ensemble

    # -- transitions

    def with_ensemble(self, fragment: Fragment) -> "LedgerMetadata":
        """Add a fragment: the writer continues with other bookies from LAC + 1."""
        assert self.state is LedgerState.OPEN, self.state
        return replace(self, fragments=with_fragment(self.fragments, fragment))

    def in_recovery(self) -> "LedgerMetadata":
        """Stop the writer from changing the metadata."""
        assert self.state is LedgerState.OPEN, self.state
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed_at(
        self, last_entry_id: int, length: int, changes: tuple[Fragment, ...] = ()
    ) -> "LedgerMetadata":
        """Set the final end.  `changes` are the fragments that recovery has begun."""
        assert not self.closed
        assert last_entry_id >= NO_ENTRY, last_entry_id
        fragments = self.fragments
        for fragment in changes:
            fragments = with_fragment(fragments, fragment)
        return replace(
            self,
            state=LedgerState.CLOSED,
            last_entry_id=last_entry_id,
            length=length,
            fragments=fragments,
        )


# -- the record


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """Encode the record, in the version that the metadata were found in."""
    head = _MAGIC + b"%d\n" % metadata.format_version
    match metadata.format_version:
        case 1:
            return head + _encode_v1(metadata)
        case 2:
            return head + text_format.MessageToString(_to_message(metadata, token=False)).encode()
        case _:
            body = _to_message(metadata, token=True).SerializeToString(deterministic=True)
            return head + encode_varint(len(body)) + body


def decode_metadata(value: bytes, created_ms: int | None = None) -> LedgerMetadata:
    """Decode the record; raise MalformedMetadataError, and no other error.

    `created_ms` is used if the record does not contain it.
    """
    line, newline, body = value.partition(b"\n")
    version = line.removeprefix(_MAGIC)
    if not line.startswith(_MAGIC) or not newline or len(version) > _VERSION_DIGITS_MAX:
        raise MalformedMetadataError("the record does not begin as the metadata of a ledger do")
    try:
        match version:
            case b"1":
                metadata = _decode_v1(body.decode(), created_ms)
            case b"2":
                message = LedgerMetadataFormat()
                text_format.Parse(body.decode(), message)
                metadata = _from_message(message, 2, created_ms)
            case b"3":
                size, start = decode_varint(body, 0)
                if len(body) < start + size:
                    raise MalformedMetadataError(
                        f"the metadata of a ledger are cut off: {len(body) - start} of {size}"
                        " bytes are there"
                    )
                message = LedgerMetadataFormat()
                message.ParseFromString(body[start : start + size])
                metadata = _from_message(message, 3, created_ms)
            case _:
                raise MalformedMetadataError(
                    f"the metadata of a ledger have the unknown version {version!r}"
                )
    except (DecodeError, text_format.ParseError, ValueError, WireError) as error:
        raise MalformedMetadataError(
            f"the metadata of a ledger cannot be parsed: {error}"
        ) from error
    return metadata


def _to_message(metadata: LedgerMetadata, *, token: bool) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.quorums.write,
        ensembleSize=metadata.quorums.ensemble,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.State.Name(metadata.state.value),
        ackQuorumSize=metadata.quorums.ack,
        digestType=None if metadata.digest_type is None else metadata.digest_type.name,
    )
    for fragment in metadata.fragments:
        message.segment.add(
            ensembleMember=list(fragment.ensemble), firstEntryId=fragment.first_entry_id
        )
    if metadata.keeps_created and metadata.created_ms is not None:
        message.ctime = metadata.created_ms
    if metadata.password is not None:
        message.password = metadata.password
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    if token:
        message.cToken = metadata.creator_token
    return message


def _from_message(
    message: LedgerMetadataFormat, version: int, created_ms: int | None
) -> LedgerMetadata:
    check_readable(message)
    closed = message.state == LedgerMetadataFormat.CLOSED
    if closed and not message.HasField("lastEntryId"):
        raise MalformedMetadataError(
            "the metadata say that the ledger is closed, and not where it ends"
        )
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
    return LedgerMetadata(
        quorums=Quorums(message.ensembleSize, message.quorumSize, ack),
        fragments=tuple(
            Fragment(s.firstEntryId, tuple(map(BookieId, s.ensembleMember)))
            for s in message.segment
        ),
        state=LedgerState(message.state),
        last_entry_id=message.lastEntryId if closed else NO_ENTRY,
        length=message.length if closed else 0,
        digest_type=DigestType(int(message.digestType)) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        created_ms=message.ctime if message.HasField("ctime") else created_ms,
        keeps_created=message.HasField("ctime"),
        custom={c.key: c.value for c in message.customMetadata},
        creator_token=message.cToken,
        format_version=version,
    )


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    lines = [
        str(metadata.quorums.write),
        str(metadata.quorums.ensemble),
        str(metadata.length),
        *("\t".join([str(f.first_entry_id), *f.ensemble]) for f in metadata.fragments),
    ]
    if metadata.state is not LedgerState.OPEN:
        end = metadata.last_entry_id if metadata.closed else _V1_IN_RECOVERY
        lines.append(f"{end}\t{_V1_CLOSED}")
    return "\n".join(lines).encode()


def _decode_v1(body: str, created_ms: int | None) -> LedgerMetadata:
    lines = body.splitlines()
    if len(lines) < 4:
        raise MalformedMetadataError(
            f"the metadata of a ledger (version 1) have only {len(lines)} lines"
        )
    write, ensemble, length = map(int, lines[:3])
    fragments: list[Fragment] = []
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    for line in lines[3:]:
        first, *names = line.split("\t")
        if names == [_V1_CLOSED]:
            last_entry_id = int(first)
            state = LedgerState.CLOSED
        else:
            fragments.append(Fragment(int(first), tuple(map(BookieId, names))))
    if last_entry_id == _V1_IN_RECOVERY:
        state, last_entry_id = LedgerState.IN_RECOVERY, NO_ENTRY
    return LedgerMetadata(
        quorums=Quorums(ensemble, write, write),
        fragments=tuple(fragments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        digest_type=None,
        password=None,
        created_ms=created_ms,
        format_version=1,
    )
