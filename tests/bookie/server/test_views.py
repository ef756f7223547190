"""Answers that are not read pin few windows of the store: above a limit they are copied."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from daybook.bookie.server.views import COPIED_MAX, Taken, ViewedBytes, Views

KB = 1 << 10
ENTRY = 10 * KB


@dataclass
class Wire:
    """The part of a connection that is used here."""

    sent_bytes: int = 0
    pending_bytes: int = 0
    closed: bool = False

    def send(self, size: int) -> None:
        self.pending_bytes += size

    def deliver(self, size: int) -> None:
        self.sent_bytes += size
        self.pending_bytes -= size


def window() -> memoryview:
    return memoryview(bytearray(100 * KB))


def answered(wire: Wire, views: Views, entry: memoryview) -> bool:
    """Queue an answer with that entry; return True if it is a view."""
    taken: Taken = []
    buffer = views.take(entry, taken)
    assert buffer == entry
    wire.send(len(buffer))
    views.queued(taken)
    assert (buffer is entry) == bool(taken)
    return buffer is entry


@pytest.fixture
def everybodys() -> ViewedBytes:
    return ViewedBytes(400 * KB)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def views(wire: Wire, everybodys: ViewedBytes) -> Views:
    return Views(cast("Any", wire), everybodys, bytes_max=250 * KB)


def test_who_reads_on_shares_windows(views: Views, wire: Wire, everybodys: ViewedBytes) -> None:
    one, two = window(), window()
    for entries in (one, two, one):
        for at in range(0, len(entries), ENTRY):
            assert answered(wire, views, entries[at : at + ENTRY])
    assert everybodys.total == 200 * KB


def test_of_too_many_windows_entries_are_copied(
    views: Views, wire: Wire, everybodys: ViewedBytes
) -> None:
    kept = [window() for _ in range(5)]
    assert [answered(wire, views, each[:ENTRY]) for each in kept] == [True, True] + [False] * 3
    assert answered(wire, views, kept[0][ENTRY : 2 * ENTRY])
    assert everybodys.total == 200 * KB


def test_a_window_counts_until_its_last_view_is_sent(
    views: Views, wire: Wire, everybodys: ViewedBytes
) -> None:
    one, two, three, four = (window() for _ in range(4))
    for each in (one, two, one):
        assert answered(wire, views, each[:ENTRY])
    wire.deliver(ENTRY)
    assert not answered(wire, views, three[:ENTRY]), "of the first there is another one"
    wire.deliver(ENTRY)
    assert answered(wire, views, three[:ENTRY])
    wire.deliver(ENTRY - 1)
    assert not answered(wire, views, four[:ENTRY])
    wire.deliver(wire.pending_bytes)
    assert answered(wire, views, four[:ENTRY])
    assert everybodys.total == 100 * KB


def test_all_connections_together_keep_only_so_much(everybodys: ViewedBytes) -> None:
    wires = [Wire() for _ in range(3)]
    all_views = [Views(cast("Any", wire), everybodys, bytes_max=250 * KB) for wire in wires]
    kept = [window() for _ in range(6)]
    took = [answered(wires[i % 3], all_views[i % 3], each[:ENTRY]) for i, each in enumerate(kept)]
    assert took == [True] * 4 + [False] * 2
    for wire, views in zip(wires, all_views, strict=True):
        wire.closed = True
        views.close()
        views.close()
    assert everybodys.total == 0


def test_who_was_sent_all_and_is_idle_takes_no_room(everybodys: ViewedBytes) -> None:
    wires = [Wire() for _ in range(4)]
    all_views = [Views(cast("Any", wire), everybodys, bytes_max=250 * KB) for wire in wires]
    kept = [window() for _ in range(6)]
    for i in range(4):
        assert answered(wires[i // 2], all_views[i // 2], kept[i][:ENTRY])
    wires[1].deliver(2 * ENTRY)
    took = [answered(wires[2], all_views[2], kept[4 + i % 2][:ENTRY]) for i in range(4)]
    assert took == [False, True, True, True], "the first one that is looked at keeps what it has"
    assert everybodys.total == 400 * KB
    assert set(everybodys.holders) == {all_views[0], all_views[2]}


def test_what_is_taken_and_not_queued_yet_counts(views: Views, everybodys: ViewedBytes) -> None:
    """The other entries of a batch are still being read."""
    kept = [window() for _ in range(3)]
    taken: Taken = []
    buffers = [views.take(each[:ENTRY], taken) for each in kept]
    assert [isinstance(buffer, memoryview) for buffer in buffers] == [True, True, False]
    assert (len(taken), everybodys.total) == (2, 200 * KB)


def test_small_entries_and_those_for_nobody_are_copied(
    views: Views, wire: Wire, everybodys: ViewedBytes
) -> None:
    entries = window()
    assert not answered(wire, views, entries[:COPIED_MAX])
    assert answered(wire, views, entries[: COPIED_MAX + 1])
    wire.closed = True
    views.close()
    assert not answered(wire, views, entries[: COPIED_MAX + 1])
    assert everybodys.total == 0


def test_a_window_is_not_taken_for_one_that_is_gone(
    views: Views, wire: Wire, everybodys: ViewedBytes
) -> None:
    taken: Taken = []
    # In one answer: the first view is gone, and its whole window with it.
    for number in range(1, 3):
        views.take(window()[:ENTRY], taken)
        assert everybodys.total == number * 100 * KB
    wire.send(2 * ENTRY)
    views.queued(taken)
    wire.deliver(2 * ENTRY)
    views.forget_sent()
    assert everybodys.total == 0
