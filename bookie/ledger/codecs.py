"""Codecs for requests to bookies and their answers, in protocol v2 and v3.

Bookies speak both on one port, and a connection speaks the version of its first frame.  For adds
and reads the two are equivalent.  v2 costs less (struct instead of protobuf) and is tried first.
Only v3 has the flag `DEFERRED_SYNC` for adds, and `force`.

    v2    ledger and entry ids match an answer to its request; our bookies also accept many adds in
          one frame
    v3    a transaction id does, and the ids in an answer are ignored

`ProtocolVersions` remembers the bookies that do not speak v2: those that answer "bad version", and
those that close two connections in a row without any answer.

A writer makes one `AddBatch` of the entries gathered in one turn, and gives it to the channel of
each bookie.  Each entry is framed as a plain v2 add.  Small entries are copied into one buffer,
once for all bookies, because a system call costs more for each buffer than copying a kilobyte.
Large entries are not copied.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, TypeAlias

from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.wire.digest import MASTER_KEY_BYTES
from daybook.wire.errors import MalformedError
from daybook.wire.fields import U32
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.blocks import decode_block_answer, encode_block_header
from daybook.wire.messages.bookie import (
    ADD_REQUEST_HEADER_BYTES,
    AddRun,
    Flag,
    Operation,
    ReadAnswer,
    Status,
    decode_add_answers,
    decode_answer,
)
from daybook.wire.messages.bookie_v3 import from_v3, is_v3
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import Buffer

_COPIED_BYTES_MAX = 8 << 10  # A batch is copied up to this average size of its entries.


class AddBatch:
    """Consecutive adds from entry `first` on; each frame is one v2 add, with its size, in parts."""

    def __init__(self, first: int, frames: Sequence[Sequence[Buffer]]) -> None:
        self.first = first
        self.frames = frames

    @property
    def last(self) -> int:
        return self.first + len(self.frames) - 1

    @cached_property
    def buffers(self) -> Sequence[Buffer]:
        """All frames, one after another."""
        parts = [part for frame in self.frames for part in frame]
        if len(self.frames) > 1 and sum(map(len, parts)) <= len(self.frames) * _COPIED_BYTES_MAX:
            return [b"".join(parts)]
        return parts

    @cached_property
    def size(self) -> int:
        """The size of all frames in bytes."""
        return sum(map(len, self.buffers))


_CUTS_MAX = 2  # connections in a row that end without an answer: the bookie speaks v3 only
_ASKED_MAX = 1 << 20  # unanswered requests of one connection


class ProtocolVersion(Enum):
    V2 = "v2"
    V3 = "v3"


VersionChoice: TypeAlias = Literal["auto", "v2", "v3"]


@dataclass(frozen=True, slots=True)
class ForceAnswer:
    status: int
    ledger_id: int
    request_id: int


class Answers(NamedTuple):
    """The answers of one `receive`.  A tuple is made in a third of the time of a dataclass."""

    adds: Sequence[AddRun] = ()
    reads: Sequence[ReadAnswer] = ()
    forces: Sequence[ForceAnswer] = ()


class Codec(Protocol):
    """One per connection, from its first frame to its last."""

    wire: ProtocolVersion

    def add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> Sequence[Buffer]:
        """Encode an add; `frame` is the add as in v2, in parts."""
        ...

    def adds(self, ledger_id: int, adds: AddBatch) -> Sequence[Buffer]: ...

    def read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> Sequence[Buffer]: ...

    def decode(self, frames: Sequence[memoryview]) -> Answers:
        """Decode answers; raise WireError for a frame that is no answer."""
        ...


class V2Codec:
    """Protocol v2.  With `blocks`, the bookie accepts many adds in one frame.

    An answer to a block that is not under way on this connection is an error.
    """

    wire = ProtocolVersion.V2

    def __init__(self, *, blocks: bool = False) -> None:
        self._blocks = blocks
        self._under_way: deque[tuple[int, int, int]] = deque()  # ledger, first and last entry

    def add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> Sequence[Buffer]:
        return frame

    def adds(self, ledger_id: int, adds: AddBatch) -> Sequence[Buffer]:
        if not self._blocks or adds.first == adds.last:
            return adds.buffers
        self._under_way.append((ledger_id, adds.first, adds.last))
        return [encode_block_header(adds.size), *adds.buffers]

    def read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> Sequence[Buffer]:
        return [bookie.encode_read(ledger_id, entry_id, fence_key=fence_key)]

    def decode(self, frames: Sequence[memoryview]) -> Answers:
        adds, others = decode_add_answers(frames)
        if not others:
            return Answers(adds)
        reads: list[ReadAnswer] = []
        for frame in others:
            if len(frame) > 1 and frame[1] == Operation.ADD_BLOCK:
                adds.append(self._block_answered(frame))
                continue
            if is_v3(frame):
                raise MalformedError(
                    "the bookie refuses this client after the TLS handshake: it accepts neither its"
                    " certificate nor that it has no password"
                )
            answer = decode_answer(frame)
            if isinstance(answer, ReadAnswer):
                reads.append(answer)
        return Answers(adds, reads)

    def _block_answered(self, frame: memoryview) -> AddRun:
        run = decode_block_answer(frame)
        try:
            self._under_way.remove((run.ledger_id, run.first, run.last))  # usually the first item
        except ValueError:
            block = f"entries {run.first} to {run.last} of ledger {run.ledger_id}"
            raise MalformedError(
                f"the bookie answered to a block that was not sent: {block}"
            ) from None
        return run


class V3Codec:
    """Protocol v3.  With `deferred`, adds may be acknowledged before they are on disk."""

    wire = ProtocolVersion.V3

    def __init__(self, *, deferred: bool = False) -> None:
        self._deferred = deferred
        self._txn_id = 0
        self._asked: dict[int, tuple[int, int]] = {}  # transaction -> ledger and entry

    def add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> Sequence[Buffer]:
        """Put the same entry behind a v3 header; the payload is not copied."""
        # The head of a v2 add: its size, the header with flags and key, and the entry's own header.
        head, *payload = frame
        packet = bytes(head[: ADD_REQUEST_HEADER_BYTES + 4])
        entry_header = head[len(packet) :]
        v3_header = bookie_v3.encode_add_header(
            self._next(ledger_id, entry_id),
            ledger_id,
            entry_id,
            packet[-MASTER_KEY_BYTES:],
            len(entry_header) + sum(map(len, payload)),
            recovery=bool(U32.unpack_from(packet, 4)[0] & Flag.RECOVERY_ADD),
            deferred_sync=self._deferred,
        )
        return [v3_header + entry_header, *payload]

    def adds(self, ledger_id: int, adds: AddBatch) -> Sequence[Buffer]:
        parts: list[Buffer] = []
        for entry_id, frame in enumerate(adds.frames, adds.first):
            parts += self.add(ledger_id, entry_id, frame)
        return parts

    def read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> Sequence[Buffer]:
        txn_id = self._next(ledger_id, entry_id)
        return [bookie_v3.encode_read(txn_id, ledger_id, entry_id, fence_key=fence_key)]

    def force(self, ledger_id: int) -> tuple[int, Sequence[Buffer]]:
        """Return the id of the request, and its frame."""
        txn_id = self._next(ledger_id, 0)
        return txn_id, [bookie_v3.encode_force(txn_id, ledger_id)]

    def _next(self, ledger_id: int, entry_id: int) -> int:
        self._txn_id += 1
        self._asked[self._txn_id] = ledger_id, entry_id
        # Requests that are never answered must not fill the memory; dicts keep their order.
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]  # This request timed out long ago.
        return self._txn_id

    def decode(self, frames: Sequence[memoryview]) -> Answers:
        adds: list[AddRun] = []
        reads: list[ReadAnswer] = []
        forces: list[ForceAnswer] = []
        for frame in frames:
            response = bookie_v3.decode_response(frame)
            txn_id = response.header.txnId
            asked = self._asked.pop(txn_id, None)
            if asked is None:
                continue  # An answer without a request proves nothing.
            ledger_id, entry_id = asked
            match response.header.operation:
                case pb.ADD_ENTRY:
                    status = _status(response, "addResponse")
                    _add_to_runs(adds, status, ledger_id, entry_id)
                case pb.READ_ENTRY:
                    status = _status(response, "readResponse")
                    body = memoryview(response.readResponse.body)
                    reads.append(ReadAnswer(status, ledger_id, entry_id, body))
                case pb.FORCE_LEDGER:
                    status = _status(response, "forceLedgerResponse")
                    forces.append(ForceAnswer(status, ledger_id, txn_id))
                case _:
                    continue  # This codec sends no other requests.
        return Answers(adds, reads, forces)


def _status(response: pb.Response, part: str) -> Status:
    """Return the status of the operation.

    The operation succeeded only if both the response and its part about the operation say so.
    """
    if response.status != pb.EOK:
        return from_v3(response.status)
    return from_v3(getattr(response, part).status) if response.HasField(part) else Status.IO_ERROR


def _add_to_runs(runs: list[AddRun], status: Status, ledger_id: int, entry_id: int) -> None:
    """Append the answer to the last run if it continues that run, or else as a new run."""
    if runs:
        last = runs[-1]
        if (last.status, last.ledger_id, last.last) == (status, ledger_id, entry_id - 1):
            runs[-1] = AddRun(status, ledger_id, last.first, entry_id)
            return
    runs.append(AddRun(status, ledger_id, entry_id, entry_id))


class ProtocolVersions:
    """The protocol version for new connections to each bookie.

    A `choice` other than "auto" always wins.  A bookie that seems to speak v3 only is spoken to in
    v3 for `retry_s`; then v2 is tried again, since the bookie may have been upgraded.
    """

    def __init__(self, choice: VersionChoice, retry_s: float) -> None:
        self._choice: VersionChoice = choice
        self._retry_s = retry_s
        self._cuts: dict[BookieId, int] = {}
        self._v3_until: dict[BookieId, float] = {}

    def for_bookie(self, bookie: BookieId, now: float) -> ProtocolVersion:
        if self._choice != "auto":
            return ProtocolVersion(self._choice)
        return ProtocolVersion.V3 if now < self._v3_until.get(bookie, now) else ProtocolVersion.V2

    def answered(self, bookie: BookieId) -> None:
        self._cuts.pop(bookie, None)

    def handle_cut(self, bookie: BookieId, wire: ProtocolVersion, now: float) -> None:
        """Note that the bookie closed a connection without having answered anything."""
        cuts = self._cuts[bookie] = self._cuts.get(bookie, 0) + 1
        # One cut proves little: the bookie may just have been restarted.
        if cuts >= _CUTS_MAX:
            self.refused(bookie, wire, now)

    def refused(self, bookie: BookieId, wire: ProtocolVersion, now: float) -> None:
        """Note that the bookie does not speak this version."""
        self._cuts.pop(bookie, None)
        if wire is ProtocolVersion.V2:
            self._v3_until[bookie] = now + self._retry_s
        else:
            self._v3_until.pop(bookie, None)
