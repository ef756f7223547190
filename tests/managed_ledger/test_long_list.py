"""A list of ledgers that reaches the limit of the metadata store can still be opened."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.errors import FencedError, ListFullError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.log import LogState
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.protocol.trim import Retention
from daybook.managed_ledger.records import (
    LAST_OFFSET,
    OPENING,
    get_property,
    log_path,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.metadata.store import VALUE_BYTES_MAX, MetadataError
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

ENDLESS = Retention(time_ms=None)
SMALL = replace(CONFIG, roll_entries=1, list_bytes_max=4096, retention=ENDLESS)
FULL = replace(CONFIG, retention=ENDLESS)


async def lengthened(world: World, host: Host, size: int) -> int:
    """Make a log of seven messages with a list of `size` bytes; return the number of ledgers.

    The ledgers in front do not exist; the list gives them one message each.
    """
    world.metadata.tree._nodes["/ledgers/idgen"].children_created = 1_000_000
    log = await host.open(FULL)
    await append(log, range(7))
    log.abandon()
    path = log_path(NAME)
    record = await host.store.get(path)
    assert record is not None
    info = ManagedLedgerInfo.FromString(record.value)
    ours, room = list(info.ledgerInfo), size - info.ByteSize()
    del info.ledgerInfo[:]
    for ledger_id in range(900_000, 1_000_000):
        row = info.ledgerInfo.add(ledgerId=ledger_id, entries=1, size=100, timestamp=1000)
        set_property(row, LAST_OFFSET, "0")
        room -= row.ByteSize() + 2
        if room < 100:
            break
    info.ledgerInfo.extend(ours)
    set_property(info, "filler", "x" * (room - 12))
    while info.ByteSize() < size:
        set_property(info, "filler", (get_property(info.properties, "filler") or "") + "x")
    assert info.ByteSize() == size
    await host.store.set(path, info.SerializeToString(), record.stat.version)
    return len(info.ledgerInfo)


async def refused(log: ManagedLedger) -> str:
    sent = await settle(send(log, range(1000, 1001)))
    ((_, error),) = sent.failed
    assert isinstance(error, ListFullError)
    assert str(error) == log.full
    return str(error)


def test_a_list_at_its_limit_is_trimmed_by_the_write_that_opens_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            count = await lengthened(world, host, VALUE_BYTES_MAX)
            record = await host.store.get(log_path(NAME))
            assert record is not None
            log = await host.open(replace(CONFIG, retention=NOW))
            assert log.ledgers.version == record.stat.version + 2  # the claim, and the rest
            assert await world.ids_of(host) == [log.current_ledger_id]
            assert count > 15_000
            assert get_property((await world.list_of(host)).properties, OPENING) is None
            before = log.current_ledger_id
            await append(log, range(7, 20))
            assert log.current_ledger_id > before
            assert log.full == ""

    play(scenario)


def test_a_list_at_its_limit_of_which_nothing_may_go_is_opened_again_and_again() -> None:
    """Reads continue; only appends are refused until the list has room."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            count = await lengthened(world, host, VALUE_BYTES_MAX)
            sizes: list[int] = []
            for _ in range(4):
                log = await host.open(FULL)
                sizes.append(log.ledgers.bytes)
                assert "15/16" not in await refused(log)
                assert "daybook topics retention" in log.full
                log.abandon()
            assert len(set(sizes)) <= 2
            log = await host.open(FULL)
            cursor = await log.open_cursor("s", initial=Position(1_000_000 - 1, 0))
            assert await read_all(log, Position(1_000_000, 0)) == list(range(7))
            cursor.ack_cumulative(log.last_confirmed)
            await cursor.flush()
            log.roll()
            log.check_roll()
            await trio.sleep(5)
            assert len(log.ledgers.ids) >= count  # Nothing has gone.
            log.config = replace(CONFIG, retention=NOW)
            assert len(await log.trim()) >= count - 1
            await append(log, range(7, 20))
            assert await read_all(log) == list(range(7, 20))

    play(scenario)


def test_a_full_ledger_is_not_rolled_when_its_length_would_not_fit() -> None:
    """Formerly the list took the new ledger, and never the length of the old one.  The log repeated
    that write forever, and no broker could open the log after that.
    """

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            await lengthened(world, host, VALUE_BYTES_MAX - 60)
            log = await host.open(FULL)
            log._full = None  # An older version would append.
            for first in range(7, 30, 3):
                assert not (await settle(send(log, range(first, min(first + 3, 30))))).failed
                await trio.sleep(2)
            assert log.state is LogState.OPEN
            assert log.current_entries == 23
            log.abandon()
            log = await host.open(FULL)
            assert await read_all(log, Position(1_000_000, 0)) == list(range(30))

    play(scenario)


def test_rolls_become_rarer_and_end_at_three_quarters() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(SMALL)
            rolled: list[tuple[int, int]] = []  # the size of the list before a roll, entries
            present, entries, size = log.current_ledger_id, 0, 0
            for number in range(0, 1600, 2):
                size = log.ledgers.bytes
                await append(log, range(number, number + 2))
                entries += 2
                if log.current_ledger_id != present:
                    rolled.append((size, entries))
                    present, entries = log.current_ledger_id, 0
            assert max(size for size, _ in rolled) < SMALL.list_bytes_max * 3 // 4
            assert len(rolled) > 40
            by_size = [entries for _, entries in rolled]
            assert by_size[0] <= 2
            assert by_size[-1] >= 64
            assert await read_all(log) == list(range(1600))
            log.config = replace(SMALL, retention=NOW)
            await log.trim()
            assert log.room.stretch == 1

    play(scenario)


def test_above_three_quarters_nothing_rolls() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            number = 0
            while True:  # Takeovers go on above three quarters.
                log = await host.open(SMALL)
                if not log.room.allows_roll:
                    break
                await append(log, range(number, number + 1))
                number += 1
                log.abandon()
            assert log.room.allows_append
            present = log.current_ledger_id
            await append(log, range(number, number + 1100))
            log.roll()
            log.check_roll()
            await trio.sleep(10)
            assert (log.current_ledger_id, log.current_entries) == (present, 1100)
            log.config = replace(SMALL, retention=NOW)
            await log.trim()
            log.roll()
            await until(lambda: log.current_ledger_id != present)

    play(scenario)


def test_a_ledger_that_is_too_young_is_not_rolled() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, roll_age_min_s=600.0))
            present = log.current_ledger_id
            await append(log, range(50))
            assert log.current_ledger_id == present
            await trio.sleep(600)
            log.check_roll()
            await until(lambda: log.current_ledger_id != present)

    play(scenario)


def test_takeovers_without_end_do_not_fill_the_list() -> None:
    """While appends are taken, each takeover leaves a ledger of one entry; then it leaves none."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            stored = 0
            for _ in range(150):
                log = await host.open(SMALL)
                if log.full:
                    await refused(log)
                else:
                    stored += len(await append(log, range(stored, stored + 1)))
                assert log.ledgers.bytes <= SMALL.list_bytes_max
                log.abandon()
            assert 50 < stored < 150
            log = await host.open(SMALL)
            assert await read_all(log) == list(range(stored))
            assert log.room.alarming
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack_cumulative(log.last_confirmed)
            await cursor.flush()
            log.abandon()
            log = await host.open(replace(SMALL, retention=NOW))
            assert log.full == ""
            assert len(log.ledgers.ids) == 1

    play(scenario)


async def half_full(host: Host) -> list[Position]:
    log = await host.open(SMALL)
    positions: list[Position] = []
    while not log.room.alarming:
        start = len(positions)
        positions += await append(log, range(start, start + 2))
    await log.close()
    return positions


def test_opening_trims_by_the_rule_of_trimming() -> None:
    """A cursor holds what lies behind its stored position; retention holds the rest."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            positions = await half_full(host)
            log = await host.open(SMALL)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack_cumulative(positions[9])
            await cursor.flush()
            log.abandon()
            log = await host.open(SMALL)
            assert await read_all(log) == list(range(len(positions)))
            log.abandon()
            log = await host.open(replace(SMALL, retention=NOW))
            assert log.ledgers.ids[0] == positions[10].ledger_id
            assert await read_all(log) == list(range(10, len(positions)))
            assert log.cursors["s"].mark_delete == log.before_first
            await trio.sleep(10)
            assert set(await world.ids_of(host)) <= set(await world.ledgers(host))
            assert positions[0].ledger_id not in await world.ledgers(host)

    play(scenario)


@pytest.mark.parametrize("what", ["created", "set back in its ledger"])
def test_what_the_old_owner_does_to_a_cursor_before_the_claim_holds_its_ledgers(what: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            positions = await half_full(one)
            old = await one.open(SMALL)
            at_end = await old.open_cursor("s", initial=positions[-1])
            at_end.ack_cumulative(positions[-1])
            await at_end.flush()
            claim = two.link.hold_next("set", log_path(NAME))
            opened: list[ManagedLedger] = []

            async def take_over() -> None:
                opened.append(await two.open(replace(SMALL, retention=NOW)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_over)
                await claim.caught.wait()
                if what == "created":
                    await old.open_cursor("new", initial=EARLIEST)
                else:
                    await at_end.reset(EARLIEST)
                claim.let_go()
            (log,) = opened
            assert await read_all(log) == list(range(len(positions)))
            name = "new" if what == "created" else "s"
            assert log.cursors[name].backlog_entries == len(positions)

    play(scenario)


def test_what_the_old_owner_wants_of_a_cursor_after_the_claim_is_refused() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            positions = await half_full(one)
            old = await one.open(SMALL)
            at_end = await old.open_cursor("s", initial=positions[-1])
            at_end.ack_cumulative(positions[-1])
            await at_end.flush()
            claim = two.link.hold_next("set", log_path(NAME))
            opened: list[ManagedLedger] = []

            async def take_over() -> None:
                opened.append(await two.open(replace(SMALL, retention=NOW)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_over)
                await claim.caught.wait()
                second = two.link.hold_next("set", log_path(NAME))
                claim.let_go()
                await second.caught.wait()  # The cursors have been read.
                info = await world.list_of(one)
                assert get_property(info.properties, OPENING) is not None
                with pytest.raises(FencedError):
                    await old.open_cursor("new", initial=EARLIEST)
                with pytest.raises(FencedError):
                    await at_end.reset(EARLIEST)
                second.let_go()
            (log,) = opened
            assert list(log.cursors) == ["s"]
            assert await read_all(log) == []
            assert await append(log, range(100, 103))

    play(scenario)


@pytest.mark.parametrize("held", ["claim", "second write"])
def test_of_two_that_open_a_long_list_one_has_it(held: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            positions = await half_full(one)
            slow = one.link.hold_next("set", log_path(NAME))
            lost: list[FencedError] = []

            async def take_over() -> None:
                with pytest.raises(FencedError) as caught:
                    await one.open(SMALL)
                lost.append(caught.value)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_over)
                await slow.caught.wait()
                if held == "second write":
                    claim, slow = slow, one.link.hold_next("set", log_path(NAME))
                    claim.let_go()
                    await slow.caught.wait()
                log = await two.open(SMALL)
                slow.let_go()
            assert lost
            await append(log, range(len(positions), len(positions) + 3))
            assert await read_all(log) == list(range(len(positions) + 3))
            listed = await world.ids_of(two)
            assert listed == list(log.ledgers.ids)

    play(scenario)


def test_a_claim_whose_answer_was_lost_is_not_taken_for_that_of_another() -> None:
    """Two claims of the same list differ in the ledger that they name, and in nothing else."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            positions = await half_full(one)
            lost = one.link.hold_next("set", log_path(NAME))
            refused: list[FencedError] = []
            opened: list[ManagedLedger] = []

            async def lose() -> None:
                with pytest.raises(FencedError) as caught:
                    await one.open(SMALL)
                refused.append(caught.value)

            async def win() -> None:
                opened.append(await two.open(SMALL))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose)
                await lost.caught.wait()
                claim = two.link.hold_next("set", log_path(NAME))
                nursery.start_soon(win)
                await claim.caught.wait()
                second = two.link.hold_next("set", log_path(NAME))
                claim.let_go()
                await second.caught.wait()  # The list is claimed by the second host.
                one.store.suspend()
                one.store.resume()
                with trio.move_on_after(30):
                    await until(lambda: bool(refused))
                assert refused
                second.let_go()
            (log,) = opened
            assert await read_all(log) == list(range(len(positions)))

    play(scenario)


def test_a_claim_that_nobody_finished_is_taken_over() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            positions = await half_full(one)
            claim = one.link.hold_next("set", log_path(NAME))
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.open, SMALL)
                    await claim.caught.wait()
                    second = one.link.hold_next("set", log_path(NAME))
                    claim.let_go()
                    await second.caught.wait()
                    scope.cancel()
            log = await two.open(SMALL)
            info = await world.list_of(two)
            assert get_property(info.properties, OPENING) is None
            assert await read_all(log) == list(range(len(positions)))
            await two.logs.remove_orphans()
            left = set(await world.ledgers(two))
            assert left == set(log.ledgers.ids)

    play(scenario)


def years_until_no_roll(entries_per_s: float, row_bytes: int) -> float:
    """The settings are those of a broker, and nothing is ever trimmed."""
    size, seconds, most = 0, 0.0, 3 << 24
    while (room := Room(size, VALUE_BYTES_MAX)).allows_roll:
        entries = max(50_000 * room.stretch, entries_per_s * 600.0 * room.stretch)
        seconds += min(entries, most) / entries_per_s
        size += row_bytes
    return seconds / (365.25 * 24 * 3600)


@pytest.mark.parametrize(("rate", "years"), [(100, 40), (1_700, 6), (10_000, 1.5)])
def test_a_list_of_endless_retention_lasts_for_years(rate: float, years: float) -> None:
    """The figures are those of docs/formats/managed_ledger.md."""
    info = ManagedLedgerInfo()
    row = info.ledgerInfo.add(
        ledgerId=10_000_000, entries=30_000_000, size=30 << 30, timestamp=1_800_000_000_000
    )
    set_property(row, LAST_OFFSET, "100000000000")
    assert years_until_no_roll(rate, info.ByteSize()) > years


def sizes() -> Iterable[int]:
    return range(4097)


def test_what_a_list_allows_by_its_size() -> None:
    rooms = [Room(size, 4096) for size in sizes()]
    stretches = [room.stretch for room in rooms if room.allows_roll]
    assert stretches == sorted(stretches)
    assert set(stretches) == {1 << i for i in range(11)}
    assert next(r.bytes for r in rooms if r.stretch > 1) == 512
    assert next(r.bytes for r in rooms if r.alarming) == 2048
    assert next(r.bytes for r in rooms if not r.allows_roll) == 3072
    assert next(r.bytes for r in rooms if not r.allows_append) == 3840


def test_a_cursor_whose_state_is_too_large_for_its_record_keeps_its_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(7))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            many = {f"{'n' * 50}{n}": n for n in range(20_000)}
            cursor.properties.update(many)
            cursor.ack(positions[2:4])
            await log.close()
            log = await host.open()
            cursor = log.cursors["s"]
            assert cursor.properties == many
            assert cursor.backlog_entries == 5
            assert cursor.ledger_id >= 0
            await log.delete_cursor("s")
            assert not log.cursors

    play(scenario)


def test_a_new_log_whose_properties_fill_most_of_its_list_is_opened() -> None:
    """Such a list is near its limit and names no ledger: there is nothing to claim or to trim."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            properties = {"purpose": "x" * 3600}
            assert await host.logs.create(NAME, properties)
            log = await host.open(SMALL)
            await append(log, range(1))
            assert await read_all(log) == [0]

    play(scenario)


def test_a_truncation_of_a_log_whose_list_is_too_full_to_roll_drops_the_other_ledgers() -> None:
    """Formerly it waited forever for a ledger that the list has no room for."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            number = 0
            while True:  # Takeovers go on above three quarters.
                log = await host.open(SMALL)
                if not log.room.allows_roll:
                    break
                await append(log, range(number, number + 1))
                number += 1
                log.abandon()
            present = log.current_ledger_id
            await append(log, range(number, number + 1))
            others = [each for each in log.ledgers.ids if each != present]
            with trio.fail_after(60):
                assert await log.truncate() == others
            assert (log.current_ledger_id, log.current_entries) == (present, 1)
            assert await read_all(log) == [number]

    play(scenario)


def test_a_truncation_ends_if_no_new_ledger_can_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(FULL)
            await append(log, range(1))
            first = log.current_ledger_id
            log.roll()
            await until(lambda: log.current_ledger_id != first and log.state is LogState.OPEN)
            await append(log, range(1, 2))

            async def fail(*args: object) -> None:
                del args
                await trio.lowlevel.checkpoint()
                raise MetadataError("the store is away")

            present = log.current_ledger_id
            with monkeypatch.context() as patch:
                patch.setattr("daybook.managed_ledger.log.put_on_list", fail)
                with trio.fail_after(60):
                    assert await log.truncate() == [first]
            assert log.state is LogState.OPEN
            assert log.current_ledger_id == present
            assert await read_all(log) == [1]

    play(scenario)
