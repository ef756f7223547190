"""A log to which nobody appends is opened without a new ledger, and gets one when it needs it."""

from collections import Counter
from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.log import LogState
from daybook.managed_ledger.records import OWNER, get_property
from tests.managed_ledger.test_load_requests import count_of_bookies, count_requests
from tests.managed_ledger.world import (
    CONFIG,
    NAME,
    NOW,
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
LONG = replace(CONFIG, roll_entries=1000)


async def opened_twice(first: Host, second: Host, entries: int = 3) -> ManagedLedger:
    """Return a log with so many entries that the second host has opened without a ledger."""
    log = await first.open(LONG)
    await append(log, range(entries))
    if entries:  # The opening behind an append has a ledger, which stays empty.
        log = await first.open(LONG)
        assert not log.idle
    log = await second.open(LONG)
    assert log.idle
    assert log.state is LogState.IDLE
    return log


def test_an_opening_behind_which_nothing_was_appended_creates_no_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two)
            (kept,) = await world.ids_of(two)
            assert log.last_confirmed == Position(kept, 2)
            assert await read_all(log) == [0, 1, 2]
            assert log.behind(EARLIEST).messages == 3
            assert log.size_bytes > 0
            await trio.sleep(5)  # The empty ledger of the opening before is deleted.
            assert await world.ledgers(two) == [kept]

    play(scenario)


def test_what_the_takeover_of_an_idle_log_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two, world.host("c") as three:
            await opened_twice(one, two)
            asked_bookies = count_of_bookies(monkeypatch)
            counted = count_requests(monkeypatch, three)
            await three.open()
            # The list and its only ledger, which is closed; the list.
            assert counted == {"sync": 1, "get": 2, "set": 1}
            assert asked_bookies == Counter({"entry": 3}) or not asked_bookies

    play(scenario)


@pytest.mark.parametrize("entries", [0, 3])
def test_the_first_append_creates_the_ledger_and_others_wait_for_it(entries: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two, entries)
            before = await world.ids_of(two)
            assert len(before) == 1
            sent = send(log, range(10, 14))
            assert log.state is LogState.CREATING
            send(log, range(14, 16), sent)
            await settle(sent)
            assert sent.acked == list(range(10, 16))
            assert [each.entry_id for each in sent.positions] == list(range(6))
            assert await read_all(log) == [*range(entries), *range(10, 16)]
            assert log.confirmed_offset == entries + 5
            # An empty ledger has left the list, and the new one is there instead.
            ids = await world.ids_of(two)
            assert ids == [*(before if entries else []), log.current_ledger_id]
            await trio.sleep(5)
            assert await world.ledgers(two) == ids
            log.abandon()
            assert await read_all(await one.open()) == [*range(entries), *range(10, 16)]

    play(scenario)


def test_an_idle_log_rolls_over_like_any_other_once_it_is_written() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            await opened_twice(one, two)
            log = await one.open()
            assert log.idle
            await append(log, range(3, 30))
            assert len(await world.ids_of(two)) > 3
            assert await read_all(log) == list(range(30))

    play(scenario)


def test_who_waits_for_entries_of_an_idle_log_gets_the_first_one() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two, 0)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            woken = trio.Event()

            async def wait() -> None:
                await log.wait_appended(log.last_confirmed)
                woken.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                positions = await append(log, range(2))
                await woken.wait()
            assert log.next_position(cursor.mark_delete) == positions[0]
            cursor.ack(positions[:1])
            await cursor.flush()
            again = await one.open()
            assert again.cursors["s"].mark_delete == positions[0]

    play(scenario)


def test_an_idle_owner_that_was_replaced_acknowledges_nothing() -> None:
    """The other owner had nothing to fence: the list alone tells the first that it has lost."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await opened_twice(one, one)
            new = await two.open()
            ids = await world.ids_of(two)
            sent = await settle(send(old, range(100, 103)))
            assert not sent.acked
            assert [type(error) for _, error in sent.failed] == [FencedError] * 3
            assert await world.ids_of(two) == ids
            await append(new, range(3, 5))
            assert await read_all(new) == [0, 1, 2, 3, 4]
            (removed,) = await two.logs.remove_orphans()
            assert ids[-1] < removed
            assert await world.ledgers(two) == await world.ids_of(two)

    play(scenario)


def test_of_two_who_open_an_idle_log_at_once_one_has_it() -> None:
    """The write of the first is not answered; what the second writes is not the same."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            (await opened_twice(one, one)).abandon()
            first, second = one.link.hold_next("set", LIST), two.link.hold_next("set", LIST)
            opened: list[str] = []

            async def open_on(host: Host) -> None:
                try:
                    await host.open()
                    opened.append(host.name)
                except FencedError:
                    return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_on, one)
                nursery.start_soon(open_on, two)
                await first.caught.wait()
                await second.caught.wait()
                second.arrive()
                one.store.suspend()  # The request of the first is lost, and it does not know that.
                one.store.resume()
                second.let_go()
            assert opened == ["b"]

    play(scenario)


def test_without_enough_bookies_appends_wait_and_say_so() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two)
            world.kill("bookie-1")
            world.kill("bookie-2")
            await until(lambda: len(two.client.directory.usable()) < 2)
            sent = send(log, range(3, 6))
            await trio.sleep(10)
            assert not sent.settled
            assert "no ledger could be created" in log.waiting_for
            await world.start("bookie-1")
            await world.start("bookie-2")
            await settle(sent)
            assert sent.acked == [3, 4, 5]
            assert not log.waiting_for
            assert await read_all(log) == list(range(6))

    play(scenario)


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_at_any_moment_of_the_first_append(seed: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, one, seed % 2 * 3)
            before = list(range(seed % 2 * 3))
            one.link.delay_s = 0.002
            sent = send(log, range(100, 103))
            await trio.sleep(seed * 0.0007)
            one.store.crash()
            new = await two.open()
            served = await read_all(new)
            assert served[: len(before)] == before
            assert not set(sent.acked) - set(served)
            await append(new, range(200, 203))
            assert await read_all(new) == [*served, 200, 201, 202]

    play(scenario, seed)


def test_the_last_ledger_is_dropped_behind_a_new_one_when_nobody_needs_it() -> None:
    config = replace(CONFIG, retention=NOW)

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(config)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(3))
            (await host.open(config)).abandon()
            log = await host.open(config)
            assert log.idle
            await log.trim()
            await trio.sleep(5)
            assert log.idle  # The subscription needs the ledger.
            cursor = log.cursors["s"]
            cursor.ack(positions)
            await cursor.flush()
            await log.trim()
            await until(lambda: log.state is LogState.OPEN)
            await until(lambda: log.ledgers.ids == [log.current_ledger_id])
            assert await read_all(log) == []
            assert log.confirmed_offset == 2
            await append(log, range(3, 5))
            assert await read_all(log) == [3, 4]

    play(scenario)


def test_a_trim_that_gets_no_ledger_makes_nobody_wait() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two)
            world.kill("bookie-1")
            world.kill("bookie-2")
            await until(lambda: len(two.client.directory.usable()) < 2)
            await log.trim(NOW)
            assert log.state is LogState.CREATING
            await until(lambda: log.state is LogState.IDLE)
            assert not log.waiting_for
            assert await read_all(log) == [0, 1, 2]

    play(scenario)


def test_a_truncation_empties_an_idle_log() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two)
            dropped = await log.truncate()
            assert len(dropped) == 1
            assert await read_all(log) == []
            await append(log, range(3, 5))
            assert await read_all(log) == [3, 4]

    play(scenario)


def test_an_idle_log_can_be_terminated_closed_and_deleted() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two)
            (kept,) = await world.ids_of(two)
            assert await log.terminate() == Position(kept, 2)
            await log.close()
            log = await one.open()
            assert log.idle
            sent = await settle(send(log, range(3, 4)))
            assert not sent.acked
            assert log.state is LogState.IDLE
            await one.logs.delete(log)
            await trio.sleep(5)
            assert await world.ledgers(one) == []

    play(scenario)


def test_the_close_of_a_log_confirms_what_waits_for_its_first_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two)
            sent = send(log, range(3, 6))
            await log.close()
            assert sent.acked == [3, 4, 5]
            assert await read_all(await one.open()) == list(range(6))

    play(scenario)


def test_a_deletion_waits_for_the_ledger_that_is_being_created() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            other = await two.open(name="t/n/persistent/b")
            log = await opened_twice(one, two)
            held = two.link.hold_next("create", "/ledgers/00")
            send(log, range(3, 6))
            await held.caught.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(two.logs.delete, log)
                await trio.sleep(1)
                held.let_go()
            await trio.sleep(5)
            assert await world.ledgers(two) == other.ledgers.ids

    play(scenario)


def test_a_list_that_filled_up_meanwhile_takes_the_first_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            (await opened_twice(one, two)).abandon()
            config = replace(LONG, list_bytes_max=4000)
            log = await two.open(config)
            assert log.idle
            await log.set_property("k", "v" * 3100)
            assert log.room.allows_append
            assert not log.room.allows_roll
            await append(log, range(3, 5))
            assert await read_all(log) == list(range(5))

    play(scenario)


def test_a_first_ledger_with_an_id_that_is_too_low_is_not_listed() -> None:
    """The counter of ids was restored from a copy.  The log can be read, and says what it lacks."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            counter = world.metadata.tree._nodes["/ledgers/idgen"]
            counter.children_created = 100
            log = await opened_twice(one, two)
            await trio.sleep(1)
            counter.children_created = 50
            sent = send(log, range(3, 6))
            await trio.sleep(5)
            assert not sent.settled
            assert "counter of ids was lost" in log.waiting_for
            assert await read_all(log) == [0, 1, 2]
            counter.children_created = 200
            await settle(sent)
            assert sent.acked == [3, 4, 5]
            assert await read_all(log) == list(range(6))

    play(scenario)


def test_a_log_whose_list_has_little_room_is_not_opened_without_a_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, roll_entries=1))
            await append(log, range(40))
            await host.open()
            full = replace(CONFIG, list_bytes_max=log.ledgers.bytes)
            assert not (await host.open(full)).idle
            await host.open()
            assert (await host.open()).idle

    play(scenario)


def test_the_number_of_an_opening_leaves_the_list_with_the_next_ledger_of_an_opening() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await opened_twice(one, two)
            assert get_property((await world.list_of(two)).properties, OWNER) is not None
            await append(log, range(3, 5))
            await one.open()
            assert get_property((await world.list_of(two)).properties, OWNER) is None

    play(scenario)
