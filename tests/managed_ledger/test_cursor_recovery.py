"""Recovery of cursors that Pulsar wrote, or that are damaged, incomplete or out of reach."""

from collections.abc import Sequence

import pytest
import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.registry.paths import LedgerPaths
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.records import cursor_path, nested
from daybook.managed_ledger.records_pb2 import (
    LongListMap,
    ManagedCursorInfo,
    MessageRange,
    PositionInfo,
)
from tests.managed_ledger.world import BOOKIES, CONFIG, NAME, Host, World, append, play

PATH = cursor_path(NAME, "s")


def span(lower: Position, upper: Position) -> MessageRange:
    """Return a range in Pulsar's form: behind `lower`, up to and including `upper`."""
    return MessageRange(lowerEndpoint=nested(lower), upperEndpoint=nested(upper))


async def store(host: Host, info: ManagedCursorInfo) -> None:
    record = await host.store.get(PATH)
    if record is None:
        await host.store.create(PATH, info.SerializeToString())
    else:
        await host.store.set(PATH, info.SerializeToString(), record.stat.version)


async def ledger_of(host: Host, records: Sequence[bytes]) -> int:
    writer = await host.client.create(CONFIG.quorums)
    for record in records:
        writer.append([record])
    await writer.wait_confirmed(len(records) - 1)
    await writer.close()
    return writer.ledger_id


async def closed_log(host: Host) -> list[Position]:
    """Make a closed log of fourteen entries in three ledgers; return their positions."""
    log = await host.open()
    positions = await append(log, range(14))
    await log.close()
    assert len({p.ledger_id for p in positions}) == 3
    return positions


def acked(log: ManagedLedger, positions: Sequence[Position]) -> list[int]:
    cursor = log.cursors["s"]
    found = [number for number, p in enumerate(positions) if cursor.is_acked(p)]
    assert cursor.backlog_entries == len(positions) - len(found)
    return found


# -- ranges that span ledgers


@pytest.mark.parametrize("where", ["record", "ledger", "words"])
def test_ranges_over_ledgers_as_pulsar_writes_them(where: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            positions = await closed_log(host)
            before, first, last = positions[0], positions[2], positions[12]
            ranges = [span(first, last)]
            info = ManagedCursorInfo(
                cursorsLedgerId=-1,
                markDeleteLedgerId=before.ledger_id,
                markDeleteEntryId=before.entry_id,
            )
            if where == "record":
                info.individualDeletedMessages.extend(ranges)
            else:
                snapshot = PositionInfo(ledgerId=before.ledger_id, entryId=before.entry_id)
                if where == "ledger":
                    snapshot.individualDeletedMessages.extend(ranges)
                for ledger_id in sorted({p.ledger_id for p in positions}):
                    bits = sum(1 << p.entry_id for p in positions[3:13] if p.ledger_id == ledger_id)
                    if where == "words":
                        words = LongListMap(key=ledger_id, values=[bits])
                        snapshot.individualDeletedMessageRanges.append(words)
                info.cursorsLedgerId = await ledger_of(host, [snapshot.SerializeToString()])
            await store(host, info)
            log = await host.open()
            assert acked(log, positions) == [0, *range(3, 13)]
            log.cursors["s"].ack(positions[1:3])
            assert log.cursors["s"].mark_delete == positions[12]
            await log.close()
            assert acked(await host.open(), positions) == list(range(13))

    play(scenario)


@pytest.mark.parametrize("lower", [Position(-1, -1), Position(0, -1), Position(0, 900)])
@pytest.mark.parametrize("upper", [Position(0, 900), Position(2**40, 7), Position(2**40, -1)])
def test_ranges_that_begin_or_end_where_nothing_is(lower: Position, upper: Position) -> None:
    """Positions in trimmed ledgers, or behind the end of one, are not counted."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            positions = await closed_log(host)
            start = Position(positions[0].ledger_id, -1)
            info = ManagedCursorInfo(
                cursorsLedgerId=-1, markDeleteLedgerId=start.ledger_id, markDeleteEntryId=-1
            )
            info.individualDeletedMessages.append(span(lower, upper))
            await store(host, info)
            log = await host.open()
            expected = [n for n, p in enumerate(positions) if lower < p <= upper]
            assert acked(log, positions) == expected
            later = await append(log, range(14, 30))
            assert not any(log.cursors["s"].is_acked(p) for p in later)

    play(scenario)


def test_a_ledger_that_is_appended_to_later_is_not_acknowledged_before() -> None:
    """A damaged record may name a ledger with a higher id than any that exists."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            positions = await closed_log(host)
            info = ManagedCursorInfo(
                cursorsLedgerId=-1,
                markDeleteLedgerId=positions[0].ledger_id,
                markDeleteEntryId=positions[0].entry_id,
            )
            for ledger_id in range(positions[-1].ledger_id + 1, positions[-1].ledger_id + 10):
                info.individualDeletedMessages.append(
                    span(Position(ledger_id, -1), Position(ledger_id, 50))
                )
            await store(host, info)
            log = await host.open()
            later = await append(log, range(14, 30))
            assert acked(log, [*positions, *later]) == [0]

    play(scenario)


@pytest.mark.parametrize(
    ("ledger", "entry", "expected"),
    [
        (-1, -1, 0),
        (0, -5, 0),
        (0, 900, 6),
        (1, -7, 6),
        (2**40, -1, 14),
        (2**62, 2**62, 14),
    ],
)
def test_a_mark_delete_position_that_cannot_be(ledger: int, entry: int, expected: int) -> None:
    """A position behind the end means the end, one before the beginning the beginning."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            positions = await closed_log(host)
            info = ManagedCursorInfo(
                cursorsLedgerId=-1,
                markDeleteLedgerId=ledger,
                markDeleteEntryId=entry,
            )
            await store(host, info)
            log = await host.open()
            assert acked(log, positions) == list(range(expected))
            later = await append(log, range(14, 17))
            assert acked(log, [*positions, *later]) == list(range(expected))

    play(scenario)


def test_a_record_that_does_not_say_where_fails_the_open() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            await closed_log(host)
            await store(host, ManagedCursorInfo(cursorsLedgerId=-1))
            with pytest.raises(LogCorruptError, match="no mark-delete position"):
                await host.open()

    play(scenario)


# -- a cursor's ledger that cannot be read now


@pytest.mark.parametrize("how", ["out of reach", "one bookie left", "metadata away"])
def test_a_cursor_that_cannot_be_read_now_fails_the_open_and_stays_as_it_is(how: str) -> None:
    """An unknown position is not replaced by earliest, by latest or by the one in the record."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack_cumulative(positions[1])
            await cursor.flush()
            cursor.ack([positions[6]])
            cursor.ack_cumulative(positions[4])
            await cursor.flush()
            ledger_id = cursor.ledger_id
            await log._writer.close()  # The log's own ledgers need nobody.
            log.abandon()
            before = await host.store.get(PATH)
            opened = host.client.open_stored

            async def failing(asked: int, stored: StoredMetadata, *, recover: bool) -> object:
                if asked == ledger_id:
                    for name in BOOKIES[: 2 if how == "one bookie left" else 3]:
                        world.network.block("a", name)
                return await opened(asked, stored, recover=recover)

            if how == "metadata away":
                held = host.link.hold_next("set", LedgerPaths().ledger(ledger_id))
                with trio.move_on_after(60):
                    await host.open()
                assert held.caught.is_set()
            else:
                host.client.open_stored = failing  # type: ignore[method-assign,assignment]
                with pytest.raises(LedgerError):
                    await host.open()
                host.client.open_stored = opened  # type: ignore[method-assign]
                for name in BOOKIES:
                    world.network.unblock("a", name)
                world.network.cut("a")
            assert await host.store.get(PATH) == before
            log = await host.open()
            assert acked(log, positions) == [0, 1, 2, 3, 4, 6]

    play(scenario)


# -- cursors that nobody has


def test_a_stray_cursor_goes_with_its_log_and_with_its_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(3))
            snapshot = PositionInfo(ledgerId=positions[0].ledger_id, entryId=0)
            ledger_id = await ledger_of(host, [snapshot.SerializeToString()])
            await host.store.create(
                PATH, ManagedCursorInfo(cursorsLedgerId=ledger_id).SerializeToString()
            )
            await host.store.create(cursor_path(NAME, "garbage"), b"\xff\xff")
            await host.logs.delete(log)
            assert not await host.logs.exists(NAME)
            assert await world.ledgers(host) == []

    play(scenario)


@pytest.mark.parametrize("at", ["delete", "get"])
def test_who_deletes_a_log_that_was_taken_over_removes_no_cursor_of_the_new_owner(at: str) -> None:
    """The list changed its owner after it was emptied, and has new subscriptions."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            positions = await append(old, range(3))
            if at == "get":  # Nobody had it; the new owner finds it.
                start = ManagedCursorInfo(
                    cursorsLedgerId=-1,
                    markDeleteLedgerId=positions[0].ledger_id,
                    markDeleteEntryId=-1,
                )
                await store(one, start)
            held = one.link.hold_next(at, PATH if at == "get" else f"/managed-ledgers/{NAME}")
            outcome: list[BaseException] = []

            async def delete() -> None:
                try:
                    await one.logs.delete(old)
                except Exception as error:
                    outcome.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete)
                await held.caught.wait()
                new = await two.open()
                cursor = await new.open_cursor("s", initial=EARLIEST)
                positions = await append(new, range(10, 14))
                cursor.ack(positions[:2])
                await cursor.flush()
                held.let_go()
            assert [type(error).__name__ for error in outcome] == ["FencedError"]
            cursor.ack(positions[2:3])
            await cursor.flush()
            assert new.fenced is None
            new.abandon()
            assert acked(await two.open(), positions) == [0, 1, 2]

    play(scenario)


def test_a_name_that_is_encoded_as_nobody_does_it_fails_the_open() -> None:
    """Otherwise it would be written under another path, or two cursors would have one name."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await log.close()
            info = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=0, markDeleteEntryId=-1)
            await host.store.create(f"/managed-ledgers/{NAME}/a%2fb", info.SerializeToString())
            with pytest.raises(LogCorruptError, match="encoded"):
                await host.open()

    play(scenario)
