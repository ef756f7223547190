"""A pipe: reads a topic, transforms each message, and writes the results to another topic.

    async def transform(message):
        return message.data.upper()

    await client.pipe("orders", "loud-orders", transform, name="loud")

Effectively once: each output is stored once, whatever dies meanwhile.  This takes an output topic
with deduplication, without partitions (or one partition of a topic), an input whose broker numbers
its messages, and the only pipe of its name.  A pipe that lacks one of them is refused, unless
`at_least_once=True` says that outputs may be stored twice.  `protocol/piping.py` has the rules.

`transform` gets one message after another, in the order of each partition.  It returns None for no
output, bytes, an `Output`, or a list of these.  If it raises, the pipe stops with this exception:
the message is not acknowledged, and is the next one when the pipe starts again.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import trio

from daybook.clients.python.arguments import InitialPosition, check_name, topic_name
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError, BusyError, EndOfTopicError, NotAllowedError
from daybook.clients.python.messages import Message, MessageId, Offset
from daybook.clients.python.producer import Producer
from daybook.clients.python.protocol.piping import (
    PipeInput,
    PipeProgress,
    is_lost,
    resume,
    sequence_id,
)
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

if TYPE_CHECKING:
    from daybook.clients.python.client import Client

_PREFIX = "daybook.pipe."  # the beginning of producer names, which brokers never forget by time
_UNDER_WAY_MAX = 1000  # messages whose outputs have no receipts, in each input partition
_LOOK_S = 0.5  # without a message, before the first look whether the input was terminated
_LOOK_MAX_S = 30.0  # between two looks
_AGAIN_S = 1.0  # between two attempts while another pipe of the name is there
_MISSING = MessageId(-1, -1)


@dataclass(frozen=True, slots=True)
class Output:
    """A message that a pipe writes.  `bytes` alone get the key and the event time of the input."""

    data: bytes | None
    key: str | bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None


_Opened = TypeVar("_Opened", Consumer, Producer)
Result: TypeAlias = bytes | Output | None
Transform: TypeAlias = Callable[
    [Message], Result | Iterable[Result] | Awaitable[Result | Iterable[Result]]
]


async def outputs_of(transform: Transform, message: Message) -> list[Output]:
    """Return what `transform` makes of a message."""
    made = transform(message)
    if inspect.isawaitable(made):
        made = await made
    found = made
    if found is None or isinstance(found, bytes | Output):
        found = [found]
    key = message.key_bytes if message.key_is_bytes else message.key
    outputs: list[Output] = []
    for each in found:
        match each:
            case None:
                pass
            case bytes():
                outputs.append(Output(each, key, None, message.event_time_ms))
            case Output():
                outputs.append(each)
            case _:
                raise TypeError(
                    "a transformation returns None, bytes, an Output, or a list of them, not"
                    f" {type(each).__name__}"
                )
    return outputs


class Pipe:
    """One instance per call of `Client.pipe`."""

    def __init__(
        self,
        client: "Client",
        source: str,
        target: str,
        transform: Transform,
        *,
        name: str,
        at_least_once: bool,
        initial_position: InitialPosition,
        patience_s: float,
    ) -> None:
        check_name("name", name)
        if not name:
            raise ValueError("name is empty: a pipe is known by its name")
        if not callable(transform):
            raise TypeError(f"transform must be a function, not {type(transform).__name__}")
        if initial_position not in ("earliest", "latest"):
            raise ValueError(
                f"initial_position must be earliest or latest, not {initial_position!r}"
            )
        self._client = client
        self._source = topic_name(source)
        self._target = topic_name(target)
        if self._source.base == self._target.base:
            raise ValueError("a pipe cannot write to the topic that it reads")
        self._transform = transform
        self._name = name
        self._at_least_once = at_least_once
        self._initial_position: InitialPosition = initial_position
        self._patience_s = patience_s  # while another pipe of this name is there
        self._finished = 0

    async def run(self) -> int:
        """Run until the input was terminated; return the number of messages that were finished."""
        if self._target.partition < 0 and not self._at_least_once:
            count = await self._client.partitions(self._target.full)
            if count:
                raise self._refusal(
                    f"{self._target} has {count} partitions; a pipe writes to one of them, as to"
                    f" {self._target.partition_name(0)}"
                )
        inputs = [self._source]
        if self._source.partition < 0:
            count = await self._client.partitions(self._source.full)
            inputs = [self._source.partition_name(index) for index in range(count)] or inputs
        failures: list[Exception] = []

        async def run_one(each: TopicName) -> None:
            try:
                await self._run_partition(each)
            except Exception as error:  # It ends the pipe, in a form without groups.
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for each in inputs:
                nursery.start_soon(run_one, each)
        if failures:
            raise failures[0]
        return self._finished

    def _refusal(self, why: str) -> NotAllowedError:
        return NotAllowedError(
            pb.NotAllowedError,
            f"the pipe {self._name!r} cannot store each output once: {why}.  With"
            " at_least_once=True it runs, and may store outputs twice",
        )

    async def _run_partition(self, source: TopicName) -> None:
        client = self._client
        end_before = _MISSING
        if not self._at_least_once:
            end_before = await client.last_message_id(source.full)
        async with (
            await self._when_free(lambda: self._subscribe(source)) as consumer,
            await self._when_free(lambda: self._create_producer(source)) as producer,
        ):
            if not self._at_least_once:
                await self._resume(source, consumer, producer, end_before)
            await self._carry(consumer, producer)

    async def _subscribe(self, source: TopicName) -> Consumer:
        return await self._client.subscribe(
            source.full,
            f"pipe-{self._name}",
            initial_position=self._initial_position,
            receiver_queue_size=_UNDER_WAY_MAX,
        )

    async def _create_producer(self, source: TopicName) -> Producer:
        return await self._client.create_producer(
            self._target.full,
            name=None if self._at_least_once else self._producer_name(source),
            # A message that was given up while a later one is stored would be lost.
            send_timeout_s=None,
        )

    def _producer_name(self, source: TopicName) -> str:
        # Names have a limit, which the name of a topic may reach by itself.
        return f"{_PREFIX}{self._name}.{sha256(source.full.encode()).hexdigest()[:32]}"

    async def _when_free(self, open_one: Callable[[], Awaitable[_Opened]]) -> _Opened:
        """Open a consumer or producer; wait while the one of another pipe is still there."""
        deadline = trio.current_time() + self._patience_s
        while True:
            try:
                return await open_one()
            except BusyError:
                if trio.current_time() >= deadline:
                    raise
            await trio.sleep(_AGAIN_S)

    async def _resume(
        self, source: TopicName, consumer: Consumer, producer: Producer, end_before: MessageId
    ) -> None:
        """Check the conditions, and continue behind the last output that is stored."""
        if not producer.deduplicated:
            raise self._refusal(f"{self._target} has no deduplication (set_topic_deduplication)")
        first, following, mark_delete = await consumer.place()
        if following is None:
            raise self._refusal(f"the broker does not number the messages of {source}")
        done = producer.last_sequence_id
        offset = resume(done)
        if offset is None:
            return
        mark = (mark_delete.ledger_id, mark_delete.entry_id)
        lost = is_lost(done, mark, (end_before.ledger_id, end_before.entry_id))
        if lost or offset >= following:
            # The next start must not find the subscription that was created just now.
            await consumer.unsubscribe()
            raise self._refusal(
                f"it has processed {source} up to offset {offset}, but its subscription"
                f" pipe-{self._name} is gone: somebody deleted it, or the topic.  Give the pipe"
                " another name to begin anew"
            )
        await consumer.seek(Offset(max(offset, first)))

    async def _next(self, consumer: Consumer, last: tuple[int, int]) -> Message | None:
        """Return the next message; None if the topic was terminated behind the message `last`.

        A broker tells the end of a topic to a subscription when everything in it is acknowledged.
        The last message of a pipe is not, so a reader has to ask in its place, now and then.
        """
        wait_s = _LOOK_S
        while True:
            with trio.move_on_after(wait_s):
                try:
                    return await consumer.receive()
                except EndOfTopicError:
                    return None
            if await self._is_terminated(consumer.topic):
                end = await self._client.last_message_id(consumer.topic)
                if (end.ledger_id, end.entry_id) <= last:
                    return None
            wait_s = min(2 * wait_s, _LOOK_MAX_S)

    async def _is_terminated(self, topic: str) -> bool:
        """Return True if the topic takes no more messages; False also if that is unknown."""
        with trio.move_on_after(_LOOK_S), suppress(BrokerError):
            async with await self._client.create_reader(
                topic, start="latest", receiver_queue_size=1
            ) as reader:
                try:
                    await reader.receive()
                except EndOfTopicError:
                    return True
        return False

    async def _carry(self, consumer: Consumer, producer: Producer) -> None:
        progress = PipeProgress(keep_last=not self._at_least_once)
        stored_before = -1 if self._at_least_once else producer.last_sequence_id
        last_read, last, acknowledged = -1, (-1, -1), -1
        failures: list[BrokerError] = []
        settled = trio.Event()
        scope = trio.CancelScope()

        def on_result(each: PipeInput, place: MessageId | None, error: BrokerError | None) -> None:
            del place
            if error is None:
                progress.stored(each)
            else:
                failures.append(error)
                scope.cancel()
            settled.set()

        def acknowledge(message: Message) -> None:
            nonlocal acknowledged
            if message.offset is not None:
                acknowledged = message.offset
            consumer.ack_nowait(message)

        async def wait(under_way: int) -> None:
            nonlocal settled
            while progress.under_way > under_way:
                settled = trio.Event()
                await settled.wait()

        try:
            with scope:
                while True:
                    message = await self._next(consumer, last)
                    if message is None:
                        break
                    last = (message.entry.ledger_id, message.entry.entry_id)
                    if not self._at_least_once:
                        # After a takeover of the input, messages that are under way come again.
                        assert message.offset is not None
                        if message.offset <= last_read:
                            if message.offset <= acknowledged:  # Nobody else repeats it.
                                consumer.ack_nowait(message)
                            continue
                        last_read = message.offset
                    each = progress.read(partial(acknowledge, message))
                    outputs = await outputs_of(self._transform, message)
                    for number, output in enumerate(outputs):
                        name = None
                        if not self._at_least_once:
                            assert message.offset is not None
                            name = sequence_id(message.offset, number)
                            if name <= stored_before:
                                continue  # An earlier run has stored it.
                        await producer.wait_room()
                        progress.sent(each)
                        producer.send_nowait(
                            output.data,
                            key=output.key,
                            properties=output.properties,
                            event_time_ms=output.event_time_ms,
                            sequence_id=name,
                            on_result=partial(on_result, each),
                        )
                    progress.complete(each)
                    await wait(_UNDER_WAY_MAX)
                await wait(0)
        finally:
            self._finished += progress.finished
        if failures:
            raise failures[0]
