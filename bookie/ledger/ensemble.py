"""Which bookies to write to.

A bookie is *usable* if it is registered as writable and has not failed lately.  One that failed is
in quarantine; it is asked every second whether it answers again, and is usable as soon as it does.

An ensemble is drawn at random from the usable bookies.  When they are fewer than it takes, but
enough to confirm entries, it is filled up with others that belong to the cluster and are away: the
writer sends these nothing (`Choice.missing`).  So a cluster of three with one bookie dead creates
ledgers as fast as ever.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import trio

from bookie.errors import MalformedRecordError, NotEnoughBookiesError, RegistryError
from bookie.ledger.protocol.placement import BookieId, Ensemble, Quorums
from bookie.registry import (
    LedgerPaths,
    bookie_info,
    known_bookies,
    parse_address,
    writable_bookies,
)
from wire.errors import ConnectionLostError
from wire.messages.bookie import Status
from wire.metadata.store import MetadataError, MetadataStore, SessionState

_ARRANGEMENTS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLimits:
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 1.0
    refused_s: float = 10.0  # a bookie that answers, and cannot store, is left alone for so long
    retry_s: float = 1.0  # when the metadata store does not answer
    list_timeout_s: float = 10.0  # for the first list of bookies


@dataclass(frozen=True, slots=True)
class Choice:
    ensemble: Ensemble
    missing: Ensemble = ()  # members that are away


class Prober(Protocol):
    async def probe(self, bookie: BookieId) -> bool: ...


class BookieDirectory:
    """The bookies of the cluster, as this host sees them."""

    def __init__(
        self, store: MetadataStore, paths: LedgerPaths, rng: Random, limits: DirectoryLimits
    ) -> None:
        self._store = store
        self._paths = paths
        self._rng = rng
        self._limits = limits
        self._writable: list[BookieId] = []
        self._listed = trio.Event()
        self._quarantine: dict[BookieId, float] = {}  # and when to begin to ask how it is
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self._listeners: dict[Callable[[], None], None] = {}

    @property
    def writable(self) -> Sequence[BookieId]:
        """All that are registered as writable."""
        return self._writable

    @property
    def quarantined(self) -> Sequence[BookieId]:
        return tuple(self._quarantine)

    def is_usable(self, bookie: BookieId) -> bool:
        return bookie in self._writable and bookie not in self._quarantine

    def usable(self) -> list[BookieId]:
        return [bookie for bookie in self._writable if bookie not in self._quarantine]

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Called after a bookie came, went, or is usable again."""
        self._listeners[listener] = None

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    # What connections say

    def bookie_failed(self, bookie: BookieId, reason: str) -> None:
        self._quarantine.setdefault(bookie, trio.current_time())

    def bookie_refused(self, bookie: BookieId, status: Status) -> None:
        self._quarantine[bookie] = trio.current_time() + self._limits.refused_s

    # Choosing

    async def choose(self, quorums: Quorums) -> Choice:
        """An ensemble for a new ledger."""
        with trio.move_on_after(self._limits.list_timeout_s):
            await self._listed.wait()
        usable = self.usable()
        if len(usable) >= quorums.ensemble:
            return Choice(tuple(self._rng.sample(usable, quorums.ensemble)))
        away = [b for b in self._writable if b in self._quarantine]
        others = [b for b in await known_bookies(self._store, self._paths) if b not in usable]
        away += [BookieId(b) for b in others if b not in away]
        choice = self._filled_up(quorums, usable, away)
        if choice is None:
            # Those that failed lately may be well again: better to try than to refuse.
            suspects = [b for b in self._writable if b in self._quarantine]
            rest = [b for b in away if b not in suspects]
            choice = self._filled_up(quorums, usable + suspects, rest)
        if choice is None:
            raise NotEnoughBookiesError(
                f"{len(self._writable)} bookies can be written to, {len(usable)} of them answer;"
                f" a ledger needs {quorums.ack} for each entry, of an ensemble of"
                f" {quorums.ensemble} known ones"
            )
        return choice

    def _filled_up(
        self, quorums: Quorums, usable: Sequence[BookieId], away: Sequence[BookieId]
    ) -> Choice | None:
        """`usable` and some of `away`, so arranged that each write set can confirm; or None."""
        present = self._rng.sample(usable, min(len(usable), quorums.ensemble))
        absent = self._rng.sample(away, min(len(away), quorums.ensemble - len(present)))
        members = present + absent
        if len(members) < quorums.ensemble:
            return None
        for _ in range(_ARRANGEMENTS_MAX):
            self._rng.shuffle(members)
            live = [position for position, b in enumerate(members) if b in present]
            if quorums.can_confirm(live):
                return Choice(tuple(members), tuple(b for b in members if b in absent))
        return None

    def replace(self, ensemble: Ensemble, failed: Sequence[BookieId]) -> Ensemble | None:
        """The ensemble with usable bookies in the place of those that failed, as far as there are.

        None if there is not one.
        """
        spares = [bookie for bookie in self.usable() if bookie not in ensemble]
        self._rng.shuffle(spares)
        changed = [spares.pop() if bookie in failed and spares else bookie for bookie in ensemble]
        return tuple(changed) if tuple(changed) != ensemble else None

    async def resolve(self, bookie: BookieId) -> tuple[str, int]:
        """Where the bookie is, or was when it was last heard of."""
        known = self._addresses.get(bookie)
        if known is not None and self._store.session_state is not SessionState.CONNECTED:
            return known
        try:
            info = await bookie_info(self._store, self._paths, bookie)
        except MetadataError:
            info = None
        except RegistryError as error:
            raise ConnectionLostError(str(error)) from error
        if info is not None:
            self._addresses[bookie] = (info.host, info.port)
        elif known is None:
            try:
                self._addresses[bookie] = parse_address(bookie)
            except MalformedRecordError as error:
                raise ConnectionLostError(f"{bookie} is not registered: {error}") from error
        return self._addresses[bookie]

    # Following

    async def follow(self) -> None:
        """Keep the list of writable bookies, for ever."""
        while True:
            changed = trio.Event()
            try:
                names = await writable_bookies(self._store, self._paths, changed.set)
            except (MetadataError, RegistryError):
                await trio.sleep(self._limits.retry_s)
                continue
            self._list_is([BookieId(name) for name in names])
            await changed.wait()

    def _list_is(self, writable: list[BookieId]) -> None:
        for bookie in writable:
            if bookie not in self._writable:
                self._quarantine.pop(bookie, None)  # It has just said that it is there.
        self._writable = writable
        self._listed.set()
        self._notify()

    async def probe(self, prober: Prober) -> None:
        """Ask those in quarantine how they are, for ever."""
        while True:
            await trio.sleep(self._limits.probe_interval_s)
            now = trio.current_time()
            async with trio.open_nursery() as nursery:
                for bookie, since in list(self._quarantine.items()):
                    if since <= now:
                        nursery.start_soon(self._probe, prober, bookie)

    async def _probe(self, prober: Prober, bookie: BookieId) -> None:
        with trio.move_on_after(self._limits.probe_timeout_s):
            if await prober.probe(bookie) and bookie in self._quarantine:
                del self._quarantine[bookie]
                self._notify()

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()
