"""The blocking client behaves like the trio client, from an ordinary thread."""

import asyncio
import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import trio

import daybook
from daybook import blocking
from daybook.clients.python.errors import refusal
from daybook.clients.python.message_queue import MessageQueue
from daybook.clients.python.portal import Portal
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster, until


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


def has_entries(queue: MessageQueue, count: int) -> bool:
    return sum(map(len, queue._entries.values())) == count


def test_a_timeout_of_zero_receives_what_has_arrived(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t", batching=False)
        consumer = client.subscribe("t", "s", initial_position="earliest")
        reader = client.create_reader("t", start="earliest")
        sources: list[blocking.Consumer | blocking.Reader] = [consumer, reader]
        for source in sources:
            with pytest.raises(TimeoutError, match="no message is waiting"):
                source.receive(0)
            assert source.receive_batch(10, 0) == []
        for n in range(5):
            producer.send(b"%d" % n)
        for source in sources:
            queue = source._source._queue
            client._portal.call(until, partial(has_entries, queue, 5))
            assert source.receive(0).data == b"0"
            assert [message.data for message in source.receive_batch(2, 0)] == [b"1", b"2"]
            assert [source.receive(0).data for _ in range(2)] == [b"3", b"4"]
            with pytest.raises(TimeoutError):
                source.receive(0)
        assert not reader.has_message_available()


def test_a_timeout_that_is_none_is_named(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        consumer = client.subscribe("t", "s")
        with pytest.raises(ValueError, match="timeout_s must not be negative: -1"):
            consumer.receive(-1)
        with pytest.raises(TypeError, match="timeout_s must be a number of seconds, not str"):
            consumer.receive("a")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout_s must not be negative: nan"):
            consumer.receive_batch(10, float("nan"))


def test_what_goes_wrong_is_raised(cluster: FakeCluster) -> None:
    results: list[daybook.BrokerError | None] = []
    with blocking.connect(cluster.url) as client:
        with pytest.raises(ValueError, match="compression"):
            client.create_producer("t", compression="rar")  # type: ignore[arg-type]
        producer = client.create_producer("t")
        producer.send_nowait(bytes(6 << 20))
        with pytest.raises(daybook.MessageTooLargeError):
            producer.flush()
        producer.send_nowait(bytes(6 << 20), on_result=lambda _, error: results.append(error))
        producer.flush()
    assert isinstance(results[0], daybook.MessageTooLargeError)
    with pytest.raises(daybook.ClosedError):
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


def test_several_threads_receive_from_one(cluster: FakeCluster) -> None:
    """Messages that come together are fetched by one thread, and are for all that wait."""
    with blocking.connect(cluster.url) as client:
        consumer = client.subscribe("t", "s")
        with ThreadPoolExecutor(4) as threads:
            ones = [threads.submit(consumer.receive, PATIENCE_S) for _ in range(2)]
            some = [threads.submit(consumer.receive_batch, 1, PATIENCE_S) for _ in range(2)]
            producer = client.create_producer("t", batch_delay_s=PATIENCE_S)
            for n in range(4):
                producer.send_nowait(b"%d" % n)
            producer.flush()
            found = [one.result().data for one in ones]
            found += [message.data for each in some for message in each.result()]
        assert set(found) == {b"0", b"1", b"2", b"3"}
        assert len(found) == 4


def test_an_interrupted_receive_loses_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes when the messages have been fetched, and the caller has none yet."""
    call = Portal.call

    def interrupted(*arguments: Any, **options: Any) -> None:
        call(*arguments, **options)
        raise KeyboardInterrupt

    with blocking.connect(cluster.url) as client:
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        for n in range(3):
            producer.send(b"%d" % n)
        with monkeypatch.context() as patch:
            patch.setattr(Portal, "call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive(PATIENCE_S)
        assert [consumer.receive(PATIENCE_S).data for _ in range(3)] == [b"0", b"1", b"2"]


def test_all_threads_that_wait_hear_of_the_end(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        consumer = client.subscribe("t", "s")
        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(consumer.receive, PATIENCE_S) for _ in range(2)]
            with pytest.raises(TimeoutError):
                threads.submit(consumer.receive, 0.05).result()
            consumer.close()
            for each in waiting:
                assert isinstance(each.exception(PATIENCE_S), daybook.ClosedError)


LOST = 120  # the exit code of a program that lost messages at its end
UNCLOSED = """
import sys
import daybook
client = daybook.blocking.connect(sys.argv[1])
producer = client.create_producer("t", send_timeout_s=None)
consumer = client.subscribe("t", "s", initial_position="earliest")
for n in range(1000):
    producer.send_nowait(b"%d" % n)
"""


def run_to_its_end(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_what_a_program_sent_before_it_ended_is_stored(cluster: FakeCluster) -> None:
    done = run_to_its_end(UNCLOSED, cluster.url)
    assert (done.returncode, done.stderr) == (0, "")
    entries = cluster.topics["persistent://public/default/t"].entries
    assert sum(entry.count for entry in entries) == 1000


def test_what_a_program_acknowledged_before_it_ended_is_acknowledged(cluster: FakeCluster) -> None:
    program = UNCLOSED + "producer.flush()\nconsumer.ack(consumer.receive())\n"
    assert run_to_its_end(program, cluster.url).returncode == 0
    topic = cluster.topics["persistent://public/default/t"]
    subscription = topic.subscriptions["s"]
    assert subscription.acked or subscription.pending  # the whole batch, or a part of it


def test_a_program_that_ends_says_what_was_not_stored(cluster: FakeCluster) -> None:
    next(iter(cluster.brokers.values())).drop_sends = True
    impatient = "from daybook.clients.python import portal\nportal.EXIT_S = 0.5\n"
    done = run_to_its_end(impatient + UNCLOSED, cluster.url)
    assert done.returncode == LOST
    assert "1000 messages to persistent://public/default/t have no receipt" in done.stderr
    assert "Call flush() or close()" in done.stderr


def test_a_program_that_ends_says_what_failed(cluster: FakeCluster) -> None:
    program = UNCLOSED + "producer.send_nowait(bytes(6 << 20))\n"
    done = run_to_its_end(program, cluster.url)
    assert done.returncode == LOST
    assert "MessageTooLargeError" in done.stderr


def test_a_forked_process_does_not_finish_what_its_parent_began(cluster: FakeCluster) -> None:
    program = UNCLOSED + "import os\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\n"
    done = run_to_its_end(program, cluster.url)
    assert (done.returncode, done.stderr) == (0, "")
    entries = cluster.topics["persistent://public/default/t"].entries
    assert sum(entry.count for entry in entries) == 1000


def test_what_cannot_be_a_message_is_refused_where_it_is_sent(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client, client.create_producer("t") as producer:
        with pytest.raises(TypeError, match="data must be bytes, or None for a tombstone, not str"):
            producer.send_nowait("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"properties\['a'\] must be text, not int"):
            producer.send_nowait(b"", properties={"a": 1})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="properties must be a mapping of texts, not list"):
            producer.send_nowait(b"", properties=["a"])  # type: ignore[arg-type]
        producer.send_nowait(b"good")
    entries = cluster.topics["persistent://public/default/t"].entries
    assert sum(entry.count for entry in entries) == 1


def test_what_cannot_be_said_of_a_message_is_named(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client, client.create_producer("t") as producer:
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(TypeError, match="must be an integer, not datetime; write"):
                send(b"", event_time_ms=datetime.now(UTC))  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="event_time_ms must not be negative"):
                send(b"", event_time_ms=-1)
            with pytest.raises(TypeError, match="sequence_id must be an integer, not str"):
                send(b"", sequence_id="a")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="on_result must be a function, not int"):
            producer.send_nowait(b"", on_result=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="send_timeout_s must not be negative: -1"):
            client.create_producer("t", send_timeout_s=-1)
    with pytest.raises(TypeError, match="timeout_s must be a number of seconds, not str"):
        blocking.connect(cluster.url, timeout_s="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_s must not be negative: -1"):
        blocking.connect(cluster.url, timeout_s=-1)


def test_a_closed_client_says_so_in_its_own_words(cluster: FakeCluster) -> None:
    client = blocking.connect(cluster.url)
    consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
    producer.send(b"x")
    message = consumer.receive(PATIENCE_S)
    client.close()
    uses: list[Callable[[], object]] = [
        lambda: client.create_producer("t"),
        lambda: client.subscribe("t", "s"),
        lambda: consumer.receive(),
        lambda: consumer.ack(message),
        lambda: producer.flush(),
    ]
    for use in uses:
        with pytest.raises(daybook.ClosedError, match="the client is closed"):
            use()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_to_connect_again(cluster: FakeCluster) -> None:
    program = UNCLOSED + (
        "import os\nproducer.flush()\n"
        "if os.fork() == 0:\n"
        "    try:\n        producer.send(b'x')\n"
        "    except daybook.ClosedError as error:\n        print(error, flush=True)\n"
        "    client.close()\n    os._exit(0)\n"
        "os.wait()\n"
    )
    done = run_to_its_end(program, cluster.url)
    assert "from which this process was forked: connect again in this process" in done.stdout


def test_a_blocking_call_in_an_event_loop_warns_once(cluster: FakeCluster) -> None:
    async def use(client: blocking.Client) -> None:
        with pytest.warns(RuntimeWarning, match=r"runs (trio|asyncio) stops all tasks there"):
            client.partitions("t")
        client.partitions("t")

    with blocking.connect(cluster.url) as client:
        trio.run(use, client)
    with blocking.connect(cluster.url) as client:
        asyncio.run(use(client))


def test_a_code_that_the_broker_has_written_is_not_written_twice() -> None:
    error = refusal(pb.NotAllowedError, "no (NotAllowedError)")
    assert str(error) == "no (NotAllowedError)"
    assert str(refusal(pb.NotAllowedError, "no")) == "no (NotAllowedError)"


def test_a_namespace_that_is_missing_comes_with_advice() -> None:
    error = refusal(pb.TopicNotFound, "the namespace a/b does not exist")
    assert "create_namespace" in error.__notes__[0]


def test_what_is_open_says_what_it_is(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t", name="p")
        consumer = client.subscribe("t", "s", type="shared", consumer_name="c")
        reader = client.create_reader("t", name="r")
        topic = "persistent://public/default/t"
        assert repr(client) == (
            f"<Client of {cluster.url}, producers: 1, consumers and readers: 2>"
        )
        assert repr(producer) == f"<Producer 'p' of {topic}, connected>"
        assert repr(consumer) == f"<Consumer 'c' of {topic}, shared subscription 's', connected>"
        assert repr(reader) == f"<Reader 'r' of {topic}, connected>"
        reader.close()
        assert repr(reader) == f"<Reader 'r' of {topic}, closed>"
    assert repr(producer) == f"<Producer 'p' of {topic}, closed>"
    assert repr(client).endswith("closed>")


def test_an_ack_to_a_closed_consumer_says_so(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        consumer = client.subscribe("t", "s")
        client.create_producer("t").send(b"x")
        message = consumer.receive(PATIENCE_S)
        consumer.close()
        with pytest.raises(daybook.ClosedError, match="this consumer was closed"):
            consumer.ack(message)


@pytest.mark.parametrize("kind", ["Client", "Producer", "Consumer", "Reader", "Admin"])
def test_the_help_of_the_client_without_trio_is_that_of_the_other(kind: str) -> None:
    cls = getattr(blocking, kind)
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and hasattr(method, "__signature__"):
            assert "options" not in inspect.signature(method).parameters
    if kind == "Client":
        said = pydoc.render_doc(cls.subscribe)
        assert "initial_position: Literal['earliest', 'latest']" in said
        assert "shared to all of them in turn" in said
