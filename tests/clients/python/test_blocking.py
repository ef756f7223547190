"""The client without trio: the same, from an ordinary thread."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import trio

import daybook
from daybook import blocking
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster, fake_cluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster in a thread of its own."""
    started: Future[FakeCluster] = Future()
    done = trio.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with fake_cluster() as made:
            started.set_result(made)
            await done.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    yield started.result()
    tokens[0].run_sync_soon(done.set)
    thread.join()


def test_there_and_back(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        assert client.partitions("t") == 0
        with (
            client.create_producer("t", compression="zstd") as producer,
            client.subscribe("t", "s", ack_receipts=True) as consumer,
            client.create_reader("t", start="earliest") as reader,
        ):
            assert producer.send(b"0", key="k") == daybook.MessageId(7, 0, 0)
            for n in range(1, 3000):
                producer.send_nowait(b"%d" % n)
            producer.flush()
            assert producer.last_sequence_id == 2999
            first = consumer.receive(timeout_s=PATIENCE_S)
            assert (first.data, first.key) == (b"0", "k")
            got = [first]
            while len(got) < 3000:
                got += consumer.receive_batch(500, timeout_s=PATIENCE_S)
            assert [m.data for m in got] == [b"%d" % n for n in range(3000)]
            consumer.ack(got)
            assert consumer.receive_batch(timeout_s=0.01) == []
            with pytest.raises(TimeoutError):
                consumer.receive(timeout_s=0.01)
            assert reader.has_message_available()
            assert reader.receive().data == b"0"
            assert client.offsets("t") == daybook.OffsetRange(0, 3000)


def test_acks_without_receipts_arrive_before_the_end(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s")
        producer.send_nowait(b"0")
        consumer.ack(consumer.receive(timeout_s=PATIENCE_S))
    topic = cluster.topics["persistent://public/default/t"]
    assert topic.subscriptions["s"].acked == {0}


def test_what_goes_wrong_is_raised(cluster: FakeCluster) -> None:
    results: list[daybook.BrokerError | None] = []
    with blocking.connect(cluster.url) as client:
        with pytest.raises(ValueError, match="compression"):
            client.create_producer("t", compression="rar")
        producer = client.create_producer("t")
        producer.send_nowait(bytes(6 << 20))
        with pytest.raises(daybook.MessageTooLargeError):
            producer.flush()
        producer.send_nowait(bytes(6 << 20), on_result=lambda _, error: results.append(error))
        producer.flush()
    assert isinstance(results[0], daybook.MessageTooLargeError)
    with pytest.raises(trio.ClosedResourceError):
        client.partitions("t")
    with pytest.raises(ValueError, match="service URL"):
        blocking.connect("http://x")


def test_memory_is_bounded_while_the_broker_is_slow(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t", pending_bytes_max=1 << 20)
        for _ in range(300):
            producer.send_nowait(bytes(100_000))
        producer.flush()
    topic = cluster.topics["persistent://public/default/t"]
    assert topic.next_offset == 300
