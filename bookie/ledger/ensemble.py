"""Which bookies to write to.

A bookie is *usable* if it is registered as writable and has not failed lately.  One that failed is
in quarantine; it is asked every second whether it answers again, and is usable as soon as it does.
Who fails again and again is usable, and chosen last (`bookie.ledger.ensemble`).

An ensemble is drawn at random from the usable bookies, spread over racks as far as these are known
(`bookie.ledger.protocol.racks`).  When they are fewer than it takes, but enough to confirm entries,
it is filled up with others that belong to the cluster and are away: the writer sends these nothing
(`EnsembleChoice.missing`).  So a cluster of three creates ledgers with one bookie dead.

FROM quarantine: Who has failed lately, and who fails again and again.

    in quarantine    it was not reached, or did not answer, or cannot store now; it is asked how it
                     is, and leaves the quarantine when it answers
    refusing         it is in quarantine because it cannot store, and has answered ever since: of
                     another ledger it may take entries
    distrusted       it was put into quarantine `failures_max` times within `failure_window_s`: for
                     `distrust_s` it is chosen only where nobody else is left, though it answers

Time is an argument.  What many connections tell of one failure counts once.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import trio

from daybook.bookie.errors import MalformedRecordError, NotEnoughBookiesError, RegistryError
from daybook.bookie.ledger.admin_states import AdminStates
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble, Quorums
from daybook.bookie.ledger.protocol.racks import RackRule, Racks
from daybook.bookie.ledger.racks import Placement, RackError
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import (
    BookieInfo,
    bookie_info,
    parse_address,
    writable_bookies,
)
from daybook.wire.errors import ConnectionLostError
from daybook.wire.messages.blocks import BLOCKS_PROPERTY
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.store import MetadataError, MetadataStore, SessionState


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineLimits:
    refused_s: float = 10.0  # a bookie that answers, and cannot store, is left alone for so long
    failures_max: int = 3
    failure_window_s: float = 60.0
    distrust_s: float = 300.0


class Quarantine:
    def __init__(self, limits: QuarantineLimits) -> None:
        self._limits = limits
        self._since: dict[BookieId, float] = {}  # from when on to ask how it is
        self._refusing: set[BookieId] = set()
        self._failures: dict[BookieId, deque[float]] = {}
        self._distrusted_until: dict[BookieId, float] = {}

    def __contains__(self, bookie: BookieId) -> bool:
        return bookie in self._since

    @property
    def members(self) -> Sequence[BookieId]:
        return tuple(self._since)

    def refuses(self, bookie: BookieId) -> bool:
        return bookie in self._refusing

    def trusted(self, bookie: BookieId, now: float) -> bool:
        return bookie not in self._since and now >= self._distrusted_until.get(bookie, now)

    def to_ask(self, now: float) -> Sequence[BookieId]:
        return [bookie for bookie, since in self._since.items() if since <= now]

    def failed(self, bookie: BookieId, now: float) -> None:
        self._refusing.discard(bookie)
        if bookie not in self._since:
            self._since[bookie] = now
            self._count(bookie, now)

    def refused(self, bookie: BookieId, now: float, *, counts: bool) -> None:
        """`counts`: it is a failure, and not what a sound bookie does at times."""
        if counts and bookie not in self._since:
            self._count(bookie, now)
        self._since[bookie] = now + self._limits.refused_s
        self._refusing.add(bookie)

    def answered(self, bookie: BookieId) -> bool:
        """False if it was not in quarantine."""
        self._refusing.discard(bookie)
        return self._since.pop(bookie, None) is not None

    def _count(self, bookie: BookieId, now: float) -> None:
        failures = self._failures.setdefault(bookie, deque())
        failures.append(now)
        while failures[0] <= now - self._limits.failure_window_s:
            failures.popleft()
        if len(failures) >= self._limits.failures_max:
            self._distrusted_until[bookie] = now + self._limits.distrust_s
            failures.clear()


_ARRANGEMENTS_MAX = 50
_NO_FAILURE = (Status.READ_ONLY, Status.TOO_MANY_REQUESTS)  # a sound bookie says that at times

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLimits:
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 1.0
    quarantine: QuarantineLimits = field(default_factory=QuarantineLimits)
    retry_s: float = 1.0  # when the metadata store does not answer
    list_timeout_s: float = 10.0  # for the first list of bookies
    racks_timeout_s: float = 5.0  # so long a list waits for the racks of the bookies on it
    racks_refresh_s: float = 60.0  # between looks at racks that may have changed


@dataclass(frozen=True, slots=True)
class EnsembleChoice:
    ensemble: Ensemble
    missing: Ensemble = ()  # members that are away


class Prober(Protocol):
    async def probe(self, bookie: BookieId) -> bool: ...


class BookieDirectory:
    """The bookies of the cluster, as this host sees them."""

    def __init__(
        self,
        store: MetadataStore,
        paths: LedgerPaths,
        rng: Random,
        limits: DirectoryLimits,
        placement: Placement | None = None,
    ) -> None:
        self._store = store
        self._paths = paths
        self._rng = rng
        self._limits = limits
        self._placement = placement or Placement()
        self._writable: list[BookieId] = []
        self._listed = trio.Event()
        self._quarantine = Quarantine(limits.quarantine)
        self._infos: dict[BookieId, BookieInfo] = {}  # of those on the list
        self._racks = Racks({})
        self._racks_problem = ""
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self._with_blocks: set[BookieId] = set()
        self._listeners: dict[Callable[[], None], None] = {}

    @property
    def writable(self) -> Sequence[BookieId]:
        """All that are registered as writable."""
        return self._writable

    @property
    def quarantined(self) -> Sequence[BookieId]:
        return self._quarantine.members

    def is_usable(self, bookie: BookieId) -> bool:
        return bookie in self._writable and bookie not in self._quarantine

    def usable(self) -> list[BookieId]:
        return [bookie for bookie in self._writable if bookie not in self._quarantine]

    def answering(self) -> list[BookieId]:
        """Those that are usable, and those that answer and have refused some entry lately."""
        quarantine = self._quarantine
        return [b for b in self._writable if b not in quarantine or quarantine.refuses(b)]

    def rack(self, bookie: BookieId) -> str:
        return self._racks.rack(bookie)

    def takes_blocks(self, bookie: BookieId) -> bool:
        """Many adds in one frame (`wire.messages.blocks`), by what it said when last heard of."""
        return bookie in self._with_blocks

    @property
    def rack_rule(self) -> RackRule:
        return self._placement.rule

    async def racks_of(self, bookies: Sequence[BookieId]) -> dict[BookieId, str]:
        """Where these stand, as far as they are registered: also those that take no entries."""
        infos = {b: self._infos[b] for b in bookies if b in self._infos}
        with trio.move_on_after(self._limits.racks_timeout_s):
            for bookie in bookies:
                info = infos.get(bookie) or await self._info(bookie)
                if info is not None:
                    infos[bookie] = info
            try:
                found = await self._placement.racks.racks(list(infos.values()))
            except RackError:
                pass  # What was learnt before stays true.
            else:
                return {BookieId(name): rack for name, rack in found.items()}
        return {bookie: self._racks.rack(bookie) for bookie in infos if bookie in self._writable}

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Called after a bookie came, went, or is usable again."""
        self._listeners[listener] = None

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    # What connections say

    def bookie_failed(self, bookie: BookieId, reason: str) -> None:
        self._quarantine.failed(bookie, trio.current_time())

    def bookie_refused(self, bookie: BookieId, status: Status) -> None:
        counts = status not in _NO_FAILURE
        self._quarantine.refused(bookie, trio.current_time(), counts=counts)

    # Choosing

    async def choose(self, quorums: Quorums) -> EnsembleChoice:
        """An ensemble for a new ledger."""
        with trio.move_on_after(self._limits.list_timeout_s):
            await self._listed.wait()
        trusted, others = self._by_lot(self.usable())
        ensemble = self._arranged(trusted, others, quorums)
        if ensemble is not None:
            return EnsembleChoice(ensemble)
        # Whoever leaves the cluster is never named as one that is away: it would never be done.
        going = await AdminStates(self._store, self._paths).leaving()
        usable = [b for b in trusted + others if b not in going]
        suspects = [b for b in self._writable if b in self._quarantine and b not in going]
        known = [BookieId(b) for b in await known_bookies(self._store, self._paths)]
        away = suspects + [b for b in known if b not in {*usable, *suspects, *going}]
        choice = self._filled_up(quorums, usable, away)
        if choice is None:
            # Those that failed lately may be well again: better to try than to refuse.
            rest = [b for b in away if b not in suspects]
            choice = self._filled_up(quorums, usable + suspects, rest)
        if choice is None:
            leaving = f"; leaving, and not counted: {', '.join(sorted(going))}" if going else ""
            raise NotEnoughBookiesError(self._too_few(quorums, usable) + leaving)
        return choice

    def _by_lot(self, bookies: Sequence[BookieId]) -> tuple[list[BookieId], list[BookieId]]:
        """Those that are trusted, and those that fail again and again; each drawn by lot."""
        drawn = self._rng.sample(bookies, len(bookies))
        now = trio.current_time()
        trusted = [bookie for bookie in drawn if self._quarantine.trusted(bookie, now)]
        return trusted, [bookie for bookie in drawn if bookie not in trusted]

    def _arranged(
        self, trusted: Sequence[BookieId], others: Sequence[BookieId], quorums: Quorums
    ) -> Ensemble | None:
        """Rather with those who fail often than in too few racks; rather without, if that is it."""
        rule = self._placement.rule
        strict = RackRule(rule.least, enforced=True)
        for wanted in (strict, rule):
            for candidates in (trusted, [*trusted, *others]):
                ensemble = self._racks.arranged(candidates, quorums, wanted)
                if ensemble is not None:
                    return ensemble
        return None

    def _filled_up(
        self, quorums: Quorums, usable: Sequence[BookieId], away: Sequence[BookieId]
    ) -> EnsembleChoice | None:
        """`usable` and some of `away`, so arranged that each write set can confirm; or None."""
        present = self._rng.sample(usable, min(len(usable), quorums.ensemble))
        absent = self._rng.sample(away, min(len(away), quorums.ensemble - len(present)))
        members = present + absent
        if len(members) < quorums.ensemble:
            return None
        wanted = min(self._placement.rule.least, quorums.write)
        best: tuple[int, Ensemble] | None = None
        for _ in range(_ARRANGEMENTS_MAX):
            self._rng.shuffle(members)
            live = [position for position, b in enumerate(members) if b in present]
            spanned = self._racks.spanned(members, quorums, absent)
            if quorums.can_confirm(live) and (best is None or spanned > best[0]):
                best = spanned, tuple(members)
                if spanned >= wanted:
                    break
        if best is None or (self._placement.rule.enforced and best[0] < wanted):
            return None
        return EnsembleChoice(best[1], tuple(b for b in best[1] if b in absent))

    def _too_few(self, quorums: Quorums, usable: Sequence[BookieId]) -> str:
        rule = self._placement.rule
        why = (
            f"{len(self._writable)} bookies can be written to, {len(usable)} of them answer;"
            f" a ledger needs {quorums.ack} for each entry, of an ensemble of"
            f" {quorums.ensemble} known ones"
        )
        if rule.enforced:
            racks = sorted({self.rack(bookie) for bookie in usable})
            why += (
                f", and {min(rule.least, quorums.write)} racks for each write set; they stand in"
                f" {', '.join(racks) or 'none'}: start bookies in others, say where these are, or"
                " do not enforce racks"
            )
        return why

    def replace(
        self,
        ensemble: Ensemble,
        failed: Sequence[BookieId],
        quorums: Quorums,
        *,
        refused_by: Collection[BookieId] | None = None,
    ) -> Ensemble | None:
        """The ensemble with usable bookies in the place of those that failed, as far as there are.

        None if there is not one.  `refused_by` is of recoveries: their entries are taken also by
        bookies that refuse those of writers, so whoever answers will do, if nobody else is left;
        but for these, who have failed this very recovery.
        """
        candidates = self.usable() if refused_by is None else self.answering()
        excluded = {*ensemble, *(refused_by or ())}
        spares = [bookie for bookie in candidates if bookie not in excluded]
        groups = self._by_lot(spares)
        changed = list(ensemble)
        missing = list(failed)
        for position, bookie in enumerate(ensemble):
            if bookie not in failed:
                continue
            spare = self._spare(changed, position, groups, quorums, missing)
            if spare is not None:
                changed[position] = spare
                missing.remove(bookie)
                for group in groups:
                    if spare in group:
                        group.remove(spare)
        return tuple(changed) if tuple(changed) != ensemble else None

    def _spare(
        self,
        ensemble: Sequence[BookieId],
        position: int,
        groups: Sequence[Sequence[BookieId]],
        quorums: Quorums,
        missing: Sequence[BookieId],
    ) -> BookieId | None:
        rule = self._placement.rule
        for wanted in (RackRule(rule.least, enforced=True), rule):
            for group in groups:
                spare = self._racks.replacement(ensemble, position, group, quorums, wanted, missing)
                if spare is not None:
                    return spare
        return None

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
            self._heard_of(bookie, info)
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
            writable = [BookieId(name) for name in names]
            await self._learn_racks(writable)
            self._list_is(writable)
            while not changed.is_set():
                with trio.move_on_after(self._limits.racks_refresh_s):
                    await changed.wait()
                if not changed.is_set():
                    await self._learn_racks(writable)

    async def _learn_racks(self, writable: Sequence[BookieId]) -> None:
        """What cannot be learnt now stays as it was, and is asked for again."""
        self._infos = {b: info for b, info in self._infos.items() if b in writable}
        problem = ""
        with trio.move_on_after(self._limits.racks_timeout_s) as scope:
            async with trio.open_nursery() as nursery:
                for bookie in writable:
                    if bookie not in self._infos:
                        nursery.start_soon(self._learn_info, bookie)
            try:
                found = await self._placement.racks.racks(list(self._infos.values()))
            except RackError as error:
                problem = str(error)
            else:
                self._racks = Racks({BookieId(name): rack for name, rack in found.items()})
        if scope.cancelled_caught:
            problem = "nobody said in time in which racks bookies stand"
        if problem and problem != self._racks_problem:
            _log.warning("%s; ensembles are spread as far as is known", problem)
        self._racks_problem = problem

    async def _learn_info(self, bookie: BookieId) -> None:
        info = await self._info(bookie)
        if info is not None:
            self._infos[bookie] = info
            self._heard_of(bookie, info)

    def _heard_of(self, bookie: BookieId, info: BookieInfo) -> None:
        if info.properties.get(BLOCKS_PROPERTY):
            self._with_blocks.add(bookie)
        else:
            self._with_blocks.discard(bookie)

    async def _info(self, bookie: BookieId) -> BookieInfo | None:
        """None if it is away, or nobody can say."""
        try:
            return await bookie_info(self._store, self._paths, bookie)
        except (MetadataError, RegistryError):
            return None

    def _list_is(self, writable: list[BookieId]) -> None:
        for bookie in writable:
            if bookie not in self._writable:
                self._quarantine.answered(bookie)  # It has just said that it is there.
        self._writable = writable
        self._listed.set()
        self._notify()

    async def probe(self, prober: Prober) -> None:
        """Ask those in quarantine how they are, for ever."""
        while True:
            await trio.sleep(self._limits.probe_interval_s)
            async with trio.open_nursery() as nursery:
                for bookie in self._quarantine.to_ask(trio.current_time()):
                    nursery.start_soon(self._probe, prober, bookie)

    async def _probe(self, prober: Prober, bookie: BookieId) -> None:
        with trio.move_on_after(self._limits.probe_timeout_s):
            if await prober.probe(bookie) and self._quarantine.answered(bookie):
                self._notify()

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()
