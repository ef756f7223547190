"""The auditor: it finds and marks underreplicated ledgers, one at a time in a cluster (`election`).

    bookies   when a bookie is lost or told to leave: every ledger that names it is marked
    ledgers   at an interval, and on request: the entry lists of all copies are compared; this finds
              entries that writers left on an ack quorum only, and entries that a disk has lost

The auditor only adds marks.  A round that was not finished, or used old information, does no harm:
the worker checks each ledger itself before it does anything.
"""

import logging
from collections.abc import Sequence

import trio

from daybook.bookie.errors import (
    LedgerError,
    MalformedRecordError,
    NoSuchLedgerError,
    RegistryError,
)
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.underreplication import Check, Underreplication
from daybook.bookie.replication.checker import Checker
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.members import Members
from daybook.bookie.replication.protocol.copies import GONE, Report, names
from daybook.bookie.replication.protocol.pace import Pace
from daybook.wire.metadata.store import MetadataError

_log = logging.getLogger(__name__)


class Auditor:
    def __init__(
        self,
        context: LedgerContext,
        underreplication: Underreplication,
        members: Members,
        limits: ReplicationLimits,
    ) -> None:
        self._context = context
        self._underreplication = underreplication
        self._members = members
        self._limits = limits
        self._checker = Checker(context, Pace(limits.rate_bytes_per_s, limits.burst_bytes))
        self._wake = trio.Event()

    async def run(self) -> None:
        """Audit until cancelled; the election runs this while this candidate is elected."""
        await self._members.wait_looked()
        triggers = self._members.triggers
        gone: list[BookieId] | None = None  # the lost and leaving bookies of the last audit
        audited_at = trio.current_time()
        self._members.add_listener(self._look_again)
        try:
            while True:
                # The event is new before the audit: a change during it causes another round.
                self._wake = trio.Event()
                try:
                    await self._wait_not_paused()
                    await self._underreplication.check_layout()
                    now, asked = trio.current_time(), self._members.triggers != triggers
                    present = self._gone()
                    due = now >= audited_at + self._limits.audit_interval_s
                    if asked or due or present != gone:
                        await self.audit_bookies()
                        gone, audited_at = present, now
                    if asked or await self._check_due():
                        triggers = self._members.triggers
                        await self.check_ledgers()
                except (MetadataError, RegistryError) as error:
                    _log.warning("the audit was not finished: %s", error)
                    with trio.move_on_after(self._limits.retry_s):
                        await self._wake.wait()
                    continue
                with trio.move_on_after(await self._pause_s(audited_at)):
                    await self._wake.wait()
        finally:
            self._members.remove_listener(self._look_again)

    def _look_again(self) -> None:
        self._wake.set()

    def _gone(self) -> list[BookieId]:
        return [b for b, presence in self._members.all().items() if presence in GONE]

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
            presence = self._members.of(names(stored.metadata))
            missing = [bookie for bookie, state in presence.items() if state in GONE]
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
        presence = self._members.of(names(stored.metadata))
        verify = list(presence) if self._limits.thorough else ()
        try:
            return lacking(
                await self._checker.check(ledger_id, stored.metadata, presence, verify=verify)
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
            _log.error("ledger %d cannot be looked after: %s", ledger_id, error)
            return None

    async def _mark(self, ledger_id: int, missing: list[BookieId]) -> None:
        await self._underreplication.mark(ledger_id, missing, self._context.clock.now_ms())


def lacking(reports: Sequence[Report]) -> list[BookieId]:
    """Return the bookies whose copies have to be made again, as far as is known."""
    filled = {fill.bookie for report in reports for fill in report.fills}
    moved = {move.bookie for report in reports for move in report.moves}
    return sorted(filled | moved)
