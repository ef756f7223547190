"""A send that a broker may have stored is in doubt, however its producer ends."""

from collections.abc import Callable

import pytest
import trio

import daybook
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import PATIENCE_S, FakeBroker, fake_cluster, until
from tests.clients.python.test_consumer import QUICK, TOPIC

_PRODUCER = 5  # the type of the command


def refuse_producers(broker: FakeBroker) -> None:
    broker.refusals[_PRODUCER] = [(pb.TopicTerminatedError, "terminated")]


def refuse_sends(broker: FakeBroker) -> None:
    broker.send_errors = [pb.TopicTerminatedError]


@pytest.mark.parametrize("refuse", [refuse_producers, refuse_sends])
async def test_what_was_sent_before_the_topic_moved_may_be_stored_although_it_is_terminated(
    refuse: Callable[[FakeBroker], None],
) -> None:
    """Seed 2147: the broker stored it, its receipt was lost, the topic was terminated; the producer
    reconnected, was refused, and told its application that the message was not stored.
    """
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer, broker = await client.create_producer("t"), cluster.brokers["b1"]
        errors: list[daybook.BrokerError] = []

        def note(_: object, error: daybook.BrokerError | None) -> None:
            assert error is not None
            errors.append(error)

        broker.hold_receipts = True
        producer.send_nowait(b"1", on_result=note)
        await until(lambda: cluster.topics[TOPIC].entries)
        refuse(broker)
        broker.close_producers()
        await until(lambda: errors)
        assert errors[0].outcome is daybook.Outcome.UNKNOWN
        with trio.fail_after(PATIENCE_S), pytest.raises(daybook.TopicTerminatedError):
            await producer.send(b"2")
