"""The auditor finds and marks underreplicated ledgers; one process of the cluster is elected.

    bookies   when a bookie is lost or told to leave: every ledger that names it is marked
    ledgers   at an interval, and on request: the entry lists of all copies are compared; this finds
              entries that writers left on an ack quorum only, and entries that a disk has lost

The auditor only adds marks.  A round that was not finished, or used old information, does no harm:
the worker checks each ledger itself before it does anything.

The election uses BookKeeper's own records:

    <root>/underreplication/auditorelection          the name of the elected auditor
    <root>/underreplication/auditorelection/V_<n>    ephemeral: a candidate

The candidate with the lowest number is elected; every other candidate watches the one before it.
An auditor that was cut off may believe for a moment that it is still elected.  This is safe,
because an auditor only adds marks.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio
from google.protobuf import text_format

from daybook.bookie.errors import (
    LedgerError,
    MalformedRecordError,
    NoSuchLedgerError,
    RegistryError,
)
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Check, Underreplication
from daybook.bookie.replication.bookie_watcher import BookieWatcher
from daybook.bookie.replication.checker import Checker
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.protocol.replica_check import GONE, FragmentReport, bookies_of
from daybook.wire.metadata.store import (
    ANY,
    MetadataError,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    SessionState,
)
from daybook.wire.proto.bookkeeper_metadata_pb2 import AuditorVoteFormat
from daybook.wire.rate_limit import RateLimit

_log = logging.getLogger(__name__)
_VOTE = re.compile(r"V_(\d{10})")
_RETRY_S = 1.0  # after the metadata store did not answer the election


class Auditor:
    def __init__(
        self,
        context: LedgerContext,
        underreplication: Underreplication,
        watcher: BookieWatcher,
        limits: ReplicationLimits,
    ) -> None:
        self._context = context
        self._underreplication = underreplication
        self._watcher = watcher
        self._limits = limits
        self._checker = Checker(context, RateLimit(limits.rate_bytes_per_s, limits.burst_bytes))
        self._wake = trio.Event()

    async def run(self) -> None:
        """Audit until cancelled; the election runs this while this candidate is elected."""
        await self._watcher.wait_ready()
        triggers = self._watcher.audit_requests
        gone: list[BookieId] | None = None  # the lost and leaving bookies of the last audit
        audited_at = trio.current_time()
        self._watcher.add_listener(self._look_again)
        try:
            while True:
                # The event is new before the audit: a change during it causes another round.
                self._wake = trio.Event()
                try:
                    await self._wait_not_paused()
                    await self._underreplication.check_layout()
                    now, asked = trio.current_time(), self._watcher.audit_requests != triggers
                    present = self._gone()
                    due = now >= audited_at + self._limits.audit_interval_s
                    if asked or due or present != gone:
                        await self.audit_bookies()
                        gone, audited_at = present, now
                    if asked or await self._check_due():
                        triggers = self._watcher.audit_requests
                        await self.check_ledgers()
                except (MetadataError, RegistryError) as error:
                    _log.warning("the audit was not finished: %s", error)
                    with trio.move_on_after(self._limits.retry_s):
                        await self._wake.wait()
                    continue
                with trio.move_on_after(await self._pause_s(audited_at)):
                    await self._wake.wait()
        finally:
            self._watcher.remove_listener(self._look_again)

    def _look_again(self) -> None:
        self._wake.set()

    def _gone(self) -> list[BookieId]:
        return [b for b, status in self._watcher.statuses().items() if status in GONE]

    async def _wait_not_paused(self) -> None:
        while await self._underreplication.is_paused():
            resumed = trio.Event()  # Only while paused: watches pile up.
            if await self._underreplication.is_paused(resumed.set):
                await resumed.wait()

    async def _check_due(self) -> bool:
        return await self._until_check_s() <= 0

    async def _until_check_s(self) -> float:
        try:
            checked_ms = await self._underreplication.check_began_ms(Check.LEDGERS)
        except MalformedRecordError:
            checked_ms = None
        if checked_ms is None:
            return 0.0
        since_s = (self._context.clock.now_ms() - checked_ms) / 1000
        # A time in the future was written by a wrong clock: the check is due.
        return self._limits.check_interval_s - since_s if since_s >= 0 else 0.0

    async def _pause_s(self, audited_at: float) -> float:
        until_audit_s = audited_at + self._limits.audit_interval_s - trio.current_time()
        try:
            return max(0.0, min(until_audit_s, await self._until_check_s()))
        except MetadataError:
            return self._limits.retry_s

    # -- audits

    async def audit_bookies(self) -> int:
        """Mark the ledgers that name a lost or leaving bookie; return their number."""
        marked = 0
        async for ledger_id in self._context.metadata_store.list():
            stored = await self._read(ledger_id)
            if stored is None:
                continue
            statuses = self._watcher.statuses_of(bookies_of(stored.metadata))
            missing = [bookie for bookie, status in statuses.items() if status in GONE]
            if missing:
                await self._mark(ledger_id, missing)
                marked += 1
        return marked

    async def check_ledgers(self) -> int:
        """Compare the copies of all ledgers and mark those that lack some; return their number."""
        begun_ms = self._context.clock.now_ms()
        marked = 0
        async for ledger_id in self._context.metadata_store.list():
            await self._wait_not_paused()
            stored = await self._read(ledger_id)
            if stored is None:
                continue
            if missing := await self._check(ledger_id, stored):
                await self._mark(ledger_id, missing)
                marked += 1
        # Only after a full round: the next auditor repeats an unfinished one.
        await self._underreplication.set_check_began_ms(Check.LEDGERS, begun_ms)
        return marked

    async def _check(self, ledger_id: int, stored: StoredMetadata) -> list[BookieId]:
        """Return the bookies whose copies have to be made again."""
        statuses = self._watcher.statuses_of(bookies_of(stored.metadata))
        verify = list(statuses) if self._limits.thorough else ()
        try:
            return lacking(
                await self._checker.check(ledger_id, stored.metadata, statuses, verify=verify)
            )
        except Exception:  # One ledger must not stop the check of all others.
            _log.exception("ledger %d could not be checked", ledger_id)
            return []

    async def _read(self, ledger_id: int) -> StoredMetadata | None:
        try:
            return await self._context.metadata_store.read(ledger_id)
        except NoSuchLedgerError:
            return None  # deleted meanwhile
        except LedgerError as error:
            _log.error("ledger %d cannot be audited: %s", ledger_id, error)
            return None

    async def _mark(self, ledger_id: int, missing: list[BookieId]) -> None:
        await self._underreplication.mark(ledger_id, missing, self._context.clock.now_ms())


def lacking(reports: Sequence[FragmentReport]) -> list[BookieId]:
    """Return the bookies whose copies have to be made again, as far as is known."""
    filled = {fill.bookie for report in reports for fill in report.fills}
    moved = {move.bookie for report in reports for move in report.moves}
    return sorted(filled | moved)


def _decode_vote(value: bytes) -> str:
    vote = AuditorVoteFormat()
    with suppress(text_format.ParseError, UnicodeDecodeError):
        text_format.Parse(value.decode(), vote)
    return vote.bookieId


class Election:
    """A candidate: `run` stands for election and works while elected, forever."""

    def __init__(self, store: MetadataStore, paths: LedgerPaths, who: str) -> None:
        self.elected = False
        self._store = store
        self._path = f"{paths.underreplication}/auditorelection"
        self._vote = text_format.MessageToString(AuditorVoteFormat(bookieId=who)).encode()

    async def auditor(self) -> str | None:
        """Return the name in the vote that is elected now; None if there is no candidate."""
        for name in await self._candidates():
            record = await self._store.get(f"{self._path}/{name}")
            if record is not None:  # None: that candidate has just gone
                return _decode_vote(record.value)
        return None

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work`, which never ends, while elected; cancel it when the vote is gone."""
        while True:
            try:
                await self._stand(work)
            except* MetadataError:
                await trio.sleep(_RETRY_S)

    async def _stand(self, work: Callable[[], Awaitable[object]]) -> None:
        session_id = self._store.session_id
        vote = await self._cast()
        gone = trio.Event()

        def session_changed(state: SessionState) -> None:
            if state is SessionState.LOST or self._store.session_id != session_id:
                gone.set()

        self._store.add_session_listener(session_changed)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, vote, gone)
                if await self._wait_elected(vote, gone):
                    assert not self.elected
                    self.elected = True
                    nursery.start_soon(work)
                await gone.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.elected = False
            self._store.remove_session_listener(session_changed)

    async def _cast(self) -> str:
        """Return our vote: the one that this session has already cast, or a new one."""
        while True:
            for name in await self._candidates():
                record = await self._store.get(f"{self._path}/{name}")
                if record is not None and record.stat.owner == self._store.session_id:
                    return name
            # A create without an answer may have succeeded: the loop looks for our vote.
            with suppress(OutcomeUnknownError, RecordExistsError):
                await self._store.create(
                    f"{self._path}/V_",
                    self._vote,
                    ephemeral=True,
                    sequential=True,
                    make_parents=True,
                )

    async def _wait_elected(self, vote: str, gone: trio.Event) -> bool:
        while not gone.is_set():
            before = [name for name in await self._candidates() if name < vote]
            if not before:
                with suppress(NoRecordError, OutcomeUnknownError):
                    await self._store.set(self._path, self._vote, ANY)  # Informational.
                return True
            changed = trio.Event()
            if await self._store.get(f"{self._path}/{before[-1]}", changed.set) is None:
                continue  # It left before the watch was set: look for the new predecessor.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, changed, nursery)
                nursery.start_soon(_cancel_after, gone, nursery)
        return False

    async def _follow(self, vote: str, gone: trio.Event) -> None:
        """Set `gone` when our vote is removed: then another candidate is elected."""
        while True:
            changed = trio.Event()
            if await self._store.get(f"{self._path}/{vote}", changed.set) is None:
                gone.set()
                return
            await changed.wait()

    async def _candidates(self) -> list[str]:
        names = await self._store.get_children(self._path) or []
        return sorted(name for name in names if _VOTE.fullmatch(name))


async def _cancel_after(event: trio.Event, nursery: trio.Nursery) -> None:
    await event.wait()
    nursery.cancel_scope.cancel()
