"""Floods of commands: a source with many connections delays others by a few turns."""

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.broker.service import handlers
from daybook.broker.service.frame_turns import COST_MAX, FRAMES_PER_TURN, FrameTurns
from daybook.wire.messages.registry import encode
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import open_broker

_FOREVER_S = 1e9


def _nothing() -> None:
    """Do nothing about a turn that is late."""


async def test_nobody_waits_while_little_is_carried_out(autojump_clock: MockClock) -> None:
    turns = FrameTurns()
    for _ in range(COST_MAX):
        assert turns.may_begin("a")
        turns.spend(1, 100)
    assert not turns.may_begin("a")
    assert not turns.may_begin("b")


async def test_sources_take_turns_whatever_number_of_connections_they_have(
    autojump_clock: MockClock,
) -> None:
    turns, order = FrameTurns(), list[str]()

    async def connection(source: str) -> None:
        await turns.wait(source, _FOREVER_S, _nothing)
        order.append(source)
        turns.spend(COST_MAX, 0)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(connection, "flood")
        await wait_all_tasks_blocked()
        for name in ("one", "two"):
            nursery.start_soon(connection, name)
        await wait_all_tasks_blocked()
        nursery.start_soon(turns.run)
        await wait_all_tasks_blocked()
        assert {"one", "two"} < set(order[:8])
        assert Counter(order) == {"flood": 100, "one": 1, "two": 1}
        assert not len(turns)
        nursery.cancel_scope.cancel()


async def test_a_pass_gives_a_bounded_number_of_turns(autojump_clock: MockClock) -> None:
    turns, at = FrameTurns(), list[int]()
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async def connection() -> None:
        await turns.wait("flood", _FOREVER_S, _nothing)
        at.append(passes)

    async with trio.open_nursery() as nursery:
        for _ in range(80):
            nursery.start_soon(connection)
        await wait_all_tasks_blocked()
        nursery.start_soon(count)
        nursery.start_soon(turns.run)
        while len(at) < 80:
            await trio.lowlevel.checkpoint()
        assert max(Counter(at).values()) <= 16
        nursery.cancel_scope.cancel()


async def test_a_large_frame_costs_more_than_a_small_one(autojump_clock: MockClock) -> None:
    turns = FrameTurns()
    turns.spend(1, COST_MAX << 14)
    assert not turns.may_begin("a")


async def test_a_connection_that_ends_while_it_waits_takes_no_turn(
    autojump_clock: MockClock,
) -> None:
    turns, order = FrameTurns(), list[int]()
    scopes = [trio.CancelScope() for _ in range(3)]

    async def connection(number: int) -> None:
        with scopes[number]:
            await turns.wait("a", _FOREVER_S, _nothing)
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(connection, number)
            await wait_all_tasks_blocked()
        scopes[1].cancel()
        await wait_all_tasks_blocked()
        assert len(turns) == 2
        nursery.start_soon(turns.run)
        await wait_all_tasks_blocked()
        assert sorted(order) == [0, 2]
        nursery.cancel_scope.cancel()


async def test_a_connection_that_waits_long_is_told_of(autojump_clock: MockClock) -> None:
    turns, late = FrameTurns(), list[float]()
    with trio.move_on_after(3.5):
        await turns.wait("a", 1.0, lambda: late.append(trio.current_time()))
    assert len(late) == 3
    assert not len(turns)


async def test_a_flood_over_many_connections_is_carried_out_in_pieces(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two passes of the event loop others run, whatever number of connections there is."""
    carried_out, of_passes, begun = 0, list[int](), trio.Event()
    handle = handlers.Handlers._handle

    def counted(self: handlers.Handlers, *arguments: object) -> None:
        nonlocal carried_out
        carried_out += 1
        begun.set()
        handle(self, *arguments)  # type: ignore[arg-type]

    async def count_passes() -> None:
        while carried_out < 40 * 500:
            before = carried_out
            await trio.lowlevel.checkpoint()
            of_passes.append(carried_out - before)

    monkeypatch.setattr(handlers.Handlers, "_handle", counted)
    async with open_broker() as cluster, trio.open_nursery() as nursery:
        flood = [await cluster.client() for _ in range(40)]
        carried_out, begun = 0, trio.Event()
        for client in flood:
            client.frames.send([encode(pb.CommandSeek(consumer_id=9, request_id=1)) * 500])
        await begun.wait()
        await count_passes()
        # Half of them without waiting, half by turns; and the counter may see two passes as one.
        assert max(of_passes) <= 4 * COST_MAX + FRAMES_PER_TURN
        nursery.cancel_scope.cancel()


async def test_the_rest_of_what_a_client_has_sent_is_dropped_once_it_is_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out = 0
    handle = handlers.Handlers._handle

    def loses(self: handlers.Handlers, *arguments: object) -> None:
        nonlocal carried_out
        carried_out += 1
        handle(self, *arguments)  # type: ignore[arg-type]
        self._connection._frames.close("a send has failed")

    async with open_broker() as cluster:
        client = await cluster.client()
        monkeypatch.setattr(handlers.Handlers, "_handle", loses)
        client.frames.send([encode(pb.CommandSeek(consumer_id=9, request_id=1)) * 500])
        await client.wait_closed()
        assert carried_out == FRAMES_PER_TURN


async def test_a_client_whose_turn_is_late_gets_signs_of_life_and_is_not_taken_for_silent(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gives_no_turns(_: FrameTurns) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(FrameTurns, "run", gives_no_turns)
    async with open_broker() as cluster:
        client = await cluster.client()
        turns = cluster.broker.context.frame_turns
        turns.spend(COST_MAX, 0)
        client.tell(pb.CommandPing())
        await trio.sleep(3.5)
        assert len(client.bodies(pb.CommandPing)) == 3
        assert not client.bodies(pb.CommandPong)
        await trio.sleep(200)  # longer than a client may be silent
        assert not client.frames.closed
        turns._grant()
        await client.wait(pb.CommandPong)
