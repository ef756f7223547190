"""The client and topics with deduplication: our broker, over a log in memory."""

from trio.testing import MockClock

from daybook.clients.python.limits import ClientLimits
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import Cluster
from tests.harness.fake_log import FakeLog

TOPIC = "persistent://public/default/t"
QUICK = ClientLimits(backoff_initial_s=0.01, backoff_max_s=0.05)


def deduplicate(cluster: Cluster) -> None:
    cluster.broker.policies.deduplication = True


async def test_a_takeover_duplicates_nothing(autojump_clock: MockClock) -> None:
    """Entries that the old owner stored without a receipt are sent again, and not stored again."""
    async with real_broker() as cluster:
        deduplicate(cluster)
        async with client_of(cluster, "client", QUICK) as client:
            producer = await client.create_producer("t", batch_messages_max=10)
            log = cluster.broker.log(TOPIC)
            log.held = True
            for n in range(100):
                producer.send_nowait(b"%d" % n)
            log.release(4)
            kept = log._pending[:3]
            log.entries += [data for data, _ in kept]  # Recovery keeps them.
            log.fence()
            await producer.flush()
            reader = await client.create_reader("t", start="earliest")
            found = [(await reader.receive()).data for _ in range(100)]
            assert found == [b"%d" % n for n in range(100)]
            assert (await client.offsets("t")).next == 100


async def test_a_producer_goes_on_behind_what_is_stored_under_its_name(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster:
        deduplicate(cluster)
        async with client_of(cluster, "client") as client:
            async with await client.create_producer("t", name="app") as producer:
                for _ in range(3):
                    await producer.send(b"x")
            producer = await client.create_producer("t", name="app")
            assert producer.last_sequence_id == 2
            assert not (await producer.send(b"y")).stored_before
            assert (await client.offsets("t")).next == 4


async def test_an_application_that_starts_again_repeats_what_it_may_have_sent(
    autojump_clock: MockClock,
) -> None:
    """Its batches begin elsewhere than before, and none spans what is stored and what is not."""
    async with real_broker() as cluster:
        deduplicate(cluster)
        async with client_of(cluster, "client") as client:
            async with await client.create_producer("t", name="app") as producer:
                for n in range(10):
                    producer.send_nowait(b"%d" % n, sequence_id=n)
            log = cluster.broker.log(TOPIC)
            assert isinstance(log, FakeLog)
            before: dict[int, bool] = {}
            producer = await client.create_producer("t", name="app", initial_sequence_id=4)
            for n in range(4, 20):
                producer.send_nowait(
                    b"%d" % n,
                    sequence_id=n,
                    on_result=lambda place, error, n=n: before.update(  # type: ignore[misc]
                        {n: place is not None and place.stored_before}
                    ),
                )
            await producer.flush()
            assert before == {n: n < 10 for n in range(4, 20)}
            reader = await client.create_reader("t", start="earliest")
            assert [(await reader.receive()).data for _ in range(20)] == [
                b"%d" % n for n in range(20)
            ]
            assert (await client.offsets("t")).next == 20


async def test_plain_messages_that_are_repeated_span_nothing_either(
    autojump_clock: MockClock,
) -> None:
    """Messages without ids of their own take a shorter way into their batch."""
    async with real_broker() as cluster:
        deduplicate(cluster)
        async with client_of(cluster, "client") as client:
            async with await client.create_producer("t", name="app") as producer:
                for n in range(10):
                    producer.send_nowait(b"%d" % n)
            producer = await client.create_producer("t", name="app", initial_sequence_id=4)
            for n in range(4, 20):
                producer.send_nowait(b"%d" % n)
            await producer.flush()
            reader = await client.create_reader("t", start="earliest")
            found = [(await reader.receive()).data for _ in range(20)]
            assert found == [b"%d" % n for n in range(20)]
            assert (await client.offsets("t")).next == 20


async def test_without_deduplication_nothing_was_stored_before(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client") as client:
        producer = await client.create_producer("t")
        assert not (await producer.send(b"x")).stored_before
