"""A message that was accepted is stored or reported, however its client ends."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

import daybook
from daybook import blocking
from daybook.clients.python.portal import Portal
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster

COUNT = 1000
TOPIC = "persistent://public/default/t"


class Results:
    """Counts the calls of each message's `on_result`."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()

    def of(self, number: int) -> Callable[[object, object], None]:
        def on_result(message_id: object, error: object) -> None:
            self.calls[number] += 1
            self.errors[type(error).__name__ if error else "stored"] += 1

        return on_result


def stored(cluster: FakeCluster) -> int:
    return sum(entry.count for entry in cluster.topics[TOPIC].entries)


def silence(cluster: FakeCluster) -> None:
    """Suppress all receipts from now on."""
    next(iter(cluster.brokers.values())).drop_sends = True


# -- the client is closed


def close(client: blocking.Client) -> None:
    client.close()


def leave(client: blocking.Client) -> None:
    with client:
        pass


def leave_with_an_error(client: blocking.Client) -> None:
    with pytest.raises(ZeroDivisionError), client:
        raise ZeroDivisionError


ENDS = [close, leave, leave_with_an_error]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("watched", [True, False])
def test_what_was_queued_is_stored_when_the_client_is_closed(
    cluster: FakeCluster, end: Callable[[blocking.Client], None], watched: bool
) -> None:
    results = Results()
    client = blocking.connect(cluster.url)
    producer = client.create_producer("t")
    for n in range(COUNT):
        producer.send_nowait(b"%d" % n, on_result=results.of(n) if watched else None)
    end(client)
    assert stored(cluster) == COUNT
    assert results.calls == (dict.fromkeys(range(COUNT), 1) if watched else {})
    assert set(results.errors) <= {"stored"}


def test_a_client_that_is_closed_raises_what_could_not_be_stored(cluster: FakeCluster) -> None:
    silence(cluster)
    client = blocking.connect(cluster.url)
    producer = client.create_producer("t", send_timeout_s=0.2)
    for n in range(COUNT):
        producer.send_nowait(b"%d" % n)
    with pytest.raises(daybook.RequestTimedOutError):
        client.close()


def test_a_failure_that_the_producer_has_raised_is_not_raised_by_the_client_again(
    cluster: FakeCluster,
) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t")
        producer.send_nowait(bytes(6 << 20))
        with pytest.raises(daybook.MessageTooLargeError):
            producer.close()
        producer.close()


@pytest.mark.parametrize("how", ["portal", "interrupt"])
def test_each_callback_is_called_once_when_the_client_is_cut_off(
    cluster: FakeCluster, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(cluster)
    results = Results()
    client = blocking.connect(cluster.url)
    producer = client.create_producer("t", send_timeout_s=None, pending_bytes_max=1000)
    for n in range(COUNT):
        producer.send_nowait(bytes(100), on_result=results.of(n))
    if how == "portal":
        other = threading.Thread(target=client._portal.close)
        other.start()
        other.join()
    else:

        def interrupted(*arguments: Any, **options: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Portal, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
    assert results.calls == dict.fromkeys(range(COUNT), 1)
    assert set(results.errors) <= {"InDoubtError", "ClosedError"}


def test_what_is_cut_off_and_nobody_watches_is_logged(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    silence(cluster)
    client = blocking.connect(cluster.url)
    producer = client.create_producer("t", send_timeout_s=None)
    for n in range(COUNT):
        producer.send_nowait(b"%d" % n)
    client._portal.close()
    assert f"{COUNT} messages to {TOPIC} have no receipt" in caplog.text


def test_what_threads_send_while_another_one_closes_is_told_or_refused(
    cluster: FakeCluster,
) -> None:
    results, closing = Results(), threading.Event()
    client = blocking.connect(cluster.url)
    producer = client.create_producer("t")

    def send(first: int) -> range:
        for n in range(first, first + 1_000_000):
            try:
                producer.send_nowait(b"x", on_result=results.of(n))
            except daybook.ClosedError:
                return range(first, n)
            if n == first + COUNT:
                closing.set()
        raise AssertionError("nobody closed the client")

    with ThreadPoolExecutor(3) as threads:
        taken = [threads.submit(send, index * 10_000_000) for index in range(3)]
        assert closing.wait(PATIENCE_S)
        client.close()
        accepted = [n for each in taken for n in each.result(PATIENCE_S)]
    assert results.calls == dict.fromkeys(accepted, 1)
    assert results.errors == {"stored": len(accepted)}
    assert stored(cluster) == len(accepted)


def test_acks_that_were_given_arrive_when_the_client_is_closed(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t", batching=False)
        consumer = client.subscribe("t", "s", ack_group_s=PATIENCE_S)
        for _ in range(100):
            producer.send_nowait(b"x")
        for _ in range(100):
            consumer.ack(consumer.receive(PATIENCE_S))
    assert len(cluster.topics[TOPIC].subscriptions["s"].acked) == 100


def test_what_is_closed_behind_its_client_is_closed(cluster: FakeCluster) -> None:
    client = blocking.connect(cluster.url)
    with client.create_producer("t") as producer, client.subscribe("t", "s"):
        producer.send_nowait(b"x")
        client.close()
    assert stored(cluster) == 1


def test_a_client_that_is_closed_waits_for_a_thread_that_closes_its_producer(
    cluster: FakeCluster,
) -> None:
    silence(cluster)
    client = blocking.connect(cluster.url)
    producer = client.create_producer("t", send_timeout_s=0.5)
    producer.send_nowait(b"x")
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(producer.close)
        while not producer._closed:
            pass
        client.close()
        assert isinstance(other.exception(PATIENCE_S), daybook.RequestTimedOutError)


# -- callbacks


def test_a_callback_that_raises_is_reported_and_the_client_goes_on(cluster: FakeCluster) -> None:
    def bad(message_id: object, error: object) -> None:
        raise ZeroDivisionError

    with blocking.connect(cluster.url) as client, client.create_producer("t") as producer:
        for size in (1, 6 << 20):  # One is stored, one is refused.
            producer.send_nowait(bytes(size), on_result=bad)
            with pytest.raises(ZeroDivisionError):
                producer.flush()
        producer.send(b"goes on")


def test_a_callback_is_told_of_a_sequence_id_that_is_too_low(cluster: FakeCluster) -> None:
    results = Results()
    with blocking.connect(cluster.url) as client, client.create_producer("t") as producer:
        producer.send(b"1", sequence_id=7)
        producer.send_nowait(b"2", sequence_id=7, on_result=results.of(2))
        producer.flush()
    assert results.errors == {"NotSentError": 1}


def test_a_callback_may_send_when_the_queue_is_full(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback's own thread makes the room that it would wait for."""
    monkeypatch.setattr("daybook.clients.python.blocking_producer._HANDED_BYTES_MAX", 10)
    results = Results()
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t")

        def again(message_id: object, error: object) -> None:
            for n in range(1, 4):
                producer.send_nowait(bytes(100), on_result=results.of(n))

        producer.send_nowait(b"first", on_result=again)
        producer.flush()
        producer.flush()
    assert results.calls == {1: 1, 2: 1, 3: 1}


def test_memory_that_changes_after_it_was_sent_is_not_sent_changed(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t", batching=False)
        held = threading.Event()

        def hold() -> None:
            held.wait(PATIENCE_S)

        client._portal.soon(hold)
        data, properties = bytearray(b"before"), {"k": "before"}
        producer.send_nowait(data, properties=properties)
        data[:], properties["k"] = b"behind", "behind"
        held.set()
        producer.flush()
        with client.create_reader("t", start="earliest") as reader:
            message = reader.receive(PATIENCE_S)
    assert (message.data, message.properties) == (b"before", {"k": "before"})


# -- a producer that is closed


def test_a_closed_producer_says_so_at_once(cluster: FakeCluster) -> None:
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t")
        producer.close()
        with pytest.raises(daybook.ClosedError):
            producer.send_nowait(b"x")
        with pytest.raises(daybook.ClosedError):
            producer.send(b"x")
        other = client.create_producer("t")
    with pytest.raises(daybook.ClosedError):
        other.send_nowait(b"x")


# -- the program ends


QUEUES = """
import atexit, collections, sys
calls, errors = collections.Counter(), collections.Counter()
def tell():
    print(len(calls), set(calls.values()), sorted(errors))
atexit.register(tell)  # before `daybook`: it runs after what `daybook` does at the end
import daybook
from daybook.clients.python import portal
client = daybook.blocking.connect(sys.argv[1])
producer = client.create_producer("t", send_timeout_s=None, pending_bytes_max=1000)
def result_of(n):
    def on_result(message_id, error):
        calls[n] += 1
        errors[type(error).__name__] += 1
    return on_result
for n in range(1000):
    producer.send_nowait(bytes(100), on_result=result_of(n))
"""


def run_to_its_end(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_each_callback_is_called_once_at_the_end_of_the_program(cluster: FakeCluster) -> None:
    done = run_to_its_end(QUEUES, cluster.url)
    assert (done.stdout, done.returncode) == ("1000 {1} ['NoneType']\n", 0)


def test_each_callback_is_called_once_when_the_program_ends_without_a_broker(
    cluster: FakeCluster,
) -> None:
    silence(cluster)
    done = run_to_its_end(QUEUES + "portal.EXIT_S = 0.3\n", cluster.url)
    assert done.stdout == "1000 {1} ['ClosedError', 'InDoubtError']\n"
    assert f"1000 messages to {TOPIC} have no receipt" in done.stderr


def test_a_program_that_lost_messages_at_its_end_fails_and_other_handlers_run(
    cluster: FakeCluster,
) -> None:
    silence(cluster)
    done = run_to_its_end(QUEUES + "portal.EXIT_S = 0.3\n", cluster.url)
    assert done.returncode == 120
    assert done.stdout.startswith("1000 ")  # printed by a handler that runs after ours
    assert "Traceback" not in done.stderr


def test_a_program_that_waits_at_its_end_says_for_what(cluster: FakeCluster) -> None:
    silence(cluster)
    done = run_to_its_end(QUEUES + "portal.EXIT_S = 1\n", cluster.url)
    said = f"daybook: the program ends; waiting 1 s at most: 1000 messages to {TOPIC} have no"
    assert done.stderr.startswith(said)


def test_an_interrupt_at_the_end_of_a_program_ends_the_wait_and_says_what_is_lost(
    cluster: FakeCluster,
) -> None:
    silence(cluster)
    program = QUEUES + "raise KeyboardInterrupt\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program, cluster.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    while not any("waiting 5 s at most" in line for line in lines):
        lines.append(process.stderr.readline())
        assert lines[-1]
    process.send_signal(signal.SIGINT)
    since = monotonic()
    out, error = process.communicate(timeout=PATIENCE_S)
    assert monotonic() - since < 4
    assert out.startswith("1000 {1}")
    assert f"1000 messages to {TOPIC} have no receipt" in error
    assert process.returncode == -signal.SIGINT
