"""Traffic that goes on while a test breaks things, and checks its messages at the end.

One producer sends numbers, several entries on their way at a time; one consumer acknowledges its
messages, with receipts.  `finish` then reads the topic from its beginning, and compares the stored
messages with the acknowledged and the delivered ones:

    lost           acknowledged, and not stored at the position in the receipt
    reordered      the first copies of the numbers do not ascend: in the receipts, in the log, or in
                   the deliveries
    invented       stored or delivered, and never sent
    came again     delivered after its acknowledgement was confirmed
    left out       stored, and never delivered

A number may be stored twice, if the producer could not know of its first copy.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError, Outcome
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.message_id import MessageId

STEP_S = 0.005
BURST = 5
BATCH = 2  # so that a burst is several entries
PATIENCE_S = 300.0  # only so that nothing hangs forever
_LIMITS = ClientLimits()


@dataclass(slots=True)
class History:
    """The observations of producer and consumer, in order; and the stored messages."""

    sent: int = 0
    receipts: list[tuple[int, MessageId]] = field(default_factory=list[tuple[int, MessageId]])
    deliveries: list[tuple[int, MessageId]] = field(default_factory=list[tuple[int, MessageId]])
    failures: list[BrokerError] = field(default_factory=list[BrokerError])
    confirmed: set[MessageId] = field(default_factory=set[MessageId])
    came_again: list[MessageId] = field(default_factory=list[MessageId])
    stored: dict[MessageId, int] = field(default_factory=dict[MessageId, int])

    def check(self) -> None:
        assert self.failures == []
        assert [number for number, _ in self.receipts] == list(range(self.sent)), "reordered"
        lost = [number for number, where in self.receipts if self.stored.get(where) != number]
        assert lost == [], f"{len(lost)} of {self.sent} lost, the first is {lost[0]}"
        assert _first_copies(list(self.stored.values())) == list(range(self.sent)), "reordered"
        assert _first_copies([n for n, _ in self.deliveries]) == list(range(self.sent))
        invented = [(n, where) for n, where in self.deliveries if self.stored.get(where) != n]
        assert invented == []
        assert self.came_again == []
        left_out = self.stored.keys() - {where for _, where in self.deliveries}
        assert left_out == set()


def _first_copies(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


class Traffic:
    """The traffic on one topic; see `open_traffic`."""

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = topic
        self.history = History()
        self._client = client
        self._stopping = False
        self._changed = trio.Event()

    @property
    def acknowledged(self) -> int:
        return len(self.history.receipts)

    async def produce(self) -> None:
        async with await self._client.create_producer(
            self.topic, send_timeout_s=None, batch_messages_max=BATCH
        ) as producer:
            while not self._stopping:
                await producer.wait_room()
                for number in range(self.history.sent, self.history.sent + BURST):
                    producer.send_nowait(b"%d" % number, on_result=partial(self._note, number))
                self.history.sent += BURST
                await trio.sleep(STEP_S)

    def _note(self, number: int, where: MessageId | None, error: BrokerError | None) -> None:
        if error is not None:
            self.history.failures.append(error)
        if where is not None:
            self.history.receipts.append((number, where))
        self._tell()

    async def consume(self, consumer: Consumer) -> None:
        history = self.history
        while True:
            batch = await consumer.receive_batch(500)
            ids = [message.message_id for message in batch]
            history.came_again += [each for each in ids if each in history.confirmed]
            numbers = [int(message.data or b"") for message in batch]
            history.deliveries += zip(numbers, ids, strict=True)
            self._tell()
            try:
                await consumer.ack(batch)
            except BrokerError as error:
                if error.outcome is not Outcome.UNKNOWN:
                    raise
            else:
                history.confirmed.update(ids)

    # -- used by tests

    async def wait_acknowledged(self, more: int) -> None:
        """Wait until that many more are acknowledged."""
        goal = self.acknowledged + more
        with trio.fail_after(PATIENCE_S):
            await self._until(lambda: self.acknowledged >= goal)

    async def finish(self) -> None:
        """Stop sending, wait until all is delivered, and check that nothing went wrong."""
        self._stopping = True
        with trio.fail_after(PATIENCE_S):
            await self._until(self._all_is_answered)
            await self._read_back()
            await self._until(lambda: len(self.history.deliveries) >= len(self.history.stored))
        self.history.check()

    def _all_is_answered(self) -> bool:
        return self.acknowledged + len(self.history.failures) == self.history.sent

    async def _read_back(self) -> None:
        async with await self._client.create_reader(self.topic, start="earliest") as reader:
            while await reader.has_message_available():
                for message in await reader.receive_batch():
                    self.history.stored[message.message_id] = int(message.data or b"")

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def open_traffic(
    service_url: str, topic: str, *, limits: ClientLimits = _LIMITS
) -> AsyncIterator[Traffic]:
    """Run traffic on `topic` for as long as the block lasts; `finish` checks it."""
    async with connect(service_url, limits=limits) as client:
        traffic = Traffic(client, topic)
        consumer = await client.subscribe(
            topic, "traffic", initial_position="earliest", ack_receipts=True
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(traffic.consume, consumer)
            nursery.start_soon(traffic.produce)
            await traffic.wait_acknowledged(50)
            yield traffic
            nursery.cancel_scope.cancel()
