"""Routes over topics that come and go: a consumer of a pattern, and topics that nobody uses."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf

import trio

from daybook.broker.admin.operations import Operations
from daybook.broker.errors import NotFoundError
from daybook.broker.namespaces.policy_table import INACTIVE_TOPICS, RETENTION, Policy
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.messages import Message
from daybook.wire.topics import TopicName
from tests.simulation.workloads.ask import ask_until_done
from tests.simulation.workloads.messages import value_in
from tests.simulation.workloads.route import AGAIN_S, Running

_NEVER_S = 10_000.0
_LOOK_S = 0.2
_LAST_S = 60.0  # for the last messages to arrive, when all is well
_CLOSE_S = 10.0
_GROUP = 5  # messages between two pauses, or in one topic
_UNUSED_S = (0.5, 3.5)  # the pauses
_BATCH = 10

_UNUSED: Mapping[Policy, object] = {
    INACTIVE_TOPICS: {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    },
    RETENTION: {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
}


class _Missing:
    """The values that have a receipt and have not arrived."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._taken: dict[str, None] = {}
        self._arrived: dict[str, None] = {}

    def taken(self, value: str) -> None:
        self._taken[value] = None

    async def receive(self, consumer: Consumer, stop: Callable[[], bool]) -> None:
        """Receive and acknowledge until `stop` says so."""
        running = self._running
        while not stop():
            messages: list[Message] = []
            with trio.move_on_after(_LOOK_S):
                messages = await consumer.receive_batch(_BATCH)
            for message in messages:
                running.arrived("application", message)
                self._arrived[value_in(bytes(message.data or b""))] = None
                with suppress(BrokerError):
                    await consumer.ack(message)

    @property
    def none(self) -> bool:
        return self._taken.keys() <= self._arrived.keys()


async def follow_pattern(running: Running) -> None:
    """Send to more and more topics; the consumer of a pattern hears of them from brokers only."""
    running.begin()
    missing, scene = _Missing(running), running.scene

    async def send() -> None:
        left = running.work.messages
        while left and not scene.calm.is_set():
            topic = f"{running.topic}-{scene.number(running.topic)}"
            sender = f"{running.route}/{topic.rpartition('-')[2]}"
            scene.marks["a topic for the consumer of a pattern"] += 1
            with suppress(BrokerError):
                producer = await running.client.create_producer(topic, send_timeout_s=None)
                try:
                    for _ in range(running.rng.randint(1, _GROUP)):
                        if left and not scene.calm.is_set():
                            left -= 1
                            missing.taken(await running.send(producer, sender, left))
                finally:
                    producer.abandon()
            await scene.wait_calm(running.rng.expovariate(1 / (3 * running.work.pace_s)))
        running.sent_all = True

    pattern = re.compile(re.escape(running.topic) + "-[0-9]+")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while not (running.is_over and missing.none):
            leave_s = inf
            if running.rng.random() < running.work.again and not scene.calm.is_set():
                leave_s = trio.current_time() + running.rng.uniform(0.3, 3.0)

            def over(leave_s: float = leave_s) -> bool:
                all_there = running.is_over and missing.none
                return all_there or trio.current_time() > leave_s

            async with running.consumer(pattern, ack_receipts=True, discovery_s=_NEVER_S) as found:
                with trio.CancelScope() as scope:
                    nursery.start_soon(_limit, running, scope)
                    await missing.receive(found, over)
            if scope.cancelled_caught:
                break  # The history shows what has not arrived.
        nursery.cancel_scope.cancel()


async def _limit(running: Running, scope: trio.CancelScope) -> None:
    """Give the last messages a limited time from the calm on."""
    await running.scene.calm.wait()
    scope.deadline = trio.current_time() + _LAST_S


async def leave_unused(running: Running) -> None:
    """Leave a topic alone again and again, with messages that wait or without.

    Brokers delete it if its subscription has everything, and the next use makes it again.
    """
    running.begin()
    missing, scene, left = _Missing(running), running.scene, running.work.messages
    while left and not scene.calm.is_set():
        async with running.consumer(ack_receipts=True) as consumer:
            await _set_policies(running)
            # A message that waits keeps the topic.
            some = min(left, running.rng.randint(1, _GROUP))
            left -= some
            await _send(running, missing, some)
            if running.rng.random() < 0.5:
                await missing.receive(consumer, lambda: missing.none or scene.calm.is_set())
        await scene.wait_calm(running.rng.uniform(*_UNUSED_S))
    await scene.calm.wait()
    async with running.consumer(ack_receipts=True) as consumer:
        end_s = trio.current_time() + _LAST_S
        await missing.receive(consumer, lambda: missing.none or trio.current_time() > end_s)


async def _set_policies(running: Running) -> None:
    name = TopicName.parse(running.topic)
    for policy, value in _UNUSED.items():

        async def change(
            operations: Operations, policy: Policy = policy, value: object = value
        ) -> None:
            await operations.set_topic_policy(name, policy, value)

        with suppress(NotFoundError):
            await ask_until_done(running.scene, running.work.name, change)


async def _send(running: Running, missing: _Missing, count: int) -> None:
    """Send so many messages; one that fails is in doubt, and counts for nothing."""
    sender = f"{running.route}/{running.scene.number(f'{running.route} sender')}"
    try:
        producer = await running.client.create_producer(running.topic, send_timeout_s=None)
    except BrokerError as error:
        running.actor.refused("create a producer", error)
        await running.scene.wait_calm(AGAIN_S)
        return
    try:
        for number in range(count):
            if running.scene.calm.is_set():
                break
            missing.taken(await running.send(producer, sender, number))
        with trio.move_on_after(_CLOSE_S):
            await producer.aclose()
    except BrokerError as error:
        running.scene.marks[f"a send of a route met {type(error).__name__}"] += 1
    finally:
        producer.abandon()
