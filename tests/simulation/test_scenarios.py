"""Failed runs, shrunk as far as possible: the bugs that the simulator found.

Each bug has a test of its own in the layer that was to blame, too.
"""

from dataclasses import replace

import pytest

from tests.history.check import check
from tests.history.events import Overloaded
from tests.simulation.acts import (
    SUBJECT,
    At,
    Flaky,
    Freeze,
    FullDisk,
    Isolate,
    Join,
    JumpClock,
    Kill,
    LoseContact,
    LoseDisk,
    LoseIndex,
    On,
    Restart,
    Rot,
    SlowDisk,
    StuckDisk,
    Swizzle,
)
from tests.simulation.plan import (
    Administer,
    Consume,
    Follow,
    ManyTopics,
    Mishap,
    Plan,
    Produce,
    Shape,
    Spoil,
    Topic,
    WriteLedgers,
)
from tests.simulation.run import simulate
from tests.simulation.settings import AutoRecovery, Limits, Settings

T = "persistent://public/default/t1"
T2 = "persistent://public/default/t2"
T_OTHER = "persistent://public/other/t1"


def _moving(seed: int, silent_at_s: float) -> Plan:
    """Return a plan in which a bundle moves, about two seconds after its start."""
    work = (
        Follow("follower-t1", "client-1", T_OTHER, "offset", again=0.05, give_up=0.2),
        Produce("p1-t2", "client-1", T2, 50, pace_s=0.1, batching=False, property_bytes=5000),
    )
    return Plan(
        seed=seed,
        shape=Shape(clients=2, settings=Settings(directories=3, http=True, balance_interval_s=1.0)),
        topics=(Topic(T_OTHER), Topic(T2)),
        work=work,
        faults=(Mishap("s1", At(silent_at_s), Isolate("bookie-2", 1000.0)),),
        storm_s=4.0,
        power_cycle=False,
    )


SCENARIOS = {
    # A consumer had sought a position long ago and left out, and acknowledged, what lay before it,
    # when an administrator reset the subscription to an earlier position.
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
    # Not a fault of the product: an administrator did not expect that there is no topic yet.
    "a topic is terminated before anybody has asked for it": Plan(
        seed=400084,
        shape=Shape(bookies=1, brokers=1),
        topics=(Topic(T),),
        work=(Administer("admin1", "client-1", "terminate", T, 0.01),),
        faults=(),
        storm_s=2.0,
        power_cycle=False,
    ),
    # Not a fault of the product: consumers did not note that they had a partition that was added,
    # so their acknowledgements there counted for nothing.
    "a partition is added after its subscription was deleted": Plan(
        seed=100016,
        shape=Shape(2, 1, settings=Settings(split=0.1)),
        topics=(Topic("persistent://public/default/t2", 2),),
        work=(
            Produce(
                *("p1-t2", "client-1", "persistent://public/default/t2", 25),
                pace_s=0.3,
                burst=20,
                payload_bytes=500,
            ),
            Consume(
                *("c1a-t2", "client-1", "persistent://public/default/t2", "s1", "shared"),
                linger_s=3.0,
                abandon=0.5,
                queue=1,
            ),
            Administer(
                *("admin1", "client-1", "delete subscription", "persistent://public/default/t2"),
                *(3.14513293123104, "s1"),
            ),
            Administer(
                *("admin2", "client-1", "add partition", "persistent://public/default/t2"),
                *(5.505050803433544, "s1"),
            ),
        ),
        faults=(),
        storm_s=8.0,
        power_cycle=False,
    ),
    # Not a fault of the product: a consumer from `latest` that was refused in one partition had
    # made the subscription in another one; a later consumer, from `earliest`, found it there.
    "a subscription that was made by a consumer that was refused": Plan(
        seed=53,
        shape=Shape(settings=Settings(quorums=(3, 3, 3))),
        topics=(Topic(T, 2),),
        work=(
            Produce(
                *("p1-t1", "client-1", T, 20),
                pace_s=0.3,
                burst=1,
                batching=False,
                send_timeout_s=2.0,
            ),
            Produce(
                *("p2-t1", "client-1", T, 10),
                pace_s=0.02,
                batching=False,
                payload_bytes=0,
                compression="snappy",
                send_timeout_s=2.0,
            ),
            Consume(
                *("c1a-t1", "client-1", T, "s1", "exclusive", "latest"),
                linger_s=3.0,
                leave=0.05,
                abandon=0.5,
                seek=0.03,
                unsubscribe=0.02,
            ),
            Administer("admin1", "client-1", "add partition", T, 2.8768857616572294, "extra"),
        ),
        faults=(),
        storm_s=4.0,
        power_cycle=False,
    ),
    # A bookie was killed at its first start, before it had cookies; it took the leftovers of an
    # empty file's write for another bookie's data, and never started again.
    "a bookie is killed at its first start": Plan(
        seed=31647,
        shape=Shape(brokers=1),
        topics=(),
        work=(),
        faults=(
            Mishap("f1", On("segment"), LoseIndex("subject", 2.0)),
            Mishap("f2", At(2.7), LoseDisk("bookie-1", 1.0)),
        ),
        storm_s=5.0,
        power_cycle=False,
    ),
    "a bookie starts for the first time, and its disk is full": Plan(
        seed=920750,
        shape=Shape(bookies=4, brokers=1),
        topics=(),
        work=(),
        faults=(
            Mishap("f1", At(0.9), FullDisk("bookie-4", 6.0, hard=True)),
            Mishap("f2", At(6.8), Join("bookie-4")),
        ),
        storm_s=8.0,
        power_cycle=False,
    ),
    # Not a fault of the product: a broker keeps a moved reader's position for a while, and this
    # one's open was given up between its first seek and its return.
    "a reader is given up while it seeks": Plan(
        seed=31321,
        shape=Shape(bookies=1),
        topics=(Topic(T),),
        work=(
            Follow("follower-t1", "client-1", T, "time", give_up=0.2),
            Administer("admin2", "client-1", "terminate", T, 5.445330499051671, "s2"),
        ),
        faults=(),
        storm_s=12.0,
        power_cycle=False,
    ),
    # A block that alone fills the room of a bookie was let in by halves: it was refused, sent again
    # ten seconds later, and one more entry of it was stored each time.
    "blocks that are larger than what a bookie may hold": Plan(
        seed=60029,
        shape=Shape(1, 1, 3, settings=Settings(limits=Limits(in_flight_bytes_max=20_000))),
        topics=(),
        work=(
            WriteLedgers(
                *("w1", "client-1", (1, 1, 1), "advanced"),
                entries=30,
                burst=20,
                payload_bytes=20_000,
                flush=1.0,
                abandon=0.0,
            ),
        ),
        faults=(),
        storm_s=1.5,
        power_cycle=False,
    ),
    # A bundle moved, and the new owner read the end of the log from a bookie that was not even
    # registered any more.
    "a topic moves after a bookie is gone": _moving(60024, 0.0427920392795067),
    # The bookie was registered still, and only the new owner did not know yet that it is silent.
    "a topic moves while a bookie is silent": _moving(60036, 1.8),
    # Not a fault of the product: one task unsubscribed, and another one that receives from the same
    # consumer tried to do the same.
    "two tasks unsubscribe": Plan(
        seed=31681,
        shape=Shape(
            *(3, 1, 3),
            settings=Settings(quorums=(2, 2, 2), directories=3, racks=2, unsynced=True),
        ),
        topics=(Topic(T_OTHER, 2),),
        work=(
            Produce(
                *("p1-t1", "client-2", T_OTHER, 100),
                pace_s=0.001,
                burst=200,
                give_up=0.6,
            ),
            Consume(
                *("c2a-t1", "client-3", T_OTHER, "s2"),
                cumulative=0.3,
                linger_s=0.5,
                forget=0.05,
                seek=0.03,
                unsubscribe=0.02,
                queue=10,
                give_up=0.2,
                flush=0.5,
                receivers=2,
            ),
        ),
        faults=(),
        storm_s=2.0,
        power_cycle=False,
    ),
    # Not a fault of the product: the sender of unreadable entries did not expect the end of the
    # topic.
    "a topic is terminated between entries that nobody can read": Plan(
        seed=31822,
        shape=Shape(1, 1, 3),
        topics=(Topic(T_OTHER),),
        work=(
            Administer("admin1", "client-1", "terminate", T_OTHER, 1.536333116415721, "s2"),
            Spoil("spoiler-t1", "client-2", T_OTHER, "encrypted", 20, 3, 0.3),
        ),
        faults=(),
        storm_s=3.0,
        power_cycle=False,
    ),
    # Not a fault of the product: the topic limited what its consumer did not acknowledge, and in
    # the calm nobody acknowledges anything.  The limit is lifted then, and the broker has to send
    # the rest.
    "a limit of what is not acknowledged is lifted": Plan(
        seed=916092,
        shape=Shape(1, 1, 2),
        topics=(Topic(T),),
        work=(
            Produce(
                *("p1-t1", "client-1", T, 25, 0.001, 50),
                batching=False,
                payload_bytes=0,
                send_timeout_s=2.0,
                give_up=0.6,
                delay_s=2.0,
            ),
            Consume(
                *("c1a-t1", "client-1", T, "s1", "shared", "latest"),
                receipts=False,
                linger_s=0.5,
                flush=0.1,
                receivers=2,
            ),
            Administer("admin1", "client-1", "change policies", T, 0.2732607280209225, "s2"),
        ),
        faults=(),
        storm_s=1.5,
        power_cycle=False,
    ),
    # A bookie wrote damaged entries again when it met damage of its index.  The new index led to
    # the new records, and the bookie called the entries damaged until its next start.
    "an index is damaged while damaged entries are written again": Plan(
        seed=900026,
        shape=Shape(
            *(3, 1, 3),
            settings=Settings(
                cursor_roll_records=2,
                cursor_snapshot_s=0.2,
                old_brokers=1.0,
                policy_check_interval_s=0.5,
                retention=False,
                racks=2,
                reclaim_interval_s=10.0,
                position_interval_s=0.2,
                session_timeout_s=1.0,
                recovery=AutoRecovery(0.5, 10.0, fence_open_after_s=0.5),
                limits=Limits(
                    return_s=0.5,
                    heal_interval_s=0.5,
                    dispatch_bytes_max=1000,
                    unread_bytes_max=5000,
                    checkpoint_bytes=20_000,
                ),
            ),
        ),
        topics=(Topic(T),),
        work=(
            Produce(
                *("p1-t1", "client-1", T, 5, 0.1, 20),
                batching=False,
                wait=True,
                give_up=0.2,
                property_bytes=5000,
            ),
            Spoil("spoiler-t1", "client-3", T, "damaged", 20, 20, 0.02),
        ),
        faults=(
            Mishap("f3", At(0.982888516804916), Rot("bookie-1", "zeroed", 20)),
            Mishap("f4", At(0.982888516804916), Kill("bookie-1", 0.05, power=True)),
            Mishap("f11", At(1.259388764485747), Rot("bookie-1", "blocks", 3)),
        ),
        storm_s=1.5,
        power_cycle=False,
    ),
    # Not a fault of the product: both bookies have to answer, and no third one can take the place
    # of the one that is stuck.
    "a bookie without a spare is stuck": Plan(
        seed=915097,
        shape=Shape(2, 1, 2, settings=Settings(quorums=(2, 2, 2))),
        topics=(Topic(T_OTHER),),
        work=(
            Produce(
                *("p1-t1", "client-2", T_OTHER, 50, 0.1, 1),
                batching=False,
                compression="zstd",
                named=True,
                give_up=0.6,
                delay_s=2.0,
            ),
        ),
        faults=(Mishap("f1", At(2.6311750349319785), StuckDisk("bookie-1", 8.0)),),
        storm_s=10.0,
        power_cycle=False,
    ),
    # Not a fault of the product: the run stopped its broker before the first search for orphans.
    "a run ends soon after a creation was cut short": Plan(
        seed=38,
        shape=Shape(
            *(3, 1, 3),
            settings=Settings(
                quorums=(3, 3, 3),
                subscription_expiry_s=1.5,
                directories=2,
                recovery=AutoRecovery(0.5, 2.0, 50_000.0, thorough=True),
                limits=Limits(
                    stuck_s=3.0,
                    heal_interval_s=0.5,
                    flush_s=0.1,
                    lookups_max=1,
                    checkpoint_bytes=20_000,
                ),
            ),
        ),
        topics=(Topic(T_OTHER, 3),),
        work=(
            Produce(
                *("p2-t1", "client-3", T_OTHER, 1, 0.3, 20),
                payload_bytes=3333,
                compression="zstd",
                send_timeout_s=2.0,
            ),
        ),
        faults=(Mishap("f10", On("list changed", 1, 0.002944848618165406), Kill("subject", 0.05)),),
        storm_s=2.0,
        power_cycle=False,
    ),
    # Not a fault of the product: every bookie refused entries, because a burst was more than it may
    # hold, and one of them had a slow disk as well.
    "one bookie is slow and all of them are overloaded": Plan(
        seed=3,
        shape=Shape(
            *(3, 1, 1),
            settings=Settings(quorums=(3, 3, 2), limits=Limits(in_flight_bytes_max=20_000)),
        ),
        topics=(Topic(T),),
        work=(
            Produce(*("p1-t1", "client-1", T, 100, 0.02, 20), batching=False, payload_bytes=3333),
        ),
        faults=(Mishap("f1", At(0.5), SlowDisk("bookie-1", 4.0, 10.0)),),
        storm_s=6.0,
        power_cycle=False,
    ),
    # Not a fault of the product: a consumer gave messages back whose keys belonged to others by
    # then, and these get nothing of a key while the first one keeps later messages of it.
    "keys move while messages of them are given back": Plan(
        seed=3000090,
        shape=Shape(
            settings=Settings(
                directories=3,
                racks=2,
                reclaim_interval_s=3.0,
                position_interval_s=0.5,
                session_timeout_s=1.0,
                split=0.5,
                recovery=AutoRecovery(5.0, fence_open_after_s=0.5),
                http=True,
                balance_interval_s=1.0,
            ),
        ),
        topics=(Topic(T),),
        work=(
            Produce("p1-t1", "client-1", T, 400, 0.001, 200, batching=False, give_up=0.2),
            Consume(
                *("c1b-t1", "client-1", T, "s1", "failover"),
                cumulative=1.0,
                linger_s=3.0,
                nack=0.05,
                leave=0.05,
                seek=0.03,
                unsubscribe=0.02,
            ),
            Consume(
                *("c2a-t1", "client-1", T, "s2", "key_shared"),
                linger_s=3.0,
                nack=0.05,
                forget=0.05,
                queue=1,
                receivers=2,
            ),
            Consume(
                *("c2b-t1", "client-1", T, "s2", "key_shared"),
                receipts=False,
                cumulative=0.3,
                linger_s=0.01,
                queue=10,
                give_up=0.2,
                flush=0.1,
                receivers=2,
            ),
            Consume(
                *("c2c-t1", "client-1", T, "s2", "key_shared"),
                receipts=False,
                cumulative=0.3,
                linger_s=0.5,
                nack=0.05,
                abandon=0.5,
                queue=10,
                give_up=0.2,
                flush=0.5,
            ),
        ),
        faults=(
            Mishap("f1", At(0.08775571335945553), Freeze("broker-1", 5.0)),
            Mishap("f2", On("fence", 2), Flaky(12.272341650441444, 0.1, 0.1, 0.02, 0.3, 300.0)),
            Mishap("f5", At(2.8824909822411824), StuckDisk("bookie-2", 14.0)),
            Mishap("f6", At(2.8824909822411824), StuckDisk("bookie-3", 14.0)),
            Mishap("f7", At(3.6219099624567375), Restart("broker-2", 14.0)),
        ),
        power_cycle=False,
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_found_once_is_not_there_any_more(name: str) -> None:
    assert simulate(SCENARIOS[name]).violations == []


def test_an_orphan_that_no_search_finds_is_reported() -> None:
    plan = SCENARIOS["a run ends soon after a creation was cut short"]
    settings = replace(plan.shape.settings, orphan_interval_s=3600.0)
    outcome = simulate(replace(plan, shape=replace(plan.shape, settings=settings)))
    assert [each.partition(":")[0] for each in outcome.violations] == ["orphan-kept"]


def test_an_orphan_is_removed_after_the_clock_of_its_broker_was_set_back() -> None:
    plan = SCENARIOS["a run ends soon after a creation was cut short"]
    back = Mishap("f1", At(1.5), JumpClock("broker-1", -86_400.0))
    assert simulate(replace(plan, faults=(*plan.faults, back))).violations == []


def test_only_the_refusals_of_other_bookies_excuse_the_delay_of_an_overload() -> None:
    outcome = simulate(SCENARIOS["one bookie is slow and all of them are overloaded"])
    refusals = [each for each in outcome.events if isinstance(each.event, Overloaded)]
    assert refusals
    rest = [each for each in outcome.events if each not in refusals]
    assert {each.rule for each in check(rest)} == {"delayed"}
    # If the slow bookie alone had refused entries, no other one would be away.
    own = [each for each in refusals if each.event == Overloaded("bookie-1")]
    assert own
    alone = sorted([*rest, *own], key=lambda each: each.at_ns)
    assert {each.rule for each in check(alone)} == {"delayed"}


def test_the_refusal_of_a_block_of_entries_is_noted() -> None:
    outcome = simulate(SCENARIOS["blocks that are larger than what a bookie may hold"])
    assert outcome.count(Overloaded) == 1


# Found by seed 2208: loads that hung when the session ended took the logs over in the next session,
# from the topics that the same broker served by then.
LOST_SESSION = Plan(
    seed=2,
    shape=Shape(
        brokers=1,
        settings=Settings(roll_age_s=0.5, trim_interval_s=0.5, session_timeout_s=1.0),
    ),
    topics=(),
    work=(ManyTopics("many", "client-1", 30, rounds=4, pace_s=0.5, keep=False),),
    faults=(
        Mishap("k1", At(1.0), Kill("broker-1", 0.05)),
        Mishap("c1", On("list read", 62), LoseContact(SUBJECT, 1.5)),
    ),
    storm_s=6.0,
    power_cycle=False,
)


def test_a_load_of_an_earlier_session_does_not_fence_the_topic_of_the_next_one() -> None:
    outcome = simulate(LOST_SESSION)
    assert outcome.violations == []
    assert outcome.marks["many topics: LoseContact of a loading broker"]
    assert not outcome.marks["log a topic failed and is loaded again when a client asks for it"]
