"""Produce all rows while a durable subscription consumes them, and kill a broker meanwhile."""

from collections.abc import Awaitable, Callable

import trio

from daybook import BrokerError, Client, MessageId, connect
from examples.flights.flights import Flights
from examples.flights.tally import Tally

SUBSCRIPTION = "demo"
BATCH_MESSAGES_MAX = 1000
TIMEOUT_S = 600.0


async def run_traffic(
    service_url: str, topic: str, flights: Flights, tally: Tally, kill: Callable[[], Awaitable[str]]
) -> None:
    """Return when every row is acknowledged and delivered, or after `TIMEOUT_S`.

    `kill` is called once half of the rows are sent, and returns the name of the killed broker.
    """
    async with connect(service_url) as client, trio.open_nursery() as nursery:

        async def kill_now() -> None:
            tally.note_killed(await kill(), trio.current_time() - start)

        consuming = await nursery.start(_consume, client, topic, tally)
        start = trio.current_time()
        half = len(flights.messages) // 2
        with trio.move_on_after(TIMEOUT_S):
            await _produce(client, topic, flights, tally, start, half, kill_now, nursery)
            await consuming.wait()
        nursery.cancel_scope.cancel()


async def _produce(
    client: Client,
    topic: str,
    flights: Flights,
    tally: Tally,
    start: float,
    kill_at: int,
    kill: Callable[[], Awaitable[None]],
    nursery: trio.Nursery,
) -> None:
    def answered(row: int) -> Callable[[MessageId | None, BrokerError | None], None]:
        def note(message: MessageId | None, error: BrokerError | None) -> None:
            if message is None:
                tally.note_refused(row, str(error))
            else:
                tally.repeated += message.stored_before
                tally.note_acknowledged(row, message.partition, trio.current_time() - start)

        return note

    # No send timeout: a machine that stalls for a minute must not turn into refused rows.
    async with await client.create_producer(
        topic, compression="lz4", send_timeout_s=None
    ) as producer:
        for row, (data, carrier) in enumerate(zip(flights.messages, flights.carriers, strict=True)):
            producer.send_nowait(data, key=carrier, on_result=answered(row))
            tally.sent += 1
            if row == kill_at:
                nursery.start_soon(kill)
            if row % BATCH_MESSAGES_MAX == 0:
                await producer.wait_room()
        await producer.flush()


async def _consume(
    client: Client,
    topic: str,
    tally: Tally,
    task_status: trio.TaskStatus[trio.Event],
) -> None:
    """Consume in order and acknowledge each message; set the event when all rows have arrived."""
    done = trio.Event()
    async with await client.subscribe(
        topic, SUBSCRIPTION, type="failover", initial_position="earliest"
    ) as consumer:
        task_status.started(done)
        while True:
            batch = await consumer.receive_batch(BATCH_MESSAGES_MAX)
            for message in batch:
                row = int((message.data or b"").partition(b",")[0])
                tally.note_delivered(row, message.message_id.partition)
            await consumer.ack(batch)
            if tally.delivered >= tally.rows:
                done.set()
