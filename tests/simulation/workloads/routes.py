"""Messages on their way through a feature: pipes, dead letters, retries, chunks, volatile topics,
topics that come and go.

Each route has topics of its own, and one client that sends, receives and looks at the end.  It
restarts its parts now and then, as applications do.  When the storm is over, it waits until
everything has arrived.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from zlib import crc32

import trio

from daybook.broker.admin.operations import Operations
from daybook.broker.errors import ConflictError
from daybook.broker.namespaces.policy_table import DEDUPLICATION
from daybook.clients.python.client import Client
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.messages import Message
from daybook.clients.python.protocol.letters import DeadLetterPolicy
from daybook.wire.topics import TopicName
from tests.history import route_events as events
from tests.simulation.plan import Carry
from tests.simulation.workloads.ask import ask_until_done
from tests.simulation.workloads.changing_topics import follow_pattern, leave_unused
from tests.simulation.workloads.messages import payload, value_in
from tests.simulation.workloads.route import AGAIN_S, SUBSCRIPTION, Running
from tests.simulation.workloads.scene import Scene
from tests.simulation.workloads.stage import Actor

_LAST_S = 60.0
_REDELIVERIES = 2
_PARTITIONS = 3
_FAILS = 0.1  # share of the transformations that fail and would succeed later


async def carry(scene: Scene, client: Client, work: Carry) -> None:
    """Run one route to its end."""
    number = scene.number(work.name)
    route = f"{work.name}.{number}"
    domain = "non-persistent" if work.how == "volatile" else "persistent"
    topic = f"{domain}://public/default/{work.name}-{number}"
    actor = Actor(scene, client, scene.recorder(work.name))
    scene.sending[work.name] = None
    running = Running(scene, actor, client, work, route, topic, scene.rng(route))
    if not await scene.wait_calm(work.at_s):
        await HOWS[work.how](running)
        actor.note(events.RouteEnd(route))
        scene.marks[f"route of {work.how}: done"] += 1
    del scene.sending[work.name]


async def _dead_letters(running: Running) -> None:
    """Refuse a third of the messages for ever: they become dead letters."""
    running.begin()
    policy = DeadLetterPolicy(_REDELIVERIES)

    async def act(consumer: Consumer, message: Message) -> None:
        if _is_poison(message):
            consumer.nack(message)
            return
        await consumer.ack(message)
        running.arrived("application", message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.send_all)
        for _ in range(2):
            nursery.start_soon(_receive_letters, running, act, policy)
    await _read_letters(running, policy)


async def _retries(running: Running) -> None:
    """Have messages delivered again later, some of them until they become dead letters."""
    running.begin()
    policy = DeadLetterPolicy(_REDELIVERIES)

    async def act(consumer: Consumer, message: Message) -> None:
        tries = int(message.properties.get("RECONSUMETIMES", "0"))
        if _is_poison(message) or (not tries and running.rng.random() < 0.3):
            await consumer.reconsume_later(message, running.rng.choice([0.0, 0.3, 1.0]))
            running.scene.marks["a message was sent to a retry topic"] += 1
            return
        await consumer.ack(message)
        running.arrived("application", message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.send_all)
        nursery.start_soon(_receive_letters, running, act, policy, True)
    await _read_letters(running, policy)


async def _receive_letters(
    running: Running,
    act: Callable[[Consumer, Message], Awaitable[None]],
    policy: DeadLetterPolicy,
    retry: bool = False,
) -> None:
    await running.receive(
        act,
        type="shared",
        nack_delay_s=0.2,
        ack_receipts=True,
        dead_letter=policy,
        retry=retry,
    )


async def _read_letters(running: Running, policy: DeadLetterPolicy) -> None:
    topic = policy.dead_letter_topic(running.topic, SUBSCRIPTION)
    await running.read(topic, "dead letters")


def _is_poison(message: Message) -> bool:
    return crc32(value_in(bytes(message.data or b"")).encode()) % 3 == 0


async def _chunks(running: Running) -> None:
    """Send messages that are larger than an entry."""
    running.begin(ordered=True)

    async def act(consumer: Consumer, message: Message) -> None:
        running.arrived(f"{consumer!r}", message)
        await consumer.ack(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: running.send_all(chunking=True, batching=False))
        nursery.start_soon(lambda: running.receive(act, ack_receipts=True))
    await running.read(running.topic, "reader")


async def _pipe(running: Running) -> None:
    """Copy a topic by a pipe that is started again now and then: each message once, in order."""
    target = f"{running.topic}-target"
    for topic in (running.topic, target):
        await _deduplicated(running, TopicName.parse(topic))
    running.begin(ordered=True, once=True)

    async def same(message: Message) -> bytes:
        return bytes(message.data or b"")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run_pipe, running, target, same, None)
        await _send_and_terminate(running)
    await running.read(target, "target")


async def _send_and_terminate(running: Running) -> None:
    scene, name = running.scene, TopicName.parse(running.topic)
    await running.send_all()
    await scene.calm.wait()
    await ask_until_done(scene, running.work.name, lambda operations: operations.terminate(name))


class _NotNowError(Exception):
    """A transformation fails that succeeds the next time."""


async def _spread_pipe(running: Running) -> None:
    """Copy a topic to one with partitions; messages that fail become dead letters.

    Some messages fail always, and others now and then.  Each message arrives at one place.
    """
    scene, target, letters = running.scene, f"{running.topic}-target", f"{running.topic}-letters"
    await _partitioned(running, TopicName.parse(target))
    for topic in (running.topic, target, letters):
        await _deduplicated(running, TopicName.parse(topic))
    running.begin(ordered=True, once=True)

    async def fail_sometimes(message: Message) -> bytes:
        if _is_poison(message):
            raise ValueError("never")
        if running.rng.random() < _FAILS and not scene.calm.is_set():
            raise _NotNowError
        return bytes(message.data or b"")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run_pipe, running, target, fail_sometimes, letters)
        await _send_and_terminate(running)
    values = await running.read(letters, "letters")
    scene.marks["a pipe sent a dead letter"] += len(values)
    for index in range(_PARTITIONS):
        values += await running.read(f"{target}-partition-{index}", f"target {index}")
    if len(set(values)) < len(values):
        scene.problems.append(f"a pipe to {target} has made two things of one message")


async def _run_pipe(
    running: Running,
    target: str,
    transform: Callable[[Message], Awaitable[bytes]],
    letters: str | None,
) -> None:
    scene = running.scene
    while True:
        with trio.CancelScope() as scope:
            if not scene.calm.is_set() and running.work.again:
                scope.deadline = trio.current_time() + running.rng.uniform(0.1, 3.0)
            try:
                await running.client.pipe(
                    running.topic, target, transform, name="pipe", dead_letter_topic=letters
                )
            except _NotNowError:
                scene.marks["a pipe stopped, because outputs of the message are stored"] += 1
                continue
            except BrokerError as error:
                scene.marks[f"a pipe met {type(error).__name__}"] += 1
                await trio.sleep(AGAIN_S)
                continue
        if not scope.cancelled_caught:
            return
        scene.marks["a pipe was started again"] += 1


async def _partitioned(running: Running, topic: TopicName) -> None:
    """Create a topic with partitions."""

    async def create(operations: Operations) -> None:
        with suppress(ConflictError):  # An attempt without an answer has created it.
            await operations.create_partitioned(topic, _PARTITIONS)

    await ask_until_done(running.scene, running.work.name, create)


async def _deduplicated(running: Running, topic: TopicName) -> None:
    """Create a topic, by a producer, and set its policy."""
    while True:
        try:
            producer = await running.client.create_producer(topic.full)
            producer.abandon()
            break
        except BrokerError as error:
            running.actor.refused("create a producer", error)
            await trio.sleep(AGAIN_S)

    async def switch_on(operations: Operations) -> None:
        await operations.set_topic_policy(topic, DEDUPLICATION, True)

    await ask_until_done(running.scene, running.work.name, switch_on)


async def _volatile(running: Running) -> None:
    """Use a topic that stores nothing: what arrives is in order, and nobody is stuck for ever."""
    running.begin(ordered=True, lossy=True)
    seen = trio.Event()

    async def receive(number: int) -> None:
        while True:
            async with running.consumer(type="failover") as consumer:
                place = f"consumer {number}.{running.scene.number(running.route)}"
                while True:
                    message = await consumer.receive()
                    running.arrived(place, message)
                    running.scene.marks["a message of a volatile topic arrived"] += 1
                    if running.is_over:
                        seen.set()
                    await consumer.ack(message)
                    if running.rng.random() < running.work.again and not running.is_over:
                        break

    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(receive, number)
        await running.send_all()
        await running.scene.calm.wait()
        with trio.move_on_after(_LAST_S):
            await _send_until(running, seen)
        if not seen.is_set():
            text = f"liveness: nothing arrives on {running.topic} although all was healed"
            running.scene.problems.append(text)
        nursery.cancel_scope.cancel()


async def _send_until(running: Running, seen: trio.Event) -> None:
    async with await running.client.create_producer(running.topic) as producer:
        sender = f"{running.route}/last"
        for number in range(int(_LAST_S)):
            value = f"{sender}/{number}"
            data = payload(value, 0)
            running.actor.note(events.Offer(running.route, sender, value, f"{crc32(data):08x}"))
            await producer.send(data)
            with trio.move_on_after(1.0):
                await seen.wait()
                return


HOWS: dict[str, Callable[[Running], Awaitable[None]]] = {
    "dead letters": _dead_letters,
    "retries": _retries,
    "chunks": _chunks,
    "pipe": _pipe,
    "spread pipe": _spread_pipe,
    "volatile": _volatile,
    "pattern": follow_pattern,
    "unused": leave_unused,
}
