"""The kill matrix: real processes are killed, stopped and paused under traffic; nothing is lost."""

from collections.abc import Iterator

import pytest
import trio

from clients.python.client import connect
from clients.python.errors import BrokerError, Outcome
from clients.testing.standalone import StandaloneProcess
from tests.real.traffic import open_traffic

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("faults")]


@pytest.fixture(scope="module")
def broken() -> Iterator[StandaloneProcess]:
    """A cluster that tests break, and mend before they end."""
    with StandaloneProcess() as running:
        yield running


async def local(cluster: StandaloneProcess, command: str, name: str) -> None:
    await trio.to_thread.run_sync(cluster.local, command, name)


async def owner_of(cluster: StandaloneProcess, topic: str) -> str:
    async with connect(cluster.service_url) as client:
        url = await client.lookup(topic)
    (name,) = [b["name"] for b in cluster.ready["brokers"] if b["service_url"] == url]
    return str(name)


async def test_the_owner_is_killed(broken: StandaloneProcess, topic: str) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        name = await owner_of(broken, topic)
        await local(broken, "kill", name)
        await traffic.wait_acknowledged(50)
        await local(broken, "start", name)
        await traffic.wait_acknowledged(50)
        await traffic.finish()


@pytest.mark.parametrize("name", ["bookie-1", "bookie-2", "zookeeper"])
async def test_another_part_is_killed(broken: StandaloneProcess, topic: str, name: str) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        await local(broken, "kill", name)
        await traffic.wait_acknowledged(100)
        await local(broken, "start", name)
        await traffic.wait_acknowledged(100)
        await traffic.finish()


async def test_with_two_of_three_bookies_dead_writes_wait_and_go_on(
    broken: StandaloneProcess, topic: str
) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        await local(broken, "kill", "bookie-1")
        await local(broken, "kill", "bookie-2")
        await trio.sleep(2)  # the time in which nothing may be acknowledged
        before = len(traffic.acknowledged)
        await trio.sleep(2)
        assert len(traffic.acknowledged) == before
        await local(broken, "start", "bookie-1")
        await traffic.wait_acknowledged(100)
        await local(broken, "start", "bookie-2")
        await traffic.wait_acknowledged(50)
        await traffic.finish()


async def test_a_paused_owner_steps_down_when_it_wakes(
    broken: StandaloneProcess, topic: str
) -> None:
    """SIGSTOP for longer than the session: the stale owner acknowledges nothing of its own."""
    async with open_traffic(broken.service_url, topic) as traffic:
        name = await owner_of(broken, topic)
        await local(broken, "pause", name)
        await traffic.wait_acknowledged(50)
        await local(broken, "resume", name)
        await traffic.wait_acknowledged(100)
        assert await owner_of(broken, topic) != name
        await traffic.finish()


async def test_with_a_bookie_dead_everything_new_takes_ordinary_time(
    broken: StandaloneProcess, topic: str
) -> None:
    """New topic, new subscription, takeover: none waits for the dead one."""
    await local(broken, "kill", "bookie-3")
    try:
        with trio.fail_after(10):
            async with open_traffic(broken.service_url, topic) as traffic:
                name = await owner_of(broken, topic)
                await local(broken, "kill", name)
                await traffic.wait_acknowledged(50)
                await local(broken, "start", name)
                await traffic.finish()
    finally:
        await local(broken, "start", "bookie-3")


async def test_zookeeper_is_gone_for_a_while(broken: StandaloneProcess, topic: str) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        await local(broken, "stop", "zookeeper")
        started = trio.current_time()
        while trio.current_time() - started < 20:
            await traffic.wait_acknowledged(100, timeout_s=5)
        await local(broken, "start", "zookeeper")
        await traffic.wait_acknowledged(200)
        await traffic.finish()
        async with open_traffic(broken.service_url, f"{topic}-after") as after:
            await after.finish()


async def test_what_was_acknowledged_with_a_receipt_never_comes_again(
    broken: StandaloneProcess, topic: str
) -> None:
    """Through the death of the owner; what was not acknowledged comes again, all of it."""
    async with connect(broken.service_url) as client:
        consumer = await client.subscribe(
            topic, "s", type="shared", initial_position="earliest", ack_receipts=True
        )
        async with await client.create_producer(topic, batch_messages_max=7) as producer:
            for number in range(500):
                producer.send_nowait(b"%d" % number)
            await producer.flush()
        messages = [await consumer.receive() for _ in range(500)]
        done = [message for message in messages if int(message.data) % 3]
        await consumer.ack(done)
        name = await owner_of(broken, topic)
        await local(broken, "kill", name)
        with trio.fail_after(60):
            again = sorted([int((await consumer.receive()).data) for _ in range(167)])
        assert again == list(range(0, 500, 3))
        with trio.move_on_after(1):
            late = await consumer.receive()
            raise AssertionError(f"{late.data!r} came again")
        await local(broken, "start", name)


async def test_a_send_that_runs_out_of_time_says_that_it_may_be_stored(
    broken: StandaloneProcess, topic: str
) -> None:
    async with (
        connect(broken.service_url) as client,
        await client.create_producer(topic, send_timeout_s=2) as producer,
    ):
        await producer.send(b"0")
        for name in ("bookie-1", "bookie-2"):
            await local(broken, "kill", name)
        try:
            with pytest.raises(BrokerError) as caught:
                await producer.send(b"1")
            assert caught.value.outcome is Outcome.UNKNOWN
        finally:
            for name in ("bookie-1", "bookie-2"):
                await local(broken, "start", name)


async def test_twenty_takeovers_in_a_row_lose_nothing(
    broken: StandaloneProcess, topic: str
) -> None:
    async with open_traffic(broken.service_url, topic) as traffic:
        for _ in range(20):
            name = await owner_of(broken, topic)
            await local(broken, "kill", name)
            await traffic.wait_acknowledged(20)
            await local(broken, "start", name)
        await traffic.finish()
        assert max(traffic.pauses_s) < 30
