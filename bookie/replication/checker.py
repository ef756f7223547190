"""The checker finds out which copies of a ledger exist: the shell of `protocol.replica_check`.

The checker asks each bookie for the list of its entries, and then for every entry that is not on
the list, one by one: a list does not show which entries the bookie is in doubt about.  If a bookie
is to be verified, the checker reads every copy there, at the given rate, and checks its digest.
Only settled fragments are checked.

An answer that says nothing about the entry, like that of an overloaded bookie, counts as no answer.

Apache's bookies with RocksDB (Pulsar's default) never answer a request for a list, but they answer
all others.  The checker asks them for each entry, and does not request a list for an hour.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.reader import digester_of
from daybook.bookie.replication.protocol.replica_check import (
    BookieStatus,
    FragmentReport,
    ReplicaState,
    SealedFragment,
    apply_entry_list,
    entry_bytes,
    expected_replicas,
    newcomers,
    plan_repairs,
    runs_of,
    sealed_fragments,
)
from daybook.wire.entry import decode_entry
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.messages.bookie import Status
from daybook.wire.messages.bookie_v3 import encode_list_entries, from_v3
from daybook.wire.messages.entry_list import Group, decode_entry_list
from daybook.wire.rate_limit import RateLimit

_READS_MAX = 64  # pending at one bookie
_NO = (Status.NO_ENTRY, Status.NO_LEDGER)
_HERE = (BookieStatus.WRITABLE, BookieStatus.READONLY, BookieStatus.LEAVING)
_LISTLESS_S = 3600.0  # no list is requested for so long after one got no answer
ENTRIES_MAX = 1 << 26  # per ledger; each needs a few bytes of memory


class TooManyEntriesError(LedgerError):
    """The metadata name more entries than can be compared."""


class _NoList(Enum):
    NO_ANSWER = auto()
    NO_LEDGER = auto()  # an explicit no: it has no entry of the ledger
    NOT_OFFERED = auto()  # an old bookie, Apache's with RocksDB, or one in doubt: ask by entry


_List: TypeAlias = Sequence[Group] | _NoList


class Checker:
    def __init__(self, context: LedgerContext, rate_limit: RateLimit | None = None) -> None:
        self._context = context
        self._rate_limit = rate_limit
        self._listless_until: dict[BookieId, float] = {}

    async def check(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        statuses: Mapping[BookieId, BookieStatus],
        *,
        verify: Collection[BookieId] = (),
        unfillable: Collection[BookieId] = (),
        spares: Sequence[BookieId] | None = None,
    ) -> list[FragmentReport]:
        """Return a report for each settled fragment; read every copy on bookies in `verify`.

        `spares` are the bookies that could replace another one; None if they are not known.
        """
        fragments = sealed_fragments(metadata)
        # Before any memory is reserved: the check keeps a byte for each entry and position.
        if (count := sum(max(0, fragment.count) for fragment in fragments)) > ENTRIES_MAX:
            raise TooManyEntriesError(
                f"the metadata of ledger {ledger_id} name {count} entries; at most {ENTRIES_MAX}"
                " can be compared"
            )
        asked = {b for s in fragments if s.count > 0 for b in s.ensemble}
        lists: dict[BookieId, _List] = {}

        async def ask(bookie: BookieId) -> None:
            lists[bookie] = await self._list(bookie, ledger_id)

        async with trio.open_nursery() as nursery:
            for bookie in sorted(asked):
                if statuses.get(bookie) in _HERE:
                    nursery.start_soon(ask, bookie)
        ledger_check = _LedgerCheck(
            self._context, ledger_id, metadata, lists, verify, self._rate_limit
        )
        reports: list[FragmentReport] = []
        for fragment in fragments:
            copies = [
                expected_replicas(fragment, metadata.quorums, position)
                for position in range(metadata.quorums.ensemble)
            ]
            async with trio.open_nursery() as nursery:
                for codes, bookie in zip(copies, fragment.ensemble, strict=True):
                    status = statuses.get(bookie, BookieStatus.LOST)
                    nursery.start_soon(ledger_check.ask, fragment, codes, bookie, status)
            spare = spares is None or bool(newcomers(fragment, spares))
            reports.append(
                plan_repairs(fragment, copies, statuses, unfillable=unfillable, spare=spare)
            )
        return reports

    async def _list(self, bookie: BookieId, ledger_id: int) -> _List:
        encode = partial(encode_list_entries, ledger_id=ledger_id)
        timeout_s = self._context.limits.bookies.read_timeout_s
        began = trio.current_time()
        if began < self._listless_until.get(bookie, began):
            return _NoList.NOT_OFFERED
        try:
            response = await self._context.requests.ask(bookie, encode, timeout_s)
        except ConnectionLostError:
            # Only silence for the whole timeout from a bookie that answers probes means "no lists".
            had_time = trio.current_time() >= began + timeout_s
            if had_time and await self._context.bookies.probe(bookie):
                self._listless_until[bookie] = trio.current_time() + _LISTLESS_S
                return _NoList.NOT_OFFERED
            return _NoList.NO_ANSWER
        status = from_v3(response.status)
        if status in _NO:
            return _NoList.NO_LEDGER
        if status is not Status.OK:
            return _NoList.NOT_OFFERED
        answer = response.getListOfEntriesOfLedgerResponse
        try:
            return decode_entry_list(answer.availabilityOfEntriesOfLedger)
        except WireError:
            return _NoList.NOT_OFFERED


class _LedgerCheck:
    """The state that one check shares between the bookies that it asks."""

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        metadata: LedgerMetadata,
        lists: Mapping[BookieId, _List],
        verify: Collection[BookieId],
        rate_limit: RateLimit | None,
    ) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._digester = digester_of(metadata)
        self._lists = lists
        self._verify = verify
        self._rate_limit = rate_limit
        self._entry_bytes = entry_bytes(metadata)

    async def ask(
        self, fragment: SealedFragment, codes: bytearray, bookie: BookieId, status: BookieStatus
    ) -> None:
        """Replace NO_ANSWER by the bookie's answers, where it gives one."""
        if status is BookieStatus.LOST:
            _replace(codes, ReplicaState.LOST)
            return
        found = self._lists.get(bookie, _NoList.NO_ANSWER)
        match found:
            case _NoList.NO_ANSWER:
                return
            case _NoList.NO_LEDGER:
                _replace(codes, ReplicaState.MISSING)
                return
            case _NoList.NOT_OFFERED:
                to_read = [ReplicaState.NO_ANSWER]
            case _:
                apply_entry_list(fragment, codes, found)
                to_read = [ReplicaState.NO_ANSWER]
                if bookie in self._verify:
                    to_read.append(ReplicaState.PRESENT)
        window = _Window(_READS_MAX)
        for run in runs_of(codes, to_read, fragment.first):
            for entry_id in run:
                known_there = codes[entry_id - fragment.first] == ReplicaState.PRESENT
                if known_there or found is _NoList.NOT_OFFERED:
                    await self._wait_turn()
                await window.enter()
                # A copy on the list that cannot be read now is unknown, and no longer PRESENT.
                codes[entry_id - fragment.first] = ReplicaState.NO_ANSWER
                heard = partial(self._heard, fragment, codes, window, known_there, entry_id)
                self._context.bookies.read(bookie, self._ledger_id, entry_id, heard)
        # Every callback writes into `codes`: the caller reads them only after the last one.
        await window.wait_empty()

    async def _wait_turn(self) -> None:
        if self._rate_limit is not None:
            await self._rate_limit.spend(self._entry_bytes)

    def _heard(
        self,
        fragment: SealedFragment,
        codes: bytearray,
        window: "_Window",
        known_there: bool,
        entry_id: int,
        status: Status | None,
        buffer: memoryview,
    ) -> None:
        codes[entry_id - fragment.first] = self._copy_of(status, known_there, entry_id, buffer)
        window.leave()

    def _copy_of(
        self, status: Status | None, known_there: bool, entry_id: int, buffer: memoryview
    ) -> ReplicaState:
        match status:
            case Status.OK:
                try:
                    decode_entry(buffer, self._digester, self._ledger_id, entry_id)
                except WireError:
                    return ReplicaState.DAMAGED
                return ReplicaState.PRESENT
            case Status.NO_ENTRY | Status.NO_LEDGER:
                return ReplicaState.MISSING
            # The bookie has listed this entry: it has it, and its disk does not return it.
            case Status.IO_ERROR if known_there:
                return ReplicaState.UNREADABLE
            case Status.IO_ERROR | Status.UNKNOWN_LEDGER_STATE:
                return ReplicaState.DOUBTFUL
            case _:
                return ReplicaState.NO_ANSWER


class _Window:
    """A limit on pending requests; callbacks of answers make room."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = 0
        self._changed = trio.Event()

    async def enter(self) -> None:
        while self._count >= self._size:
            await self._changed.wait()
        self._count += 1

    def leave(self) -> None:
        assert self._count > 0
        self._count -= 1
        self._changed.set()
        self._changed = trio.Event()

    async def wait_empty(self) -> None:
        while self._count:
            await self._changed.wait()


def _replace(codes: bytearray, by: ReplicaState) -> None:
    codes[:] = codes.replace(bytes([ReplicaState.NO_ANSWER]), bytes([by]))
