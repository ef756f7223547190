"""The underreplication records in the metadata store: BookKeeper's own, shared with its workers.

    <root>/underreplication
      LAYOUT                                   the layout of these records, as protobuf text
      ledgers/hhhh/hhhh/hhhh/hhhh/urL<id>      a mark: which bookies lack entries, since when
      locks/urL<id>                            ephemeral: a worker repairs it
      disable                                  present while auto-recovery is paused
      lostBookieRecoveryDelay                  seconds, as text; writing it also requests an audit
      checkallledgersctime (and two more)      when a check of all ledgers last began

`hhhh` are the 16-bit pieces of the ledger id.

A new finding is added to an existing mark and never replaces it.  The mark is written even if it
already names the bookie: a rereplicator deletes the version it began with, so a finding made
meanwhile has to change the version.

A lock only saves work: two workers may safely repair the same ledger at once.  A lock ends with the
session of its owner.  A session may last for months, and a create or delete of a lock without an
answer may have taken effect or not, so an owner looks for locks that it holds and does not work on.

No call here takes a request without an answer for done: `MetadataError` passes through, and every
call may be repeated.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import trio
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from daybook.bookie.errors import LayoutError, MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import (
    ANY,
    MetadataError,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    VersionConflictError,
    Watch,
)
from daybook.wire.proto.bookkeeper_metadata_pb2 import (
    CheckTimeFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from daybook.wire.protobuf import check_readable

_MARK_NAME = re.compile(r"urL(\d{10,19})")
_PIECE = re.compile(r"[0-9a-f]{4}")
_DEPTH = 4
_LEDGER_ID_MAX = (1 << 63) - 1
_DELAY_DIGITS_MAX = 9
_LAYOUT = LedgerRereplicationLayoutFormat(type="BASIC", version=1)
LOST_DELAY_S = 60  # while the record has no value


def mark_path(paths: LedgerPaths, ledger_id: int) -> str:
    """Return the path of the mark, as BookKeeper has it."""
    digits = f"{ledger_id:016x}"
    pieces = "/".join(digits[start : start + 4] for start in range(0, 16, 4))
    return f"{paths.underreplication}/ledgers/{pieces}/urL{ledger_id:010d}"


async def mark_under_replicated(
    store: MetadataStore,
    paths: LedgerPaths,
    ledger_id: int,
    missing: Sequence[str],
    now_ms: int,
) -> None:
    """Mark the ledger: these bookies lack entries of it."""
    await _ensure_layout(store, paths)
    path = mark_path(paths, ledger_id)
    while True:
        record = await store.get(path)
        mark = UnderreplicatedLedgerFormat()
        if record is not None:
            # A mark that does not parse is of no use to any reader, and is replaced.
            with suppress(text_format.ParseError, UnicodeDecodeError):
                text_format.Parse(record.value.decode(), mark)
        mark.replica.extend(bookie for bookie in missing if bookie not in mark.replica)
        mark.ctime = now_ms
        value = text_format.MessageToString(mark).encode()
        try:
            if record is None:
                await store.create(path, value, make_parents=True)
            else:
                await store.set(path, value, record.stat.version)
        except (RecordExistsError, VersionConflictError, NoRecordError, OutcomeUnknownError):
            continue  # Read again: the ledger was marked or rereplicated meanwhile.
        return


async def _ensure_layout(store: MetadataStore, paths: LedgerPaths) -> None:
    path = f"{paths.underreplication}/LAYOUT"
    while await store.get(path) is None:
        try:
            value = text_format.MessageToString(_LAYOUT).encode()
            await store.create(path, value, make_parents=True)
        except (RecordExistsError, OutcomeUnknownError):
            continue


class Check(Enum):
    """The checks of all ledgers whose last start is recorded; the value names the record."""

    LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark: a check at `since_ms` found that the `missing` bookies lack entries."""

    ledger_id: int
    missing: tuple[str, ...]
    since_ms: int | None
    version: int
    created_txid: int


@dataclass(frozen=True, slots=True)
class Lock:
    holder: str  # the name in the lock
    ours: bool  # held by this session, under our name


class Underreplication:
    """The records of one cluster; `owner` is the name that this process writes into its locks."""

    def __init__(self, store: MetadataStore, paths: LedgerPaths, owner: str) -> None:
        self.store = store
        self.paths = paths
        self._owner = owner
        self._root = paths.underreplication

    # -- marks

    async def check_layout(self) -> None:
        """Raise LayoutError if the layout of the marks is unknown."""
        record = await self.store.get(f"{self._root}/LAYOUT")
        if record is None:
            return
        layout = LedgerRereplicationLayoutFormat()
        try:
            text_format.Parse(record.value.decode(), layout)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise LayoutError(f"{self._root}/LAYOUT does not parse: {error}") from error
        if (layout.type, layout.version) != ("BASIC", 1):
            raise LayoutError(
                f"the layout of underreplicated ledgers is {layout.type} {layout.version}, and this"
                " release knows BASIC 1"
            )

    async def mark(self, ledger_id: int, missing: Sequence[str], now_ms: int) -> None:
        """Mark that these bookies lack entries of the ledger; add them to an existing mark."""
        await mark_under_replicated(self.store, self.paths, ledger_id, missing, now_ms)

    async def read_mark(self, ledger_id: int) -> Mark | None:
        record = await self.store.get(mark_path(self.paths, ledger_id))
        if record is None:
            return None
        message = UnderreplicatedLedgerFormat()
        # A mark that does not parse names no bookies, but the ledger is still marked.
        with suppress(text_format.ParseError, UnicodeDecodeError):
            text_format.Parse(record.value.decode(), message)
        return Mark(
            ledger_id,
            tuple(message.replica),
            message.ctime if message.HasField("ctime") else None,
            record.stat.version,
            record.stat.created_txid,
        )

    async def marked_ledgers(self) -> AsyncIterator[int]:
        """Yield the ids of all marked ledgers, ascending."""
        async for ledger_id in self._below(f"{self._root}/ledgers", _DEPTH):
            yield ledger_id

    async def _below(self, path: str, depth: int) -> AsyncIterator[int]:
        for name in await self.store.get_children(path) or []:
            if depth and _PIECE.fullmatch(name):
                async for ledger_id in self._below(f"{path}/{name}", depth - 1):
                    yield ledger_id
            elif not depth and (found := _MARK_NAME.fullmatch(name)):
                ledger_id = int(found[1])
                # A record at any other path is no mark: it could never be resolved.
                if ledger_id <= _LEDGER_ID_MAX and mark_path(self.paths, ledger_id) == (
                    f"{path}/{name}"
                ):
                    yield ledger_id

    async def resolve(self, mark: Mark) -> bool:
        """Remove a repaired ledger's mark; keep it and return False if it was marked again."""
        path = mark_path(self.paths, mark.ledger_id)
        while True:
            record = await self.store.get(path)
            if record is None:
                return True
            if record.stat.created_txid != mark.created_txid:
                return False  # A new mark at this path may have the same version.
            # Under the version that was read *before* the repair began: a finding of the meantime
            # has changed the version, and its mark stays.
            try:
                await self.store.delete(path, mark.version)
            except VersionConflictError:
                return False
            except (NoRecordError, OutcomeUnknownError):
                continue
            await self._prune(path)
            return True

    async def _prune(self, path: str) -> None:
        for _ in range(_DEPTH):
            path = path.rpartition("/")[0]
            try:
                await self.store.delete(path, ANY)
            except MetadataError:
                return  # It is not empty, or the store failed: an empty directory is harmless.

    # -- locks

    def _lock(self, ledger_id: int) -> str:
        return f"{self._root}/locks/urL{ledger_id:010d}"

    async def lock(self, ledger_id: int) -> bool:
        """Lock the ledger; return False if another worker holds its lock."""
        path, value = self._lock(ledger_id), self._lock_value()
        await self._ensure(f"{self._root}/locks", b"")
        while True:
            try:
                await self.store.create(path, value, ephemeral=True)
            except OutcomeUnknownError:
                continue  # If the create succeeded, the next one finds this process's lock.
            except RecordExistsError:
                record = await self.store.get(path)
                if record is None:
                    continue
                return self._is_ours(record)
            return True

    def _lock_value(self) -> bytes:
        return text_format.MessageToString(LockDataFormat(bookieId=self._owner)).encode()

    def _is_ours(self, lock: Record) -> bool:
        """Return True if this session holds it; a lock of an older session ends by itself."""
        return lock.stat.owner == self.store.session_id and lock.value == self._lock_value()

    async def release(self, ledger_id: int) -> None:
        """Release the lock if this session holds it; leave any other lock."""
        path = self._lock(ledger_id)
        while True:
            record = await self.store.get(path)
            if record is None or not self._is_ours(record):
                return
            try:
                await self.store.delete(path, record.stat.version)
            except (NoRecordError, VersionConflictError, OutcomeUnknownError):
                continue
            return

    async def locks(self) -> dict[int, Lock]:
        """Return all locks by ledger id."""
        locks: dict[int, Lock] = {}
        for name in await self.store.get_children(f"{self._root}/locks") or []:
            record = await self.store.get(f"{self._root}/locks/{name}")
            found = _MARK_NAME.fullmatch(name)
            if record is None or found is None:
                continue
            lock = LockDataFormat()
            with suppress(text_format.ParseError, UnicodeDecodeError):
                text_format.Parse(record.value.decode(), lock)
            locks[int(found[1])] = Lock(lock.bookieId, self._is_ours(record))
        return locks

    # -- pause and resume

    async def is_paused(self, watch: Watch | None = None) -> bool:
        return await self.store.get(f"{self._root}/disable", watch) is not None

    async def pause(self) -> None:
        """Pause auto-recovery: no audit or copy starts from now on, and running ones end soon."""
        await self._ensure(f"{self._root}/disable", b"")

    async def resume(self) -> None:
        await self._remove(f"{self._root}/disable")

    # -- the delay; writing it also requests an audit

    async def lost_delay_s(self, watch: Watch | None = None) -> int | None:
        """Return the delay before one missing bookie counts as lost; None if it is not set."""
        record = await self.store.get(f"{self._root}/lostBookieRecoveryDelay", watch)
        if record is None:
            return None
        text = record.value.decode(errors="replace").strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= _DELAY_DIGITS_MAX):
            raise MalformedRecordError(f"the delay for lost bookies is {text[:20]!r}")
        return int(text)

    async def set_lost_delay_s(self, seconds: int) -> None:
        """Set the delay.  With any value, the auditor also checks all bookies immediately."""
        assert 0 <= seconds < 10**_DELAY_DIGITS_MAX
        path, value = f"{self._root}/lostBookieRecoveryDelay", b"%d" % seconds
        while True:
            await self._ensure(path, value)
            try:
                await self.store.set(path, value, ANY)
            except (NoRecordError, OutcomeUnknownError):
                continue  # Writing the same value twice costs one extra audit.
            return

    async def request_audit(self) -> None:
        """Request an audit now; the delay stays as it is."""
        try:
            seconds = await self.lost_delay_s()
        except MalformedRecordError:
            seconds = None
        await self.set_lost_delay_s(LOST_DELAY_S if seconds is None else seconds)
        if seconds is None:  # No delay was set: leave none behind.
            await self._remove(f"{self._root}/lostBookieRecoveryDelay")

    # -- the last checks

    async def check_began_ms(self, check: Check) -> int | None:
        """Return when that check last began; None if never."""
        record = await self.store.get(f"{self._root}/{check.value}")
        if record is None:
            return None
        message = CheckTimeFormat()
        try:
            message.ParseFromString(record.value)
            check_readable(message)
        except (DecodeError, WireError) as error:
            raise MalformedRecordError(f"{check.value}: {error}") from error
        return message.ctime if message.HasField("ctime") else None

    async def set_check_began_ms(self, check: Check, now_ms: int) -> None:
        path = f"{self._root}/{check.value}"
        value = CheckTimeFormat(ctime=now_ms).SerializeToString()
        while True:
            await self._ensure(path, value)
            try:
                await self.store.set(path, value, ANY)
            except (NoRecordError, OutcomeUnknownError):
                continue
            return

    async def _ensure(self, path: str, value: bytes) -> None:
        while await self.store.get(path) is None:
            try:
                await self.store.create(path, value, make_parents=True)
            except (RecordExistsError, OutcomeUnknownError):
                continue

    async def _remove(self, path: str) -> None:
        while True:
            try:
                await self.store.delete(path, ANY)
            except OutcomeUnknownError:
                continue
            except NoRecordError:
                return
            return


class PauseWatcher:
    """The pause state of auto-recovery, cached under one watch."""

    def __init__(self, underreplication: Underreplication) -> None:
        self.on_change: Callable[[], None] | None = None  # called when the state may have changed
        self._underreplication = underreplication
        self._paused: bool | None = None  # None: read it again
        self._changed = trio.Event()

    async def is_paused(self) -> bool:
        while self._paused is None:
            changed = self._changed = trio.Event()
            paused = await self._underreplication.is_paused(self._handle_change)
            if not changed.is_set():  # A change before the answer makes the answer stale.
                self._paused = paused
        return self._paused

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def _handle_change(self) -> None:
        self._paused = None
        self._changed.set()
        if self.on_change is not None:
            self.on_change()
