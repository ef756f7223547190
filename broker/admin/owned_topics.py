"""Operations on topics that this broker owns.

The caller has checked that it does.  If the broker loses the bundle meanwhile, the operation ends
with UnavailableError.  Which topics are stored can be asked for all of them, whoever owns them.

A reader keeps its subscription for its role: of other roles, only a super user and an administrator
of the tenant reach it.
"""

from collections.abc import Mapping
from functools import partial
from typing import cast

import msgspec

from daybook.broker.admin.message_ids import MessageIdData, Start
from daybook.broker.admin.stats_sums import Stats
from daybook.broker.compaction.state import compaction_state
from daybook.broker.dispatch.non_persistent import NonPersistentSubscription
from daybook.broker.dispatch.subscription import Subscription, Target
from daybook.broker.errors import (
    AuthorizationError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.security.authorization import Authorization
from daybook.broker.security.identity import CALLER
from daybook.broker.security.resources import of_topic
from daybook.broker.security.rights import Right
from daybook.broker.topics.stats import internal_stats, non_persistent_stats, topic_stats
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.managed_ledger.position import Position
from daybook.wire.topics import TopicName


class OwnedTopics:
    """The topics of the broker `broker_id`, as far as it owns them."""

    def __init__(self, topics: Topics, broker_id: str, authorization: Authorization) -> None:
        self._topics = topics
        self._broker_id = broker_id
        self._authorization = authorization

    async def stored(self, namespace: str) -> list[TopicName]:
        return await self._topics.logs.stored(namespace)

    async def exists(self, topic: TopicName) -> bool:
        return await self._topics.exists(topic)

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        await self._topics.create(topic, properties)

    async def delete(self, topic: TopicName, *, force: bool) -> None:
        await self._topics.delete(topic, force=force)

    async def unload(self, topic: TopicName) -> None:
        if not await self.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")
        await self._topics.unload(topic)

    async def compact(self, topic: TopicName) -> None:
        (await self.get(topic)).compaction.start()

    async def compaction(self, topic: TopicName) -> Stats:
        """Return the state as plain objects, as another broker would send it."""
        state = compaction_state((await self.get(topic)).compaction)
        return cast("Stats", msgspec.to_builtins(state))

    async def stats(self, topic: TopicName) -> dict[str, object]:
        if not topic.persistent:
            found = await self._topics.non_persistent.get(topic, create=False)
            return non_persistent_stats(found, self._broker_id)
        served = await self.get(topic)
        await served.read_backlogs()
        return topic_stats(served, self._broker_id)

    async def internal_stats(self, topic: TopicName) -> dict[str, object]:
        if not topic.persistent:
            found = await self._topics.non_persistent.get(topic, create=False)
            return {"entriesAddedCounter": found.entries, "ledgers": [], "cursors": {}}
        return internal_stats(await self.get(topic))

    async def last_message_id(self, topic: TopicName) -> MessageIdData:
        found = await (await self.get(topic)).last_message()
        position, batch_index = found or (Position(-1, -1), -1)
        return _message_id(topic, position, batch_index)

    async def message_id_at(self, topic: TopicName, publish_time_ms: int) -> MessageIdData:
        """Return the first message published at that time or later, or the end of the topic."""
        position = await (await self.get(topic)).position_of_time(publish_time_ms)
        return _message_id(topic, position)

    async def message_id_of_offset(self, topic: TopicName, offset: int) -> MessageIdData:
        """Return the message with that offset.  Raise NotFoundError if the topic has none.

        The batch index is -1 if the entry has one message only.
        """
        served = await self.get(topic)
        first, following = await served.first_offset(), served.log.confirmed_offset + 1
        if not first <= offset < following:
            held = f"{first} to {following - 1}" if first < following else "none"
            raise NotFoundError(f"{topic} has no offset {offset}: it holds {held}")
        start = await served.entry_start(await served.position_of_offset(offset))
        if start is None:
            raise UnavailableError(f"{topic} was trimmed at the offset {offset}: try again")
        index = offset - start.first_offset if start.messages > 1 else -1
        return _message_id(topic, start.position, index)

    async def terminate(self, topic: TopicName) -> MessageIdData:
        return _message_id(topic, await (await self.get(topic)).terminate())

    async def subscriptions(self, topic: TopicName) -> list[str]:
        by_name = (await self._topics.open(topic, create=False)).subscriptions.by_name
        return sorted(by_name)

    async def create_subscription(self, topic: TopicName, name: str, start: Start) -> None:
        served = await self._topics.get(topic, create=True)
        _check_partition(topic, start)
        position, pending = await _target(served, start)
        part = None if pending is None else (position, pending)
        mark_delete = served.log.previous_position(position)
        await served.subscriptions.create(name, mark_delete, start.properties, part=part)

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool) -> None:
        if not topic.persistent:
            await self._delete_volatile(topic, name, force=force)
            return
        served, subscription = await self.subscription(topic, name)
        if subscription.consumers and not force:
            raise PreconditionError(_in_use(name, len(subscription.consumers)))
        await served.subscriptions.remove(subscription)

    async def _delete_volatile(self, topic: TopicName, name: str, *, force: bool) -> None:
        async def find() -> NonPersistentSubscription:
            served = await self._topics.non_persistent.get(topic, create=False)
            return served.subscriptions.get(name)

        subscription = await find()
        if await self._check_reader(topic, name, subscription.reader_of):
            subscription = await find()
        if not force:  # It has consumers, because it would not exist without them.
            raise PreconditionError(_in_use(name, len(subscription.consumers)))
        subscription.drop()

    async def skip_all(self, topic: TopicName, name: str) -> None:
        _, subscription = await self.subscription(topic, name)
        await subscription.skip_all()

    async def reset_to(self, topic: TopicName, name: str, start: Start) -> None:
        served, subscription = await self.subscription(topic, name)

        _check_partition(topic, start)
        await subscription.move(partial(_target, served, start))

    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        served, subscription = await self.subscription(topic, name)

        async def find() -> Target:
            return await served.position_of_time(publish_time_ms), None

        await subscription.move(find)

    async def get(self, topic: TopicName) -> Topic:
        return await self._topics.get(topic, create=False)

    async def subscription(self, topic: TopicName, name: str) -> tuple[Topic, Subscription]:
        """Return a subscription that the sender of the request may work on, and its topic.

        Raise AuthorizationError if it is that of a reader of another role.
        """
        served = await self.get(topic)
        found = served.subscriptions.get(name)
        if await self._check_reader(topic, name, found.reader_of):
            served = await self.get(topic)
            found = served.subscriptions.get(name)
        return served, found

    async def _check_reader(self, topic: TopicName, name: str, reader_of: str) -> bool:
        """Raise AuthorizationError if the reader is of another role than the request.

        Return True if that was asked, so that the subscription may be another one by now.
        """
        caller = CALLER.get()
        if not reader_of or caller is None or caller.role == reader_of:
            return False
        try:
            await self._authorization.check(caller, Right.ADMIN, of_topic(topic))
        except AuthorizationError:
            raise AuthorizationError(
                f"the subscription {name} is that of a reader of another role: ask as that role, or"
                " as an administrator of the tenant"
            ) from None
        return True


def _start_position(topic: Topic, start: Start) -> Position:
    """Return the entry to start on.

    An entry that is gone, or not there yet, becomes the nearest one that is there.
    """
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


def _check_partition(topic: TopicName, start: Start) -> None:
    """Raise PreconditionError if a message id is surely of another partition.

    Go's client names partition 0 in the ids of all topics.
    """
    if start.partition_index > 0 and start.partition_index != topic.partition:
        raise PreconditionError(
            f"the message id is of partition {start.partition_index}, and not of {topic}: name the"
            " topic of the message"
        )


async def _target(topic: Topic, start: Start) -> Target:
    """Return the entry to start on, and which of its messages are wanted.

    `batch_index` is a message within the entry.  It counts only if the entry is still there.
    """
    position, index = _start_position(topic, start), start.batch_index
    if start.symbolic or index < 0:
        return position, None
    named = Position(start.ledger_id, start.entry_id)
    messages = await topic.messages_of(named)
    if not messages:
        return position, None
    first = index + 1 if start.is_excluded else index
    if first >= messages:
        return topic.log.next_position(named), None
    return named, ((1 << messages) - (1 << first)) if first else None


def _in_use(name: str, consumers: int) -> str:
    them = "a consumer: close it" if consumers == 1 else f"{consumers} consumers: close them"
    return f"the subscription {name} has {them}, or use force"


def _message_id(topic: TopicName, position: Position, batch_index: int = -1) -> MessageIdData:
    return MessageIdData(position.ledger_id, position.entry_id, topic.partition, batch_index)
