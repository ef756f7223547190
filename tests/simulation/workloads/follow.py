"""Readers without a subscription: they read each message once, in order, despite faults."""

from datetime import UTC, datetime
from math import inf
from random import Random

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.consumer import MessageSource
from daybook.clients.python.errors import BrokerError, CorruptMessageError, TopicNotFoundError
from daybook.clients.python.message_id import Offset
from daybook.clients.python.messages import Message
from daybook.clients.python.start_position import Start
from tests.history.events import Follows, Read
from tests.history.recorder import Recorder
from tests.simulation.plan import Follow
from tests.simulation.workloads.messages import digest_of, position_of, value_of
from tests.simulation.workloads.stage import Actor, GivenUpError, Stage

_AGAIN_S = 0.3


def note_read(recorder: Recorder, topic: str, reader: str, message: Message) -> None:
    recorder.note(
        Read(
            topic,
            reader,
            position_of(message.message_id),
            value_of(message),
            digest_of(message),
            message.offset,
        )
    )


async def follow(scene: Stage, client: Client, work: Follow) -> None:
    """Run readers until everybody is to leave."""
    rng, recorder = scene.rng(work.name), scene.recorder(work.name)
    actor = Actor(scene, client, recorder)
    while not scene.end.is_set():
        name = f"{work.name}.{scene.number(work.name)}"
        scene.there[work.name] = ""
        try:
            start = await _draw_start(scene, client, work, rng)
            async with actor.perhaps_given_up(work.give_up, rng):
                reader = await client.create_reader(work.topic, start=start)
        except GivenUpError:
            continue
        except BrokerError as error:
            scene.refused(work.name, "create a reader", error)
            await scene.wait_end(_AGAIN_S)
            continue
        recorder.note(Follows(work.topic, name, start if isinstance(start, str) else "somewhere"))
        scene.there[work.name] = name
        try:
            await _read(scene, reader, recorder, work, name)
        except BrokerError as error:
            scene.refused(work.name, "receive", error)
            await scene.wait_end(_AGAIN_S)
        finally:
            reader.abandon()
    scene.there.pop(work.name, None)


async def _batch(scene: Stage, reader: MessageSource, work: Follow) -> list[Message]:
    while True:
        try:
            return await reader.receive_batch()
        except CorruptMessageError:
            if work.topic not in scene.spoiled:
                raise
            scene.marks["a reader met an entry that it cannot read"] += 1


async def _draw_start(scene: Stage, client: Client, work: Follow, rng: Random) -> Start | str:
    match work.start:
        case "offset":
            try:
                found = await client.offsets(work.topic)
            except TopicNotFoundError:
                return Offset(0)  # Nobody has used the topic yet.
            return Offset(rng.randint(found.first, found.next))
        case "time":
            now_ms = scene.now_ms(work.host)
            back_s = rng.uniform(0.0, scene.plan.storm_s)
            return datetime.fromtimestamp(now_ms / 1000 - back_s, UTC)
        case start:
            return start


async def _read(
    scene: Stage, reader: MessageSource, recorder: Recorder, work: Follow, name: str
) -> None:
    """Read until everybody is to leave, or another reader is to go on."""
    rng = scene.rng(name)
    async with trio.open_nursery() as nursery:

        async def until_end() -> None:
            await scene.end.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_end)
        while messages := await _batch(scene, reader, work):
            for message in messages:
                note_read(recorder, scene.topic_of(work.topic, message.partition), name, message)
            if rng.random() < work.again and not scene.calm.is_set():
                break
        nursery.cancel_scope.cancel()
    await scene.wait_end(inf if scene.calm.is_set() else _AGAIN_S)
