"""The operations on subscriptions that go beyond creating, deleting and moving them.

`Operations` finds the owner of a topic; here is what the owner does.  All operations raise only
`BrokerError`s.
"""

import trio

from daybook.broker.admin.operations import Operations
from daybook.broker.dispatch.explain import Explanation, explain
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.topics.topic import Topic
from daybook.wire.topics import TopicName


class SubscriptionOperations:
    """One instance per broker."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    # -- looking

    async def explain(self, topic: TopicName, name: str, *, authoritative: bool) -> Explanation:
        """Return why the subscription delivers nothing at the moment."""

        async def local(topic: TopicName) -> Explanation:
            served, subscription = await self._subscription(topic, name)
            await served.read_backlogs()
            return explain(subscription, served.clock.now_ms(), trio.current_time())

        found = await self._operations.on_owner(topic, local, authoritative=authoritative)
        assert isinstance(found, Explanation)
        return found

    async def _subscription(self, topic: TopicName, name: str) -> tuple[Topic, Subscription]:
        served = await self._operations.get_here(topic)
        return served, served.subscriptions.get(name)
