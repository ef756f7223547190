"""The loads of topics that are under way: how many at a time, how long, and in which step each is.

    async with loads.begin(name) as load:
        load.step("recovering its last ledgers")

At most `at_once` loads work at a time, so the 10,000 topics of a broker that died do not all ask
ZooKeeper and the bookies at the same moment.  The others wait, and those with the most callers come
first (`load_places.py`).  A load that takes longer than `slow_s` waits for something that is away.
It is logged with its step, and gives its place to others, because it must not hold them up.  A load
that has not advanced for `load_s` is given up, and its callers are told the step; the next caller
begins anew.  A step that may rightly take long, such as the replay of a long log, says that it
advances.

A load that is no longer wanted is stopped.  It would take the log over later, perhaps from the
topic that this broker has loaded again by then.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from daybook.broker.errors import BrokerError, NotOwnerError, UnavailableError
from daybook.broker.limits import LoadLimits
from daybook.broker.topics.load_places import LoadPlaces
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.topics import TopicName

WAITS = "waiting for other topics that are being loaded"


@dataclass(slots=True, eq=False)
class Load:
    """One load.  `doing` is the step that it is in, in words."""

    name: TopicName
    since_s: float
    doing: str = WAITS
    step_since_s: float = 0.0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    patience_s: float = 0.0
    stopped: bool = False

    @property
    def waits(self) -> bool:
        """Return True while the load has not had a place yet."""
        return self.doing == WAITS

    def step(self, doing: str) -> None:
        """Note that the load begins its next step."""
        self.doing, self.step_since_s = doing, trio.current_time()

    def advance(self) -> None:
        """Note that the load is not stuck, however long it takes."""
        self.scope.deadline = trio.current_time() + self.patience_s


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is, for people."""

    step: str
    step_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """How many loads there are, and for how long the oldest of each kind has been there.

    `topic` is the one whose load is the oldest of those under way, and `step` what it does.
    """

    under_way: int = 0
    waiting: int = 0  # for a place
    oldest_wait_s: float = 0.0
    oldest_s: float = 0.0
    topic: str = ""
    step: str = ""


class Loads:
    """One instance per broker.  `start` runs a task until the broker ends."""

    def __init__(self, limits: LoadLimits, start: Callable[..., None], log: Log) -> None:
        self._limits = limits
        self._start = start
        self._log = LogLimiter(log)
        self._places = LoadPlaces(limits.at_once)
        self._under_way: dict[str, Load] = {}
        self._callers: dict[str, int] = {}  # how many want each topic, by full name
        # The loads that have a place, in order, and when each of them counts as slow.
        self._slow_at_s: dict[Load, float] = {}
        self._watching = False

    def __len__(self) -> int:
        return len(self._under_way)

    def progress(self, name: TopicName) -> LoadProgress | None:
        """Return how far the load of a topic is; None if it is not being loaded."""
        load, now_s = self._under_way.get(name.full), trio.current_time()
        if load is None:
            return None
        return LoadProgress(load.doing, now_s - load.step_since_s, now_s - load.since_s)

    def add_caller(self, full: str) -> None:
        """Note that one more caller wants this topic, until `remove_caller`."""
        self._count_callers(full, self._callers.get(full, 0) + 1)

    def remove_caller(self, full: str) -> None:
        """Note that a caller got this topic, or no longer wants it."""
        self._count_callers(full, self._callers[full] - 1)

    def _count_callers(self, full: str, callers: int) -> None:
        if callers:
            self._callers[full] = callers
        else:
            del self._callers[full]
        load = self._under_way.get(full)
        if load is not None:
            self._places.called(load, callers)

    def stop(self, full: str) -> None:
        """Stop the load of the topic with this full name, if one is under way."""
        load = self._under_way.get(full)
        if load is not None:
            load.stopped = True
            load.scope.cancel()

    def counts(self) -> LoadCounts:
        """Return all loads of this moment, counted."""
        now_s = trio.current_time()
        waiting = [load for load in self._under_way.values() if load.waits]
        if len(waiting) == len(self._under_way):
            oldest_s, topic, step = 0.0, "", ""
        else:
            busy = (load for load in self._under_way.values() if not load.waits)
            oldest = min(busy, key=lambda load: load.since_s)
            oldest_s, topic, step = now_s - oldest.since_s, oldest.name.full, oldest.doing
        return LoadCounts(
            len(self._under_way) - len(waiting),
            len(waiting),
            max((now_s - load.since_s for load in waiting), default=0.0),
            oldest_s,
            topic,
            step,
        )

    @asynccontextmanager
    async def begin(self, name: TopicName) -> AsyncGenerator[Load]:
        """Run a load.  Raise UnavailableError if it takes too long, NotOwnerError if stopped."""
        now_s = trio.current_time()
        load = self._under_way[name.full] = Load(name, now_s, step_since_s=now_s)
        try:
            await self._take_place(load)
            load.patience_s = self._limits.load_s
            load.advance()
            with load.scope:
                yield load
            if load.scope.cancelled_caught:
                raise self._not_loaded(load)
        finally:
            self._give_back(load)
            # A topic that was dropped meanwhile may be loaded again already.
            if self._under_way.get(name.full) is load:
                del self._under_way[name.full]

    async def _take_place(self, load: Load) -> None:
        """Take one of the places, until the load has ended or turns out to be slow."""
        await self._places.take(load, self._callers.get(load.name.full, 0))
        self._slow_at_s[load] = trio.current_time() + self._limits.slow_s
        load.step("reading its policies")
        if not self._watching:
            self._watching = True
            self._start(self._watch)

    def _give_back(self, load: Load) -> None:
        """Give the place of a load to others, if the load still has it."""
        if self._slow_at_s.pop(load, None) is not None:
            self._places.give_back()

    async def _watch(self) -> None:
        """Give the places of slow loads to others, for as long as any load has a place.

        One task for all loads costs less than one for each.
        """
        try:
            while self._slow_at_s:
                load, slow_at_s = next(iter(self._slow_at_s.items()))
                if trio.current_time() < slow_at_s:
                    await trio.sleep_until(slow_at_s)
                else:
                    self._tell(load)
                    self._give_back(load)
        finally:
            self._watching = False

    def _tell(self, load: Load) -> None:
        self._log.info(
            "a topic takes long to load",
            (load.name.full,),
            topic=load.name.full,
            step=load.doing,
            step_s=round(trio.current_time() - load.step_since_s, 1),
        )

    def _not_loaded(self, load: Load) -> BrokerError:
        if load.stopped:
            return NotOwnerError(
                f"this broker lost {load.name} while it loaded it: look it up again"
            )
        step_s = trio.current_time() - load.step_since_s
        return UnavailableError(
            f"{load.name} was not loaded within {self._limits.load_s:.0f} s: it has been"
            f" {load.doing} for {step_s:.0f} s. Look at the bookies and at ZooKeeper; the next use"
            " of the topic tries again"
        )
