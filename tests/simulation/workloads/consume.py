"""Consumers of every type, and their actions on messages."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, cast

import trio

from daybook.clients.python.arguments import InitialPosition, SubscriptionTypeName
from daybook.clients.python.client import Client
from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError, ClosedError, CorruptMessageError
from daybook.clients.python.messages import Message
from daybook.clients.python.topic_consumer import TopicConsumer
from tests.history.events import (
    Ack,
    Acked,
    Attached,
    Deliver,
    Detach,
    Leave,
    Nack,
    Position,
    Seek,
    Sought,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from tests.simulation.held_back import is_held_back
from tests.simulation.plan import Consume
from tests.simulation.workloads.messages import digest_of, position_of, value_of
from tests.simulation.workloads.stage import Actor, GivenUpError, Stage

_AGAIN_S = 0.3
_BATCH_MAX = 20
_GROUP_MAX = 10
_CLOSE_S = 10.0
_END_S = 1.0
_GHOST = "a consumer goes without a word, and its connection stays"


@dataclass(slots=True)
class Consuming:
    """One consumer, from its subscription to its end."""

    actor: Actor
    topic: str
    subscription: str
    name: str
    consumer: Consumer
    receipts: bool
    acks: int = 0
    kept: list[Message] = field(default_factory=list[Message])  # delivered messages, to seek to
    _watched: int = 0  # the number of ends that are watched
    _unconfirmed: dict[int, None] = field(default_factory=dict[int, None])

    def watch(self, since_ns: int) -> None:
        """Note each time it is attached, also to partitions that are added later."""
        self._watch_ends(since_ns)
        grow = self.consumer.grow

        async def noting_grow(partitions: int) -> None:
            since_ns = self.actor.scene.now_ns()
            await grow(partitions)
            self._watch_ends(since_ns)

        vars(self.consumer).update(grow=noting_grow)

    def _watch_ends(self, since_ns: int) -> None:
        for end in self.consumer._partition_consumers[self._watched :]:
            topic = self.actor.scene.topic_of(self.topic, end.topic.partition)
            broker = "" if end.connection is None else _process(end.connection)
            self.actor.note(Attached(self.name, since_ns, topic, broker))
            self._watch_end(end)
        self._watched = len(self.consumer._partition_consumers)

    def _watch_end(self, end: TopicConsumer) -> None:
        since_ns = 0
        register: Callable[[Any], Awaitable[None]] = end._register
        attached: Callable[[Any], None] = end._attached

        async def noting_register(connection: object) -> None:
            nonlocal since_ns
            since_ns = self.actor.scene.now_ns()
            await register(connection)

        topic = self.actor.scene.topic_of(self.topic, end.topic.partition)

        def noting_attached(connection: BrokerConnection) -> None:
            self.actor.note(Attached(self.name, since_ns, topic, _process(connection)))
            attached(connection)

        vars(end).update(_register=noting_register, _attached=noting_attached)

    def delivered(self, messages: list[Message]) -> None:
        for message in messages:
            self.actor.note(
                Deliver(
                    self.name,
                    self._topic_of(message),
                    position_of(message.message_id),
                    value_of(message),
                    digest_of(message),
                    message.redelivery_count,
                    self._key_of(message),
                )
            )
        self.kept = [*self.kept, *messages][-50:]

    def _key_of(self, message: Message) -> str:
        """Return the key of the message's entry, if the message is the first one in it."""
        kind = self.actor.scene.subscriptions.get((self.topic, self.subscription))
        return message.key or "" if kind == "key_shared" and message.batch_index <= 0 else ""

    async def ack(self, messages: list[Message], *, cumulative: bool = False) -> None:
        """Acknowledge messages of one partition.  Messages from before a seek are left out."""
        current = [message for message in messages if _is_current(message)]
        if not current:
            return
        number, self.acks = self.acks, self.acks + 1
        told = current[-1:] if cumulative else current
        positions = tuple(position_of(message.message_id) for message in told)
        self.actor.note(
            Ack(self.name, number, self._topic_of(told[0]), positions, cumulative=cumulative)
        )
        if cumulative:
            await self.consumer.ack_cumulative(told[0])
        else:
            await self.consumer.ack(told)
        self._unconfirmed[number] = None
        if self.receipts:
            self._confirmed([number])

    async def flush(self, host: str) -> None:
        """Wait until earlier acknowledgements are durable; a broker may be killed right now."""
        numbers = list(self._unconfirmed)
        await self.consumer.flush_acks()
        if not is_held_back("a flush without receipts is believed"):
            self._confirmed(numbers)
        self.actor.scene.happened("acks flushed", host)

    def _confirmed(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self._unconfirmed:
                del self._unconfirmed[number]
                self.actor.note(Acked(self.name, number))

    def nack(self, message: Message) -> None:
        if _is_current(message):
            where = position_of(message.message_id)
            self.actor.note(Nack(self.name, self._topic_of(message), where))
            self.consumer.nack(message)

    async def seek(self, to: Message | datetime | str) -> None:
        """Seek in one partition; or in all, to the beginning, the end or a time."""
        number, topic = self.actor.scene.number("seek"), self.topic
        where: Position | str
        match to:
            case Message():
                topic, where = self._topic_of(to), position_of(to.message_id)
            case datetime():
                where = "time"
            case str():
                where = to
        self.actor.note(Seek(topic, self.subscription, number, where, self.name))
        await self.consumer.seek(to.message_id if isinstance(to, Message) else to)
        self.actor.note(Sought(number))
        self.kept.clear()

    def _topic_of(self, message: Message) -> str:
        return self.actor.scene.topic_of(self.topic, message.partition)


def _process(connection: BrokerConnection) -> str:
    """Return the incarnation of the broker."""
    return connection.server_version.rpartition(" ")[2]


def _is_current(message: Message) -> bool:
    source = message.entry.source()
    assert isinstance(source, TopicConsumer)
    return message.entry.generation == source.generation


async def subscribe(
    actor: Actor,
    topic: str,
    subscription: str,
    *,
    kind: str,
    start: str,
    receipts: bool,
    queue: int = 100,
    by: str = "",
    give_up: float = 0.0,
    tasks: int = 1,
) -> Consuming:
    """Subscribe.  Raise BrokerError or GivenUpError."""
    by = by or actor.recorder.by
    scene, name = actor.scene, f"{by}.{actor.scene.number(by)}"
    scene.subscriptions[topic, subscription] = kind
    actor.note(Subscribe(topic, subscription, name, kind, start, tasks))
    since_ns = scene.now_ns()
    try:
        async with actor.perhaps_given_up(give_up, scene.rng(name)):
            consumer = await actor.client.subscribe(
                topic,
                subscription,
                type=cast("SubscriptionTypeName", kind),
                initial_position=cast("InitialPosition", start),
                consumer_name=name,
                receiver_queue_size=queue,
                ack_receipts=receipts,
                nack_delay_s=0.2,
            )
    except (BrokerError, GivenUpError):
        actor.note(Detach(name))
        raise
    consuming = Consuming(actor, topic, subscription, name, consumer, receipts)
    consuming.watch(since_ns)
    return consuming


async def consume(scene: Stage, client: Client, work: Consume) -> None:
    """Consume until everybody is to leave."""
    rng = scene.rng(work.name)
    actor = Actor(scene, client, scene.recorder(work.name))
    while not scene.end.is_set():
        scene.there[work.name] = ""
        try:
            consuming = await subscribe(
                actor,
                work.topic,
                work.subscription,
                kind=work.type,
                start=work.start,
                receipts=work.receipts,
                queue=work.queue,
                give_up=work.give_up,
                tasks=work.receivers,
            )
        except GivenUpError:
            continue
        except BrokerError as error:
            actor.refused("subscribe", error)
            await scene.wait_end(_AGAIN_S)
            continue
        scene.there[work.name] = consuming.name
        await _Session(consuming, work, rng).run()
        if work.away_s:
            scene.there.pop(work.name, None)
            await scene.wait_calm(rng.uniform(0.0, work.away_s))
        await scene.wait_end(rng.random() * _AGAIN_S)
    scene.there.pop(work.name, None)


class _Session:
    """One consumer's actions until it leaves."""

    def __init__(self, consuming: Consuming, work: Consume, rng: Random) -> None:
        self._consuming = consuming
        self._work = work
        self._rng = rng
        self._scene = consuming.actor.scene
        self._due: list[tuple[float, Message]] = []
        self._more = trio.Event()
        self._over = False
        self._unsubscribing = False
        # The messages that were delivered, if the broker waits for their acknowledgement.
        self._limited = self._scene.plan.shape.settings.unacked_max > 0
        self._held: list[Message] = []
        self._holds = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_end, nursery.cancel_scope)
            nursery.start_soon(self._ack_until_calm)
            if self._limited:
                nursery.start_soon(self._ack_in_calm)
            if self._work.receivers > 1 and not is_held_back("two tasks receive"):
                nursery.start_soon(self._receive_until_calm)
            await self._receive()
            nursery.cancel_scope.cancel()
        await self._leave()

    async def _receive(self) -> None:
        while not self._over:
            self._over = not await self._batch()

    async def _receive_until_calm(self) -> None:
        """Receive until the calm; the other receiver has to get everything then."""
        self._scene.marks["two tasks receive"] += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive)
            await self._scene.calm.wait()
            nursery.cancel_scope.cancel()

    async def _until_end(self, scope: trio.CancelScope) -> None:
        await self._scene.end.wait()
        scope.cancel()

    async def _ack_until_calm(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ack)
            await self._scene.calm.wait()
            nursery.cancel_scope.cancel()

    async def _leave(self) -> None:
        consuming = self._consuming
        consuming.actor.note(Leave(consuming.name))
        if self._rng.random() < self._work.abandon and not is_held_back(_GHOST):
            with consuming.actor.hand_over(f"{consuming.name} goes without a word"):
                consuming.consumer.abandon()
        else:
            with trio.move_on_after(_CLOSE_S):
                await consuming.consumer.aclose()
            consuming.consumer.abandon()
        consuming.actor.note(Detach(consuming.name))

    async def _batch(self) -> bool:
        """Receive, and decide what becomes of each message; return False to leave."""
        consuming, work, rng = self._consuming, self._work, self._rng
        try:
            messages = await consuming.consumer.receive_batch(_BATCH_MAX)
        except BrokerError as error:
            if isinstance(error, CorruptMessageError) and work.topic in self._scene.spoiled:
                self._scene.marks["a consumer met an entry that it cannot read"] += 1
                return True
            if not (self._unsubscribing and isinstance(error, ClosedError)):
                consuming.actor.refused("receive", error)
            return False
        if not messages:  # The topic was terminated.
            await self._scene.wait_end(_END_S)
            return True
        consuming.delivered(messages)
        if self._limited:
            self._held += messages
            self._holds.set()
        if self._scene.calm.is_set():
            return True
        now = trio.current_time()
        due = {message.message_id for _, message in self._due}
        for message in messages:
            drawn = rng.random()
            if drawn < work.nack:
                consuming.nack(message)
            elif drawn >= work.nack + work.forget and message.message_id not in due:
                self._due.append((now + rng.expovariate(1 / work.linger_s), message))
        self._due.sort(key=lambda due: due[0])
        self._more.set()
        if rng.random() < work.seek and not await self._tried("seek", self._seek):
            return False
        if rng.random() < work.unsubscribe:
            await self._tried("unsubscribe", self._unsubscribe)
            return False
        return rng.random() >= work.leave

    async def _tried(self, what: str, act: Callable[[], Awaitable[None]]) -> bool:
        try:
            await act()
        except BrokerError as error:
            # Two tasks receive: the other one may have ended the subscription, and the consumer
            # with it.
            if not (self._unsubscribing and isinstance(error, ClosedError)):
                self._consuming.actor.refused(what, error)
            return False
        return True

    async def _seek(self) -> None:
        consuming, rng = self._consuming, self._rng
        self._due.clear()
        to: Message | datetime | str = rng.choice(["earliest", "latest"])
        if consuming.kept and rng.random() < 0.7:
            to = rng.choice(consuming.kept)
            if rng.random() < 0.3:
                to = datetime.fromtimestamp(to.publish_time_ms / 1000, UTC)
        await consuming.seek(to)

    async def _unsubscribe(self) -> None:
        actor, work = self._consuming.actor, self._work
        actor.note(Unsubscribe(work.topic, work.subscription))
        self._unsubscribing = True
        await self._consuming.consumer.unsubscribe()
        actor.note(Unsubscribed(work.topic, work.subscription))

    async def _ack_in_calm(self) -> None:
        """Acknowledge everything that was delivered, or a limited broker would deliver no more."""
        await self._scene.calm.wait()
        while True:
            if not self._held:
                self._holds = trio.Event()
                await self._holds.wait()
            partition = self._held[0].partition
            some = [each for each in self._held if each.partition == partition][:_GROUP_MAX]
            try:
                await self._consuming.ack(some)
            except BrokerError as error:
                self._consuming.actor.refused("ack", error)
                await trio.sleep(_AGAIN_S)
            else:
                self._held = [each for each in self._held if each not in some]

    async def _ack(self) -> None:
        """Acknowledge the messages that are due, a few of one partition at a time."""
        while True:
            if not self._due:
                self._more = trio.Event()
                await self._more.wait()
                continue
            await trio.sleep_until(self._due[0][0])
            if not self._due:
                continue
            partition = self._due[0][1].partition
            now = trio.current_time()
            due = [m for at, m in self._due if at <= now and m.partition == partition]
            some = due[: self._rng.randint(1, _GROUP_MAX)]
            self._due = [(at, m) for at, m in self._due if m not in some]
            cumulative = (
                "shared" not in self._work.type and self._rng.random() < self._work.cumulative
            )
            try:
                await self._consuming.ack(some, cumulative=cumulative)
                if self._work.flush and self._rng.random() < self._work.flush:
                    await self._consuming.flush(self._work.host)
            except BrokerError as error:
                if self._unsubscribing and isinstance(error, ClosedError):
                    return  # The subscription is gone, and the acknowledgement with it.
                self._consuming.actor.refused("ack", error)
                await trio.sleep(_AGAIN_S)
