"""Takes a bookie out of the cluster without any entry having fewer copies meanwhile.

    order       it takes no new entries; writers go on without it
    migrate     every ledger that names it is marked; workers copy, it serves as a source itself
    verify      no metadata name it any more: asked of the newest state, all of them
    forget      its cookie is deleted, and it may be stopped

It may be interrupted at any time and begun again; `cancel` takes the order back, and what was moved
stays moved.  Waiting for retention instead of copying is the same without marks.

Ledgers whose last fragment names it are let go by their writers when these write, roll or close
them; they are counted, and never fenced here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from bookie.errors import MalformedMetadataError, NoSuchLedgerError
from bookie.ledger.context import LedgerContext
from bookie.ledger.protocol.placement import BookieId
from bookie.registry import (
    delete_cookie,
    known_bookies,
    read_cookie,
    readonly_bookies,
    writable_bookies,
)
from bookie.replication.marks import Marks
from bookie.replication.orders import Kind, Order, Orders
from bookie.replication.protocol.copies import bytes_to_copy, names, settled_stretches


class DecommissionError(Exception):
    """It cannot be done like this; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What still names the bookie."""

    ledgers: tuple[int, ...]
    at_writers: tuple[int, ...]  # of these: their last fragment names it, and is not closed
    unreadable: tuple[int, ...]  # their metadata do not parse, and may name it
    size: int  # bytes to be copied, about
    ensemble_max: int


@dataclass(frozen=True, slots=True)
class DecommissionLimits:
    obey_timeout_s: float = 30.0  # for the bookie to say that it takes no entries
    poll_s: float = 2.0


class Decommission:
    """Of one bookie."""

    def __init__(
        self,
        context: LedgerContext,
        marks: Marks,
        orders: Orders,
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

        DecommissionError if there are not enough other bookies, or it does not obey.
        """
        await self.order(wait_retention=wait_retention)
        while True:
            kept = await self.kept()
            told(kept)
            if not kept.ledgers and not kept.unreadable:
                break
            if not wait_retention:
                await self._migrate(kept)
            await trio.sleep(self._limits.poll_s)
        await self.forget()

    async def order(self, *, wait_retention: bool) -> None:
        store, paths = self._marks.store, self._marks.paths
        if self.bookie not in await known_bookies(store, paths):
            raise DecommissionError(f"no bookie {self.bookie} belongs to this cluster")
        kept = await self.kept()
        others = [b for b in await writable_bookies(store, paths) if b != self.bookie]
        if not wait_retention and len(others) < kept.ensemble_max:
            raise DecommissionError(
                f"{len(others)} other bookies can be written to, and there are ledgers on"
                f" {kept.ensemble_max}: nobody could take the place of {self.bookie}"
            )
        kind = Kind.READ_ONLY if wait_retention else Kind.LEAVE
        await self._orders.give(self.bookie, Order(kind, self._context.clock.now_ms()))
        await self.wait_obeyed()

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
        ledgers: list[int] = []
        at_writers: list[int] = []
        unreadable: list[int] = []
        size = ensemble_max = 0
        async for ledger_id in self._context.catalog.list():
            try:
                metadata = (await self._context.catalog.read(ledger_id)).metadata
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
        return Kept(tuple(ledgers), tuple(at_writers), tuple(unreadable), size, ensemble_max)

    async def _migrate(self, kept: Kept) -> None:
        now_ms = self._context.clock.now_ms()
        for ledger_id in kept.ledgers:
            try:
                metadata = (await self._context.catalog.read(ledger_id)).metadata
            except NoSuchLedgerError:
                continue
            if any(self.bookie in stretch.ensemble for stretch in settled_stretches(metadata)):
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
        await self._orders.give(self.bookie, Order(Kind.LEFT, self._context.clock.now_ms()))
        cookie = await read_cookie(store, paths, self.bookie)
        if cookie is not None:
            await delete_cookie(store, paths, self.bookie, cookie.version)

    async def cancel(self) -> None:
        """Take the bookie back: it is as before, less what was moved already."""
        await self._orders.withdraw(self.bookie)


async def is_registered(marks: Marks, bookie: BookieId) -> bool:
    return bookie in [
        *await writable_bookies(marks.store, marks.paths),
        *await readonly_bookies(marks.store, marks.paths),
    ]
