"""Answers that nobody takes keep few windows of the store: what would be too much is copied."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from daybook.bookie.server.response_buffers import (
    COPIED_MAX,
    ResponseBuffers,
    WindowIds,
    WindowMemory,
)

KB = 1 << 10
ENTRY = 10 * KB


@dataclass
class Wire:
    """As much of a connection as is asked about."""

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


def answered(wire: Wire, buffers: ResponseBuffers, entry: memoryview) -> bool:
    """Queue an answer of that entry; whether it is a view."""
    window_ids: WindowIds = []
    buffer = buffers.view_or_copy(entry, window_ids)
    assert buffer == entry
    wire.send(len(buffer))
    buffers.queued(window_ids)
    assert (buffer is entry) == bool(window_ids)
    return buffer is entry


@pytest.fixture
def memory() -> WindowMemory:
    return WindowMemory(400 * KB)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def buffers(wire: Wire, memory: WindowMemory) -> ResponseBuffers:
    return ResponseBuffers(cast("Any", wire), memory, bytes_max=250 * KB)


def test_who_reads_on_shares_windows(
    buffers: ResponseBuffers, wire: Wire, memory: WindowMemory
) -> None:
    one, two = window(), window()
    for entries in (one, two, one):
        for at in range(0, len(entries), ENTRY):
            assert answered(wire, buffers, entries[at : at + ENTRY])
    assert memory.total == 200 * KB


def test_of_too_many_windows_entries_are_copied(
    buffers: ResponseBuffers, wire: Wire, memory: WindowMemory
) -> None:
    kept = [window() for _ in range(5)]
    assert [answered(wire, buffers, each[:ENTRY]) for each in kept] == [True, True] + [False] * 3
    assert answered(wire, buffers, kept[0][ENTRY : 2 * ENTRY])
    assert memory.total == 200 * KB


def test_a_window_counts_until_its_last_view_is_sent(
    buffers: ResponseBuffers, wire: Wire, memory: WindowMemory
) -> None:
    one, two, three, four = (window() for _ in range(4))
    for each in (one, two, one):
        assert answered(wire, buffers, each[:ENTRY])
    wire.deliver(ENTRY)
    assert not answered(wire, buffers, three[:ENTRY]), "of the first there is another one"
    wire.deliver(ENTRY)
    assert answered(wire, buffers, three[:ENTRY])
    wire.deliver(ENTRY - 1)
    assert not answered(wire, buffers, four[:ENTRY])
    wire.deliver(wire.pending_bytes)
    assert answered(wire, buffers, four[:ENTRY])
    assert memory.total == 100 * KB


def test_all_connections_together_keep_only_so_much(memory: WindowMemory) -> None:
    wires = [Wire() for _ in range(3)]
    all_buffers = [ResponseBuffers(cast("Any", wire), memory, bytes_max=250 * KB) for wire in wires]
    kept = [window() for _ in range(6)]
    took = [answered(wires[i % 3], all_buffers[i % 3], each[:ENTRY]) for i, each in enumerate(kept)]
    assert took == [True] * 4 + [False] * 2
    for wire, buffers in zip(wires, all_buffers, strict=True):
        wire.closed = True
        buffers.close()
        buffers.close()
    assert memory.total == 0


def test_who_was_sent_all_and_is_idle_takes_no_room(memory: WindowMemory) -> None:
    wires = [Wire() for _ in range(4)]
    all_buffers = [ResponseBuffers(cast("Any", wire), memory, bytes_max=250 * KB) for wire in wires]
    kept = [window() for _ in range(6)]
    for i in range(4):
        assert answered(wires[i // 2], all_buffers[i // 2], kept[i][:ENTRY])
    wires[1].deliver(2 * ENTRY)
    took = [answered(wires[2], all_buffers[2], kept[4 + i % 2][:ENTRY]) for i in range(4)]
    assert took == [False, True, True, True], "the first one that is looked at keeps what it has"
    assert memory.total == 400 * KB
    assert set(memory.holders) == {all_buffers[0], all_buffers[2]}


def test_what_is_taken_and_not_queued_yet_counts(
    buffers: ResponseBuffers, memory: WindowMemory
) -> None:
    """The windows of a batch are kept while the rest of it is read."""
    kept = [window() for _ in range(3)]
    window_ids: WindowIds = []
    answers = [buffers.view_or_copy(each[:ENTRY], window_ids) for each in kept]
    assert [isinstance(buffer, memoryview) for buffer in answers] == [True, True, False]
    assert (len(window_ids), memory.total) == (2, 200 * KB)


def test_small_entries_and_those_for_nobody_are_copied(
    buffers: ResponseBuffers, wire: Wire, memory: WindowMemory
) -> None:
    entries = window()
    assert not answered(wire, buffers, entries[:COPIED_MAX])
    assert answered(wire, buffers, entries[: COPIED_MAX + 1])
    wire.closed = True
    buffers.close()
    assert not answered(wire, buffers, entries[: COPIED_MAX + 1])
    assert memory.total == 0


def test_a_window_is_not_taken_for_one_that_is_gone(
    buffers: ResponseBuffers, wire: Wire, memory: WindowMemory
) -> None:
    window_ids: WindowIds = []
    for number in range(
        1, 3
    ):  # the first view of this answer is gone, and with it its whole window
        buffers.view_or_copy(window()[:ENTRY], window_ids)
        assert memory.total == number * 100 * KB
    wire.send(2 * ENTRY)
    buffers.queued(window_ids)
    wire.deliver(2 * ENTRY)
    buffers.release_sent()
    assert memory.total == 0
