"""The cost of a command does not grow with the pending entries: comparisons are counted."""

from typing import Any

import pytest

from daybook.broker.protocol.dispatch import chunks as chunks_module
from daybook.broker.protocol.dispatch.chunks import Chunks
from daybook.broker.protocol.dispatch.interface import Entry

N = 2_000
_compared = 0


class Place(tuple[int, int]):
    """A position that counts its comparisons."""

    __slots__ = ()

    def __lt__(self, other: Any) -> bool:
        _count()
        return tuple.__lt__(self, other)

    def __le__(self, other: Any) -> bool:
        _count()
        return tuple.__le__(self, other)

    def __gt__(self, other: Any) -> bool:
        _count()
        return tuple.__gt__(self, other)

    def __ge__(self, other: Any) -> bool:
        _count()
        return tuple.__ge__(self, other)


def _count() -> None:
    global _compared
    _compared += 1


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    global _compared
    _compared = 0


def _chunk(n: int, group: str = "u") -> Entry:
    return Entry(Place((5, n)), 1, n, group=group)


# -- chunks


def test_the_turn_of_a_chunk_costs_the_same_however_many_wait() -> None:
    chunks = Chunks()
    for n in range(N):
        entry = _chunk(n)
        assert chunks.waits_until(entry) == (9 if n else None)
        chunks.wait(entry, 9)
    for n in range(N):
        entry = _chunk(n)
        assert chunks.waits_until(entry) is None
        chunks.delivered(entry, consumer=1)
    assert chunks.waits_until(_chunk(0)) is None
    assert _compared <= 60 * N


def test_what_is_gone_costs_the_same_however_many_messages_wait() -> None:
    chunks = Chunks()
    for n in range(N):
        chunks.wait(_chunk(n, group=f"u{n}"))
    waiting = _Watched(chunks._waiting)
    chunks._waiting = waiting
    for _ in range(10):
        chunks.forget({(5, N + 1)})
    assert not waiting.walked


class _Watched(dict[str, Any]):
    """A dict that notices when it is iterated over."""

    walked = False

    def __iter__(self) -> Any:
        self.walked = True
        return super().__iter__()


def test_a_chunk_waits_for_those_before_it_in_any_order() -> None:
    chunks = Chunks()
    chunks.wait(_chunk(3), 7)
    assert chunks.waits_until(_chunk(2)) is None
    assert chunks.waits_until(_chunk(4)) == 7
    chunks.wait(_chunk(1), 5)
    assert chunks.waits_until(_chunk(2)) is not None
    chunks.forget({(5, 1)})
    assert chunks.waits_until(_chunk(2)) is None
    chunks.forget_up_to((5, 3))
    assert chunks.waits_until(_chunk(4)) is None


def test_a_message_whose_chunks_wait_keeps_its_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "_GROUPS_MAX", 10)
    chunks = Chunks()
    chunks.delivered(_chunk(0, "a"), consumer=1)
    chunks.hold(_chunk(1, "a"), consumer=1)
    for n in range(2, 100):
        chunks.delivered(_chunk(n, f"u{n}"), consumer=2)
    assert chunks.consumer_of(_chunk(1, "a")) == 1
    assert len(chunks._consumer) <= 11


def test_a_consumer_that_leaves_costs_the_messages_that_it_has_begun() -> None:
    chunks = Chunks()
    for n in range(N):
        chunks.delivered(_chunk(n, f"u{n}"), consumer=1)
    chunks.delivered(_chunk(N, "other"), consumer=2)
    chunks.delivered(_chunk(N + 1, "done"), consumer=2)
    end = _chunk(N + 2, "done")
    end.group_ends = True
    chunks.delivered(end, consumer=2)
    consumers = _Watched(chunks._consumer)
    chunks._consumer = consumers
    chunks.leave(2)
    assert not consumers.walked
    assert chunks._consumer is consumers
    assert chunks.consumer_of(_chunk(N + 3, "other")) is None
    assert chunks.consumer_of(_chunk(N + 3, "u0")) == 1
    chunks.leave(1)
    assert not chunks._consumer
    assert not chunks._groups
