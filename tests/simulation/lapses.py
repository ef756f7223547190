"""Watches brokers delete subscriptions that had no consumer for long, during a run.

A broker says that it deletes one.  From then on the history allows that it is gone.  It must not
have had a consumer in the time before: brokers are looked at in short intervals, and a subscription
counts from the moment at which it was seen first in its broker.
"""

from typing import Any

from daybook.broker.dispatch.subscription import Subscription
from tests.history.events import Unsubscribe
from tests.history.recorder import Recorder
from tests.simulation.cluster import Cluster

_LOOK_S = 0.1
_CLOCK_S = 0.002  # the clocks of hosts count milliseconds
_LINE = "a subscription had no consumer for long and is deleted"


class Lapses:
    """The subscriptions of one run that expire."""

    def __init__(self, cluster: Cluster, brokers: list[str], recorder: Recorder) -> None:
        self.problems: list[str] = []
        self._cluster = cluster
        self._brokers = brokers
        self._recorder = recorder
        self._expiry_s = cluster.settings.subscription_expiry_s
        self._used_s: dict[Subscription, float] = {}  # when each had a consumer, or was there first

    @property
    def needed(self) -> bool:
        return self._expiry_s > 0

    async def run(self) -> None:
        """Look at all subscriptions in intervals, forever."""
        self._cluster.logs.on_line[_LINE] = self._deleted
        while True:
            for name in self._brokers:
                self._look_at(name)
            await self._cluster.run.sleep(_LOOK_S)

    def _look_at(self, name: str) -> None:
        broker, now_s = self._cluster.broker(name), self._cluster.run.clock.now
        for topic in [] if broker is None else broker.topics.loaded.values():
            for each in topic.subscriptions.by_name.values():
                if each.consumers:
                    self._used_s[each] = now_s
                else:  # It may have been there since the last look.
                    self._used_s.setdefault(each, now_s - _LOOK_S)

    def _deleted(self, host: str, facts: dict[str, Any]) -> None:
        topic, name, broker = facts["topic"], facts["subscription"], self._cluster.broker(host)
        self._recorder.note(Unsubscribe(topic, name))
        loaded = None if broker is None else broker.topics.loaded.get(topic)
        found = None if loaded is None else loaded.subscriptions.by_name.get(name)
        used_s = None if found is None else self._used_s.get(found)
        now_s = self._cluster.run.clock.now
        if used_s is None or now_s - used_s >= self._expiry_s - _CLOCK_S:
            return
        self.problems.append(
            f"expiry: {host} deletes {name} of {topic}, which had a consumer"
            f" {now_s - used_s:.2f} s ago, or was not loaded; it expires after {self._expiry_s} s"
        )
