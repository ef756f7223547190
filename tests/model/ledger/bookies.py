"""A bookie as a table: the real ledger directory, on a log that is durable at once.

The state of a bookie is the contents of its log.  Each request is served by a directory that was
just booted from the log, so every step is also a crash and a restart: no state that matters can be
in memory only.  Several disks, groups and checkpoints make no difference to the contract, and are
not modelled (`tests/bookie/storage` crashes them at every point).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from daybook.bookie.server.v2 import CODES
from daybook.bookie.storage.entry_locations import EntryLocations
from daybook.bookie.storage.index import MemoryIndex
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Done
from daybook.bookie.storage.records import Kind, Record
from daybook.bookie.storage.recovery import Contents
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.wire.digest import Digester, DigestType
from daybook.wire.entry import decode_entry
from daybook.wire.messages.bookie import Add, Flag, Read, encode_add_answer, encode_read_answer
from tests.model.ledger.messages import LEDGER_ID, asked, decoded, payload_of, said
from tests.model.numbering import Numbering
from tests.model.search import BrokenRuleError

Stored: TypeAlias = tuple[tuple[Kind, int, bytes], ...]
"""The records of the log without the master key: kind, entry id, payload; sorted."""

EMPTY: Stored = ()
_DIGESTER = Digester(DigestType.CRC32C, b"")


@dataclass(slots=True)
class _Group:
    lacs: dict[Any, int] = field(default_factory=dict[Any, int])


class _DurableLog:
    """The part of a log that a ledger directory uses."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        self.failure = None
        self.pending_bytes = 0
        self.open_group = _Group()

    @property
    def end(self) -> int:
        return len(self.records)

    durable = end

    def append(
        self, kind: Kind, ledger_id: int, entry_id: int, payload: Any, done: Done | None
    ) -> int:
        position = len(self.records)
        self.records.append(Record(position, kind, ledger_id, entry_id, memoryview(bytes(payload))))
        if done is not None:
            done(StoreStatus.OK)
        return position

    def when_durable(self, position: int, done: Done) -> None:
        done(StoreStatus.OK)

    def try_read(self, position: int, size: int) -> Record:
        return self.records[position]


def _booted(stored: Stored, key: bytes) -> tuple[LedgerDirectory, _DurableLog]:
    contents = Contents({}, EntryLocations(MemoryIndex(), blocks_cached=16), False, 0)
    records: list[Record] = []
    rows = [(Kind.MASTER_KEY, -1, key), *stored] if stored else []
    for position, (kind, entry_id, payload) in enumerate(rows):
        record = Record(position, kind, LEDGER_ID, entry_id, memoryview(payload))
        records.append(record)
        contents.apply(record, position)
    log = _DurableLog(records)
    directory = LedgerDirectory("d0", StoreLimits(), contents, cast("Any", log), cast("Any", None))
    return directory, log


def is_fenced(stored: Stored) -> bool:
    return any(kind is Kind.FENCE for kind, _, _ in stored)


def held(stored: Stored) -> frozenset[int]:
    """Return the ids of the entries."""
    return frozenset(entry_id for kind, entry_id, _ in stored if kind is Kind.ENTRY)


@dataclass(frozen=True, slots=True)
class Served:
    """The result of a request; `lac` is that of an entry which was stored now, otherwise -1."""

    after: int
    answer: int
    lac: int
    text: str


class Bookies:
    """The table of all bookies, which are alike but for their names."""

    def __init__(
        self, requests: Numbering[bytes], answers: Numbering[bytes], *, white_box: bool
    ) -> None:
        self.states: Numbering[Stored] = Numbering(EMPTY)
        self._requests = requests
        self.answers = answers
        self._white_box = white_box
        self._served: dict[tuple[int, int], Served] = {}
        self._facts: list[tuple[bool, frozenset[int]]] = []

    def serve(self, state: int, request: int) -> Served:
        served = self._served.get((state, request))
        if served is None:
            served = self._served[state, request] = self._serve(state, request)
        return served

    def facts(self, state: int) -> tuple[bool, frozenset[int]]:
        """Return whether the ledger is fenced there, and the ids of its entries."""
        while len(self._facts) <= state:
            stored = self.states[len(self._facts)]
            self._facts.append((is_fenced(stored), held(stored)))
        return self._facts[state]

    def _serve(self, state: int, request: int) -> Served:
        before = self.states[state]
        frame = self._requests[request]
        asked_for = decoded(frame)
        directory, log = _booted(before, asked_for.master_key or b"")
        answer = (
            _add(directory, asked_for)
            if isinstance(asked_for, Add)
            else _read(directory, asked_for)
        )
        after: Stored = tuple(
            sorted(
                (record.kind, record.entry_id, bytes(record.payload))
                for record in log.records
                if record.kind is not Kind.MASTER_KEY
            )
        )
        fences = isinstance(asked_for, Read) and asked_for.flags & Flag.DO_FENCING
        if self._white_box and fences and not is_fenced(after):
            raise BrokenRuleError("W2", "a fence was answered, but the ledger is not fenced")
        lac = _check_stored(before, after)
        text = f"{asked(frame)} -> {said(answer).status.name}"
        return Served(self.states.of(after), self.answers.of(answer), lac, text)


def _check_stored(before: Stored, after: Stored) -> int:
    """Check S5, B4: an entry has the bytes of its add, forever.  Return the LAC of a new one."""
    if not set(before) <= set(after):
        raise BrokenRuleError("B4", "a bookie changed or forgot a record")
    if len({(kind, entry_id) for kind, entry_id, _ in after}) < len(after):
        raise BrokenRuleError("B4", "an entry was stored twice")
    lac = -1
    for kind, entry_id, payload in after:
        if kind is Kind.ENTRY and (kind, entry_id, payload) not in before:
            entry = decode_entry(memoryview(payload), _DIGESTER, LEDGER_ID, entry_id)
            if bytes(entry.payload) != payload_of(entry_id):
                raise BrokenRuleError("S5", f"entry {entry_id} has other bytes")
            lac = entry.lac
    return lac


def _add(directory: LedgerDirectory, add: Add) -> bytes:
    statuses: list[StoreStatus] = []
    recovery = add.flags & Flag.RECOVERY_ADD != 0
    directory.add(add.ledger_id, add.entry_id, add.master_key, add.entry, recovery, statuses.append)
    (status,) = statuses
    return encode_add_answer(add.header, CODES[status], add.ledger_id, add.entry_id)


def _read(directory: LedgerDirectory, read: Read) -> bytes:
    entry, status = memoryview(b""), StoreStatus.OK
    try:
        if read.master_key is not None:
            directory.fence(read.ledger_id, read.master_key)
        found = directory.try_read(read.ledger_id, read.entry_id)
        assert found is not None, "everything is at hand"
        entry = found
    except StoreError as error:
        status = error.status
    code = CODES[status]
    head = encode_read_answer(read.header, code, read.ledger_id, read.entry_id, len(entry))
    return head + bytes(entry)
