"""Sends, receipts, deliveries and acknowledgements, over raw frames."""

from collections.abc import Callable

import pytest
import trio
import trio.abc
from trio.testing import MockClock

from daybook.broker.service import client_consumers
from daybook.broker.topics.stats import topic_stats
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.batch import split_broker_metadata
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.consumer import Delivery, encode_ack
from daybook.wire.messages.registry import Command
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, batch_of, open_broker, payload_of
from tests.harness.fake_log import FakeLog

T = pb.BaseCommand


async def test_what_is_stored_is_what_the_client_sent_behind_our_metadata(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        success = await client.producer()
        assert success.producer_name == "daybook.generated.test-1-0"
        assert success.last_sequence_id == -1
        assert success.schema_version == b""
        payload = payload_of(7, b"hello")
        client.send_payload(7, payload)
        assert await client.receipts(1) == [(7, 5, 0)]
        (stored,) = cluster.broker.log().entries
        _, index, rest = split_broker_metadata(memoryview(stored))
        assert index == 0
        assert bytes(rest) == payload


async def test_receipts_come_in_the_order_of_the_sends(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(1)
        await client.producer(2)
        for n in range(50):
            client.send(n, producer_id=1 + n % 2)
        receipts = await client.wait(SendReceipt, 50)
        for producer in (1, 2):
            got = [r.sequence_id for r in receipts if r.producer_id == producer]
            assert got == [n for n in range(50) if 1 + n % 2 == producer]


async def test_what_waits_when_a_topic_is_terminated_is_not_refused(
    autojump_clock: MockClock,
) -> None:
    """Seed 2147: sends waited for their bookies, the topic was being terminated, the next send was
    refused, and the refusal named the first of the waiting sends, which was stored.
    """
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        client.send(1)
        await client.settle()
        log.terminated = True
        client.send(2)
        client.send(3)
        await client.settle()
        assert not client.bodies(pb.CommandSendError)  # they come behind the receipts
        log.release()
        assert [sequence_id for sequence_id, _, _ in await client.receipts(2)] == [0, 1]
        refused = await client.wait(pb.CommandSendError, 2)
        assert [error.sequence_id for error in refused] == [2, 3]
        assert {error.error for error in refused} == {pb.TopicTerminatedError}


async def test_a_topic_whose_list_is_full_refuses_sends_and_is_served_on(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=10)
        log = cluster.broker.log()
        client.send(0)
        assert await client.entry_ids(1) == [0]
        log.full, log.room = "no room: shorten the retention", Room(4000, 4096)
        client.send(1)
        (refused,) = await client.wait(pb.CommandSendError, 1)
        assert (refused.sequence_id, refused.error) == (1, pb.NotAllowedError)
        assert refused.message == "no room: shorten the retention"
        stats = topic_stats(cluster.broker.topics.loaded[TOPIC], "us:8080")
        assert stats["ledgerListFull"] == "no room: shorten the retention"
        assert (stats["ledgerListAlarm"], stats["ledgerListBytes"]) == (True, 4000)
        log.full, log.room = "", Room(100, 4096)
        client.send(2)
        assert await client.entry_ids(1) == [1]
        assert [sequence_id for sequence_id, _, _ in await client.receipts(2)] == [0, 2]


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("daybook-test", pb.NotAllowedError),
        ("Pulsar-Java-v4.2.4", pb.NotAllowedError),
        ("Pulsar Go 0.19.0", pb.NotAllowedError),
        ("Pulsar-CPP-v4.2.0", pb.ChecksumError),
    ],
)
async def test_a_message_that_is_too_large_costs_its_producer_this_message_only(
    autojump_clock: MockClock, version: str, code: int
) -> None:
    """At any other code such clients close the connection, and send the same message forever."""
    async with open_broker() as cluster:
        client = await cluster.client(version=version)
        await client.producer(1)
        await client.producer(2, topic=f"{TOPIC}-2")
        await client.subscribe(permits=10)
        client.send(0)
        client.send(1, properties=[pb.KeyValue(key="k", value="v" * (6 << 20))])
        client.send(2, partition_key="k" * (6 << 20))
        client.send(3)
        client.send(0, producer_id=2)
        receipts = await client.wait(SendReceipt, 3)
        assert sorted((r.producer_id, r.sequence_id) for r in receipts) == [(1, 0), (1, 3), (2, 0)]
        refused = await client.wait(pb.CommandSendError, 2)
        assert [(e.producer_id, e.sequence_id, e.error) for e in refused] == [
            (1, 1, code),
            (1, 2, code),
        ]
        assert await client.entry_ids(2) == [0, 1]
        assert not client.frames.closed
        refused_sends = {(T.SEND, pb.NotAllowedError): 2}
        assert cluster.broker.context.request_counts.refused == refused_sends


async def test_a_consumer_gets_what_its_permits_allow_in_order(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=3)
        for n in range(10):
            client.send(n)
        assert await client.entry_ids(3) == [0, 1, 2]
        await client.settle()
        assert not client.bodies(Delivery)
        client.flow(100)
        assert await client.entry_ids(7) == list(range(3, 10))


async def test_batches_take_permits_by_messages(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=25)
        for n in range(6):
            client.send_batch(n * 10, 10)
        assert await client.entry_ids(3) == [0, 1, 2]  # 30 messages: permits end at -5
        await client.settle()
        assert not client.bodies(Delivery)
        client.flow(5)
        await client.settle()
        assert not client.bodies(Delivery)
        client.flow(1)
        assert await client.entry_ids(1) == [3]


async def test_only_our_clients_see_broker_metadata(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        theirs = await cluster.client(version="Pulsar-CPP-v4.2.0", metadata=True)
        ours = await cluster.client(version="daybook-python-0.1.0", metadata=True)
        await theirs.producer()
        payload = batch_of(0, 4)
        await theirs.subscribe(name="a", permits=10)
        await ours.subscribe(name="b", permits=10)
        theirs.send_payload(0, payload, count=4)
        (delivery,) = await theirs.deliveries(1)
        assert bytes(delivery.payload) == payload
        assert delivery.partition == -1
        (delivery,) = await ours.deliveries(1)
        _, index, rest = split_broker_metadata(delivery.payload)
        assert index == 3
        assert bytes(rest) == payload


async def test_the_partition_is_told_with_each_message(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        cluster.broker.policies.partition_counts[TOPIC] = 3
        client = await cluster.client()
        await client.producer(topic=f"{TOPIC}-partition-2")
        await client.subscribe(topic=f"{TOPIC}-partition-2", permits=10)
        client.send(0)
        (delivery,) = await client.deliveries(1)
        assert delivery.partition == 2


async def test_a_durable_subscription_goes_on_behind_what_was_acked(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        for n in range(6):
            client.send(n)
        await client.deliveries(6)
        client.ack(0, 1, 3)
        await client.settle()
        client.frames.close()
        again = await cluster.client()
        await again.subscribe(permits=100)
        assert await again.entry_ids(3) == [2, 4, 5]


async def test_a_cumulative_ack_covers_everything_before(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        for n in range(6):
            client.send(n)
        await client.deliveries(6)
        client.ack(3, cumulative=True)
        await client.settle()
        assert cluster.broker.log().by_name["sub"].mark_delete.entry_id == 3


async def test_an_ack_with_receipt_is_answered_when_it_is_durable(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        client.send(0)
        await client.deliveries(1)
        client.ack(0, request_id=77)
        (response,) = await client.wait(pb.CommandAckResponse)
        assert response.request_id == 77
        assert not response.HasField("error")
        assert cluster.broker.log().by_name["sub"].flushes == 1


async def test_acks_that_wait_for_their_receipts_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_consumers, "ACKS_WAITING_MAX", 3)
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        for n in range(5):
            client.send(n)
        await client.deliveries(5)
        stored = trio.Event()

        async def wait_stored(_: str) -> None:
            await stored.wait()

        log = cluster.broker.log()
        log.before_flush = wait_stored
        for n in range(5):
            client.ack(n, request_id=n)
        refused = await client.wait(pb.CommandAckResponse, 2)
        assert [each.request_id for each in refused] == [3, 4]
        assert {each.error for each in refused} == {pb.ServiceNotReady}
        stored.set()
        answers = await client.wait(pb.CommandAckResponse, 3)
        assert not any(each.HasField("error") for each in answers)
        client.ack(4, request_id=9)
        (answer,) = await client.wait(pb.CommandAckResponse)
        assert not answer.HasField("error")


@pytest.mark.parametrize(
    ("ack", "code"),
    [
        (lambda client: client.ack(9, request_id=1), pb.NotAllowedError),
        (lambda client: client.ack(0, consumer_id=9, request_id=1), pb.ConsumerNotFound),
        (lambda client: client.ack(0, 1, cumulative=True, request_id=1), pb.NotAllowedError),
    ],
    ids=["not there yet", "unknown consumer", "two at once"],
)
async def test_acks_that_cannot_be_are_refused(
    autojump_clock: MockClock, ack: Callable[[Client], None], code: int
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        client.send(0)
        client.send(1)
        await client.deliveries(2)
        ack(client)
        (response,) = await client.wait(pb.CommandAckResponse)
        assert response.error == code
        assert cluster.broker.log().by_name["sub"].mark_delete.entry_id == -1


async def test_a_batch_is_acked_when_all_its_messages_are(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        client.send_batch(0, 4)
        await client.deliveries(1)
        cursor = cluster.broker.log().by_name["sub"]
        client.frames.send([encode_ack(1, [(5, 0, 0b1010)])])
        await client.settle()
        assert cursor.mark_delete.entry_id == -1
        # Given back, the entry is redelivered with its pending messages, and takes permits only for
        # these.
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        (delivery,) = await client.deliveries(1)
        assert delivery.ack_set == 0b1010
        client.frames.send([encode_ack(1, [(5, 0, 0b0101)])])
        await client.settle()
        assert cursor.mark_delete.entry_id == 0


async def test_an_ack_without_an_ack_set_is_for_the_whole_entry(
    autojump_clock: MockClock,
) -> None:
    """Also if it names a message of the batch: Pulsar's brokers do not look at the index either.

    A client that knows the size of a batch says with the ack set which messages are left.
    """
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=pb.CommandSubscribe.Shared, permits=100)
        client.send_batch(0, 4)
        await client.deliveries(1)
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=7)
        ack.message_id.add(ledgerId=5, entryId=0, batch_index=2)
        client.tell(ack)
        (answer,) = await client.wait(pb.CommandAckResponse)
        assert not answer.HasField("error")
        assert cluster.broker.log().by_name["sub"].mark_delete.entry_id == 0
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub"]
        assert subscription.dispatch.unacked == 0
        assert subscription.backlog.messages == 0


async def test_a_batch_is_acked_when_a_cumulative_ack_covers_its_rest(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        client.send_batch(0, 4)
        client.send_batch(1, 4)
        await client.deliveries(2)
        cursor = cluster.broker.log().by_name["sub"]
        client.frames.send([encode_ack(1, [(5, 1, 0b0011)])])  # the last two messages
        client.frames.send([encode_ack(1, [(5, 1, 0b1100)], cumulative=True, request_id=1)])
        await client.wait(pb.CommandAckResponse)
        assert cursor.mark_delete.entry_id == 1


async def test_a_damaged_message_is_refused_in_its_turn(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        damaged = bytearray(payload_of(1, b"damaged"))
        damaged[-1] ^= 1
        client.send_payload(1, bytes(damaged))
        client.send(2)
        await client.settle()
        assert not client.got  # Answers come in the order of the sends.
        log.release()
        await client.settle()
        kinds = [type(c.body if hasattr(c, "body") else c).__name__ for c in client.got]
        assert kinds == ["SendReceipt", "CommandSendError", "SendReceipt"]
        (error,) = client.bodies(pb.CommandSendError)
        assert (error.sequence_id, error.error) == (1, pb.ChecksumError)
        assert len(log.entries) == 2


async def test_a_fenced_topic_answers_nothing_that_is_in_doubt(autojump_clock: MockClock) -> None:
    """The answer is neither receipt nor error: the client is told that the producer is closed."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        log = cluster.broker.log()
        client.send(0)
        await client.receipts(1)
        await client.deliveries(1)
        log.held = True
        for n in range(1, 5):
            client.send(n)
        await client.settle()
        log.release(2)
        log.fence()
        await client.settle()
        assert [r.sequence_id for r in client.bodies(SendReceipt)] == [1, 2]
        kinds = [type(c.body if isinstance(c, Command) else c) for c in client.got]
        assert kinds.index(pb.CommandCloseProducer) > kinds.index(SendReceipt) + 1
        assert len(client.bodies(pb.CommandCloseProducer)) == 1
        assert len(client.bodies(pb.CommandCloseConsumer)) == 1
        assert not client.bodies(pb.CommandSendError)
        client.send(5)  # The client did not know yet.
        await client.settle()
        assert not client.frames.closed
        assert TOPIC not in cluster.broker.topics.loaded
        # For a moment the topic is unavailable; then it is loaded again.
        error = await client.producer(topic=TOPIC)
        assert error.error == pb.ServiceNotReady
        await trio.sleep(1)
        success = await client.producer(topic=TOPIC)
        assert isinstance(success, pb.CommandProducerSuccess)


async def test_a_slow_topic_stops_reading_its_producers(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        other = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held, log.pending_bytes_max = True, 100_000
        for n in range(300):
            client.send(n, b"x" * 10_000)
        await client.settle(1)
        assert 100_000 <= log.pending_bytes < 1_500_000
        assert client.frames.pending_bytes > 0
        await other.producer(topic=TOPIC + "2")
        other.send(0)
        assert await other.receipts(1)  # Other clients do not notice.
        log.release()
        await client.receipts(300)


class Turns(trio.abc.Instrument):
    """The largest number of entries that were read during one turn of a task."""

    def __init__(self, log: FakeLog) -> None:
        self._log = log
        self._before = len(log.entries)
        self.most = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        now = len(self._log.entries)
        self.most = max(self.most, now - self._before)
        self._before = now


async def test_many_small_sends_leave_others_their_turns(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        turns = Turns(cluster.broker.log())
        trio.lowlevel.add_instrument(turns)
        for n in range(3000):
            client.send(n, b"x")
        await client.receipts(3000)
        trio.lowlevel.remove_instrument(turns)
        assert 1 < turns.most <= 256


async def test_a_topic_that_is_slow_stops_its_producer_within_what_was_received(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held, log.pending_bytes_max = True, 1000
        for n in range(3000):
            client.send(n, b"x")
        await client.settle(1)
        assert log.pending_bytes < 100_000
        log.release()
        await client.receipts(3000)


async def test_closing_a_producer_waits_for_what_is_outstanding(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        client.tell(pb.CommandCloseProducer(producer_id=1, request_id=9))
        await client.settle()
        assert not client.got
        log.release()
        await client.wait(pb.CommandSuccess)
        assert not cluster.broker.topics.loaded[TOPIC].producers.by_name


async def test_what_waits_for_a_consumer_pins_no_arena(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        for n in range(5):
            client.send(n, b"x" * 500_000)
        await client.receipts(5)
        arena = bytearray(b"".join(cluster.broker.log().entries))
        log, at = cluster.broker.log(), 0

        async def read(start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
            """Return views into received data, like a log."""
            nonlocal at
            await trio.lowlevel.checkpoint()
            if at:
                return []
            found = []
            for index, data in enumerate(log.entries):
                view = memoryview(arena)[at : at + len(data)]
                found.append(LogEntry(Position(5, index), view))
                at += len(data)
            return found

        log.read = read  # type: ignore[method-assign]
        bad = await cluster.client()
        bad.reading = False
        await bad.subscribe(initialPosition=pb.CommandSubscribe.Earliest, permits=100)
        await client.settle()
        assert at == len(arena)
        arena.clear()  # raises BufferError while a view of it exists


async def test_what_is_stored_after_its_producer_has_gone_wakes_the_consumers(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        await one.producer()
        await two.subscribe(permits=9)
        await two.settle()
        log = cluster.broker.log()
        log.held = True
        one.send(0)
        await one.settle()
        one.frames.close()
        await two.settle()
        assert not cluster.broker.topics.loaded[TOPIC].producers.by_name
        log.release()
        assert await two.entry_ids(1) == [0]
