"""The cost of a key_shared subscription, whatever waits and however many consumers come."""

from collections.abc import Sequence
from typing import Any

import pytest

from daybook.broker.protocol.dispatch.interface import (
    Deliver,
    DispatchLimits,
    Effect,
    Entry,
    Read,
    Replay,
)
from daybook.broker.protocol.dispatch.key_shared import KeySharedDispatch
from daybook.broker.protocol.dispatch.places import Place

N = 6_000
CONSUMERS = 300
_looks = 0


class _Watched(KeySharedDispatch):
    """A machine that counts how often it looks for the right line of a key."""

    def _line_up(self, key: Any) -> None:
        global _looks
        _looks += 1
        super()._line_up(key)


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    global _looks
    _looks = 0


def _machine(points: int = 100, replays: int = 100) -> _Watched:
    limits = DispatchLimits(
        waiting_entries_max=2 * N, key_shared_points=points, replay_entries_max=replays
    )
    return _Watched(limits)


def _entries(places: Sequence[Place], keys: int) -> list[Entry]:
    return [Entry(place, 1, None, key=place[1] % keys * 7919) for place in places]


def _read(machine: KeySharedDispatch, first: int, count: int, keys: int) -> list[Effect]:
    want = machine.want()
    assert isinstance(want, Read)
    return machine.entries_read(want, _entries([(1, first + n) for n in range(count)], keys))


def _replay_all(machine: KeySharedDispatch, keys: int) -> list[Place]:
    """Return the entries that are delivered until nothing that waits can be."""
    found: list[Place] = []
    while isinstance(want := machine.want(), Replay):
        for effect in machine.entries_read(want, _entries(want.places, keys)):
            if isinstance(effect, Deliver):
                found += [entry.place for entry in effect.entries]
    return found


@pytest.mark.parametrize("keys", [1, 100, N])
def test_what_waits_is_looked_at_once_when_it_is_delivered(keys: int) -> None:
    machine = _machine()
    machine.joined(1, "one")
    machine.joined(2, "two")
    machine.permits_granted(1, N)
    machine.permits_granted(2, 1)
    machine.connection_full(1)
    for first in range(0, N, 500):
        _read(machine, first, 500, keys)
        machine.permits_granted(2, 500)
    waited = machine.waiting
    before = _looks
    machine.connection_writable(1)
    delivered = _replay_all(machine, keys)
    assert len(delivered) == waited
    assert _looks - before <= 3 * waited + 100


def test_one_permit_at_a_time_costs_the_same_however_many_wait() -> None:
    machine = _machine()
    machine.joined(1, "one")
    machine.joined(2, "two")
    machine.permits_granted(2, 2 * N)
    for first in range(0, N, 500):
        _read(machine, first, 500, N)
    assert machine.waiting > N // 4
    before = _looks
    for _ in range(100):
        machine.permits_granted(1, 1)
        assert len(_replay_all(machine, N)) == 1
    assert _looks - before <= 500


@pytest.mark.parametrize("points", [0, 20])
def test_consumers_that_come_look_at_the_keys_that_may_be_theirs(points: int) -> None:
    machine = _machine(points)
    machine.joined(0, "c0")
    machine.permits_granted(0, 1)
    machine.joined(N, "free")  # It has permits, so that reading goes on.
    machine.permits_granted(N, 2 * N)
    for first in range(0, N, 500):
        _read(machine, first, 500, N)
    waited = machine.waiting
    before = _looks
    for consumer in range(1, CONSUMERS):
        machine.joined(consumer, f"c{consumer}")
    assert machine.waiting == waited
    # A newcomer takes a share of the keys that wait, so the sum grows with the logarithm.
    assert _looks - before <= 100 * waited
    for consumer in range(CONSUMERS):
        machine.left(consumer)
    assert _looks - before <= 300 * waited


def test_a_key_of_many_entries_is_given_back_and_delivered_in_order() -> None:
    machine = _machine()
    machine.joined(1, "one")
    machine.permits_granted(1, N)
    for first in range(0, N, 500):
        _read(machine, first, 500, 1)
    before = _looks
    machine.redelivery_requested(1)
    assert machine.waiting == N
    machine.permits_granted(1, N)
    assert _replay_all(machine, 1) == [(1, n) for n in range(N)]
    assert _looks - before <= N
