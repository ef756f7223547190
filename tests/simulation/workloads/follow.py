"""Readers without a subscription: everything, in order, once, whatever happens to brokers."""

import trio

from clients.python.client import Client
from clients.python.consumer import MessageSource
from clients.python.errors import BrokerError
from clients.python.messages import Message, Offset
from clients.python.positions import Start
from tests.history.events import Read
from tests.history.recorder import Recorder
from tests.simulation.plan import Follow
from tests.simulation.workloads.messages import digest_of, position_of, value_of
from tests.simulation.workloads.scene import Scene

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


async def follow(scene: Scene, client: Client, work: Follow) -> None:
    """Until the storm is over."""
    rng, recorder = scene.rng(work.name), scene.recorder(work.name)
    while not scene.calm.is_set():
        name = f"{work.name}.{scene.number(work.name)}"
        start: Start | str = "earliest"
        try:
            if work.by_offset:
                found = await client.offsets(work.topic)
                start = Offset(rng.randint(found.first, found.next))
            reader = await client.create_reader(work.topic, start=start)
        except BrokerError:
            await scene.wait_calm(_AGAIN_S)
            continue
        try:
            await _read(scene, reader, recorder, work.topic, name)
        except BrokerError:
            await scene.wait_calm(_AGAIN_S)
        finally:
            reader.abandon()


async def _read(
    scene: Scene, reader: MessageSource, recorder: Recorder, topic: str, name: str
) -> None:
    async with trio.open_nursery() as nursery:

        async def until_calm() -> None:
            await scene.calm.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_calm)
        while True:
            for message in await reader.receive_batch():
                note_read(recorder, scene.topic_of(topic, message.partition), name, message)
