"""The cost of a shared subscription does not grow with its consumers: looks at them are counted."""

from typing import Any

import pytest

from daybook.broker.protocol.dispatch.interface import Deliver, DispatchLimits, Entry, Read
from daybook.broker.protocol.dispatch.places import ConsumerKey
from daybook.broker.protocol.dispatch.shared import SharedConsumer, SharedDispatch

N = 1_000
_looks = 0


class _Watched(SharedConsumer):
    """A consumer that counts the questions whether it can take an entry."""

    __slots__ = ()

    @property
    def available(self) -> bool:
        global _looks
        _looks += 1
        return super().available

    def __eq__(self, other: object) -> bool:
        global _looks
        _looks += 1
        return self is other

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    global _looks
    _looks = 0
    monkeypatch.setattr("daybook.broker.protocol.dispatch.shared.SharedConsumer", _Watched)


def _machine(limits: DispatchLimits | None = None) -> SharedDispatch:
    machine = SharedDispatch(limits or DispatchLimits())
    for key in range(N):
        machine.joined(key, f"c{key}", -key)
        machine.permits_granted(key, 10)
    return machine


def _read(machine: SharedDispatch, first: int, count: int) -> list[ConsumerKey]:
    """Return the receivers, in the order of the deliveries."""
    want = machine.want()
    assert isinstance(want, Read)
    entries = [Entry((5, first + n), 1, None) for n in range(count)]
    given = machine.entries_read(want, entries)
    return [effect.consumer for effect in given if isinstance(effect, Deliver)]


def _since(before: int) -> int:
    return _looks - before


def test_a_read_and_a_leave_cost_the_same_however_many_consumers_there_are() -> None:
    machine = _machine()
    before = _looks
    for n in range(10):
        assert _read(machine, 10 * n, 10) == [N - 1 - n]
    assert _since(before) <= 10 * 10 * 4
    before = _looks
    for key in range(N):
        machine.left(key)
    assert _since(before) <= 4 * N
    assert machine.want() is None


def test_an_acknowledgement_costs_the_same_however_many_consumers_there_are() -> None:
    machine = _machine(DispatchLimits(unacked_messages_max=5, subscription_unacked_messages_max=6))
    assert _read(machine, 0, 10)
    before = _looks
    for n in range(10):
        machine.acked(0, [(5, n)])
    assert _since(before) <= 100


def test_permits_and_turns_are_those_of_the_consumers_that_can_take_something() -> None:
    machine = SharedDispatch(DispatchLimits(turn_messages_min=1))
    for key in range(3):
        machine.joined(key, f"c{key}")
        machine.permits_granted(key, 2)
    order: list[Any] = [_read(machine, n, 1)[0] for n in range(6)]
    assert order == [0, 1, 2, 0, 1, 2]
    assert machine.want() is None
    machine.permits_granted(1, 1)
    want = machine.want()
    assert isinstance(want, Read)
    assert want.entries == 1
    machine.left(1)
    assert machine.want() is None
