"""Interceptors, statistics and listeners: a broker of ours, and the fake one for threads."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

import daybook
from daybook import aio, blocking, schemas
from daybook.broker.service.lookup import LookupResult
from daybook.clients.python import listener as listener_module
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.protocol.statistics import Latencies, Rate
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster
from tests.clients.python.real_broker import client_of, real_broker

QUICK = ClientLimits(backoff_initial_s=0.01, backoff_max_s=0.05)


class Marks(daybook.ProducerInterceptor):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.threads: set[int] = set()

    def before_send(self, message: daybook.OutgoingMessage) -> None:
        self.threads.add(threading.get_ident())
        message.properties["marks"] = message.properties.get("marks", "") + self.name

    def after_send(
        self,
        message: daybook.OutgoingMessage,
        message_id: daybook.MessageId | None,
        error: daybook.BrokerError | None,
    ) -> None:
        self.log.append(f"{self.name} {message.data!r} {type(error).__name__}")


class Broken(daybook.ProducerInterceptor):
    def before_send(self, message: daybook.OutgoingMessage) -> None:
        message.data = b"spoiled"
        message.properties["marks"] = "spoiled"
        raise RuntimeError("before")

    def after_send(self, *_: Any) -> None:
        raise RuntimeError("after")


class Watching(daybook.ConsumerInterceptor):
    def __init__(self) -> None:
        self.log: list[str] = []
        self.threads: set[int] = set()

    def before_receive(self, message: daybook.Message[Any]) -> daybook.Message[Any]:
        self.threads.add(threading.get_ident())
        return msgspec.structs.replace(message, data=(message.data or b"").upper())

    def on_ack(self, message_ids: Sequence[daybook.MessageId], *, cumulative: bool) -> None:
        self.log.append(f"ack {len(message_ids)} {cumulative}")

    def on_nack(self, message_id: daybook.MessageId) -> None:
        self.log.append("nack")

    def on_ack_timeout(self, message_ids: Sequence[daybook.MessageId]) -> None:
        self.log.append(f"timeout {len(message_ids)}")


class Failing(daybook.ConsumerInterceptor):
    def before_receive(self, message: daybook.Message[Any]) -> Any:
        return None

    def on_ack(self, message_ids: Sequence[daybook.MessageId], *, cumulative: bool) -> None:
        raise RuntimeError("ack")


async def test_producer_interceptors_are_called_in_order_and_one_that_raises_changes_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    chain = [Marks("a", log), Broken(), Marks("b", log)]
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe("t", "s")
        producer = await client.create_producer("t", interceptors=chain)
        properties = {"own": "1"}
        await producer.send(b"x", properties=properties, key="k")
        message = await consumer.receive()
        assert (message.data, message.key) == (b"x", "k")
        assert message.properties == {"own": "1", "marks": "ab"}
        assert properties == {"own": "1"}
        assert log == ["a b'x' NoneType", "b b'x' NoneType"]
        assert caplog.text.count("failed") == 2
        producer.abandon()
        with pytest.raises(daybook.ClosedError):
            await producer.send(b"y")


async def test_a_failure_without_a_callback_is_raised_by_flush(autojump_clock: MockClock) -> None:
    log: list[str] = []
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        producer = await client.create_producer(
            "t", interceptors=[Marks("a", log)], send_timeout_s=1
        )
        nowhere = LookupResult("pulsar://nowhere:1", None, redirect=False, authoritative=True)
        cluster.broker.lookups.result = nowhere
        (await client._pool.service()).close("lost, says the test")
        producer.send_nowait(b"x")
        with pytest.raises(daybook.UnavailableError):
            await producer.flush()
        assert log == ["a b'x' UnavailableError"]
        assert producer.stats().messages_failed == 1
        producer.abandon()


async def test_consumer_interceptors_see_messages_and_acknowledgements(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    watching = Watching()
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            "t",
            "s",
            type="shared",
            interceptors=[Failing(), watching],
            ack_timeout_s=5,
            nack_delay_s=0.1,
        )
        producer = await client.create_producer("t", batching=False)
        for data in (b"a", b"b", b"c"):
            await producer.send(data)
        first = await consumer.receive()
        assert first.data == b"A"
        others = [await consumer.receive() for _ in range(2)]
        await consumer.ack(others[0])
        consumer.nack(others[1])
        assert (await consumer.receive()).data == b"C"
        await trio.sleep(10)
        assert {(await anext(consumer)).data for _ in range(2)} == {b"A", b"C"}
        assert watching.log[:2] == ["ack 1 False", "nack"]
        assert "timeout" in watching.log[2]
        stats = consumer.stats()
        assert (stats.messages_acked, stats.messages_nacked) == (1, 1)
        assert stats.ack_timeouts == 2
        assert stats.messages_redelivered == 3
        exclusive = await client.subscribe("u", "s", interceptors=[watching])
        await (await client.create_producer("u")).send(b"x")
        await exclusive.ack_cumulative(await exclusive.receive())
        assert watching.log[-1] == "ack 1 True"
    assert "before_receive must return a Message" in caplog.text


async def test_an_interceptor_is_an_object_of_its_class(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        with pytest.raises(TypeError, match="ProducerInterceptor"):
            await client.create_producer("t", interceptors=[Watching()])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="ConsumerInterceptor"):
            await client.subscribe("t", "s", interceptors=[print])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="listener must be a function"):
            await client.subscribe("t", "s", listener=1)  # type: ignore[arg-type]


async def test_interceptors_get_what_the_schema_has_encoded(autojump_clock: MockClock) -> None:
    log: list[str] = []
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        chain = [Marks("a", log)]
        async with await client.create_producer(
            "t", schema=schemas.STRING, interceptors=chain
        ) as producer:
            await producer.send("text")
    assert log == ["a b'text' NoneType"]


def test_interceptors_run_in_the_thread_of_the_caller(cluster: FakeCluster) -> None:
    watching, marks = Watching(), Marks("a", [])
    here = threading.get_ident()
    with blocking.connect(cluster.url) as client:
        consumer = client.subscribe("t", "s", interceptors=[watching])
        producer = client.create_producer("t", interceptors=[marks])
        producer.send(b"x")
        producer.send_nowait(b"y")
        assert consumer.receive(PATIENCE_S).data == b"X"
        assert consumer.receive_batch(timeout_s=PATIENCE_S)[0].data == b"Y"
        assert watching.threads == marks.threads == {here}
        found = client.stats()
        assert [each.messages_received for each in found.consumers] == [2]
        assert producer.stats().messages_stored == 2
        assert consumer.stats().queued_messages == 0


# -- statistics


async def test_statistics_of_producers_and_consumers(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s")
        reader = await client.create_reader("t", start="earliest")
        for _ in range(100):
            producer.send_nowait(b"0123456789")
        assert producer.stats().pending_messages == 100
        await producer.flush()
        sent = producer.stats()
        assert (sent.messages_sent, sent.messages_stored, sent.pending_messages) == (100, 100, 0)
        assert sent.bytes_sent >= 1000
        assert sent.entries_sent == 1
        assert sent.messages_per_s > 0
        assert sent.latency_max_s is not None
        first = await consumer.receive()
        found = consumer.stats()
        assert (found.messages_received, found.entries_received) == (100, 1)
        assert found.queued_messages == 99
        assert found.subscription == "s"
        await consumer.ack([first, *await consumer.receive_batch()])
        assert consumer.stats().messages_acked == 100
        await reader.receive()
        everything = client.stats()
        assert everything.producers == (producer.stats(),)
        assert [each.subscription for each in everything.consumers] == ["s", None]
        assert everything.connections == 1


def test_rates_are_those_of_the_last_minute() -> None:
    rate = Rate(0.0)
    for second in range(100):
        rate.add(float(second), 2, 20)
        rate.add(second + 0.5, 1, 10)
    messages, size = rate.per_second(99.9)
    assert 2.9 < messages < 3.2
    assert 29 < size < 32
    assert (rate.count, rate.size) == (300, 3000)
    assert rate.per_second(500.0) == (0, 0)
    assert rate.count == 300


def test_percentiles_are_those_of_the_last_minutes() -> None:
    latencies = Latencies(0.0)
    assert latencies.percentile(0.0, 0.5) is None
    for number in range(1, 1001):
        latencies.add(1.0, number / 1000)
    for share, wanted in ((0.5, 0.5), (0.99, 0.99), (1.0, 1.0)):
        found = latencies.percentile(1.0, share)
        assert found is not None
        assert wanted / 1.1 <= found <= wanted * 1.1
    latencies.add(70.0, 0.001)
    assert (latencies.percentile(70.0, 1.0) or 0) > 0.9  # The minute before counts, too.
    latencies.add(140.0, 0.001)
    assert (latencies.percentile(140.0, 1.0) or 1) < 0.002
    assert latencies.percentile(1000.0, 0.5) is None


# -- listeners


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_listener_gets_the_messages(is_async: bool, autojump_clock: MockClock) -> None:
    found: list[bytes | None] = []

    def work(consumer: daybook.Consumer, message: daybook.Message) -> None:
        found.append(message.data)
        if message.data == b"bad" and found.count(b"bad") == 1:
            raise RuntimeError("bad")
        consumer.ack_nowait(message)

    async def work_async(consumer: daybook.Consumer, message: daybook.Message) -> None:
        await trio.sleep(0.1)
        work(consumer, message)

    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            "t", "s", listener=work_async if is_async else work, type="shared", nack_delay_s=0.1
        )
        producer = await client.create_producer("t", batching=False)
        for data in (b"a", b"bad", b"c"):
            await producer.send(data)
        await trio.sleep(5)
        assert sorted(found, key=str) == [b"a", b"bad", b"bad", b"c"]
        assert consumer.stats().messages_acked == 3


async def test_close_waits_for_the_listener_unless_it_closes_itself(
    autojump_clock: MockClock,
) -> None:
    done: list[str] = []

    async def slow(consumer: daybook.Consumer, message: daybook.Message) -> None:
        await trio.sleep(3)
        await consumer.ack(message)
        done.append("slow")

    async def closing(consumer: daybook.Consumer, message: daybook.Message) -> None:
        await consumer.ack(message)
        await consumer.aclose()
        done.append("closing")

    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        producer = await client.create_producer("t")
        for listener in (slow, closing):
            consumer = await client.subscribe("t", listener.__name__, listener=listener)
            await producer.send(b"x")
            await trio.sleep(1)
            await consumer.aclose()
            assert done[-1] == listener.__name__
            assert consumer.stats().messages_acked == 1


def test_a_listener_of_the_blocking_client_has_a_thread(cluster: FakeCluster) -> None:
    seen: list[tuple[bytes | None, bool]] = []
    two, closed = threading.Event(), threading.Event()
    here = threading.get_ident()

    def work(consumer: blocking.Consumer, message: daybook.Message) -> None:
        seen.append((message.data, threading.get_ident() == here))
        consumer.ack(message)
        if len(seen) == 2:
            two.set()
        if message.data == b"end":
            consumer.close()
            closed.set()

    watching = Watching()
    with blocking.connect(cluster.url) as client:
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s", listener=work, interceptors=[watching])
        producer.send(b"1")
        producer.send(b"2")
        assert two.wait(PATIENCE_S)
        assert seen == [(b"1", False), (b"2", False)]
        consumer.close()
        consumer.close()
        producer.send(b"3")
        client.subscribe("t", "other", listener=work)
        producer.send(b"end")
        assert closed.wait(PATIENCE_S)
        assert len(seen) == 3


def test_a_listener_cannot_close_its_client(cluster: FakeCluster) -> None:
    ended = threading.Event()
    errors: list[Exception] = []

    with blocking.connect(cluster.url) as client:

        def work(consumer: blocking.Consumer, message: daybook.Message) -> None:
            consumer.ack(message)
            try:
                client.close()
            except RuntimeError as error:
                errors.append(error)
            ended.set()

        producer = client.create_producer("t")
        client.subscribe("t", "s", listener=work)
        producer.send(b"1")
        assert ended.wait(PATIENCE_S)
    assert "in another thread" in str(errors[0])


def test_a_listener_on_asyncio(cluster: FakeCluster) -> None:
    found: list[bytes | None] = []

    async def main() -> None:
        ended = asyncio.Event()

        async def work(consumer: aio.Consumer, message: daybook.Message) -> None:
            await asyncio.sleep(0)
            found.append(message.data)
            await consumer.ack(message)
            if message.data == b"end":
                await consumer.aclose()
                ended.set()

        async with aio.connect(cluster.url) as client:
            await client.subscribe("t", "s", listener=work)
            producer = await client.create_producer("t")
            await producer.send(b"1")
            await producer.send(b"end")
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
            assert client.stats().consumers == ()

    asyncio.run(main())
    assert found == [b"1", b"end"]
    assert listener_module.calling() is None
