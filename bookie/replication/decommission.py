"""Takes a bookie out of the cluster without any entry having fewer copies meanwhile.

    order       it takes no new entries, and nothing new names it; writers go on without it
    migrate     every ledger that names it is marked; workers copy, it serves as a source itself
    verify      no metadata name it any more: asked of the newest state, all of them
    forget      its cookie is deleted, and it may be stopped

It may be interrupted at any time and begun again; `cancel` takes the order back, and what was moved
stays moved.  Waiting for retention instead of copying is the same without marks.

It does not run for ever when nothing can come of it: with nobody to take the place, with nobody who
copies, or while auto-recovery is paused, it ends after a while and says so.  The order stands then.

Ledgers whose last fragment names it are let go by their writers when these write, roll or close
them; they are counted, and never fenced here.
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
from daybook.bookie.replication.board import Board
from daybook.bookie.replication.marks import Marks
from daybook.bookie.replication.protocol.copies import bytes_to_copy, names, settled_stretches
from daybook.bookie.replication.protocol.replace import newcomers

_SHOWN = 5


class DecommissionError(Exception):
    """It cannot be done like this; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What still names the bookie."""

    ledgers: tuple[int, ...]
    at_writers: tuple[int, ...]  # of these: their last fragment names it, and is not closed
    movable: tuple[int, ...]  # of these somebody could copy something now
    homeless: tuple[int, ...]  # of those: no bookie that can be written to could take its place
    unreadable: tuple[int, ...]  # their metadata do not parse, and may name it
    size: int  # bytes to be copied, about
    ensemble_max: int


@dataclass(frozen=True, slots=True)
class DecommissionLimits:
    obey_timeout_s: float = 30.0  # for the bookie to say that it takes no entries
    poll_s: float = 2.0
    patience_s: float = 60.0  # when nothing can come of it


class Decommission:
    """Of one bookie."""

    def __init__(
        self,
        context: LedgerContext,
        marks: Marks,
        orders: AdminStates,
        bookie: BookieId,
        limits: DecommissionLimits | None = None,
    ) -> None:
        self.bookie = bookie
        self._context = context
        self._marks = marks
        self._orders = orders
        self._limits = limits or DecommissionLimits()

    async def run(
        self, *, wait_retention: bool = False, told: Callable[[Kept], None] = lambda kept: None
    ) -> None:
        """Return when the bookie is forgotten.  `told` hears of what is left, again and again.

        DecommissionError if there are not enough other bookies, it does not obey, or nothing can
        come of it for the time being.
        """
        if not await self._was_forgotten():
            await self.order(wait_retention=wait_retention)
            await self._empty(wait_retention, told)
        await self.forget()

    async def _was_forgotten(self) -> bool:
        """Whoever began it came to the last step."""
        order = await self._orders.read(self.bookie)
        known = await known_bookies(self._marks.store, self._marks.paths)
        return order is not None and order.kind.goes and self.bookie not in known

    async def _empty(self, wait_retention: bool, told: Callable[[Kept], None]) -> None:
        hindered_since: float | None = None
        while True:
            began = trio.current_time()
            kept = await self.kept()
            told(kept)
            if not kept.ledgers and not kept.unreadable:
                return
            if not wait_retention:
                await self._migrate(kept)
            hindrance = await self._hindrance(kept, wait_retention)
            if not hindrance:
                hindered_since = None
            elif hindered_since is None:
                hindered_since = began
            elif began >= hindered_since + self._limits.patience_s:
                raise DecommissionError(
                    f"{hindrance}.  {self.bookie} stays read-only meanwhile: begin again when that"
                    " is put right, or take it back with `daybook bookies recommission`"
                )
            # No more than half of the time is spent on looking.
            await trio.sleep(max(self._limits.poll_s, trio.current_time() - began))

    async def _hindrance(self, kept: Kept, wait_retention: bool) -> str:
        """Why nothing comes of it; empty if something does, as far as can be seen."""
        if kept.unreadable and not kept.ledgers:
            return f"the metadata of ledgers {_some(kept.unreadable)} do not parse, and may name it"
        if wait_retention or not kept.movable:
            return ""  # Others have to come first.
        if await self._marks.is_paused():
            return "auto-recovery is paused (`daybook autorecovery resume`)"
        if len(kept.homeless) == len(kept.movable):
            return (
                f"no bookie that can be written to could take its place in ledgers"
                f" {_some(kept.homeless)}: start another one"
            )
        if not await Board(self._marks.store, self._marks.paths).workers():
            return "nobody copies: no bookie runs auto-recovery (`daybook autorecovery run`)"
        return ""

    async def order(self, *, wait_retention: bool) -> None:
        store, paths = self._marks.store, self._marks.paths
        if self.bookie not in await known_bookies(store, paths):
            raise DecommissionError(
                f"no bookie {self.bookie} belongs to this cluster: `daybook bookies list` shows"
                " which do"
            )
        kept = await self.kept()
        others = await self._takers()
        if not wait_retention and len(others) < kept.ensemble_max:
            raise DecommissionError(
                f"{len(others)} other bookies can be written to and stay, and there are ledgers on"
                f" {kept.ensemble_max}: nobody could take the place of {self.bookie}; start"
                " another bookie first, or wait until all is deleted (--wait-retention)"
            )
        kind = AdminState.RETIRE if wait_retention else AdminState.LEAVE
        await self._orders.give(self.bookie, AdminRecord(kind, self._context.clock.now_ms()))
        await self.wait_obeyed()

    async def _takers(self) -> list[BookieId]:
        """Who could take copies over."""
        names_of_writable = await writable_bookies(self._marks.store, self._marks.paths)
        going = {self.bookie, *await self._orders.leaving()}
        return [BookieId(name) for name in names_of_writable if name not in going]

    async def wait_obeyed(self) -> None:
        """Return when it is not registered as writable; being away will do."""
        store, paths = self._marks.store, self._marks.paths
        with trio.move_on_after(self._limits.obey_timeout_s):
            while True:
                changed = trio.Event()
                if self.bookie not in await writable_bookies(store, paths, changed.set):
                    return
                await changed.wait()
        raise DecommissionError(
            f"{self.bookie} takes new entries still: a bookie that does not follow orders (Apache's"
            " does not) has to be made read-only by its own means, or stopped"
        )

    async def kept(self) -> Kept:
        """Everything that names the bookie, as the newest state of the metadata store says."""
        store, paths = self._marks.store, self._marks.paths
        await store.sync(paths.root)
        takers = await self._takers()
        ledgers: list[int] = []
        at_writers: list[int] = []
        movable: list[int] = []
        homeless: list[int] = []
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
            if self.bookie not in names(metadata):
                continue
            ledgers.append(ledger_id)
            ensemble_max = max(ensemble_max, metadata.quorums.ensemble)
            size += bytes_to_copy(metadata, [self.bookie])
            if not metadata.closed and self.bookie in metadata.last_fragment.ensemble:
                at_writers.append(ledger_id)
            held = [s for s in settled_stretches(metadata) if self.bookie in s.ensemble]
            if held:
                movable.append(ledger_id)
            if held and not any(newcomers(stretch, takers) for stretch in held):
                homeless.append(ledger_id)
        return Kept(
            tuple(ledgers),
            tuple(at_writers),
            tuple(movable),
            tuple(homeless),
            tuple(unreadable),
            size,
            ensemble_max,
        )

    async def _migrate(self, kept: Kept) -> None:
        now_ms = self._context.clock.now_ms()
        for ledger_id in kept.movable:
            mark = await self._marks.read(ledger_id)
            if mark is None or self.bookie not in mark.missing:
                # Not again and again: that would keep whoever works on it from ending.
                await self._marks.mark(ledger_id, [self.bookie], now_ms)

    async def forget(self) -> None:
        """Delete the cookie of a bookie that nothing names.  DecommissionError if something does.

        A bookie that is running goes on serving what nobody asks for; it does not start again.
        """
        kept = await self.kept()
        if kept.ledgers or kept.unreadable:
            raise DecommissionError(
                f"{len(kept.ledgers)} ledgers name {self.bookie}, and the metadata of"
                f" {len(kept.unreadable)} do not parse"
            )
        store, paths = self._marks.store, self._marks.paths
        cookie = await read_cookie(store, paths, self.bookie)
        if cookie is not None:
            await delete_cookie(store, paths, self.bookie, cookie.version)
        # In this order: whoever has left and has a cookie has come back with empty directories.
        await self._orders.give(
            self.bookie, AdminRecord(AdminState.LEFT, self._context.clock.now_ms())
        )

    async def cancel(self) -> None:
        """Take the bookie back: it is as before, less what was moved already."""
        await self._orders.withdraw(self.bookie)


def _some(ledger_ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ledger_ids[:_SHOWN]))
    return shown + (f" and {len(ledger_ids) - _SHOWN} more" if len(ledger_ids) > _SHOWN else "")


async def is_registered(marks: Marks, bookie: BookieId) -> bool:
    return bookie in [
        *await writable_bookies(marks.store, marks.paths),
        *await readonly_bookies(marks.store, marks.paths),
    ]
