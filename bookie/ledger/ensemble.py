"""The bookies of the cluster, and the choice of those to write to.

A bookie is *usable* if it is registered as writable and has not failed lately.  A bookie that
failed is in quarantine: it is probed every second, and is usable as soon as it answers.  A bookie
that fails again and again is usable, and chosen last (`Quarantine`).

An ensemble is drawn at random from the usable bookies and spread over racks as far as these are
known (`bookie.ledger.protocol.racks`).  If too few are usable for an ensemble, but enough to
confirm entries, the ensemble is filled up with members of the cluster that are away
(`EnsembleChoice.missing`).  The writer sends these nothing.  A cluster of three with one dead
bookie thus creates ledgers without delay.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

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
from daybook.wire.messages.bookie import (
    APACHE_FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    FRAME_BYTES_PROPERTY,
    Status,
)
from daybook.wire.metadata.store import MetadataError, MetadataStore, SessionState


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineLimits:
    """When a bookie that failed is probed, and when one that fails often is chosen last."""

    refused_s: float = 10.0  # the first probe after a bookie refused an entry
    failures_max: int = 3
    failure_window_s: float = 60.0
    distrust_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A bookie was put into quarantine; `why` is in words."""

    bookie: BookieId
    why: str


@dataclass(frozen=True, slots=True)
class Released:
    """A bookie left the quarantine after `after_s`, because it answers or has registered again."""

    bookie: BookieId
    after_s: float


QuarantineEvent: TypeAlias = Quarantined | Released


class Quarantine:
    """Bookies that failed lately, and bookies that fail again and again.

        in quarantine    the bookie was not reached, did not answer or cannot store now; it is
                         probed, and leaves the quarantine when it answers
        refusing         a bookie in quarantine that answers, and cannot store; it may accept
                         entries of another ledger
        distrusted       the bookie was put into quarantine `failures_max` times within
                         `failure_window_s`; for `distrust_s` it is chosen only if no other is left

    Time is an argument.  One failure that several connections report counts once.
    """

    def __init__(self, limits: QuarantineLimits) -> None:
        self._limits = limits
        self._since: dict[BookieId, float] = {}  # the earliest time of the next probe
        self._entered: dict[BookieId, tuple[float, str]] = {}  # when and why, for those in it
        self.count = 0  # all quarantines so far are counted
        self._refusing: set[BookieId] = set()
        self._failures: dict[BookieId, deque[float]] = {}
        self._distrusted_until: dict[BookieId, float] = {}

    def __contains__(self, bookie: BookieId) -> bool:
        return bookie in self._since

    def refuses(self, bookie: BookieId) -> bool:
        return bookie in self._refusing

    def trusted(self, bookie: BookieId, now: float) -> bool:
        return bookie not in self._since and now >= self._distrusted_until.get(bookie, now)

    def to_ask(self, now: float) -> Sequence[BookieId]:
        return [bookie for bookie, since in self._since.items() if since <= now]

    def why(self, bookie: BookieId) -> str:
        """Return why the bookie was put into quarantine, where it must be."""
        return self._entered[bookie][1]

    def failed(self, bookie: BookieId, now: float, why: str) -> bool:
        """Put the bookie into quarantine; return False if it was there already."""
        self._refusing.discard(bookie)
        if bookie in self._since:
            return False
        self._since[bookie] = now
        self._count(bookie, now)
        self._enter(bookie, now, why)
        return True

    def refused(self, bookie: BookieId, now: float, why: str, *, counts: bool) -> bool:
        """Put a bookie that answers, and does not store, into quarantine.

        `counts` is True for a failure, and False for what a healthy bookie answers at times.
        Return False if the bookie was in quarantine already.
        """
        is_new = bookie not in self._since
        if counts and is_new:
            self._count(bookie, now)
        self._since[bookie] = now + self._limits.refused_s
        self._refusing.add(bookie)
        if is_new:
            self._enter(bookie, now, why)
        return is_new

    def answered(self, bookie: BookieId, now: float) -> float | None:
        """Release the bookie; return how long it was in quarantine, None if it was not."""
        self._refusing.discard(bookie)
        if self._since.pop(bookie, None) is None:
            return None
        return now - self._entered.pop(bookie)[0]

    def _enter(self, bookie: BookieId, now: float, why: str) -> None:
        self._entered[bookie] = now, why
        self.count += 1

    def _count(self, bookie: BookieId, now: float) -> None:
        failures = self._failures.setdefault(bookie, deque())
        failures.append(now)
        while failures[0] <= now - self._limits.failure_window_s:
            failures.popleft()
        if len(failures) >= self._limits.failures_max:
            self._distrusted_until[bookie] = now + self._limits.distrust_s
            # The count starts again, so that the next distrust needs as many new failures.
            failures.clear()


_DIGITS_MAX = 10  # in the announced size of a frame
_ARRANGEMENTS_MAX = 50  # random arrangements tried by `_filled_up`
_NO_FAILURE = (Status.READ_ONLY, Status.TOO_MANY_REQUESTS)  # healthy bookies answer this at times

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLimits:
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 1.0
    quarantine: QuarantineLimits = field(default_factory=QuarantineLimits)
    retry_s: float = 1.0  # the metadata store does not answer
    list_timeout_s: float = 10.0  # for the first list of bookies
    racks_timeout_s: float = 5.0  # a list of bookies waits this long for their racks
    racks_refresh_s: float = 60.0  # racks may change at any time
    read_only_retry_s: float = 60.0  # no bookie was ever read-only, so nothing can be watched


def _ignore(_: QuarantineEvent) -> None:
    """Do nothing; nobody wants to know."""


@dataclass(frozen=True, slots=True)
class EnsembleChoice:
    """An ensemble, and those of its members that are away."""

    ensemble: Ensemble
    missing: Ensemble = ()


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
        self._read_only: frozenset[BookieId] | None = None  # None: not known yet
        self._listed = trio.Event()
        self._quarantine = Quarantine(limits.quarantine)
        self._slow: set[BookieId] = set()  # a read has been waiting for them for long
        self._infos: dict[BookieId, BookieInfo] = {}  # writable bookies
        self._racks = Racks({})
        self._racks_problem = ""
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self._with_blocks: set[BookieId] = set()
        self._frame_bytes: dict[BookieId, int] = {}  # only of bookies that announce it
        self.frame_bytes_max = APACHE_FRAME_BYTES_MAX
        """The largest frame that all writable bookies accept.

        A larger entry would fail on each bookie that cannot take it, at every change of ensemble.
        """
        self._listeners: dict[Callable[[], None], None] = {}
        self.on_quarantine: Callable[[QuarantineEvent], None] = _ignore

    @property
    def writable(self) -> Sequence[BookieId]:
        """All bookies that are registered as writable."""
        return self._writable

    def doubtful(self, bookies: Collection[BookieId]) -> frozenset[BookieId]:
        """Return those that will probably not answer, and should be asked last.

        They are in quarantine, a read is waiting for them, or they are not registered: a host that
        is gone does not even refuse a connection.  This proves nothing about any of them, since
        the lists may be outdated.
        """
        away: Collection[BookieId] = ()
        if self._listed.is_set() and self._read_only is not None:
            away = set(bookies).difference(self._writable, self._read_only)
        doubts = (away, self._quarantine, self._slow)
        return frozenset(b for b in bookies if any(b in doubt for doubt in doubts))

    def is_usable(self, bookie: BookieId) -> bool:
        return bookie in self._writable and bookie not in self._quarantine

    def usable(self) -> list[BookieId]:
        return [bookie for bookie in self._writable if bookie not in self._quarantine]

    def quarantined(self) -> dict[BookieId, str]:
        """Return the bookies that are registered as writable and in quarantine, with the reason."""
        quarantine = self._quarantine
        return {b: quarantine.why(b) for b in self._writable if b in quarantine}

    @property
    def quarantines(self) -> int:
        """How often a bookie was put into quarantine so far."""
        return self._quarantine.count

    def answering(self) -> list[BookieId]:
        """Return the usable bookies, and those that answer and refused an entry lately."""
        quarantine = self._quarantine
        return [b for b in self._writable if b not in quarantine or quarantine.refuses(b)]

    def rack(self, bookie: BookieId) -> str:
        return self._racks.rack(bookie)

    def takes_blocks(self, bookie: BookieId) -> bool:
        """Return True if the bookie last announced that it accepts many adds in one frame."""
        return bookie in self._with_blocks

    @property
    def rack_rule(self) -> RackRule:
        return self._placement.rule

    async def racks_of(self, bookies: Sequence[BookieId]) -> dict[BookieId, str]:
        """Return the racks of the registered bookies among these, writable or not."""
        infos = {b: self._infos[b] for b in bookies if b in self._infos}
        with trio.move_on_after(self._limits.racks_timeout_s):
            for bookie in bookies:
                info = infos.get(bookie) or await self._info(bookie)
                if info is not None:
                    infos[bookie] = info
            try:
                found = await self._placement.racks.racks(list(infos.values()))
            except RackError:
                pass  # The racks known from before stay valid.
            else:
                return {BookieId(name): rack for name, rack in found.items()}
        return {bookie: self._racks.rack(bookie) for bookie in infos if bookie in self._writable}

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after a bookie came, left, or became usable again."""
        self._listeners[listener] = None

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    # -- reports of connections

    def bookie_failed(self, bookie: BookieId, reason: str) -> None:
        if self._quarantine.failed(bookie, trio.current_time(), reason):
            self.on_quarantine(Quarantined(bookie, reason))

    def bookie_refused(self, bookie: BookieId, status: Status) -> None:
        counts = status not in _NO_FAILURE
        why = f"it did not store an entry: {status.name}"
        if self._quarantine.refused(bookie, trio.current_time(), why, counts=counts):
            self.on_quarantine(Quarantined(bookie, why))

    def bookie_slow(self, bookie: BookieId) -> None:
        """Note that a read has been waiting for the bookie for long; `bookie_heard` has to follow.

        Later reads would each wait as long before the first failure puts it into quarantine.
        """
        self._slow.add(bookie)

    def bookie_heard(self, bookie: BookieId) -> None:
        """Note that the read has ended: with an answer, or with a failure reported on its own."""
        self._slow.discard(bookie)

    # -- choosing

    async def choose(self, quorums: Quorums) -> EnsembleChoice:
        """Return an ensemble for a new ledger; raise NotEnoughBookiesError if there is none."""
        if not self._listed.is_set():
            with trio.move_on_after(self._limits.list_timeout_s):
                await self._listed.wait()
        trusted, others = self._by_lot(self.usable())
        ensemble = self._arranged(trusted, others, quorums)
        if ensemble is not None:
            return EnsembleChoice(ensemble)
        # A bookie that leaves the cluster is never named as a missing member: every new ledger
        # would be one more for it to hand over, and it would never finish.
        going = await AdminStates(self._store, self._paths).leaving()
        usable = [b for b in trusted + others if b not in going]
        suspects = [b for b in self._writable if b in self._quarantine and b not in going]
        known = [BookieId(b) for b in await known_bookies(self._store, self._paths)]
        away = suspects + [b for b in known if b not in {*usable, *suspects, *going}]
        choice = self._filled_up(quorums, usable, away)
        if choice is None:
            # Bookies in quarantine may have recovered: to try them is better than to fail.
            rest = [b for b in away if b not in suspects]
            choice = self._filled_up(quorums, usable + suspects, rest)
        if choice is None:
            leaving = f"; leaving, and not counted: {', '.join(sorted(going))}" if going else ""
            raise NotEnoughBookiesError(self._too_few(quorums, usable) + leaving)
        return choice

    def _by_lot(self, bookies: Sequence[BookieId]) -> tuple[list[BookieId], list[BookieId]]:
        """Shuffle the bookies; return the trusted ones, and those that fail again and again."""
        drawn = self._rng.sample(bookies, len(bookies))
        now = trio.current_time()
        trusted = [bookie for bookie in drawn if self._quarantine.trusted(bookie, now)]
        return trusted, [bookie for bookie in drawn if bookie not in trusted]

    def _arranged(
        self, trusted: Sequence[BookieId], others: Sequence[BookieId], quorums: Quorums
    ) -> Ensemble | None:
        """Return the first ensemble that works, in this order of preference.

        Enough racks come before trusted bookies: bookies that fail often are better than too few
        racks.  If there are too few racks in any case, trusted bookies alone come first again.
        """
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
        """Return usable bookies and some that are away, arranged so that each write set can
        confirm.

        Return None if that is impossible.
        """
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
            f"{len(self._writable)} bookies are writable, {len(usable)} of them answer;"
            f" a ledger needs {quorums.ack} for each entry, of an ensemble of"
            f" {quorums.ensemble} known bookies"
        )
        if rule.enforced:
            racks = sorted({self.rack(bookie) for bookie in usable})
            why += (
                f", and {min(rule.least, quorums.write)} racks for each write set; their racks are"
                f" {', '.join(racks) or 'none'}: start bookies in other racks, configure the racks,"
                " or do not enforce racks"
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
        """Return the ensemble with usable bookies in place of the failed ones, as far as there are
        spares.

        Return None if there is no spare.  `refused_by` is given by recoveries, whose adds are
        accepted also by bookies that refuse those of writers: any bookie that answers will do,
        except those that failed in this recovery.
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
        """Return the address of the bookie, or the one it had when it was last seen."""
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

    # -- following the registrations

    async def follow(self) -> None:
        """Keep the lists of registered bookies up to date, forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_read_only)
            await self._follow_writable()

    async def _follow_read_only(self) -> None:
        # The loop is one of its own: with one event for both lists, each change of one of them
        # would leave a watch behind on the other.
        while True:
            changed = trio.Event()
            try:
                names = await self._store.get_children(self._paths.readonly, changed.set)
            except MetadataError:
                await trio.sleep(self._limits.retry_s)
                continue
            self._read_only = frozenset(map(BookieId, names or ()))
            if names is None:  # There is no record, and no watch.
                await trio.sleep(self._limits.read_only_retry_s)
            else:
                await changed.wait()

    async def _follow_writable(self) -> None:
        while True:
            changed = trio.Event()
            try:
                names = await writable_bookies(self._store, self._paths, changed.set)
            except (MetadataError, RegistryError):
                await trio.sleep(self._limits.retry_s)
                continue
            writable = [BookieId(name) for name in names]
            # The racks come first: a bookie on the list may be chosen at once.
            await self._learn_racks(writable)
            self._list_is(writable)
            while not changed.is_set():
                with trio.move_on_after(self._limits.racks_refresh_s):
                    await changed.wait()
                if not changed.is_set():
                    await self._learn_racks(writable)

    async def _learn_racks(self, writable: Sequence[BookieId]) -> None:
        """Learn the racks; what cannot be learnt keeps its value, and is asked for again."""
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
            problem = "the racks of the bookies did not arrive in time"
        if problem and problem != self._racks_problem:
            _log.warning("%s; new ensembles are spread over the racks known so far", problem)
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
        # A bookie that never said so has the default limit of Apache's bookies.
        announced = info.properties.get(FRAME_BYTES_PROPERTY, "")
        digits = announced if announced.isascii() and announced.isdigit() else "0"
        if len(digits) <= _DIGITS_MAX and int(digits) >= FRAME_BYTES_MIN:
            self._frame_bytes[bookie] = int(digits)
        else:
            self._frame_bytes.pop(bookie, None)

    async def _info(self, bookie: BookieId) -> BookieInfo | None:
        """Return the registration, or None if there is none or the store does not answer."""
        try:
            return await bookie_info(self._store, self._paths, bookie)
        except (MetadataError, RegistryError):
            return None

    def _list_is(self, writable: list[BookieId]) -> None:
        for bookie in writable:
            if bookie not in self._writable:
                self._release(bookie)  # It has just registered.
        self._writable = writable
        self.frame_bytes_max = min(
            (self._frame_bytes.get(bookie, APACHE_FRAME_BYTES_MAX) for bookie in writable),
            default=self.frame_bytes_max,
        )
        self._listed.set()
        self._notify()

    async def probe(self, probe: Callable[[BookieId], Awaitable[bool]]) -> None:
        """Probe the bookies in quarantine, forever."""
        while True:
            await trio.sleep(self._limits.probe_interval_s)
            async with trio.open_nursery() as nursery:
                for bookie in self._quarantine.to_ask(trio.current_time()):
                    nursery.start_soon(self._probe, probe, bookie)

    async def _probe(self, probe: Callable[[BookieId], Awaitable[bool]], bookie: BookieId) -> None:
        with trio.move_on_after(self._limits.probe_timeout_s):
            if await probe(bookie) and self._release(bookie):
                self._notify()

    def _release(self, bookie: BookieId) -> bool:
        """Release a bookie from quarantine; return False if it was not there."""
        after_s = self._quarantine.answered(bookie, trio.current_time())
        if after_s is None:
            return False
        self.on_quarantine(Released(bookie, after_s))
        return True

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()
