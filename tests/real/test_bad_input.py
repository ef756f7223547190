"""Hostile peers at the ports of real processes: they are cut off, and other clients do not notice.

Beside each of them ordinary traffic goes through the same broker and the same bookies; it must not
stand still, and the memory of the attacked process is checked all the time.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.standalone import admin_of, owner_of, part, resident_bytes
from tests.real import hostile
from tests.real.hostile import Attack, Target
from tests.real.traffic import open_traffic

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

MB = 1 << 20
LOOK_S = 0.02
# A host may hold 256 MiB of arenas, 64 MiB of entries to be read, and the objects around them.
GROWTH_MAX_BYTES = 450 * MB


@asynccontextmanager
async def bystanders(
    cluster: StandaloneProcess, topic: str, victim: dict[str, Any]
) -> AsyncIterator[None]:
    """Run traffic that must not notice the attack on the victim in the block."""
    pid = int(victim["pid"])
    before = most = resident_bytes(pid)

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, resident_bytes(pid))
            await trio.sleep(LOOK_S)

    async with open_traffic(cluster.service_url, topic) as traffic, trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield
        await traffic.wait_acknowledged(100)
        nursery.cancel_scope.cancel()
        await traffic.finish()
    assert most - before < GROWTH_MAX_BYTES


async def aim(cluster: StandaloneProcess, topic: str, kind: str) -> tuple[dict[str, Any], Target]:
    """Return the process that serves `topic`, or a bookie that has a copy of it; and its port."""
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer(topic) as producer,
    ):
        await producer.send(random.Random(1).randbytes(MB))
        await producer.send(b"confirms the first")
    ledgers = (await admin_of(cluster).internal_stats(topic))["ledgers"]
    name = "bookie-1" if kind.startswith("bookie") else await owner_of(cluster, topic)
    victim = part(cluster, name)
    address = victim["address"]
    if kind.endswith("http"):
        address = victim["admin_url" if kind.startswith("broker") else "http_url"]
        kind = "http"
    port = int(address.rpartition(":")[2])
    return victim, Target(
        kind, port, f"persistent://public/default/{topic}", ledgers[0]["ledgerId"]
    )


@pytest.mark.parametrize("kind", ["broker", "bookie", "broker http", "bookie http"])
@pytest.mark.parametrize(
    "attack",
    [
        hostile.random_bytes,
        hostile.lengths_that_cannot_be,
        hostile.half_a_frame,
        hostile.large_frames_that_stall,
        hostile.a_flood_of_connections,
        hostile.unread_answers,
    ],
)
async def test_the_culprit_is_cut_and_others_go_on(
    cluster: StandaloneProcess, topic: str, kind: str, attack: Attack
) -> None:
    victim, target = await aim(cluster, f"{topic}-target", kind)
    async with bystanders(cluster, topic, victim):
        await attack(target)


async def test_a_flood_of_look_ups_is_answered_and_delays_nobody_for_long(
    cluster: StandaloneProcess, topic: str
) -> None:
    """A second connection to the same broker waits for a few of the look-ups, not for all."""
    victim, target = await aim(cluster, f"{topic}-target", "broker")
    done = trio.Event()
    took: list[float] = []

    async def flood() -> None:
        await hostile.a_flood_of_look_ups(target)
        done.set()

    async def look_up() -> None:
        async with connect(str(victim["service_url"])) as client:
            while not done.is_set():
                began = trio.current_time()
                await client.lookup(target.topic)
                took.append(trio.current_time() - began)

    async with bystanders(cluster, topic, victim):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            nursery.start_soon(look_up)
        lasted = trio.current_time() - began
    assert len(took) > 10
    assert sorted(took)[len(took) // 2] < lasted / 20


async def test_who_says_nothing_is_cut_in_time(cluster: StandaloneProcess, topic: str) -> None:
    """A bookie has more patience, which its own tests cover."""
    kinds = ["broker", "broker http", "bookie http"]
    aims = [await aim(cluster, f"{topic}-target", kind) for kind in kinds]
    async with (
        bystanders(cluster, topic, aims[0][0]),
        trio.open_nursery() as nursery,
    ):
        for _, target in aims:
            nursery.start_soon(hostile.silence, target)


async def test_who_never_reads_messages_gets_no_more_than_fits(
    cluster: StandaloneProcess, topic: str
) -> None:
    victim, target = await aim(cluster, f"{topic}-target", "broker")
    data = random.Random(1).randbytes(MB // 4)
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer(f"{topic}-target") as producer,
    ):
        for _ in range(600):
            await producer.wait_room()
            producer.send_nowait(data)
        await producer.flush()
    async with bystanders(cluster, topic, victim):
        await hostile.unread_messages(target)


async def test_who_never_reads_receipts_is_not_read_from(
    cluster: StandaloneProcess, topic: str
) -> None:
    victim, target = await aim(cluster, f"{topic}-target", "broker")
    async with bystanders(cluster, topic, victim):
        await hostile.unread_receipts(target)
