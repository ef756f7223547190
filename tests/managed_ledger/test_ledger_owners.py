"""A ledger proves its owner before anything is done to it.

One metadata store has two roots here: ids of ledgers collide, and all topics share the lists.
"""

from collections.abc import Awaitable, Callable

import pytest

from daybook.bookie.errors import ReadUnknownError
from daybook.bookie.ledger.metadata import LedgerState
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import (
    CURSOR_NAME,
    LOG_NAME,
    LedgerOwner,
    cursor_path,
    custom_metadata,
    log_path,
)
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from tests.managed_ledger.world import (
    CONFIG,
    NAME,
    Host,
    World,
    append,
    play,
    read_all,
    send,
    settle,
)

OTHER_ROOT = "/other/ledgers"
OTHER_NAME = "t/n/persistent/b"
EARLIEST = Position(-1, -1)


def two_roots(scenario: Callable[[World, Host, Host], Awaitable[None]]) -> None:
    """Open hosts of two clusters that share a metadata store."""

    async def both(world: World) -> None:
        for number in range(1, 4):
            await world.add_bookie(f"other-{number}", root=OTHER_ROOT)
        async with world.host("one") as one, world.host("two", root=OTHER_ROOT) as two:
            await scenario(world, one, two)

    play(both)


async def goes_on(log: ManagedLedger, numbers: range) -> None:
    """Check that the log can append: its ledger was not fenced."""
    sent = await settle(send(log, numbers))
    assert not sent.failed
    assert log.fenced is None


def test_a_list_is_never_read_against_the_ledgers_of_another_root() -> None:
    async def scenario(world: World, one: Host, two: Host) -> None:
        log = await one.open()
        await append(log, range(3))
        victim = await two.open(name=OTHER_NAME)
        assert victim.current_ledger_id == log.current_ledger_id  # The ids collide.
        await append(victim, range(100, 102))
        log.abandon()
        before = await world.list_of(one)
        with pytest.raises(LogCorruptError) as caught:
            await two.open()
        for said in (NAME, OTHER_NAME, OTHER_ROOT, "ledgers_root"):
            assert said in str(caught.value)
        assert await world.list_of(one) == before
        await goes_on(victim, range(102, 104))  # It was not fenced.
        assert await read_all(victim) == [100, 101, 102, 103]
        assert await read_all(await one.open()) == [0, 1, 2]

    two_roots(scenario)


def test_no_ledger_is_fenced_if_one_of_them_is_foreign() -> None:
    """The last but one belongs to the log, and its owner may be writing to it."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host, world.host("b") as another:
            log = await host.open()
            await append(log, range(2))
            foreign = await another.open(name=OTHER_NAME)
            await list_also(host, foreign.current_ledger_id)
            with pytest.raises(LogCorruptError):
                await another.open()
            await goes_on(foreign, range(3))
            metadata = await host.client.metadata(log.current_ledger_id)
            assert metadata.state is LedgerState.OPEN

    play(scenario)


async def list_also(host: Host, ledger_id: int) -> None:
    """Put a foreign ledger on the list of the log."""
    path = log_path(NAME)
    record = await host.store.get(path)
    assert record is not None
    info = ManagedLedgerInfo.FromString(record.value)
    info.ledgerInfo.add(ledgerId=ledger_id)
    await host.store.set(path, info.SerializeToString(), record.stat.version)


async def point(host: Host, cursor: str, ledger_id: int) -> None:
    """Make the record of a cursor name that ledger."""
    path = cursor_path(NAME, cursor)
    record = await host.store.get(path)
    assert record is not None
    info = ManagedCursorInfo.FromString(record.value)
    info.cursorsLedgerId = ledger_id
    await host.store.set(path, info.SerializeToString(), record.stat.version)


async def with_cursor(host: Host) -> Cursor:
    log = await host.open()
    positions = await append(log, range(3))
    cursor = await log.open_cursor("s/1", initial=EARLIEST)
    cursor.ack(positions[:1])
    await cursor.flush()
    return cursor


def test_a_cursor_is_never_recovered_from_a_ledger_of_another() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host, world.host("b") as another:
            cursor = await with_cursor(host)
            own = cursor.ledger_id
            foreign = await another.open(name=OTHER_NAME)
            data = (await world.ids_of(host))[-1]
            wrong = await another.client.create(CONFIG.quorums, custom=custom_metadata(NAME, "s/2"))
            for ledger_id in (foreign.current_ledger_id, data, wrong.ledger_id):
                await point(host, "s/1", ledger_id)
                with pytest.raises(LogCorruptError, match="cursor s%2F1"):
                    await host.open()
            assert (await host.client.metadata(wrong.ledger_id)).state is LedgerState.OPEN
            await goes_on(foreign, range(3))
            await point(host, "s/1", own)
            assert (await host.open()).cursors["s/1"].acked_above == 0

    play(scenario)


def test_a_foreign_ledger_in_the_middle_is_neither_read_nor_skipped() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host, world.host("b") as another:
            log = await host.open()
            await append(log, range(12))
            foreign = await another.open(name=OTHER_NAME)
            await append(foreign, range(100, 105))
            log.abandon()
            log = await host.open()
            first = log.ledgers.ids[0]
            record = await host.store.get(f"/ledgers/00/0000/L{first:04d}")
            theirs = await host.store.get(f"/ledgers/00/0000/L{foreign.ledgers.ids[0]:04d}")
            assert record is not None
            assert theirs is not None
            await host.store.set(f"/ledgers/00/0000/L{first:04d}", theirs.value, -1)
            start = log.next_position(log.before_first)
            for _ in range(2):
                with pytest.raises(ReadUnknownError, match=OTHER_NAME):
                    await log.read(start, max_entries=1, max_bytes=1000)
            await host.store.set(f"/ledgers/00/0000/L{first:04d}", record.value, -1)
            assert await read_all(log) == list(range(12))

    play(scenario)


def test_nothing_that_says_it_is_another_logs_is_deleted() -> None:
    """Neither trimming nor the deletion of a log or a cursor deletes a foreign ledger."""

    async def scenario(world: World, one: Host, two: Host) -> None:
        cursor = await with_cursor(one)
        for number in range(8):
            await two.open(name=f"t/n/persistent/{number}")
        theirs = await world.ledgers(two)
        log = list(one.logs._open_logs.values())[-1]
        assert {cursor.ledger_id, *log.ledgers.ids} <= set(theirs)
        log.context.client.context.metadata_store.paths = two.client.context.metadata_store.paths
        await log.delete_cursor("s/1")
        await one.logs.delete(log)
        assert await world.ledgers(two) == theirs

    two_roots(scenario)


def test_ledgers_without_a_name_are_those_of_old_versions_of_pulsar() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            writer = await host.client.create(CONFIG.quorums)
            await writer.close()
            await host.logs.create(NAME)
            await list_also(host, writer.ledger_id)
            await append(await host.open(), range(3))
            assert writer.ledger_id not in await world.ledgers(host)  # It was empty.

    play(scenario)


def test_what_contradicts_an_owner() -> None:
    log, cursor = LedgerOwner("l"), LedgerOwner("l", "s%2F1")
    assert log.contradicted_by({}) is None
    assert cursor.contradicted_by({}) is None
    assert log.contradicted_by(custom_metadata("l")) is None
    assert cursor.contradicted_by(custom_metadata("l", "s/1")) is None
    assert log.contradicted_by(custom_metadata("m")) == "m"
    assert log.contradicted_by(custom_metadata("l", "s")) == "l, cursor s"
    assert cursor.contradicted_by(custom_metadata("l")) == "l"
    assert cursor.contradicted_by(custom_metadata("m", "s/1")) == "m, cursor s%2F1"
    assert log.contradicted_by({"component": b"schema"}) == "the component schema"
    assert log.contradicted_by({LOG_NAME: b"\xff"}) == "\\xff"
    assert log.contradicted_by({CURSOR_NAME: b"s"}) == "no log, cursor s"
