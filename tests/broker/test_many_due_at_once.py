"""More entries fall due in one moment than one step handles: all of them come, in order."""

import pytest
from trio.testing import MockClock

from daybook.broker.protocol.dispatch import delayed
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import open_broker
from tests.harness.clocks import EPOCH_MS


async def test_all_that_is_due_at_once_is_delivered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "_DUE_MAX", 3)
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=pb.CommandSubscribe.Shared, permits=100)
        for n in range(50):
            client.send(n, deliver_at_time=EPOCH_MS + 10_000)
        await client.receipts(50)
        assert await client.entry_ids(50) == list(range(50))
