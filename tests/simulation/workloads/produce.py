"""Producers: bursts of messages, and the outcome of each send.

A named producer of a topic with deduplication repeats what is in doubt when it opens again, as an
application does that starts again.  Each such message is stored once.
"""

from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import cast
from zlib import crc32

import trio

from daybook.clients.python.arguments import Compression
from daybook.clients.python.client import Client
from daybook.clients.python.errors import (
    BrokerError,
    MessageTooLargeError,
    Outcome,
    TopicTerminatedError,
)
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.producer import Producer
from tests.history.events import Error, Ok, Send, Unknown
from tests.simulation.acts import DriftClock
from tests.simulation.held_back import is_held_back
from tests.simulation.plan import Produce
from tests.simulation.workloads.messages import (
    digest,
    key_of,
    payload,
    position_of,
    properties_of,
    short,
)
from tests.simulation.workloads.stage import Actor, GivenUpError, Stage

_AGAIN_S = 0.3
_PENDING_BYTES_MAX = 1 << 20
_CLOSE_S = 60.0
_LARGE = 100
_CLOCK_S = 0.002  # the clocks of hosts count milliseconds
_GHOST = "a producer goes without a word, and its connection stays"


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A message that may be stored or not, to be sent again under the same id."""

    sequence_id: int
    producer: str  # and its number there, as the history has them
    seq: int
    data: bytes | None
    key: str
    properties: dict[str, str]
    deliver_at_ms: int | None = None


@dataclass(slots=True)
class _Sending:
    """One producer, from its opening to its end."""

    actor: Actor
    work: Produce
    name: str
    producer: Producer
    # By sequence id, if messages in doubt are sent again; `first_id` is the id of the next message.
    doubts: dict[int, _Doubt] | None
    first_id: int
    rng: Random
    sent: int = 0

    async def repeat(self) -> None:
        """Send again what earlier producers of this name have left in doubt."""
        doubts = [] if self.doubts is None else sorted(self.doubts.items())
        for sequence_id, doubt in doubts:
            self.actor.scene.marks["an application repeated a message in doubt"] += 1
            await self.producer.wait_room()
            self.producer.send_nowait(
                doubt.data,
                key=doubt.key,
                properties=doubt.properties,
                sequence_id=sequence_id,
                deliver_at_ms=doubt.deliver_at_ms,
                on_result=partial(self._repeated, doubt),
            )

    def _repeated(
        self, doubt: _Doubt, message_id: MessageId | None, error: BrokerError | None
    ) -> None:
        # An error leaves it in doubt, whatever it says: an earlier attempt may be stored.
        assert self.doubts is not None
        if message_id is not None:
            del self.doubts[doubt.sequence_id]
            self._note_ok(doubt.producer, doubt.seq, message_id)

    async def send(self) -> None:
        """Send one message; wait for its receipt if the work says so."""
        seq, self.sent = self.sent, self.sent + 1
        value = f"{self.name}/{seq}"
        empty = crc32(value.encode()) % 100 < 100 * self.work.tombstones
        data = None if empty else payload(value, self.work.payload_bytes)
        bare = is_held_back("large keys and properties")
        key = key_of(value, 0 if bare else self.work.key_bytes)
        properties = properties_of(value, 0 if bare else self.work.property_bytes)
        if empty:
            properties["of"] = value
            self.actor.scene.marks["a tombstone was sent"] += 1
        if len(key) > _LARGE or len(properties) > 1:
            self.actor.scene.marks["a large key or property was sent"] += 1
        await self.producer.wait_room()
        sent = digest(data or b"", key, properties)
        at_ms, due_ns = self._due()
        self.actor.note(
            Send(self.work.topic, self.name, seq, value, sent, short(key), empty, due_ns)
        )
        over = trio.Event()
        sequence_id = None if self.doubts is None else self.first_id + seq
        doubt = _Doubt(sequence_id or 0, self.name, seq, data, key, properties, at_ms)
        try:
            self.producer.send_nowait(
                data,
                key=key,
                properties=properties,
                sequence_id=sequence_id,
                deliver_at_ms=at_ms,
                on_result=partial(self._result, doubt, over),
            )
        except (MessageTooLargeError, TopicTerminatedError) as error:
            self._result(doubt, over, None, error)
        if self.work.wait:
            await over.wait()

    def _due(self) -> tuple[int | None, int]:
        """Draw when the message is due: by the clock of the host, and in the history."""
        scene, work = self.actor.scene, self.work
        if not work.delay_s:
            return None, 0
        delay_s = self.rng.uniform(0.0, work.delay_s)
        scene.marks["an entry is to be delivered later"] += 1
        drifts = any(isinstance(each.act, DriftClock) for each in scene.plan.faults)
        due_ns = 0 if drifts else scene.now_ns() + round((delay_s - _CLOCK_S) * 1e9)
        return scene.now_ms(work.host) + round(delay_s * 1000), due_ns

    def _result(
        self,
        doubt: _Doubt,
        over: trio.Event,
        message_id: MessageId | None,
        error: BrokerError | None,
    ) -> None:
        over.set()
        if message_id is not None:
            self._note_ok(self.name, doubt.seq, message_id)
            return
        assert error is not None
        reason = type(error).__name__
        if error.outcome is Outcome.NOT_APPLIED:
            self.actor.note(Error(self.name, doubt.seq, reason))
        elif self.doubts is not None:
            self.doubts[doubt.sequence_id] = doubt
        else:
            self.actor.note(Unknown(self.name, doubt.seq, reason))

    def _note_ok(self, producer: str, seq: int, message_id: MessageId) -> None:
        if message_id.stored_before:
            self.actor.scene.marks["a repeat was not stored again"] += 1
        topic = self.actor.scene.topic_of(self.work.topic, message_id.partition)
        self.actor.note(Ok(topic, producer, seq, position_of(message_id)))


async def produce(scene: Stage, client: Client, work: Produce) -> None:
    """Send until all messages are sent, or the storm is over."""
    rng = scene.rng(work.name)
    actor = Actor(scene, client, scene.recorder(work.name))
    left = work.messages
    # Messages of a partitioned topic go elsewhere when it gets more partitions.
    repeats = (
        scene.plan.shape.settings.deduplication and work.named and not scene.topics[work.topic]
    )
    doubts: dict[int, _Doubt] | None = {} if repeats else None
    scene.sending[work.name] = None
    while left > 0 and not scene.calm.is_set():
        name = f"{work.name}.{scene.number(work.name)}"
        try:
            first = min(doubts or (), default=work.messages - left)
            producer = await _open(actor, work, rng, first, may_give_up=doubts is None)
        except GivenUpError:
            continue
        except BrokerError as error:
            actor.refused("create a producer", error)
            await scene.wait_calm(_AGAIN_S)
            continue
        sending = _Sending(actor, work, name, producer, doubts, work.messages - left, rng)
        try:
            await sending.repeat()
            await _bursts(sending, rng, left)
            await _close(producer, rng, work)
        except BrokerError as error:
            actor.refused("close a producer", error)
            producer.abandon()
        left -= sending.sent
    del scene.sending[work.name]
    if work.named and not is_held_back(_GHOST):
        await _come_back(actor, work, rng, doubts)


async def _open(
    actor: Actor, work: Produce, rng: Random, sent: int, *, may_give_up: bool = True
) -> Producer:
    """Open a producer.  Raise BrokerError or GivenUpError.

    A message that is given up while later ones are stored could not be repeated under its id, so an
    application that repeats messages sets no timeout.
    """
    async with actor.perhaps_given_up(work.give_up, rng):
        return await actor.client.create_producer(
            work.topic,
            name=work.name if work.named else None,
            initial_sequence_id=sent if work.named else None,
            batching=work.batching,
            compression=cast("Compression", work.compression),
            send_timeout_s=work.send_timeout_s if may_give_up else None,
            pending_bytes_max=_PENDING_BYTES_MAX,
        )


async def _come_back(
    actor: Actor, work: Produce, rng: Random, doubts: dict[int, _Doubt] | None
) -> None:
    """Open again when all is well: the name is free, since the earlier producer is gone.

    Messages that are still in doubt are sent again.
    """
    scene = actor.scene
    await scene.end.wait()
    while True:
        try:
            first = min(doubts or (), default=work.messages)
            producer = await _open(
                actor, replace(work, give_up=0.0), rng, first, may_give_up=doubts is None
            )
        except BrokerError as error:
            actor.refused("create a producer", error)
            if isinstance(error, TopicTerminatedError):
                return
            await trio.sleep(_AGAIN_S)
        else:
            scene.marks["a named producer came back"] += 1
            sending = _Sending(actor, work, work.name, producer, doubts, work.messages, rng)
            try:
                await sending.repeat()
                await producer.aclose()
            except BrokerError as error:
                actor.refused("close a producer", error)
                producer.abandon()
            return


async def _bursts(sending: _Sending, rng: Random, messages: int) -> None:
    scene, work = sending.actor.scene, sending.work
    while sending.sent < messages:
        for _ in range(min(rng.randint(1, work.burst), messages - sending.sent)):
            await sending.send()
        if await scene.wait_calm(rng.expovariate(1 / work.pace_s) * work.burst / 2):
            return
        if rng.random() < work.reopen:
            return


async def _close(producer: Producer, rng: Random, work: Produce) -> None:
    """Close in good order most of the time; otherwise sends without a receipt are in doubt."""
    if rng.random() < 0.8 or (work.named and is_held_back(_GHOST)):
        with trio.move_on_after(_CLOSE_S):
            await producer.aclose()
    producer.abandon()
