"""Messages that cannot be processed: back-off, timeouts, dead letters and retries.

The broker is one of ours, over logs in memory.
"""

import math
import re
from collections import Counter
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

import daybook
from daybook import BusyError, DeadLetterPolicy, Message
from daybook.clients.python.client import Client
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.limits import ClientLimits
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import fake_cluster, until
from tests.clients.python.real_broker import client_of, real_broker

FULL = "persistent://public/default/"
DEAD = FULL + "t-s-DLQ"
QUICK = ClientLimits(backoff_initial_s=0.01, backoff_max_s=0.05)


async def everything_in(client: Client, topic: str) -> list[Message]:
    found: list[Message] = []
    async with await client.create_reader(topic, start="earliest") as reader:
        while await reader.has_message_available():
            found.append(await reader.receive())
    return found


async def nothing_comes(consumer: Consumer, seconds: float = 60) -> bool:
    with trio.move_on_after(seconds) as scope:
        await consumer.receive()
    return scope.cancelled_caught


async def test_the_delay_of_a_nack_doubles_up_to_its_maximum(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            "t", "s", type="shared", nack_delay_s=1, nack_delay_max_s=5
        )
        producer = await client.create_producer("t")
        await producer.send(b"x")
        times: list[float] = []
        for count in range(6):
            message = await consumer.receive()
            assert message.redelivery_count == count
            times.append(trio.current_time())
            consumer.nack(message)
        waits = [after - before for before, after in pairwise(times)]
        assert [round(wait) for wait in waits] == [1, 2, 4, 5, 5]


async def test_an_entry_with_a_shorter_delay_does_not_wait_for_one_with_a_longer(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            "t", "s", type="shared", nack_delay_s=1, nack_delay_max_s=1000
        )
        producer = await client.create_producer("t", batching=False)
        await producer.send(b"old")
        for _ in range(8):
            consumer.nack(await consumer.receive())
        await producer.send(b"new")
        message = await consumer.receive()
        assert message.data == b"new"
        began = trio.current_time()
        consumer.nack(message)
        assert (await consumer.receive()).data == b"new"
        assert trio.current_time() - began < 2


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_what_is_not_acknowledged_in_time_comes_again(
    kind: str, autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe("t", "s", type=kind, ack_timeout_s=10)  # type: ignore[arg-type]
        producer = await client.create_producer("t", batching=False)
        for data in (b"acked", b"forgotten"):
            await producer.send(data)
        await consumer.ack(await consumer.receive())
        began = trio.current_time()
        assert (await consumer.receive()).data == b"forgotten"
        again = await consumer.receive()
        assert again.data == b"forgotten"
        assert round(trio.current_time() - began) == 10
        await consumer.ack(again)
        assert await nothing_comes(consumer)


async def test_a_batch_is_in_time_when_all_of_it_is_acknowledged(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe("t", "s", type="shared", ack_timeout_s=10)
        producer = await client.create_producer("t")
        for number in range(3):
            producer.send_nowait(b"%d" % number)
        messages = [await consumer.receive() for _ in range(3)]
        await consumer.ack([messages[0], messages[2]])
        again = await consumer.receive()
        assert again.data == b"1"
        await consumer.ack(again)
        assert await nothing_comes(consumer)


async def reject(consumer: Consumer, deliveries: int) -> None:
    for _ in range(deliveries):
        consumer.nack(await consumer.receive())


async def test_a_message_that_is_rejected_too_often_becomes_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            "t", "s", type="shared", dead_letter=DeadLetterPolicy(2), initial_position="earliest"
        )
        producer = await client.create_producer("t", batching=False)
        place = await producer.send(
            b"bad", key=b"\xff", ordering_key=b"o", properties={"a": "b"}, event_time_ms=7
        )
        await reject(consumer, 3)
        assert await nothing_comes(consumer)
        (letter,) = await everything_in(client, DEAD)
        assert letter.data == b"bad"
        assert (letter.key_bytes, letter.ordering_key) == (b"\xff", b"o")
        assert letter.event_time_ms == 7
        assert letter.properties == {
            "a": "b", "REAL_TOPIC": FULL + "t", "ORIGIN_MESSAGE_ID": str(place)
        }  # fmt: skip
        await consumer.aclose()
        again = await client.subscribe("t", "s", type="shared")
        assert await nothing_comes(again)  # The original is acknowledged.


@pytest.mark.parametrize("topics", [["t", "u"], ["u", "t"]])
async def test_each_of_several_topics_has_dead_letters_of_its_own(
    topics: list[str], autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            topics, "s", type="shared", dead_letter=DeadLetterPolicy(0)
        )
        for topic in topics:
            await (await client.create_producer(topic)).send(topic.encode())
        for _ in topics:
            consumer.nack(await consumer.receive())
        assert await nothing_comes(consumer)
        for topic in topics:
            (letter,) = await everything_in(client, f"{FULL}{topic}-s-DLQ")
            assert letter.data == topic.encode()


async def test_acknowledged_messages_of_a_batch_are_no_dead_letters(
    autojump_clock: MockClock,
) -> None:
    """apache/pulsar#26125: the decision looks at the acknowledged bits of the batch."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            "t", "s", type="shared", dead_letter=DeadLetterPolicy(1), ack_timeout_s=10
        )
        producer = await client.create_producer("t")
        for number in range(6):
            producer.send_nowait(b"%d" % number)
        messages = [await consumer.receive() for _ in range(6)]
        await consumer.ack(messages[::2])
        assert {(await consumer.receive()).data for _ in range(3)} == {b"1", b"3", b"5"}
        assert await nothing_comes(consumer)  # The client gives them up, as they come again.
        letters = await everything_in(client, DEAD)
        assert Counter(each.data for each in letters) == {b"1": 1, b"3": 1, b"5": 1}


async def test_a_rejected_message_takes_no_other_of_its_batch_with_it(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe("t", "s", type="shared", dead_letter=DeadLetterPolicy(0))
        producer = await client.create_producer("t")
        for number in range(3):
            producer.send_nowait(b"%d" % number)
        messages = [await consumer.receive() for _ in range(3)]
        consumer.nack(messages[1])
        consumer.nack(messages[1])  # Twice is once.
        await trio.sleep(60)
        assert [each.data for each in await everything_in(client, DEAD)] == [b"1"]
        await consumer.ack([messages[0], messages[2]])
        await consumer.aclose()
        assert await nothing_comes(await client.subscribe("t", "s", type="shared"))


async def test_the_original_is_acknowledged_when_its_letter_is_stored(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe("t", "s", type="shared", dead_letter=DeadLetterPolicy(0))
        producer = await client.create_producer("t")
        letters = await client.create_producer(DEAD)  # so that its log exists
        log = cluster.broker.log(DEAD)
        log.held = True
        await producer.send(b"bad")
        consumer.nack(await consumer.receive())
        await trio.sleep(5)
        # The receipt is held back.  Without it, another consumer gets the original.
        await consumer.aclose()
        other = await client.subscribe("t", "s", type="shared")
        assert (await other.receive()).data == b"bad"
        log.held = False
        letters.abandon()


async def test_without_its_dead_letter_topic_a_message_comes_again() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        broker = cluster.brokers["b1"]
        consumer = await client.subscribe(
            "t", "s", type="shared", dead_letter=DeadLetterPolicy(0), nack_delay_s=0.01
        )
        producer = await client.create_producer("t")
        await producer.send(b"bad")
        refused = (pb.NotAllowedError, "no")
        broker.refusals[pb.BaseCommand.PRODUCER] += [refused, refused]
        consumer.nack(await consumer.receive())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.receive)
            await until(lambda: cluster.topics[DEAD].entries)
            nursery.cancel_scope.cancel()


async def test_letters_that_cannot_be_stored_hold_the_broker_back(
    autojump_clock: MockClock,
) -> None:
    """Entries that are given up as they arrive keep their permits until their letter is stored."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        options = {"type": "shared", "ack_timeout_s": 1.0, "receiver_queue_size": 10}
        consumer = await client.subscribe(
            "t",
            "s",
            dead_letter=DeadLetterPolicy(0),
            **options,  # type: ignore[arg-type]
        )
        async with await client.create_producer(DEAD):
            pass
        cluster.broker.log(DEAD).held = True
        async with await client.create_producer("t", batching=False) as producer:
            for number in range(500):
                producer.send_nowait(b"%d" % number)
        with trio.move_on_after(100):
            while True:
                await consumer.receive_batch()
        assert len(consumer._dead_letters._waiting) <= 20  # type: ignore[union-attr]


async def test_the_subscription_of_dead_letters_is_created_with_their_topic(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        policy = DeadLetterPolicy(0, topic="dead", initial_subscription="mourners")
        consumer = await client.subscribe("t", "s", type="shared", dead_letter=policy)
        producer = await client.create_producer("t")
        await producer.send(b"bad")
        await reject(consumer, 1)
        await trio.sleep(5)
        mourner = await client.subscribe("dead", "mourners")
        assert (await mourner.receive()).data == b"bad"


async def test_a_message_is_tried_again_later_and_given_up_after_the_last_retry(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(
            "t", "s", type="shared", dead_letter=DeadLetterPolicy(2), retry=True
        )
        assert consumer.topics == [FULL + "t", FULL + "t-s-RETRY"]
        producer = await client.create_producer("t")
        place = await producer.send(b"bad", key="k")
        waits: list[float] = []
        for attempt in range(3):
            began = trio.current_time()
            message = await consumer.receive()
            waits.append(trio.current_time() - began)
            assert (message.data, message.key) == (b"bad", "k")
            if attempt:
                assert message.properties == {
                    "REAL_TOPIC": FULL + "t",
                    "ORIGIN_MESSAGE_ID": str(place),
                    "RECONSUMETIMES": str(attempt),
                    "DELAY_TIME": "30000",
                    "why": "later",
                }
            await consumer.reconsume_later(message, 30, {"why": "later"})
        assert [math.floor(wait / 10) for wait in waits] == [0, 3, 3] or waits[1] >= 28
        assert await nothing_comes(consumer, 100)
        (letter,) = await everything_in(client, DEAD)
        assert letter.properties["RECONSUMETIMES"] == "3"
        assert letter.properties["ORIGIN_MESSAGE_ID"] == str(place)
        await consumer.aclose()
        assert await nothing_comes(await client.subscribe("t", "s", type="shared"))


async def test_a_retry_that_was_cancelled_acknowledges_nothing_by_itself(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe("t", "s", type="shared", retry=True)
        producer = await client.create_producer("t")
        await producer.send(b"bad")
        message = await consumer.receive()
        log = cluster.broker.log(FULL + "t-s-RETRY")
        log.held = True
        with trio.move_on_after(1):
            await consumer.reconsume_later(message)
        consumer.nack(message)
        again = await consumer.receive()  # It was not acknowledged.
        assert (again.topic, again.redelivery_count) == (FULL + "t", 1)
        log.held = False
        log.release(1)
        retried = await consumer.receive()
        assert retried.topic == FULL + "t-s-RETRY"
        # Its receipt has acknowledged the original.
        await consumer.ack(retried)
        await consumer.aclose()
        assert await nothing_comes(await client.subscribe("t", "s", type="shared"))


async def test_a_delayed_message_is_delivered_at_its_time(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe("t", "s", type="shared")
        producer = await client.create_producer("t")
        began = trio.current_time()
        producer.send_nowait(b"later", deliver_after_s=20)
        producer.send_nowait(b"at", deliver_at_ms=cluster.broker.clock.now_ms() + 10_000)
        producer.send_nowait(b"now")
        found = [((await consumer.receive()).data, trio.current_time() - began) for _ in range(3)]
        assert [data for data, _ in found] == [b"now", b"at", b"later"]
        assert [round(after / 5) for _, after in found] == [0, 2, 4]
        with pytest.raises(ValueError, match="not both"):
            producer.send_nowait(b"x", deliver_after_s=20, deliver_at_ms=1)


async def test_wrong_policies_are_refused_at_once(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        policy = DeadLetterPolicy(3)
        with pytest.raises(ValueError, match="shared subscriptions only"):
            await client.subscribe("t", "s", dead_letter=policy)
        with pytest.raises(ValueError, match="has no name by itself"):
            await client.subscribe(re.compile("t.*"), "s", type="shared", dead_letter=policy)
        with pytest.raises(ValueError, match="must not be negative"):
            DeadLetterPolicy(-1)
        consumer = await client.subscribe("t", "s", type="shared", dead_letter=policy)
        producer = await client.create_producer("t")
        await producer.send(b"x")
        with pytest.raises(ValueError, match="retry=True"):
            await consumer.reconsume_later(await consumer.receive())
        with pytest.raises(BusyError):
            await client.subscribe("t", "s", type="exclusive")
