"""Planned hand-overs: how long a client waits while its topic moves to another broker.

hand_over         one topic moves 50 times between two brokers, while a client produces and another
                  one consumes
drain             one of two brokers with 1,000 topics stops; a client sends a message to each of
                  them every second, and a topic is silent while a message waits for its receipt
"""

from collections.abc import Awaitable, Callable

import msgspec
import trio

from bench.cases import Figure
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.protocol.bundles import Bundles
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.tcp import TcpNetwork
from daybook.wire.topics import TopicName

MOVES = 50
TOPICS = 1000
_PAUSE_S = 0.3  # between two moves
_CONTROL_S = 5.0  # the same is measured before the stop
_EVERY_S = 1.0  # each of the many topics gets a message in this time
_SLOWEST_MS = 300.0
_SILENT_MS = 1000.0


class _Pauses:
    """The longest time between two receipts, and the errors, of one producer."""

    def __init__(self) -> None:
        self.last = trio.current_time()
        self.longest_s = 0.0
        self.receipts = 0
        self.errors = 0

    def begin(self) -> None:
        self.last, self.longest_s = trio.current_time(), 0.0

    def __call__(self, _: object, failure: object) -> None:
        now = trio.current_time()
        self.longest_s = max(self.longest_s, now - self.last)
        self.last = now
        self.receipts += failure is None
        self.errors += failure is not None


class _Waits:
    """The longest time that a message waited for its receipt, and the errors, of one producer."""

    def __init__(self) -> None:
        self.begin()
        self.errors = 0

    def begin(self) -> None:
        self.began, self.longest_s = trio.current_time(), 0.0

    def sent(self) -> Callable[[object, object], None]:
        """Return the callback for a message that is sent now."""
        at = trio.current_time()

        def done(_: object, failure: object) -> None:
            self.longest_s = max(self.longest_s, trio.current_time() - max(at, self.began))
            self.errors += failure is not None

        return done


class _Brokers:
    """The admin REST of both brokers."""

    def __init__(self, admin_url: str) -> None:
        self._url = admin_url
        self._calls = PeerCalls(PeerNetwork(TcpNetwork()))

    async def ids(self) -> list[str]:
        return msgspec.convert(
            await self._calls.call(self._url, "GET", "/admin/v2/brokers"), list[str]
        )

    async def owner(self, topic: TopicName) -> str:
        path = f"/lookup/v2/topic/persistent/{topic.namespace}/{topic.encoded}"
        found = msgspec.convert(await self._calls.call(self._url, "GET", path), dict[str, object])
        return str(found["httpUrl"]).removeprefix("http://")

    async def bundle(self, topic: TopicName) -> str:
        path = f"/admin/v2/namespaces/{topic.namespace}/bundles"
        found = msgspec.convert(await self._calls.call(self._url, "GET", path), dict[str, object])
        bundles = Bundles.parse(msgspec.convert(found["boundaries"], list[str]))
        return bundles.range_of(topic.bundle_hash)

    async def move(self, topic: TopicName, range_: str, source: str, target: str) -> None:
        path = f"/admin/v2/namespaces/{topic.namespace}/{range_}/unload"
        query = {"destinationBroker": target}
        await self._calls.call(f"http://{source}", "PUT", path, query=query)


async def hand_over(cluster: StandaloneProcess) -> list[Figure]:
    topic = TopicName.parse("hand-over")
    brokers, pauses, delivered = _Brokers(cluster.admin_url), _Pauses(), list[int]()
    slowest: list[float] = []
    async with (
        connect(cluster.service_url) as client,
        await client.subscribe(topic.full, "bench") as consumer,
        await client.create_producer(topic.full) as producer,
        trio.open_nursery() as nursery,
    ):

        async def receive() -> None:
            while True:
                message = await consumer.receive()
                await consumer.ack(message)
                delivered.append(1)

        async def send() -> None:
            while True:
                producer.send_nowait(b"x" * 1000, on_result=pauses)
                await trio.sleep(0.001)

        nursery.start_soon(receive)
        nursery.start_soon(send)
        await trio.sleep(2)
        range_ = await brokers.bundle(topic)
        for _ in range(MOVES):
            source = await brokers.owner(topic)
            (target,) = [each for each in await brokers.ids() if each != source]
            pauses.begin()
            await brokers.move(topic, range_, source, target)
            await trio.sleep(_PAUSE_S)
            slowest.append(pauses.longest_s * 1000)
        nursery.cancel_scope.cancel()
    ordered = sorted(slowest)
    return [
        Figure(
            f"hand-over of a topic, {MOVES} times under load: longest pause",
            ordered[-1],
            "ms",
            f"<= {_SLOWEST_MS:.0f}",
            ordered[-1] <= _SLOWEST_MS,
            f"median {ordered[len(ordered) // 2]:.0f} ms; {pauses.receipts} receipts,"
            f" {len(delivered)} deliveries",
        ),
        Figure("  errors at clients", pauses.errors, "", "0", not pauses.errors),
    ]


async def drain(cluster: StandaloneProcess) -> list[Figure]:
    pauses = [_Waits() for _ in range(TOPICS)]
    async with connect(cluster.service_url) as client, trio.open_nursery() as nursery:
        for start in range(0, TOPICS, 50):
            async with trio.open_nursery() as opening:
                for index in range(start, min(start + 50, TOPICS)):
                    opening.start_soon(_start, client, nursery, index, pauses[index])
        await trio.sleep(3)
        for each in pauses:
            each.begin()
        await trio.sleep(_CONTROL_S)
        usual = sorted(each.longest_s * 1000 for each in pauses)
        for each in pauses:
            each.begin()
        began = trio.current_time()
        await trio.to_thread.run_sync(cluster.local, "stop", "broker-2")
        took_s = trio.current_time() - began
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    silent = sorted(each.longest_s * 1000 for each in pauses)
    errors = sum(each.errors for each in pauses)
    over = sum(each > _SILENT_MS for each in silent)
    return [
        Figure(
            f"clean stop of one of two brokers with {TOPICS} topics: longest silence of a topic",
            silent[-1],
            "ms",
            f"<= {_SILENT_MS:.0f}",
            silent[-1] <= _SILENT_MS,
            f"median {silent[len(silent) // 2]:.0f} ms; {over} topics were silent for longer; the"
            f" stop took {took_s:.0f} s; in {_CONTROL_S:.0f} s without a stop: longest"
            f" {usual[-1]:.0f} ms, median {usual[len(usual) // 2]:.0f} ms",
        ),
        Figure("  errors at clients", errors, "", "0", not errors),
    ]


async def _start(client: Client, nursery: trio.Nursery, index: int, pauses: _Waits) -> None:
    producer = await client.create_producer(f"drain-{index}")

    async def send() -> None:
        await trio.sleep(index % 100 * _EVERY_S / 100)
        while True:
            producer.send_nowait(b"x" * 100, on_result=pauses.sent())
            await trio.sleep(_EVERY_S)

    nursery.start_soon(send)


CASES: dict[str, Callable[[StandaloneProcess], Awaitable[list[Figure]]]] = {
    "hand_over": hand_over,
    "drain": drain,
}
