"""Many topics of one client, which brokers create, load and take over together.

Round 1 opens a producer on each topic, in waves, and sends a few messages.  Later rounds send to
the topics that are in use, while faults strike: the producers come back together when a broker was
lost.  Some topics also have a durable subscription, which each round moves on, so that its cursor
has to be recovered with the topic.  The unused topics are left alone after round 1.

When the storm is over, each topic is read from its first message on, and each subscription gets the
rest; the auditor does that for a client that was killed.  The contract, which the history shows by
one route for each topic and each subscription:

    every message with a receipt is there, in the topic that it was sent to, and in the order of
    the sends; with deduplication once.  A message in doubt may be there
    every message with a receipt gets to the subscription, in order
    a message that the subscription has acknowledged with a receipt does not come again
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from zlib import crc32

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import Message
from daybook.clients.python.producer import Producer
from tests.history import route_events as events
from tests.simulation.plan import Carry, ManyTopics
from tests.simulation.workloads.messages import payload, position_of, value_in
from tests.simulation.workloads.route import Running
from tests.simulation.workloads.scene import Scene
from tests.simulation.workloads.stage import Actor

HOW = "many topics"
_AGAIN_S = 0.3
_CLOSE_S = 10.0
_MOVE_S = 2.0  # a round waits so long for a message of a subscription
_LAST_S = 60.0
_PLACE = "subscription"


async def use_many_topics(scene: Scene, client: Client, work: ManyTopics) -> None:
    """Send to all topics in rounds, and look at the end where everything is."""
    scene.sending[work.name] = None
    actor, number = Actor(scene, client, scene.recorder(work.name)), scene.number(work.name)
    rng = scene.rng(f"{work.name}.{number}")
    topics = [
        _Topic(scene, actor, work, f"{work.name}-{number}-{index}", rng)
        for index in range(work.topics)
    ]
    for each in topics:
        each.begin()
    in_use = topics
    for _round in range(work.rounds):
        await _in_waves(work.wave, [each.use for each in in_use])
        in_use = [each for each in topics if not each.unused]
        if await scene.wait_calm(rng.expovariate(1 / work.pace_s)):
            break
    await scene.calm.wait()
    await _in_waves(work.wave, [partial(each.end, client) for each in topics])
    scene.marks[f"{HOW}: all were read in the end"] += 1
    del scene.sending[work.name]


async def end_unread_topics(scene: Scene, client: Client) -> None:
    """Do what clients that were killed can do no more."""
    async with trio.open_nursery() as nursery:
        for end in list(scene.unread.values()):
            nursery.start_soon(end, client)


async def _in_waves(size: int, calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Make so many calls at a time, and wait for all of them; 0: all at once."""
    size = size or len(calls)
    for first in range(0, len(calls), size):
        async with trio.open_nursery() as nursery:
            for call in calls[first : first + size]:
                nursery.start_soon(call)


@dataclass(slots=True)
class _Topic:
    """One of the topics: its producer, and what its subscription lacks."""

    scene: Scene
    actor: Actor
    work: ManyTopics
    name: str
    rng: Random
    unused: bool = False
    subscribed: bool = False
    producer: Producer | None = None
    sender: str = ""  # its sends are in order; a send in doubt may be stored behind later ones
    sends: int = 0
    missing: set[str] = field(default_factory=set[str])  # values that the subscription has not got

    def begin(self) -> None:
        self.unused = self.rng.random() < self.work.unused
        self.subscribed = self.rng.random() < self.work.moved
        once = self.scene.plan.shape.settings.deduplication
        self.actor.note(events.Route(self.name, HOW, ordered=True, once=once))
        if self.subscribed:
            self.actor.note(events.Route(self._of_subscription, HOW, ordered=True))
        self.scene.unread[self.name] = self.end

    @property
    def topic(self) -> str:
        return f"persistent://public/default/{self.name}"

    @property
    def _of_subscription(self) -> str:
        return f"{self.name}/s"

    @property
    def _routes(self) -> list[str]:
        return [self.name, self._of_subscription] if self.subscribed else [self.name]

    def _running(self, route: str) -> Running:
        carry = Carry(self.work.name, self.work.host, HOW, payload_bytes=self.work.payload_bytes)
        return Running(
            self.scene, self.actor, self.actor.client, carry, route, self.topic, self.rng
        )

    # -- one round

    async def use(self) -> None:
        """Send some messages, and move the subscription, unless the storm is over."""
        await self._send_some()
        if self.unused or not self.work.keep:
            await self._close()
        if self.subscribed and not self.scene.calm.is_set():
            await self._move()

    async def _send_some(self) -> None:
        for _ in range(self.work.messages):
            while self.producer is None:
                if self.scene.calm.is_set():
                    return
                await self._open()
            if self.scene.calm.is_set():
                return
            try:
                await self._send(self.producer)
            except BrokerError as error:
                self.scene.marks[f"a send to one of many topics met {type(error).__name__}"] += 1
                self.producer.abandon()
                self.producer, self.sender = None, ""

    async def _open(self) -> None:
        try:
            self.producer = await self.actor.client.create_producer(
                self.topic, batching=False, send_timeout_s=None
            )
        except BrokerError as error:
            self.actor.refused("create a producer", error)
            await self.scene.wait_calm(_AGAIN_S)
        if not self.sender:
            self.sender = f"{self.name}/{self.scene.number(f'{self.name} sender')}"

    async def _send(self, producer: Producer) -> None:
        value = f"{self.sender}/{self.sends}"
        self.sends += 1
        data = payload(value, self.work.payload_bytes)
        for route in self._routes:
            self.actor.note(events.Offer(route, self.sender, value, f"{crc32(data):08x}"))
        await producer.send(data)
        self.missing.add(value)
        for route in self._routes:
            self.actor.note(events.Taken(route, value))

    async def _close(self) -> None:
        producer, self.producer = self.producer, None
        if producer is None:
            return
        try:
            with trio.move_on_after(_CLOSE_S):
                await producer.aclose()
        except BrokerError as error:
            self.scene.marks[f"closing one of many topics met {type(error).__name__}"] += 1
        finally:
            producer.abandon()

    # -- the subscription

    async def _move(self) -> None:
        """Acknowledge a part of what the subscription has, so that its cursor has a place."""
        async with self._running(self._of_subscription).consumer(ack_receipts=True) as consumer:
            with trio.move_on_after(_MOVE_S):
                found = await self._receive(consumer)
                await self._settle(consumer, found[: (len(found) + 1) // 2])

    async def _receive(self, consumer: Consumer) -> list[Message]:
        found = await consumer.receive_batch()
        for message in found:
            data = bytes(message.data or b"")
            value, digest = value_in(data), f"{crc32(data):08x}"
            route, copy = self._of_subscription, _copy(message.message_id)
            self.actor.note(events.Arrived(route, _PLACE, value, digest, copy))
            self.missing.discard(value)
        return found

    async def _settle(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        try:
            await consumer.ack(messages)
        except BrokerError as error:
            self.actor.refused("ack", error)
            return
        for message in messages:
            copy = _copy(message.message_id)
            self.actor.note(events.Settled(self._of_subscription, _PLACE, copy))

    async def _get_the_rest(self) -> None:
        """Give the subscription a limited time; the history shows what has not arrived."""
        with trio.move_on_after(_LAST_S):
            async with self._running(self._of_subscription).consumer(ack_receipts=True) as consumer:
                while self.missing:
                    await self._settle(consumer, await self._receive(consumer))

    # -- the end

    async def end(self, client: Client) -> None:
        """Look for all messages, by a client that lives."""
        if client is self.actor.client:
            await self._close()
        self.actor = Actor(self.scene, client, self.actor.recorder)
        await self._running(self.name).read(self.topic, "reader")
        if self.subscribed:
            await self._get_the_rest()
        for route in self._routes:
            self.actor.note(events.RouteEnd(route))
        del self.scene.unread[self.name]


def _copy(message_id: MessageId) -> str:
    return ":".join(map(str, position_of(message_id)))
