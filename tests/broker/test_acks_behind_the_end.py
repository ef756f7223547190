"""Acknowledgements of entries that this broker does not have."""

import pytest
from trio.testing import MockClock

from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import open_broker


@pytest.mark.parametrize("in_contact", [True, False])
@pytest.mark.parametrize("cumulative", [True, False])
async def test_an_entry_behind_the_end_is_unknown_while_another_broker_may_have_it(
    in_contact: bool, cumulative: bool, autojump_clock: MockClock
) -> None:
    """Seed 43966: a broker whose session had ended, and who did not know, said no.

    The consumer had received the entry from the next owner, which was killed then.
    """
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        client.send(0)
        await client.receipts(1)
        await client.subscribe(permits=10, initialPosition=pb.CommandSubscribe.Earliest)
        (delivery,) = await client.deliveries(1)
        cluster.broker.logs.in_contact = in_contact
        kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
        ack = pb.CommandAck(consumer_id=1, ack_type=kind)
        ack.message_id.add(ledgerId=delivery.ledger_id + 3, entryId=1)
        answer = await client.ask(ack, pb.CommandAckResponse)
        refused = pb.NotAllowedError if in_contact else pb.ServiceNotReady
        assert answer.error == refused
        assert ("has no contact with ZooKeeper" in answer.message) is not in_contact
