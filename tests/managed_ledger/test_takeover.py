"""Two owners, and crashes at every step: acknowledged entries survive, in order."""

import pytest
import trio

from daybook.managed_ledger.errors import FencedError, LogCorruptError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST
from tests.managed_ledger.world import (
    NAME,
    Host,
    World,
    append,
    play,
    read_all,
    send,
    settle,
    until,
)

LIST = f"/managed-ledgers/{NAME}"


def is_kept(acked: list[int], kept: list[int]) -> None:
    """Check that all acknowledged entries are there, in order, and that all others were sent."""
    assert kept == sorted(kept)
    assert len(set(kept)) == len(kept)
    assert set(acked) <= set(kept), sorted(set(acked) - set(kept))


@pytest.mark.parametrize("seed", range(12))
def test_takeover_while_appending(seed: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            fenced: list[str] = []
            old.on_fenced = lambda: fenced.append("told")
            sent = send(old, range(30))

            async def go_on() -> None:
                for first in range(30, 3000, 10):
                    await trio.sleep(0.003)
                    send(old, range(first, first + 10), sent)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(go_on)
                await trio.sleep(world.rng.uniform(0, 0.3))
                while True:
                    try:
                        new = await two.open()
                        break
                    except FencedError:
                        continue  # The old one rolled meanwhile.
                served = await read_all(new)
                is_kept(sent.acked, served)
                later = await append(new, range(10_000, 10_010))
                send(old, range(5000, 5001), sent)
                await until(lambda: bool(fenced))
                nursery.cancel_scope.cancel()
            await settle(sent)
            assert fenced == ["told"]
            assert all(isinstance(error, FencedError) for _, error in sent.failed)
            told = [*sent.acked, *(number for number, _ in sent.failed)]
            assert told == [*range(len(told) - 1), 5000]
            kept = await read_all(new)
            is_kept(sent.acked, kept[:-10])
            assert kept[: len(served)] == served
            assert kept[-10:] == list(range(10_000, 10_010))
            assert later[0] > sent.positions[-1]

    play(scenario, seed)


def test_a_stale_owner_touches_neither_list_nor_cursors() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            cursor = await old.open_cursor("s", initial=EARLIEST)
            await append(old, range(3))
            new = await two.open()
            before = await world.list_of(two)
            cursor.ack_cumulative(old.last_confirmed)
            with pytest.raises(FencedError):
                await cursor.flush()
            assert old.fenced is not None
            assert new.cursors["s"].mark_delete == new.before_first
            new.abandon()
            assert (await two.open()).cursors["s"].backlog_entries == 3
            assert len(before.ledgerInfo) == 2

    play(scenario)


def test_every_way_in_which_a_stale_owner_learns_of_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:

            async def stale(name: str) -> None:
                log = await one.open(name=name)
                await log.open_cursor("s", initial=EARLIEST)
                await (await two.open(name=name)).close()
                match name:
                    case "create":
                        call = log.open_cursor("t", initial=EARLIEST)
                    case "delete":
                        call = log.delete_cursor("s")  # type: ignore[assignment]
                    case "property":
                        call = log.set_property("a", "b")  # type: ignore[assignment]
                    case "terminate":
                        call = log.terminate()  # type: ignore[assignment]
                    case _:
                        call = one.logs.delete(log)  # type: ignore[assignment]
                with pytest.raises(FencedError):
                    await call
                assert log.fenced is not None
                assert (await two.open(name=name)).cursors.keys() == {"s"}

            for name in ("create", "delete", "property", "terminate", "remove"):
                await stale(name)

    play(scenario)


def test_of_two_who_open_at_once_one_has_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            await (await one.open()).close()
            opened: list[str] = []

            async def attempt(host: Host) -> None:
                try:
                    log = await host.open()
                    await append(log, range(1))
                    opened.append(host.name)
                except (FencedError, AssertionError):
                    return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(attempt, one)
                nursery.start_soon(attempt, two)
            assert len(opened) == 1
            ids = await world.ids_of(one)
            kept = await read_all(await one.open())
            assert kept == [0]
            await trio.sleep(3)
            assert set(await world.ids_of(one)) >= set(ids) - {ids[-1]}

    play(scenario)


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_at_any_moment_of_a_roll(seed: int) -> None:
    """The host stops at any step; another host finds a correct log, and serves it."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            await settle(send(old, range(3)))
            one.link.delay_s = 0.002
            sent = send(old, range(3, 6))
            old.roll()
            for first in range(6, 30, 3):
                await trio.sleep(0.0005)
                if seed * 0.0005 < 0.0005 * (first - 5):
                    break
                send(old, range(first, first + 3), sent)
            await trio.sleep(seed * 0.0007)
            one.store.crash()
            new = await two.open()
            served = await read_all(new)
            is_kept([0, 1, 2, *sent.acked], served)
            await append(new, range(100, 107))
            assert await read_all(new) == [*served, *range(100, 107)]
            info = await world.list_of(two)
            assert sum(not ledger.HasField("entries") for ledger in info.ledgerInfo) <= 2
            assert not [n for n in sent.acked if n not in served]

    play(scenario, seed)


def test_both_open_ledgers_of_a_roll_are_recovered() -> None:
    """K60: with only the last ledger fenced, the old owner would continue in the one before."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            sent = await settle(send(old, range(2)))
            world.network.block("a", "bookie-1")
            world.network.block("a", "bookie-2")
            send(old, range(2, 4), sent)  # on one bookie only: not confirmed
            old.roll()
            await trio.sleep(0.1)
            assert old.state.name == "SWITCHING"
            assert len(await world.ids_of(two)) == 2
            new = await two.open()
            world.network.unblock("a", "bookie-1")
            world.network.unblock("a", "bookie-2")
            world.network.cut("a")
            served = await read_all(new)
            is_kept(sent.acked, served)
            await append(new, range(100, 102))
            await settle(sent)
            is_kept(sent.acked, served)
            assert await read_all(new) == [*served, 100, 101]

    play(scenario)


def test_a_ledger_takes_nothing_before_the_list_names_it() -> None:
    """K61: entries acknowledged meanwhile lie in the old ledger, where the next owner looks."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            await append(old, range(2))
            held = one.link.hold_next("set", LIST)
            old.roll()
            await held.caught.wait()
            sent = await settle(send(old, range(2, 4)))
            assert sent.acked == [2, 3]
            new = await two.open()
            assert await read_all(new) == [0, 1, 2, 3]
            held.let_go()
            await until(lambda: not old.usable)
            assert await read_all(new) == [0, 1, 2, 3]

    play(scenario)


def test_nothing_is_served_before_the_list_is_ours() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            await append(old, range(3))
            held = two.link.hold_next("set", LIST)
            opened: list[ManagedLedger] = []

            async def take_over() -> None:
                opened.append(await two.open())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_over)
                await held.caught.wait()
                await trio.sleep(5)
                assert not opened
                held.let_go()
            assert await read_all(opened[0]) == [0, 1, 2]

    play(scenario)


@pytest.mark.parametrize("entries", [0, 2])
def test_a_ledger_is_fenced_before_its_successor_is_served(entries: int) -> None:
    """K63, K66: the owner may sleep, and wake after the ledger was closed or deleted."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            if entries:
                await append(old, range(entries))
            new = await two.open()
            served = await append(new, range(10, 12))
            late = await settle(send(old, range(entries, entries + 3)))
            assert not late.acked
            assert [type(error) for _, error in late.failed] == [FencedError] * 3
            assert await read_all(new) == [*range(entries), 10, 11]
            assert served[0].ledger_id > old.owned_from

    play(scenario)


def test_empty_ledgers_leave_the_list() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            for _ in range(5):
                (await host.open()).abandon()
            await trio.sleep(5)
            assert len(await world.ids_of(host)) == 1
            assert await world.ledgers(host) == await world.ids_of(host)

    play(scenario)


def test_a_listed_ledger_without_metadata_fails_the_open_loudly() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            await log.close()
            await host.client.delete(log.current_ledger_id)
            before = await world.list_of(host)
            with pytest.raises(LogCorruptError, match="on the list"):
                await host.open()
            assert await world.list_of(host) == before

    play(scenario)


def test_a_list_that_does_not_parse_fails_the_open_and_stays() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            await host.logs.create(NAME)
            await host.store.set(f"/managed-ledgers/{NAME}", b"\xff\xff", 0)
            with pytest.raises(LogCorruptError):
                await host.open()

    play(scenario)


def test_offsets_go_on_where_they_were() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            total = 0
            for round_ in range(4):
                log = await host.open()
                assert log.next_offset == total
                await append(log, range(round_ * 7, round_ * 7 + 7), messages=3)
                total += 21
                log.abandon() if round_ % 2 else await log.close()
            assert await read_all(await host.open()) == list(range(28))

    play(scenario)
