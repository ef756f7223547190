"""Reads entries: the shell of `ReadProtocol`, and the handle of a reader.

An entry is given out only if its digest matches; a copy that does not match counts as no copy.
Payloads are views into the memory in which they were received: copy what is kept for long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from daybook.bookie.errors import LedgerError, NoSuchEntryError, ReadUnknownError
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import (
    NO_ENTRY,
    BookieId,
    Fragment,
    Quorums,
    fragment_at,
)
from daybook.bookie.ledger.protocol.read import (
    Answered,
    Ask,
    Event,
    Failed,
    Found,
    ReadProtocol,
    Slow,
    Start,
    Verdict,
)
from daybook.wire.digest import Digester, DigestType
from daybook.wire.entry import Entry, decode_entry
from daybook.wire.errors import WireError
from daybook.wire.messages.bookie import LAST_ENTRY, Status

_STRETCH_BYTES = 64 << 20  # at most, and half of it at least
_UNKNOWN_ENTRY_BYTES = 1024  # taken for the size of an entry while none is known
_NEGATIVE = (Status.NO_ENTRY, Status.NO_LEDGER)


def digester_of(metadata: LedgerMetadata) -> Digester:
    return Digester(metadata.digest_type or DigestType.CRC32, metadata.password or b"")


def verdict_of(status: Status | None) -> Verdict:
    """What an answer without an entry says.  Only two codes are a *no*."""
    return Verdict.ABSENT if status in _NEGATIVE else Verdict.UNKNOWN


def preferred_bookie(
    ledger_id: int, fragments: Sequence[Fragment], first: int, entry_bytes: int
) -> BookieId:
    """Who is asked first: always the same for a stretch of the ledger.

    A stretch is long, so that its bookie reads ahead with profit; each bookie of the ensemble has
    its share of them, of the work and in its memory.
    """
    ensemble = fragment_at(fragments, first).ensemble
    rounded = 1 << max(1, entry_bytes).bit_length()  # the average moves while a ledger grows
    stretch = first // max(1, _STRETCH_BYTES // rounded)
    return ensemble[(ledger_id + stretch) % len(ensemble)]


class EntryRun:
    """One run of entries on its way from the bookies."""

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        digester: Digester,
        quorums: Quorums,
        fragments: Sequence[Fragment],
        first: int,
        count: int,
        entry_bytes: int,
    ) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._digester = digester
        self._range = range(first, first + count)
        self._entry_bytes = entry_bytes
        self._protocol = ReadProtocol(
            quorums,
            fragments,
            first,
            count,
            prefer=(preferred_bookie(ledger_id, fragments, first, entry_bytes),),
            avoid=context.directory.quarantined,
        )
        self._entries: dict[int, Entry] = {}
        self._failed: dict[int, bool] = {}  # entry -> absent; else unknown
        self._why: dict[int, str] = {}
        self._done = trio.Event()

    async def read(self, max_bytes: int) -> list[Entry]:
        """The entries from the first on, up to one that cannot be had; that one raises if first."""
        self._feed(Start())
        while not self._protocol.done:
            with trio.move_on_after(self._context.limits.slow_read_s) as scope:
                await self._done.wait()
            if scope.cancelled_caught:
                self._feed(Slow())
        entries: list[Entry] = []
        size = 0
        for entry_id in self._range:
            entry = self._entries.get(entry_id)
            if entry is None:
                break
            size += len(entry.payload)
            if entries and size > max_bytes:
                break
            entries.append(entry)
        if not entries:
            raise self._error(self._range.start)
        return entries

    def _error(self, entry_id: int) -> LedgerError:
        if self._failed[entry_id]:
            why = "none of the bookies that should hold it does"
            return NoSuchEntryError(self._ledger_id, entry_id, why)
        return ReadUnknownError(self._ledger_id, entry_id, self._why.get(entry_id, "no answer"))

    def _feed(self, event: Event) -> None:
        for effect in self._protocol.step(event):
            match effect:
                case Ask(bookie, first, count):
                    self._ask(bookie, first, count)
                case Found():
                    pass  # `_answered` has kept it.
                case Failed(entry_id, absent):
                    self._failed[entry_id] = absent
        if self._protocol.done:
            self._done.set()

    def _ask(self, bookie: BookieId, first: int, count: int) -> None:
        if self._context.batches.worthwhile(bookie, count, self._entry_bytes):
            self._context.nursery.start_soon(self._ask_in_batches, bookie, first, count)
        else:
            self._ask_one_by_one(bookie, first, count)

    def _ask_one_by_one(self, bookie: BookieId, first: int, count: int) -> None:
        for entry_id in range(first, first + count):
            if entry_id in self._entries:
                continue  # Another bookie was quicker.
            callback = partial(self._answered, bookie, entry_id)
            self._context.bookies.read(bookie, self._ledger_id, entry_id, callback)

    async def _ask_in_batches(self, bookie: BookieId, first: int, count: int) -> None:
        """What does not come like that is asked for one by one, and then has its outcome."""
        end = first + count
        while first < end and not self._done.is_set():
            batch = await self._context.batches.read(bookie, self._ledger_id, first, end - first)
            for entry_id, entry in enumerate(batch, first):
                self._answered(bookie, entry_id, Status.OK, entry)
            first += len(batch)
            if not batch:
                self._ask_one_by_one(bookie, first, end - first)
                return

    def _answered(
        self, bookie: BookieId, entry_id: int, status: Status | None, buffer: memoryview
    ) -> None:
        if status is Status.OK:
            try:
                entry = decode_entry(buffer, self._digester, self._ledger_id, entry_id)
            except WireError as error:
                self._why[entry_id] = f"bookie {bookie}: {error}"
                verdict = Verdict.UNKNOWN
            else:
                if self._protocol.found(entry_id):
                    self._entries[entry_id] = entry
                    if self._protocol.done:
                        self._done.set()
                return
        else:
            self._why[entry_id] = f"bookie {bookie}: {status.name if status else 'no answer'}"
            verdict = verdict_of(status)
        self._feed(Answered(bookie, entry_id, verdict))


def _asked_for(
    context: LedgerContext, first: int, last: int, max_bytes: int, entry_bytes: int
) -> int:
    """How many entries `max_bytes` hold, probably."""
    count = max(1, max_bytes // max(1, entry_bytes))
    return min(count, last - first + 1, context.limits.read_entries_max)


async def read_entries(
    context: LedgerContext,
    ledger_id: int,
    metadata: LedgerMetadata,
    first: int,
    last: int,
    *,
    max_bytes: int,
    entry_bytes: int,
) -> list[Entry]:
    """A prefix of first..last, at least one entry; about as many as `max_bytes` hold.

    `entry_bytes` is what an entry has on average.
    """
    count = _asked_for(context, first, last, max_bytes, entry_bytes)
    digester = digester_of(metadata)
    run = EntryRun(
        context,
        ledger_id,
        digester,
        metadata.quorums,
        metadata.fragments,
        first,
        count,
        entry_bytes,
    )
    return await run.read(max_bytes)


@dataclass(frozen=True, slots=True)
class LastConfirmed:
    lac: int
    length: int  # of the ledger up to some entry that is stored; 0 if none is known
    entry_id: int  # that one


async def read_last_confirmed(
    context: LedgerContext, ledger_id: int, metadata: LedgerMetadata
) -> LastConfirmed:
    """The largest LAC that the bookies of the last fragment know; fences nothing.

    It may trail what the writer knows: an entry carries the LAC from before it.
    """
    answers: list[LastConfirmed] = []
    answered: list[int] = []
    silent: list[BookieId] = []
    enough = trio.Event()
    ensemble = metadata.last_fragment.ensemble
    digester = digester_of(metadata)

    def heard(position: int, status: Status | None, buffer: memoryview) -> None:
        if status is Status.OK:
            try:
                entry = decode_entry(buffer, digester, ledger_id, None)
            except WireError:
                silent.append(ensemble[position])
            else:
                answers.append(LastConfirmed(entry.lac, entry.length, entry.entry_id))
                answered.append(position)
        elif status in _NEGATIVE:
            answered.append(position)
        else:
            silent.append(ensemble[position])
        everybody = len(answered) + len(silent) == len(ensemble)
        if everybody or metadata.quorums.is_covered(answered):
            enough.set()

    for position, bookie in enumerate(ensemble):
        context.bookies.read(bookie, ledger_id, LAST_ENTRY, partial(heard, position))
    await enough.wait()
    if not answered:
        names = ", ".join(silent)
        raise ReadUnknownError(ledger_id, LAST_ENTRY, f"no answer from {names}")
    first = metadata.last_fragment.first_entry_id
    before = LastConfirmed(first - 1, 0, first - 1)
    return max([before, *answers], key=lambda answer: answer.lac)


class LedgerReader:
    """A ledger to read from.  Closed, or followed while its writer appends; never fences."""

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        stored: StoredMetadata,
        last: LastConfirmed | None,
    ) -> None:
        self.ledger_id = ledger_id
        self._context = context
        self._stored = stored
        self._last_add_confirmed = NO_ENTRY
        self._entry_bytes = _UNKNOWN_ENTRY_BYTES
        self.learn(stored, last)

    @property
    def metadata(self) -> LedgerMetadata:
        return self._stored.metadata

    @property
    def stored(self) -> StoredMetadata:
        """The metadata with their version."""
        return self._stored

    @property
    def closed(self) -> bool:
        return self.metadata.closed

    @property
    def last_add_confirmed(self) -> int:
        """The newest entry that may be read; -1 for none.  Of a closed ledger, its last one."""
        return self._last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger; an estimate while it is open."""
        if self.closed:
            return self.metadata.length
        return self._entry_bytes * (self._last_add_confirmed + 1)

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        """A prefix of first..last, at least one entry.  Nothing behind the LAC is given out."""
        assert 0 <= first <= last
        last = min(last, self._last_add_confirmed)
        if first > last:
            why = f"the last one is {last}" if self.closed else f"confirmed are those up to {last}"
            raise NoSuchEntryError(self.ledger_id, first, why)
        try:
            return await self._read(first, last, max_bytes)
        except (NoSuchEntryError, ReadUnknownError):
            # Its copies may have moved since we looked.
            before = self.metadata.fragments
            await self._reload()
            if self.metadata.fragments == before:
                raise
        return await self._read(first, last, max_bytes)

    def reach(self, first: int, last: int, *, max_bytes: int) -> int:
        """The last of first..last that a `read` asks bookies for."""
        return first - 1 + _asked_for(self._context, first, last, max_bytes, self._entry_bytes)

    async def _read(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        return await read_entries(
            self._context,
            self.ledger_id,
            self.metadata,
            first,
            last,
            max_bytes=max_bytes,
            entry_bytes=self._entry_bytes,
        )

    async def refresh(self) -> int:
        """Look how far the ledger has got; return the LAC."""
        if not self.closed:
            await self._reload()
        return self._last_add_confirmed

    async def _reload(self) -> None:
        stored = await self._context.metadata_store.read(self.ledger_id)
        last = None
        if not stored.metadata.closed:
            last = await read_last_confirmed(self._context, self.ledger_id, stored.metadata)
        self.learn(stored, last)

    def learn(self, stored: StoredMetadata, last: LastConfirmed | None) -> None:
        """Take in what was found out about the ledger; what was known before stays true."""
        if stored.version >= self._stored.version:  # else a server of the store lags
            self._stored = stored
        metadata = self.metadata
        if metadata.closed:
            self._last_add_confirmed = metadata.last_entry_id
            if metadata.last_entry_id >= 0:
                self._entry_bytes = metadata.length // (metadata.last_entry_id + 1)
        elif last is not None:
            self._last_add_confirmed = max(self._last_add_confirmed, last.lac)
            if last.length and last.entry_id >= 0:
                self._entry_bytes = last.length // (last.entry_id + 1)


async def open_reader(
    context: LedgerContext, ledger_id: int, stored: StoredMetadata
) -> LedgerReader:
    """Open without recovery: the writer, if there is one, does not notice."""
    last = None
    if not stored.metadata.closed:
        last = await read_last_confirmed(context, ledger_id, stored.metadata)
    return LedgerReader(context, ledger_id, stored, last)
