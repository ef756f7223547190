"""The seams under the real shells of `managed_ledger`: calls that wait for their answers.

Each call becomes an output and waits; the search decides its result, and when it comes.  `sync`
returns at once: the store of this model has no followers that lag.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import trio

from daybook.bookie.errors import (
    InDoubtError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.managed_ledger.context import LogConfig
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.open import ManagedLedgers, open_managed_ledgers
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.trim import Retention
from daybook.managed_ledger.records import owner_of
from daybook.wire.entry import Entry
from daybook.wire.metadata.store import (
    Create,
    Delete,
    MetadataError,
    NoRecordError,
    NotEmptyError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    SessionState,
    Set,
    Stat,
    StoreUnavailableError,
    VersionConflictError,
)
from tests.model.log import events
from tests.model.log.events import (
    Asks,
    Call,
    Children,
    CloseLedger,
    Command,
    DeleteLedger,
    Do,
    Error,
    Found,
    Get,
    GivesUp,
    Multi,
    NewLedger,
    OpenLedger,
    Output,
    Result,
    Says,
    Sends,
    What,
    Written,
)

NAME = "t/n/persistent/a"
CURSOR = "s"
_UNNAMED = LedgerMetadata(
    quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (BookieId("b"),)),)
)  # as of an old version of Pulsar
_ERRORS: dict[Error, Callable[[], Exception]] = {
    Error.NO_RECORD: NoRecordError,
    Error.EXISTS: RecordExistsError,
    Error.CONFLICT: VersionConflictError,
    Error.NOT_EMPTY: NotEmptyError,
    Error.UNKNOWN: OutcomeUnknownError,
    Error.UNAVAILABLE: StoreUnavailableError,
    Error.NO_LEDGER: lambda: NoSuchLedgerError(0),
    Error.FENCED: lambda: LedgerFencedError("recovered by another"),
}


class FixedClock:
    def now_ms(self) -> int:
        return 1_000


@dataclass(slots=True)
class _Waiting:
    done: trio.Event = field(default_factory=trio.Event)
    result: Result = None


class Seams:
    """Collects the outputs in `out`; `answer` lets a call return."""

    def __init__(self) -> None:
        self.out: list[Output] = []
        self.writers: dict[int, ModelWriter] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._asked = 0

    async def call(self, call: Call) -> Any:
        number, waiting = self._asked, _Waiting()
        self._asked += 1
        self._waiting[number] = waiting
        self.out.append(Asks(number, call))
        try:
            await waiting.done.wait()
        finally:
            if not waiting.done.is_set():
                self.out.append(GivesUp(number))
            del self._waiting[number]
        if isinstance(waiting.result, Error):
            raise _ERRORS[waiting.result]()
        return waiting.result

    def answer(self, number: int, result: Result) -> None:
        waiting = self._waiting[number]
        waiting.result = result
        waiting.done.set()


class ModelStore:
    """SEAM metadata: each call becomes an output."""

    session_state = SessionState.CONNECTED
    session_id = 1

    def __init__(self, seams: Seams) -> None:
        self._seams = seams

    async def sync(self, path: str) -> None:
        await trio.lowlevel.checkpoint()

    async def get(self, path: str, watch: object = None) -> Record | None:
        found: Found | None = await self._seams.call(Get(path))
        if found is None:
            return None
        return Record(found.value, _stat(found.version))

    async def get_children(self, path: str, watch: object = None) -> list[str] | None:
        names: tuple[str, ...] | None = await self._seams.call(Children(path))
        return None if names is None else list(names)

    async def get_newest(self, path: str) -> Record | None:
        await trio.lowlevel.checkpoint()
        return await self.get(path)

    async def get_newest_children(self, path: str) -> list[str] | None:
        await trio.lowlevel.checkpoint()
        return await self.get_children(path)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, make_parents: bool = False
    ) -> str:
        await self._seams.call(Create(path, value))
        return path

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        after: Written = await self._seams.call(Set(path, value, version))
        return _stat(after.version, after.children)

    async def delete(self, path: str, version: int) -> None:
        await self._seams.call(Delete(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        after: tuple[int, ...] = await self._seams.call(Multi(tuple(operations)))
        return list(after)


def _stat(version: int, children: int = 0) -> Stat:
    return Stat(version, 0, 0, 0, 0, 0, children, 0)


class ModelClient:
    """The ledger client of the shells."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams

    async def create(self, quorums: object, *, custom: Mapping[str, bytes]) -> "ModelWriter":
        owner = owner_of(custom)
        assert owner is not None
        ledger_id: int = await self._seams.call(NewLedger(owner[1] is not None))
        writer = self._seams.writers[ledger_id] = ModelWriter(self._seams, ledger_id)
        return writer

    async def stored_metadata(self, ledger_id: int) -> StoredMetadata:
        """Return at once: the metadata never change here, so this is no step of its own."""
        await trio.lowlevel.checkpoint()
        return StoredMetadata(_UNNAMED, 0)

    async def open_stored(
        self, ledger_id: int, stored: StoredMetadata, *, recover: bool
    ) -> "ModelReader":
        opened: events.Opened = await self._seams.call(OpenLedger(ledger_id, recover))
        return ModelReader(ledger_id, opened.entries)

    async def delete(self, ledger_id: int) -> None:
        await self._seams.call(DeleteLedger(ledger_id))

    async def list_ledgers(self) -> AsyncIterator[int]:
        nothing: list[int] = []
        for ledger_id in nothing:
            yield ledger_id


class ModelWriter:
    """Behaves like `LedgerWriter`: confirms entries in order; a refusal is final."""

    under_replicated = False
    replaceable = True
    crowded = False
    waiting_for = ""
    payload_bytes_max = 1 << 20

    def __init__(self, seams: Seams, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = -1
        self.last_add_pushed = -1
        self.length = 0
        self.batches = 0
        self._sizes: list[int] = []
        self._seams = seams
        self._error: LedgerError | None = None
        self._owner_is_done = False
        self._confirmed: Callable[[int, int], None] | None = None
        self._withdrawn: Callable[[LedgerError], None] | None = None
        self._news = trio.Event()

    def set_listener(
        self, confirmed: Callable[[int, int], None], withdrawn: Callable[[LedgerError], None]
    ) -> None:
        self._confirmed, self._withdrawn = confirmed, withdrawn

    def append(self, payload: Sequence[Any]) -> int:
        if self._error is not None:
            raise self._error
        data = b"".join(map(bytes, payload))
        self.last_add_pushed += 1
        self.batches += 1
        self._sizes.append(len(data))
        self._seams.out.append(Sends(self.ledger_id, data))
        return self.last_add_pushed

    async def wait_confirmed(self, entry_id: int) -> None:
        while entry_id > self.last_add_confirmed and self._error is None:
            await self._news.wait()
        if entry_id > self.last_add_confirmed:
            raise InDoubtError(self.ledger_id, entry_id) from self._error
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        if self._error is not None and not self._owner_is_done:
            raise self._error
        self._stop()
        await self._seams.call(CloseLedger(self.ledger_id, self.last_add_confirmed))

    def abandon(self) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._error is None:
            self._owner_is_done = True
            self._error = LedgerClosedError("by its owner")
            self._tell()

    # -- calls of the search

    def confirm(self) -> None:
        if self._error is not None:
            return
        self.last_add_confirmed = entry_id = self.last_add_confirmed + 1
        self.length += self._sizes[entry_id]
        self._tell()
        if self._confirmed is not None:
            self._confirmed(entry_id, entry_id)

    def refuse(self) -> None:
        if self._error is not None:
            return
        self._error = LedgerFencedError("a bookie says so")
        self._tell()
        if self._withdrawn is not None:
            self._withdrawn(self._error)

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()


class ModelReader:
    """A reader of a closed ledger."""

    closed = True

    def __init__(self, ledger_id: int, entries: Sequence[bytes]) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = len(entries) - 1
        self.length = sum(map(len, entries))
        self.last_entry = self._entry(len(entries) - 1, entries[-1]) if entries else None
        self._entries = entries

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        found = enumerate(self._entries[first : last + 1], first)
        return [self._entry(entry_id, data) for entry_id, data in found]

    def _entry(self, entry_id: int, data: bytes) -> Entry:
        return Entry(self.ledger_id, entry_id, -1, 0, memoryview(data))

    async def refresh(self) -> int:
        await trio.lowlevel.checkpoint()
        return self.last_add_confirmed


class ModelBroker:
    """Carries out commands with the real `ManagedLedgers`."""

    def __init__(self, seams: Seams, nursery: trio.Nursery, *, trims: bool) -> None:
        self._seams = seams
        self._nursery = nursery
        self._logs: ManagedLedgers | None = None
        self._log: ManagedLedger | None = None
        self._cursor: Cursor | None = None
        retention = Retention(time_ms=0) if trims else Retention(time_ms=None)
        self._config = LogConfig(retention=retention, flush_s=1e9)
        self._rng = Random()

    async def run(self) -> None:
        async with open_managed_ledgers(
            client=cast("Any", ModelClient(self._seams)),
            store=cast("Any", ModelStore(self._seams)),
            clock=FixedClock(),
            rng=self._rng,
            allows=lambda _: True,
        ) as logs:
            self._logs = logs
            await trio.sleep_forever()

    def do(self, do: Do) -> None:
        match do.command:
            case Command.APPEND:
                assert self._log is not None
                self._log.append([b"value %d" % do.about], 1, self._done(do.about))
            case Command.ROLL:
                assert self._log is not None
                self._log.roll()
            case Command.ACK:
                assert self._cursor is not None
                self._cursor.ack([Position(do.ledger_id, do.entry_id)])
            case _:
                self._nursery.start_soon(self._later, do)

    async def _later(self, do: Do) -> None:
        try:
            match do.command:
                case Command.OPEN:
                    self._rng.seed(do.about)  # No two brokers have the same random numbers.
                    await self._open()
                case Command.SUBSCRIBE:
                    assert self._log is not None
                    self._cursor = await self._log.open_cursor(CURSOR, initial=EARLIEST)
                    self._say(What.SUBSCRIBED)
                case Command.FLUSH:
                    assert self._cursor is not None
                    await self._cursor.flush()
                    self._say(What.FLUSHED, do.about)
                case _:
                    assert self._log is not None
                    await self._log.close()
                    self._say(What.CLOSED)
        except (ManagedLedgerError, LedgerError, MetadataError) as error:
            failed = What.OPEN_FAILED if do.command is Command.OPEN else What.REFUSED
            self._say(failed, do.about, why=type(error).__name__)

    async def _open(self) -> None:
        assert self._logs is not None
        self._log = await self._logs.open(NAME, self._config)
        self._log.on_fenced = lambda: self._say(What.FENCED)
        self._log.on_bug = _raise
        self._cursor = self._log.cursors.get(CURSOR)
        self._say(What.OPENED, int(self._cursor is not None), self._log.current_ledger_id)

    def _done(self, value: int) -> Callable[[Position | None, Exception | None], None]:
        def done(position: Position | None, error: Exception | None) -> None:
            if position is None:
                self._say(What.FAILED, value, why=type(error).__name__)
            else:
                self._say(What.ACKED, value, position)

        return done

    def _say(
        self, what: What, about: int = 0, where: Position | int | None = None, why: str = ""
    ) -> None:
        if isinstance(where, Position):
            said = Says(what, about, where.ledger_id, where.entry_id, why)
        else:
            said = Says(what, about, -1 if where is None else where, why=why)
        self._seams.out.append(said)


def _raise(bug: Exception) -> None:
    """End the search: a bug of the log must not pass for the loss of the log."""
    raise bug
