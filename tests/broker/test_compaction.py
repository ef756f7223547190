"""Compaction of topics by key, and what consumers with `readCompacted` get; over raw frames."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.bookie.errors import ReadUnknownError
from daybook.broker.compaction.topic_compaction import CompactionStatus, TopicCompaction
from daybook.broker.dispatch.topic_view import BEFORE_LOG
from daybook.broker.errors import ConflictError
from daybook.broker.limits import CompactionLimits, TopicLimits
from daybook.broker.topics.stats import internal_stats, topic_stats
from daybook.managed_ledger.compacted import CURSOR, LEDGER, CompactedWriter
from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.position import Position
from daybook.wire.batch import encode_batch, iter_batch, parse_metadata
from daybook.wire.messages.consumer import Delivery, encode_ack
from daybook.wire.messages.registry import RESUMES, unsigned
from daybook.wire.metadata.store import StoreUnavailableError
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness.broker import TOPIC, Client, Cluster, open_broker, payload_of
from tests.harness.fake_log import FakeLog

EARLIEST_ID = pb.MessageIdData(ledgerId=unsigned(-1), entryId=unsigned(-1))
LEDGER_ENTRIES = 4
FIRST = 5


class World:
    """One broker with one topic and its producer."""

    def __init__(self, cluster: Cluster, producer: Client) -> None:
        self.cluster = cluster
        self.broker = cluster.broker
        self.producer = producer
        self.sent = 0

    @property
    def log(self) -> FakeLog:
        return self.broker.log()

    @property
    def compaction(self) -> TopicCompaction:
        return self.broker.topics.loaded[TOPIC].compaction

    async def send(self, *messages: tuple[str, str]) -> list[Position]:
        """Send messages of (key, value), one in an entry; an empty value is a tombstone."""
        for key, value in messages:
            self.producer.send(self.sent, value.encode(), partition_key=key)
            self.sent += 1
        receipts = await self.producer.receipts(len(messages))
        return [Position(ledger, entry) for _, ledger, entry in receipts]

    async def compact(self) -> CompactionStatus:
        self.compaction.start()
        await self.compaction.wait_ended()
        return self.compaction.status

    def trim(self, ledgers: int) -> None:
        """Delete so many ledgers of the log, as retention does."""
        self.log.trimmed = ledgers * LEDGER_ENTRIES

    async def take_over(self) -> None:
        """Lose the topic, as if its broker had died, and load it again."""
        bundle = self.broker.policies.known_bundle_of(TopicName.parse(TOPIC))
        assert bundle is not None
        self.broker.topics.drop_bundle(bundle)
        await trio.sleep(5)
        self.producer = await self.cluster.client()
        await self.producer.producer(producer_name="p")

    async def reader(self, **options: Any) -> Client:
        """Return a client with a reader from the first message on."""
        client = await self.cluster.client()
        options = {"durable": False, "start_message_id": EARLIEST_ID, "name": "r"} | options
        all_options: dict[str, Any] = {"read_compacted": True, "permits": 1000} | options
        await client.subscribe(**all_options)
        return client

    async def read(self, **options: Any) -> list[tuple[str, str]]:
        """Return what a new reader gets."""
        client = await self.reader(**options)
        return await got(client)


async def got(client: Client) -> list[tuple[str, str]]:
    """Return the messages that have come to a client, as (key, value), without removed ones."""
    await client.settle(1)
    found = client.bodies(Delivery)
    client.got.clear()
    return [message for delivery in found for message in messages_of(delivery)]


def messages_of(delivery: Delivery) -> list[tuple[str, str]]:
    metadata, body = parse_metadata(delivery.payload)
    if not metadata.HasField("num_messages_in_batch"):
        return [(metadata.partition_key, bytes(body).decode())]
    singles = iter_batch(bytes(body), metadata.num_messages_in_batch)
    return [(each.key or "", data.decode()) for each, data in singles if not each.compacted_out]


def batch(sequence_id: int, messages: Sequence[tuple[str, str]]) -> bytes:
    singles = [
        (pb.SingleMessageMetadata(payload_size=0, partition_key=key), value.encode())
        for key, value in messages
    ]
    body = encode_batch(singles)
    return payload_of(sequence_id, body, num_messages_in_batch=len(singles))


@asynccontextmanager
async def compacting(**limits: Any) -> AsyncGenerator[World]:
    topic_limits = TopicLimits(compaction=CompactionLimits(**limits))
    async with open_broker(topic_limits=topic_limits) as cluster:
        cluster.broker.logs.ledger_entries = LEDGER_ENTRIES
        client = await cluster.client()
        await client.producer(producer_name="p")
        yield World(cluster, client)


async def test_a_reader_gets_the_last_message_of_each_key_in_order(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "2"))
        assert await world.compact() is CompactionStatus.SUCCESS
        assert await world.read() == [("a", "2"), ("c", "1"), ("b", "2")]


async def test_a_topic_without_a_compacted_ledger_is_read_whole(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        assert await world.read() == [("a", "1"), ("a", "2")]


async def test_without_metadata_the_compacted_ledger_is_opened_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 950052: the topic failed, and all of its clients had to come back."""
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        compaction = world.compaction
        compaction._open = None
        open_compacted, failures = compaction._logs.open_compacted, [1, 2]

        async def fail(log: Any, ledger_id: int) -> Any:
            if failures and failures.pop():
                raise StoreUnavailableError("the session was lost")
            return await open_compacted(log, ledger_id)

        monkeypatch.setattr(compaction._logs, "open_compacted", fail)
        client = await world.reader()
        await trio.sleep(5)
        assert await got(client) == [("a", "2")]
        assert not failures
        assert world.compaction is compaction, "the topic has not failed"


async def test_messages_behind_the_horizon_come_from_the_topic(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"), ("b", "1"))
        await world.compact()
        await world.send(("a", "3"), ("a", "4"))
        assert await world.read() == [("a", "2"), ("b", "1"), ("a", "3"), ("a", "4")]


async def test_a_tombstone_removes_the_key_and_itself(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("b", "1"), ("a", ""))
        await world.compact()
        assert await world.read() == [("b", "1")]


async def test_the_last_value_stays_when_its_ledger_is_trimmed(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(*[("a", str(n)) for n in range(4)], ("b", "1"))
        await world.compact()
        await world.send(*[("c", str(n)) for n in range(5)])
        world.trim(2)
        assert await world.read() == [("a", "3"), ("b", "1"), ("c", "3"), ("c", "4")]
        await world.compact()  # It starts from the compacted ledger.
        assert await world.read() == [("a", "3"), ("b", "1"), ("c", "4")]
        await world.take_over()
        assert await world.read() == [("a", "3"), ("b", "1"), ("c", "4")]
        assert len(world.broker.logs.compacted) == 1, "the old ledger is deleted"


async def test_the_cursor_names_ledger_and_horizon(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        positions = await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        cursor = world.log.cursors[CURSOR]
        assert cursor.mark_delete == positions[-1]
        assert list(world.broker.logs.compacted) == [cursor.properties[LEDGER]]
        assert CURSOR not in world.broker.topics.loaded[TOPIC].subscriptions.by_name


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared])
async def test_only_exclusive_and_failover_consumers_read_compacted(
    autojump_clock: MockClock, kind: Any
) -> None:
    async with compacting() as world:
        client = await world.cluster.client()
        refused = await client.subscribe(kind=kind, read_compacted=True)
        assert isinstance(refused, pb.CommandError)
        assert refused.error == pb.NotAllowedError


# -- runs


async def test_a_topic_without_messages_is_compacted_at_once(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        assert await world.compact() is CompactionStatus.SUCCESS
        assert not world.broker.logs.compacted


async def test_without_new_messages_nothing_is_written(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"))
        await world.compact()
        before = dict(world.broker.logs.compacted)
        assert await world.compact() is CompactionStatus.SUCCESS
        assert world.broker.logs.compacted == before


async def test_one_run_at_a_time(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"))
        assert world.compaction.status.value == "NOT_RUN"
        world.compaction.start()
        assert world.compaction.status.value == "RUNNING"
        with pytest.raises(ConflictError, match="running"):
            world.compaction.start()
        await world.compaction.wait_ended()
        assert await world.compact() is CompactionStatus.SUCCESS


async def test_runs_of_different_topics_take_turns(autojump_clock: MockClock) -> None:
    async with compacting(runs_max=1) as world:
        await world.send(("a", "1"))
        client = await world.cluster.client()
        await client.producer(topic="persistent://public/default/u", producer_name="p")
        client.send(0, partition_key="a")
        await client.receipts(1)
        other = world.broker.topics.loaded["persistent://public/default/u"].compaction
        gate, under_way = trio.Event(), 0

        async def wait(operation: str) -> None:
            nonlocal under_way
            under_way += operation == "create"
            await gate.wait()

        world.broker.logs.before = wait
        world.compaction.start()
        other.start()
        await trio.sleep(1)
        assert under_way == 1
        assert other.status.value == "RUNNING"
        gate.set()
        await world.compaction.wait_ended()
        await other.wait_ended()
        assert under_way == 2
        assert other.status is CompactionStatus.SUCCESS


async def test_too_many_keys_are_an_error_that_says_what_to_do(
    autojump_clock: MockClock,
) -> None:
    async with compacting(keys_max=2) as world:
        await world.send(("a", "1"), ("b", "1"), ("c", "1"))
        assert await world.compact() is CompactionStatus.ERROR
        assert "compaction_keys_max" in world.compaction.last_error
        assert not world.broker.logs.compacted
        assert await world.read() == [("a", "1"), ("b", "1"), ("c", "1")]


@pytest.mark.parametrize("step", ["create", "confirm", "close"])
async def test_a_run_that_fails_leaves_the_ledger_before_in_force(
    autojump_clock: MockClock, step: str
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        await world.send(("a", "3"), ("a", "4"))
        (before,) = world.broker.logs.compacted

        async def fail(operation: str) -> None:
            if operation == step:
                raise ReadUnknownError(1, 1, "bookies are away")

        world.broker.logs.before = fail
        assert await world.compact() is CompactionStatus.ERROR
        assert "bookies are away" in world.compaction.last_error
        assert list(world.broker.logs.compacted) == [before], "the new ledger is deleted"
        assert await world.read() == [("a", "2"), ("a", "3"), ("a", "4")]
        world.broker.logs.before = no_hook
        assert await world.compact() is CompactionStatus.SUCCESS
        assert await world.read() == [("a", "4")]
        assert world.compaction.counts.failed == 1


async def test_a_run_whose_bookies_do_not_answer_ends(autojump_clock: MockClock) -> None:
    async with compacting(write_s=60.0) as world:
        await world.send(("a", "1"))

        async def hang(operation: str) -> None:
            if operation == "confirm":
                await trio.sleep_forever()

        world.broker.logs.before = hang
        assert await world.compact() is CompactionStatus.ERROR
        assert "bookies" in world.compaction.last_error


async def no_hook(operation: str) -> None:
    await trio.lowlevel.checkpoint()


async def test_if_the_record_may_be_stored_or_not_both_ledgers_stay(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        await world.send(("a", "3"))

        async def fail(name: str) -> None:
            if name == CURSOR:
                raise FencedError("another broker may have the topic")

        world.log.before_flush = fail
        assert await world.compact() is CompactionStatus.ERROR
        assert len(world.broker.logs.compacted) == 2
        assert await world.read() == [("a", "2"), ("a", "3")]


async def test_the_ledger_before_goes_only_when_the_record_is_durable(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"))
        await world.compact()
        await world.send(("a", "2"))
        gate = trio.Event()

        async def wait(name: str) -> None:
            await gate.wait()

        world.log.before_flush = wait
        world.compaction.start()
        await trio.sleep(1)
        assert len(world.broker.logs.compacted) == 2
        assert await world.read() == [("a", "1"), ("a", "2")]
        gate.set()
        await world.compaction.wait_ended()
        assert len(world.broker.logs.compacted) == 1
        assert await world.read() == [("a", "2")]


async def test_a_topic_that_is_unloaded_stops_its_run(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        (before,) = world.broker.logs.compacted
        await world.send(("a", "3"))
        created = trio.Event()

        async def wait(operation: str) -> None:
            if operation == "confirm":
                created.set()
                await trio.sleep_forever()

        world.broker.logs.before = wait
        compaction = world.compaction
        compaction.start()
        await created.wait()
        world.broker.logs.before = no_hook
        await world.broker.topics.unload(TopicName.parse(TOPIC))
        assert not compaction.running
        assert compaction.status is CompactionStatus.ERROR
        assert list(world.broker.logs.compacted) == [before]
        await world.producer.wait(pb.CommandCloseProducer)
        assert await world.read() == [("a", "2"), ("a", "3")]


async def test_a_topic_that_is_deleted_takes_its_compacted_ledger_along(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"))
        await world.compact()
        await world.broker.topics.delete(TopicName.parse(TOPIC), force=True)
        assert not world.broker.logs.compacted


async def test_a_run_starts_when_enough_lies_behind_the_horizon(
    autojump_clock: MockClock,
) -> None:
    async with compacting(retry_s=60.0) as world:
        await world.send(("a", "x" * 1000))
        for threshold in (0, 10_000):
            world.compaction.start_if_due(threshold)
            assert world.compaction.status is CompactionStatus.NOT_RUN
        world.compaction.start_if_due(1000)
        await world.compaction.wait_ended()
        assert world.compaction.status is CompactionStatus.SUCCESS
        world.compaction.start_if_due(1)
        assert not world.compaction.running, "nothing lies behind the horizon"


async def test_the_policy_of_the_topic_starts_runs(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "x" * 1000), ("a", "y"))
        await trio.sleep(130)
        assert world.compaction.status.value == "NOT_RUN", "without the policy nothing starts"
        world.broker.policies.of_namespace["compaction_threshold"] = 1000
        await world.take_over()
        await trio.sleep(130)
        assert await world.read() == [("a", "y")]


async def test_after_a_failure_the_threshold_waits_longer_each_time(
    autojump_clock: MockClock,
) -> None:
    async with compacting(retry_s=60.0, keys_max=1) as world:
        await world.send(("a", "1"), ("b", "1"))
        for pause_s in (60, 120, 240):
            world.compaction.start_if_due(1)
            assert world.compaction.running
            await world.compaction.wait_ended()
            await trio.sleep(pause_s - 1)
            world.compaction.start_if_due(1)
            assert not world.compaction.running
            await trio.sleep(2)
        assert await world.compact() is CompactionStatus.ERROR, "on request it runs at once"


async def test_the_statistics_show_the_last_run(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"), ("b", "1"))
        topic = world.broker.topics.loaded[TOPIC]
        assert internal_stats(topic)["compactedLedger"]["ledgerId"] == -1  # type: ignore[index]
        await world.compact()
        stats = topic_stats(topic, "us")["compaction"]
        assert stats["lastCompactionRemovedEventCount"] == 1  # type: ignore[index]
        assert stats["lastCompactionSucceedTimestamp"] > 0  # type: ignore[index]
        assert stats["lastCompactionFailedTimestamp"] == 0  # type: ignore[index]
        await world.read()
        ledger = internal_stats(topic)["compactedLedger"]
        assert ledger["entries"] == 2  # type: ignore[index]


# -- reading


async def test_a_compaction_that_ends_while_a_reader_reads_changes_nothing_for_it(
    autojump_clock: MockClock,
) -> None:
    """A key that the reader has seen is removed: the reader has to see the tombstone."""
    async with compacting() as world:
        await world.send(("a", "1"), ("b", "1"), ("c", "1"))
        await world.compact()
        slow = await world.reader(name="slow", permits=1)
        assert await got(slow) == [("a", "1")]
        await world.send(("a", ""), ("b", "2"), ("d", "1"))
        await world.compact()
        slow.flow(100)
        # The first compaction kept "c" behind the reader's place; the topic itself follows.
        assert await got(slow) == [("c", "1"), ("a", ""), ("b", "2"), ("d", "1")]
        assert await world.read() == [("c", "1"), ("b", "2"), ("d", "1")]


async def test_a_reader_that_trimming_overtakes_goes_on_in_the_newest_compacted_ledger(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(*[("a", str(n)) for n in range(3)], ("b", "1"))
        await world.compact()
        slow = await world.reader(name="slow", permits=1)
        assert await got(slow) == [("a", "2")]
        await world.send(*[("c", str(n)) for n in range(4)], *[("b", str(n)) for n in range(2, 6)])
        await world.compact()
        await world.send(("d", "1"))
        world.trim(3)
        slow.flow(100)
        assert await got(slow) == [("c", "3"), ("b", "5"), ("d", "1")]


async def test_there_is_neither_gap_nor_repetition_at_the_seam(
    autojump_clock: MockClock,
) -> None:
    for count in range(1, 2 * LEDGER_ENTRIES + 2):
        async with compacting() as world:
            await world.send(*[(str(n), "1") for n in range(count)])
            await world.compact()
            await world.send(*[(str(n), "2") for n in range(3)])
            expected = [(str(n), "1") for n in range(count)] + [(str(n), "2") for n in range(3)]
            assert await world.read() == expected
            world.trim(count // LEDGER_ENTRIES)
            assert await world.read() == expected


async def test_the_trimmed_part_is_read_one_by_one(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(*[(str(n), "1") for n in range(2 * LEDGER_ENTRIES + 1)])
        await world.compact()
        world.trim(2)
        client = await world.reader(permits=1)
        for n in range(2 * LEDGER_ENTRIES + 1):
            assert await got(client) == [(str(n), "1")]
            client.flow(1)


async def test_a_reader_waits_at_the_end_and_goes_on(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(*[("a", str(n)) for n in range(LEDGER_ENTRIES)])
        await world.compact()
        client = await world.reader()
        assert await got(client) == [("a", "3")]
        await world.send(("a", "4"))
        assert await got(client) == [("a", "4")]
        await world.compact()
        await world.send(("a", "5"))
        assert await got(client) == [("a", "5")]


def id_of(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)


async def test_a_reader_may_start_anywhere(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        sent = await world.send(*[(str(n // 2), str(n)) for n in range(12)])
        await world.compact()
        last = [(str(n // 2), str(n)) for n in range(1, 12, 2)]
        for trimmed in range(3):
            world.trim(trimmed)
            for index, position in enumerate(sent):
                # The entry itself comes, too; clients drop it if they do not want it.
                found = await world.read(start_message_id=id_of(position))
                assert found == last[index // 2 :]


async def test_a_seek_goes_anywhere_in_the_compacted_part(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        sent = await world.send(*[(str(n // 2), str(n)) for n in range(12)])
        await world.compact()
        world.trim(2)
        last = [(str(n // 2), str(n)) for n in range(1, 12, 2)]
        for durable in (False, True):
            name = f"s{durable}"
            client = await world.reader(name=name, durable=durable, initialPosition=1)
            assert await got(client) == last
            for message_id, expected in [
                (id_of(sent[5]), last[2:]),
                (id_of(sent[6]), last[3:]),
                (EARLIEST_ID, last),
                (id_of(sent[11]), last[5:]),
            ]:
                seek = pb.CommandSeek(consumer_id=1, message_id=message_id)
                assert isinstance(await client.ask(seek, pb.CommandSuccess), pb.CommandSuccess)
                await client.wait(pb.CommandCloseConsumer)
                await client.subscribe(
                    name=name,
                    durable=durable,
                    read_compacted=True,
                    permits=100,
                    start_message_id=EARLIEST_ID,
                )
                assert await got(client) == expected
            seek = pb.CommandSeek(consumer_id=1, message_publish_time=1)
            await client.ask(seek, pb.CommandSuccess)
            await client.wait(pb.CommandCloseConsumer)
            await client.subscribe(name=name, durable=durable, read_compacted=True, permits=100)
            assert await got(client) == last, "a time before everything is the first message"


async def test_the_last_message_may_be_in_the_compacted_ledger_only(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        sent = await world.send(("a", "1"), ("b", "1"), ("a", "2"), ("b", ""))
        await world.compact()

        async def last(client: Client) -> tuple[Any, ...]:
            request = pb.CommandGetLastMessageId(consumer_id=1)
            answer = await client.ask(request, pb.CommandGetLastMessageIdResponse)
            found = answer.last_message_id
            return found.ledgerId, found.entryId, found.batch_index

        for trimmed in range(2):
            world.trim(trimmed)
            client = await world.reader(name=f"r{trimmed}")
            assert await got(client) == [("a", "2")]
            assert await last(client) == (FIRST, sent[2].entry_id, -1)
        (more,) = await world.send(("c", "1"))
        assert await last(client) == (more.ledger_id, more.entry_id, -1)
        await world.send(("a", ""), ("c", ""))
        await world.compact()
        client = await world.reader(name="nothing")
        assert await last(client) == (2**64 - 1, 2**64 - 1, -1), "everything was removed"
        plain = await world.cluster.client()
        await plain.subscribe(name="plain", durable=False)
        assert (await last(plain))[0] == FIRST + 1, "other consumers get the whole topic"


async def test_the_last_index_of_a_batch_is_that_of_its_last_message_that_is_left(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        world.producer.send_payload(0, batch(0, [("a", "1"), ("b", "1"), ("c", "1")]), count=3)
        world.sent = 1
        await world.producer.receipts(1)
        await world.send(("c", "2"), ("c", ""))
        await world.compact()
        client = await world.reader()
        assert await got(client) == [("a", "1"), ("b", "1")]
        request = pb.CommandGetLastMessageId(consumer_id=1)
        answer = await client.ask(request, pb.CommandGetLastMessageIdResponse)
        assert answer.last_message_id.batch_index == 1


async def test_the_messages_that_compaction_removed_from_a_batch_are_named_to_the_client(
    autojump_clock: MockClock,
) -> None:
    """C++ clients do not know the flag in the batch, but they know which messages are pending."""
    async with compacting() as world:
        world.producer.send_payload(0, batch(0, [("a", "1"), ("b", "1"), ("c", "1")]), count=3)
        world.sent = 1
        await world.producer.receipts(1)
        await world.send(("b", "2"))
        await world.compact()
        client = await world.reader(durable=True, name="d", initialPosition=1, permits=2)
        (first,) = await client.deliveries(1)
        assert first.ack_set == 0b101
        assert await got(client) == [], "the batch took two permits"
        client.flow(10)
        assert await got(client) == [("b", "2")]
        client.frames.send([encode_ack(1, [(first.ledger_id, first.entry_id, 0b110)])])
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        again, _ = await client.deliveries(2)
        assert again.ack_set == 0b100
        client.frames.send([encode_ack(1, [(first.ledger_id, first.entry_id, 0b010)])])
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await got(client) == [("b", "2")], "what is left of the batch is acknowledged"


async def test_a_batch_that_would_be_too_large_without_some_messages_is_kept_whole(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of its messages are added to it, and no bookie may take that."""
    async with compacting() as world:
        messages = [("a", "1"), ("b", "1"), ("c", "1")]
        world.producer.send_payload(0, batch(0, messages), count=3)
        world.sent = 1
        await world.producer.receipts(1)
        await world.send(("b", "2"))
        (stored, _) = world.cluster.broker.log().entries
        monkeypatch.setattr(CompactedWriter, "fits", lambda _, data: bytes(data) == stored)
        await world.compact()
        client = await world.reader(permits=10)
        assert await got(client) == [*messages, ("b", "2")]


async def test_indexes_that_cannot_be_those_of_the_batch_are_ignored(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        for sequence_id, indexes in enumerate([[5], [-1], [2**31 - 1], [0, 1]]):
            singles = [
                (pb.SingleMessageMetadata(payload_size=0, partition_key=f"{sequence_id}{n}"), b"v")
                for n in range(2)
            ]
            payload = payload_of(
                sequence_id,
                encode_batch(singles),
                num_messages_in_batch=2,
                compacted_batch_indexes=indexes,
            )
            world.producer.send_payload(sequence_id, payload, count=2)
        await world.producer.receipts(4)
        await world.compact()
        client = await world.reader()
        assert [each.ack_set for each in await client.deliveries(4)] == [None, None, None, 0b11]


async def test_what_compaction_removed_is_no_backlog(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        sent = await world.send(*[(str(n // 5), str(n)) for n in range(22)], ("x", ""))
        await world.compact()
        # The last of each five is left, and those of the last key.
        kept = [sent[n] for n in (4, 9, 14, 19, 21)]
        for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [3, 4, 0, 2, 1]):
            name = f"d{order}"
            client = await world.reader(durable=True, name=name, initialPosition=1)
            assert len(await got(client)) == 5
            subscription = world.broker.topics.loaded[TOPIC].subscriptions.get(name)
            for index in order:
                client.frames.send([encode_ack(1, [(*place(kept[index]), None)])])
                await client.settle()
                unacked = [
                    p for i, p in enumerate(kept) if i not in order[: order.index(index) + 1]
                ]
                assert not any(subscription.cursor.is_acked(p) for p in unacked)
            assert subscription.cursor.backlog_entries == 0
            assert subscription.cursor.mark_delete == sent[-1]


async def test_what_compaction_removed_is_no_backlog_after_a_cumulative_acknowledgement(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        sent = await world.send(("a", "1"), ("b", "1"), ("a", "2"), ("b", ""))
        await world.compact()
        client = await world.reader(durable=True, name="d", initialPosition=1)
        assert await got(client) == [("a", "2")]
        client.frames.send([encode_ack(1, [(*place(sent[2]), None)], cumulative=True)])
        await client.settle()
        cursor = world.broker.topics.loaded[TOPIC].subscriptions.get("d").cursor
        assert cursor.mark_delete == sent[-1]


async def test_what_is_not_acknowledged_comes_again_though_removed_entries_are_skipped(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        sent = await world.send(*[(str(n // 2), str(n)) for n in range(8)])
        await world.compact()
        options: dict[str, Any] = {"durable": True, "initialPosition": 1, "name": "d"}
        client = await world.reader(**options)
        assert len(await got(client)) == 4
        client.frames.send([encode_ack(1, [(*place(sent[n]), None) for n in (1, 5)])])
        await client.settle()
        await world.take_over()
        assert await world.read(**options) == [("1", "3"), ("3", "7")]


async def test_a_reader_of_a_trimmed_topic_stands_before_its_first_message(
    autojump_clock: MockClock,
) -> None:
    """A client compares the two ids to find out if there is a message at all."""
    async with compacting() as world:
        await world.send(*[("a", str(n)) for n in range(LEDGER_ENTRIES)])
        await world.compact()
        await world.send(("b", "1"))
        world.trim(1)
        client = await world.reader(permits=0)
        request = pb.CommandGetLastMessageId(consumer_id=1)
        answer = await client.ask(request, pb.CommandGetLastMessageIdResponse)
        place = answer.consumer_mark_delete_position
        assert place.ledgerId < FIRST


async def test_a_durable_subscription_goes_on_where_it_acknowledged(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        sent = await world.send(*[(str(n // 2), str(n)) for n in range(6)])
        await world.compact()
        options: dict[str, Any] = {"durable": True, "initialPosition": 1, "name": "d"}
        client = await world.reader(**options)
        assert await got(client) == [("0", "1"), ("1", "3"), ("2", "5")]
        client.frames.send([encode_ack(1, [(*place(sent[3]), None)], cumulative=True)])
        await client.settle()
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await got(client) == [("2", "5")]
        await world.take_over()
        assert await world.read(**options) == [("2", "5")]


def place(position: Position) -> tuple[int, int]:
    return position.ledger_id, position.entry_id


@pytest.mark.parametrize("lost", [False, True])
async def test_what_only_the_compacted_ledger_has_is_kept_for_a_durable_subscription(
    autojump_clock: MockClock, lost: bool
) -> None:
    """The cursor cannot stand there, so the subscription has to remember it."""
    async with compacting() as world:
        sent = await world.send(*[(str(n // 2), str(n)) for n in range(12)])
        await world.compact()
        world.trim(2)
        last = [(str(n // 2), str(n)) for n in range(1, 12, 2)]
        options: dict[str, Any] = {"durable": True, "initialPosition": 1, "name": "d"}

        async def again(client: Client) -> Client:
            client.tell(pb.CommandCloseConsumer(consumer_id=1, request_id=7))
            await client.settle()
            if lost:
                await world.take_over()
            return await world.reader(**options)

        client = await world.reader(**options, permits=1)
        assert await got(client) == last[:1]
        client = await again(client)
        assert await got(client) == last
        client.frames.send([encode_ack(1, [(*place(sent[3]), None)], cumulative=True)])
        await client.settle()
        client = await again(client)
        # The place in that part is in memory only.
        assert await got(client) == (last if lost else last[2:])
        acked = [(*place(sent[n]), None) for n in range(1, 12, 2)]
        client.frames.send([encode_ack(1, acked)])
        await client.settle()
        subscription = world.broker.topics.loaded[TOPIC].subscriptions.get("d")
        assert not subscription.cursor.properties[BEFORE_LOG]
        assert subscription.cursor.backlog_entries == 0
        client = await again(client)
        assert await got(client) == []


async def test_a_seek_stores_where_the_subscription_stands(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        sent = await world.send(*[(str(n // 2), str(n)) for n in range(12)])
        await world.compact()
        world.trim(2)
        options: dict[str, Any] = {"durable": True, "name": "d"}
        client = await world.reader(**options)
        assert await got(client) == []
        for target, expected in [(EARLIEST_ID, 6), (id_of(sent[11]), 1), (EARLIEST_ID, 6)]:
            seek = pb.CommandSeek(consumer_id=1, message_id=target)
            assert isinstance(await client.ask(seek, pb.CommandSuccess), pb.CommandSuccess)
            await world.take_over()
            client = await world.reader(**options)
            assert len(await got(client)) == expected


async def test_acknowledged_entries_of_the_trimmed_part_do_not_come_again(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        sent = await world.send(*[(str(n // 2), str(n)) for n in range(12)])
        await world.compact()
        world.trim(2)
        client = await world.reader(durable=True, initialPosition=1, name="d")
        assert len(await got(client)) == 6
        acked = [(*place(sent[n]), None) for n in (1, 5, 9)]
        client.frames.send([encode_ack(1, acked)])
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await got(client) == [("1", "3"), ("3", "7"), ("5", "11")]
        client.frames.send([encode_ack(1, [(*place(sent[3]), None)], cumulative=True)])
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await got(client) == [("3", "7"), ("5", "11")]


async def test_of_failover_consumers_the_active_one_decides(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        options: dict[str, Any] = {
            "kind": pb.CommandSubscribe.Failover,
            "durable": True,
            "initialPosition": 1,
            "name": "f",
        }
        one = await world.reader(**options)
        assert await got(one) == [("a", "2")]
        two = await world.reader(**options, read_compacted=False)
        one.tell(pb.CommandCloseConsumer(consumer_id=1, request_id=7))
        assert await got(two) == [("a", "1"), ("a", "2")]


async def test_a_reader_that_comes_back_gets_every_tombstone(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        sent = await world.send(("a", "1"), ("b", "1"), ("c", "1"), ("a", ""), ("d", "1"))
        await world.compact()
        again: dict[str, Any] = {"start_message_id": id_of(sent[1])}
        resumes = [pb.KeyValue(key=RESUMES, value="true")]
        rest = [("b", "1"), ("c", "1"), ("a", ""), ("d", "1")]
        assert await world.read(**again, metadata=resumes) == rest
        assert await world.read(**again) == [("b", "1"), ("c", "1"), ("d", "1")]
        world.trim(1)  # The tombstone is gone, and nobody can see it any more.
        assert await world.read(**again, metadata=resumes) == [("b", "1"), ("c", "1"), ("d", "1")]


async def test_a_plain_consumer_gets_everything(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        assert await world.read(read_compacted=False) == [("a", "1"), ("a", "2")]


async def test_a_ledger_that_cannot_be_read_now_is_read_again(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        ((ledger_id, ledger),) = world.broker.logs.compacted.items()
        del world.broker.logs.compacted[ledger_id]
        client = await world.reader()
        assert await got(client) == []
        world.broker.logs.compacted[ledger_id] = ledger
        assert await got(client) == [("a", "2")]


async def test_a_reader_whose_ledger_is_replaced_goes_on_in_the_new_one(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(*[(str(n), "1") for n in range(6)])
        await world.compact()
        slow = await world.reader(permits=2)
        assert await got(slow) == [("0", "1"), ("1", "1")]
        await world.send(("3", "2"))
        await world.compact()
        assert len(world.broker.logs.compacted) == 1
        slow.flow(100)
        assert await got(slow) == [("2", "1"), ("4", "1"), ("5", "1"), ("3", "2")]


async def test_hostile_acknowledgements_take_no_memory(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(*[("a", str(n)) for n in range(LEDGER_ENTRIES)])
        await world.compact()
        world.trim(1)
        client = await world.reader()
        await got(client)
        hostile = [(ledger, 2**26 - 1, None) for ledger in range(FIRST + 1)]
        client.frames.send([encode_ack(1, [*hostile, (2, 2**60, None)])])
        await client.settle()
        compacted = world.broker.topics.loaded[TOPIC].subscriptions.get("r").view.compacted
        assert compacted is not None
        assert not len(compacted.standing.acked)
