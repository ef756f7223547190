"""The removal of a bookie from the cluster; no entry has fewer copies meanwhile.

    request     the bookie takes no new entries, no new ledger names it; writers replace it
    migrate     every ledger that names it is marked; workers copy, the bookie is a source itself
    verify      all metadata are read in their newest state: none name the bookie
    forget      its cookie is deleted, and it may be stopped

The removal may be interrupted at any time and restarted.  `cancel` withdraws the admin state;
copies that were moved stay where they are.  Waiting for retention is the same without marks.

The removal does not wait forever.  It ends after a while, with the reason, if no bookie could take
the place, if no worker copies, or if auto-recovery is paused.  The admin state stays then.

A writer removes the bookie from the last fragment of its ledger when it next writes, rolls or
closes the ledger.  Such ledgers are counted, and never fenced here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from daybook.bookie.errors import MalformedMetadataError, NoSuchLedgerError
from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import delete_cookie, known_bookies, read_cookie
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.protocol.replica_check import (
    bookies_of,
    bytes_to_copy,
    newcomers,
    sealed_fragments,
)
from daybook.bookie.replication.status_records import StatusRecords

_SHOWN = 5


class DecommissionError(Exception):
    """The bookie cannot be removed or admitted now; the message says why."""


@dataclass(frozen=True, slots=True)
class RemainingLedgers:
    """The ledgers that still name the bookie."""

    ledgers: tuple[int, ...]
    at_writers: tuple[int, ...]  # those not closed whose last fragment names it
    movable: tuple[int, ...]  # those with fragments that a worker can copy now
    without_spare: tuple[int, ...]  # movable ones for which no writable bookie is left
    unreadable: tuple[int, ...]  # their metadata do not parse, and may name it
    size: int  # estimate of the bytes to copy
    ensemble_max: int


@dataclass(frozen=True, slots=True)
class DecommissionLimits:
    read_only_timeout_s: float = 30.0  # for the bookie to become read-only
    poll_s: float = 2.0
    patience_s: float = 60.0  # while no progress is possible


class Decommission:
    """The decommission of one bookie."""

    def __init__(
        self,
        context: LedgerContext,
        underreplication: Underreplication,
        admin_states: AdminStates,
        bookie: BookieId,
        limits: DecommissionLimits | None = None,
    ) -> None:
        self.bookie = bookie
        self._context = context
        self._underreplication = underreplication
        self._admin_states = admin_states
        self._limits = limits or DecommissionLimits()

    async def run(
        self,
        *,
        wait_retention: bool = False,
        on_progress: Callable[[RemainingLedgers], None] = lambda remaining: None,
    ) -> None:
        """Return when the bookie is forgotten; call `on_progress` in each round.

        Raise DecommissionError if there are not enough other bookies, if the bookie does not become
        read-only, or if no progress is possible at present.
        """
        if not await self._was_forgotten():
            await self.request(wait_retention=wait_retention)
            await self._empty(wait_retention, on_progress)
        await self.forget()

    async def _was_forgotten(self) -> bool:
        """Return True if an earlier run came to the last step."""
        record = await self._admin_states.read(self.bookie)
        known = await known_bookies(self._underreplication.store, self._underreplication.paths)
        return record is not None and record.kind.goes and self.bookie not in known

    async def _empty(
        self, wait_retention: bool, on_progress: Callable[[RemainingLedgers], None]
    ) -> None:
        hindered_since: float | None = None
        while True:
            began = trio.current_time()
            remaining = await self.remaining()
            on_progress(remaining)
            if not remaining.ledgers and not remaining.unreadable:
                return
            if not wait_retention:
                await self._migrate(remaining)
            hindrance = await self._hindrance(remaining, wait_retention)
            if not hindrance:
                hindered_since = None
            elif hindered_since is None:
                hindered_since = began
            elif began >= hindered_since + self._limits.patience_s:
                raise DecommissionError(
                    f"{hindrance}. {self.bookie} stays read-only. Run the command again once it is"
                    " solved, or cancel with `daybook bookies recommission`"
                )
            # At most half of the time is spent on reading metadata.
            await trio.sleep(max(self._limits.poll_s, trio.current_time() - began))

    async def _hindrance(self, remaining: RemainingLedgers, wait_retention: bool) -> str:
        """Return why no progress is possible; empty if some is, as far as is known."""
        if remaining.unreadable and not remaining.ledgers:
            return (
                f"the metadata of ledgers {_some(remaining.unreadable)} do not parse, so they may"
                " name the bookie"
            )
        if wait_retention or not remaining.movable:
            return ""  # Progress depends on writers or on retention.
        if await self._underreplication.is_paused():
            return "auto-recovery is paused (`daybook autorecovery resume`)"
        if len(remaining.without_spare) == len(remaining.movable):
            return (
                "no writable bookie outside the ensembles can take its place in ledgers"
                f" {_some(remaining.without_spare)}: start another bookie"
            )
        if not await StatusRecords(
            self._underreplication.store, self._underreplication.paths
        ).workers():
            return "nothing is copied: no process runs auto-recovery (`daybook autorecovery run`)"
        return ""

    async def request(self, *, wait_retention: bool) -> None:
        """Tell the bookie to leave; return once it is not registered as writable.

        Raise DecommissionError if the bookie is unknown, or too few others could take its place.
        """
        store, paths = self._underreplication.store, self._underreplication.paths
        if self.bookie not in await known_bookies(store, paths):
            raise DecommissionError(
                f"bookie {self.bookie} does not belong to this cluster: `daybook bookies list`"
                " shows those that do"
            )
        remaining = await self.remaining()
        others = await self._spares()
        if not wait_retention and len(others) < remaining.ensemble_max:
            raise DecommissionError(
                f"no bookie could take the place of {self.bookie}: there are ledgers on"
                f" {remaining.ensemble_max} bookies, and only {len(others)} other bookies are"
                " writable and stay. Start another bookie first, or wait until all its ledgers are"
                " deleted (--wait-retention)"
            )
        kind = AdminState.RETIRE if wait_retention else AdminState.LEAVE
        await self._admin_states.give(self.bookie, AdminRecord(kind, self._context.clock.now_ms()))
        await self.wait_read_only()

    async def _spares(self) -> list[BookieId]:
        """Return the bookies that could take copies over."""
        store, paths = self._underreplication.store, self._underreplication.paths
        leaving = {self.bookie, *await self._admin_states.leaving()}
        writable = await writable_bookies(store, paths)
        return [BookieId(name) for name in writable if name not in leaving]

    async def wait_read_only(self) -> None:
        """Wait until the bookie is not registered as writable; an absent bookie is enough."""
        store, paths = self._underreplication.store, self._underreplication.paths
        with trio.move_on_after(self._limits.read_only_timeout_s):
            while True:
                changed = trio.Event()
                if self.bookie not in await writable_bookies(store, paths, changed.set):
                    return
                await changed.wait()
        raise DecommissionError(
            f"{self.bookie} still accepts new entries. A bookie that does not follow Daybook's"
            " admin states (Apache's does not) must be made read-only by its own tools, or stopped"
        )

    async def remaining(self) -> RemainingLedgers:
        """Return all ledgers that name the bookie, from the newest state of the metadata store."""
        store, paths = self._underreplication.store, self._underreplication.paths
        await store.sync(paths.root)  # A server of the store that lags may lack a ledger.
        spares = await self._spares()
        ledgers: list[int] = []
        at_writers: list[int] = []
        movable: list[int] = []
        without_spare: list[int] = []
        unreadable: list[int] = []
        size = ensemble_max = 0
        async for ledger_id in self._context.metadata_store.list():
            try:
                metadata = (await self._context.metadata_store.read(ledger_id)).metadata
            except NoSuchLedgerError:
                continue
            except MalformedMetadataError:
                unreadable.append(ledger_id)
                continue
            if self.bookie not in bookies_of(metadata):
                continue
            ledgers.append(ledger_id)
            ensemble_max = max(ensemble_max, metadata.quorums.ensemble)
            size += bytes_to_copy(metadata, [self.bookie])
            if not metadata.closed and self.bookie in metadata.last_fragment.ensemble:
                at_writers.append(ledger_id)
            held = [s for s in sealed_fragments(metadata) if self.bookie in s.ensemble]
            if held:
                movable.append(ledger_id)
            if held and not any(newcomers(fragment, spares) for fragment in held):
                without_spare.append(ledger_id)
        return RemainingLedgers(
            tuple(ledgers),
            tuple(at_writers),
            tuple(movable),
            tuple(without_spare),
            tuple(unreadable),
            size,
            ensemble_max,
        )

    async def _migrate(self, remaining: RemainingLedgers) -> None:
        """Mark the ledgers that a worker can copy now."""
        now_ms = self._context.clock.now_ms()
        for ledger_id in remaining.movable:
            mark = await self._underreplication.read_mark(ledger_id)
            if mark is None or self.bookie not in mark.missing:
                # Marking it again would change the version, and its worker could not resolve it.
                await self._underreplication.mark(ledger_id, [self.bookie], now_ms)

    async def forget(self) -> None:
        """Delete the bookie's cookie; raise DecommissionError if a ledger names the bookie.

        A running bookie goes on serving entries that no reader needs, but it cannot restart.
        """
        remaining = await self.remaining()
        if remaining.ledgers or remaining.unreadable:
            raise DecommissionError(
                f"{len(remaining.ledgers)} ledgers name {self.bookie}, and the metadata of"
                f" {len(remaining.unreadable)} do not parse"
            )
        store, paths = self._underreplication.store, self._underreplication.paths
        cookie = await read_cookie(store, paths, self.bookie)
        if cookie is not None:
            await delete_cookie(store, paths, self.bookie, cookie.version)
        # In this order: LEFT with a cookie means that the bookie is back with empty directories.
        await self._admin_states.give(
            self.bookie, AdminRecord(AdminState.LEFT, self._context.clock.now_ms())
        )

    async def cancel(self) -> None:
        """Withdraw the admin state: the bookie is as before, without the copies already moved."""
        await self._admin_states.withdraw(self.bookie)


def _some(ledger_ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ledger_ids[:_SHOWN]))
    return shown + (f" and {len(ledger_ids) - _SHOWN} more" if len(ledger_ids) > _SHOWN else "")


async def is_registered(underreplication: Underreplication, bookie: BookieId) -> bool:
    """Return True if the bookie serves now, writable or read-only."""
    return bookie in [
        *await writable_bookies(underreplication.store, underreplication.paths),
        *await readonly_bookies(underreplication.store, underreplication.paths),
    ]
