"""New entries that are in memory are delivered without the tasks of the subscriptions."""

from itertools import pairwise
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.broker.dispatch import dispatcher
from daybook.broker.dispatch.newest import Newest
from daybook.broker.limits import TopicLimits, UnackedLimits
from daybook.broker.namespaces.policy_types import DispatchRate
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.broker.protocol.dispatch.key_shared import KeySharedDispatch
from daybook.broker.protocol.dispatch.shared import SharedDispatch
from daybook.broker.topics import waiting_readers
from daybook.broker.topics.waiting_readers import WaitingReaders
from daybook.managed_ledger.position import Position
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.test_policies import broker_with
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

SHARED, KEY_SHARED = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared
NOTHING = cast("Newest", None)
TIMES = range(20)  # Tasks that run in the same turn run in any order.


async def waiting(cluster: Cluster, *, subscriptions: int = 1, **options: Any) -> Client:
    """Return a client whose subscriptions have read all there is, and wait."""
    client = await cluster.client()
    await client.producer()
    for number in range(subscriptions):
        await client.subscribe(number, name=f"sub-{number}", **options)
    client.send(0)
    await client.deliveries(subscriptions)
    await client.settle()
    client.got.clear()
    return client


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, SHARED, KEY_SHARED])
async def test_what_is_in_memory_is_not_read(autojump_clock: MockClock, kind: Any) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, subscriptions=3, kind=kind, permits=100)
        before = cluster.broker.log().reads
        for number in range(1, 6):
            client.send(number)
            await client.settle()
        assert sorted(await client.entry_ids(15)) == sorted([*range(1, 6)] * 3)
        assert cluster.broker.log().reads == before


async def test_what_is_not_in_memory_is_read(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, subscriptions=3, permits=100)
        log = cluster.broker.log()
        before, log.in_memory = log.reads, False
        client.send(1)
        await client.settle()
        assert len(client.bodies(Delivery)) == 3
        assert log.reads >= before + 3


async def test_the_task_goes_on_with_what_was_not_delivered_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, permits=4)
        cluster.broker.log().held = True
        for number in range(1, 6):
            client.send(number)
        await client.settle()
        cluster.broker.log().release()
        assert await client.entry_ids(3) == [1, 2, 3]
        await client.settle()
        assert not client.bodies(Delivery)
        client.flow(100, 0)
        assert await client.entry_ids(2) == [4, 5]


async def test_what_one_read_does_not_bring_is_read_on(autojump_clock: MockClock) -> None:
    limits = TopicLimits(dispatch=DispatchLimits(read_entries_max=3))
    async with open_broker(topic_limits=limits) as cluster:
        client = await waiting(cluster, permits=1000)
        cluster.broker.log().held = True
        for number in range(1, 11):
            client.send(number)
        await client.settle()
        cluster.broker.log().release()
        await client.settle()
        assert [each.entry_id for each in client.bodies(Delivery)] == [*range(1, 11)]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_what_comes_back_while_new_entries_are_delivered_is_delivered_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    machine = SharedDispatch if kind == SHARED else KeySharedDispatch
    entries_read = machine.entries_read

    def giving_back(self: Any, want: Any, entries: Any) -> Any:
        effects = entries_read(self, want, entries)
        if entries and entries[0].place[1] == 1:
            (consumer,) = self._by_key
            effects += self.redelivery_requested(consumer, [(entries[0].place[0], 0)])
        return effects

    async with open_broker() as cluster:
        client = await waiting(cluster, kind=kind, permits=100)
        monkeypatch.setattr(machine, "entries_read", giving_back)
        client.send(1)
        await client.settle()
        assert [each.entry_id for each in client.bodies(Delivery)] == [1, 0]


async def test_what_is_delayed_comes_in_time(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, kind=SHARED, permits=100)
        client.send(1, deliver_at_time=cluster.broker.clock.now_ms() + 5_000)
        await client.settle(4.5)
        assert not client.bodies(Delivery)
        await client.settle(1)
        assert len(client.bodies(Delivery)) == 1


async def test_new_entries_keep_to_the_rate(autojump_clock: MockClock) -> None:
    rate = DispatchRate(dispatch_throttling_rate_in_msg=10)
    async with broker_with(dispatch_rate=rate) as (cluster, _):
        client = await waiting(cluster, permits=100)
        for number in range(1, 31):
            client.send(number)
            await client.settle(0.001)
        assert 9 <= len(client.bodies(Delivery)) <= 12
        await client.settle(4)
        assert len(client.bodies(Delivery)) == 30


async def test_new_entries_keep_to_the_limit_of_the_broker(autojump_clock: MockClock) -> None:
    limits = TopicLimits(unacked=UnackedLimits(messages_max=20, share=0.25))  # a share of 5
    async with open_broker(topic_limits=limits) as cluster:
        client = await waiting(cluster, subscriptions=3, kind=SHARED, permits=100)
        for number in range(1, 10):
            client.send(number)
            await client.settle()
        # The 20th delivery stops all three, and two of them wait for new entries then.
        assert len(client.bodies(Delivery)) == 17
        assert cluster.broker.topics.unacked.rules.blocked == 3


@pytest.mark.parametrize("_", TIMES)
async def test_what_the_task_is_reading_is_not_delivered_twice(
    autojump_clock: MockClock, _: int
) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, permits=100)
        log = cluster.broker.log()
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub-0"]
        log.held = True
        for number in range(1, 4):
            client.send(number)
        await client.settle()
        subscription.dispatcher.wake()
        log.release()
        assert await client.entry_ids(3) == [1, 2, 3]
        await client.settle()
        assert not client.bodies(Delivery)


async def test_a_consumer_that_left_meanwhile_gets_nothing(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, permits=100)
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub-0"]
        cluster.broker.log().held = True
        client.send(1)
        await client.settle()
        cluster.broker.log().release()
        subscription.disconnect_all()
        await client.wait(pb.CommandCloseConsumer)
        await client.settle()
        await client.subscribe(7, name="sub-0", permits=10)
        assert await client.entry_ids(2) == [0, 1]


# -- what subscriptions share


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, SHARED, KEY_SHARED])
async def test_subscriptions_share_a_read_and_what_is_made_of_it(
    autojump_clock: MockClock, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, subscriptions=10, kind=kind, permits=100)
        looked, log = list[int](), cluster.broker.log()
        for name in ("delivered_head", "keyed_head"):
            head_of = getattr(dispatcher, name)

            def counted(data: memoryview, head_of: Any = head_of) -> Any:
                looked.append(len(data))
                return head_of(data)

            monkeypatch.setattr(dispatcher, name, counted)
        reads, before = log.reads_now, log.traffic.take()
        client.send_batch(1, 7)
        await client.settle()
        assert [each.entry_id for each in client.bodies(Delivery)] == [1] * 10
        assert len(looked) == 1
        assert log.reads_now == reads + 1
        assert before.entries_read
        assert log.traffic.take().entries_read == 10  # Each of them has read it.


@pytest.mark.parametrize("acking", [0, 1])
@pytest.mark.parametrize("part", [False, True])
async def test_a_subscription_shares_nothing_that_it_has_acknowledged(
    autojump_clock: MockClock, acking: int, *, part: bool
) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, subscriptions=2, kind=SHARED, permits=100)
        cluster.broker.log().held = True
        client.send(1)
        client.send_batch(2, 4)
        await client.settle()
        cluster.broker.log().release()
        by_name = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name
        cursor = by_name[f"sub-{acking}"].cursor
        if part:
            cursor.ack_part(Position(5, 2), 0b0110)
        else:
            cursor.ack([Position(5, 2)])
        await client.settle()
        got = {(d.consumer_id, d.entry_id): d.ack_set for d in client.bodies(Delivery)}
        expected = {(0, 1): None, (1, 1): None, (1 - acking, 2): None}
        assert got == (expected | {(acking, 2): 0b0110} if part else expected)
        assert by_name[f"sub-{acking}"].dispatch.unacked == (4 if part else 2)


async def test_each_subscription_acknowledges_a_marker(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, subscriptions=3, permits=100)
        for number in range(3):
            client.ack(0, consumer_id=number)
        client.send(1, marker_type=pb.TXN_COMMIT)
        await client.settle()
        assert not client.bodies(Delivery)
        subscriptions = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name.values()
        assert [each.cursor.backlog_entries for each in subscriptions] == [0, 0, 0]


async def test_what_is_delayed_is_delayed_for_each_subscription(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await waiting(cluster, permits=100)
        for number in (1, 2):
            await client.subscribe(number, name=f"sub-{number}", kind=SHARED, permits=100)
        await client.settle()
        now_ms = cluster.broker.clock.now_ms()
        client.send(1, deliver_at_time=now_ms + 1_000)
        await client.settle()
        assert [each.consumer_id for each in client.bodies(Delivery)] == [0]
        await client.settle(1)
        assert sorted(each.consumer_id for each in client.bodies(Delivery)) == [0, 1, 2]


async def test_a_read_is_shared_only_if_it_fits(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        for number in range(3):
            client.send(number)
        await client.receipts(3)
        log = cluster.broker.log()
        size = sum(map(len, log.entries))
        newest, first = Newest(log), Position(5, 0)
        found = newest.read(first, max_entries=3, max_bytes=size)
        assert newest.read(first, max_entries=3, max_bytes=size) is found
        assert len(newest.read(Position(5, 1), max_entries=3, max_bytes=size)) == 2
        assert len(newest.read(first, max_entries=3, max_bytes=size)) == 3
        assert len(newest.read(first, max_entries=2, max_bytes=size)) == 2
        assert len(newest.read(first, max_entries=3, max_bytes=size)) == 2  # This one is shared.
        assert len(newest.read(first, max_entries=3, max_bytes=1)) == 1


# -- the task that calls the readers


class Topic:
    """A topic that only notes its bugs."""

    def __init__(self) -> None:
        self.bugs: list[tuple[str, Exception]] = []

    def has_bug(self, doing: str, bug: Exception) -> None:
        self.bugs.append((doing, bug))


async def test_others_have_their_turn_between_many_calls(autojump_clock: MockClock) -> None:
    readers, made, seen = WaitingReaders(), list[int](), list[int]()

    async def other() -> None:
        while len(made) < 1000:
            seen.append(len(made))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.run)
        await wait_all_tasks_blocked()
        readers.serve(cast("Any", Topic()), [lambda _: made.append(1)] * 1000, NOTHING)
        nursery.start_soon(other)
        await wait_all_tasks_blocked()
        steps = [after - before for before, after in pairwise(seen)]
        assert max(steps) <= 2 * waiting_readers._CALLS_PER_TURN
        assert len(made) == 1000
        nursery.cancel_scope.cancel()


async def test_a_bug_in_a_call_costs_its_topic_only(autojump_clock: MockClock) -> None:
    readers, one, two, made = WaitingReaders(), Topic(), Topic(), list[str]()

    def broken(_: Newest) -> None:
        raise ZeroDivisionError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.run)
        readers.serve(cast("Any", one), [broken], NOTHING)
        readers.serve(cast("Any", two), [lambda _: made.append("two")], NOTHING)
        await wait_all_tasks_blocked()
        assert made == ["two"]
        assert not two.bugs
        assert [type(bug) for _, bug in one.bugs] == [ZeroDivisionError]
        nursery.cancel_scope.cancel()
