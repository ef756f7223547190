"""The kill matrix: real processes are killed, stopped and paused under traffic; nothing is lost.

Every test repairs what it broke, so that the next one finds a whole cluster.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError, Outcome
from daybook.clients.python.limits import ClientLimits
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.standalone import admin_of, order, owner_of, part, pids
from tests.real.traffic import PATIENCE_S, Traffic, open_traffic

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("faults")]

STILL_S = 2.0  # seconds without acknowledgements where none may come
ROLL_ENTRIES = 50_000
PATIENT = ClientLimits(keep_alive_s=600, keep_alive_waiting_s=600, request_timeout_s=600)


@asynccontextmanager
async def down(cluster: StandaloneProcess, *names: str) -> AsyncIterator[None]:
    """Kill these services, and start them again at the end of the block."""
    await order(cluster, "kill", *names)
    try:
        yield
    finally:
        await order(cluster, "start", *names)


async def come_to_a_standstill(traffic: Traffic) -> None:
    """Wait until earlier confirmations have arrived, and check that no others come."""
    with trio.fail_after(PATIENCE_S):
        while True:
            before = traffic.acknowledged
            await trio.sleep(STILL_S)
            if traffic.acknowledged == before:
                return


def other_than(owner: str) -> str:
    return "broker-2" if owner == "broker-1" else "broker-1"


async def agree_on_the_owner(cluster: StandaloneProcess, topic: str, *urls: str) -> None:
    """Wait until the brokers at `urls` name the same owner.

    On a busy machine, sessions are lost, and the topic may move between two questions.
    """
    with trio.fail_after(PATIENCE_S):
        while True:
            if len({await owner_of(cluster, topic, asked=url) for url in urls}) == 1:
                return
            await trio.sleep(STILL_S)


@pytest.mark.parametrize(
    "which", ["owner", "other broker", "bookie-1", "bookie-2", "bookie-3", "zookeeper"]
)
async def test_any_one_part_is_killed(broken: StandaloneProcess, topic: str, which: str) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        owner = await owner_of(broken, topic)
        name = {"owner": owner, "other broker": other_than(owner)}.get(which, which)
        async with down(broken, name):
            await traffic.wait_acknowledged(500)
        await traffic.wait_acknowledged(500)
        await traffic.finish()
        assert (await owner_of(broken, topic) == owner) == (which != "owner")


async def test_with_two_of_three_bookies_dead_writes_wait_say_why_and_go_on(
    broken: StandaloneProcess, topic: str
) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        dead = ["bookie-1", "bookie-2"]
        await order(broken, "kill", *dead)
        await come_to_a_standstill(traffic)
        waiting_for = (await admin_of(broken).stats(topic))["waitingFor"]
        assert "2 bookies have to confirm" in waiting_for
        assert any(str(part(broken, name)["address"]) in waiting_for for name in dead)
        await order(broken, "start", "bookie-1")
        await traffic.wait_acknowledged(500)
        assert (await admin_of(broken).stats(topic))["waitingFor"] == ""
        await order(broken, "start", "bookie-2")
        await traffic.wait_acknowledged(500)
        await traffic.finish()


async def test_a_paused_owner_acknowledges_nothing_of_its_own_and_steps_down(
    broken: StandaloneProcess, topic: str
) -> None:
    """The owner is stopped for longer than its session.  This client stays with the owner: it sends
    into the connection, and the owner finds the messages when it wakes, and another owner in its
    place.
    """
    async with open_traffic(broken.service_url, topic, limits=PATIENT) as traffic:
        stale = await owner_of(broken, topic)
        await order(broken, "pause", stale)
        url = str(part(broken, other_than(stale))["service_url"])
        async with connect(url, limits=PATIENT) as client:
            await client.create_producer(topic)  # so that the topic is recovered and open there
        before, sent = traffic.acknowledged, traffic.history.sent
        assert await owner_of(broken, topic, asked=url) != stale
        await trio.sleep(1)  # seconds in which more messages are sent to the old owner
        assert traffic.acknowledged == before
        assert traffic.history.sent > sent
        await order(broken, "resume", stale)
        await traffic.wait_acknowledged(500)
        asked = str(part(broken, stale)["service_url"])
        await agree_on_the_owner(broken, topic, asked, url)
        await traffic.finish()


async def test_clients_leave_a_paused_owner(broken: StandaloneProcess, topic: str) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        stale = await owner_of(broken, topic)
        await order(broken, "pause", stale)
        await traffic.wait_acknowledged(200)
        await order(broken, "resume", stale)
        await traffic.wait_acknowledged(200)
        await traffic.finish()


async def test_with_a_bookie_dead_everything_new_is_possible(
    broken: StandaloneProcess, topic: str
) -> None:
    """A topic, a subscription, a roll and a takeover: none waits until the dead bookie is back."""
    async with down(broken, "bookie-3"), connect(broken.service_url) as client:
        with trio.fail_after(PATIENCE_S):
            producer = await client.create_producer(topic, batching=False)
            await producer.send(b"first")
            consumer = await client.subscribe(topic, "new", initial_position="earliest")
            await consumer.ack(await consumer.receive())
            await consumer.flush_acks()
        async with open_traffic(broken.service_url, f"{topic}-beside") as traffic:
            for _ in range(ROLL_ENTRIES):
                await producer.wait_room()
                producer.send_nowait(b"more")
            with trio.fail_after(PATIENCE_S):
                await producer.flush()
                while len((await admin_of(broken).internal_stats(topic))["ledgers"]) < 2:
                    await producer.send(b"the roll is under way")
            await traffic.finish()
        async with (
            open_traffic(broken.service_url, f"{topic}-moving") as traffic,
            down(broken, await owner_of(broken, f"{topic}-moving")),
        ):
            await traffic.wait_acknowledged(500)
            await traffic.finish()


async def test_zookeeper_is_gone_for_a_while(broken: StandaloneProcess, topic: str) -> None:
    """Producers and consumers go on; operations that need it wait for it; nothing crashes."""
    before = await pids(broken)
    async with open_traffic(broken.service_url, topic) as traffic, trio.open_nursery() as nursery:
        await order(broken, "stop", "zookeeper")
        started = trio.current_time()

        async def use_a_new_topic() -> None:
            async with open_traffic(broken.service_url, f"{topic}-new", limits=PATIENT) as other:
                await other.finish()

        nursery.start_soon(use_a_new_topic)
        while trio.current_time() - started < 20:
            await traffic.wait_acknowledged(100)
        await order(broken, "start", "zookeeper")
        await traffic.wait_acknowledged(500)
        await traffic.finish()
        assert traffic.history.confirmed
    after = await pids(broken)
    assert {**after, "zookeeper": 0} == {**before, "zookeeper": 0}


async def test_what_was_acknowledged_with_a_receipt_never_comes_again(
    broken: StandaloneProcess, topic: str
) -> None:
    """The owner dies; all messages that were not acknowledged come again."""
    async with connect(broken.service_url) as client:
        consumer = await client.subscribe(
            topic, "s", type="shared", initial_position="earliest", ack_receipts=True
        )
        async with await client.create_producer(topic, batch_messages_max=7) as producer:
            for number in range(500):
                producer.send_nowait(b"%d" % number)
            await producer.flush()
        messages = [await consumer.receive() for _ in range(500)]
        await consumer.ack([message for message in messages if int(message.data or b"") % 3])
        async with down(broken, await owner_of(broken, topic)):
            with trio.fail_after(PATIENCE_S):
                again = sorted([int((await consumer.receive()).data or b"") for _ in range(167)])
            assert again == list(range(0, 500, 3))
            with trio.move_on_after(1):
                late = await consumer.receive()
                raise AssertionError(f"{late.data!r} came again")


async def test_a_send_that_runs_out_of_time_says_that_it_may_be_stored(
    broken: StandaloneProcess, topic: str
) -> None:
    async with (
        connect(broken.service_url) as client,
        await client.create_producer(topic, send_timeout_s=None) as patient,
        await client.create_producer(topic, send_timeout_s=1) as producer,
    ):
        await patient.send(b"0")
        async with down(broken, "bookie-1", "bookie-2"):
            with pytest.raises(BrokerError) as caught:
                await producer.send(b"1")
            assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_send_that_no_broker_took_says_that_it_is_not_stored(
    broken: StandaloneProcess, topic: str
) -> None:
    async with (
        connect(broken.service_url) as client,
        await client.create_producer(topic, send_timeout_s=None) as patient,
        await client.create_producer(topic, send_timeout_s=1) as producer,
    ):
        await patient.send(b"0")
        async with down(broken, "broker-1", "broker-2", "broker-3"):
            with trio.fail_after(PATIENCE_S):
                while producer.connected:  # noqa: ASYNC110  it is not told to anybody
                    await trio.sleep(0.01)
            with pytest.raises(BrokerError) as caught:
                await producer.send(b"1")
            assert caught.value.outcome is Outcome.NOT_APPLIED
        await patient.send(b"2")
        async with await client.create_reader(topic, start="earliest") as reader:
            assert [(await reader.receive()).data for _ in range(2)] == [b"0", b"2"]


async def test_twenty_takeovers_in_a_row_lose_nothing(
    broken: StandaloneProcess, topic: str
) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                owner = await owner_of(broken, topic)
                await order(broken, "kill", owner)
                nursery.start_soon(order, broken, "start", owner)
                await traffic.wait_acknowledged(200)
        await traffic.finish()
