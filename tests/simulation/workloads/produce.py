"""Producers: bursts of messages, with what became of each."""

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import cast

import trio

from clients.python.arguments import Compression
from clients.python.client import Client
from clients.python.errors import BrokerError, MessageTooLargeError, Outcome
from clients.python.messages import MessageId
from clients.python.producer import Producer
from tests.history.events import Error, Ok, Send, Unknown
from tests.simulation.plan import Produce
from tests.simulation.workloads.messages import digest, key_of, payload, position_of, properties_of
from tests.simulation.workloads.stage import Actor, Stage

_AGAIN_S = 0.3
_PENDING_BYTES_MAX = 1 << 20
_CLOSE_S = 60.0


@dataclass(slots=True)
class _Sending:
    """One producer, from its opening to its end."""

    actor: Actor
    work: Produce
    name: str
    producer: Producer
    sent: int = 0

    async def send(self) -> None:
        """One message; waits for its receipt if the work says so."""
        seq, self.sent = self.sent, self.sent + 1
        value = f"{self.name}/{seq}"
        data = payload(value, self.work.payload_bytes)
        key, properties = key_of(value), properties_of(value)
        await self.producer.wait_room()
        self.actor.note(Send(self.work.topic, self.name, seq, value, digest(data, key, properties)))
        over = trio.Event()
        try:
            self.producer.send_nowait(
                data, key=key, properties=properties, on_result=partial(self._result, seq, over)
            )
        except MessageTooLargeError as error:
            self._result(seq, over, None, error)
        if self.work.wait:
            await over.wait()

    def _result(
        self, seq: int, over: trio.Event, message_id: MessageId | None, error: BrokerError | None
    ) -> None:
        over.set()
        if message_id is not None:
            topic = self.actor.scene.topic_of(self.work.topic, message_id.partition)
            self.actor.note(Ok(topic, self.name, seq, position_of(message_id)))
            return
        assert error is not None
        reason = type(error).__name__
        if error.outcome is Outcome.NOT_APPLIED:
            self.actor.note(Error(self.name, seq, reason))
        else:
            self.actor.note(Unknown(self.name, seq, reason))


async def produce(scene: Stage, client: Client, work: Produce) -> None:
    """Until all messages are sent, or the storm is over."""
    rng = scene.rng(work.name)
    actor = Actor(scene, client, scene.recorder(work.name))
    left = work.messages
    scene.sending[work.name] = None
    while left > 0 and not scene.calm.is_set():
        name = f"{work.name}.{scene.number(work.name)}"
        try:
            producer = await client.create_producer(
                work.topic,
                batching=work.batching,
                compression=cast("Compression", work.compression),
                send_timeout_s=work.send_timeout_s,
                pending_bytes_max=_PENDING_BYTES_MAX,
            )
        except BrokerError as error:
            actor.refused("create a producer", error)
            await scene.wait_calm(_AGAIN_S)
            continue
        sending = _Sending(actor, work, name, producer)
        try:
            await _bursts(sending, rng, left)
            await _close(producer, rng)
        except BrokerError as error:
            actor.refused("close a producer", error)
            producer.abandon()
        left -= sending.sent
    del scene.sending[work.name]


async def _bursts(sending: _Sending, rng: Random, messages: int) -> None:
    scene, work = sending.actor.scene, sending.work
    while sending.sent < messages:
        for _ in range(min(rng.randint(1, work.burst), messages - sending.sent)):
            await sending.send()
        if await scene.wait_calm(rng.expovariate(1 / work.pace_s) * work.burst / 2):
            return
        if rng.random() < work.reopen:
            return


async def _close(producer: Producer, rng: Random) -> None:
    """In good order most of the time; what has no receipt is in doubt otherwise."""
    if rng.random() < 0.8:
        with trio.move_on_after(_CLOSE_S):
            await producer.aclose()
    producer.abandon()
