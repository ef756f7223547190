"""Read entries: the shell of `ReadProtocol`, and the reader of one ledger.

An entry is returned only if its digest matches; a damaged copy counts as no copy.  Payloads are
views into the memory in which they were received, so a caller copies what it keeps for long.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

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
    Ask,
    Effect,
    Failed,
    Found,
    ReadProtocol,
    Verdict,
)
from daybook.wire.digest import Digester, DigestType
from daybook.wire.entry import Entry, decode_entry
from daybook.wire.errors import WireError
from daybook.wire.messages.bookie import LAST_ENTRY, Status

_STRETCH_BYTES = 64 << 20  # A stretch has between half of this and all of it.
_UNKNOWN_ENTRY_BYTES = 1024  # assumed while no size is known
_NEGATIVE = (Status.NO_ENTRY, Status.NO_LEDGER)


def digester_of(metadata: LedgerMetadata) -> Digester:
    """Return the digester of the ledger; old ledgers without a digest type use CRC32."""
    digest_type = metadata.digest_type or DigestType.CRC32
    if digest_type is DigestType.HMAC:
        return Digester(digest_type, metadata.password or b"")
    return _shared_digester(digest_type)


@cache
def _shared_digester(digest_type: DigestType) -> Digester:
    """Return the digester of all ledgers with a type that needs no password."""
    return Digester(digest_type)


def verdict_of(status: Status | None) -> Verdict:
    """Return the verdict of an answer without an entry.  Only two statuses prove an absence."""
    return Verdict.ABSENT if status in _NEGATIVE else Verdict.UNKNOWN


def preferred_bookie(
    ledger_id: int, fragments: Sequence[Fragment], first: int, entry_bytes: int
) -> BookieId:
    """Return the bookie that is asked first, always the same one for a stretch of the ledger.

    A stretch is long enough to make the bookie's read-ahead worthwhile.  The bookies of the
    ensemble share the stretches, and thus the load and the cached entries.
    """
    ensemble = fragment_at(fragments, first).ensemble
    rounded = 1 << max(1, entry_bytes).bit_length()  # The average size moves while a ledger grows.
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
        holders = {bookie for fragment in fragments for bookie in fragment.ensemble}
        self._protocol = ReadProtocol(
            quorums,
            fragments,
            first,
            count,
            prefer=(preferred_bookie(ledger_id, fragments, first, entry_bytes),),
            avoid=context.directory.doubtful(holders),
        )
        self._silent: set[BookieId] = set()  # asked, and no answer has come since
        self._slow: set[BookieId] = set()  # those of them that the directory was told of
        self._entries: dict[int, Entry] = {}
        self._failed: dict[int, bool] = {}  # entry -> True if absent, False if unknown
        self._why: dict[int, str] = {}
        self._done = trio.Event()

    async def read(self, max_bytes: int) -> list[Entry]:
        """Return the entries from the first one up to the first that cannot be read.

        Raise the error of the first entry if that one cannot be read.
        """
        self._perform(self._protocol.start())
        while not self._protocol.done:
            with trio.move_on_after(self._context.limits.slow_read_s) as scope:
                await self._done.wait()
            if scope.cancelled_caught:
                self._note_slow()
                self._perform(self._protocol.slow())
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
            why = "none of the bookies of its write set has it"
            return NoSuchEntryError(self._ledger_id, entry_id, why)
        return ReadUnknownError(self._ledger_id, entry_id, self._why.get(entry_id, "no answer"))

    def _note_slow(self) -> None:
        for bookie in self._silent:
            self._context.directory.bookie_slow(bookie)
        self._slow |= self._silent

    def _heard(self, bookie: BookieId) -> None:
        """Note an answer, or the failure of a request.  It may come long after the end of the run.

        Each bookie that is slow is heard, since every request has an outcome.
        """
        self._silent.discard(bookie)
        if bookie in self._slow:
            self._slow.remove(bookie)
            self._context.directory.bookie_heard(bookie)

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
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
        self._silent.add(bookie)
        if self._context.batches.worthwhile(bookie, count, self._entry_bytes):
            self._context.nursery.start_soon(self._ask_in_batches, bookie, first, count)
        else:
            self._ask_one_by_one(bookie, first, count)

    def _ask_one_by_one(self, bookie: BookieId, first: int, count: int) -> None:
        for entry_id in range(first, first + count):
            if entry_id in self._entries:
                continue  # Another bookie has answered.
            callback = partial(self._answered, bookie, entry_id)
            self._context.bookies.read(bookie, self._ledger_id, entry_id, callback)

    async def _ask_in_batches(self, bookie: BookieId, first: int, count: int) -> None:
        """Ask for batches; ask for single entries once a batch comes back empty."""
        end = first + count
        while first < end and not self._done.is_set():
            batch = await self._context.batches.read(bookie, self._ledger_id, first, end - first)
            self._heard(bookie)
            for entry_id, entry in enumerate(batch, first):
                self._answered(bookie, entry_id, Status.OK, entry)
            first += len(batch)
            if not batch:
                self._ask_one_by_one(bookie, first, end - first)
                return

    def _answered(
        self, bookie: BookieId, entry_id: int, status: Status | None, buffer: memoryview
    ) -> None:
        if bookie in self._silent:
            self._heard(bookie)
        if status is Status.OK:
            try:
                entry = decode_entry(buffer, self._digester, self._ledger_id, entry_id)
            except WireError as error:
                self._why[entry_id] = f"bookie {bookie}: {error}"
                verdict = Verdict.UNKNOWN
            else:
                # This is `answered(..., FOUND)` without an effect for each entry.
                if self._protocol.found(entry_id):
                    self._entries[entry_id] = entry
                    if self._protocol.done:
                        self._done.set()
                return
        else:
            self._why[entry_id] = f"bookie {bookie}: {status.name if status else 'no answer'}"
            verdict = verdict_of(status)
        self._perform(self._protocol.answered(bookie, entry_id, verdict))


def _asked_for(
    context: LedgerContext, first: int, last: int, max_bytes: int, entry_bytes: int
) -> int:
    """Estimate the number of entries that fit into `max_bytes`."""
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
    """Return a prefix of first..last: at least one entry, and about `max_bytes`.

    `entry_bytes` is the average size of an entry.
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
    """A LAC, and an entry that shows how long the ledger is."""

    lac: int
    length: int  # ledger length up to `entry_id`; 0 if unknown
    entry_id: int


async def read_last_confirmed(
    context: LedgerContext, ledger_id: int, metadata: LedgerMetadata
) -> LastConfirmed:
    """Return the largest LAC that the bookies of the last fragment know, without fencing.

    It may be behind the LAC of the writer: an entry carries the LAC as it was before that entry.
    """
    answers: list[LastConfirmed] = []
    answered: list[int] = []
    silent: list[BookieId] = []
    enough = trio.Event()
    ensemble = metadata.last_fragment.ensemble
    digester = digester_of(metadata)

    def handle_answer(position: int, status: Status | None, buffer: memoryview) -> None:
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
        # Once covered, no ack quorum is left that could hold an entry unknown to all who answered.
        everybody = len(answered) + len(silent) == len(ensemble)
        if everybody or metadata.quorums.is_covered(answered):
            enough.set()

    for position, bookie in enumerate(ensemble):
        context.bookies.read(bookie, ledger_id, LAST_ENTRY, partial(handle_answer, position))
    await enough.wait()
    if not answered:
        names = ", ".join(silent)
        raise ReadUnknownError(ledger_id, LAST_ENTRY, f"no answer from {names}")
    first = metadata.last_fragment.first_entry_id
    before = LastConfirmed(first - 1, 0, first - 1)
    return max([before, *answers], key=lambda answer: answer.lac)


class LedgerReader:
    """Reads a ledger that is closed, or that its writer still appends to.  It never fences."""

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        stored: StoredMetadata,
        last: LastConfirmed | None,
    ) -> None:
        self.ledger_id = ledger_id
        self.last_entry: Entry | None = None  # known only just after a recovery
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
        """The newest entry that may be read, the last one of a closed ledger; -1 for none."""
        return self._last_add_confirmed

    @property
    def length(self) -> int:
        """The payload bytes of a closed ledger, or an estimate while it is open."""
        if self.closed:
            return self.metadata.length
        return self._entry_bytes * (self._last_add_confirmed + 1)

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        """Return a prefix of first..last: at least one entry, and none above the LAC."""
        assert 0 <= first <= last
        last = min(last, self._last_add_confirmed)
        if first > last:
            kind = "last" if self.closed else "last confirmed"
            why = f"the {kind} entry is {last}"
            raise NoSuchEntryError(self.ledger_id, first, why)
        try:
            return await self._read(first, last, max_bytes)
        except (NoSuchEntryError, ReadUnknownError):
            # Copies may have been moved to other bookies since the metadata were read.
            before = self.metadata.fragments
            await self._reload()
            if self.metadata.fragments == before:
                raise
        return await self._read(first, last, max_bytes)

    def reach(self, first: int, last: int, *, max_bytes: int) -> int:
        """Return the last of first..last that a `read` would ask bookies for."""
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
        """Ask bookies for the LAC; return it."""
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
        """Merge new knowledge about the ledger; what was known before stays true."""
        # A server of the store that lags may return an older version.
        if stored.version >= self._stored.version:
            self._stored = stored
        metadata = self.metadata
        if metadata.closed:
            self._last_add_confirmed = metadata.last_entry_id
            if metadata.last_entry_id >= 0:
                self._entry_bytes = metadata.length // (metadata.last_entry_id + 1)
        elif last is not None:
            # A confirmed entry stays confirmed: the LAC never goes back.
            self._last_add_confirmed = max(self._last_add_confirmed, last.lac)
            if last.length and last.entry_id >= 0:
                self._entry_bytes = last.length // (last.entry_id + 1)


async def open_reader(
    context: LedgerContext, ledger_id: int, stored: StoredMetadata
) -> LedgerReader:
    """Open the ledger without recovery: a writer, if there is one, does not notice."""
    last = None
    if not stored.metadata.closed:
        last = await read_last_confirmed(context, ledger_id, stored.metadata)
    return LedgerReader(context, ledger_id, stored, last)
