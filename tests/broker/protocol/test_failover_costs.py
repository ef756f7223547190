"""A consumer joins or leaves at a constant cost; the consumers are told which of them is active."""

import random
from bisect import bisect_left

import pytest

from daybook.broker.protocol.dispatch import murmur
from daybook.broker.protocol.dispatch.failover import FailoverDispatch
from daybook.broker.protocol.dispatch.interface import Activate, DispatchLimits, Effect
from daybook.broker.protocol.dispatch.murmur import murmur3

_TOPIC = "persistent://public/default/t"
N = 200


def _machine(topic: str = _TOPIC, partition: int = -1) -> FailoverDispatch:
    return FailoverDispatch(DispatchLimits(), topic=topic, partition=partition)


def _told(effects: list[Effect]) -> list[Activate]:
    return [effect for effect in effects if isinstance(effect, Activate)]


def test_names_are_hashed_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    words = 0
    scrambled = murmur._scrambled

    def counted(word: int) -> int:
        nonlocal words
        words += 1
        return scrambled(word)

    monkeypatch.setattr(murmur, "_scrambled", counted)
    machine = _machine()
    name = "x" * 1000
    for key in range(5):
        machine.joined(key, f"{name}{key}")
    assert words <= 5 * (250 + 100 * 3) + 20


@pytest.mark.parametrize("partition", [-1, 3])
def test_only_who_is_concerned_hears_of_a_change(partition: int) -> None:
    machine = _machine(partition=partition)
    for key in range(N):
        machine.joined(key, f"c{key:04}")
    for _ in range(N - 1):
        active = machine.active
        assert active is not None
        (told,) = _told(machine.left(active))
        assert told.active
        assert told.consumer == machine.active
    assert machine.active is not None
    assert not _told(machine.left(machine.active))


def _on_ring(topic: str, consumers: list[tuple[int, str, int]]) -> int:
    """Choose as Pulsar does: 100 points for each consumer of the best priority."""
    best = min(priority for priority, _, _ in consumers)
    ring = {
        murmur3(f"{name}{point}".encode()): key
        for priority, name, key in sorted(consumers)
        if priority == best
        for point in range(100)
    }
    points = sorted(ring)
    return ring[points[bisect_left(points, murmur3(topic.encode())) % len(points)]]


def test_the_consumer_is_the_one_that_the_ring_names() -> None:
    rng = random.Random(1)
    for n in range(100):
        topic = f"{_TOPIC}{n}"
        machine = _machine(topic)
        consumers: list[tuple[int, str, int]] = []
        for key in range(12):
            each = (rng.randrange(3), f"c{rng.randrange(8)}", key)
            consumers.append(each)
            machine.joined(key, each[1], each[0])
        while consumers:
            assert machine._choose() == _on_ring(topic, consumers)
            gone = consumers.pop(rng.randrange(len(consumers)))
            machine.left(gone[2])
        assert machine.active is None
        assert not machine._ranks
