"""Produce all rows while a durable subscription consumes them, and kill a broker on the way."""

from collections.abc import Callable

import trio

from clients.cli.demo.flights import Flights
from clients.cli.demo.tally import Tally
from clients.python.client import Client, connect
from clients.python.errors import BrokerError
from clients.python.messages import MessageId

SUBSCRIPTION = "demo"
BATCH_MESSAGES_MAX = 1000
DRAIN_TIMEOUT_S = 120.0


async def run_traffic(
    service_url: str, topic: str, flights: Flights, tally: Tally, kill: Callable[[], None]
) -> None:
    """Return when every row is acknowledged and delivered.  `kill` is called at half of the rows.

    Raises trio.TooSlowError if it does not come to an end.
    """
    start = trio.current_time()
    async with connect(service_url) as client, trio.open_nursery() as nursery:
        consuming = await nursery.start(_consume, client, topic, tally)
        await _produce(client, topic, flights, tally, kill, start)
        with trio.fail_after(DRAIN_TIMEOUT_S):
            await consuming.wait()
        nursery.cancel_scope.cancel()


async def _produce(
    client: Client,
    topic: str,
    flights: Flights,
    tally: Tally,
    kill: Callable[[], None],
    start: float,
) -> None:
    async with await client.create_producer(topic, compression="lz4") as producer:
        kill_at = len(flights.messages) // 2

        def acknowledged(row: int) -> Callable[[MessageId | None, BrokerError | None], None]:
            def note(_: MessageId | None, error: BrokerError | None) -> None:
                if error is None:
                    tally.note_acknowledged(row, trio.current_time() - start)

            return note

        for row, (data, carrier) in enumerate(zip(flights.messages, flights.carriers, strict=True)):
            producer.send_nowait(data, key=carrier, on_result=acknowledged(row))
            tally.sent += 1
            if row == kill_at:
                tally.killed_at_s = trio.current_time() - start
                kill()
            if row % BATCH_MESSAGES_MAX == 0:
                await producer.wait_room()
        await producer.flush()


async def _consume(
    client: Client,
    topic: str,
    tally: Tally,
    task_status: trio.TaskStatus[trio.Event],
) -> None:
    """Consume in order (failover), acknowledge each message; the event says: all rows are here."""
    done = trio.Event()
    async with await client.subscribe(
        topic, SUBSCRIPTION, type="failover", initial_position="earliest"
    ) as consumer:
        task_status.started(done)
        while True:
            batch = await consumer.receive_batch(BATCH_MESSAGES_MAX)
            for message in batch:
                row = int(message.data.partition(b",")[0])
                tally.note_delivered(row, message.message_id.partition)
            await consumer.ack(batch)
            if tally.delivered >= tally.rows:
                done.set()
