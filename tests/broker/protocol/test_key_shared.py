"""Key_shared: the left has the inputs of the machine, the right its actions.

`read 3~7` brings entry 3 of key 7.  With auto-split ranges the keys 1 to 32,768 move to the second
consumer, and higher ones stay with the first; here HIGH stands for 40,000.
"""

from dataclasses import replace

import pytest

from daybook.broker.protocol.dispatch.blockers import Cause, stops_all
from daybook.broker.protocol.dispatch.interface import DispatchLimits, Entry, Read, Replay
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy, KeySharedDispatch, Why
from tests.broker.protocol.test_dispatch import LIMITS, Script

SPLIT = DispatchLimits(
    turn_messages_min=2,
    unacked_messages_max=10,
    subscription_unacked_messages_max=16,
    delayed_entries_max=3,
    waiting_entries_max=4,
    key_shared_points=0,
)

SCENARIOS = {
    "each key has its consumer": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        permits 2 9                ->
        read 0~5 1~HIGH 2~5 3~6    -> 2 gets 0 2 3, 1 gets 1, taken 4
    """,
    "pulsar 21199: a key that is never acknowledged delays nobody": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        permits 2 9                ->
        read 0~5 1~HIGH 2~5        -> 2 gets 0 2, 1 gets 1, taken 3
        redeliver 2 0              ->
        replayed 0                 -> 2 gets 0*1
        redeliver 2 0              ->
        replayed 0                 -> 2 gets 0*2
        read 3~6 4~HIGH 5~5        -> 2 gets 3 5, 1 gets 4, taken 3
    """,
    "pulsar 21396: after a reconnect the keys are served again, in order": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        permits 2 9                ->
        read 0~5 1~HIGH 2~5        -> 2 gets 0 2, 1 gets 1, taken 3
        leave 2                    ->
        join 3                     ->
        permits 3 9                ->
        want                       -> replay 0 2
        replayed 0 2               -> 3 gets 0 2
        read 3~5 4~HIGH            -> 3 gets 3, 1 gets 4, taken 2
    """,
    "pulsar 7792: a newcomer without permits delays its own keys only": """
        join 1                     -> rewind
        permits 1 9                ->
        join 2                     ->
        read 0~5 1~HIGH 2~5 3~HIGH -> 1 gets 1 3, taken 4
        permits 2 1                ->
        want                       -> replay 0
        replayed 0                 -> 2 gets 0
        permits 2 1                ->
        replayed 2                 -> 2 gets 2
    """,
    "pulsar 26236: a key that moved waits for what its old consumer has, and nothing else does": """
        join 1                     -> rewind
        permits 1 9                ->
        read 0~5 1~6 2~HIGH        -> 1 gets 0 1 2, taken 3
        join 2                     ->
        permits 2 9                ->
        read 3~5 4~6 5~7 6~HIGH    -> 2 gets 5, 1 gets 6, taken 4
        want                       -> read 13
        ack 1 0                    ->
        want                       -> replay 3
        replayed 3                 -> 2 gets 3
        leave 1                    ->
        want                       -> replay 1 2 4 6
        replayed 1 2 4 6           -> 2 gets 1 2 4 6
    """,
    "what comes back is delivered before later entries of its key": """
        join 1                     -> rewind
        permits 1 2                ->
        read 0~5 1~5 2~5           -> 1 gets 0 1, taken 2
        redeliver 1 0              ->
        permits 1 9                ->
        begin                      ->
        redeliver 1 1              ->
        brought 0                  -> 1 gets 0*1
        want                       -> replay 1
        replayed 1                 -> 1 gets 1*1
        read 2~5                   -> 1 gets 2, taken 1
    """,
    "an earlier entry that comes back during a read overtakes it": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        permits 2 3                ->
        read 0~5 1~5 2~5           -> 2 gets 0 1 2, taken 3
        redeliver 2 1              ->
        block 2                    ->
        read 3~5                   -> taken 1
        unblock 2                  ->
        permits 2 9                ->
        begin                      ->
        redeliver 2 0              ->
        brought 1 3                ->
        want                       -> replay 0 1 3
    """,
    "a key that comes back to its consumer does not wait": """
        join 1                     -> rewind
        permits 1 9                ->
        read 0~5                   -> 1 gets 0, taken 1
        join 2                     ->
        read 1~5                   -> taken 1
        leave 2                    ->
        want                       -> replay 1
        replayed 1                 -> 1 gets 1
    """,
    "a key stays until the consumer has all chunks of a message": """
        join 1                     -> rewind
        permits 1 9                ->
        read 0~5 1#m~5             -> 1 gets 0 1, taken 2
        join 2                     ->
        permits 2 9                ->
        read 2~5 3#m.~5 4~5        -> 1 gets 2 3, taken 3
        ack 1 0 1 2 3              ->
        want                       -> replay 4
        replayed 4                 -> 2 gets 4
    """,
    "a key moves if its consumer gives up a message before its last chunk": """
        join 1                     -> rewind
        permits 1 9                ->
        read 0~5 1#m~5             -> 1 gets 0 1, taken 2
        join 2                     ->
        permits 2 9                ->
        ack 1 1                    ->
        read 2#m.~5                -> taken 1
        ack 1 0                    ->
        replayed 2#m.~5            -> 2 gets 2
    """,
    "only keys that wait are held up when reading has to stop": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        read 0~5 1~6 2~7 3~HIGH    -> 1 gets 3, taken 4
        read 4~8 5~9 6~HIGH        -> taken 1
        want                       -> nothing
        permits 2 9                ->
        want                       -> replay 0 1 2 4
        replayed 0 1 2 4           -> 2 gets 0 1 2 4
        read 5~9 6~HIGH            -> 2 gets 5, 1 gets 6, taken 2
    """,
    "consumers and keys take turns": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 1                ->
        read 0~5 1~6 2~5           -> taken 3
        permits 2 1                ->
        want                       -> replay 0
        replayed 0                 -> 2 gets 0
        permits 2 1                ->
        want                       -> replay 1
    """,
    "what is due waits with its key": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        read 0@7~5 1~5 2@7~HIGH    -> taken 3
        tick 7                     ->
        want                       -> replay 2
        replayed 2~HIGH            -> 1 gets 2
        permits 2 9                ->
        want                       -> replay 0 1
    """,
    "what was acknowledged while it waited is not delivered": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        permits 2 2                ->
        read 0~5 1~5 2~5 3~HIGH    -> 2 gets 0 1, 1 gets 3, taken 4
        redeliver 2 1              ->
        ack 1 1                    ->
        permits 2 3                ->
        want                       -> replay 2
        begin                      ->
        ack 1 2                    ->
        brought 2~5                ->
        want                       -> read 11
        permits 2 1                ->
        read 4~5                   -> 2 gets 4, taken 1
    """,
    "a seek starts anew": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        read 0~5 1~HIGH            -> 1 gets 1, taken 2
        clear                      -> rewind
        permits 2 9                ->
        want                       -> read 17
        read 0~5 1~HIGH            -> 2 gets 0, 1 gets 1, taken 2
    """,
    "skipping all forgets what waits": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        read 0~5 1~HIGH 2~5        -> 1 gets 1, taken 3
        ack-up-to 1                ->
        permits 2 9                ->
        want                       -> replay 2
    """,
    "with too much unacknowledged, a consumer delays its own keys": """
        join 1                     -> rewind
        join 2                     ->
        permits 1 99               ->
        permits 2 99               ->
        read 0:10~5 1~5 2~HIGH     -> 2 gets 0, 1 gets 2, taken 3
        ack 2 0                    ->
        want                       -> replay 1
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    Script(KeySharedDispatch(SPLIT)).run(SCENARIOS[name].replace("HIGH", "40000"))


def test_out_of_order_keys_do_not_wait_for_their_old_consumer() -> None:
    script = Script(KeySharedDispatch(SPLIT, KeyPolicy(out_of_order=True)))
    script.run("""
        join 1                     -> rewind
        permits 1 9                ->
        read 0~5 1#m~6             -> 1 gets 0 1, taken 2
        join 2                     ->
        permits 2 9                ->
        read 2~5 3#m.~6 4~6        -> 2 gets 2 4, 1 gets 3, taken 3
        redeliver 1 0              ->
        replayed 0~5               -> 2 gets 0*1
    """)


def test_the_consumers_of_what_waits_take_turns() -> None:
    script = Script(KeySharedDispatch(replace(SPLIT, replay_entries_max=1)))
    script.run("""
        join 1                         -> rewind
        join 2                         ->
        join 3                         ->
        permits 3 9                    ->
        read 0~40000 1~20000 2~50000 3~20000 -> taken 4
        permits 1 9                    ->
        permits 2 9                    ->
        replayed 0                     -> 1 gets 0
        want                           -> replay 1
        replayed 1                     -> 2 gets 1
        want                           -> replay 2
    """)


def _sticky() -> KeySharedDispatch:
    machine = KeySharedDispatch(SPLIT, KeyPolicy(sticky=True))
    machine.joined(1, "a", 0, [(0, 9), (30, 30)])
    machine.joined(2, "b", 0, [(10, 19)])
    machine.permits_granted(1, 9)
    machine.permits_granted(2, 9)
    return machine


def test_a_slot_that_nobody_covers_waits_until_somebody_does() -> None:
    machine = _sticky()
    script = Script(machine)
    script.run("""
        read 0~0 1~20 2~15 3~30    -> 1 gets 0 3, 2 gets 2, taken 4
        want                       -> read 15
    """)
    (waiting,) = machine.waiting_keys(9)
    assert (waiting.slot, waiting.why, waiting.consumer) == (20, Why.UNCOVERED, None)
    machine.joined(3, "c", 0, [(20, 29)])
    script.run("""
        permits 3 9                ->
        want                       -> replay 1
        replayed 1                 -> 3 gets 1
        leave 3                    ->
        read 4~20 5~1              -> 1 gets 5, taken 2
        want                       -> read 14
    """)


def test_what_a_sticky_consumer_had_goes_to_the_one_that_covers_its_slots() -> None:
    machine = _sticky()
    script = Script(machine)
    script.run("""
        read 0~5 1~5               -> 1 gets 0 1, taken 2
        leave 1                    ->
        want                       -> read 9
    """)
    assert machine.refusal([(5, 10)]) is not None
    assert machine.in_the_way([(5, 10)]) == {2}
    assert machine.in_the_way([(5, 9)]) == set()
    machine.joined(4, "d", 0, [(5, 9)])
    script.run("""
        permits 4 9                ->
        replayed 0 1               -> 4 gets 0 1
    """)


def test_the_reason_why_a_key_waits_is_told() -> None:
    machine = KeySharedDispatch(SPLIT)
    script = Script(machine)
    script.run("""
        join 1                     -> rewind
        permits 1 3                ->
        read 0~5 1~5 2~6           -> 1 gets 0 1 2, taken 3
        join 2                     ->
        permits 1 1                ->
        read 3~5 4~7               -> taken 2
    """)
    drains, idle = machine.waiting_keys(9)
    assert (drains.key, drains.slot, drains.first, drains.entries) == (5, 5, (7, 3), 1)
    assert (drains.why, drains.consumer, drains.since) == (Why.DRAINS, 1, (7, 0))
    assert machine.draining() == {1: {5: 2}}
    assert (idle.why, idle.consumer) == (Why.NO_PERMITS, 2)
    machine.permits_granted(2, 5)
    assert machine.waiting_keys(9)[1].why == Why.READY
    machine.connection_full(2)
    assert machine.waiting_keys(9)[1].why == Why.FULL
    machine.acked(1, [(7, 0), (7, 1)])
    assert machine.waiting_keys(1)[0].why == Why.FULL
    assert not machine.draining()
    machine.connection_writable(2)
    Script(machine).run("""
        replayed 3:10~5 4~7        -> 2 gets 3
    """)
    assert machine.waiting_keys(9)[0].why == Why.BLOCKED


def test_what_stops_reading_is_named() -> None:
    machine = KeySharedDispatch(SPLIT)
    Script(machine).run("""
        join 1                     -> rewind
        join 2                     ->
        permits 1 9                ->
        read 0~5 1~5 2~6 3~7       -> taken 4
        want                       -> nothing
    """)
    assert machine.look_ahead_full
    assert machine.queued == 0
    full, *keys = [each for each in machine.explain() if each.cause is not Cause.NO_PERMITS]
    assert (full.cause, full.count, full.limit, full.place) == (Cause.LOOK_AHEAD_FULL, 4, 4, (7, 0))
    assert stops_all([full])
    assert [(each.cause, each.consumer, each.count, each.place) for each in keys] == [
        (Cause.KEY_WAITS, 2, 2, (7, 0)),
        (Cause.KEY_WAITS, 2, 1, (7, 2)),
        (Cause.KEY_WAITS, 2, 1, (7, 3)),
    ]
    assert "it has no permits" in keys[0].detail
    machine.permits_granted(2, 1)
    assert machine.queued == 4


def test_a_slot_without_a_consumer_is_named() -> None:
    machine = _sticky()
    Script(machine).run("""
        read 0~20                  -> taken 1
    """)
    (uncovered,) = machine.explain()
    assert (uncovered.cause, uncovered.consumer) == (Cause.KEY_UNCOVERED, None)
    assert "slot 20" in uncovered.detail


def test_reading_is_wider_while_some_consumers_can_take_nothing() -> None:
    """The share of consumers that can take something decides how many entries are read for them."""
    machine = KeySharedDispatch(LIMITS)
    for key in range(10):
        machine.joined(key, f"c{key}")
    machine.permits_granted(3, 4)
    want = machine.want()
    assert isinstance(want, Read)
    assert want.entries == 40


def test_a_message_that_cannot_be_read_frees_its_permits() -> None:
    machine = KeySharedDispatch(SPLIT)
    machine.joined(1)
    machine.permits_granted(1, 5)
    want = machine.want()
    assert want is not None
    machine.entries_read(want, [Entry((7, 0), 5, None, key=3)])
    machine.acked(1, [(7, 0)], unread=True)
    assert machine.permits_of(1) == 4


def test_an_entry_that_is_gone_when_it_is_read_again_is_forgotten() -> None:
    """It was acknowledged or trimmed away meanwhile, and nobody told the machine."""
    dispatch = KeySharedDispatch(SPLIT)
    dispatch.joined(1)
    dispatch.permits_granted(1, 9)
    want = dispatch.want()
    assert isinstance(want, Read)
    dispatch.entries_read(want, [Entry((5, n), 1, None, key=5) for n in range(2)])
    dispatch.redelivery_requested(1)
    again = dispatch.want()
    assert isinstance(again, Replay)
    assert again.places == ((5, 0), (5, 1))
    dispatch.entries_read(again, [])
    assert isinstance(dispatch.want(), Read)
