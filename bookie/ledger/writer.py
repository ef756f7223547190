"""Appends entries to one ledger: the shell of `WriteProtocol`.

`append` is synchronous and returns the id of the entry; that it is confirmed is told later to the
listener, in order, in runs.  What is appended in one turn of the loop leaves together.  An entry is
framed once; its buffers are shared by all bookies, and are let go when the entry is confirmed and
every connection has sent it.  So whoever appends must not change them, and bounds what is pending
by `pending_bytes`.

When the writer withdraws (another client recovers the ledger, or the ledger is gone) the listener
is told once; whatever was not confirmed is in doubt.  `close` and `abandon` are the owner's own
doing: the listener hears nothing of them, `wait_confirmed` ends with InDoubtError.

FROM waiters: Who waits until the entries of a ledger have got that far.

FROM changes: What a writer changes in the metadata of its ledger.

A change that did not happen, or of which nobody knows, leaves the ledger as the writer knows it:
trying again is safe (`catalog.update`).  A ledger that somebody else closed, or recovers, is no
longer the writer's, and no change of it is made.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, assert_never

import trio

from daybook.bookie.errors import (
    EntryTooLargeError,
    InDoubtError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    WriterWithdrawnError,
)
from daybook.bookie.ledger.bookie_client import LedgerChannel, Purpose
from daybook.bookie.ledger.codecs import AddBatch
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState, encode_metadata
from daybook.bookie.ledger.metadata_store import StoredMetadata, UpdateResult
from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId, Ensemble, Fragment
from daybook.bookie.ledger.protocol.update import (
    Gone,
    NotAllowed,
    NotDone,
    Settled,
    change_ensemble,
    close_by_writer,
)
from daybook.bookie.ledger.protocol.write import (
    Added,
    AddFailed,
    Append,
    BookieReturned,
    ChangeEnsemble,
    ChangePostponed,
    Confirm,
    Effect,
    EnsembleChanged,
    Event,
    Refused,
    Send,
    SpareFound,
    Starved,
    Stop,
    Withdraw,
    WriteProtocol,
)
from daybook.bookie.ledger.reader import digester_of, read_entries
from daybook.wire.digest import master_key
from daybook.wire.entry import ENTRY_HEADER_BYTES, Entry
from daybook.wire.messages.bookie import Status, encode_adds
from daybook.wire.metadata.store import OutcomeUnknownError, StoreUnavailableError
from daybook.wire.transport import Buffer


class ConfirmationWaiters:
    """Tasks that each wait for one entry; nothing is kept for entries that nobody waits for."""

    def __init__(self) -> None:
        self._events: dict[int, list[trio.Event]] = {}

    async def wait(self, entry_id: int) -> None:
        """Return when the entry is `reached`, or nobody can wait any more: look which."""
        event = trio.Event()
        events = self._events.setdefault(entry_id, [])
        events.append(event)
        try:
            await event.wait()
        except trio.Cancelled:
            events.remove(event)
            if not events and self._events.get(entry_id) is events:
                del self._events[entry_id]
            raise

    def reached(self, first: int, last: int) -> None:
        if self._events:
            for entry_id in range(first, last + 1):
                for event in self._events.pop(entry_id, ()):
                    event.set()

    def release_all(self) -> None:
        for events in self._events.values():
            for event in events:
                event.set()
        self._events.clear()


class ChangeListener(Protocol):
    """What a writer is told of a change of its ensemble."""

    def ensemble_changed(self, event: EnsembleChanged | ChangePostponed) -> None: ...

    def refused(self, error: LedgerError) -> None:
        """The ledger is no longer the writer's."""
        ...

    def try_again(self) -> None:
        """Some time after a change that was postponed."""
        ...


class Changes:
    """Of one ledger, as long as its writer lives."""

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        stored: StoredMetadata,
        listener: ChangeListener,
    ) -> None:
        self.stored = stored
        self._context = context
        self._ledger_id = ledger_id
        self._listener = listener
        self._lock = trio.Lock()  # one change at a time
        self._scopes: dict[trio.CancelScope, None] = {}  # of changes that are under way

    async def change_ensemble(self, wanted: Fragment) -> None:
        """Let the ledger go on with this fragment; the listener hears what became of it."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            async with self._lock:
                previous = self.stored.metadata.last_fragment
                result = await self._context.metadata_store.update(
                    self._ledger_id, self.stored, change_ensemble(previous, wanted)
                )
                self.ended(wanted, result)
            if isinstance(result, NotDone):
                await trio.sleep(self._context.limits.change_retry_s)
                self._listener.try_again()
        del self._scopes[scope]

    def ended(self, wanted: Fragment, result: UpdateResult) -> None:
        match result:
            case Settled(metadata, version):
                self.stored = StoredMetadata(metadata, version)
                self._listener.ensemble_changed(EnsembleChanged(wanted.ensemble))
            case NotAllowed(metadata, version):
                self.stored = StoredMetadata(metadata, version)
                self._listener.refused(LedgerFencedError(self._lost(metadata)))
            case Gone():
                self._listener.refused(NoSuchLedgerError(self._ledger_id))
            case NotDone():
                self._listener.ensemble_changed(ChangePostponed())
            case _:
                assert_never(result)

    async def close(self, last_entry_id: int, length: int) -> None:
        """End the ledger there; errors as `LedgerWriter.close` has them."""
        result: UpdateResult | None = None
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            try:
                async with self._lock:
                    result = await self._context.metadata_store.update(
                        self._ledger_id, self.stored, close_by_writer(last_entry_id, length)
                    )
            finally:
                del self._scopes[scope]
        match result:
            case None:
                raise OutcomeUnknownError(f"ledger {self._ledger_id} was given up while it closed")
            case Settled(metadata, version):
                self.stored = StoredMetadata(metadata, version)
            case NotAllowed(metadata):
                raise LedgerFencedError(self._lost(metadata))
            case Gone():
                raise NoSuchLedgerError(self._ledger_id)
            case NotDone():
                raise StoreUnavailableError(f"ledger {self._ledger_id} could not be closed")
            case _:
                assert_never(result)

    def cancel(self) -> None:
        """Let go of what is under way; whether it happens, nobody knows."""
        for scope in self._scopes:
            scope.cancel()

    def _lost(self, metadata: LedgerMetadata) -> str:
        if metadata.state is LedgerState.OPEN:
            return f"somebody else changed ledger {self._ledger_id}"
        return f"ledger {self._ledger_id} is {metadata.state.name}: another client took it over"


_PIECE_BYTES = 256 << 10
_PIECE_ENTRIES = 1024


class LedgerWriter:
    """The only writer of a ledger.  Made by `LedgerClient.create`."""

    purpose = Purpose.ADD

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        stored: StoredMetadata,
        missing: Sequence[BookieId] = (),
    ) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = NO_ENTRY
        self.last_add_pushed = NO_ENTRY
        self.length = 0  # payload bytes that are confirmed
        self.pending_bytes = 0
        self._context = context
        self._digester = digester_of(stored.metadata)
        self._payload_bytes_max = context.limits.bookies.entry_bytes_max - (
            ENTRY_HEADER_BYTES + self._digester.size
        )
        self._master_key = master_key(stored.metadata.password or b"")
        ensemble = stored.metadata.last_fragment.ensemble
        self._protocol = WriteProtocol(ensemble, stored.metadata.quorums, missing=missing)
        self._channels: dict[BookieId, LedgerChannel] = {}
        self._frames: deque[list[Buffer]] = deque()  # of entries that were sent, behind the LAC
        self._lengths: deque[int] = deque()  # of the ledger, up to each of these
        self._gathered: list[Sequence[Buffer]] = []  # payloads that leave with the next flush
        self._gathered_lengths: list[int] = []
        self._pushed_length = 0
        self._inbox: deque[Event] = deque()
        self._stepping = False
        self._error: LedgerError | None = None
        self._owner_is_done = False
        self._confirmed: Callable[[int, int], None] | None = None
        self._withdrawn: Callable[[LedgerError], None] | None = None
        self._waiters = ConfirmationWaiters()
        self._changes = Changes(context, ledger_id, stored, self)
        self._metadata_bytes = 0  # as they were when the ensemble changed last
        self._marked: set[BookieId] = set()  # as lacking entries
        context.directory.add_listener(self.try_again)
        self._mark_missing()

    @property
    def metadata(self) -> LedgerMetadata:
        return self._changes.stored.metadata

    @property
    def crowded(self) -> bool:
        """Ensemble changes fill half of the metadata that a ledger may have: a new one is better.

        At three quarters the writer withdraws, so that recovery finds room to close the ledger.
        """
        return 2 * self._metadata_bytes >= self._context.limits.metadata_bytes_max

    @property
    def ensemble(self) -> Ensemble:
        """Where entries go now."""
        return self._protocol.ensemble

    def channel(self, bookie: BookieId) -> LedgerChannel | None:
        """The way to a bookie that was sent something; None once the writer has stopped."""
        return self._channels.get(bookie)

    @property
    def pending_entries(self) -> int:
        return len(self._lengths) + len(self._gathered)

    @property
    def error(self) -> LedgerError | None:
        """Why nothing can be appended any more; None while it can."""
        return self._error

    @property
    def under_replicated(self) -> bool:
        """Some bookie of the ensemble is sent nothing: entries have fewer copies than they should.

        The next ledger would be whole if `replaceable` is true, too.
        """
        return self._protocol.under_replicated

    @property
    def replaceable(self) -> bool:
        """Enough bookies are usable for a whole ensemble."""
        return len(self._context.directory.usable()) >= self.metadata.quorums.ensemble

    @property
    def stuck(self) -> bool:
        """Entries wait for an ack quorum, and enough bookies for another whole ledger answer.

        They take no entries of this one; or have failed just now, which is not told apart here.
        """
        waits = self._protocol.starved and self.pending_entries > 0 and self._error is None
        answering = self._context.directory.answering()
        return waits and len(answering) >= self.metadata.quorums.ensemble

    @property
    def waiting_for(self) -> str:
        """Why appends are not confirmed now, in words; empty if nothing is in the way."""
        if not self._protocol.starved or self._error is not None:
            return ""
        missing = ", ".join(self._protocol.missing)
        return (
            f"ledger {self.ledger_id}: {self.metadata.quorums.ack} bookies have to confirm"
            f" an entry; waiting for {missing}, or others"
        )

    def set_listener(
        self, confirmed: Callable[[int, int], None], withdrawn: Callable[[LedgerError], None]
    ) -> None:
        """`confirmed(first, last)` is called in order; `withdrawn` once, then nothing more."""
        self._confirmed = confirmed
        self._withdrawn = withdrawn

    # -- appending

    def append(self, payload: Sequence[Buffer]) -> int:
        """Send an entry on its way; return its id."""
        if self._error is not None:
            raise self._error
        size = self.check_size(payload)
        entry_id = self.last_add_pushed = self.last_add_pushed + 1
        self._pushed_length += size
        self._gathered_lengths.append(self._pushed_length)
        self.pending_bytes += size
        if not self._gathered:
            self._context.bookies.flusher.mark(self)
        self._gathered.append(payload)
        return entry_id

    def flush(self) -> bool:
        """For the flusher: what was appended in a turn of the loop leaves together."""
        payloads, self._gathered = self._gathered, []
        lengths, self._gathered_lengths = self._gathered_lengths, []
        if payloads:
            count = len(payloads)
            self._frames += encode_adds(
                self._master_key,
                self.ledger_id,
                self.last_add_pushed + 1 - count,
                self.last_add_confirmed,
                lengths,
                self._digester,
                payloads,
            )
            self._lengths += lengths
            self._appended(count)
        return True

    async def drain(self) -> None:
        """For the flusher; there is never anything left to do."""

    @property
    def payload_bytes_max(self) -> int:
        """How large an entry may be, so that bookies take it."""
        return self._payload_bytes_max

    def check_size(self, payload: Sequence[Buffer]) -> int:
        """The size of an entry; EntryTooLargeError if bookies would not take it."""
        size = 0
        for buffer in payload:
            size += len(buffer)
        if size > self._payload_bytes_max:
            raise EntryTooLargeError(f"{size} bytes; at most {self._payload_bytes_max} fit")
        return size

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry is confirmed; InDoubtError if the writer stopped before."""
        if entry_id <= self.last_add_confirmed:
            await trio.lowlevel.checkpoint()
            return
        if self._error is None:
            await self._waiters.wait(entry_id)
        if entry_id > self.last_add_confirmed:
            raise InDoubtError(self.ledger_id, entry_id) from self._error

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        """A prefix of the confirmed entries first..last, at least one."""
        assert 0 <= first <= last
        last = min(last, self.last_add_confirmed)
        if first > last:
            raise NoSuchEntryError(self.ledger_id, first, f"confirmed are those up to {last}")
        return await read_entries(
            self._context,
            self.ledger_id,
            self.metadata,
            first,
            last,
            max_bytes=max_bytes,
            entry_bytes=self.length // (self.last_add_confirmed + 1),
        )

    # -- the end

    async def close(self) -> None:
        """End the ledger at the last confirmed entry.  Waits for no append.

        LedgerFencedError if the ledger is no longer open: somebody else decides its end.  When the
        metadata store does not answer, closing again is how to go on.  OutcomeUnknownError if it is
        abandoned meanwhile.
        """
        if self._error is not None and not self._owner_is_done:
            raise self._error
        self._stop(LedgerClosedError(f"ledger {self.ledger_id} was closed by its owner"))
        await self._changes.close(self.last_add_confirmed, self.length)

    def abandon(self) -> None:
        """Stop at once, and leave the ledger to whoever recovers it."""
        self._stop(LedgerClosedError(f"ledger {self.ledger_id} was abandoned by its owner"))
        self._changes.cancel()

    def _stop(self, error: LedgerError) -> None:
        if self._error is None:
            self._owner_is_done = True
            self._error = error
            self._feed(Stop())

    # -- what bookies and the directory say

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        if self._stepping:
            self._feed(Added(bookie, first, count))
            return
        self._stepping = True
        try:
            confirmed = self._protocol.added(bookie, first, count)
            if confirmed:
                head = self.last_add_confirmed + 1
                self._confirm(head, head + confirmed - 1)
            self._work_off()
        finally:
            self._stepping = False

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        self._feed(AddFailed(bookie))

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        what = f"ledger {self.ledger_id}: bookie {bookie} answered {status.name}"
        fenced = status is Status.FENCED
        self.refused(LedgerFencedError(what) if fenced else WriterWithdrawnError(what))

    def refused(self, error: LedgerError) -> None:
        """The ledger is no longer ours to write."""
        self._error = self._error or error
        self._feed(Refused(str(error)))

    def try_again(self) -> None:
        """Bookies, or the metadata store, may be there again."""
        if not self._protocol.under_replicated:
            return
        self._look_for_returned()
        if self._replaced(self._protocol.missing) is not None:
            self._feed(SpareFound())

    def _look_for_returned(self) -> None:
        for bookie in self._protocol.missing:
            if self._protocol.starved and self._context.directory.is_usable(bookie):
                self._feed(BookieReturned(bookie))

    # -- carrying out: `added` and `_appended` are `_feed` without making events, for each entry

    def _appended(self, count: int) -> None:
        to = None if self._stepping else self._protocol.append(count)
        if to is None:
            self._feed(Append(count))
        else:
            self._send(self.last_add_pushed + 1 - count, count, to)

    def _feed(self, event: Event) -> None:
        """Step, and carry out what is asked for; what that brings about waits its turn."""
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            self._work_off()
        finally:
            self._stepping = False

    def _work_off(self) -> None:
        while self._inbox:
            event = self._inbox.popleft()
            for effect in self._protocol.step(event):
                self._perform(effect)
            if isinstance(event, ChangePostponed | EnsembleChanged):
                self._mark_missing()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(first, count, to):
                self._send(first, count, to)
            case Confirm(first, count):
                self._confirm(first, first + count - 1)
            case ChangeEnsemble(first_entry_id, failed):
                self._start_change(first_entry_id, failed)
            case Starved():
                self._look_for_returned()
            case Withdraw(reason=reason):
                self._withdraw(reason)
            case _:
                assert_never(effect)

    def _send(self, first: int, count: int, to: Ensemble) -> None:
        pieces = list(self._pieces(first, count)) if count > 1 else None
        for bookie in to:
            channel = self._channels.get(bookie)
            if channel is None:
                channel = self._channels[bookie] = self._context.bookies.open_channel(
                    bookie, self.ledger_id, self.purpose, self
                )
            if pieces is None:
                channel.add(first, self._frames[first - self.last_add_confirmed - 1])
                continue
            for adds in pieces:
                channel.add_all(adds)

    def _pieces(self, first: int, count: int) -> Iterator[AddBatch]:
        """So large that what they cost does not matter, and a bookie may be slow to take one."""
        start = first - self.last_add_confirmed - 1
        before = self._lengths[start - 1] if start else self.length
        frames: list[list[Buffer]] = []
        for index in range(start, start + count):
            frames.append(self._frames[index])
            length = self._lengths[index]
            if length - before >= _PIECE_BYTES or len(frames) == _PIECE_ENTRIES:
                yield AddBatch(first, frames)
                first += len(frames)
                frames, before = [], length
        if frames:
            yield AddBatch(first, frames)

    def _confirm(self, first: int, last: int) -> None:
        length = self.length
        for _ in range(last - self.last_add_confirmed):
            self._frames.popleft()
            length = self._lengths.popleft()
        self.pending_bytes -= length - self.length
        self.length = length
        self.last_add_confirmed = last
        self._waiters.reached(first, last)
        if self._confirmed is not None:
            self._confirmed(first, last)

    def _withdraw(self, reason: str) -> None:
        if self._error is None:
            self._error = WriterWithdrawnError(f"ledger {self.ledger_id}: {reason}")
        self._frames.clear()
        self._lengths.clear()
        self._gathered.clear()
        self._gathered_lengths.clear()
        self.pending_bytes = 0
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._context.directory.remove_listener(self.try_again)
        self._waiters.release_all()
        if self._withdrawn is not None and not self._owner_is_done:
            self._withdrawn(self._error)

    # -- changing the ensemble

    def _replaced(self, failed: Ensemble) -> Ensemble | None:
        """The ensemble with others in their places, as far as there are."""
        quorums = self.metadata.quorums
        return self._context.directory.replace(self._protocol.ensemble, failed, quorums)

    def _start_change(self, first_entry_id: int, failed: Ensemble) -> None:
        ensemble = self._replaced(failed)
        size, size_max = self._metadata_bytes, self._context.limits.metadata_bytes_max
        if 4 * size >= 3 * size_max:
            reason = (
                f"ledger {self.ledger_id}: {len(self.metadata.fragments)} changes of its bookies"
                f" take {size} bytes of metadata, of at most {size_max}: no other one fits; go on"
                " in a new ledger"
            )
            self.refused(WriterWithdrawnError(reason))
        elif ensemble is None or not self._context.metadata_store.reachable:
            # The directory tells when there is a spare, or the metadata store is back.
            self._feed(ChangePostponed())
        else:
            wanted = Fragment(first_entry_id, ensemble)
            self._context.nursery.start_soon(self._changes.change_ensemble, wanted)

    def ensemble_changed(self, event: EnsembleChanged | ChangePostponed) -> None:
        self._metadata_bytes = len(encode_metadata(self.metadata))
        self._feed(event)

    def _mark_missing(self) -> None:
        """Whoever goes on without a bookie says so at once: this process may die, too."""
        new = [bookie for bookie in self._protocol.missing if bookie not in self._marked]
        if new:
            self._marked.update(new)
            self._context.nursery.start_soon(
                self._context.mark_under_replicated, self.ledger_id, new
            )
