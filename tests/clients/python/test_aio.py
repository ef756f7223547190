"""The client on asyncio: against a fake broker that runs in another thread."""

import asyncio
import os
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio

import daybook
from daybook import aio, blocking, schemas
from daybook.clients.python import guest as guest_module
from tests.clients.python.fake_broker import FakeCluster

_T = TypeVar("_T")
PATIENCE_S = 60


def run(function: Callable[[], Awaitable[_T]]) -> _T:
    """Run it in a loop of its own.  No task and no trio may be left behind."""

    async def main() -> _T:
        async with asyncio.timeout(PATIENCE_S):
            result = await function()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not guest_module._guests
        return result

    return asyncio.run(main())


def test_a_message_goes_there_and_back(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            producer = await client.create_producer("t")
            consumer = await client.subscribe("t", "s", ack_receipts=True)
            place = await producer.send(b"hello", key="k")
            message = await consumer.receive()
            assert (message.data, message.key, message.message_id) == (b"hello", "k", place)
            await consumer.ack(message)
            assert await client.partitions("t") == 0

    run(main)
    (topic,) = cluster.topics.values()
    assert topic.subscriptions["s"].acked == {0}


def test_many_messages_in_order_by_many_tasks(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            consumer = await client.subscribe("t", "s", initial_position="earliest")
            found: list[bytes | None] = []

            async def consume() -> None:
                async for message in consumer:
                    found.append(message.data)
                    await consumer.ack(message)
                    if len(found) == 20_000:
                        return

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(consume())
                async with await client.create_producer("t") as producer:
                    for number in range(20_000):
                        while not producer.has_room:
                            await producer.wait_room()
                        producer.send_nowait(b"%d" % number)
            assert found == [b"%d" % number for number in range(20_000)]
            await consumer.flush_acks()

    run(main)


def test_other_tasks_get_turns_while_messages_are_taken(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            async with await client.create_producer("t") as producer:
                for number in range(2000):
                    producer.send_nowait(b"%d" % number)
            reader = await client.create_reader("t", start="earliest")
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            await reader.receive()
            before = turns
            for _ in range(1999):
                await reader.receive()
            assert turns - before > 10
            task.cancel()
            await asyncio.wait([task])

    run(main)


def test_a_cancelled_receive_took_nothing(cluster: FakeCluster) -> None:
    """apache/pulsar#8846, nats.py#392: cancellations at random moments lose no message."""
    count = 400

    async def main() -> None:
        rng = random.Random(5)
        async with aio.connect(cluster.url) as client:
            consumer = await client.subscribe("t", "s", initial_position="earliest")
            producer = await client.create_producer("t", batching=False)
            found: list[int] = []
            cancelled = 0

            async def produce() -> None:
                for number in range(count):
                    producer.send_nowait(b"%d" % number)
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(0)
                    if number % 10 == 0:
                        await asyncio.sleep(0.001)

            sending = asyncio.create_task(produce())
            while len(found) < count:
                task: asyncio.Task[list[aio.Message]] = asyncio.create_task(
                    consumer.receive_batch(rng.randrange(1, 4))
                )
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
                if rng.random() < 0.3:
                    task.cancel()
                try:
                    found += [int(message.data or b"") for message in await task]
                except asyncio.CancelledError:
                    cancelled += 1
                    await asyncio.sleep(0.0005)
            await sending
            assert found == list(range(count))
            assert cancelled

    run(main)


def test_a_result_that_arrives_with_the_cancellation_is_given_back(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            guest = client._guest
            given_back: list[int] = []

            async def taken() -> int:
                task.cancel()  # In the turn in which the result is there.
                return 7

            task = asyncio.create_task(guest.call(taken, unwanted=given_back.append))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert given_back == [7]

    run(main)


def test_a_cancelled_call_ends_when_its_function_has_ended(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            given_back: list[int] = []

            async def slow() -> int:
                begun.set()
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.01)
                return 7

            begun = asyncio.Event()
            task = asyncio.create_task(client._guest.call(slow, unwanted=given_back.append))
            await begun.wait()
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # Twice, as a server does that shuts down.
            with pytest.raises(asyncio.CancelledError):
                await task
            assert given_back == [7]

    run(main)


def test_a_timeout_and_then_a_message(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            consumer = await client.subscribe("t", "s")
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.005):
                        await consumer.receive()
            with pytest.raises(BlockingIOError):
                consumer.receive_nowait()
            producer = await client.create_producer("t")
            await producer.send(b"x")
            assert (await asyncio.wait_for(consumer.receive(), 10)).data == b"x"

    run(main)


def test_a_send_that_was_cancelled_is_sent(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            broker = cluster.brokers["b1"]
            producer = await client.create_producer("t")
            broker.hold_receipts = True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send(b"x"), 0.02)
            broker.hold_receipts = False
            for connection in broker.connections:
                connection.held, held = [], connection.held
                assert len(held) <= 1
            producer._producer.abandon()
            assert len(cluster.topics["persistent://public/default/t"].entries) == 1

    run(main)


def test_what_was_sent_is_stored_at_the_end_of_the_block(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            producer = await client.create_producer("t", batching=False)
            for number in range(50):
                producer.send_nowait(b"%d" % number)
        with pytest.raises(daybook.ClosedError):
            await client.partitions("t")
        with pytest.raises(daybook.ClosedError):
            producer.send_nowait(b"late")

    run(main)
    assert len(cluster.topics["persistent://public/default/t"].entries) == 50


def test_an_exception_leaves_the_block_as_it_is(cluster: FakeCluster) -> None:
    async def main() -> None:
        async def program() -> None:
            async with aio.connect(cluster.url) as client:
                await client.subscribe("t", "s")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await program()

    run(main)


def test_a_cancelled_program_ends(cluster: FakeCluster) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def program() -> None:
            async with (
                aio.connect(cluster.url) as client,
                await client.subscribe("t", "s") as consumer,
            ):
                entered.set()
                await consumer.receive()

        task = asyncio.create_task(program())
        await entered.wait()
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)


def test_several_clients_share_a_loop_and_come_and_go(cluster: FakeCluster) -> None:
    async def one(number: int) -> None:
        for _ in range(3):
            async with aio.connect(cluster.url) as client:
                producer = await client.create_producer(f"t{number}")
                await producer.send(b"x")

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(5)))

    for _ in range(2):  # and another loop after that
        run(main)
    assert all(len(topic.entries) == 6 for topic in cluster.topics.values())


def test_no_broker_is_an_error_at_the_beginning() -> None:
    async def main() -> None:
        with pytest.raises(daybook.UnavailableError):
            async with aio.connect("pulsar://127.0.0.1:1", timeout_s=0.05):
                pass

    run(main)


def test_a_call_from_another_loop_is_an_error(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            producer = await client.create_producer("t")
            errors: list[str] = []

            def other() -> None:
                for call in (
                    lambda: asyncio.run(client.partitions("t")),
                    lambda: producer.send_nowait(b"x"),
                ):
                    try:
                        call()
                    except RuntimeError as error:
                        errors.append(str(error))

            thread = threading.Thread(target=other)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert len(errors) == 2
            assert all("another event loop" in each for each in errors)

    run(main)


def test_trio_programs_are_sent_to_the_client_for_trio(cluster: FakeCluster) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="under asyncio only"):
            async with aio.connect(cluster.url):
                pass

    trio.run(main)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_listener_that_ends_as_cancelled_gets_its_message_again(
    cluster: FakeCluster, is_async: bool
) -> None:
    async def main() -> None:
        calls: list[bytes | None] = []
        done = asyncio.Event()

        def work(consumer: aio.Consumer, message: aio.Message) -> None:
            calls.append(message.data)
            if len(calls) == 1:
                raise asyncio.CancelledError
            consumer.ack_nowait(message)
            done.set()

        async def work_async(consumer: aio.Consumer, message: aio.Message) -> None:
            await asyncio.sleep(0)
            work(consumer, message)

        async with aio.connect(cluster.url) as client, aio.connect(cluster.url) as other:
            listener = work_async if is_async else work
            await client.subscribe("t", "s", type="shared", nack_delay_s=0.01, listener=listener)
            producer = await other.create_producer("t")
            await producer.send(b"x")
            async with asyncio.timeout(5):
                await done.wait()
            assert calls == [b"x", b"x"]
            await producer.send(b"y")

    run(main)


# -- forks (apache/pulsar-client-python#127, apache/pulsar#11953)


def in_a_fork(function: Callable[[], str]) -> str:
    """Return what the function returns in a forked process, which gets ten seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode()[:4000])
        os._exit(0)
    os.close(writing)
    timer = threading.Timer(10, os.kill, (child, 9))
    timer.start()
    try:
        return os.read(reading, 4000).decode() or "it hung"
    finally:
        timer.cancel()
        os.close(reading)
        os.waitpid(child, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["aio", "trio", "blocking"])
def test_a_forked_client_says_so_and_leaves_its_parent_alone(
    kind: str, cluster: FakeCluster
) -> None:
    def tried(*calls: Callable[[], object]) -> str:
        said: list[str] = []
        for call in calls:
            try:
                said.append(f"no error: {call()!r}")
            except daybook.ClosedError as error:
                said.append("forked" if "forked" in str(error) else str(error))
        return ", ".join(said)

    async def with_aio() -> str:
        async with aio.connect(cluster.url) as client:
            producer = await client.create_producer("t")
            consumer = await client.subscribe("t", "s")
            await producer.send(b"1")
            message = await consumer.receive()

            def child() -> str:
                return tried(
                    lambda: producer.send_nowait(b"never"),
                    lambda: consumer.ack_nowait(message),
                    lambda: consumer.nack(message),
                    consumer.receive_nowait,
                    lambda: consumer.receive().send(None),
                    lambda: producer.flush().send(None),
                )

            said = in_a_fork(child)
            await producer.send(b"2")
            assert (await consumer.receive()).data == b"2"
            return said

    async def with_trio() -> str:
        async with daybook.connect(cluster.url) as client:
            producer = await client.create_producer("t")
            consumer = await client.subscribe("t", "s")
            await producer.send(b"1")
            message = await consumer.receive()

            def child() -> str:
                return tried(
                    lambda: producer.send_nowait(b"never"),
                    lambda: consumer.ack_nowait(message),
                    lambda: consumer.nack(message),
                    consumer.receive_nowait,
                )

            said = in_a_fork(child)
            await producer.send(b"2")
            assert (await consumer.receive()).data == b"2"
            return said

    def with_blocking() -> str:
        with blocking.connect(cluster.url) as client:
            producer = client.create_producer("t")
            consumer = client.subscribe("t", "s")
            producer.send(b"1")
            message = consumer.receive()

            def child() -> str:
                return tried(
                    lambda: producer.send_nowait(b"never"),
                    lambda: consumer.ack(message),
                    lambda: consumer.nack(message),
                    consumer.receive,
                    lambda: client.subscribe("t", "s"),
                )

            said = in_a_fork(child)
            producer.send(b"2")
            assert consumer.receive().data == b"2"
            return said

    if kind == "aio":
        said = run(with_aio)
    else:
        said = trio.run(with_trio) if kind == "trio" else with_blocking()
    assert set(said.split(", ")) == {"forked"}
    assert len(cluster.topics["persistent://public/default/t"].entries) == 2


def test_typed_messages_and_table_views(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.url) as client:
            changes: list[tuple[str, str | None]] = []
            producer = await client.create_producer("t", schema=schemas.STRING)
            consumer = await client.subscribe("t", "s", schema=schemas.STRING)
            reader = await client.create_reader("t", start="earliest", schema=schemas.STRING)
            await producer.send("one", key="a", ordering_key=b"o")
            assert (await consumer.receive()).value == "one"
            assert (await reader.receive()).value == "one"
            async with await client.table_view("t", schema=schemas.STRING) as view:
                view.listen(lambda key, value: changes.append((key, value)), existing=True)
                await producer.send("two", key="a")
                await view.wait_caught_up()
                assert (dict(view), view["a"], len(view)) == ({"a": "two"}, "two", 1)
            assert changes == [("a", "one"), ("a", "two")]
            assert producer.stats().messages_stored == 2
            assert consumer.stats().messages_received + consumer.stats().queued_messages == 2
            assert len(client.stats().consumers) == 2

    run(main)


def test_administration_needs_no_thread() -> None:
    """The requests go to a server in the same event loop, which a waiting thread would stop."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(head.split("\r\n")[0].rpartition(" ")[0])
        body = b'["a"]' if "tenants" in head else b'{"reason": "it is there"}'
        status = b"200 OK" if "tenants" in head else b"409 Conflict"
        length = b"Content-Length: %d" % len(body)
        writer.write(b"\r\n".join((b"HTTP/1.1 " + status, length, b"", body)))
        writer.close()

    async def main() -> None:
        before = threading.active_count()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, aio.connect_admin(f"http://127.0.0.1:{port}") as admin:
            assert await admin.tenants() == ["a"]
            with pytest.raises(daybook.ConflictError):
                await admin.create_topic("t")
            assert threading.active_count() <= before + 1  # trio's, which waits for sockets
        with pytest.raises(RuntimeError, match="inside of"):
            await admin.tenants()

    run(main)
    assert seen == ["GET /admin/v2/tenants", "PUT /admin/v2/persistent/public/default/t"]


def test_an_admin_request_may_be_cancelled() -> None:
    async def main() -> None:
        waiting = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            waiting.set()
            await reader.read()  # until the client has gone
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, aio.connect_admin(f"http://127.0.0.1:{port}") as admin:
            task = asyncio.create_task(admin.tenants())
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)

    run(main)


async def test_under_trio_it_says_what_to_use() -> None:
    for opened in (aio.connect("pulsar://127.0.0.1:1"), aio.connect_admin("http://127.0.0.1:1")):
        with pytest.raises(RuntimeError, match=r"under asyncio only.*daybook\.connect"):
            async with opened:
                pass
