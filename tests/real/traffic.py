"""Traffic that goes on while a test breaks things, and knows what must be true at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from clients.python.client import Client, connect
from clients.python.errors import BrokerError
from clients.python.messages import MessageId

STEP_S = 0.005
PROGRESS_TIMEOUT_S = 60.0


class Traffic:
    """One producer sends numbers one after the other, one consumer acknowledges what arrives."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: list[int] = []
        self.delivered: list[int] = []
        self.errors: list[BrokerError] = []
        self.pauses_s: list[float] = []  # between two acknowledgements
        self._acknowledged_at = 0.0
        self._stopping = False

    async def produce(self, client: Client) -> None:
        async with await client.create_producer(self.topic, send_timeout_s=120) as producer:
            while not self._stopping:
                producer.send_nowait(b"%d" % self.sent, on_result=self._note(self.sent))
                self.sent += 1
                await producer.wait_room()
                await trio.sleep(STEP_S)
            await producer.flush()

    def _note(self, number: int) -> "_Done":
        return _Done(self, number)

    def acknowledged_one(self, number: int) -> None:
        now = trio.current_time()
        if self._acknowledged_at:
            self.pauses_s.append(now - self._acknowledged_at)
        self._acknowledged_at = now
        self.acknowledged.append(number)

    async def consume(
        self, client: Client, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with await client.subscribe(
            self.topic, "traffic", initial_position="earliest"
        ) as consumer:
            task_status.started()
            while True:
                batch = await consumer.receive_batch(1000)
                self.delivered += [int(message.data) for message in batch]
                await consumer.ack(batch)

    async def wait_acknowledged(self, more: int, timeout_s: float = PROGRESS_TIMEOUT_S) -> float:
        """Wait until that many more are acknowledged; return how long it took, in seconds."""
        started, goal = trio.current_time(), len(self.acknowledged) + more
        with trio.fail_after(timeout_s):
            while len(self.acknowledged) < goal:  # noqa: ASYNC110  whatever the reason
                await trio.sleep(STEP_S)
        return trio.current_time() - started

    async def finish(self) -> None:
        """Stop sending, wait until all is delivered, and check that nothing went wrong."""
        self._stopping = True
        with trio.fail_after(PROGRESS_TIMEOUT_S):
            while (  # noqa: ASYNC110  whatever the reason
                len(self.acknowledged) < self.sent
                or not set(self.acknowledged) <= set(self.delivered)
            ):
                await trio.sleep(STEP_S)
        self.check()

    def check(self) -> None:
        """Nothing lost, nothing invented, first deliveries in order."""
        assert not self.errors
        assert self.acknowledged == sorted(self.acknowledged)
        lost = set(self.acknowledged) - set(self.delivered)
        assert not lost, f"{len(lost)} lost, the first is {min(lost)}"
        assert max(self.delivered) < self.sent
        first = list(dict.fromkeys(self.delivered))
        assert first == sorted(first), "delivered out of order"


class _Done:
    def __init__(self, traffic: Traffic, number: int) -> None:
        self._traffic = traffic
        self._number = number

    def __call__(self, message_id: MessageId | None, error: BrokerError | None) -> None:
        if error is None:
            self._traffic.acknowledged_one(self._number)
        else:
            self._traffic.errors.append(error)


@asynccontextmanager
async def open_traffic(service_url: str, topic: str) -> AsyncIterator[Traffic]:
    """Traffic on `topic` for as long as the block lasts; `finish` checks it."""
    traffic = Traffic(topic)
    async with connect(service_url) as client, trio.open_nursery() as nursery:
        await nursery.start(traffic.consume, client)
        nursery.start_soon(traffic.produce, client)
        await traffic.wait_acknowledged(20)
        yield traffic
        nursery.cancel_scope.cancel()
