"""Recover ledgers: the shell of `RecoverProtocol`.

A recovery writes to the metadata twice: IN_RECOVERY before anything else, and at the end CLOSED
with the last entry and all ensemble changes.  It may be cancelled, or fail, anywhere in between.

A recovery fences the ledger, after which the writer cannot continue; if too few bookies answer, it
cannot close the ledger either.  `can_recover` tests this without fencing, for callers that may as
well wait.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, assert_never

import trio

from daybook.bookie.errors import (
    LedgerError,
    NoSuchLedgerError,
    RecoveryAbortedError,
    UnauthorizedError,
)
from daybook.bookie.ledger.bookie_client import LedgerChannel, Purpose
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import StoredMetadata, UpdateResult
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble, Fragment
from daybook.bookie.ledger.protocol.read import Verdict
from daybook.bookie.ledger.protocol.recover import (
    Abort,
    CloseLedger,
    Drop,
    Effect,
    Fence,
    FencingRead,
    LastEntry,
    RecoverProtocol,
)
from daybook.bookie.ledger.protocol.update import (
    Gone,
    NotAllowed,
    NotDone,
    Settled,
    close_by_recovery,
    mark_in_recovery,
)
from daybook.bookie.ledger.protocol.write import ChangeEnsemble, Confirm, Send
from daybook.bookie.ledger.reader import digester_of, verdict_of
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.bookie.registry.cookies import CookieGeneration
from daybook.wire.digest import master_key
from daybook.wire.entry import Entry, decode_entry, encode_header
from daybook.wire.errors import WireError
from daybook.wire.messages.bookie import LAST_ENTRY, Status, encode_add_header
from daybook.wire.metadata.store import MetadataError, StoreUnavailableError
from daybook.wire.transport import Buffer

MakeProtocol: TypeAlias = Callable[[LedgerMetadata, int], RecoverProtocol]
ProtocolInput: TypeAlias = Callable[[], list[Effect]]  # a call of a method of the protocol


def default_protocol(metadata: LedgerMetadata, reads_max: int) -> RecoverProtocol:
    """Return the protocol for metadata that were just marked IN_RECOVERY."""
    return RecoverProtocol(metadata.quorums, metadata.fragments, reads_max=reads_max)


async def recover_ledger(
    context: LedgerContext,
    ledger_id: int,
    stored: StoredMetadata,
    make_protocol: MakeProtocol = default_protocol,
    *,
    on_last_entry: Callable[[Entry], None] | None = None,
) -> StoredMetadata:
    """Fence, recover and close the ledger; return the metadata of the closed ledger.

    `on_last_entry` is called with the last entry of the ledger if the recovery came to see it.

    Raise RecoveryAbortedError if the last entry cannot be determined now.
    """
    for _ in range(context.limits.recovery_attempts):
        marked = _stored(
            ledger_id, await context.metadata_store.update(ledger_id, stored, mark_in_recovery)
        )
        if marked.metadata.closed:
            return marked  # Another recovery, or the writer itself, has closed the ledger.
        attempt = Recovery(context, ledger_id, marked, make_protocol)
        try:
            end = await attempt.run()
        finally:
            attempt.close()
        # Only over the version that was marked: the fragments read and fenced are those of it.
        decide = close_by_recovery(marked.version, end.last_entry_id, end.length, end.changes)
        generations = attempt.generations_in(end.changes)
        result = await context.metadata_store.update(ledger_id, marked, decide, generations)
        if isinstance(result, NotAllowed):
            # The metadata changed since the mark: a copy was moved, or a bookie that took recovered
            # entries has lost its disks.  The result is about other metadata; recover again.
            stored = StoredMetadata(result.metadata, result.version)
            continue
        closed = _stored(ledger_id, result)
        last = attempt.seen(closed.metadata.last_entry_id)
        if last is not None and on_last_entry is not None:
            on_last_entry(last)
        return closed
    raise RecoveryAbortedError(
        f"the metadata of ledger {ledger_id} keep changing during its recovery: try again"
    )


def _stored(ledger_id: int, result: UpdateResult) -> StoredMetadata:
    match result:
        case Settled(metadata, version) | NotAllowed(metadata, version):
            return StoredMetadata(metadata, version)
        case Gone():
            raise NoSuchLedgerError(ledger_id)
        case NotDone():
            raise StoreUnavailableError(
                f"ledger {ledger_id} could not be recovered, because the metadata store does not"
                " answer: try again"
            )
        case _:
            assert_never(result)


class Recovery:
    """One attempt, based on one version of the metadata."""

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        marked: StoredMetadata,
        make_protocol: MakeProtocol = default_protocol,
    ) -> None:
        metadata = marked.metadata
        self._context = context
        self._ledger_id = ledger_id
        self._digester = digester_of(metadata)
        self._master_key = master_key(metadata.password or b"")
        self._protocol = make_protocol(metadata, context.limits.recovery_reads_max)
        self._channels: dict[BookieId, LedgerChannel] = {}
        self._generations: dict[BookieId, CookieGeneration] = {}  # generations of the new members
        self._entries: dict[int, Entry] = {}
        self._frames: dict[int, list[Buffer]] = {}
        self._held_bytes = 0  # payloads in `_frames`: the share in `BookieClient.held_bytes`
        self._last_entries: dict[int, Entry] = {}  # the last entries of bookies
        self._inbox: deque[ProtocolInput] = deque()
        self._failed: set[BookieId] = set()  # bookies that rejected a recovered entry
        self._stepping = False
        self._ended = trio.Event()
        self._end: CloseLedger | None = None
        self._error: LedgerError | None = None

    async def run(self) -> CloseLedger:
        """Return the end of the ledger, or raise the error that ended the attempt."""
        self._handle(self._protocol.start)
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._end is not None
        return self._end

    def generations_in(self, changes: Sequence[Fragment]) -> list[CookieGeneration]:
        """Return the cookie generations of the bookies that the changes added to the ledger.

        Each was read before the bookie was sent its first entry.  The closing write checks them: a
        bookie with a new generation has lost its disks, and the entries on them.
        """
        named = {bookie for fragment in changes for bookie in fragment.ensemble}
        return [generation for bookie, generation in self._generations.items() if bookie in named]

    def seen(self, entry_id: int) -> Entry | None:
        """Return an entry if it is the last one of a bookie, or the last that was recovered."""
        return self._last_entries.get(entry_id)

    def close(self) -> None:
        """End the attempt, and close its channels."""
        self._ended.set()
        for channel in self._channels.values():
            channel.close()
        self._entries.clear()
        self._frames.clear()
        self._hold(-self._held_bytes)

    # -- answers of bookies

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        self._handle(partial(self._protocol.added, bookie, first, count))

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        self._failed.add(bookie)
        self._handle(partial(self._protocol.add_failed, bookie))

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        # A bookie refuses a recovery add only if the ledger was deleted there or has another key.
        self.add_failed(bookie, f"it answered {status.name}")

    def _fenced(self, bookie: BookieId, status: Status | None, buffer: memoryview) -> None:
        last: LastEntry | None = None
        fenced = verdict_of(status) is Verdict.ABSENT
        if status is Status.UNAUTHORIZED:
            self._fail(
                UnauthorizedError(
                    f"bookie {bookie} rejected the key of ledger {self._ledger_id}: the ledger has"
                    " another password"
                )
            )
        elif status is Status.OK:
            fenced = True
            try:
                entry = decode_entry(buffer, self._digester, self._ledger_id, None)
                last = LastEntry(entry.entry_id, entry.lac, entry.length)
                self._last_entries[entry.entry_id] = entry
                self._entries.setdefault(entry.entry_id, entry)  # It is not read again.
            except WireError:
                pass  # The bookie has fenced, but its last entry is damaged and proves no LAC.
        self._handle(partial(self._protocol.fence_answered, bookie, fenced, last))

    def _read(
        self, bookie: BookieId, entry_id: int, status: Status | None, buffer: memoryview
    ) -> None:
        # A second copy of a decided entry is not even decoded.
        if self._ended.is_set() or not self._protocol.wants(entry_id):
            return
        verdict, length = verdict_of(status), 0
        if status is Status.OK:
            try:
                entry = decode_entry(buffer, self._digester, self._ledger_id, entry_id)
            except WireError:
                verdict = Verdict.UNKNOWN  # The bookie has the entry, but its copy is damaged.
            else:
                verdict, length = Verdict.FOUND, entry.length
                self._entries[entry_id] = entry
        self._handle(partial(self._protocol.read_answered, bookie, entry_id, verdict, length))

    # -- effects

    def _handle(self, protocol_input: ProtocolInput) -> None:
        """Give the protocol an input and perform its effects.

        An input that an effect brings about waits in the inbox: the effects of one input are never
        interleaved with those of another.
        """
        self._inbox.append(protocol_input)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox and not self._ended.is_set():
                protocol_input = self._inbox.popleft()
                for effect in protocol_input():
                    self._perform(effect)
        finally:
            self._stepping = False

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Fence(bookies):
                for bookie in bookies:
                    self._fence(bookie)
            case FencingRead(bookie, first, count):
                for entry_id in range(first, first + count):
                    callback = partial(self._read, bookie, entry_id)
                    self._channel(bookie).read(entry_id, callback, fence_key=self._master_key)
            case Send(first, count, to):
                self._send(first, count, to)
            case Confirm(first, count):
                # An ack quorum holds these entries: only the last one is of use to anybody.
                self._last_entries = {first + count - 1: self._entries[first + count - 1]}
                for entry_id in range(first, first + count):
                    self._hold(-len(self._entries[entry_id].payload))
                    del self._entries[entry_id], self._frames[entry_id]
            case Drop(entry_id):
                del self._entries[entry_id]
            case ChangeEnsemble(_, failed):
                directory, protocol = self._context.directory, self._protocol
                ensemble = directory.replace(
                    protocol.ensemble, failed, protocol.quorums, refused_by=self._failed
                )
                if ensemble:
                    self._context.nursery.start_soon(self._change_to, ensemble)
                else:
                    self._handle(self._protocol.change_postponed)
            case CloseLedger():
                self._end = effect
                self._ended.set()
            case Abort(reason):
                self._fail(RecoveryAbortedError(f"ledger {self._ledger_id}: {reason}"))
            case _:
                assert_never(effect)

    async def _change_to(self, ensemble: Ensemble) -> None:
        """Use the new ensemble once the cookie generations of its new members are known.

        The change itself is published only by the closing write (`protocol.recover`).
        """
        newcomers = [b for b in ensemble if b not in self._protocol.ensemble]
        try:
            generations = await self._context.metadata_store.generations_of(newcomers)
        except MetadataError:
            self._handle(self._protocol.change_postponed)
            return
        # A bookie may be added twice: the generation at its first entry is the one that counts.
        for generation in generations:
            self._generations.setdefault(BookieId(generation.bookie_id), generation)
        self._handle(partial(self._protocol.ensemble_changed, ensemble))

    def _fail(self, error: LedgerError) -> None:
        self._error = self._error or error
        self._ended.set()

    def _fence(self, bookie: BookieId) -> None:
        callback = partial(self._fenced, bookie)
        self._channel(bookie).read(LAST_ENTRY, callback, fence_key=self._master_key)

    def _send(self, first: int, count: int, to: Ensemble) -> None:
        for entry_id in range(first, first + count):
            frame = self._frames.get(entry_id) or self._frame(entry_id)
            for bookie in to:
                self._channel(bookie).add(entry_id, frame)

    def _frame(self, entry_id: int) -> list[Buffer]:
        """Frame the entry with its original payload and length, and the LAC found at the start.

        The digest covers the LAC, so it is computed again.
        """
        entry = self._entries[entry_id]
        payload = [entry.payload]
        header = encode_header(
            self._ledger_id, entry_id, self._protocol.lac, entry.length, self._digester, payload
        )
        size = len(header) + len(entry.payload)
        head = encode_add_header(self._master_key, size, recovery=True, high_priority=True)
        frame = self._frames[entry_id] = [head + header, entry.payload]
        self._hold(len(entry.payload))
        return frame

    def _hold(self, size: int) -> None:
        """Count payload bytes that are kept until the entries are confirmed."""
        self._held_bytes += size
        self._context.bookies.held_bytes += size

    def _channel(self, bookie: BookieId) -> LedgerChannel:
        channel = self._channels.get(bookie)
        if channel is None:
            channel = self._channels[bookie] = self._context.bookies.open_channel(
                bookie, self._ledger_id, Purpose.RECOVER, self
            )
        return channel


async def can_recover(context: LedgerContext, writer: LedgerWriter) -> bool:
    """Return True if a recovery of this ledger would now find its last entry; fence nothing.

    The bookies are asked for the entry after the last one sent.  Enough of them have to answer that
    they do not have it: the others cannot confirm an entry then, and the earlier entries are
    certainly present or absent.  A bookie that lost records answers 'unknown' and does not count.

    Raise LedgerError or MetadataError if the metadata cannot be read.
    """
    metadata = (await context.metadata_store.read(writer.ledger_id)).metadata
    if metadata.closed:
        return True
    ensemble, quorums = metadata.last_fragment.ensemble, metadata.quorums
    absent: set[int] = set()
    unheard = len(ensemble)
    decided = trio.Event()

    def handle_answer(position: int, status: Status | None, entry: Buffer) -> None:
        nonlocal unheard
        unheard -= 1
        if verdict_of(status) is Verdict.ABSENT:
            absent.add(position)
        if not unheard or quorums.is_covered(absent):
            decided.set()

    behind = writer.last_add_pushed + 1
    for position, bookie in enumerate(ensemble):
        context.bookies.read(bookie, writer.ledger_id, behind, partial(handle_answer, position))
    await decided.wait()
    return quorums.is_covered(absent)
