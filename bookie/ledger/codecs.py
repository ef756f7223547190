"""How requests to a bookie are framed, and its answers understood: in protocol v2, or in v3.

All bookies that we know speak both on one port, and a connection speaks what its first frame was
written in.  They say the same of adds and reads.  v2 costs less (struct instead of protobuf) and is
tried first; v3 has what v2 cannot say: that the sync of an add may wait (`DEFERRED_SYNC`), and
`force`.

    v2    the ids tell what an answer answers; bookies of ours take many adds in one frame, too
    v3    a transaction id does, and nothing else is believed

`ProtocolVersions` remembers who does not speak v2: a bookie that answers "bad version", or that
cuts two connections in a row on which it has not answered anything.

FROM adds: Consecutive adds on their way to several bookies.

A writer makes one `AddBatch` for what has gathered in a turn, for all bookies.
Each entry is framed as a plain v2 add; small ones are copied together, once for all bookies, since
a system call costs more for each buffer than a kilobyte costs to copy.  Large ones are not copied.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

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
from daybook.wire.messages.bookie_v3 import from_v3
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import Buffer

_COPIED_BYTES_MAX = 8 << 10  # of an entry, on the average


class AddBatch:
    """Entries `first` and on; each frame is one add, its size included, in parts."""

    def __init__(self, first: int, frames: Sequence[Sequence[Buffer]]) -> None:
        self.first = first
        self.frames = frames

    @property
    def last(self) -> int:
        return self.first + len(self.frames) - 1

    @cached_property
    def buffers(self) -> Sequence[Buffer]:
        """All frames, one behind the other."""
        parts = [part for frame in self.frames for part in frame]
        if len(self.frames) > 1 and sum(map(len, parts)) <= len(self.frames) * _COPIED_BYTES_MAX:
            return [b"".join(parts)]
        return parts

    @cached_property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.buffers))


_CUTS_MAX = 2
_ASKED_MAX = 1 << 20  # requests of one connection that may still be answered


class ProtocolVersion(Enum):
    V2 = "v2"
    V3 = "v3"


VersionChoice: TypeAlias = Literal["auto", "v2", "v3"]


@dataclass(frozen=True, slots=True)
class ForceAnswer:
    status: int
    ledger_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Answers:
    adds: Sequence[AddRun] = ()
    reads: Sequence[ReadAnswer] = ()
    forces: Sequence[ForceAnswer] = ()


class Codec(Protocol):
    """One connection speaks one of them from its first frame to its last."""

    wire: ProtocolVersion

    def add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> Sequence[Buffer]:
        """`frame`: the add as v2 has it, in parts."""
        ...

    def adds(self, ledger_id: int, adds: AddBatch) -> Sequence[Buffer]: ...

    def read(self, ledger_id: int, entry_id: int, fence_key: bytes | None) -> Sequence[Buffer]: ...

    def decode(self, frames: Sequence[memoryview]) -> Answers:
        """Raises WireError for what is no answer."""
        ...


class V2Codec:
    """`blocks`: the bookie takes many adds in one frame.

    An answer to a block that is not under way on this connection is no answer.
    """

    wire = ProtocolVersion.V2

    def __init__(self, *, blocks: bool = False) -> None:
        self._blocks = blocks
        self._under_way: deque[tuple[int, int, int]] = deque()  # blocks: ledger, first, last

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
            answer = decode_answer(frame)
            if isinstance(answer, ReadAnswer):
                reads.append(answer)
        return Answers(adds, reads)

    def _block_answered(self, frame: memoryview) -> AddRun:
        run = decode_block_answer(frame)
        try:
            self._under_way.remove((run.ledger_id, run.first, run.last))  # mostly the first one
        except ValueError:
            block = f"of ledger {run.ledger_id} from {run.first} to {run.last}"
            raise MalformedError(f"an answer to a block {block} that was not sent") from None
        return run


class V3Codec:
    """`deferred`: its adds may be answered before they are on disk."""

    wire = ProtocolVersion.V3

    def __init__(self, *, deferred: bool = False) -> None:
        self._deferred = deferred
        self._txn_id = 0
        self._asked: dict[int, tuple[int, int]] = {}  # ledger and entry, by transaction

    def add(self, ledger_id: int, entry_id: int, frame: Sequence[Buffer]) -> Sequence[Buffer]:
        """The same entry behind another header; nothing of it is copied but its own header."""
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
        """The id by which its answer is known, and the request."""
        txn_id = self._next(ledger_id, 0)
        return txn_id, [bookie_v3.encode_force(txn_id, ledger_id)]

    def _next(self, ledger_id: int, entry_id: int) -> int:
        self._txn_id += 1
        self._asked[self._txn_id] = ledger_id, entry_id
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]  # It was given up long ago.
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
                continue
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
                    continue  # Nobody here asks for anything else.
        return Answers(adds, reads, forces)


def _status(response: pb.Response, part: str) -> Status:
    """It is done only if the part of the answer that is about the operation says so, too."""
    if response.status != pb.EOK:
        return from_v3(response.status)
    return from_v3(getattr(response, part).status) if response.HasField(part) else Status.IO_ERROR


def _add_to_runs(runs: list[AddRun], status: Status, ledger_id: int, entry_id: int) -> None:
    if runs:
        last = runs[-1]
        if (last.status, last.ledger_id, last.last) == (status, ledger_id, entry_id - 1):
            runs[-1] = AddRun(status, ledger_id, last.first, entry_id)
            return
    runs.append(AddRun(status, ledger_id, entry_id, entry_id))


class ProtocolVersions:
    """Which protocol to begin a connection with.  `choice` other than "auto" leaves no choice.

    A bookie that seems to know v3 only is spoken to in v3 for `retry_s`; then v2 is tried again.
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
        """It closed a connection without having answered anything."""
        cuts = self._cuts[bookie] = self._cuts.get(bookie, 0) + 1
        if cuts >= _CUTS_MAX:
            self.refused(bookie, wire, now)

    def refused(self, bookie: BookieId, wire: ProtocolVersion, now: float) -> None:
        """It does not speak that."""
        self._cuts.pop(bookie, None)
        if wire is ProtocolVersion.V2:
            self._v3_until[bookie] = now + self._retry_s
        else:
            self._v3_until.pop(bookie, None)
