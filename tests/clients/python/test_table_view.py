"""Table views, against a broker of ours over logs in memory."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from daybook.clients.python.client import Client
from daybook.clients.python.errors import ClosedError
from daybook.clients.python.table_view import TableView
from daybook.wire.topics import TopicName
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import TOPIC, Cluster


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[Cluster, Client]]:
    async with real_broker() as cluster, client_of(cluster, "client") as client:
        cluster.broker.logs.ledger_entries = 4
        yield cluster, client


async def put(client: Client, *messages: tuple[str | None, str], topic: str = TOPIC) -> None:
    async with await client.create_producer(topic) as producer:
        for key, value in messages:
            await producer.send(value.encode(), key=key)


async def compact(cluster: Cluster, topic: str = TOPIC) -> None:
    compaction = cluster.broker.topics.loaded[topic].compaction
    compaction.start()
    await compaction.wait_ended()
    assert compaction.status.value == "SUCCESS"


async def test_a_view_has_the_latest_value_of_each_key(autojump_clock: MockClock) -> None:
    async with connected() as (_, client):
        await put(client, ("a", "1"), ("b", "1"), ("a", "2"), (None, "x"), ("c", "1"), ("c", ""))
        async with await client.table_view(TOPIC) as view:
            assert dict(view) == {"a": b"2", "b": b"1"}
            assert "a" in view
            assert "c" not in view
            assert len(view) == 2
            await put(client, ("a", "3"), ("b", ""))
            await view.wait_caught_up()
            assert view.snapshot() == {"a": b"3"}
            assert repr(view) == f"<TableView of {TOPIC}, 1 keys>"


async def test_a_view_of_a_compacted_and_trimmed_topic_has_everything(
    autojump_clock: MockClock,
) -> None:
    async with connected() as (cluster, client):
        await put(client, ("a", "1"), ("b", "1"), ("a", "2"), ("b", ""), ("c", "1"))
        await compact(cluster)
        cluster.broker.log().trimmed = 4
        async with await client.table_view(TOPIC) as view:
            assert dict(view) == {"a": b"2", "c": b"1"}


async def test_a_view_of_an_empty_topic_is_empty(autojump_clock: MockClock) -> None:
    async with connected() as (_, client), await client.table_view(TOPIC) as view:
        assert not view


async def test_a_view_of_which_everything_was_removed_is_empty(
    autojump_clock: MockClock,
) -> None:
    async with connected() as (cluster, client):
        await put(client, ("a", "1"), ("a", ""))
        await compact(cluster)
        async with await client.table_view(TOPIC) as view:
            assert not view
            await put(client, ("b", "1"))
            await view.wait_caught_up()
            assert dict(view) == {"b": b"1"}


async def test_a_view_covers_all_partitions(autojump_clock: MockClock) -> None:
    async with connected() as (cluster, client):
        topic = "persistent://public/default/parts"
        cluster.broker.policies.partition_counts[topic] = 3
        messages = [(str(n), str(n)) for n in range(20)]
        await put(client, *messages, topic=topic)
        async with await client.table_view(topic) as view:
            assert dict(view) == {key: value.encode() for key, value in messages}


async def test_listeners_hear_of_each_change_once(autojump_clock: MockClock) -> None:
    async with connected() as (_, client):
        await put(client, ("a", "1"))
        async with await client.table_view(TOPIC) as view:
            heard: list[tuple[str, bytes | None]] = []
            also: list[str] = []

            def listen(key: str, value: bytes | None) -> None:
                heard.append((key, value))

            view.listen(listen, existing=True)
            view.listen(lambda key, _: also.append(key))
            await put(client, ("a", "2"), ("b", ""), ("a", ""), ("c", "1"))
            await view.wait_caught_up()
            assert heard == [("a", b"1"), ("a", b"2"), ("a", None), ("c", b"1")]
            assert also == ["a", "a", "c"]
            view.stop_listening(listen)
            await put(client, ("d", "1"))
            await view.wait_caught_up()
            assert len(heard) == 4
            assert also[-1] == "d"


async def test_the_error_of_a_listener_ends_the_view_and_is_raised(
    autojump_clock: MockClock,
) -> None:
    async with connected() as (_, client):
        view = await client.table_view(TOPIC)

        def fail(key: str, value: bytes | None) -> None:
            raise KeyError(key)

        view.listen(fail)
        await put(client, ("a", "1"))
        with pytest.raises(KeyError):
            await view.wait_caught_up()
        assert view.closed
        await put(client, ("a", "2"))  # The client goes on.


async def test_a_closed_view_keeps_what_it_has(autojump_clock: MockClock) -> None:
    async with connected() as (cluster, client):
        await put(client, ("a", "1"))
        view = await client.table_view(TOPIC)
        await view.aclose()
        assert dict(view) == {"a": b"1"}
        with pytest.raises(ClosedError):
            await view.wait_caught_up()
        await trio.sleep(1)
        assert not cluster.broker.topics.loaded[TOPIC].subscriptions.by_name


async def test_a_view_goes_on_after_a_takeover(autojump_clock: MockClock) -> None:
    async with connected() as (cluster, client):
        await put(client, ("a", "1"), ("b", "1"))
        async with await client.table_view(TOPIC) as view:
            await put(client, ("a", ""), ("b", "2"))
            await view.wait_caught_up()
            await lose(cluster)
            await put(client, ("c", "1"), ("b", ""))
            await compact(cluster)
            await put(client, ("d", "1"))
            await settled(view)
            assert dict(view) == {"c": b"1", "d": b"1"}


async def lose(cluster: Cluster) -> None:
    """Lose the topic, as if its broker had died."""
    bundle = cluster.broker.policies.known_bundle_of(TopicName.parse(TOPIC))
    assert bundle is not None
    cluster.broker.topics.drop_bundle(bundle)


async def settled(view: TableView) -> None:
    await view.wait_caught_up()
    await trio.sleep(1)


async def test_a_view_that_is_waited_for_while_its_last_message_is_compacted_away(
    autojump_clock: MockClock,
) -> None:
    """The message that was the last one when the call began never comes any more."""
    async with connected() as (cluster, client):
        await put(client, ("a", "1"), ("b", "1"))
        async with await client.table_view(TOPIC) as view:
            view._reader._partition_consumers[0].on_detached("for the test")
            await put(client, ("b", ""))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(view.wait_caught_up)
                await put(client, ("a", "2"), ("a", ""))
                await compact(cluster)
            await settled(view)
            assert dict(view) == {}


async def test_a_view_reads_behind_an_entry_that_cannot_be_read(
    autojump_clock: MockClock,
) -> None:
    async with connected() as (cluster, client):
        await put(client, ("a", "1"), ("b", "1"))
        log = cluster.broker.log()
        log.entries[0] = log.entries[0][:-1] + b"?"  # It does not match its checksum.
        async with await client.table_view(TOPIC) as view:
            assert dict(view) == {"b": b"1"}
            assert view.unreadable == 1


async def test_a_view_of_a_terminated_topic_is_complete(autojump_clock: MockClock) -> None:
    async with connected() as (cluster, client):
        await put(client, ("a", "1"))
        await cluster.broker.topics.loaded[TOPIC].terminate()
        async with await client.table_view(TOPIC) as view:
            await trio.sleep(1)
            await view.wait_caught_up()
            assert dict(view) == {"a": b"1"}


async def test_consumers_and_readers_read_compacted(autojump_clock: MockClock) -> None:
    async with connected() as (cluster, client):
        await put(client, ("a", "1"), ("b", "1"), ("a", "2"))
        await compact(cluster)
        reader = await client.create_reader(TOPIC, start="earliest", read_compacted=True)
        found = []
        while await reader.has_message_available():
            found.append((await reader.receive()).data)
        assert found == [b"1", b"2"]
        consumer = await client.subscribe(
            TOPIC, "s", type="failover", initial_position="earliest", read_compacted=True
        )
        assert [(await consumer.receive()).data for _ in range(2)] == [b"1", b"2"]
        with pytest.raises(ValueError, match="read_compacted"):
            await client.subscribe(TOPIC, "t", type="shared", read_compacted=True)
