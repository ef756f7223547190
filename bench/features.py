"""Measures what a feature costs: the same work without it and with it, in turns, in one run.

The machine's speed changes from minute to minute, so only the ratios of one run count.
"""

import re
from collections.abc import Awaitable, Callable
from statistics import median

import trio

from bench.cases import BATCH_BYTES, Figure, Rate, produce
from daybook.clients.python.admin import Admin
from daybook.clients.python.arguments import SubscriptionTypeName
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.http import http_request
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.tcp import TcpNetwork

ROUNDS = 3
_PLAIN, _DEDUPLICATED = "bench-plain", "bench-deduplicated"
_MEASURE_S = 4.0
_KEYED, _KEYS, _CONSUMERS, _KEYED_MESSAGES = "bench-keyed", 1000, 100, 200_000
_ALONE_MESSAGES = 20_000
_ALONE_PENDING = 50
_TAILING, _TAILING_RATE, _TAILING_S = 10, 1_000, 10.0
_READS = re.compile(r"^daybook_broker_bookie_reads_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)


async def deduplication(cluster: StandaloneProcess) -> list[Figure]:
    """Compare producing to a topic without deduplication and to one with it."""
    admin = Admin(cluster.admin_url)
    await admin.create_topic(_DEDUPLICATED)
    await admin.set_topic_deduplication(_DEDUPLICATED, True)
    batched = await _ratio(cluster, _batched)
    alone = await _ratio(cluster, _alone)
    return [
        Figure("deduplication: 100 B, batched", batched, "", ">= 0.95", batched >= 0.95, _SHARE),
        Figure("deduplication: 1 KB, alone", alone, "", ">= 0.95", alone >= 0.95, _SHARE),
    ]


_SHARE = "of the rate without it"


async def _ratio(
    cluster: StandaloneProcess, measure: Callable[[Client, str], Awaitable[float]]
) -> float:
    """Return the median rate with deduplication over the median rate without it."""
    rates: dict[str, list[float]] = {_PLAIN: [], _DEDUPLICATED: []}
    async with connect(cluster.service_url) as client:
        for number in range(ROUNDS):
            # The order changes, because the first of two is slower on a cold machine.
            for topic in sorted(rates, reverse=bool(number % 2)):
                rates[topic].append(await measure(client, topic))
    return median(rates[_DEDUPLICATED]) / median(rates[_PLAIN])


async def _batched(client: Client, topic: str) -> float:
    return await produce(client, topic, 100, BATCH_BYTES, _MEASURE_S)


async def _alone(client: Client, topic: str) -> float:
    """Return the messages a second of a producer that does not batch."""
    rate = Rate()
    data = bytes(1024)
    async with await client.create_producer(
        topic, batching=False, pending_bytes_max=_ALONE_PENDING * len(data)
    ) as producer:
        started = trio.current_time()
        for _ in range(_ALONE_MESSAGES):
            if not producer.has_room:
                await producer.wait_room()
            producer.send_nowait(data, on_result=rate)
        await producer.flush()
        elapsed = trio.current_time() - started
    assert not rate.failures
    return rate.count / elapsed


async def key_shared(cluster: StandaloneProcess) -> list[Figure]:
    """Compare 100 key_shared consumers with 100 shared ones: the same backlog, the same keys."""
    rates: dict[SubscriptionTypeName, list[float]] = {"shared": [], "key_shared": []}
    async with connect(cluster.service_url) as client:
        await _fill_keys(client)
        for number in range(ROUNDS):
            for kind in sorted(rates, reverse=bool(number % 2)):
                rates[kind].append(await _drain(client, kind, f"{kind}-{number}"))
    ratio = median(rates["key_shared"]) / median(rates["shared"])
    note = f"of shared, {median(rates['shared']):,.0f} msg/s"
    return [Figure("key_shared, 100 consumers", ratio, "", ">= 0.7", ratio >= 0.7, note)]


async def _fill_keys(client: Client) -> None:
    async with await client.create_producer(_KEYED, batching="by_key") as producer:
        for number in range(_KEYED_MESSAGES):
            if not producer.has_room:
                await producer.wait_room()
            producer.send_nowait(bytes(100), key=f"key-{number * 7919 % _KEYS}")
        await producer.flush()


async def _drain(client: Client, kind: SubscriptionTypeName, name: str) -> float:
    """Return the messages a second that many consumers of a new subscription receive."""
    consumers = [
        await client.subscribe(_KEYED, name, type=kind, initial_position="earliest")
        for _ in range(_CONSUMERS)
    ]
    received = 0

    async def drain(consumer: Consumer, scope: trio.CancelScope) -> None:
        nonlocal received
        while True:
            messages = await consumer.receive_batch()
            consumer.ack_nowait(messages)
            received += len(messages)
            if received >= _KEYED_MESSAGES:
                scope.cancel()

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for consumer in consumers:
            nursery.start_soon(drain, consumer, nursery.cancel_scope)
    elapsed = trio.current_time() - started
    for consumer in consumers:
        await consumer.aclose()
    return _KEYED_MESSAGES / elapsed


async def tailing(cluster: StandaloneProcess) -> list[Figure]:
    """Compare the reads at bookies of ten subscriptions that keep up with those of one."""
    found: list[Figure] = []
    reads_of_one = 0
    for count in (1, _TAILING):
        before = await _bookie_reads(cluster)
        async with connect(cluster.service_url) as client:
            rate = await _follow(client, f"bench-tailing-{count}", count)
        reads = await _bookie_reads(cluster) - before
        if count == 1:
            reads_of_one = reads
        note = f"{_TAILING_RATE * count:,} msg/s asked for, {rate:,.0f} msg/s received"
        good = count == 1 or reads <= reads_of_one
        target = "" if count == 1 else "<= those of one"
        name = f"reads at bookies of {count} tailing subscription{'s' * (count > 1)}"
        found.append(Figure(name, reads, "reads", target, good, note))
    return found


async def _follow(client: Client, topic: str, count: int) -> float:
    """Return the messages a second that all tailing subscriptions together receive."""
    consumers = [await client.subscribe(topic, f"s{number}") for number in range(count)]
    messages = int(_TAILING_RATE * _TAILING_S)

    async def receive(consumer: Consumer) -> None:
        left = messages
        while left:
            found = await consumer.receive_batch()
            consumer.ack_nowait(found)
            left -= len(found)

    data = bytes(1024)
    async with await client.create_producer(topic) as producer, trio.open_nursery() as nursery:
        for consumer in consumers:
            nursery.start_soon(receive, consumer)
        started = trio.current_time()
        for number in range(messages):
            await trio.sleep_until(started + number / _TAILING_RATE)
            producer.send_nowait(data)
    elapsed = trio.current_time() - started
    for consumer in consumers:
        await consumer.aclose()
    return messages * count / elapsed


async def _bookie_reads(cluster: StandaloneProcess) -> int:
    """Return how often the brokers have read entries at bookies."""
    total = 0
    for broker in cluster.ready["brokers"]:
        host, _, port = str(broker["admin_url"]).removeprefix("http://").rpartition(":")
        answer = await http_request(
            TcpNetwork(), host, int(port), "GET", "/metrics", None, timeout_s=60.0
        )
        (count,) = _READS.findall(answer.body.decode())
        total += int(float(count))
    return total


CASES = {"deduplication": deduplication, "key_shared": key_shared, "tailing": tailing}
