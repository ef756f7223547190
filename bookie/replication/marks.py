"""What lacks copies, as the metadata store keeps it: BookKeeper's own records, for both workers.

    <root>/underreplication
      LAYOUT                                   which layout this is
      ledgers/hhhh/hhhh/hhhh/hhhh/urL<id>      a mark: which bookies lack entries, since when
      locks/urL<id>                            ephemeral: somebody works on it
      disable                                  present while auto-recovery is paused
      lostBookieRecoveryDelay                  seconds, as text; writing it also asks for an audit
      checkallledgersctime (and two more)      when a check of everything was last begun

A mark is removed under the version that was read *before* the work on it began: whoever marks the
ledger again meanwhile has the mark stay.  A lock only saves work: what two workers do at once is
safe, and a lock goes with the session of its owner.  As that may last for months, and a lock may
come about, or stay, without an answer, its owner looks for what it holds and does not work on.

Here nothing is taken for done that has no answer: `MetadataError` passes through, and every call
may be repeated.
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
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.underreplication import mark_path, mark_under_replicated
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.replication.limits import ReplicationLimits
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
_USUAL = ReplicationLimits()


class Check(Enum):
    """The checks of everything whose last beginning is kept; the value names the record."""

    LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


@dataclass(frozen=True, slots=True)
class Mark:
    """`missing` lack entries of the ledger, as somebody found who looked at `since_ms`."""

    ledger_id: int
    missing: tuple[BookieId, ...]
    since_ms: int | None
    version: int
    created_txid: int


@dataclass(frozen=True, slots=True)
class Lock:
    holder: str  # as it says
    ours: bool  # of this session, and of who asks


class Marks:
    """The records of one cluster; `who` is what a lock says of its owner."""

    def __init__(self, store: MetadataStore, paths: LedgerPaths, who: str) -> None:
        self.store = store
        self.paths = paths
        self._who = who
        self._root = paths.underreplication

    # -- marks

    async def check_layout(self) -> None:
        """LayoutError if marks are kept in a way that we do not know."""
        record = await self.store.get(f"{self._root}/LAYOUT")
        if record is None:
            return
        layout = LedgerRereplicationLayoutFormat()
        try:
            text_format.Parse(record.value.decode(), layout)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise LayoutError(f"{self._root}/LAYOUT does not parse: {error}") from error
        if (layout.type, layout.version) != ("BASIC", 1):
            raise LayoutError(f"marks are kept as {layout.type} {layout.version}, not BASIC 1")

    async def mark(self, ledger_id: int, missing: Sequence[BookieId], now_ms: int) -> None:
        """Say that these bookies lack entries of the ledger; adds to a mark that is there."""
        await mark_under_replicated(self.store, self.paths, ledger_id, missing, now_ms)

    async def read(self, ledger_id: int) -> Mark | None:
        record = await self.store.get(mark_path(self.paths, ledger_id))
        if record is None:
            return None
        message = UnderreplicatedLedgerFormat()
        # One that does not parse says nothing of whom; that there is a mark is what matters.
        with suppress(text_format.ParseError, UnicodeDecodeError):
            text_format.Parse(record.value.decode(), message)
        return Mark(
            ledger_id,
            tuple(map(BookieId, message.replica)),
            message.ctime if message.HasField("ctime") else None,
            record.stat.version,
            record.stat.created_txid,
        )

    async def list(self) -> AsyncIterator[int]:
        """The ids of all marked ledgers, ascending."""
        async for ledger_id in self._below(f"{self._root}/ledgers", _DEPTH):
            yield ledger_id

    async def _below(self, path: str, depth: int) -> AsyncIterator[int]:
        for name in await self.store.get_children(path) or []:
            if depth and _PIECE.fullmatch(name):
                async for ledger_id in self._below(f"{path}/{name}", depth - 1):
                    yield ledger_id
            elif not depth and (found := _MARK_NAME.fullmatch(name)):
                ledger_id = int(found[1])
                # Anything else at that place is nobody's mark: it could never be resolved.
                if ledger_id <= _LEDGER_ID_MAX and mark_path(self.paths, ledger_id) == (
                    f"{path}/{name}"
                ):
                    yield ledger_id

    async def resolve(self, mark: Mark) -> bool:
        """Remove a mark whose ledger is whole.  False if it was marked again: it stays."""
        path = mark_path(self.paths, mark.ledger_id)
        while True:
            record = await self.store.get(path)
            if record is None:
                return True
            if record.stat.created_txid != mark.created_txid:
                return False  # Another mark at the same place, which may have the same version.
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
                return  # Not empty, or not now: an empty directory does no harm.

    # -- locks

    def _lock(self, ledger_id: int) -> str:
        return f"{self._root}/locks/urL{ledger_id:010d}"

    async def lock(self, ledger_id: int) -> bool:
        """False if somebody else works on the ledger."""
        path, value = self._lock(ledger_id), self._lock_value()
        await self._ensure(f"{self._root}/locks", b"")
        while True:
            try:
                await self.store.create(path, value, ephemeral=True)
            except OutcomeUnknownError:
                continue
            except RecordExistsError:
                record = await self.store.get(path)
                if record is None:
                    continue
                return self._is_ours(record)
            return True

    def _lock_value(self) -> bytes:
        return text_format.MessageToString(LockDataFormat(bookieId=self._who)).encode()

    def _is_ours(self, lock: Record) -> bool:
        """Of this session: one that we held in another one ends by itself."""
        return lock.stat.owner == self.store.session_id and lock.value == self._lock_value()

    async def release(self, ledger_id: int) -> None:
        """Give back a lock of this session; one that is not ours stays."""
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

    async def locked(self) -> dict[int, Lock]:
        """Who works on which ledger, as the locks say."""
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

    # -- the switch

    async def is_paused(self, watch: Watch | None = None) -> bool:
        return await self.store.get(f"{self._root}/disable", watch) is not None

    async def pause(self) -> None:
        """Nothing is audited or copied from now on; what is under way ends soon."""
        await self._ensure(f"{self._root}/disable", b"")

    async def resume(self) -> None:
        await self._remove(f"{self._root}/disable")

    # -- the delay, which is also how an audit is asked for

    async def delay_s(self, watch: Watch | None = None) -> int | None:
        """How long one lost bookie is waited for; None if nobody has said so."""
        record = await self.store.get(f"{self._root}/lostBookieRecoveryDelay", watch)
        if record is None:
            return None
        text = record.value.decode(errors="replace").strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= _DELAY_DIGITS_MAX):
            raise MalformedRecordError(f"the delay for lost bookies is {text[:20]!r}")
        return int(text)

    async def set_delay_s(self, seconds: int) -> None:
        """Whatever the value: the auditor looks at all bookies at once."""
        assert 0 <= seconds < 10**_DELAY_DIGITS_MAX
        path, value = f"{self._root}/lostBookieRecoveryDelay", b"%d" % seconds
        while True:
            await self._ensure(path, value)
            try:
                await self.store.set(path, value, ANY)
            except (NoRecordError, OutcomeUnknownError):
                continue  # Twice the same value is one audit more.
            return

    async def trigger(self) -> None:
        """Ask the auditor to look now; how long one is waited for stays as it is."""
        try:
            seconds = await self.delay_s()
        except MalformedRecordError:
            seconds = None
        await self.set_delay_s(int(_USUAL.lost_delay_s) if seconds is None else seconds)
        if seconds is None:  # Nobody has said anything, and we do not either.
            await self._remove(f"{self._root}/lostBookieRecoveryDelay")

    # -- when everything was checked

    async def checked_ms(self, check: Check) -> int | None:
        """When that check was begun last; None if never."""
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

    async def set_checked_ms(self, check: Check, now_ms: int) -> None:
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


class Switch:
    """Whether auto-recovery is paused, with one watch however often it is asked."""

    def __init__(self, marks: Marks) -> None:
        self.changed: Callable[[], None] | None = None  # called when it may have been switched
        self._marks = marks
        self._paused: bool | None = None  # None: look
        self._moved = trio.Event()

    async def is_paused(self) -> bool:
        while self._paused is None:
            moved = self._moved = trio.Event()
            paused = await self._marks.is_paused(self._look_again)
            if not moved.is_set():  # else it was switched before the answer was here
                self._paused = paused
        return self._paused

    async def wait_changed(self) -> None:
        await self._moved.wait()

    def _look_again(self) -> None:
        self._paused = None
        self._moved.set()
        if self.changed is not None:
            self.changed()
