"""Append entries to one ledger: the shell of `WriteProtocol`.

`append` is synchronous and returns the id of the entry.  Confirmations come later, in order and in
runs, through the listener.  Entries appended in one turn of the event loop leave together.  Each
entry is framed once, and all bookies share its buffers until the entry is confirmed and every
connection has sent it.  Callers must not change a payload after `append`, and bound the memory in
use by `pending_bytes`.

The writer withdraws when another client recovers the ledger or the ledger was deleted.  The
listener then gets one call, and every unconfirmed entry is in doubt.  `close` and `abandon` come
from the owner, so the listener gets no call; `wait_confirmed` raises InDoubtError.

The writer changes the metadata of its ledger for a new ensemble and for the end, one change at a
time.  A change that failed, or whose result is unknown, can be repeated safely
(`LedgerMetadataStore.update`).  Once another client recovers or closes the ledger, the writer makes
no further change.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, assert_never

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
    ChangeEnsemble,
    Confirm,
    Effect,
    Send,
    Starved,
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
    """Tasks that each wait for one entry.  Entries without a waiter take no memory."""

    def __init__(self) -> None:
        self._events: dict[int, list[trio.Event]] = {}

    async def wait(self, entry_id: int) -> None:
        """Return when the entry is `reached`, or after `release_all`: the caller checks which."""
        event = trio.Event()
        events = self._events.setdefault(entry_id, [])
        events.append(event)
        try:
            await event.wait()
        except trio.Cancelled:
            # Nothing may stay behind: a caller may wait with a timeout, again and again.
            events.remove(event)
            if not events and self._events.get(entry_id) is events:
                del self._events[entry_id]
            raise

    def reached(self, first: int, last: int) -> None:
        """Wake the tasks that wait for one of the entries first..last."""
        if self._events:
            for entry_id in range(first, last + 1):
                for event in self._events.pop(entry_id, ()):
                    event.set()

    def release_all(self) -> None:
        """Wake all tasks: no entry will be reached any more."""
        for events in self._events.values():
            for event in events:
                event.set()
        self._events.clear()


# At this size the cost of a batch is negligible, and a slow bookie still answers in time.
_BATCH_BYTES = 256 << 10
ALWAYS_TAKEN_BYTES = 512 << 10
"""Every bookie accepts an entry of this size: no limit can be set below 1 MiB."""
_BATCH_ENTRIES = 1024


ProtocolInput: TypeAlias = Callable[[], Iterable[Effect]]  # a call of a method of the protocol


class LedgerWriter:
    """The only writer of a ledger.  `LedgerClient.create` makes it.

    A host may write to thousands of ledgers in turn.  Most of the time for an entry then goes to
    memory that is in no cache of the processor, so a writer has few objects.
    """

    __slots__ = (
        "_channels",
        "_context",
        "_digester",
        "_error",
        "_gathered",
        "_inbox",
        "_lengths",
        "_marked",
        "_master_key",
        "_metadata_bytes",
        "_metadata_lock",
        "_metadata_scopes",
        "_on_confirmed",
        "_on_withdrawn",
        "_owner_is_done",
        "_pending",
        "_protocol",
        "_pushed_length",
        "_sent_through",
        "_sent_to",
        "_stepping",
        "_stored",
        "_waiters",
        "batches",
        "last_add_confirmed",
        "last_add_pushed",
        "ledger_id",
        "length",
        "pending_bytes",
    )
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
        # Gathered entries count; the protocol hears of them with the next flush.
        self.last_add_pushed = NO_ENTRY
        self.length = 0  # payload bytes that are confirmed
        self.pending_bytes = 0
        self._context = context
        self._digester = digester_of(stored.metadata)
        self._master_key = master_key(stored.metadata.password or b"")
        ensemble = stored.metadata.last_fragment.ensemble
        self._protocol = WriteProtocol(ensemble, stored.metadata.quorums, missing=missing)
        self._channels: dict[BookieId, LedgerChannel] = {}
        # The channels of the last send, and the bookies that it went to.
        self._sent_to: Ensemble = ()
        self._sent_through: Sequence[LedgerChannel] = ()
        # The entries that are not confirmed, from LAC + 1 on: frames of those that are sent, then
        # payloads of those that are gathered for the next flush.  `_lengths` has the length of the
        # ledger up to each of them.
        self._pending: list[Sequence[Buffer]] = []
        self._lengths: list[int] = []
        self._gathered = 0
        self.batches = 0  # The number of batches of gathered entries, with the present one.
        self._pushed_length = 0  # the length of the ledger up to the last entry gathered
        self._inbox: tuple[ProtocolInput, ...] = ()  # arrived while effects were performed
        self._stepping = False  # True while effects are performed
        self._error: LedgerError | None = None
        self._owner_is_done = False
        self._on_confirmed: Callable[[int, int], None] | None = None
        self._on_withdrawn: Callable[[LedgerError], None] | None = None
        self._waiters: ConfirmationWaiters | None = None  # Most writers never have one.
        self._stored = stored
        self._metadata_lock = trio.Lock()  # The metadata are changed by one task at a time.
        self._metadata_scopes: dict[trio.CancelScope, None] = {}  # changes under way
        self._metadata_bytes = 0  # the size of the record after the last ensemble change
        self._marked: set[BookieId] = set()  # bookies marked as lacking entries
        context.directory.add_listener(self.try_again)
        # Members that are away from the start lack every entry: the mark comes before the first.
        self._mark_missing()

    @property
    def metadata(self) -> LedgerMetadata:
        return self._stored.metadata

    @property
    def crowded(self) -> bool:
        """Return True if ensemble changes fill half of the metadata a ledger may have.

        The owner should then continue in a new ledger.  At three quarters the writer withdraws,
        which leaves recovery enough room to close the ledger.
        """
        return 2 * self._metadata_bytes >= self._context.limits.metadata_bytes_max

    @property
    def ensemble(self) -> Ensemble:
        """The bookies to which new entries go."""
        return self._protocol.ensemble

    def channel(self, bookie: BookieId) -> LedgerChannel | None:
        """Return the channel to a bookie; None if it was sent nothing, or the writer stopped."""
        return self._channels.get(bookie)

    @property
    def pending_entries(self) -> int:
        return len(self._pending)

    @property
    def error(self) -> LedgerError | None:
        """The reason why nothing can be appended any more, or None."""
        return self._error

    @property
    def under_replicated(self) -> bool:
        """True if a bookie of the ensemble is sent nothing, so entries lack a copy.

        A new ledger would have all copies if `replaceable` is true as well.
        """
        return self._protocol.under_replicated

    @property
    def replaceable(self) -> bool:
        """True if enough bookies are usable for a whole ensemble."""
        return len(self._context.directory.usable()) >= self.metadata.quorums.ensemble

    @property
    def stuck(self) -> bool:
        """True if entries wait for an ack quorum while enough bookies answer for a new ledger.

        The missing bookies reject the entries of this ledger or have just failed; the writer cannot
        tell these cases apart.
        """
        waits = self._protocol.starved and self.pending_entries > 0 and self._error is None
        answering = self._context.directory.answering()
        return waits and len(answering) >= self.metadata.quorums.ensemble

    @property
    def waiting_for(self) -> str:
        """The reason why appends are not confirmed now, or an empty string."""
        if not self._protocol.starved or self._error is not None:
            return ""
        missing = ", ".join(self._protocol.missing)
        return (
            f"ledger {self.ledger_id}: {self.metadata.quorums.ack} bookies have to confirm"
            f" an entry; waiting for {missing}, or for spare bookies"
        )

    def set_listener(
        self, confirmed: Callable[[int, int], None], withdrawn: Callable[[LedgerError], None]
    ) -> None:
        """Call `confirmed(first, last)` in order of the entries, and `withdrawn` once, at the end.

        After `withdrawn` there are no further calls.
        """
        self._on_confirmed = confirmed
        self._on_withdrawn = withdrawn

    # -- appending

    def append(self, payload: Sequence[Buffer]) -> int:
        """Send an entry to the bookies; return its id."""
        if self._error is not None:
            raise self._error
        size = self.check_size(payload)
        entry_id = self.last_add_pushed = self.last_add_pushed + 1
        length = self._pushed_length = self._pushed_length + size
        self.pending_bytes += size
        self._pending.append(payload)
        self._lengths.append(length)
        self._gathered += 1
        # One mark for each turn of the loop: `flush` takes everything gathered since.
        if self._gathered == 1:
            self.batches += 1
            self._context.bookies.flusher.mark(self)
        return entry_id

    def flush(self) -> bool:
        """Send everything gathered in this turn of the event loop; called by the flusher."""
        # Reset first, since the sends below may call back into `append`.
        count, self._gathered = self._gathered, 0
        if count:
            sent = len(self._pending) - count
            lengths = self._lengths[sent:]
            # Counted before the entries are sent: connections compare their queues with it.
            before = self._lengths[sent - 1] if sent else self.length
            self._context.bookies.held_bytes += lengths[-1] - before
            self._pending[sent:] = encode_adds(
                self._master_key,
                self.ledger_id,
                self.last_add_pushed + 1 - count,
                self.last_add_confirmed,
                lengths,
                self._digester,
                self._pending[sent:],
            )
            self._appended(count)
        return True

    async def drain(self) -> None:
        """Do nothing: the flusher requires the method, and `flush` leaves nothing behind."""

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that all writable bookies accept."""
        accepted = self._context.directory.frame_bytes_max
        return self._context.limits.bookies.entry_bytes_max(accepted) - (
            ENTRY_HEADER_BYTES + self._digester.size
        )

    def check_size(self, payload: Sequence[Buffer]) -> int:
        """Return the size of the payload; raise EntryTooLargeError if bookies would reject it."""
        size = 0
        for buffer in payload:
            size += len(buffer)
        if size > ALWAYS_TAKEN_BYTES and size > self.payload_bytes_max:
            raise EntryTooLargeError(
                f"the entry has {size} bytes, and bookies take at most {self.payload_bytes_max}"
            )
        return size

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry is confirmed; raise InDoubtError if the writer stopped before."""
        if entry_id <= self.last_add_confirmed:
            await trio.lowlevel.checkpoint()
            return
        # After the end nobody wakes a waiter.
        if self._error is None:
            if self._waiters is None:
                self._waiters = ConfirmationWaiters()
            await self._waiters.wait(entry_id)
        if entry_id > self.last_add_confirmed:
            raise InDoubtError(self.ledger_id, entry_id) from self._error

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        """Return a prefix of the confirmed entries first..last: at least one entry."""
        assert 0 <= first <= last
        last = min(last, self.last_add_confirmed)
        if first > last:
            raise NoSuchEntryError(self.ledger_id, first, f"the last confirmed entry is {last}")
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
        """Close the ledger after its last confirmed entry, without waiting for appends under way.

        Raise LedgerFencedError if the ledger is no longer open: another client decides its end.
        Raise StoreUnavailableError if the metadata store does not answer; the caller may then close
        again.  Raise OutcomeUnknownError if the writer is abandoned meanwhile.
        """
        # A close without an answer may be repeated: `_error` is then the one of the first close.
        if self._error is not None and not self._owner_is_done:
            raise self._error
        self._stop(LedgerClosedError(f"ledger {self.ledger_id} was closed by its owner"))
        # The writer has stopped, so neither the LAC nor the length moves any more.
        decide = close_by_writer(self.last_add_confirmed, self.length)
        result: UpdateResult | None = None
        with trio.CancelScope() as scope:
            self._metadata_scopes[scope] = None
            try:
                async with self._metadata_lock:
                    store = self._context.metadata_store
                    result = await store.update(self.ledger_id, self._stored, decide)
            finally:
                del self._metadata_scopes[scope]
        match result:
            case None:  # `abandon` has cancelled the scope.
                raise OutcomeUnknownError(
                    f"the writer of ledger {self.ledger_id} was abandoned during the close, so it"
                    " is unknown whether the ledger is closed"
                )
            case Settled(metadata, version):
                self._stored = StoredMetadata(metadata, version)
            case NotAllowed(metadata):
                raise LedgerFencedError(self._lost_to(metadata))
            case Gone():
                raise NoSuchLedgerError(self.ledger_id)
            case NotDone():
                raise StoreUnavailableError(
                    f"ledger {self.ledger_id} could not be closed, because the metadata store"
                    " does not answer: close it again"
                )
            case _:
                assert_never(result)

    def abandon(self) -> None:
        """Stop at once, and leave the end of the ledger to a later recovery."""
        self._stop(LedgerClosedError(f"ledger {self.ledger_id} was abandoned by its owner"))
        # A metadata change under way may still be carried out by the store.
        for scope in self._metadata_scopes:
            scope.cancel()

    def _stop(self, error: LedgerError) -> None:
        # The flag comes before the call: `_withdraw` must not call an owner that has stopped.
        if self._error is None:
            self._owner_is_done = True
            self._error = error
            self._handle(self._protocol.stop)

    # -- calls from channels and from the directory

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        if self._stepping:
            # An answer that arrives while effects are performed has to keep its place.
            self._handle(partial(self._protocol.added, bookie, first, count))
            return
        self._stepping = True
        try:
            confirmed = self._protocol.added_direct(bookie, first, count)
            if confirmed:
                head = self.last_add_confirmed + 1
                self._confirm(head, head + confirmed - 1)
            if self._inbox:
                self._drain_inbox()
        finally:
            self._stepping = False

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        self._handle(partial(self._protocol.add_failed, bookie))

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        what = f"ledger {self.ledger_id}: bookie {bookie} answered {status.name}"
        fenced = status is Status.FENCED
        self.refused(LedgerFencedError(what) if fenced else WriterWithdrawnError(what))

    def refused(self, error: LedgerError) -> None:
        """Withdraw: this writer no longer owns the ledger."""
        # The first reason is the one to report.
        self._error = self._error or error
        self._handle(partial(self._protocol.refused, str(error)))

    def try_again(self) -> None:
        """Retry a postponed ensemble change: bookies or the metadata store may be back."""
        if not self._protocol.under_replicated:
            return
        # A starved writer takes back a returned member, which needs no change of the metadata.
        self._look_for_returned()
        if self._replaced(self._protocol.missing) is not None:
            self._handle(self._protocol.spare_found)

    def _look_for_returned(self) -> None:
        for bookie in self._protocol.missing:
            if self._protocol.starved and self._context.directory.is_usable(bookie):
                self._handle(partial(self._protocol.bookie_returned, bookie))

    # -- effects.  `added` and `_appended` do what `_handle` does without an effect for each entry.

    def _appended(self, count: int) -> None:
        # While effects are performed the append has to wait its turn behind their inputs.
        to = None if self._stepping else self._protocol.append_direct(count)
        if to is None:
            self._handle(partial(self._protocol.append, count))
        else:
            self._send(self.last_add_pushed + 1 - count, count, to)

    def _handle(self, protocol_input: ProtocolInput) -> None:
        """Give the protocol an input and perform its effects.

        An input that an effect brings about waits in the inbox: the effects of one input are never
        interleaved with those of another.
        """
        self._inbox += (protocol_input,)
        if self._stepping:
            return
        self._stepping = True
        try:
            self._drain_inbox()
        finally:
            self._stepping = False

    def _drain_inbox(self) -> None:
        while self._inbox:
            protocol_input, self._inbox = self._inbox[0], self._inbox[1:]
            for effect in protocol_input():
                self._perform(effect)

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
        assert first > self.last_add_confirmed, "frames are kept for unconfirmed entries only"
        channels = self._sent_through if to is self._sent_to else self._channels_to(to)
        if count == 1:
            frame = self._pending[first - self.last_add_confirmed - 1]
            for channel in channels:
                channel.add(first, frame)
            return
        # The batches are made once, and all bookies share their buffers.
        pieces = list(self._pieces(first, count))
        for channel in channels:
            for adds in pieces:
                channel.add_all(adds)

    def _channels_to(self, to: Ensemble) -> Sequence[LedgerChannel]:
        """Return the channels to these bookies, which are mostly those of the next send, too."""
        for bookie in to:
            if bookie not in self._channels:
                self._channels[bookie] = self._context.bookies.open_channel(
                    bookie, self.ledger_id, self.purpose, self
                )
        self._sent_to = to
        self._sent_through = tuple(self._channels[bookie] for bookie in to)
        return self._sent_through

    def _pieces(self, first: int, count: int) -> Iterator[AddBatch]:
        """Cut a run of entries into batches of bounded size."""
        start = first - self.last_add_confirmed - 1
        before = self._lengths[start - 1] if start else self.length
        frames: list[Sequence[Buffer]] = []
        for index in range(start, start + count):
            frames.append(self._pending[index])
            length = self._lengths[index]
            if length - before >= _BATCH_BYTES or len(frames) == _BATCH_ENTRIES:
                yield AddBatch(first, frames)
                first += len(frames)
                frames, before = [], length
        if frames:
            yield AddBatch(first, frames)

    def _confirm(self, first: int, last: int) -> None:
        # Confirmations are a prefix without gaps, and only sent entries can be confirmed.
        assert first == self.last_add_confirmed + 1
        count = last + 1 - first
        assert count <= len(self._pending) - self._gathered
        length = self._lengths[count - 1]
        del self._pending[:count]
        del self._lengths[:count]
        self.pending_bytes -= length - self.length
        self._context.bookies.held_bytes -= length - self.length
        self.length = length
        self.last_add_confirmed = last
        # The state is complete before anything is told: a listener may append or read at once.
        if self._waiters is not None:
            self._waiters.reached(first, last)
        if self._on_confirmed is not None:
            self._on_confirmed(first, last)

    def _withdraw(self, reason: str) -> None:
        if self._error is None:
            self._error = WriterWithdrawnError(f"ledger {self.ledger_id}: {reason}")
        sent = len(self._pending) - self._gathered
        if sent:
            self._context.bookies.held_bytes -= self._lengths[sent - 1] - self.length
        # Gathered entries are dropped, too: after `withdrawn` nothing is sent.
        self._pending.clear()
        self._lengths.clear()
        self._gathered = 0
        self.pending_bytes = 0
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._sent_to, self._sent_through = (), ()
        self._context.directory.remove_listener(self.try_again)
        if self._waiters is not None:
            self._waiters.release_all()
        withdrawn, self._on_withdrawn, self._on_confirmed = self._on_withdrawn, None, None
        if withdrawn is not None and not self._owner_is_done:
            withdrawn(self._error)

    # -- changing the ensemble

    def _replaced(self, failed: Ensemble) -> Ensemble | None:
        """Return the ensemble with spares for the failed bookies, or None if there is no spare."""
        quorums = self.metadata.quorums
        return self._context.directory.replace(self._protocol.ensemble, failed, quorums)

    def _start_change(self, first_entry_id: int, failed: Ensemble) -> None:
        ensemble = self._replaced(failed)
        size, size_max = self._metadata_bytes, self._context.limits.metadata_bytes_max
        # A recovery adds fragments of its own, and its record must still fit into the store.
        if 4 * size >= 3 * size_max:
            reason = (
                f"ledger {self.ledger_id}: {len(self.metadata.fragments)} ensemble changes take"
                f" {size} bytes of metadata, of at most {size_max}: no further change fits;"
                " continue in a new ledger"
            )
            self.refused(WriterWithdrawnError(reason))
        elif ensemble is None or not self._context.metadata_store.reachable:
            # The directory calls `try_again` when a spare or the metadata store is back.
            self._change_settled(None)
        else:
            wanted = Fragment(first_entry_id, ensemble)
            self._context.nursery.start_soon(self._change_ensemble, wanted)

    async def _change_ensemble(self, wanted: Fragment) -> None:
        """Write the new fragment to the metadata, and report the result to the protocol."""
        with trio.CancelScope() as scope:
            self._metadata_scopes[scope] = None
            async with self._metadata_lock:
                previous = self.metadata.last_fragment
                result = await self._context.metadata_store.update(
                    self.ledger_id, self._stored, change_ensemble(previous, wanted)
                )
                # Still under the lock: a close that waits for it must see the new version.
                self._ensemble_change_settled(wanted, result)
            if isinstance(result, NotDone):
                await trio.sleep(self._context.limits.change_retry_s)
                self.try_again()
        del self._metadata_scopes[scope]

    def _ensemble_change_settled(self, wanted: Fragment, result: UpdateResult) -> None:
        match result:
            case Settled(metadata, version):
                # No entry was confirmed during the change: the fragment would name bookies that
                # were never sent it.
                assert wanted.first_entry_id == self.last_add_confirmed + 1
                self._stored = StoredMetadata(metadata, version)
                self._measure_metadata()
                self._change_settled(wanted.ensemble)
            case NotAllowed(metadata, version):
                self._stored = StoredMetadata(metadata, version)
                self.refused(LedgerFencedError(self._lost_to(metadata)))
            case Gone():
                self.refused(NoSuchLedgerError(self.ledger_id))
            case NotDone():
                self._measure_metadata()
                self._change_settled(None)
            case _:
                assert_never(result)

    def _measure_metadata(self) -> None:
        self._metadata_bytes = len(encode_metadata(self.metadata))

    def _change_settled(self, ensemble: Ensemble | None) -> None:
        """Tell the protocol the new ensemble, or None if the change is postponed."""
        self._handle(partial(self._effects_of_change, ensemble))

    def _effects_of_change(self, ensemble: Ensemble | None) -> Iterator[Effect]:
        if ensemble is None:
            yield from self._protocol.change_postponed()
        else:
            yield from self._protocol.ensemble_changed(ensemble)
        # Until the effects are performed it is open whether the failed bookie will be replaced.
        self._mark_missing()

    def _lost_to(self, metadata: LedgerMetadata) -> str:
        if metadata.state is LedgerState.OPEN:
            return f"another client changed ledger {self.ledger_id}"
        return f"ledger {self.ledger_id} is {metadata.state.name}: another client took it over"

    def _mark_missing(self) -> None:
        """Mark the ledger as under-replicated as soon as the writer continues without a bookie.

        The mark is written now and not at the end, since this process may die, too.
        """
        new = [bookie for bookie in self._protocol.missing if bookie not in self._marked]
        if new:
            # Noted at once, so that the task is not started twice for the same bookie.
            self._marked.update(new)
            self._context.nursery.start_soon(
                self._context.mark_under_replicated, self.ledger_id, new
            )
