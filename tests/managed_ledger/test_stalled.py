"""Ledgers that no longer reach an ack quorum are left if a new ledger would, but seldom."""

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.ledger.client import Quorums
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.storage.limbo import LimboMark
from daybook.bookie.storage.status import StoreStatus
from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST
from daybook.managed_ledger.protocol.stalled import Backoffs, Stall
from tests.managed_ledger.world import (
    BOOKIES,
    CONFIG,
    Host,
    World,
    append,
    play,
    read_all,
    send,
    settle,
    until,
)

STUCK = replace(CONFIG, roll_entries=10_000, heal_interval_s=60.0, stuck_s=30.0)
KEY = ("log",)


# -- times


def times(backoffs: Backoffs, until_s: int, interval_s: float = 60.0) -> list[int]:
    """Return the times at which a ledger is left, checked each second; it is always stuck."""
    return [s for s in range(until_s) if backoffs.may_leave(KEY, float(s), interval_s, 1.0)]


def test_ledgers_that_are_stuck_again_are_left_less_and_less_often() -> None:
    found = times(Backoffs(), 24 * 3600)
    assert found[:6] == [0, 60, 180, 420, 900, 1860]
    assert len(found) < 24 * 4 + 6


def test_who_was_not_stuck_for_long_begins_anew() -> None:
    backoffs = Backoffs()
    assert times(backoffs, 200) == [0, 60, 180]
    last_s = 180.0 + 4 * 240.0
    assert backoffs.may_leave(KEY, last_s, 60.0, 1.0)
    assert not backoffs.may_leave(KEY, last_s + 59.0, 60.0, 1.0)
    assert backoffs.may_leave(KEY, last_s + 60.0, 60.0, 1.0)


def test_what_is_over_takes_no_room() -> None:
    backoffs = Backoffs()
    for number in range(10_000):
        assert backoffs.may_leave(("log", str(number)), float(number), 1.0, 1.0)
        assert len(backoffs) <= 1000
    assert not backoffs.may_leave(("log", "9999"), 9999.5, 1.0, 1.0)


def test_what_was_kept_after_all_is_looked_at_again_and_does_not_count() -> None:
    backoffs = Backoffs()
    assert times(backoffs, 200) == [0, 60, 180]
    for now_s in (420.0, 480.0, 540.0):
        assert not backoffs.may_leave(KEY, now_s - 1.0, 60.0, 1.0)
        assert backoffs.may_leave(KEY, now_s, 60.0, 1.0)
        backoffs.was_kept(KEY, now_s, 60.0)
    assert backoffs.may_leave(KEY, 600.0, 60.0, 1.0)
    assert not backoffs.may_leave(KEY, 600.0 + 479.0, 60.0, 1.0)
    assert backoffs.may_leave(KEY, 600.0 + 480.0, 60.0, 1.0)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.sampled_from(["a", "b"]), st.floats(1, 1.25))),
)
def test_two_times_are_never_nearer_than_the_interval(
    steps: list[tuple[float, str, float]],
) -> None:
    backoffs, now_s, left_s = Backoffs(), 0.0, dict[str, float]()
    for pause_s, name, spread in steps:
        now_s += pause_s
        if backoffs.may_leave((name,), now_s, 60.0, spread):
            assert now_s - left_s.get(name, float("-inf")) >= 60.0
            left_s[name] = now_s
        else:
            assert name in left_s, "the first time nothing is in the way"


def test_a_stall_begins_anew_with_each_confirmation() -> None:
    stall = Stall()
    assert stall.seconds(None, 0) == 0
    assert stall.seconds((1, -1), 100) == 0
    assert stall.seconds((1, -1), 120) == 20
    assert stall.seconds((1, 0), 130) == 0
    assert stall.seconds((1, 0), 150) == 20
    assert stall.seconds((2, 0), 160) == 0
    assert stall.seconds(None, 170) == 0
    assert stall.seconds(None, 200) == 0
    assert stall.seconds((2, 0), 210) == 0


# -- logs


def refuse(
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    names: Collection[str],
    refused: Callable[[int], bool],
) -> None:
    """The bookies answer READ_ONLY for these ledgers, except to recoveries."""
    for name in names:
        store = world.bookies[name].store
        add = store.add

        def picky(
            ledger_id: int,
            entry_id: int,
            master_key: bytes,
            entry: memoryview,
            *,
            recovery: bool,
            done: Callable[[StoreStatus], None],
            admitted: bool = False,
            add: Callable[..., None] = add,
        ) -> None:
            if refused(ledger_id) and not recovery:
                done(StoreStatus.READ_ONLY)
            else:
                how = {"recovery": recovery, "done": done, "admitted": admitted}
                add(ledger_id, entry_id, master_key, entry, **how)

        monkeypatch.setattr(store, "try_add_run", lambda *_: False)
        monkeypatch.setattr(store, "try_add_runs", lambda *_: 0)
        monkeypatch.setattr(store, "add", picky)


async def look(log: ManagedLedger, seconds: int, each_s: int = 1) -> None:
    """Check the log every `each_s` seconds, as the broker's timer does."""
    for _ in range(0, seconds, each_s):
        await trio.sleep(each_s)
        log.check_roll()


@pytest.mark.parametrize("looks_s", [1, 20])
def test_two_of_three_take_no_more_of_this_ledger(
    monkeypatch: pytest.MonkeyPatch, looks_s: int
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(STUCK)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(10))
            cursor.ack(positions[:4])
            await cursor.flush()
            ended = trio.Event()
            log.on_fenced = ended.set
            present = log.current_ledger_id
            newest = max(await world.ledgers(host))
            refuse(monkeypatch, world, ["bookie-2", "bookie-3"], lambda each: each <= newest)
            sent = send(log, range(10, 15))
            await look(log, 29)
            assert log.usable, "it may pass"
            assert log.waiting_for.startswith(f"ledger {present}: 2 bookies have to confirm")
            send(log, range(15, 20), sent)
            await look(log, 60, looks_s)
            assert ended.is_set()
            assert not sent.acked
            assert [number for number, _ in sent.failed] == list(range(10, 20))
            assert all(isinstance(error, FencedError) for _, error in sent.failed)
            assert str(sent.failed[0][1]).startswith("t/n/persistent/a: nothing was confirmed for")

            log = await host.open(STUCK)
            await append(log, range(20, 25))
            there = await read_all(log)
            assert there[:10] == list(range(10)), "what was acknowledged"
            assert there[-5:] == list(range(20, 25))
            in_doubt = there[10:-5]
            assert in_doubt == list(range(10, 10 + len(in_doubt))), "a prefix, once and in order"
            assert log.cursors["s"].mark_delete == positions[3]
            await look(log, 300, 10)
            assert log.usable

    play(scenario)


def test_a_spare_that_was_reborn_takes_what_is_recovered() -> None:
    """All three must confirm; one dies, and the only spare takes no entries of older ledgers."""

    async def scenario(world: World) -> None:
        await world.add_bookie("bookie-4")
        async with world.host("a") as host:
            log = await host.open(replace(STUCK, quorums=Quorums(3, 3, 3)))
            await append(log, range(10))
            ensemble = (await host.client.metadata(log.current_ledger_id)).last_fragment.ensemble
            members = [each.partition(":")[0] for each in ensemble]
            (spare,) = {*BOOKIES, "bookie-4"} - set(members)
            world.kill(spare)
            await world.platters[spare].mount().write_file("d0/DIRTY", b"adds may be lost\n")
            await world.start(spare)
            await until(lambda: world.bookies[spare].store.limbo is False)
            assert not world.bookies[spare].store.limbo_ledgers.ledgers()

            ended = trio.Event()
            log.on_fenced = ended.set
            world.kill(members[1])
            sent = send(log, range(10, 15))
            await look(log, 90)
            assert ended.is_set()
            assert [number for number, _ in sent.failed] == list(range(10, 15))
            log = await host.open(STUCK)
            await append(log, range(15, 20))
            there = await read_all(log)
            assert there[:10] == list(range(10))
            assert there[-5:] == list(range(15, 20))

    play(scenario)


def test_what_could_not_be_recovered_is_not_given_up() -> None:
    """Two bookies are in limbo: an entry that they lack may have been confirmed."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(STUCK)
            await append(log, range(10))
            present = log.current_ledger_id
            stores = [world.bookies[name].store for name in ("bookie-2", "bookie-3")]
            for store in stores:
                await store.limbo_ledgers.mark([LimboMark(present, limbo=True, fence=False)])
            sent = send(log, range(10, 15))
            await look(log, 40)
            words = log.waiting_for
            assert words
            await look(log, 600, 10)
            assert log.waiting_for == words
            assert log.fenced is None
            assert (await host.client.metadata(present)).state.name == "OPEN"
            assert not any(store.is_fenced(present) for store in stores)
            assert await read_all(log) == list(range(10)), "it can be read all the time"
            for store in stores:
                await store.limbo_ledgers.clear(present)
            await settle(sent)
            assert sent.acked == list(range(10, 15)), "and goes on by itself"

    play(scenario)


def test_a_cursor_that_could_not_be_recovered_keeps_its_log_from_being_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(STUCK)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack(await append(log, range(10)))
            await cursor.flush()
            stores = [world.bookies[name].store for name in ("bookie-2", "bookie-3")]
            for store in stores:
                await store.limbo_ledgers.mark(
                    [LimboMark(cursor.ledger_id, limbo=True, fence=False)]
                )
            present = log.current_ledger_id
            refuse(monkeypatch, world, ["bookie-2", "bookie-3"], lambda each: each == present)
            send(log, range(10, 15))
            await look(log, 200, 10)
            assert log.fenced is None
            for store in stores:
                await store.limbo_ledgers.clear(cursor.ledger_id)
            await look(log, 600, 10)
            assert log.fenced is not None

    play(scenario)


@pytest.mark.parametrize("ack", [2, 3])
def test_with_too_few_bookies_for_a_new_ledger_it_waits(ack: int) -> None:
    """Three bookies must confirm, and one would be enough to recover."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(STUCK, quorums=Quorums(3, 3, ack)))
            await append(log, range(10))
            world.kill("bookie-1")
            if ack == 2:
                world.kill("bookie-2")
            sent = send(log, range(10, 20))
            await look(log, 600, 10)
            assert log.fenced is None
            await world.start("bookie-1")
            await settle(sent)
            assert sent.acked == list(range(10, 20))

    play(scenario)


def test_without_an_answer_of_the_metadata_store_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(STUCK)
            await append(log, range(10))
            present = log.current_ledger_id
            refuse(monkeypatch, world, ["bookie-2", "bookie-3"], lambda each: each == present)
            send(log, range(10, 15))
            await look(log, 25)
            held = host.link.hold_next("get", LedgerPaths().ledger(present))
            await look(log, 100)
            assert held.caught.is_set()
            assert log.fenced is None
            held.let_go()
            await look(log, 100)
            assert log.fenced is not None

    play(scenario)


def test_a_log_that_goes_on_while_its_bookies_are_asked_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(STUCK)
            await append(log, range(10))
            takes_again = False
            refuse(monkeypatch, world, ["bookie-2", "bookie-3"], lambda _: not takes_again)
            sent = send(log, range(10, 15))
            held = host.link.hold_next("get", LedgerPaths().ledger(log.current_ledger_id))
            await look(log, 60)
            assert held.caught.is_set()
            takes_again = True
            await settle(sent)
            held.let_go()
            await look(log, 60)
            assert log.fenced is None
            assert sent.acked == list(range(10, 15))

    play(scenario)


def test_who_is_stuck_again_and_again_is_opened_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two bookies answer, and take no entries of any ledger."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            opened = await opened_anew(monkeypatch, world, host)
            assert 3 <= len(opened) <= 6
            assert all(b - a >= 60 for a, b in itertools.pairwise(opened))
            assert opened[-1] - opened[-2] > 2 * (opened[1] - opened[0])

    play(scenario, limit_s=3000.0)


async def opened_anew(monkeypatch: pytest.MonkeyPatch, world: World, host: Host) -> list[float]:
    """Append to a log all the time; return the times at which it was opened again."""
    log = await host.open(STUCK)
    await append(log, range(3))
    refuse(monkeypatch, world, ["bookie-2", "bookie-3"], lambda _: True)
    opened: list[float] = []
    for number in range(3, 243):
        if log.fenced is not None:
            log = await host.open(STUCK)
            opened.append(trio.current_time())
        send(log, range(number, number + 1))
        await look(log, 5, 5)
    return opened


# -- cursors


def test_a_cursor_goes_over_to_a_ledger_that_takes_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(STUCK)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(10))
            cursor.ack(positions[:2])
            await cursor.flush()
            old = cursor.ledger_id
            refuse(monkeypatch, world, ["bookie-2", "bookie-3"], lambda each: each == old)
            cursor.ack(positions[2:5])
            durable = trio.Event()

            async def flush() -> None:
                await cursor.flush()
                durable.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(flush)
                await look(log, 29)
                assert cursor.ledger_id == old, "it may pass"
                assert not durable.is_set()
                await look(log, 10)
                assert durable.is_set()
            assert cursor.ledger_id != old
            assert log.fenced is None
            assert old not in await world.ledgers(host)
            log.abandon()
            log = await host.open(STUCK)
            assert log.cursors["s"].mark_delete == positions[4]

    play(scenario)


def test_a_cursor_whose_new_ledgers_are_stuck_too_makes_few_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(STUCK)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(10))
            cursor.ack(positions[:2])
            await cursor.flush()
            present, old = log.current_ledger_id, cursor.ledger_id
            takes_again = False

            def refused(ledger_id: int) -> bool:
                return ledger_id != present and not takes_again

            refuse(monkeypatch, world, ["bookie-2", "bookie-3"], refused)
            cursor.ack(positions[2:5])
            seen: set[int] = set()
            for _ in range(60):
                await look(log, 10, 10)
                seen.update(await world.ledgers(host))
            assert 2 <= len(seen - {present, old}) <= 5
            assert cursor.ledger_id == old, "what is durable is there"
            takes_again = True
            await cursor.flush()
            assert log.fenced is None
            assert cursor.stored_mark_delete == positions[4]

    play(scenario)
