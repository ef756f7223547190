"""The watch over all subscriptions of a broker: it notices those that stall, and says why.

A subscription stalls if a consumer has permits, there is something to send, and nothing was sent
for `stalled_s` (`protocol.dispatch.stall`).  Each stall is one line in the log, at most a few lines
a minute for all subscriptions, and is counted in metrics.  The watch only looks: it changes nothing
and repairs nothing, because a repair would hide the bug.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import trio

from daybook.broker.dispatch.explain import blockers, explain, sample
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.protocol.dispatch.blockers import Cause
from daybook.broker.protocol.dispatch.places import Place
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log, LogLimiter

if TYPE_CHECKING:
    from daybook.broker.topics.bugs import TopicBugs
    from daybook.broker.topics.topic import Topic

_SAMPLES = 4  # while a subscription becomes stalled
_TURN = 500  # subscriptions that are sampled before other tasks have their turn
# To say why a key_shared subscription stalls may take a tenth of a second.
_ASKED_EVERY = 20  # times that a stalled subscription is sampled
_LINES_MAX = 10  # a minute, for all subscriptions


class DispatchWatch:
    """One instance per broker.  `loaded` returns the topics that are served."""

    def __init__(
        self,
        loaded: Callable[[], Iterable["Topic"]],
        bugs: "TopicBugs",
        *,
        stalled_s: float,
        clock: WallClock,
        log: Log,
    ) -> None:
        self.stalls = 0  # that began
        self.stalled: Counter[Cause] = Counter()  # subscriptions, by what blocks them; at the end
        self._loaded = loaded
        self._bugs = bugs
        self._stalled_s = stalled_s
        self._clock = clock
        self._limiter = LogLimiter(log, lines_max=_LINES_MAX)
        self._looks = 0
        self.unreadable = 0  # entries that subscriptions could not read at the last look
        self._told: set[tuple[Subscription, Place]] = set()  # those of them that were logged
        self._causes: dict[
            Subscription, Cause
        ] = {}  # the subscriptions that stalled at the last look have one

    async def run(self) -> None:
        """Sample all subscriptions again and again, forever."""
        while True:
            await trio.sleep(self._stalled_s / _SAMPLES)
            await self.look()

    async def look(self) -> None:
        """Sample all subscriptions once."""
        self._looks += 1
        unreadable: set[tuple[Subscription, Place]] = set()
        causes: dict[Subscription, Cause] = {}
        count = 0
        for topic in list(self._loaded()):
            for subscription in list(topic.subscriptions.by_name.values()):
                count += 1
                if not count % _TURN:
                    await trio.lowlevel.checkpoint()
                # The watch changes nothing, so the topic stays as it is.
                with self._bugs.contained(topic.name, "looking for stalled subscriptions"):
                    if len(subscription.dispatcher.unreadable):
                        unreadable |= self._tell_unreadable(subscription)
                    if not self._stalls(subscription):
                        continue
                    cause = self._causes.get(subscription)
                    if cause is None or not (count + self._looks) % _ASKED_EVERY:
                        cause = self._cause(subscription)
                        await trio.lowlevel.checkpoint()
                    causes[subscription] = cause
        self._told, self.unreadable = unreadable, len(unreadable)
        self._causes = causes
        self.stalled = Counter(causes.values())

    def _tell_unreadable(self, subscription: Subscription) -> set[tuple[Subscription, Place]]:
        """Log the entries that the subscription cannot read, each once."""
        found: set[tuple[Subscription, Place]] = set()
        unreadable = subscription.dispatcher.unreadable
        for each in unreadable.all:
            found.add((subscription, each.place))
            if (subscription, each.place) not in self._told:
                self._limiter.warning(
                    "an entry cannot be read, and the broker tries again: look at the bookies",
                    topic=subscription.topic.name.full,
                    subscription=subscription.name,
                    entry=f"{each.place[0]}:{each.place[1]}",
                    others="wait" if each is unreadable.stops else "are delivered",
                    why=each.why,
                )
        return found

    def _stalls(self, subscription: Subscription) -> bool:
        now_s = trio.current_time()
        waits_s = sample(subscription, now_s)
        if waits_s is None or waits_s < self._stalled_s:
            return False
        if subscription.stall.first_told():
            self.stalls += 1
            found = explain(subscription, self._clock.now_ms(), now_s)
            self._limiter.warning(
                "a subscription has messages and a consumer with permits, and nothing is sent:"
                " `daybook explain subscription` shows what blocks it",
                topic=found.topic,
                subscription=found.subscription,
                for_s=round(waits_s, 1),
                why=found.summary,
            )
        return True

    def _cause(self, subscription: Subscription) -> Cause:
        found = blockers(subscription)
        return found[0].cause if found else Cause.UNKNOWN
