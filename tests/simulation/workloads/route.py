"""One route of messages: what its parts share, and how they are told to the history."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any
from zlib import crc32

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.messages import Message
from daybook.clients.python.producer import Producer
from tests.history import route_events as events
from tests.simulation.plan import Carry
from tests.simulation.workloads.messages import payload, value_in
from tests.simulation.workloads.scene import Scene
from tests.simulation.workloads.stage import Actor

AGAIN_S = 0.3
SUBSCRIPTION = "s"
_CLOSE_S = 10.0
_QUIET_S = 4.0
# Longer than every delay of a route, and than a client needs to find the broker again.
_LAST_QUIET_S = 14.0
_BATCH = 10


@dataclass(slots=True)
class Running:
    scene: Scene
    actor: Actor
    client: Client
    work: Carry
    route: str
    topic: str
    rng: Random
    sent_all: bool = False

    # -- events

    def begin(self, *, ordered: bool = False, once: bool = False, lossy: bool = False) -> None:
        how = self.work.how
        self.actor.note(events.Route(self.route, how, ordered=ordered, once=once, lossy=lossy))

    def arrived(self, place: str, message: Message) -> None:
        data = bytes(message.data or b"")
        digest = f"{crc32(data):08x}"
        self.actor.note(events.Arrived(self.route, place, value_in(data), digest))

    # -- the sender

    async def send_all(self, **options: Any) -> None:
        """Send messages, one after the other, until the storm is over."""
        scene, left = self.scene, self.work.messages
        while left > 0 and not scene.calm.is_set():
            try:
                producer = await self.client.create_producer(
                    self.topic, send_timeout_s=None, **options
                )
            except BrokerError as error:
                self.actor.refused("create a producer", error)
                await scene.wait_calm(AGAIN_S)
                continue
            sender = f"{self.route}/{scene.number(f'{self.route} sender')}"
            try:
                while left > 0 and not scene.calm.is_set():
                    left -= 1
                    await self.send(producer, sender, left)
                    await scene.wait_calm(self.rng.expovariate(1 / self.work.pace_s))
                    if self.rng.random() < self.work.again:
                        break
                with trio.move_on_after(_CLOSE_S):
                    await producer.aclose()
            except BrokerError as error:
                scene.marks[f"a send of a route met {type(error).__name__}"] += 1
            finally:
                producer.abandon()
        self.sent_all = True

    async def send(self, producer: Producer, sender: str, number: int) -> str:
        """Send one message and return its value.  Raise BrokerError."""
        value = f"{sender}/{number}"
        data = payload(value, self.work.payload_bytes)
        self.actor.note(events.Offer(self.route, sender, value, f"{crc32(data):08x}"))
        await producer.send(data, key=f"k{number % 3}")
        self.actor.note(events.Taken(self.route, value))
        return value

    # -- receivers

    @asynccontextmanager
    async def consumer(
        self, of: str | re.Pattern[str] = "", **options: Any
    ) -> AsyncGenerator[Consumer]:
        """Subscribe, however long it takes; to the topic of the route if no other is given."""
        while True:
            try:
                consumer = await self.client.subscribe(
                    of or self.topic, SUBSCRIPTION, initial_position="earliest", **options
                )
                break
            except BrokerError as error:
                self.actor.refused("subscribe", error)
                await trio.sleep(AGAIN_S)
        try:
            yield consumer
            with trio.move_on_after(_CLOSE_S), suppress(BrokerError):
                await consumer.aclose()
        finally:
            consumer.abandon()

    async def receive(
        self, act: Callable[[Consumer, Message], Awaitable[None]], **options: Any
    ) -> None:
        """Receive until all is sent and nothing more comes; start again now and then."""
        while True:
            async with self.consumer(**options) as consumer:
                while True:
                    was_over = self.is_over
                    with trio.move_on_after(_LAST_QUIET_S if was_over else _QUIET_S) as scope:
                        messages = await consumer.receive_batch(_BATCH)
                    if scope.cancelled_caught:
                        if was_over:
                            return
                        continue
                    for message in messages:
                        try:
                            await act(consumer, message)
                        except BrokerError as error:
                            self.scene.marks[f"a route met {type(error).__name__}"] += 1
                    if self.rng.random() < self.work.again and not self.scene.calm.is_set():
                        break

    @property
    def is_over(self) -> bool:
        return self.sent_all and self.scene.calm.is_set()

    async def read(self, topic: str, place: str) -> list[str]:
        """Note all messages of a topic, and return their values."""
        while True:
            found: list[Message] = []
            try:
                async with await self.client.create_reader(topic, start="earliest") as reader:
                    while await reader.has_message_available():
                        found += await reader.receive_batch()
            except BrokerError as error:
                self.actor.refused("create a reader", error)
                await trio.sleep(AGAIN_S)
                continue
            for message in found:
                self.arrived(place, message)
            return [value_in(bytes(message.data or b"")) for message in found]
