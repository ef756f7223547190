"""Sends messages that an application cannot process to retry and dead letter topics.

A message is given up when it was redelivered `max_redeliveries` times and is rejected once more: by
`nack`, or by an acknowledgement that does not come in time.  Only messages that are not
acknowledged are given up, also of a batch whose entry comes again as a whole.

A letter has the schema of its message: the topic of the letters gets that schema from its producer,
and the letter names the version that the schema has there.

The original is acknowledged when its letter has a receipt, never before.  If the letter cannot be
sent, the original is delivered again later, and the letter is tried again.  A crash in between
leaves both: a dead letter may be there twice, and none is lost.

Memory: an entry that is given up as it arrives keeps its permits until its letter is stored, so the
broker sends no more.  Messages of `nack` wait here in a bounded number; beyond that they are
delivered again, and are given up as they arrive.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import trio

from daybook.clients.python.arguments import topic_name
from daybook.clients.python.errors import (
    BrokerError,
    IncompatibleSchemaError,
    TopicNotFoundError,
)
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import Message
from daybook.clients.python.producer import Producer
from daybook.clients.python.protocol.letters import DeadLetterPolicy, origin, retries, retry
from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.clients.python.topic_choice import TopicChoice
from daybook.wire.topics import TopicName

CreateProducer: TypeAlias = Callable[[str, str | None, "Raw | None"], Awaitable[Producer]]
"""Opens a producer of a topic, with the subscription that it creates, and a schema."""

_PRODUCERS_MAX = 100
_log = logging.getLogger("daybook.client")


class Raw(Schema[bytes]):
    """The schema of messages that are passed on as they are."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


@dataclass(slots=True)
class _Letter:
    message: Message
    acknowledge: Callable[[], object]  # the original, when the letter is stored
    reject: Callable[[], object]  # ... or have it delivered again
    settled: Callable[[], object]  # called in any case


def check_dead_letters(
    policy: DeadLetterPolicy, choice: TopicChoice, *, counted: bool, retry: bool
) -> None:
    """Raise ValueError for a policy that could not be carried out.

    `counted`: the broker counts the redeliveries of the subscription.
    """
    for name in (policy.topic, policy.retry_topic):
        if name is not None:
            topic_name(name)
    if choice.first is None and (policy.topic is None or (retry and policy.retry_topic is None)):
        raise ValueError(
            "the dead letter topic of a pattern has no name by itself: give `topic`, and"
            " `retry_topic` for retries"
        )
    if not counted and not retry and policy.max_redeliveries > 0:
        raise ValueError(
            "redeliveries are counted on shared subscriptions only: use type='shared', or"
            " retry=True and `reconsume_later`"
        )


class DeadLetters:
    """One instance per consumer with a dead letter policy."""

    def __init__(
        self,
        policy: DeadLetterPolicy,
        topic: TopicName | None,
        subscription: str,
        create_producer: CreateProducer,
        schema_of: Callable[[Message], Awaitable[SchemaInfo]],
        waiting_max: int,
        *,
        retry: bool,
    ) -> None:
        """`topic`: the first topic of the consumer; None for a pattern, whose policy has names.

        Several topics have one retry topic, that of the first one, and with `retry` one dead letter
        topic, too: a message that was tried again does not come from its own topic any more.
        """
        self.policy = policy
        name = "" if topic is None else topic.base.full
        self.retry_topic = policy.retry_letter_topic(name, subscription)
        self._subscription = subscription
        self._common_topic = policy.dead_letter_topic(name, subscription) if retry else policy.topic
        self.sent = 0
        self._create_producer = create_producer
        self._schema_of = schema_of
        self._waiting_max = waiting_max
        self._waiting: deque[_Letter] = deque()
        self._more = trio.Event()
        self._lock = trio.Lock()
        # By topic and by the version of the schema in the topic of the original; b"" has none.
        self._producers: dict[tuple[str, str, bytes], Producer] = {}
        self._known: set[tuple[str, MessageId]] = set()  # the messages that wait
        self._told = False
        self._scope = trio.CancelScope()

    @property
    def has_room(self) -> bool:
        """Return True if `give_up` may be called for a message that the application rejects."""
        return len(self._waiting) < self._waiting_max

    def give_up(
        self,
        message: Message,
        acknowledge: Callable[[], object],
        reject: Callable[[], object],
        settled: Callable[[], object] = lambda: None,
    ) -> None:
        """Have a dead letter sent for a message, soon and in order."""
        known = message.topic, message.message_id
        if known in self._known:
            settled()
            return
        self._known.add(known)
        self._waiting.append(_Letter(message, acknowledge, reject, settled))
        self._more.set()

    async def run(self) -> None:
        """Send the dead letters; a task in the nursery of the client."""
        with self._scope:
            while True:
                while self._waiting:
                    await self._settle(self._waiting[0])
                self._more = trio.Event()
                await self._more.wait()

    async def _settle(self, letter: _Letter) -> None:
        try:
            stored = await self._store(letter)
        finally:
            self._waiting.popleft()
            self._known.discard((letter.message.topic, letter.message.message_id))
        if not stored:
            letter.reject()
        letter.settled()

    async def _store(self, letter: _Letter) -> bool:
        """Return True if the dead letter has its receipt."""
        message = letter.message
        place, topic = message.message_id, self._topic_for(message)
        properties = origin(message.properties, message.topic, str(place))
        try:
            await self._send(topic, message, properties, None, letter.acknowledge)
        except (BrokerError, ValueError) as error:
            if not self._told:  # Once, not for each message.
                _log.warning(
                    "no dead letter for message %s of %s can be sent to %s, so it comes again: %s",
                    place,
                    message.topic,
                    topic,
                    error,
                )
            self._told = True
            return False
        self._told = False
        self.sent += 1
        return True

    def _topic_for(self, message: Message) -> str:
        """Return the dead letter topic of a message."""
        if self._common_topic is not None:
            return self._common_topic
        name = TopicName.parse(message.topic).base.full
        return self.policy.dead_letter_topic(name, self._subscription)

    async def send_retry(
        self,
        message: Message,
        delay_s: float,
        properties: Mapping[str, str],
        acknowledge: Callable[[], object],
    ) -> None:
        """Store a message in the retry topic, or in the dead letter topic after the last retry.

        `acknowledge` is called when it is stored, even if the caller was cancelled meanwhile.
        Raise BrokerError if it is not stored, or if that is unknown.
        """
        before = {
            **origin(message.properties, message.topic, str(message.message_id)),
            **properties,
        }
        after = retry(before, delay_s)
        if retries(after) > self.policy.max_redeliveries:
            await self._send(self._topic_for(message), message, after, None, acknowledge)
            self.sent += 1
        else:
            delay = max(0.0, delay_s) or None
            await self._send(self.retry_topic, message, after, delay, acknowledge)

    async def _send(
        self,
        topic: str,
        message: Message,
        properties: Mapping[str, str],
        after_s: float | None,
        acknowledge: Callable[[], object],
    ) -> None:
        producer = await self._producer(topic, message)
        await producer.wait_room()
        failures: list[BrokerError] = []
        settled = trio.Event()

        def on_result(place: MessageId | None, error: BrokerError | None) -> None:
            if error is None:
                acknowledge()  # Here, because the task that sends may have been cancelled.
            else:
                failures.append(error)
            settled.set()

        producer.send_nowait(
            message.data,
            key=message.key_bytes if message.key_is_bytes else message.key,
            ordering_key=message.ordering_key,
            properties=properties,
            event_time_ms=message.event_time_ms,
            deliver_after_s=after_s,
            on_result=on_result,
        )
        await settled.wait()
        if failures:
            raise failures[0]

    async def _producer(self, topic: str, message: Message) -> Producer:
        """Return the producer of letters whose data are of the schema of this message."""
        version = message.entry.schema_version
        key = (topic, TopicName.parse(message.topic).base.full if version else "", version)
        async with self._lock:
            known = self._producers.get(key)
            if known is None or known.closed:
                if len(self._producers) >= _PRODUCERS_MAX:
                    oldest = next(iter(self._producers))
                    await self._producers.pop(oldest).aclose()
                retried = topic == self.retry_topic
                first = None if retried else self.policy.initial_subscription
                known = self._producers[key] = await self._open_producer(topic, first, message)
            return known

    async def _open_producer(self, topic: str, first: str | None, message: Message) -> Producer:
        """Open a producer that gives the schema of the message to the topic of its letters.

        A letter without a version is better than none, if the topic does not take the schema.
        """
        if not message.entry.schema_version:
            return await self._create_producer(topic, first, None)
        try:
            info = await self._schema_of(message)
            return await self._create_producer(topic, first, Raw(info))
        except (TopicNotFoundError, IncompatibleSchemaError) as error:
            _log.warning(
                "letters of %s to %s have no version of the schema, because the topic does not"
                " take the schema of the message: %s",
                message.topic,
                topic,
                error,
            )
            return await self._create_producer(topic, first, None)

    async def aclose(self) -> None:
        """Wait for letters that are on their way, and end; the broker delivers the rest again."""
        self._scope.cancel()
        for producer in self._producers.values():
            await producer.aclose()

    def abandon(self) -> None:
        """End at once."""
        self._scope.cancel()
        for producer in self._producers.values():
            producer.abandon()
