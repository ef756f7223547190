"""Applies changed policies to loaded topics, which go on serving their clients.

A change of a record is noticed by a watch and applied within a second.  Only topics of the
namespaces that the changed records belong to are looked at.  All topics are looked at from time to
time, because the number of bookies may have changed.  A topic is loaded again only if deduplication
was switched on or off: what it knows about producers comes from its log.

Policies that cannot be read now, or have a value that is not valid, stay as they were.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress

import trio

from daybook.broker.errors import BrokerError
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topic_log import TopicLog, TopicLogs
from daybook.wire.topics import TopicName

_PAUSE_S = 0.2  # between two passes, so that many changes in a row cost few passes
_TOPICS_PER_TURN = 100  # then other tasks run


class PolicyUpdates:
    """One instance per broker.  `reload` begins to load a topic again, without waiting for it."""

    def __init__(
        self,
        policies: Policies,
        logs: TopicLogs,
        loaded: Callable[[], Mapping[str, Topic]],
        reload: Callable[[TopicName], None],
        contained: Callable[[Topic, str], AbstractContextManager[None]],
        *,
        interval_s: float,
    ) -> None:
        self._policies = policies
        self._logs = logs
        self._loaded = loaded
        self._reload = reload
        self._contained = contained
        self._interval_s = interval_s

    async def run(self) -> None:
        while True:
            namespaces: set[str] | None = None
            with trio.move_on_after(self._interval_s):
                namespaces = await self._policies.wait_changed()
            await self._apply(namespaces)
            await trio.sleep(_PAUSE_S)

    async def _apply(self, namespaces: set[str] | None) -> None:
        """Apply the policies to the topics of these namespaces; to all topics for None."""
        logs: dict[int, tuple[EffectivePolicies, list[TopicLog]]] = {}
        for count, topic in enumerate(list(self._loaded().values()), 1):
            if not count % _TOPICS_PER_TURN:
                await trio.lowlevel.checkpoint()
            if topic.serving and (namespaces is None or topic.name.namespace in namespaces):
                with self._contained(topic, "applying its policies"), suppress(BrokerError):
                    found = await self._policies.effective(topic.name)
                    self._change(topic, found)
                    logs.setdefault(id(found), (found, []))[1].append(topic.log)
        for found, changed in logs.values():
            with suppress(BrokerError):
                await self._logs.apply(found, changed)

    def _change(self, topic: Topic, found: EffectivePolicies) -> None:
        if topic.policies is found or not topic.serving:
            return
        topic.apply_policies(found)
        if found.deduplication != (topic.deduplication is not None):
            self._reload(topic.name)
