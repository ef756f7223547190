"""A consumer of several topics: of a list, or of those whose names match a pattern.

It is one consumer for the application.  Behind it each topic, and each partition, has a consumer
of its own, attached to its own broker; all of them fill one queue, in which topics take turns.

The topics of a list are created if they do not exist, and the consumer ends when all of them were
terminated.  The topics of a pattern come and go:

A broker that offers it tells of new topics at once (`topic_watch.py`).  Besides, the consumer asks
for the list of topics every `discovery_s`.

    found       the consumer subscribes, from the first message on that the subscription lacks
    deleted     the broker closes the topic's consumer; it is not attached again, because that
                would create the topic, and it is removed when the broker says that no such topic
                exists
    refused     another error of one topic is raised by `receive`, as for a single topic

A topic is never removed because a list of topics lacks it: the list may be out of date.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import trio

from daybook.clients.python.consumer import Consumer, MessageSource
from daybook.clients.python.errors import BrokerError, TopicNotFoundError
from daybook.clients.python.message_id import EARLIEST, MessageId
from daybook.clients.python.message_queue import MessageQueue
from daybook.clients.python.messages import ValueT
from daybook.clients.python.start_position import Start
from daybook.clients.python.topic_choice import TopicChoice
from daybook.clients.python.topic_consumer import ConsumerSettings, TopicConsumer
from daybook.clients.python.topic_watch import TopicWatch
from daybook.wire.topics import TopicName

_log = logging.getLogger("daybook.client")
_AGAIN_S = 1.0  # until a new topic that could not be opened is looked for again
OpenTopics: TypeAlias = Callable[
    [ConsumerSettings, MessageQueue, list[TopicName]], Awaitable[list[TopicConsumer]]
]


@dataclass(frozen=True, slots=True)
class TopicFinder:
    """The questions about topics that the consumer asks brokers."""

    names_in: Callable[[str], Awaitable[list[str]]]  # the topics in a namespace
    partitions: Callable[[TopicName], Awaitable[int]]


class MultiTopicConsumer(Consumer[ValueT]):
    """A consumer of several topics; `Client.subscribe` makes it."""

    def __init__(
        self,
        choice: TopicChoice,
        settings: ConsumerSettings,
        finder: TopicFinder,
        open_topics: OpenTopics,
        on_closed: Callable[[MessageSource[Any]], None],
    ) -> None:
        self._choice = choice
        self._settings = settings
        self._finder = finder
        self._open_topics = open_topics
        self._opened: dict[TopicName, list[TopicConsumer]] = {}
        self._refreshing = trio.Lock()
        self._named: set[str] = set()  # topics that a broker has named, to be looked at
        self._news = trio.Event()
        queue = MessageQueue(endless=choice.pattern is not None)
        super().__init__(
            choice, settings.consumer_name, [], queue, self._open_nothing, on_closed, settings
        )

    async def _open_nothing(self, topics: list[TopicName]) -> list[TopicConsumer]:
        raise AssertionError(f"partitions are opened by `refresh`, not {topics}")

    @property
    def topics(self) -> list[str]:
        """The full names of the topics that it receives from now, without partitions."""
        self.forget_deleted()
        return sorted(name.full for name in self._opened)

    @property
    def partitions(self) -> int:
        """0: the partitions are those of several topics, and `refresh` follows them."""
        return 0

    async def watch(self, interval_s: float, topic_watch: TopicWatch | None = None) -> None:
        """Follow topics and partitions that come and go; a task in the nursery of the client."""
        async with trio.open_nursery() as nursery:
            if topic_watch is not None:
                nursery.start_soon(topic_watch.run)
            nursery.start_soon(self._poll, interval_s)
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    async def _poll(self, interval_s: float) -> None:
        told = False
        wait_s = interval_s
        while True:
            with trio.move_on_after(wait_s):
                await self._news.wait()
            self._news = trio.Event()
            named, self._named = self._named, set()
            try:
                # A topic that comes later has messages that only this subscription waits for.
                await self.refresh(
                    replace(self._settings, start=EARLIEST), sorted(named) if named else None
                )
                told, wait_s = False, interval_s
            except BrokerError as error:  # The next rounds try again, soon at first.
                is_first = wait_s >= interval_s
                wait_s = min(_AGAIN_S if is_first else 2 * wait_s, interval_s)
                if not told:
                    _log.warning("%s: topics cannot be looked up: %s", self, error)
                told = True

    def on_names(self, names: list[str]) -> None:
        """Note that a broker has named topics that may be new."""
        self._named.update(names)
        self._news.set()

    async def refresh(self, settings: ConsumerSettings, named: list[str] | None = None) -> None:
        """Subscribe to what has come, and forget topics that were deleted.

        `named`: topics that a broker has named; without them it is asked for all topics.
        """
        async with self._refreshing:
            self.forget_deleted()
            failures: list[BrokerError] = []
            wanted = await self._wanted(named)
            async with trio.open_nursery() as nursery:
                for name, listed in wanted.items():
                    nursery.start_soon(self._open, name, listed, settings, failures)
            if failures:
                raise failures[0]

    def forget_deleted(self) -> None:
        """Remove the consumers of a pattern whose topic does not exist any more."""
        if self._choice.pattern is None:
            return
        for name, consumers in list(self._opened.items()):
            alive = [each for each in consumers if not isinstance(each.failure, TopicNotFoundError)]
            if alive == consumers:
                continue
            for consumer in consumers:
                if consumer not in alive:
                    self._partition_consumers.remove(consumer)
                    self._queue.drop(consumer)
            if alive:
                self._opened[name] = alive
            else:
                del self._opened[name]

    async def _wanted(self, named: list[str] | None) -> dict[TopicName, list[TopicName]]:
        """Return the topics to receive from; with a pattern, each with its names in the list."""
        pattern = self._choice.pattern
        if pattern is None:
            return {name: [] for name in self._choice.names}
        if named is not None:
            return pattern.select(named)
        found = pattern.select(await self._finder.names_in(pattern.namespace))
        return {**found, **{name: [] for name in self._choice.names}}

    async def _open(
        self,
        name: TopicName,
        listed: list[TopicName],
        settings: ConsumerSettings,
        failures: list[BrokerError],
    ) -> None:
        """Subscribe to the partitions of a topic that have no consumer yet, or to the topic."""
        try:
            topics = [name]
            if name.partition < 0 and (count := await self._finder.partitions(name)):
                topics = [name.partition_name(index) for index in range(count)]
            elif listed and name not in listed:
                topics = listed  # They look like partitions, and are topics of their own.
            known = {each.topic for each in self._opened.get(name, ())}
            missing = [topic for topic in topics if topic not in known]
            # A topic of a pattern that was deleted must not be created by its own consumer.
            settings = replace(settings, create=name in self._choice.names)
            if known:  # These partitions are new.
                settings = replace(settings, start=EARLIEST)
            if not missing:
                return
            consumers = await self._open_topics(settings, self._queue, missing)
        except TopicNotFoundError as error:
            if name in self._choice.names:
                failures.append(error)
            return  # It was deleted since the list was made.
        except BrokerError as error:
            failures.append(error)
            return
        if self._closed:
            for consumer in consumers:
                consumer.abandon()
            return
        self._opened.setdefault(name, []).extend(consumers)
        self._partition_consumers.extend(consumers)
        self._queue.wake()

    def _consumer_of(self, place: MessageId) -> TopicConsumer:
        if place.topic is None and len(self._partition_consumers) > 1:
            raise ValueError(
                f"{place} names no topic, and this consumer has several: give the message itself,"
                " or the id with its topic, as of MessageId.decode(data, topic)"
            )
        for consumer in self._partition_consumers:
            if place.topic is None or consumer.topic.full == place.topic:
                return consumer
        raise ValueError(f"this consumer does not receive from {place.topic}")

    # Calls that concern all topics leave out those that were deleted.

    async def seek(self, start: Start | int | str) -> None:
        """Continue at a position in all topics; with a message id, in its topic."""
        self.forget_deleted()
        await super().seek(start)

    async def flush_acks(self) -> None:
        """Return when the acknowledgements so far are durable, in all topics."""
        self.forget_deleted()
        await super().flush_acks()

    async def unsubscribe(self) -> None:
        """Delete the subscription of every topic with its position, and close."""
        self.forget_deleted()
        await super().unsubscribe()
