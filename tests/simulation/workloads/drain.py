"""The end of a run: everything works again, everything is read, every subscription is emptied."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.consumer import MessageSource
from daybook.clients.python.errors import (
    BrokerError,
    BusyError,
    CorruptMessageError,
    NotReadyError,
    TopicTerminatedError,
)
from daybook.clients.python.messages import Message
from daybook.clients.python.reader import Reader
from tests.history.compaction_events import LatestEnd, LatestFollows
from tests.history.events import Detach, Drained, Leave, Ok, ReadEnd, Send
from tests.history.record import parent
from tests.simulation.workloads.consume import Consuming, subscribe
from tests.simulation.workloads.follow import note_read
from tests.simulation.workloads.latest import note_latest
from tests.simulation.workloads.messages import digest, payload, position_of
from tests.simulation.workloads.stage import Actor, Stage

_QUIET_S = 3.0
_AGAIN_S = 0.3
_PROOFS = 2
_ACK_MAX = 50


class LivenessError(Exception):
    """All faults are healed, and something does not work."""


async def within(seconds: float, what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`; raise LivenessError after `seconds`."""
    try:
        with trio.fail_after(seconds):
            await work()
    except trio.TooSlowError:
        raise LivenessError(f"not in {seconds:g} s: {what}") from None
    except BrokerError as error:
        raise LivenessError(f"{what}: {type(error).__name__}: {error}") from error


async def drain(scene: Stage, client: Client, seconds: float) -> None:
    """Drain all topics.  Raise LivenessError, also in groups."""
    actor = Actor(scene, client, scene.recorder("auditor"))
    for topic, partitions in scene.topics.items():
        # There may be more by now: the client that added them may not have been told.
        if partitions:
            scene.topics[topic] = await client.partitions(topic)
    topics = [each for topic in scene.topics for each in scene.concrete(topic)]

    async def all_of(what: str, calls: list[tuple[str, Callable[[], Awaitable[None]]]]) -> None:
        async with trio.open_nursery() as nursery:
            for name, call in calls:
                nursery.start_soon(within, seconds, f"{what} {name}", call)

    await all_of("sending to", [(topic, partial(_prove, actor, topic)) for topic in topics])
    latest = [each for each in topics if parent(each) in scene.followed_latest]
    await all_of("reading", [(topic, partial(_read, actor, topic)) for topic in topics])
    await all_of(
        "reading the latest of", [(each, partial(_latest, actor, each)) for each in latest]
    )
    await all_of(
        "draining",
        [
            (f"{subscription} of {topic}", partial(_drain, actor, topic, subscription, kind))
            for (topic, subscription), kind in scene.subscriptions.items()
        ],
    )


async def _prove(actor: Actor, topic: str) -> None:
    """Check that the topic takes messages again, unless it was terminated."""
    while True:
        try:
            await _send_proofs(actor, topic)
        except NotReadyError:  # Bookies are back, and not every broker has noticed.
            await trio.sleep(_AGAIN_S)
        except TopicTerminatedError:
            if parent(topic) not in actor.scene.terminated:
                raise
            return
        else:
            return


async def _send_proofs(actor: Actor, topic: str) -> None:
    name = f"proof.{actor.scene.number('proof')}"
    async with await actor.client.create_producer(topic, send_timeout_s=None) as producer:
        for seq in range(_PROOFS):
            value = f"{name}/{seq}"
            data = payload(value, 0)
            actor.note(Send(topic, name, seq, value, digest(data, None, {})))
            message_id = await producer.send(data)
            actor.note(Ok(topic, name, seq, position_of(message_id)))


async def _read(actor: Actor, topic: str) -> None:
    """Read from the first message to the last; returned bookies may be noticed only meanwhile."""
    while True:
        try:
            await _read_once(actor, topic)
        except NotReadyError:
            await trio.sleep(_AGAIN_S)
        else:
            return


async def _read_once(actor: Actor, topic: str) -> None:
    name = f"reader.{actor.scene.number('reader')}"
    async with await actor.client.create_reader(topic, start="earliest") as reader:
        while await reader.has_message_available():
            for message in await _batch(actor, topic, reader):
                note_read(actor.recorder, topic, name, message)
        actor.note(ReadEnd(topic, name))


async def _latest(actor: Actor, topic: str) -> None:
    """Read the latest message of each key, from the first message to the last."""
    name = f"latest.{actor.scene.number('latest')}"
    reader = await actor.client.create_reader(topic, start="earliest", read_compacted=True)
    async with reader:
        actor.note(LatestFollows(topic, name))
        while await reader.has_message_available():
            for message in await _batch(actor, topic, reader):
                note_latest(actor.recorder, topic, name, message)
        actor.note(LatestEnd(topic, name))


async def _batch(actor: Actor, topic: str, source: MessageSource) -> list[Message]:
    """Return the messages of the next entries that can be read."""
    while True:
        try:
            return await source.receive_batch(_ACK_MAX)
        except CorruptMessageError:
            if parent(topic) not in actor.scene.spoiled:
                raise
            if isinstance(source, Reader) and not await source.has_message_available():
                return []


async def _drain(actor: Actor, topic: str, subscription: str, kind: str) -> None:
    """Acknowledge messages until no more come."""
    consuming = await _subscribe(actor, topic, subscription, kind)
    scope = trio.CancelScope()
    while not scope.cancelled_caught:
        with trio.move_on_after(_QUIET_S) as scope:
            messages = await _batch(actor, topic, consuming.consumer)
            if not messages:
                break  # The topic was terminated, and this is its end.
            scope.deadline = float("inf")
            consuming.delivered(messages)
            await _ack(consuming)
    actor.note(Drained(topic, subscription))
    actor.note(Leave(consuming.name))
    await consuming.consumer.aclose()
    actor.note(Detach(consuming.name))


async def _subscribe(actor: Actor, topic: str, subscription: str, kind: str) -> Consuming:
    """Subscribe, after waiting until brokers have noticed that the last consumer is gone."""
    while True:
        try:
            return await subscribe(
                actor,
                topic,
                subscription,
                kind=kind,
                start="earliest",
                receipts=True,
                by=f"drain of {subscription}",
            )
        except BusyError:
            await trio.sleep(_AGAIN_S)


async def _ack(consuming: Consuming) -> None:
    messages, consuming.kept = consuming.kept, []
    for partition in sorted({message.partition for message in messages}):
        await consuming.ack([message for message in messages if message.partition == partition])
