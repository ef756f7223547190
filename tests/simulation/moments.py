"""The moments of a run: what happens on the network, in the metadata store and on the disks.

Faults wait for these moments: between a fence and the first recovery read, between the creation of
a ledger and the compare-and-swap of the list, during a cursor's change of ledgers.  The product is
not touched; the seams are observed.

    network, from the sender's point of view (subject: sender, peer: receiver)
        fence, fence answered, recovery read, recovery add, add, add answered, read
        copy: a recovery add of one bookie to another, for re-replication
        recovery joined: a fence by another host than the one that has marked the ledger
        and bookies' answers: fenced, no entry, no ledger, unknown, io error, read only
        too many: the answer to an add, or to a block of adds, that exceeds the room of the bookie
        bundle expected, bundle held, topics passed on, bundle taken: calls of a hand-over
    metadata, when it is written and the answer is under way (subject: the writer)
        ledger created, ledger in recovery, ledger closed, ledger fragments, ledger deleted
        copies moved: entries of an older fragment have another bookie
        ledger marked, mark cleared: it is marked underreplicated; the mark is removed
        cursor ledger created, and the other ledger moments likewise
        list claimed: a long one, by the broker that opens the log, before cursors are read
        list created, list changed, list deleted, cursor created, cursor changed, cursor deleted
        owner taken, owner gone, broker joined, broker gone, bookie joined, bookie gone
    loads of topics (subject: the broker; `bulk_loads`)
        list read, topic loaded
    disk (subject: the bookie)
        write, sync, segment, checkpoint
        segment removed: its entries were deleted, or written again
"""

from collections import Counter
from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from daybook.bookie.errors import MalformedMetadataError
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState, decode_metadata
from daybook.managed_ledger.records import OPENING, owner_of
from daybook.wire.messages.bookie import Flag, Operation, Status
from daybook.wire.metadata.store import Record
from tests.harness.stream import SimulatedStream
from tests.simulation.http import HTTP_PORT
from tests.simulation.settings import BOOKIE_PORT

Happened: TypeAlias = Callable[[str, str], None]
"""Called with the subject and the peer ("" if there is none)."""

_FRAME = Struct(">I")
_PACKET = Struct(">I")
_READ = Struct(">Iqq")
_ADD = Struct(">I20sqq")
_ANSWER = Struct(">IIqq")
_HEAD_BYTES = 4 + _ADD.size
_ANSWERS = {
    Status.FENCED: "fenced",
    Status.NO_ENTRY: "no entry",
    Status.NO_LEDGER: "no ledger",
    Status.UNKNOWN_LEDGER_STATE: "unknown",
    Status.IO_ERROR: "io error",
    Status.READ_ONLY: "read only",
}
_ADDS = (Operation.ADD, Operation.ADD_BLOCK)  # Their answers begin with the same fields.
_HAND_OVER = b"POST /admin/v2/daybook/bundles/"
_CALLS = {
    b"expect": "bundle expected",
    b"hold": "bundle held",
    b"pass-on": "topics passed on",
    b"take": "bundle taken",
}
_DISK = {
    "write": "write",
    "sync": "sync",
    "create": "segment",
    "remove": "segment removed",
    "index_write": "checkpoint",
}


class Moments:
    """Counts moments, calls the waiting faults, and reports traffic about entries on request."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.say: Callable[[str, str], None] | None = None
        self.entries: Callable[[str, int, int], None] | None = None  # text, ledger, entry
        # Called with each bookie that refuses entries because too many are under way.
        self.overloaded: Callable[[str], None] | None = None
        self._waiting: dict[str, list[tuple[int, Happened]]] = {}
        self._frames: dict[tuple[int, str], _Frames] = {}
        self._fencing: set[tuple[int, int, int]] = set()  # connection, ledger, entry
        self._states: dict[str, LedgerMetadata] = {}
        self._recoverers: dict[int, str] = {}  # the host that marked a ledger first

    def when(self, moment: str, nth: int, call: Happened) -> None:
        """Call `call` when the moment happens for the nth time from now."""
        at = self.counts[moment] + nth
        self._waiting.setdefault(moment, []).append((at, call))

    def happened(self, moment: str, subject: str, peer: str = "") -> None:
        self.counts[moment] += 1
        if self.say is not None:
            self.say(subject, f"{moment} {peer}" if peer else moment)
        waiting = self._waiting.get(moment)
        if waiting:
            count = self.counts[moment]
            self._waiting[moment] = [each for each in waiting if each[0] > count]
            for at, call in waiting:
                if at <= count:
                    call(subject, peer)

    # -- disks

    def on_disk(self, host: str, operation: str) -> None:
        moment = _DISK.get(operation)
        if moment is not None:
            self.happened(moment, host)

    # -- network

    def on_wire(self, stream: SimulatedStream, data: bytes) -> None:
        other = stream.other
        assert other is not None
        if other.port == HTTP_PORT:
            self._call(stream, data)
        if BOOKIE_PORT not in (stream.port, other.port):
            return
        key = (stream.serial, stream.host)
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames[key] = _Frames()
        from_bookie = stream.port == BOOKIE_PORT
        for head in frames.feed(data):
            if from_bookie:
                self._answer(stream, head)
            else:
                self._request(stream, head)

    def _call(self, stream: SimulatedStream, data: bytes) -> None:
        """Note a call of a hand-over.  A first segment that ends within its line is missed."""
        if not data.startswith(_HAND_OVER):
            return
        path = data.partition(b" HTTP/")[0]
        moment = _CALLS.get(path.rpartition(b"/")[2])
        if moment is not None:
            self.happened(moment, stream.host, stream.peer_host)

    def _request(self, stream: SimulatedStream, head: bytes) -> None:
        if len(head) < 4 + _READ.size:
            return
        (packet,) = _PACKET.unpack_from(head, 4)
        operation, flags = packet >> 16 & 0xFF, packet & 0xFFFF
        if operation == Operation.ADD and len(head) >= _HEAD_BYTES:
            _, _, ledger_id, entry_id = _ADD.unpack_from(head, 4)
            moment = "add"
            if flags & Flag.RECOVERY_ADD:
                moment = "copy" if stream.host.startswith("bookie") else "recovery add"
        elif operation == Operation.READ:
            _, ledger_id, entry_id = _READ.unpack_from(head, 4)
            moment = "read"
            if flags & Flag.DO_FENCING:
                moment = "fence" if entry_id < 0 else "recovery read"
                self._fencing.add((stream.serial, ledger_id, entry_id))
                first = self._recoverers.get(ledger_id, stream.host)
                if moment == "fence" and first != stream.host:
                    self.happened("recovery joined", stream.host, stream.peer_host)
        else:
            return
        self._passed(moment, stream, ledger_id, entry_id)

    def _answer(self, stream: SimulatedStream, head: bytes) -> None:
        if len(head) < 4 + _ANSWER.size:
            return
        packet, status, ledger_id, entry_id = _ANSWER.unpack_from(head, 4)
        operation = packet >> 16 & 0xFF
        if operation in _ADDS and status == Status.TOO_MANY_REQUESTS:
            self.happened("too many", stream.host, stream.peer_host)
            if self.overloaded is not None:
                self.overloaded(stream.host)
        if operation == Operation.ADD:
            moment = "add answered"
        elif operation == Operation.READ:
            key = (stream.serial, ledger_id, entry_id)
            moment = "fence answered" if key in self._fencing else "read answered"
            self._fencing.discard(key)
        else:
            return
        name = _ANSWERS.get(Status(status)) if status else None
        if name is not None:
            self._passed(name, stream, ledger_id, entry_id)
        self._passed(moment, stream, ledger_id, entry_id)

    def _passed(self, moment: str, stream: SimulatedStream, ledger_id: int, entry_id: int) -> None:
        if self.entries is not None:
            text = f"{stream.host} to {stream.peer_host}: {moment} {ledger_id}:{entry_id}"
            self.entries(text, ledger_id, entry_id)
        self.happened(moment, stream.host, stream.peer_host)

    # -- metadata

    def on_write(self, host: str, path: str, record: Record | None) -> None:
        parts = path.split("/")
        match parts:
            case ["", "ledgers", "available", name] if name != "readonly":
                self.happened("bookie joined" if record is not None else "bookie gone", host)
            case ["", "ledgers", "underreplication", *rest]:
                if rest[:1] == ["ledgers"] and parts[-1].startswith("urL"):
                    self.happened("mark cleared" if record is None else "ledger marked", host)
            case ["", "ledgers", _, _, *_] if parts[-1].startswith("L") and parts[2] != "available":
                self._ledger(host, path, record)
            case ["", "managed-ledgers", _, _, "persistent", _]:
                if record is not None and OPENING.encode() in record.value:
                    self.happened("list claimed", host)
                self._versioned("list", host, record)
            case ["", "managed-ledgers", _, _, "persistent", _, _]:
                self._versioned("cursor", host, record)
            case ["", "namespace", _, _, _]:
                self.happened("owner taken" if record is not None else "owner gone", host)
            case ["", "loadbalance", "brokers", _]:
                self.happened("broker joined" if record is not None else "broker gone", host)
            case _:
                pass

    def _versioned(self, what: str, host: str, record: Record | None) -> None:
        if record is None:
            self.happened(f"{what} deleted", host)
        elif record.stat.version == 0:
            self.happened(f"{what} created", host)
        else:
            self.happened(f"{what} changed", host)

    def _ledger(self, host: str, path: str, record: Record | None) -> None:
        before = self._states.pop(path, None)
        if record is None:
            self.happened("ledger deleted", host)
            return
        try:
            after = self._states[path] = decode_metadata(record.value)
        except MalformedMetadataError:
            return
        if before is None:
            owner = owner_of(after.custom)
            of_cursor = owner is not None and owner[1] is not None
            self.happened("cursor ledger created" if of_cursor else "ledger created", host)
        elif after.state is LedgerState.CLOSED and before.state is not LedgerState.CLOSED:
            self.happened("ledger closed", host)
        elif after.state is LedgerState.IN_RECOVERY:
            self._recoverers[int("".join(path.split("/")[2:]).replace("L", ""))] = host
            self.happened("ledger in recovery", host)
        elif before.closed or after.fragments[:-1] != before.fragments[: len(after.fragments) - 1]:
            self.happened("copies moved", host)
        else:
            self.happened("ledger fragments", host)


class _Frames:
    """The heads of the frames in one direction of a connection, as far as they are needed."""

    __slots__ = ("_head", "_skip", "_want")

    def __init__(self) -> None:
        self._head = b""
        self._skip = 0  # bytes of the present frame that are skipped
        self._want = 0  # the length of the head; 0: not known yet

    def feed(self, data: bytes) -> list[bytes]:
        heads: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
                continue
            want = self._want or 4
            part = data[at : at + want - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) < want:
                break
            (size,) = _FRAME.unpack_from(self._head)
            if not self._want:
                self._want = 4 + min(size, _HEAD_BYTES - 4)
                if self._want > 4:
                    continue
            heads.append(self._head)
            self._skip = 4 + size - len(self._head)
            self._head, self._want = b"", 0
        return heads
