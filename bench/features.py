"""Measures what a feature costs: the same work without it and with it, in turns, in one run.

The machine's speed changes from minute to minute, so only the ratios of one run count.
"""

from collections.abc import Awaitable, Callable
from statistics import median

import trio

from bench.cases import BATCH_BYTES, Figure, Rate, produce
from daybook.clients.python.admin import Admin
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess

ROUNDS = 3
_PLAIN, _DEDUPLICATED = "bench-plain", "bench-deduplicated"
_MEASURE_S = 4.0
_ALONE_MESSAGES = 20_000
_ALONE_PENDING = 50


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


CASES = {"deduplication": deduplication}
