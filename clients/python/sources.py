"""The consumers and readers that one client has open, and how they are opened.

A consumer or reader of a topic with partitions has one `TopicConsumer` for each of them.  Consumer
ids are never used twice, because a broker may still have an old consumer of the connection.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from random import Random
from typing import Any

import trio

from daybook.clients.python.arguments import check_timeout
from daybook.clients.python.connection_handler import attach_all
from daybook.clients.python.consumer import Consumer, MessageSource
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.lookup import Lookups
from daybook.clients.python.message_id import EARLIEST, LATEST
from daybook.clients.python.message_queue import MessageQueue
from daybook.clients.python.multi_topic import MultiTopicConsumer, TopicFinder
from daybook.clients.python.pool import ConnectionPool
from daybook.clients.python.reader import Reader
from daybook.clients.python.topic_choice import TopicChoice
from daybook.clients.python.topic_consumer import ConsumerSettings, TopicConsumer
from daybook.clients.python.topic_watch import TopicWatch
from daybook.wire.topics import TopicName


class Sources:
    """One instance per client."""

    def __init__(
        self,
        pool: ConnectionPool,
        lookups: Lookups,
        limits: ClientLimits,
        rng: Random,
        nursery: trio.Nursery,
    ) -> None:
        self._pool = pool
        self._lookups = lookups
        self._limits = limits
        self._rng = rng
        self._nursery = nursery
        self._opened: list[MessageSource[Any]] = []
        self._next_consumer_id = 0
        self._next_watcher_id = 0

    def __len__(self) -> int:
        return len(self._opened)

    def __contains__(self, source: object) -> bool:
        return source in self._opened

    def __iter__(self) -> Iterator[MessageSource[Any]]:
        return iter(self._opened)

    async def open_consumer(
        self, choice: TopicChoice, settings: ConsumerSettings, discovery_s: float
    ) -> Consumer[Any]:
        """Return a consumer whose topics are all attached."""
        if choice.pattern is not None or len(choice.names) > 1:
            check_timeout("discovery_s", discovery_s)
            return await self._open_several(choice, settings, discovery_s)
        name, queue = choice.first, MessageQueue()
        assert name is not None
        topics = await self._lookups.topics_of(name)
        consumers = await self._open_consumers(settings, queue, topics)
        consumer: Consumer[Any] = Consumer(
            name,
            settings.consumer_name,
            consumers,
            queue,
            partial(self._open_consumers, replace(settings, start=EARLIEST), queue),
            self._opened.remove,
            settings,
        )
        self._opened.append(consumer)
        return consumer

    async def _open_several(
        self, choice: TopicChoice, settings: ConsumerSettings, discovery_s: float
    ) -> MultiTopicConsumer[Any]:
        lookups = self._lookups
        consumer: MultiTopicConsumer[Any] = MultiTopicConsumer(
            choice,
            settings,
            TopicFinder(
                lambda namespace: lookups.persist(lambda: lookups.topics(namespace)),
                lambda name: lookups.persist(
                    lambda: lookups.partitions(name, create=choice.pattern is None)
                ),
            ),
            self._open_consumers,
            self._opened.remove,
        )
        self._opened.append(consumer)
        try:
            await consumer.refresh(settings)
        except BaseException:
            consumer.abandon()  # The caller does not get it, and so could not close it.
            raise
        topic_watch: TopicWatch | None = None
        if choice.pattern is not None:
            self._next_watcher_id += 1
            topic_watch = TopicWatch(
                choice.pattern,
                self._next_watcher_id,
                connect=self._pool.service,
                on_names=consumer.on_names,
                limits=self._limits,
                rng=self._rng,
            )
        self._nursery.start_soon(consumer.watch, discovery_s, topic_watch)
        return consumer

    async def open_reader(
        self, name: TopicName, settings: ConsumerSettings, topics: list[TopicName] | None
    ) -> Reader[Any]:
        """Return a reader of a topic, or of `topics`, which then are not looked for."""
        where = settings.start
        if topics is None:
            topics = await self._lookups.topics_of(name)
        if len(topics) > 1 and where not in (EARLIEST, LATEST) and not isinstance(where, datetime):
            raise ValueError(
                "a message id or an offset is a position in one partition: open a reader of that"
                " partition"
            )
        queue = MessageQueue()
        consumers = await self._open_consumers(settings, queue, topics)
        reader: Reader[Any] = Reader(
            name,
            settings.consumer_name,
            consumers,
            queue,
            partial(self._open_consumers, replace(settings, start=EARLIEST), queue),
            self._opened.remove,
            settings.versions,
            settings.counts,
        )
        self._opened.append(reader)
        if isinstance(where, datetime):
            try:
                await reader.seek(where)
            except BaseException:
                reader.abandon()  # The caller does not get it, and so could not close it.
                raise
        return reader

    async def _open_consumers(
        self, settings: ConsumerSettings, queue: MessageQueue, topics: Sequence[TopicName]
    ) -> list[TopicConsumer]:
        consumers: list[TopicConsumer] = []
        for topic in topics:
            consumer = TopicConsumer(
                topic,
                lookups=self._lookups,
                limits=self._limits,
                rng=self._rng,
                consumer_id=self._next_consumer_id,
                settings=settings,
                queue=queue,
            )
            self._next_consumer_id += 1
            consumers.append(consumer)
        await attach_all(self._nursery, consumers)
        return consumers
