"""Entries that nobody can read lie between the others, and hold nobody up."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.producer import Producer
from daybook.clients.python.protocol.batching import Batch
from daybook.wire.proto import pulsar_pb2 as pb
from tests.history.events import Spoils
from tests.simulation.held_back import is_held_back
from tests.simulation.plan import Spoil
from tests.simulation.workloads.stage import Actor, Stage

_AGAIN_S = 0.3
_BODY = b"nobody can read this " * 5
_CLOSE_S = 60.0


async def spoil(scene: Stage, client: Client, work: Spoil) -> None:
    """Send unreadable messages; the history does not contain them."""
    rng, actor = scene.rng(work.name), Actor(scene, client, scene.recorder(work.name))
    scene.spoiled[work.topic] = None
    for topic in scene.concrete(work.topic):
        actor.note(Spoils(topic))
    scene.sending[work.name] = None
    left = work.entries
    while left and not scene.calm.is_set():
        try:
            alone = work.batch == 1 or is_held_back("batches that nobody can read")
            producer = await client.create_producer(
                work.topic, send_timeout_s=None, batching=not alone
            )
        except BrokerError as error:
            actor.refused("create a producer", error)
            await scene.wait_calm(_AGAIN_S)
            continue
        _damage(producer, work)
        with trio.move_on_after(_CLOSE_S):
            try:
                while left and not scene.calm.is_set():
                    # The topic may have been terminated meanwhile.
                    _send_one(producer, scene, work)
                    left -= 1
                    await scene.wait_calm(rng.expovariate(1 / work.pace_s))
                await producer.aclose()
            except BrokerError:
                scene.marks["an entry that nobody can read was refused"] += 1
        producer.abandon()
    del scene.sending[work.name]


def _send_one(producer: Producer, scene: Stage, work: Spoil) -> None:
    held_back = is_held_back("batches that nobody can read")
    for _ in range(1 if held_back else work.batch):
        producer.send_nowait(b"", key=work.name, on_result=lambda message_id, error: None)
    scene.marks[f"an entry that nobody can read was sent, {work.how}"] += 1


def _damage(producer: Producer, work: Spoil) -> None:
    """Damage a message like a client with an unknown key, or with bad memory."""
    for lane in producer._partition_producers:
        vars(lane).update(_push=partial(_push, lane._push, work))


def _push(
    plain: Callable[..., None], work: Spoil, metadata: Any, batch: Batch, results: Any
) -> None:
    if work.how == "encrypted":
        own = pb.MessageMetadata()
        own.CopyFrom(metadata)
        own.encryption_keys.add(key="theirs", value=b"1")
    else:
        own = metadata
        own.compression, own.uncompressed_size = pb.LZ4, 2 * len(_BODY)
    plain(own, replace(batch, body=_BODY), results)
