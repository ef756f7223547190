"""Delayed delivery through a broker: much may wait, in bounded memory, and nothing waits behind it.

The limits are small here, so that most of what is delayed is known by ranges of the log only.
"""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.test_explain import subscription_of
from tests.harness.broker import open_broker
from tests.harness.clocks import EPOCH_MS

SHARED, KEY_SHARED = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared
FEW = replace(TopicLimits(), dispatch=DispatchLimits(delayed_entries_max=10, read_entries_max=7))
COUNT = 120


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("unload", [False, True])
async def test_much_that_is_delayed_comes_in_time_and_holds_up_nothing(
    autojump_clock: MockClock, kind: pb.CommandSubscribe.SubType, unload: bool
) -> None:
    async with open_broker(topic_limits=FEW) as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=kind, permits=10_000)
        due_s = [10 + 0.25 * (37 * n % 180) for n in range(COUNT)]
        times = list(due_s)
        for n in range(COUNT):
            client.send(n, deliver_at_time=EPOCH_MS + int(1000 * due_s[n]))
        client.send(COUNT)
        await client.receipts(COUNT + 1)
        assert await client.entry_ids(1) == [COUNT]
        assert subscription_of(cluster).dispatch.delayed == COUNT
        if unload:
            await trio.sleep(25 - trio.current_time())
            before = [n for n in range(COUNT) if due_s[n] < 25]
            few = await client.entry_ids(len(before) - 10)
            assert set(few) <= set(before)
            await cluster.broker.topics.unload(cluster.broker.log().name)
            await client.wait(pb.CommandCloseConsumer)
            for _ in client.bodies(Delivery):
                await client.entry_ids(1)
            await client.subscribe(kind=kind, permits=10_000)
        came: dict[int, float] = {}
        while len(came) < COUNT + unload:
            (entry_id,) = await client.entry_ids(1)
            assert entry_id not in came
            came[entry_id] = trio.current_time()
        if unload:
            assert came.pop(COUNT) <= 30
            due_s = [max(each, 27) for each in due_s]
        for entry_id, at_s in came.items():
            assert times[entry_id] <= at_s + 0.001
            assert at_s <= due_s[entry_id] + 3
        await client.settle(10)
        assert not client.bodies(Delivery)
