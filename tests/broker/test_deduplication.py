"""Topics with deduplication: repeats, takeovers, snapshots, names; over raw frames.

Each test names the rule that it holds (`docs/correctness.md`, deduplication).
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.errors import UnavailableError
from daybook.broker.limits import DeduplicationLimits, LoadLimits, TopicLimits
from daybook.broker.protocol.deduplication import GENERATED
from daybook.broker.topics import deduplication
from daybook.broker.topics.deduplication import CURSOR, entry_ids
from daybook.broker.topics.stats import topic_stats
from daybook.managed_ledger.position import Position
from daybook.wire.batch import encode_batch, parse_metadata, split_broker_metadata
from daybook.wire.compression import CompressionType, compress
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness.broker import TOPIC, Client, Cluster, batch_of, open_broker, payload_of
from tests.harness.fake_log import FakeCursor, FakeLog

NO_PLACE = (-1, -1)


@asynccontextmanager
async def deduplicating(**limits: Any) -> AsyncGenerator[Cluster]:
    topic_limits = TopicLimits(deduplication=DeduplicationLimits(**limits))
    async with open_broker(topic_limits=topic_limits) as cluster:
        cluster.broker.policies.deduplication = True
        yield cluster


def stored_ids(log: FakeLog) -> list[int]:
    """Return the sequence ids of the entries in the log."""
    entries = (split_broker_metadata(memoryview(data))[2] for data in log.entries)
    return [parse_metadata(entry)[0].sequence_id for entry in entries]


async def take_over(cluster: Cluster) -> None:
    """Lose the topic, as if its broker had died; the next client loads it again."""
    bundle = cluster.broker.policies.known_bundle_of(TopicName.parse(TOPIC))
    assert bundle is not None
    cluster.broker.topics.drop_bundle(bundle)
    await trio.sleep(0.01)


async def opened(cluster: Cluster, name: str = "p") -> tuple[Client, Any]:
    client = await cluster.client()
    return client, await client.producer(producer_name=name)


async def test_a_repeat_is_not_stored_and_gets_a_receipt_without_a_place(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        for sequence_id in (0, 1, 1, 0, 2):
            client.send(sequence_id)
        receipts = await client.receipts(5)
        assert receipts == [(0, 5, 0), (1, 5, 1), (1, *NO_PLACE), (0, *NO_PLACE), (2, 5, 2)]
        assert stored_ids(cluster.broker.log()) == [0, 1, 2]
        topic = cluster.broker.topics.loaded[TOPIC]
        assert topic.deduplication is not None
        assert topic.deduplication.repeats == 2
        assert topic_stats(topic, "us")["deduplicationStatus"] == "Enabled"


async def test_without_deduplication_everything_is_stored(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client, success = await opened(cluster)
        client.send(3)
        client.send(3)
        assert await client.receipts(2) == [(3, 5, 0), (3, 5, 1)]
        assert success.last_sequence_id == -1
        again = await (await cluster.client()).producer(producer_name="other")
        assert again.last_sequence_id == -1
        assert CURSOR not in cluster.broker.log().cursors
        topic = cluster.broker.topics.loaded[TOPIC]
        assert topic_stats(topic, "us")["deduplicationStatus"] == "Disabled"


async def test_a_repeat_of_a_pending_message_gets_its_receipt_with_the_first(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        client.send(0)
        client.send(1)
        await client.settle()
        assert not client.got, "nothing is stored yet, so nobody may be told that it is"
        log.release(1)
        assert await client.receipts(2) == [(0, 5, 0), (0, *NO_PLACE)]
        log.release()
        assert await client.receipts(1) == [(1, 5, 1)]


async def test_a_repeat_of_a_message_that_fails_with_the_log_gets_no_receipt(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        client.send(0)
        await client.settle()
        log.fence()
        await client.wait(pb.CommandCloseProducer)
        await client.settle()
        assert not client.got
        await client.settle(5)  # The topic is not loaded again at once.
        # The next opening counts what recovery kept, which is nothing.
        success = await client.producer(2, producer_name="p")
        assert success.last_sequence_id == -1
        client.send(0, producer_id=2)
        assert await client.receipts(1) == [(0, 5, 0)]


async def test_what_the_log_refuses_does_not_count_as_seen(autojump_clock: MockClock) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        log = cluster.broker.log()
        log.entry_bytes_max = 100
        client.send(0, b"x" * 200)
        (refused,) = await client.wait(pb.CommandSendError)
        assert refused.sequence_id == 0
        log.entry_bytes_max = 1000
        client.send(0, b"x" * 200)
        assert await client.receipts(1) == [(0, 5, 0)]


async def test_a_producer_that_comes_back_is_told_the_last_stored_id(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, success = await opened(cluster)
        assert success.last_sequence_id == -1
        client.send(7)
        client.send(8)
        await client.receipts(2)
        client.frames.close("gone")
        await trio.sleep(1)
        _, success = await opened(cluster)
        assert success.last_sequence_id == 8


async def test_a_producer_whose_earlier_messages_are_pending_is_told_their_fate(
    autojump_clock: MockClock,
) -> None:
    """An application that goes on behind an id that is not stored would lose the message."""
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        log = cluster.broker.log()
        client.send(0)
        await client.receipts(1)
        log.held = True
        client.send(1)
        await client.settle()
        client.frames.close("gone")
        await trio.sleep(1)
        answers: list[Any] = []
        second = await cluster.client()

        async def open_again() -> None:
            answers.append(await second.producer(producer_name="p"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_again)
            await trio.sleep(2)
            assert not answers
            log.release()
        assert answers[0].last_sequence_id == 1


async def test_a_producer_is_refused_if_earlier_messages_stay_pending(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        cluster.broker.log().held = True
        client.send(0)
        await client.settle()
        client.frames.close("gone")
        await trio.sleep(1)
        second = await cluster.client()
        started = trio.current_time()
        refused = await second.producer(producer_name="p")
        assert refused.error == pb.ServiceNotReady
        assert trio.current_time() - started == pytest.approx(5, abs=0.5)
        cluster.broker.log().release()
        assert (await second.producer(producer_name="p")).last_sequence_id == 0


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
async def test_the_last_id_of_a_batch_is_read_if_its_client_does_not_name_it(
    autojump_clock: MockClock, compression: CompressionType
) -> None:
    """C++ and Python clients name the first id only; their messages have ids of their own."""
    singles = [
        (pb.SingleMessageMetadata(sequence_id=10 + n, payload_size=1), b"x") for n in range(5)
    ]
    body = encode_batch(singles)
    batch = payload_of(
        10,
        bytes(compress(compression, body)),
        num_messages_in_batch=5,
        compression=compression.value,
        uncompressed_size=len(body),
    )
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send_payload(10, batch, count=5)
        client.send(14)
        client.send(15)
        assert await client.receipts(3) == [(10, 5, 0), (14, *NO_PLACE), (15, 5, 1)]
        await take_over(cluster)
        second, success = await opened(cluster)
        assert success.last_sequence_id == 15
        second.send_payload(10, batch, count=5)
        assert await second.receipts(1) == [(10, *NO_PLACE)]


def last_id(count: int, more_bytes: int = 0) -> int:
    """Return the last id that is seen of a compressed batch whose first id is 10."""
    singles = [(pb.SingleMessageMetadata(payload_size=0), b"")] * (count - 1)
    last = pb.SingleMessageMetadata(payload_size=more_bytes, sequence_id=9_999_999)
    body = encode_batch([*singles, (last, bytes(more_bytes))])
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=10,
        publish_time=1,
        num_messages_in_batch=count,
        compression=pb.ZSTD,
        uncompressed_size=len(body),
    )
    packed = memoryview(compress(CompressionType.ZSTD, body))
    return entry_ids(metadata, packed).last


def test_a_small_batch_is_opened_however_well_it_is_compressed() -> None:
    assert last_id(60) == 9_999_999
    assert last_id(60, more_bytes=200 << 10) == 9_999_999


def test_a_batch_of_few_bytes_with_many_messages_is_not_opened() -> None:
    assert last_id(5_000) == 10
    assert last_id(200) == 10


def test_a_batch_of_few_bytes_that_becomes_large_is_not_opened() -> None:
    assert last_id(2, more_bytes=300 << 10) == 10


def test_a_batch_as_cpp_clients_send_it_by_default_is_opened() -> None:
    singles = [
        (pb.SingleMessageMetadata(sequence_id=10 + 2 * n, payload_size=1), b"x")
        for n in range(1_000)
    ]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=10, num_messages_in_batch=1_000)
    metadata.compression, body = pb.ZSTD, encode_batch(singles)
    metadata.uncompressed_size = len(body)
    packed = memoryview(compress(CompressionType.ZSTD, body))
    assert entry_ids(metadata, packed).last == 10 + 2 * 999


class Passes(trio.abc.Instrument):
    """Counts the batches that a producer sends in one pass of the event loop."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.most = 0
        self._count = count
        self._before = count()

    def before_io_wait(self, timeout: float) -> None:
        now = self._count()
        self.most, self._before = max(self.most, now - self._before), now


async def test_batches_that_are_opened_leave_others_their_turn(autojump_clock: MockClock) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        (producer,) = cluster.broker.topics.loaded[TOPIC].producers.by_name.values()
        passes = Passes(lambda: producer.messages // 5)
        trio.lowlevel.add_instrument(passes)
        for number in range(50):
            client.send_batch(5 * number, 5)
        await client.receipts(50)
        trio.lowlevel.remove_instrument(passes)
    assert passes.most == 1


async def test_the_highest_id_that_a_client_names_is_the_last_one(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        singles = [(pb.SingleMessageMetadata(payload_size=1), b"x") for _ in range(2)]
        body = encode_batch(singles)
        batch = payload_of(3, body, num_messages_in_batch=2, highest_sequence_id=9)
        client.send_payload(3, batch, count=2)
        client.send(9)
        assert await client.receipts(2) == [(3, 5, 0), (9, *NO_PLACE)]


async def test_a_batch_that_cannot_be_read_counts_by_its_first_id(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        keys = [pb.EncryptionKeys(key="k", value=b"v")]
        batch = payload_of(3, bytes(64), num_messages_in_batch=4, encryption_keys=keys)
        client.send_payload(3, batch, count=4)
        client.send_payload(3, batch, count=4)
        client.send(4)
        assert await client.receipts(3) == [(3, 5, 0), (3, *NO_PLACE), (4, 5, 1)]


async def test_a_batch_that_lies_partly_above_is_refused_and_costs_nothing_else(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send_payload(0, batch_of(0, 5), count=5)
        client.send_payload(3, batch_of(3, 5), count=5)
        client.send(5)
        (refused,) = await client.wait(pb.CommandSendError)
        assert (refused.sequence_id, refused.error) == (3, pb.NotAllowedError)
        assert "0 to 4" not in refused.message
        assert "3 to 7" in refused.message
        assert await client.receipts(2) == [(0, 5, 0), (5, 5, 1)]
        assert stored_ids(cluster.broker.log()) == [0, 5]


def chunk(sequence_id: int, number: int, count: int = 3, **meta: Any) -> bytes:
    return payload_of(
        sequence_id,
        b"c" * (10 if number < count - 1 else 3),
        uuid=f"p-{sequence_id}",
        num_chunks_from_msg=count,
        chunk_id=number,
        total_chunk_msg_size=10 * (count - 1) + 3,
        **meta,
    )


async def test_chunks_that_were_stored_are_not_stored_again_across_a_takeover(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        for number in (0, 1):
            client.send_payload(4, chunk(4, number))
        await client.receipts(2)
        await take_over(cluster)
        second, success = await opened(cluster)
        assert success.last_sequence_id == -1, "the message is not complete"
        for number in range(3):
            second.send_payload(4, chunk(4, number))
        receipts = await second.receipts(3)
        assert [place for _, *place in receipts] == [[-1, -1], [-1, -1], [5, 2]]
        for number in range(3):
            second.send_payload(4, chunk(4, number))
        assert [place for _, *place in await second.receipts(3)] == [[-1, -1]] * 3


async def test_a_message_of_which_a_chunk_was_refused_is_stored_when_it_comes_again(
    autojump_clock: MockClock,
) -> None:
    """The client sends the last chunk before it knows that the one before was refused."""
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send_payload(4, chunk(4, 0))
        client.send_payload(4, chunk(4, 2))
        client.send_payload(4, chunk(4, -1))
        assert [place for _, *place in await client.receipts(1)] == [[5, 0]]
        refused = await client.wait(pb.CommandSendError, 2)
        assert [each.error for each in refused] == [pb.NotAllowedError] * 2
        assert "the chunk before it is not stored" in refused[0].message
        await take_over(cluster)
        second, success = await opened(cluster)
        assert success.last_sequence_id == -1
        for number in range(3):
            second.send_payload(4, chunk(4, number))
        assert [place for _, *place in await second.receipts(3)] == [[-1, -1], [5, 1], [5, 2]]


async def test_chunks_survive_in_the_snapshot(autojump_clock: MockClock) -> None:
    async with deduplicating(snapshot_entries=2) as cluster:
        client, _ = await opened(cluster)
        for number in (0, 1):
            client.send_payload(4, chunk(4, number))
        await client.receipts(2)
        await client.settle()
        assert cluster.broker.log().cursors[CURSOR].mark_delete == Position(5, 1)
        await take_over(cluster)
        second, _ = await opened(cluster)
        second.send_payload(4, chunk(4, 1))
        second.send_payload(4, chunk(4, 2))
        assert [place for _, *place in await second.receipts(2)] == [[-1, -1], [5, 2]]


async def test_a_snapshot_follows_so_many_entries_and_holds_what_is_confirmed(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating(snapshot_entries=10) as cluster:
        client, _ = await opened(cluster)
        for sequence_id in range(25):
            client.send(sequence_id)
        await client.receipts(25)
        await client.settle()
        cursor = cluster.broker.log().cursors[CURSOR]
        assert cursor.mark_delete == Position(5, 24)
        assert cursor.properties == {"p": 24}
        client.send(25)
        await client.receipts(1)
        await trio.sleep(9)
        assert cursor.mark_delete == Position(5, 24)
        await trio.sleep(2)
        assert cursor.mark_delete == Position(5, 25)


async def test_a_snapshot_follows_so_many_bytes(autojump_clock: MockClock) -> None:
    async with deduplicating(snapshot_bytes=10_000) as cluster:
        client, _ = await opened(cluster)
        client.send(0, bytes(11_000))
        await client.receipts(1)
        await client.settle()
        assert cluster.broker.log().cursors[CURSOR].mark_delete == Position(5, 0)


async def test_mark_delete_is_never_ahead_of_the_ids(autojump_clock: MockClock) -> None:
    """At any moment the ids cover all entries up to mark-delete."""
    async with deduplicating(snapshot_entries=3) as cluster:
        client, _ = await opened(cluster)
        cursor = cluster.broker.log().cursors[CURSOR]
        for sequence_id in range(50):
            client.send(sequence_id)
            await client.receipts(1)
            done = cursor.mark_delete.entry_id
            assert cursor.properties.get("p", -1) == done, "entry and sequence ids are the same"


async def test_a_closed_topic_leaves_a_snapshot(autojump_clock: MockClock) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send(0)
        await client.receipts(1)
        await cluster.broker.topics.unload(TopicName.parse(TOPIC))
        log = cluster.broker.log()
        assert log.cursors[CURSOR].mark_delete == log.last_confirmed
        assert log.cursors[CURSOR].properties == {"p": 0}


async def test_a_lost_snapshot_is_replayed_from_the_first_retained_entry(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        for sequence_id in range(20):
            client.send(sequence_id)
        await client.receipts(20)
        await cluster.broker.topics.unload(TopicName.parse(TOPIC))
        log = cluster.broker.log()
        del log.by_name[CURSOR]
        log.trimmed = 5
        second, success = await opened(cluster)
        assert success.last_sequence_id == 19
        second.send(7)
        assert await second.receipts(1) == [(7, *NO_PLACE)]
        assert cluster.broker.log().cursors[CURSOR].properties == {"p": 19}


async def test_a_broker_that_dies_before_the_first_snapshot_loses_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send(0)
        await client.receipts(1)
        await cluster.broker.topics.unload(TopicName.parse(TOPIC))
        del cluster.broker.log().by_name[CURSOR]
        with monkeypatch.context() as patch:
            patch.setattr(FakeCursor, "advance", lambda *_: None)  # It is not stored yet.
            await opened(cluster, "other")
            await take_over(cluster)
        _, success = await opened(cluster)
        assert success.last_sequence_id == 0


async def test_a_long_log_without_a_snapshot_is_replayed_in_part(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with deduplicating(replay_bytes_max=10_000) as cluster:
        client, _ = await opened(cluster, "early")
        client.send(0, producer_id=1)
        refused = (await client.wait(pb.CommandSendError))[0]
        assert "names the producer p" in refused.message
        late, _ = await opened(cluster)
        for sequence_id in range(40):
            late.send(sequence_id, bytes(1_000))
        await late.receipts(40)
        await cluster.broker.topics.unload(TopicName.parse(TOPIC))
        del cluster.broker.log().by_name[CURSOR]
        cluster.broker.log().reads = 0
        _, success = await opened(cluster)
        assert success.last_sequence_id == 39
        (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert "before the offset 31" in warning


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_replay_may_take_long_while_it_advances_and_no_longer(
    snapshot: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, a topic whose replay takes more than five minutes could never be loaded again."""
    limits = TopicLimits(loads=LoadLimits(load_s=60.0))
    async with open_broker(topic_limits=limits, settings={"keep_alive_s": 1e6}) as cluster:
        cluster.broker.policies.deduplication = True
        client, _ = await opened(cluster)
        for sequence_id in range(10):
            client.send(sequence_id)
        await client.receipts(10)
        if not snapshot:
            del cluster.broker.log().by_name[CURSOR]
        await take_over(cluster)
        read, seconds = FakeLog.read, [50.0]

        async def read_slowly(log: FakeLog, *args: Any, **options: Any) -> Any:
            await trio.sleep(seconds[0])
            return await read(log, *args, **options)

        monkeypatch.setattr(FakeLog, "read", read_slowly)
        monkeypatch.setattr(deduplication, "_READ_ENTRIES", 1)
        topics, begin_s = cluster.broker.topics, trio.current_time()
        topic = await topics.get(TopicName.parse(TOPIC), create=False)
        assert trio.current_time() - begin_s >= 500
        assert topic.deduplication is not None
        assert await topic.deduplication.last_stored("p") == 9
        await take_over(cluster)
        if not snapshot:
            del cluster.broker.log().by_name[CURSOR]
        seconds[0] = 61.0
        with pytest.raises(UnavailableError, match="was not loaded within 60 s"):
            await topics.get(TopicName.parse(TOPIC), create=False)


async def test_a_topic_that_cannot_be_read_now_is_not_opened_without_its_history(
    autojump_clock: MockClock,
) -> None:
    """Unknown is not new: messages that are stored would be stored once more."""
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send(0)
        await client.receipts(1)
        await take_over(cluster)
        second = await cluster.client()
        opening = cluster.broker.logs.open

        async def open_with_failing_reads(name: TopicName, **options: Any) -> FakeLog:
            log = await opening(name, **options)
            log.reads_to_fail = 1
            return log

        cluster.broker.logs.open = open_with_failing_reads  # type: ignore[method-assign]
        assert (await second.producer(producer_name="p")).error == pb.ServiceNotReady
        cluster.broker.logs.open = opening  # type: ignore[method-assign]
        await trio.sleep(5)
        assert (await second.producer(producer_name="p")).last_sequence_id == 0


async def test_switched_off_the_cursor_is_deleted(autojump_clock: MockClock) -> None:
    """It would keep every ledger from here on."""
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send(0)
        await client.receipts(1)
        cluster.broker.policies.deduplication = False
        await client.wait(pb.CommandCloseProducer)  # within seconds
        success = await client.producer(2, producer_name="p")
        assert success.last_sequence_id == -1
        assert CURSOR not in cluster.broker.log().cursors


async def test_the_policy_of_a_topic_overrides_that_of_its_namespace(
    autojump_clock: MockClock,
) -> None:
    async with deduplicating() as cluster:
        cluster.broker.policies.topic_deduplication[TOPIC] = False
        client, _ = await opened(cluster)
        client.send(0)
        client.send(0)
        assert await client.receipts(2) == [(0, 5, 0), (0, 5, 1)]
        await trio.sleep(20)
        assert not client.got, "the policy of the namespace does not close it"


async def test_subscriptions_do_not_see_the_cursor(autojump_clock: MockClock) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send(0)
        await client.receipts(1)
        await take_over(cluster)
        await opened(cluster)
        topic = cluster.broker.topics.loaded[TOPIC]
        assert CURSOR in topic.log.cursors
        assert list(topic.subscriptions.by_name) == []


@pytest.mark.parametrize("name", ["daybook.sink.7", "daybook.chunks/p"])
async def test_reserved_names_are_refused(autojump_clock: MockClock, name: str) -> None:
    async with deduplicating() as cluster:
        client = await cluster.client()
        refused = await client.producer(producer_name=name)
        assert "reserved" in refused.message


async def test_a_message_that_names_another_producer_is_refused(autojump_clock: MockClock) -> None:
    """The next owner counts by the names in the entries, so they have to be those of producers."""
    async with deduplicating() as cluster:
        client, _ = await opened(cluster, "somebody")
        client.send(0)
        (refused,) = await client.wait(pb.CommandSendError)
        assert "somebody" in refused.message
        assert not cluster.broker.log().entries


async def test_ids_beyond_what_pulsar_can_store_are_refused(autojump_clock: MockClock) -> None:
    async with deduplicating() as cluster:
        client, _ = await opened(cluster)
        client.send(1 << 63)
        (refused,) = await client.wait(pb.CommandSendError)
        assert "not in order" in refused.message


async def test_a_generated_name_is_one_that_is_forgotten(autojump_clock: MockClock) -> None:
    async with deduplicating(generated_s=30.0, snapshot_s=1.0) as cluster:
        client = await cluster.client()
        name = (await client.producer()).producer_name
        assert name.startswith(GENERATED)
        topic = cluster.broker.topics.loaded[TOPIC]
        assert topic.deduplication is not None
        assert topic.deduplication.names == 1
        client.frames.close("gone")
        await trio.sleep(1)
        assert topic.deduplication.names == 0, "it sent nothing"
