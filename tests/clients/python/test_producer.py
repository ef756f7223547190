"""The producer against a fake broker: the outcome of sends when brokers fail."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import trio

import daybook
from daybook.clients.python.arguments import Compression
from daybook.clients.python.client import Client
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.protocol.batching import BatchBuilder
from daybook.wire.batch import iter_batch, parse_metadata
from daybook.wire.compression import decompress
from daybook.wire.messages.client import Send
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster, fake_cluster, until

T = pb.BaseCommand
TOPIC = "persistent://public/default/t"
REFUSED = 10_000  # as good as always
QUICK = ClientLimits(
    connect_timeout_s=60, request_timeout_s=60, backoff_initial_s=0.01, backoff_max_s=0.05
)


def stored(cluster: FakeCluster, topic: str = TOPIC) -> list[bytes]:
    found: list[bytes] = []
    for entry in cluster.topics[topic].entries:
        metadata, body = parse_metadata(memoryview(entry.payload))
        data = bytes(decompress(metadata.compression, body, metadata.uncompressed_size, 1 << 20))
        if metadata.HasField("num_messages_in_batch"):
            found += [each for _, each in iter_batch(data, metadata.num_messages_in_batch)]
        else:
            found.append(data)
    return found


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
async def test_every_codec(compression: Compression) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", compression=compression)
        for n in range(50):
            producer.send_nowait(b"x" * n)
        await producer.flush()
        assert stored(cluster) == [b"x" * n for n in range(50)]


async def test_without_batching_each_message_is_an_entry() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", batching=False)
        consumer = await client.subscribe("t", "s")
        ids = [await producer.send(b"%d" % n, key=b"\xff\x00") for n in range(3)]
        assert [each.batch_index for each in ids] == [-1, -1, -1]
        messages = [await consumer.receive() for _ in range(3)]
        assert [m.message_id for m in messages] == ids
        assert messages[0].key_bytes == b"\xff\x00"
        assert len(cluster.topics[TOPIC].entries) == 3


async def test_a_message_alone_does_not_wait_and_many_share_their_way() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        broker = cluster.brokers["b1"]
        producer = await client.create_producer("t", batch_delay_s=60)
        with trio.fail_after(PATIENCE_S):
            await producer.send(b"alone")
        broker.hold_receipts = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, b"first")
            await until(lambda: len(broker.commands(Send)) == 2)
            for _ in range(10):
                nursery.start_soon(producer.send, b"later")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(broker.commands(Send)) == 2  # They wait for the receipt, together.
            broker.release_receipts()
        sends = broker.commands(Send)
        assert [send.num_messages for send in sends] == [1, 1, 10]


async def test_after_a_takeover_everything_is_sent_again_in_order() -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=QUICK) as client:
            producer = await client.create_producer("t", batch_messages_max=10)
            first = cluster.brokers["b1"]
            first.drop_sends = True
            for n in range(100):
                producer.send_nowait(b"%d" % n)
            await until(lambda: len(first.commands(Send)) == 10)
            lost = len(stored(cluster))
            cluster.owner[TOPIC] = "b2"
            first.kill()
            for n in range(100, 150):
                producer.send_nowait(b"%d" % n)
            with trio.fail_after(PATIENCE_S):
                await producer.flush()
            expected = [b"%d" % n for n in range(150)]
            assert stored(cluster)[lost:] == expected
            sent_before = [(s.sequence_id, s.highest_sequence_id) for s in first.commands(Send)]
            second = cluster.brokers["b2"]
            sent_again = [(s.sequence_id, s.highest_sequence_id) for s in second.commands(Send)]
            assert sent_again[:10] == sent_before
            assert second.commands(pb.CommandProducer)[0].epoch == 1
            assert second.commands(pb.CommandProducer)[0].producer_name == producer.name


async def test_a_batch_that_was_made_before_is_sent_in_its_turn() -> None:
    async with fake_cluster() as cluster:
        cluster.brokers["b1"].max_message_size = 1000
        async with daybook.connect(cluster.url) as client:
            await send_made_batches(cluster, client)


async def send_made_batches(cluster: FakeCluster, client: Client) -> None:
    async with await client.create_producer("t") as producer:
        builder = BatchBuilder(10, 1000)
        for value in (b"2", b"3"):
            builder.add(value, "k", 0)
        batch = builder.take()
        producer.send_nowait(b"1")
        producer.send_batch_nowait(batch)
        producer.send_batch_nowait(batch)
        producer.send_nowait(b"4")
        with pytest.raises(daybook.MessageTooLargeError, match="takes at most 1000"):
            producer.send_batch_nowait(replace(batch, body=bytes(1001)))
        await producer.flush()
        assert stored(cluster) == [b"1", b"2", b"3", b"2", b"3", b"4"]
        sends = cluster.brokers["b1"].commands(Send)
        ids = [(send.sequence_id, send.highest_sequence_id) for send in sends]
        assert [first for first, _ in ids] == [0, 1, 3, 5]
        assert producer.last_sequence_id == 5
    with pytest.raises(daybook.ClosedError):
        producer.send_batch_nowait(batch)


async def test_a_producer_that_the_broker_closes_comes_back() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t")
        await producer.send(b"1")
        cluster.brokers["b1"].close_producers()
        with trio.fail_after(PATIENCE_S):
            await producer.send(b"2")
        assert stored(cluster) == [b"1", b"2"]


async def test_a_storage_failure_starts_the_queue_over() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", batch_messages_max=1)
        cluster.brokers["b1"].send_errors = [pb.PersistenceError] * 3
        for n in range(5):
            producer.send_nowait(b"%d" % n)
        with trio.fail_after(PATIENCE_S):
            await producer.flush()
        assert stored(cluster)[-5:] == [b"%d" % n for n in range(5)]


async def test_a_damaged_message_fails_alone() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        cluster.brokers["b1"].send_errors = [pb.ChecksumError]
        with pytest.raises(daybook.BrokerError) as caught:
            await producer.send(b"1")
        assert caught.value.outcome is daybook.Outcome.NOT_APPLIED
        await producer.send(b"2")
        assert stored(cluster) == [b"2"]


async def test_a_terminated_topic_ends_the_producer() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        cluster.brokers["b1"].send_errors = [pb.TopicTerminatedError]
        with pytest.raises(daybook.TopicTerminatedError):
            await producer.send(b"1")
        with pytest.raises(daybook.TopicTerminatedError):
            await producer.send(b"2")


async def test_a_send_without_receipt_in_time_is_in_doubt() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", send_timeout_s=0.05)
        cluster.brokers["b1"].drop_sends = True
        with pytest.raises(daybook.RequestTimedOutError) as caught:
            await producer.send(b"1")
        assert caught.value.outcome is daybook.Outcome.UNKNOWN
        cluster.brokers["b1"].drop_sends = False
        with trio.fail_after(PATIENCE_S):
            while b"2" not in stored(cluster):
                # On a busy machine that time is short.
                with suppress(daybook.RequestTimedOutError):
                    await producer.send(b"2")
        assert producer.pending_bytes == 0


async def test_a_send_that_no_broker_took_is_not_applied() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", send_timeout_s=0.1)
        cluster.brokers["b1"].kill()
        await until(lambda: not producer.connected)
        with pytest.raises(daybook.UnavailableError) as caught:
            await producer.send(b"1")
        assert caught.value.outcome is daybook.Outcome.NOT_APPLIED


def fewer(refusals: list[tuple[int, str]], left: int) -> bool:
    return len(refusals) < left


async def detach(cluster: FakeCluster, refusals: list[tuple[int, str]]) -> None:
    """Let the broker close the producer of topic t, and refuse it from then on."""
    broker = cluster.brokers["b1"]
    broker.refusals[T.PRODUCER] = refusals
    broker.close_producers()
    await until(lambda: len(refusals) < REFUSED)


async def test_a_send_that_a_refusal_holds_up_fails_with_the_reason() -> None:
    """The error named no reason before, and advised to look at the address of the broker."""
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", send_timeout_s=0.1)
        quota = pb.ProducerBlockedQuotaExceededError
        await detach(cluster, [(quota, "the backlog is too large")] * REFUSED)
        with pytest.raises(
            daybook.OverloadedError, match="not stored: the backlog is too"
        ) as caught:
            await producer.send(b"1")
        assert (caught.value.outcome, caught.value.code) == (daybook.Outcome.NOT_APPLIED, quota)
        assert stored(cluster) == []


async def test_a_refusal_that_lasts_is_logged_once_whatever_other_topics_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The attachment of any other topic let the client log it again, as a broker not found."""
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        await client.create_producer("t")
        refusals: list[tuple[int, str]] = [
            (pb.ProducerBlockedQuotaExceededError, "the backlog is too large")
        ] * REFUSED
        await detach(cluster, refusals)
        for number in range(3):
            left = len(refusals) - 1
            await client.subscribe(f"other-{number}", "s")
            await until(partial(fewer, refusals, left))
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "trying again" in line] == [
        "a broker refused, and the client is trying again: the backlog is too large"
        " (ProducerBlockedQuotaExceededError)"
    ]


async def test_a_quota_with_an_exception_fails_sends_at_once_and_later_ones_are_stored() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", send_timeout_s=3600)
        patient = await client.create_producer("t", send_timeout_s=None)
        quota = pb.ProducerBlockedQuotaExceededException
        refusals: list[tuple[int, str]] = [(quota, "the backlog is too large")] * REFUSED
        await detach(cluster, refusals)
        with trio.fail_after(PATIENCE_S):
            with pytest.raises(daybook.OverloadedError, match="the backlog is too large"):
                await producer.send(b"1")
            with pytest.raises(daybook.OverloadedError, match="the backlog is too large"):
                await client.create_producer("t")  # The first attempt is not repeated either.
            patient.send_nowait(b"2")
            refusals.clear()
            await producer.send(b"3")
            await patient.flush()
        assert sorted(stored(cluster)) == [b"2", b"3"]


async def test_what_nobody_watches_fails_at_the_flush() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        cluster.brokers["b1"].send_errors = [pb.ChecksumError]
        producer.send_nowait(b"1")
        with pytest.raises(daybook.BrokerError):
            await producer.flush()
        await producer.flush()


async def test_only_so_much_is_pending() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        broker = cluster.brokers["b1"]
        broker.hold_receipts = True
        producer = await client.create_producer("t", pending_bytes_max=10_000, batch_bytes_max=100)
        for _ in range(100):
            producer.send_nowait(bytes(100))
        with pytest.raises(daybook.QueueFullError):
            producer.send_nowait(bytes(100))
        assert 10_000 <= producer.pending_bytes < 12_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, b"waits")
            await trio.testing.wait_all_tasks_blocked(0.01)
            broker.release_receipts()
        await producer.flush()
        assert producer.pending_bytes == 0


async def test_a_message_above_the_limit_is_refused_at_once() -> None:
    async with fake_cluster() as cluster:
        cluster.brokers["b1"].max_message_size = 1000
        async with daybook.connect(cluster.url) as client:
            producer = await client.create_producer("t")
            with pytest.raises(daybook.MessageTooLargeError):
                producer.send_nowait(bytes(1001))
            await producer.send(bytes(1000))


async def test_leaving_the_block_stores_what_was_sent() -> None:
    async with fake_cluster() as cluster:
        async with daybook.connect(cluster.url) as client:
            producer = await client.create_producer("t")
            producer.send_nowait(b"1")
        assert stored(cluster) == [b"1"]


async def test_what_the_application_raises_comes_out_as_it_is() -> None:
    async with fake_cluster() as cluster:
        client = daybook.connect(cluster.url)
        with pytest.raises(KeyError):
            async with client:
                raise KeyError


async def test_keys_decide_the_partition_and_others_take_turns() -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.partitions[TOPIC] = 4
        for n in range(4):
            cluster.owner[f"{TOPIC}-partition-{n}"] = ("b1", "b2")[n % 2]
        async with daybook.connect(cluster.url) as client:
            producer = await client.create_producer("t")
            consumer = await client.subscribe("t", "s")
            assert producer.partitions == consumer.partitions == 4
            by_key: dict[str, set[int]] = {}
            for n in range(40):
                message_id = await producer.send(b"%d" % n, key=f"k{n % 8}")
                by_key.setdefault(f"k{n % 8}", set()).add(message_id.partition)
            assert all(len(partitions) == 1 for partitions in by_key.values())
            assert len(set.union(*by_key.values())) > 1
            turns = [(await producer.send(b"")).partition for _ in range(8)]
            assert sorted(turns) == [0, 0, 1, 1, 2, 2, 3, 3]
            got = [await consumer.receive() for _ in range(48)]
            assert {m.partition for m in got} == {0, 1, 2, 3}
            for key, (partition,) in ((k, tuple(p)) for k, p in by_key.items()):
                mine = [int(m.data or b"") for m in got if m.key == key]
                assert mine == sorted(mine)
                assert {m.partition for m in got if m.key == key} == {partition}
            await consumer.ack(got)


async def test_a_refusal_for_good_is_raised() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.brokers["b1"].refusals[5] = [(pb.ProducerBusy, "taken")]
        with pytest.raises(daybook.BusyError, match="taken"):
            await client.create_producer("t", name="p")
        cluster.brokers["b1"].refusals[5] = [(pb.ServiceNotReady, "soon")]
        await client.create_producer("t", name="p")


async def test_a_redirect_is_followed() -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b2"
        cluster.brokers["b1"].redirect_to = "b2"
        async with daybook.connect(f"pulsar://127.0.0.1:{cluster.brokers['b1'].port}") as client:
            producer = await client.create_producer("t")
            await producer.send(b"1")
        assert cluster.brokers["b2"].commands(Send)


async def test_a_dead_service_address_is_passed_over() -> None:
    async with fake_cluster("b1", "b2", "b3") as cluster:
        url = cluster.url
        cluster.brokers["b1"].kill()
        cluster.brokers["b2"].kill()
        cluster.owner[TOPIC] = "b3"
        async with daybook.connect(url, limits=QUICK) as client:
            await (await client.create_producer("t")).send(b"1")


async def test_a_broker_that_falls_silent_is_left() -> None:
    limits = ClientLimits(keep_alive_s=0.2, backoff_initial_s=0.01, backoff_max_s=0.05)
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=limits) as client:
            producer = await client.create_producer("t")
            await producer.send(b"1")
            cluster.brokers["b1"].silent = True
            cluster.owner[TOPIC] = "b2"
            with trio.fail_after(PATIENCE_S):
                await producer.send(b"2")


async def test_sequence_ids_of_the_application() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", initial_sequence_id=100)
        consumer = await client.subscribe("t", "s")
        producer.send_nowait(b"a")
        producer.send_nowait(b"b", sequence_id=205)
        producer.send_nowait(b"c")
        with pytest.raises(ValueError, match="must be above"):
            producer.send_nowait(b"d", sequence_id=206)
        await producer.flush()
        got = [await consumer.receive() for _ in range(3)]
        assert [m.sequence_id for m in got] == [100, 205, 206]
        sends = cluster.brokers["b1"].commands(Send)
        ids = [(send.sequence_id, send.highest_sequence_id) for send in sends]
        assert ids == [(100, None), (205, 206)]


async def test_what_is_no_message() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        with pytest.raises(TypeError):
            producer.send_nowait("text")  # type: ignore[arg-type]
        buffer = bytearray(b"before")
        producer.send_nowait(buffer)
        buffer[:] = b"after."
        await producer.flush()
        assert stored(cluster) == [b"before"]
        with pytest.raises(ValueError, match="compression"):
            await client.create_producer("t", compression="rar")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="topic name"):
            await client.create_producer("a/b")


async def test_it_may_be_abandoned_after_its_end() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s")
        reader = await client.create_reader("t")
        for each in (producer, consumer, reader):
            await each.aclose()
            each.abandon()
            each.abandon()


@pytest.mark.parametrize("batching", [True, False])
async def test_a_message_without_a_value_is_a_tombstone(batching: bool) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s")
        async with await client.create_producer("t", batching=batching, batch_delay_s=10) as sender:
            sender.send_nowait(b"old", key="k")
            sender.send_nowait(None, key="k", properties={"why": "gone"})
            sender.send_nowait(b"", key="k")
            await sender.send(None, key=b"\xff")
        entries = cluster.topics[TOPIC].entries
        assert (len(entries) < 4) == batching
        got = [await consumer.receive() for _ in range(4)]
        assert [m.data for m in got] == [b"old", None, b"", None]
        assert [m.is_null for m in got] == [False, True, False, True]
        assert [m.key_bytes for m in got] == [b"k", b"k", b"k", b"\xff"]
        assert got[1].properties == {"why": "gone"}
        assert "a tombstone" in repr(got[1])
        if not batching:  # Other clients find it in the metadata of the entry.
            heads = [parse_metadata(memoryview(entry.payload))[0] for entry in entries]
            assert [head.null_value for head in heads] == [False, True, False, True]


async def test_a_blocking_producer_sends_tombstones() -> None:
    async with fake_cluster() as cluster:

        def work() -> None:
            with daybook.blocking.connect(cluster.url) as client:
                with client.create_producer("t") as producer:
                    producer.send_nowait(None, key="k")
                    producer.send(None, key="k")
                with client.create_reader("t", start="earliest") as reader:
                    assert [reader.receive(PATIENCE_S).data for _ in range(2)] == [None, None]

        await trio.to_thread.run_sync(work)


async def test_a_producer_that_closes_takes_no_message_that_nobody_would_store() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        await producer.aclose()
        with pytest.raises(daybook.ClosedError):
            producer.send_nowait(b"x")
