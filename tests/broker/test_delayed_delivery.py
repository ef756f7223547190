"""Delayed delivery through a broker: much may wait, in bounded memory, and nothing waits behind it.

The limits are small here, so that most of what is delayed is known by ranges of the log only.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.broker.protocol.dispatch_rate import DispatchRateLimit, DispatchRates
from daybook.managed_ledger.reading import LogEntry
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


@pytest.mark.parametrize("closed", [True, False])
async def test_a_limit_of_bytes_is_not_for_the_far_part(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """Nothing of it is delivered, so it is read in large pieces, though the limit is small."""
    limits = replace(FEW, dispatch=replace(FEW.dispatch, delayed_lead_ms=5_000))
    async with open_broker(topic_limits=limits) as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=SHARED, permits=10_000)
        for n in range(38):
            client.send(n, deliver_at_time=EPOCH_MS + (10_000 if n < 10 else 40_000))
        await client.receipts(38)
        assert len(await client.entry_ids(10)) == 10
        dispatcher = subscription_of(cluster).dispatcher
        limit = DispatchRateLimit("dispatchRate", 0, 1, 1e6, trio.current_time())
        if closed:
            limit.take(1, 1, trio.current_time())
        dispatcher.rates = DispatchRates([limit])
        reads: list[int] = []
        read = dispatcher._log.read

        async def counted(*arguments: Any, **options: Any) -> Sequence[LogEntry]:
            found = await read(*arguments, **options)
            reads.append(len(found))
            return found

        monkeypatch.setattr(dispatcher._log, "read", counted)
        await trio.sleep(38 - trio.current_time())
        assert dispatcher.dispatch.delayed == 28
        assert set(reads) == {7}, "not one by one"
