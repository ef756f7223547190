"""One input partition of a pipe while it runs: reads, transforms, sends, acknowledges.

`protocol/piping.py` has the rules, and says why they are safe.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError, EndOfTopicError
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import Message
from daybook.clients.python.producer import Producer
from daybook.clients.python.protocol.letters import origin
from daybook.clients.python.protocol.piping import (
    WINDOW,
    PipeInput,
    PipeProgress,
    PipeStart,
    output_partition,
    sequence_id,
)
from daybook.clients.python.transformation import (
    Output,
    Transform,
    WrongResultError,
    outputs_of,
)

if TYPE_CHECKING:
    from daybook.clients.python.client import Client

PIPE_ERROR = "daybook.pipe.error"  # a property of a dead letter: the exception as text
_ERROR_CHARS = 1000
_LOOK_S = 0.5  # without a message, before the first look whether the input was terminated
_LOOK_MAX_S = 30.0  # between two looks
_log = logging.getLogger("daybook.client")


class PipePartition:
    """One instance per input partition and run.

    `producers`: one for each partition of the target.  With `start`, which says what earlier runs
    have done, each output is stored once; without it, at least once.
    """

    def __init__(
        self,
        client: "Client",
        transform: Transform,
        consumer: Consumer,
        producers: Sequence[Producer],
        letters: Producer | None,
        start: PipeStart | None,
    ) -> None:
        self._client = client
        self._transform = transform
        self._consumer = consumer
        self._producers = producers
        self._letters = letters
        self._start = start
        window = WINDOW if start is None else start.window
        self._progress = PipeProgress(keep_last=start is not None, window=window)
        self._last_read = -1
        self._acknowledged = -1
        self._place = (-1, -1)  # the position of the last message that was received
        self._failures: list[BrokerError] = []
        self._changed = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def finished(self) -> int:
        """The number of messages that were finished."""
        return self._progress.finished

    async def run(self) -> None:
        """Run until the input was terminated and everything is stored."""
        with self._scope:
            while (message := await self._next()) is not None:
                if self._is_new(message):
                    await self._process(message)
            await self._wait(lambda: not self._progress.under_way)
        if self._failures:
            raise self._failures[0]

    # -- reading

    async def _next(self) -> Message | None:
        """Return the next message; None if the topic was terminated behind the last one.

        A broker tells the end of a topic to a subscription when everything in it is acknowledged.
        The last message of a pipe is not, so a reader has to ask in its place, now and then.
        """
        wait_s, topic = _LOOK_S, self._consumer.topic
        while True:
            with trio.move_on_after(wait_s):
                try:
                    message = await self._consumer.receive()
                except EndOfTopicError:
                    return None
                self._place = (message.entry.ledger_id, message.entry.entry_id)
                return message
            if await self._is_terminated(topic):
                end = await self._client.last_message_id(topic)
                if (end.ledger_id, end.entry_id) <= self._place:
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

    def _is_new(self, message: Message) -> bool:
        """Return True if this run has not read the message yet, and note that it has."""
        if self._start is None:
            self._last_read += 1  # Without conditions, messages may have no offsets.
            return True
        # After a takeover of the input, messages that are under way come again.
        assert message.offset is not None
        if message.offset <= self._last_read:
            if message.offset <= self._acknowledged:  # Nobody else repeats it.
                self._consumer.ack_nowait(message)
            return False
        self._last_read = message.offset
        return True

    def _acknowledge(self, message: Message) -> None:
        if message.offset is not None:
            self._acknowledged = message.offset
        self._consumer.ack_nowait(message)

    # -- processing

    async def _process(self, message: Message) -> None:
        progress, start, partition = self._progress, self._start, 0
        each = progress.read(partial(self._acknowledge, message), self._last_read)
        # Before anything of it is sent.  This also limits how many messages are remembered.
        await self._wait(lambda: progress.has_room(each))
        if start is not None:
            key = message.key_bytes if message.key_is_bytes else message.key
            partition = output_partition(key, message.partition, len(self._producers))
            if start.is_finished(each.offset, partition):
                progress.complete(each)
                return
        try:
            outputs = await outputs_of(self._transform, message)
        except WrongResultError:
            raise
        except Exception as error:
            if self._letters is None:
                raise
            if start is not None and start.is_begun(each.offset, partition):
                error.add_note(
                    "The pipe sends no dead letter for this message, because an earlier run has"
                    " stored outputs of it, and a message has outputs or a dead letter."
                )
                raise
            await self._give_up(self._letters, each, message, error)
            return
        for number, output in enumerate(outputs):
            await self._send_output(each, partition, number, output)
        progress.complete(each)

    async def _send_output(
        self, each: PipeInput, partition: int, number: int, output: Output
    ) -> None:
        name = None
        if self._start is not None:
            name = sequence_id(each.offset, number)
            if name <= self._start.outputs[partition]:
                return  # An earlier run has stored it.
        producer = self._producers[partition]
        await producer.wait_room()
        self._progress.sent(each)
        producer.send_nowait(
            output.data,
            key=output.key,
            properties=output.properties,
            event_time_ms=output.event_time_ms,
            sequence_id=name,
            on_result=partial(self._on_result, each),
        )

    async def _give_up(
        self, letters: Producer, each: PipeInput, message: Message, error: Exception
    ) -> None:
        """Send a dead letter behind everything before the message, and wait until it is stored."""
        await self._wait(lambda: self._progress.is_alone(each))
        await letters.wait_room()
        place = str(message.message_id)
        text = f"{type(error).__name__}: {error}"[:_ERROR_CHARS]
        _log.warning(
            "a pipe gives up message %s of %s, and sends it to %s: %s",
            place,
            message.topic,
            letters.topic,
            text,
        )
        self._progress.sent(each)
        letters.send_nowait(
            message.data,
            key=message.key_bytes if message.key_is_bytes else message.key,
            ordering_key=message.ordering_key,
            properties={**origin(message.properties, message.topic, place), PIPE_ERROR: text},
            event_time_ms=message.event_time_ms,
            sequence_id=None if self._start is None else sequence_id(each.offset, 0),
            on_result=partial(self._on_result, each),
        )
        self._progress.complete(each)
        await self._wait(lambda: not self._progress.under_way)

    def _on_result(
        self, each: PipeInput, place: MessageId | None, error: BrokerError | None
    ) -> None:
        del place
        if error is None:
            self._progress.stored(each)
        else:
            self._failures.append(error)
            self._scope.cancel()
        self._changed.set()

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()
