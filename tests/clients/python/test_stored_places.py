"""A reader gets entries as they are stored, and a client learns where the messages are."""

import trio
from trio.testing import MockClock

import daybook
from daybook.clients.python.message_id import Offset
from daybook.wire.batch import parse_metadata, split_broker_metadata
from daybook.wire.topics import TopicName
from tests.clients.python.fake_broker import fake_cluster
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import TOPIC


async def test_entries_come_whole_and_all_of_them(autojump_clock: MockClock) -> None:
    """More messages than the reader lets the broker send ahead: it gives the permits back."""
    async with real_broker() as cluster, client_of(cluster, "client") as client:
        async with await client.create_producer("t", batch_messages_max=7) as producer:
            for number in range(500):
                producer.send_nowait(b"%d" % number)
            await producer.flush()
        log = cluster.broker.log()
        async with await client.create_reader(
            "t", start=Offset(20), receiver_queue_size=20
        ) as reader:
            got: list[bytes] = []
            with trio.fail_after(60):
                while len(got) < len([e for e in log.entries if last_of(e) >= 20]):
                    got += [each.data for each in await reader.receive_entries()]
        assert got == [entry for entry in log.entries if last_of(entry) >= 20]


def last_of(entry: bytes) -> int:
    last = split_broker_metadata(memoryview(entry))[1]
    assert last is not None
    return last


async def test_a_terminated_topic_has_no_entries_behind_the_last(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client") as client:
        async with await client.create_producer("t") as producer:
            await producer.send(b"last")
        async with await client.create_reader("t", start="earliest") as reader:
            (entry,) = await reader.receive_entries()
            payload = split_broker_metadata(memoryview(entry.data))[2]
            assert parse_metadata(payload)[0].producer_name
            topic = await cluster.broker.topics.get(TopicName.parse(TOPIC), create=False)
            await topic.terminate()
            with trio.fail_after(60):
                assert await reader.receive_entries() == []


async def test_sealed_ledgers_have_offsets_and_the_address_is_told(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client") as client:
        async with await client.create_producer("t") as producer:
            cluster.broker.log().ledger_entries = 2
            for number in range(5):
                await producer.send(b"%d" % number)
        (found,) = await client.ledgers("t")
        assert found.url == "zk://zookeeper:2181/ledgers"
        assert (found.held.first, found.held.next) == (0, 5)
        assert [(e.ledger_id, e.first, e.next, e.entries) for e in found.sealed] == [
            (5, 0, 2, 2),
            (6, 2, 4, 2),
        ]
        assert await client.ledgers_of(["t"]) == [found]
        assert await client.ledgers_of([]) == []


async def test_a_broker_that_does_not_know_the_question_tells_no_ledgers() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        async with await client.create_producer("t") as producer:
            await producer.send(b"x")
        (found,) = await client.ledgers("t")
        assert (found.url, found.sealed) == (None, ())
