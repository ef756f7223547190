"""Runs that have failed once, as small as they could be made: what the simulator found.

Each has a test of its own in the layer that was to blame, too.
"""

import pytest

from tests.simulation.acts import On, Swizzle
from tests.simulation.cluster import Settings
from tests.simulation.plan import Administer, Consume, Mishap, Plan, Produce, Shape, Topic
from tests.simulation.run import simulate

T = "persistent://public/default/t1"

SCENARIOS = {
    # A consumer left out, and acknowledged, what lay before a place that it had sought long ago,
    # when an administrator went back behind it.
    "a reset after a seek that delivered nothing": Plan(
        seed=577,
        shape=Shape(settings=Settings(roll_entries=10, checkpoint_entries=5, split=0.1)),
        topics=(Topic(T),),
        work=(
            Produce("p1-t1", "client-1", T, 20, pace_s=0.02, burst=1, payload_bytes=0),
            Consume(
                *("c1a-t1", "client-1", T, "s1", "failover"),
                receipts=False,
                linger_s=0.1,
                nack=0.05,
                leave=0.05,
                seek=0.03,
                unsubscribe=0.02,
                queue=10,
            ),
            Consume(
                *("c1b-t1", "client-1", T, "s1", "failover"),
                cumulative=1.0,
                linger_s=0.01,
                nack=0.05,
                leave=0.05,
                seek=0.03,
            ),
            Administer("admin1", "client-1", "reset", T, 14.511996827439058, "s1"),
        ),
        faults=(),
        power_cycle=False,
    ),
    # The refusal of a send to a topic that was being terminated named an older one, which was
    # waiting for its bookies, and was stored.
    "sends that wait while a topic is terminated": Plan(
        seed=2147,
        shape=Shape(bookies=1, brokers=1),
        topics=(Topic(T),),
        work=(
            Produce(
                *("p2-t1", "client-1", T, 25),
                pace_s=0.3,
                burst=20,
                batching=False,
                payload_bytes=60000,
                compression="snappy",
                send_timeout_s=30.0,
                reopen=0.1,
            ),
            Administer("admin4", "client-1", "terminate", T, 2.2773191156267263, "s2"),
        ),
        faults=(
            Mishap(
                "f1",
                On("list changed"),
                Swizzle(
                    ("bookie-1", "bookie-2", "broker-1"), ("bookie-2", "bookie-1", "broker-1"), 0.1
                ),
            ),
        ),
        storm_s=4.0,
        power_cycle=False,
    ),
    # Not a fault of the product: the checker took a subscription for new that had come back with
    # its consumer after its topic was deleted.
    "a subscription that comes back with its consumer": Plan(
        seed=592,
        shape=Shape(bookies=1, brokers=1),
        topics=(Topic(T),),
        work=(
            Produce(
                *("p1-t1", "client-1", T, 12),
                pace_s=0.3,
                burst=1,
                batching=False,
                payload_bytes=0,
                send_timeout_s=2.0,
                reopen=0.1,
            ),
            Consume(
                *("c3a-t1", "client-1", T, "s3", "shared", "latest"),
                receipts=False,
                linger_s=0.5,
                leave=0.05,
                queue=10,
            ),
            Administer("admin4", "client-1", "delete", T, 0.29091485171822384, "extra"),
        ),
        faults=(),
        storm_s=2.0,
        power_cycle=False,
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_found_once_is_not_there_any_more(name: str) -> None:
    assert simulate(SCENARIOS[name]).violations == []
