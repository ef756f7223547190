"""Applies the committed batches of sinks to one topic, as its owner.

For each pending node of the topic a task appends the share of the batch, from the first sequence id
that the topic lacks, and marks the node when the last entry is durable.  The progress is a property
of the topic's list (`managed_ledger.sinks.progress`), which the write of a new owner fences like
everything else that an owner writes.  Policies of the topic are passed by: the commit has asked
them.  Only a topic that was terminated or made anew cannot take the rest.

A batch is applied in order, and an entry is never appended twice by one owner: the sequence ids
count on from what this owner has appended, or, for a new owner, from what the log holds.  A
read or an append that is not possible now is tried again.
"""

from collections.abc import Collection
from contextlib import suppress
from functools import partial

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.client import LedgerReader
from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.protocol.deduplication import EntryIds
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.managed_ledger.errors import (
    ClosedError,
    EntryTooLargeError,
    ListFullError,
    LogCorruptError,
    ManagedLedgerError,
    TerminatedError,
)
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.sink import next_to_append
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.sinks.errors import SinkError
from daybook.managed_ledger.sinks.manifest import Manifest
from daybook.managed_ledger.sinks.progress import Progress, property_of
from daybook.managed_ledger.sinks.record import PendingBatch
from daybook.managed_ledger.sinks.staging import applied_entry, messages_of
from daybook.wire.batch import peek_metadata
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import MetadataError
from daybook.wire.weakly import weak

RETRY_S = 5.0
STORE_ENTRIES = 1_000  # The progress is stored at the latest after so many entries of a sink.
_READ_BYTES = 4 << 20
_READ_ENTRIES = 1_000
_FORGOTTEN_AT_ONCE = 20  # properties of other sinks that are looked at with one write
_REFUSALS = (TerminatedError, ListFullError, EntryTooLargeError, ClosedError)
_NOT_NOW = (BrokerError, SinkError, MetadataError, LedgerError, ManagedLedgerError)


class _Applying:
    """The knowledge of this owner about one sink."""

    def __init__(self, name: str, highest: int | None, position: Position, offset: int) -> None:
        self.name = name
        self.appended = highest  # the highest sequence id that was given to the log; None: none
        self.confirmed = highest  # the highest one that is durable
        self.position = position  # its position, or that up to which it was counted
        self.offset = offset
        self.stored: int | None = None  # `confirmed` when the progress was stored
        self.refused: Exception | None = None  # why the log has not taken the last entry
        self.changed = trio.Event()

    @property
    def sequence(self) -> int:
        return -1 if self.confirmed is None else self.confirmed

    async def wait_confirmed(self) -> None:
        """Wait until all that was given to the log is durable."""
        while self.confirmed != self.appended:
            await self.changed.wait()

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class TopicSinks:
    """One instance per loaded topic."""

    def __init__(self, topic: StoredTopic, sinks: Sinks) -> None:
        self.waiting: dict[str, str] = {}  # by sink: why its batch is not applied now
        self._topic = weak(topic)
        self._sinks = sinks
        self._known: dict[str, _Applying] = {}  # by sink id
        self._running: dict[str, trio.Event] = {}  # by sink id: set at the end of its task
        self._again = trio.Event()  # set by a look: what waits is tried again

    @property
    def active(self) -> bool:
        """True while a batch is to be applied."""
        return bool(self._running)

    async def has_pending(self) -> bool:
        """Return True if a batch is to be applied, as of now.  Raise UnavailableError."""
        try:
            return await self._sinks.pending.exist(self._topic().name.full)
        except MetadataError as error:
            raise UnavailableError(
                f"it is not known now if sinks write to {self._topic().name}: {error}"
            ) from error

    async def look(self) -> None:
        """Start what is to be applied.  An error of the metadata store waits for the next look."""
        with suppress(MetadataError, SinkError):
            pending = await self._sinks.pending.shared_of_topic(self._topic().name.full)
            for sink_id, each in pending.items():
                if not each.applied:
                    self._start(sink_id)
            # A batch was given up while it was applied: its progress holds the log.
            for sink_id, progress in self._stored().items():
                if progress.applying and sink_id not in pending:
                    self._start(sink_id)

    async def apply(self, wait_s: float) -> dict[str, str]:
        """Apply what is pending as of now, and wait for that; return what waits, by sink."""
        try:
            # Later reads are as new as this.
            await self._sinks.pending.exist(self._topic().name.full)
        except MetadataError as error:
            raise UnavailableError(f"{self._topic().name}: {error}") from error
        again, self._again = self._again, trio.Event()
        again.set()
        await self.look()
        with trio.move_on_after(wait_s):
            for done in list(self._running.values()):
                await done.wait()
        return dict(self.waiting)

    def _start(self, sink_id: str) -> None:
        if sink_id not in self._running and not self._topic().closing:
            done = self._running[sink_id] = trio.Event()
            self._topic().start_task(self._run, sink_id, done)

    async def _run(self, sink_id: str, done: trio.Event) -> None:
        """Apply batches of one sink until none is pending."""
        name = ""
        try:
            while not self._topic().closing:
                again = self._again
                try:
                    pending = await self._sinks.pending.find(self._topic().name.full, sink_id)
                    name = name if pending is None else pending.sink
                    if pending is None or pending.applied:
                        await self._settle(sink_id)
                        return
                    if await self._apply(sink_id, pending):
                        return
                    continue
                except _NOT_NOW as error:
                    self.waiting[name] = str(error)
                with trio.move_on_after(RETRY_S):
                    await again.wait()
        except Exception as bug:
            self._topic().has_bug("applying a batch of a sink", bug)
        finally:
            self.waiting.pop(name, None)
            if self._running.get(sink_id) is done:
                del self._running[sink_id]
            done.set()

    # -- one batch

    async def _apply(self, sink_id: str, pending: PendingBatch) -> bool:
        """Apply one batch; return False if it has to be looked at again at once."""
        topic, full = self._topic(), self._topic().name.full
        why = self._why_never(pending)
        if why is not None:
            await self._sinks.block(pending.sink, sink_id, full, why)
            return True
        manifest = await self._sinks.ledgers.read_manifest(
            pending.ledger_id, pending.checksum, pending.sink
        )
        share = manifest.shares.get(full)
        if share is None or (share.first, share.entries) != (pending.first, pending.entries):
            raise SinkError(f"the manifest of the sink {pending.sink} contradicts its pending node")
        known = await self._know(sink_id, pending)
        if known is None:
            why = (
                "entries were trimmed before this broker could count those of the sink: another"
                " software has trimmed the topic"
            )
            await self._sinks.block(pending.sink, sink_id, full, why)
            return True
        known.refused = None
        await known.wait_confirmed()
        start = next_to_append(pending.share, known.appended)
        if start <= pending.share.last:
            # An operator may have given up what is missing in front of the batch.
            known.appended = known.confirmed = start - 1
            # The progress has to be durable before the first entry of the batch is appended.
            await self._store(sink_id, known, applying=True)
            # Deduplication follows every entry of the log, and takes the sink for a producer.
            if topic.deduplication is not None:
                topic.deduplication.joined(property_of(sink_id))
            await self._append(sink_id, pending, manifest, known)
        await known.wait_confirmed()
        if known.refused is not None:
            await topic.wait_termination_decided()
            if topic.terminated:
                return False  # The next look finds the topic terminated.
            raise UnavailableError(str(known.refused))
        await self._store(sink_id, known, applying=False)
        del self._known[sink_id]
        if topic.deduplication is not None:
            topic.deduplication.left(property_of(sink_id))
        await self._sinks.pending.mark(full, sink_id, pending)
        return True

    def _why_never(self, pending: PendingBatch) -> str | None:
        """Return the reason if the batch cannot be applied here any more."""
        if self._topic().log.created != pending.created:
            return "the topic was deleted and made anew after the commit"
        if self._topic().terminated:
            return "the topic was terminated"
        return None

    async def _append(
        self, sink_id: str, pending: PendingBatch, manifest: Manifest, known: _Applying
    ) -> None:
        """Append what the topic lacks of the share, until the log refuses an entry."""
        topic = self._topic()
        sequence = next_to_append(pending.share, known.appended)
        pieces = manifest.pieces_from(topic.name.full, sequence)
        reader: LedgerReader | None = None
        for staged, at, last, sequence in pieces:
            # A task has staged many pieces for each partition.  A copy that moves meanwhile ends
            # a read, and the next try opens the ledger again.
            if reader is None or reader.ledger_id != staged.ledger_id:
                reader = await self._sinks.ledgers.open(
                    staged.ledger_id, pending.sink, staged.attempt
                )
            while at <= last:
                for entry in await reader.read(at, last, max_bytes=_READ_BYTES):
                    await topic.log.wait_room()
                    if topic.closing:
                        raise UnavailableError(f"{topic.name} is being closed")
                    self._append_one(sink_id, known, sequence, entry.payload)
                    if known.refused is not None:
                        return
                    at, sequence = at + 1, sequence + 1
                if known.sequence - (known.stored or 0) >= STORE_ENTRIES:
                    await self._store(sink_id, known, applying=True)

    def _append_one(
        self, sink_id: str, known: _Applying, sequence: int, staged: memoryview
    ) -> None:
        # No gap and no repeat: the ids that are given to the log ascend one by one.
        assert known.appended is None or sequence == known.appended + 1
        topic, producer = self._topic(), property_of(sink_id)
        head, body = applied_entry(staged, producer, sequence, topic.clock.now_ms())
        before, known.appended = known.appended, sequence
        if topic.deduplication is not None:
            ids = EntryIds(producer, sequence, sequence)
            topic.deduplication.appended(ids, len(head) + len(body))
        done = partial(self._done, known, before, sequence)
        topic.append_for_sink((head, body), messages_of(staged), done)

    def _done(
        self,
        known: _Applying,
        before: int | None,
        sequence: int,
        position: Position | None,
        error: Exception | None,
    ) -> None:
        """Handle the result of an append; the log reports them in order."""
        topic = self._topic()
        if position is not None:
            if topic.deduplication is not None:
                topic.deduplication.confirmed(position)
            known.confirmed, known.position = sequence, position
            known.offset = topic.log.confirmed_offset
            known.change()
            return
        assert error is not None
        if isinstance(error, _REFUSALS):
            # The log says this from within `append`, so nothing was appended behind it.
            known.appended, known.refused = before, error
            if topic.deduplication is not None:
                topic.deduplication.refused()
        else:
            topic.append_failed(error)  # Everything is in doubt; the next owner counts.

    # -- progress

    def _stored(self) -> dict[str, Progress]:
        try:
            return self._topic().logs.sink_progress(self._topic().log)
        except LogCorruptError as error:
            raise SinkError(f"{self._topic().name}: {error}") from error

    async def _know(self, sink_id: str, pending: PendingBatch) -> _Applying | None:
        """Return how far the sink is; None if that cannot be known any more."""
        known = self._known.get(sink_id)
        if known is None:
            progress = self._stored().get(sink_id)
            log = self._topic().log
            if progress is None:
                known = _Applying(pending.sink, None, log.last_confirmed, log.confirmed_offset)
            else:
                known = await self._count(progress, property_of(sink_id))
            if known is not None:
                self._known[sink_id] = known
        return known

    async def _count(self, progress: Progress, producer: str) -> _Applying | None:
        """Count the entries of a sink behind its stored progress."""
        topic, log = self._topic(), self._topic().log
        known = _Applying(progress.sink, progress.sequence, progress.position, progress.offset)
        if not progress.applying:
            return known
        trimmed = progress.ledger < log.before_first.ledger_id
        # Offsets have no gaps, so they tell if something behind the position was trimmed.
        if trimmed and await topic.first_offset() > progress.offset + 1:
            return None
        at, end = log.next_position(max(progress.position, log.before_first)), log.last_confirmed
        while at <= end:
            entries = await log.read(at, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES)
            if not entries:
                break
            for entry in entries:
                with suppress(WireError):
                    _, metadata = peek_metadata(entry.data)
                    if metadata.producer_name == producer and entry.position <= end:
                        known.appended = known.confirmed = metadata.sequence_id
                        known.position = entry.position
            at = log.next_position(entries[-1].position)
        return known

    async def _store(self, sink_id: str, known: _Applying, *, applying: bool) -> None:
        """Store the progress durably, and remove that of sinks which are forgotten."""
        topic, log = self._topic(), self._topic().log
        forgotten: Collection[str] = ()
        if applying and known.stored is None:
            forgotten = await self._forgotten()
        begins = known.appended == known.confirmed

        def make() -> Progress:
            # With nothing under way, all entries of the sink are up to the end of the log.
            if begins and known.appended == known.confirmed:
                known.position, known.offset = log.last_confirmed, log.confirmed_offset
            position = known.position
            return Progress(
                known.name,
                known.sequence,
                position.ledger_id,
                position.entry_id,
                known.offset,
                applying,
            )

        await topic.logs.store_sink_progress(log, sink_id, make, forgotten)
        known.stored = known.sequence

    async def _forgotten(self) -> Collection[str]:
        """Return the ids of sinks with a progress here that will never write again."""
        found: list[str] = []
        done = [(i, p) for i, p in self._stored().items() if not p.applying]
        for sink_id, progress in done[:_FORGOTTEN_AT_ONCE]:
            stored = await self._sinks.records.find(progress.sink)
            if stored is None or stored.record.sink_id != sink_id:
                found.append(sink_id)
        return found

    async def _settle(self, sink_id: str) -> None:
        """Hold the log no longer for a batch that was given up, or was finished by its mark."""
        progress = self._stored().get(sink_id)
        if progress is None or not progress.applying:
            return
        known = self._known.get(sink_id) or await self._count(progress, property_of(sink_id))
        if known is not None:
            await known.wait_confirmed()
            await self._store(sink_id, known, applying=False)
            self._known.pop(sink_id, None)
