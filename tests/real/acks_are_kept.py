"""Acknowledgements in random order survive an unload, a clean stop and a kill of the broker.

    python -m tests.real.acks_are_kept --messages 1500000

Two thirds of the messages, each an entry of its own, are acknowledged one by one in random order:
the rest are holes.  Then the topic is unloaded, its broker is stopped in order, and the next one is
killed.  Each time a new consumer reads everything that is not acknowledged, and the program counts
the messages that come although they were acknowledged.  It must be none, except after the kill:
there, acknowledgements of the last flush interval may be lost.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.message_id import MessageId
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.standalone import admin_of, order, owner_of

TOPIC = "persistent://public/default/kept"
_ACKS = 1_000  # in one call
_FLUSHED = 50  # calls, of which the broker confirms all acknowledgements
_QUIET_S = 8.0
_LAST_ACKS = 5_000

Place = tuple[int, int]


def place(message_id: MessageId) -> Place:
    return message_id.ledger_id, message_id.entry_id


async def produce(client: Client, count: int) -> None:
    async with await client.create_producer(TOPIC, batching=False, send_timeout_s=None) as producer:
        for number in range(count):
            if not producer.has_room:
                await producer.wait_room()
            producer.send_nowait(b"%d" % number)
        await producer.flush()


async def receive(client: Client, count: int) -> list[MessageId]:
    """Receive `count` messages, and whatever comes soon after them."""
    found: list[MessageId] = []
    async with await client.subscribe(TOPIC, "sub", initial_position="earliest") as consumer:
        while True:
            patience_s = 120.0 if len(found) < count else _QUIET_S
            with trio.move_on_after(patience_s) as scope:
                found += [each.message_id for each in await consumer.receive_batch()]
            if scope.cancelled_caught:
                return found


async def acknowledge(
    client: Client, ids: Sequence[MessageId], *, pause_s: float = 0.0, flush: bool = True
) -> None:
    """Acknowledge these; with `flush`, until the broker has confirmed all of them."""
    consumer = await client.subscribe(TOPIC, "sub")
    for number, first in enumerate(range(0, len(ids), _ACKS)):
        await consumer.ack(ids[first : first + _ACKS])
        await trio.sleep(pause_s)
        if flush and number % _FLUSHED == _FLUSHED - 1:  # The client keeps a bounded number.
            await consumer.flush_acks()
    if flush:
        await consumer.flush_acks()
        await consumer.aclose()
    else:
        consumer.abandon()


class Run:
    def __init__(self, cluster: StandaloneProcess, messages: int) -> None:
        self.cluster = cluster
        self.messages = messages
        self.left: dict[Place, MessageId] = {}  # not acknowledged
        self.wrong = 0
        self._since_s = time.monotonic()

    def say(self, text: str) -> None:
        now_s = time.monotonic()
        print(f"{now_s - self._since_s:7.1f} s  {text}", flush=True)
        self._since_s = now_s

    async def check(self, client: Client, what: str, doubtful: frozenset[Place]) -> None:
        """Count what comes although it was acknowledged, and what does not come."""
        stats = await admin_of(self.cluster).stats(TOPIC)
        backlog = stats["subscriptions"]["sub"]
        came = {place(each): each for each in await receive(client, len(self.left))}
        again = set(came).difference(self.left)
        lost = set(self.left).difference(came)
        self.say(
            f"{what}: {len(came)} messages came, {len(again - doubtful)} of them acknowledged"
            f" before, {len(again & doubtful)} acknowledged in the last moment; {len(lost)} did not"
            f" come; the backlog said {backlog['msgBacklog']} (exact: {backlog['backlogExact']})"
        )
        self.wrong += len(again - doubtful) + len(lost)
        if backlog["msgBacklog"] != len(came) or not backlog["backlogExact"]:
            self.wrong += 1
        for each in again:
            self.left[each] = came[each]

    async def play(self) -> None:
        rng = random.Random(1)
        async with connect(self.cluster.service_url) as client:
            async with await client.subscribe(TOPIC, "sub", initial_position="earliest"):
                pass
            await produce(client, self.messages)
            self.say(f"{self.messages} messages are stored, each in its own entry")
            ids = await receive(client, self.messages)
            self.say(f"{len(ids)} were received")
            acked = [each for number, each in enumerate(ids) if number % 3]
            self.left = {place(each): each for n, each in enumerate(ids) if not n % 3}
            rng.shuffle(acked)
            await acknowledge(client, acked)
            self.say(f"{len(acked)} were acknowledged in random order: {len(self.left)} holes")
            await admin_of(self.cluster).unload_topic(TOPIC)
            await self.check(client, "after an unload", frozenset())
            broker = await owner_of(self.cluster, TOPIC)
            await order(self.cluster, "stop", broker)
            await self.check(client, "after a clean stop of the broker", frozenset())
            await order(self.cluster, "start", broker)
            more = rng.sample(sorted(self.left), 2 * _LAST_ACKS)
            early, late = more[:_LAST_ACKS], more[_LAST_ACKS:]
            await acknowledge(client, [self.left[each] for each in early])
            last = [self.left[each] for each in late]
            await acknowledge(client, last, pause_s=0.05, flush=False)
            broker = await owner_of(self.cluster, TOPIC)
            await order(self.cluster, "kill", broker)
            for each in more:
                del self.left[each]
            await self.check(client, "after a kill of the broker", frozenset(late))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_500_000)
    arguments = parser.parse_args()
    with StandaloneProcess(brokers=2) as cluster:
        run = Run(cluster, arguments.messages)
        trio.run(run.play)
    print("wrong:", run.wrong)
    sys.exit(1 if run.wrong else 0)


if __name__ == "__main__":
    main()
