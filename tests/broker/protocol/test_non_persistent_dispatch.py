"""Entries of a non-persistent subscription: delivered at once or dropped, and never both."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.protocol.dispatch.interface import Activate, Entry
from daybook.broker.protocol.dispatch.non_persistent import NonPersistentDispatch

ROOMY = 1 << 30


def entries(*messages: int) -> list[Entry]:
    return [Entry((0, 0), each, number) for number, each in enumerate(messages)]


def assign(
    dispatch: NonPersistentDispatch, consumers: Sequence[int], *messages: int, room: int = ROOMY
) -> tuple[dict[int, list[int]], int]:
    found = dispatch.assign(
        entries(*messages), [10] * len(messages), dict.fromkeys(consumers, room)
    )
    return {key: [e.token for e in each] for key, each in found.deliveries.items()}, found.dropped


def test_the_consumer_of_an_exclusive_subscription_gets_what_it_has_permits_for() -> None:
    dispatch = NonPersistentDispatch(shared=False)
    assert dispatch.joined(1) == []
    assert assign(dispatch, [1], 1) == ({}, 1)
    dispatch.permits_granted(1, 2)
    assert assign(dispatch, [1], 1, 5, 1) == ({1: [0, 1]}, 1)
    assert dispatch.permits_of(1) == -4
    dispatch.permits_granted(1, 5)
    assert assign(dispatch, [1], 1, 1) == ({1: [0]}, 1)


def test_a_consumer_without_room_gets_nothing() -> None:
    dispatch = NonPersistentDispatch(shared=False)
    dispatch.joined(1)
    dispatch.permits_granted(1, 100)
    assert assign(dispatch, [1], 1, room=0) == ({}, 1)
    assert assign(dispatch, [1], 1, 1, 1, 1, room=15) == ({1: [0, 1]}, 2)


def test_shared_consumers_take_turns_across_assignments() -> None:
    dispatch = NonPersistentDispatch(shared=True)
    for consumer in (1, 2):
        dispatch.joined(consumer)
        dispatch.permits_granted(consumer, 10)
    assert assign(dispatch, [1, 2], 1, 1, 1) == ({1: [0, 2], 2: [1]}, 0)
    assert assign(dispatch, [1, 2], 1) == ({2: [0]}, 0)


def test_the_best_priority_is_served_first_and_then_the_next() -> None:
    dispatch = NonPersistentDispatch(shared=True)
    for consumer, priority in ((1, 1), (2, 0), (3, 0)):
        dispatch.joined(consumer, "", priority)
        dispatch.permits_granted(consumer, 2)
    assert assign(dispatch, [1, 2, 3], *([1] * 7)) == ({2: [0, 2], 3: [1, 3], 1: [4, 5]}, 1)


def test_a_failover_subscription_changes_its_active_consumer_at_once() -> None:
    dispatch = NonPersistentDispatch(shared=False, failover=("t", 0))
    assert dispatch.joined(1, "b") == [Activate(1, active=True)]
    changes = dispatch.joined(2, "a")
    assert Activate(2, active=True) in changes
    assert dispatch.active == 2
    for consumer in (1, 2):
        dispatch.permits_granted(consumer, 5)
    assert assign(dispatch, [1, 2], 1) == ({2: [0]}, 0)
    assert dispatch.left(2) == [Activate(1, active=True)]
    assert assign(dispatch, [1], 1) == ({1: [0]}, 0)


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=5),
    st.lists(st.integers(1, 4), max_size=12),
    st.integers(0, 60),
)
def test_every_entry_goes_to_one_consumer_that_can_take_it_or_is_dropped(
    shared: bool, consumers: list[tuple[int, int]], messages: list[int], room: int
) -> None:
    dispatch = NonPersistentDispatch(shared=shared)
    permits: dict[int, int] = {}
    for key, (priority, granted) in enumerate(consumers if shared else consumers[:1]):
        dispatch.joined(key, str(key), priority)
        if granted:
            dispatch.permits_granted(key, granted)
        permits[key] = granted
    given_, dropped = assign(dispatch, list(permits), *messages, room=room)
    taken = [number for each in given_.values() for number in each]
    assert len(set(taken)) == len(taken)
    for key, numbers in given_.items():
        assert numbers == sorted(numbers)
        for index, number in enumerate(numbers):
            assert permits[key] > 0
            assert room - 10 * index > 0
            permits[key] -= messages[number]
        assert dispatch.permits_of(key) == permits[key]
    left = [number for number in range(len(messages)) if number not in taken]
    assert dropped == sum(messages[number] for number in left)
    # Nothing is dropped while somebody could take it.
    able = [key for key in permits if permits[key] > 0 and room - 10 * len(given_.get(key, [])) > 0]
    assert not (left and able)
