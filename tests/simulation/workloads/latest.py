"""Readers and consumers of the latest message of each key, and table views, while the topic is
compacted.
"""

from functools import partial
from random import Random

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.consumer import MessageSource
from daybook.clients.python.errors import BrokerError, CorruptMessageError
from daybook.clients.python.messages import Message
from daybook.clients.python.table_view import TableView
from tests.history.compaction_events import LatestFollows, LatestRead, ViewChange
from tests.history.recorder import Recorder
from tests.simulation.plan import Latest
from tests.simulation.workloads.messages import digest_of, position_of, short, value_in, value_of
from tests.simulation.workloads.stage import Actor, Stage

QUEUE = 10  # the receiver queue of consumers
_AGAIN_S = 0.3
_LOOK_S = 0.5
_CLOSE_S = 10.0
_ACKED = 0.8  # share of the messages


def note_latest(recorder: Recorder, topic: str, reader: str, message: Message) -> None:
    """Note a message; `topic` is that of the message: a partition, if the topic has some."""
    recorder.note(
        LatestRead(
            topic,
            reader,
            position_of(message.message_id),
            value_of(message),
            digest_of(message),
        )
    )


async def follow_latest(scene: Stage, client: Client, work: Latest) -> None:
    """Run readers or views until everybody is to leave."""
    actor = Actor(scene, client, scene.recorder(work.name))
    rng = scene.rng(work.name)
    scene.followed_latest[work.topic] = None
    while not scene.end.is_set():
        name = f"{work.name}.{scene.number(work.name)}"
        scene.there[work.name] = ""
        try:
            if work.subscription:
                await _consume(actor, work, name, rng)
            elif work.view:
                await _view(actor, work, name, rng)
            else:
                await _read(actor, work, name, rng)
        except BrokerError as error:
            actor.refused("create a reader", error)
            await scene.wait_end(_AGAIN_S)
    scene.there.pop(work.name, None)


async def _read(actor: Actor, work: Latest, name: str, rng: Random) -> None:
    scene = actor.scene
    reader = await actor.client.create_reader(work.topic, start="earliest", read_compacted=True)
    actor.note(LatestFollows(work.topic, name))
    scene.there[work.name] = name
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at_end, scene, nursery.cancel_scope)
            while messages := await _batch(scene, reader, work):
                for message in messages:
                    topic = scene.topic_of(work.topic, message.partition)
                    note_latest(actor.recorder, topic, name, message)
                if rng.random() < work.again and not scene.calm.is_set():
                    break
            if not scene.calm.is_set():
                await scene.wait_end(_AGAIN_S)
            else:
                await scene.end.wait()
            nursery.cancel_scope.cancel()
    finally:
        reader.abandon()


async def _consume(actor: Actor, work: Latest, name: str, rng: Random) -> None:
    """Consume, and acknowledge most messages; the next consumer of the subscription goes on."""
    scene = actor.scene
    consumer = await actor.client.subscribe(
        work.topic,
        work.subscription,
        type="failover",
        initial_position="earliest",
        consumer_name=name,
        receiver_queue_size=QUEUE,
        ack_receipts=True,
        read_compacted=True,
    )
    # All consumers of the subscription together get what it is owed.
    actor.note(LatestFollows(work.topic, work.name, durable=True))
    scene.there[work.name] = name
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at_end, scene, nursery.cancel_scope)
            while messages := await _batch(scene, consumer, work):
                for message in messages:
                    topic = scene.topic_of(work.topic, message.partition)
                    note_latest(actor.recorder, topic, work.name, message)
                if scene.calm.is_set():
                    continue
                try:
                    for message in messages:
                        if rng.random() < _ACKED:
                            await consumer.ack(message)
                except BrokerError as error:
                    actor.refused("ack", error)
                if rng.random() < work.again and not scene.calm.is_set():
                    break
            else:  # The topic was terminated.
                if scene.calm.is_set():
                    await scene.end.wait()
            nursery.cancel_scope.cancel()
        with trio.move_on_after(_CLOSE_S):
            await consumer.aclose()
    finally:
        consumer.abandon()


async def _cancel_at_end(scene: Stage, scope: trio.CancelScope) -> None:
    await scene.end.wait()
    scope.cancel()


async def _batch(scene: Stage, reader: MessageSource, work: Latest) -> list[Message]:
    while True:
        try:
            return await reader.receive_batch()
        except CorruptMessageError:
            if work.topic not in scene.spoiled:
                raise


async def _view(actor: Actor, work: Latest, name: str, rng: Random) -> None:
    scene = actor.scene
    view: TableView | None = None
    failure: BrokerError | None = None  # the nursery would wrap it
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_at_end, scene, nursery.cancel_scope)
        try:
            view = await actor.client.table_view(work.topic)
        except BrokerError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if view is None:
        return
    actor.note(LatestFollows(work.topic, name))
    view.listen(partial(_changed, actor, work.topic, name), existing=True)
    scene.there[work.name] = name
    while not view.closed and not scene.end.is_set():
        await scene.wait_end(_LOOK_S)
        if rng.random() < work.again and not scene.calm.is_set():
            break
    if view.closed:
        scene.there[work.name] = ""
        scene.marks["a table view ended"] += 1
        await scene.wait_end(_AGAIN_S)
    view.abandon()


def _changed(actor: Actor, topic: str, name: str, key: str, value: bytes | None) -> None:
    actor.note(ViewChange(topic, name, short(key), "" if value is None else value_in(value)))
    kind = "changed" if value is not None else "removed"
    actor.scene.marks[f"a key of a table view was {kind}"] += 1
