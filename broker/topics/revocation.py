"""Closes the producers and consumers whose role has lost its right.

When the record of a namespace or of a tenant changes, the rights of all producers and consumers in
it are checked again.  The client of a closed one looks its topic up again, and is refused there.  A
right that cannot be checked, because the store is out of reach, is checked again a moment later.
"""

from collections.abc import Iterable

import trio

from daybook.broker.dispatch.non_persistent import NonPersistentSubscription
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.security.authorization import Authorization
from daybook.broker.security.resources import of_topic
from daybook.broker.security.rights import Right
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.wire.logging import Log

_RETRY_S = 1.0


class Revocation:
    """One instance per broker.  `run` belongs in the broker's nursery."""

    def __init__(self, topics: Topics, authorization: Authorization, log: Log) -> None:
        self._topics = topics
        self._authorization = authorization
        self._log = log
        self._changed: set[str] = set()
        self._some = trio.Event()
        if authorization.on:
            authorization.listen(self._note)

    def _note(self, concerns: str) -> None:
        self._changed.add(concerns)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some = trio.Event()
            changed, self._changed = self._changed, set()
            unknown: set[str] = set()
            for topic in self._loaded():
                namespace = topic.name.namespace
                concerned = {namespace, namespace.partition("/")[0]} & changed
                if concerned and not await self._check(topic):
                    unknown |= concerned
            if unknown:
                await trio.sleep(_RETRY_S)
                for concerns in unknown:
                    self._note(concerns)

    def _loaded(self) -> Iterable[Topic | NonPersistentTopic]:
        return [*self._topics.loaded.values(), *self._topics.non_persistent.loaded.values()]

    async def _check(self, topic: Topic | NonPersistentTopic) -> bool:
        """Close what lacks its right now.  Return False if a right could not be checked."""
        known = True
        for producer in list(topic.producers.by_name.values()):
            caller = producer.connection.caller
            if caller is None:
                continue
            may = await self._authorization.still_may(caller, Right.PRODUCE, of_topic(topic.name))
            known = known and may is not None
            if may is False and not producer.closed:
                self._log.info(
                    "a producer has lost its right", role=caller.role, topic=str(topic.name)
                )
                topic.producers.disconnect(producer)
        subscriptions: list[Subscription | NonPersistentSubscription]
        subscriptions = [*topic.subscriptions.by_name.values()]
        for subscription in subscriptions:
            of_reader = bool(subscription.reader_of)
            target = of_topic(topic.name, subscription.name, of_reader=of_reader)
            for consumer in list(subscription.consumers.values()):
                caller = consumer.connection.caller
                if caller is None:
                    continue
                may = await self._authorization.still_may(caller, Right.CONSUME, target)
                known = known and may is not None
                if may is False and not consumer.closed:
                    self._log.info(
                        "a consumer has lost its right", role=caller.role, topic=str(topic.name)
                    )
                    consumer.disconnect()
                    subscription.remove(consumer)
        return known
