"""What an administrator can do to one topic, on the broker that owns it.

`Operations` has checked who the owner is; losing the bundle in between ends in `UnavailableError`.
Positions of a subscription are given as Pulsar gives them (`Start`).
"""

from collections.abc import Mapping

from daybook.broker.admin.owned_topics import MessageIdData, Start
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.errors import NotFoundError, PreconditionError
from daybook.broker.topics.stats import internal_stats, topic_stats
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.managed_ledger.position import Position
from daybook.wire.topics import TopicName


class TopicOperations:
    """On the topics that this broker serves; they are loaded if need be."""

    def __init__(self, topics: Topics, broker_id: str) -> None:
        self._topics = topics
        self._broker_id = broker_id

    # -- topics

    async def stored(self, namespace: str) -> list[TopicName]:
        return await self._topics.logs.stored(namespace)

    async def exists(self, topic: TopicName) -> bool:
        return await self._topics.exists(topic)

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        await self._topics.create(topic, properties)

    async def delete(self, topic: TopicName, *, force: bool) -> None:
        await self._topics.delete(topic, force=force)

    async def unload(self, topic: TopicName) -> None:
        if not await self._topics.exists(topic):
            raise NotFoundError(f"there is no topic {topic}")
        await self._topics.unload(topic)

    async def stats(self, topic: TopicName) -> dict[str, object]:
        served = await self._get(topic)
        await served.read_backlogs()
        return topic_stats(served, self._broker_id)

    async def internal_stats(self, topic: TopicName) -> dict[str, object]:
        return internal_stats(await self._get(topic))

    async def last_message_id(self, topic: TopicName) -> MessageIdData:
        found = await (await self._get(topic)).last_message()
        position, batch_index = found or (Position(-1, -1), -1)
        return _message_id(topic, position, batch_index)

    async def message_id_at(self, topic: TopicName, publish_time_ms: int) -> MessageIdData:
        """The first message that was published at that time or later, or where it will be."""
        position = await (await self._get(topic)).position_of_time(publish_time_ms)
        return _message_id(topic, position)

    async def terminate(self, topic: TopicName) -> MessageIdData:
        return _message_id(topic, await (await self._get(topic)).terminate())

    # -- subscriptions

    async def subscriptions(self, topic: TopicName) -> list[str]:
        by_name = (await self._get(topic)).subscriptions.by_name
        return sorted(by_name)

    async def create_subscription(self, topic: TopicName, name: str, start: Start) -> None:
        served = await self._topics.get(topic, create=True)
        mark_delete = served.log.previous_position(_place(served, start))
        await served.subscriptions.create(name, mark_delete, start.properties)

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool) -> None:
        served, subscription = await self._subscription(topic, name)
        if subscription.consumers and not force:
            raise PreconditionError(f"{name} has {len(subscription.consumers)} consumers")
        await served.subscriptions.remove(subscription)

    async def skip_all(self, topic: TopicName, name: str) -> None:
        _, subscription = await self._subscription(topic, name)
        await subscription.skip_all()

    async def reset_to(self, topic: TopicName, name: str, start: Start) -> None:
        served, subscription = await self._subscription(topic, name)

        async def find() -> Position:
            return _place(served, start)

        await subscription.move(find, None)

    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        served, subscription = await self._subscription(topic, name)
        await subscription.move(lambda: served.position_of_time(publish_time_ms), None)

    async def _get(self, topic: TopicName) -> Topic:
        return await self._topics.get(topic, create=False)

    async def _subscription(self, topic: TopicName, name: str) -> tuple[Topic, Subscription]:
        served = await self._get(topic)
        return served, served.subscriptions.get(name)


def _place(topic: Topic, start: Start) -> Position:
    """The entry to begin on; one that is gone, or not there yet, becomes the nearest that is."""
    log = topic.log
    first, end = log.next_position(log.before_first), log.next_position(log.last_confirmed)
    if start.is_earliest:
        return first
    if start.is_latest:
        return end
    position = Position(start.ledger_id, start.entry_id)
    if start.is_excluded:
        position = log.next_position(position)
    return min(max(position, first), end)


def _message_id(topic: TopicName, position: Position, batch_index: int = -1) -> MessageIdData:
    return MessageIdData(position.ledger_id, position.entry_id, topic.partition, batch_index)
