"""A pipe: reads a topic, transforms each message, and writes the results to another topic.

    async def transform(message):
        return message.data.upper()

    await client.pipe("orders", "loud-orders", transform, name="loud")

Effectively once: each output is stored once, whatever dies meanwhile.  This takes an output topic
with deduplication, an input whose broker numbers its messages, and the only pipe of its name.  A
pipe that lacks one of them is refused, unless `at_least_once=True` says that outputs may be stored
twice.  `protocol/piping.py` has the rules.

`transform` gets one message after another, in the order of each partition.  It returns None for no
output, bytes, an `Output`, or a list of these.  If it raises, the pipe stops with this exception:
the message is not acknowledged, and is the next one when the pipe starts again.  With a dead letter
topic the message is sent there instead, once, and the pipe continues.

The pipe's record (`PipeRecord`) is a property of its subscription `pipe-NAME` in each input
partition.  It is written in the request that creates the subscription, the answer to each
subscription has it, and nothing changes it.  So the record exists exactly as long as the
subscription, and any client of the binary protocol can keep it.

A pipe is refused if its subscription is gone, and outputs of it are stored: the input may be
another topic, whose offsets begin again, and its messages would be taken for repeats.  Therefore
the pipe asks for the outputs first, and then subscribes in a way that creates nothing.  The same
holds while it runs: a subscription whose record has another id was created anew.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import trio

from daybook.clients.python.arguments import InitialPosition, check_name, topic_name
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import (
    BusyError,
    NotAllowedError,
    SubscriptionNotFoundError,
)
from daybook.clients.python.message_id import MessageId, Offset
from daybook.clients.python.pipe_partition import PipePartition
from daybook.clients.python.producer import Producer
from daybook.clients.python.protocol.piping import (
    RECORD,
    WINDOW,
    PipeRecord,
    PipeStart,
    is_lost,
)
from daybook.clients.python.transformation import Transform
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

if TYPE_CHECKING:
    from daybook.clients.python.client import Client

_PREFIX = "daybook.pipe."  # the beginning of producer names, which brokers never forget by time
_AGAIN_S = 1.0  # between two attempts while another pipe of the name is there
_Opened = TypeVar("_Opened", Consumer, Producer)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """The producers of one input partition."""

    partitions: Sequence[Producer]  # one for each partition of the target
    letters: Producer | None

    def all(self) -> list[Producer]:
        return [*self.partitions, *([] if self.letters is None else [self.letters])]

    def start(self, window: int) -> PipeStart:
        """Return what is stored of earlier runs."""
        letters = -1 if self.letters is None else self.letters.last_sequence_id
        return PipeStart(tuple(each.last_sequence_id for each in self.partitions), letters, window)


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
        dead_letter_topic: str | None,
        patience_s: float,
        new_identity: Callable[[], str],
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
        self._letters = None if dead_letter_topic is None else topic_name(dead_letter_topic)
        if self._source.base == self._target.base:
            raise ValueError("a pipe cannot write to the topic that it reads")
        if self._letters is not None and self._letters.base in (
            self._source.base,
            self._target.base,
        ):
            raise ValueError("dead_letter_topic must be another topic than source and target")
        self._transform = transform
        self._name = name
        self._at_least_once = at_least_once
        self._initial_position: InitialPosition = initial_position
        self._patience_s = patience_s  # while another pipe of this name is there
        self._new_identity = new_identity
        self._partitions = 0  # how many the target has
        self._opening = 0  # input partitions that are not open yet
        self._opened = trio.Event()
        self._finished = 0

    @property
    def _subscription(self) -> str:
        return f"pipe-{self._name}"

    async def run(self) -> int:
        """Run until the input was terminated; return the number of messages that were finished."""
        if not self._at_least_once:
            self._partitions = await self._count(self._target)
            if self._letters is not None and (count := await self._count(self._letters)):
                raise self._refusal(
                    f"{self._letters} has {count} partitions; a pipe sends its dead letters to one"
                    f" of them, as to {self._letters.partition_name(0)}"
                )
        count = await self._count(self._source)
        inputs = [self._source.partition_name(index) for index in range(count)] or [self._source]
        failures: list[Exception] = []
        self._opening = len(inputs)

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

    async def _count(self, topic: TopicName) -> int:
        """Return the number of partitions; 0 for a topic without them, and for one partition."""
        return 0 if topic.partition >= 0 else await self._client.partitions(topic.full)

    def _refusal(self, why: str) -> NotAllowedError:
        return NotAllowedError(
            pb.NotAllowedError,
            f"the pipe {self._name!r} cannot store each output once: {why}.  With"
            " at_least_once=True it runs, and may store outputs twice",
        )

    # -- one input partition

    async def _run_partition(self, source: TopicName) -> None:
        # In the order of their closing, the last one first: acknowledgements need no producer.
        async with AsyncExitStack() as stack:
            outputs = await self._open_outputs(source, stack)
            start: PipeStart | None = None
            if self._at_least_once:
                consumer = await self._when_free(lambda: self._subscribe_freely(source))
                await stack.enter_async_context(consumer)
            else:
                end_before = await self._client.last_message_id(source.full)
                consumer = await self._subscribe(source, is_old=outputs.start(WINDOW).last >= 0)
                await stack.enter_async_context(consumer)
                start = await self._resume(source, consumer, outputs, end_before)
            await self._wait_others()
            partition = PipePartition(
                self._client,
                self._transform,
                consumer,
                outputs.partitions,
                outputs.letters,
                start,
            )
            try:
                await partition.run()
            finally:
                self._finished += partition.finished

    async def _wait_others(self) -> None:
        """Wait until all input partitions are open: a pipe that is refused has stored nothing."""
        self._opening -= 1
        if not self._opening:
            self._opened.set()
        await self._opened.wait()

    async def _open_outputs(self, source: TopicName, stack: AsyncExitStack) -> _Outputs:
        """Open the producers, and check that their topics store each message once."""
        targets = [self._target.partition_name(each) for each in range(self._partitions)]
        partitions = [
            await self._open_producer(each, source, stack) for each in targets or [self._target]
        ]
        letters: Producer | None = None
        if self._letters is not None:
            letters = await self._open_producer(self._letters, source, stack, chunking=True)
        outputs = _Outputs(partitions, letters)
        if not self._at_least_once:
            for each in outputs.all():
                if not each.deduplicated:
                    raise self._refusal(
                        f"{each.topic} has no deduplication (set_topic_deduplication)"
                    )
        return outputs

    async def _open_producer(
        self, topic: TopicName, source: TopicName, stack: AsyncExitStack, *, chunking: bool = False
    ) -> Producer:
        async def open_one() -> Producer:
            return await self._client.create_producer(
                topic.full,
                name=None if self._at_least_once else self._producer_name(source),
                # A message that was given up while a later one is stored would be lost.
                send_timeout_s=None,
                batching=not chunking,
                chunking=chunking,
            )

        producer = await stack.enter_async_context(await self._when_free(open_one))
        if topic.partition < 0 and producer.partitions and not self._at_least_once:
            raise self._refusal(f"{topic} got partitions a moment ago")
        return producer

    def _producer_name(self, source: TopicName) -> str:
        # Names have a limit, which the name of a topic may reach by itself.
        return f"{_PREFIX}{self._name}.{sha256(source.full.encode()).hexdigest()[:32]}"

    async def _subscribe_freely(self, source: TopicName) -> Consumer:
        return await self._client.subscribe(
            source.full,
            self._subscription,
            initial_position=self._initial_position,
            receiver_queue_size=WINDOW,
        )

    async def _subscribe(self, source: TopicName, *, is_old: bool) -> Consumer:
        """Subscribe; create the subscription with its record if the pipe has stored nothing."""
        record = PipeRecord(self._new_identity(), self._target.full, self._partitions, WINDOW)

        async def subscribe() -> Consumer:
            return await self._client.subscribe_pipe(
                source.full,
                self._subscription,
                initial_position=self._initial_position,
                receiver_queue_size=WINDOW,
                record=(RECORD, record.encode()),
                must_exist=is_old,
            )

        try:
            return await self._when_free(subscribe)
        except SubscriptionNotFoundError:
            if not is_old:
                raise
            raise self._gone(source) from None

    def _gone(self, source: TopicName) -> NotAllowedError:
        return self._refusal(
            f"outputs of it are stored, but its subscription {self._subscription} of {source} is"
            " gone, or has nothing left: somebody deleted it, or the topic, or skipped its"
            " messages.  Give the pipe another name to begin anew"
        )

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
        self, source: TopicName, consumer: Consumer, outputs: _Outputs, end_before: MessageId
    ) -> PipeStart:
        """Check the conditions, and resume where the outputs that are stored say."""
        start = outputs.start(self._window(source, consumer))
        first, following, mark_delete = await consumer.place()
        if following is None:
            raise self._refusal(f"the broker does not number the messages of {source}")
        offset = start.resume
        if offset is None:
            return start  # Nothing is stored: the cursor stands where the pipe is.
        mark = (mark_delete.ledger_id, mark_delete.entry_id)
        lost = is_lost(start.last, mark, (end_before.ledger_id, end_before.entry_id))
        if lost or start.last_offset >= following:
            # The next start must not find this subscription, which has new messages by then.
            await consumer.unsubscribe()
            raise self._gone(source)
        await consumer.seek(Offset(max(offset, first)))
        return start

    def _window(self, source: TopicName, consumer: Consumer) -> int:
        """Check the record of the subscription, and return its window."""
        text = consumer.stored_properties.get(RECORD)
        where = f"its subscription {self._subscription} of {source}"
        if text is None:
            # Pipes had no records when targets had no partitions.
            if self._partitions:
                raise self._refusal(
                    f"{where} has no record of the number of partitions: it was not created by a"
                    " pipe to a target with partitions, or the broker is older.  Give the pipe"
                    " another name"
                )
            return WINDOW
        try:
            record = PipeRecord.decode(text)
        except ValueError as error:
            raise self._refusal(f"{where} is not to be understood: {error}") from error
        if record.target != self._target.full:
            raise self._refusal(
                f"by {where} it writes to {record.target}, not to {self._target}.  Give the pipe"
                " another name"
            )
        if record.partitions != self._partitions:
            raise self._refusal(
                f"{self._target} had {record.partitions or 'no'} partitions when the pipe began,"
                f" and has {self._partitions or 'none'} now, so keys would go to other partitions."
                "  Give the pipe another name"
            )
        return record.window
