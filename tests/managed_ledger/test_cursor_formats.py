"""Records of cursors that Pulsar and the first release read correctly: when and how.

The world's `formats` are those that all brokers announce.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.cursor_ledger import CHANGE_2, encode_change_1, encode_snapshot, is_old
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.cursor import Change
from daybook.managed_ledger.records import cursor_path
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, PositionInfo
from tests.managed_ledger.first_release import read_as_snapshot
from tests.managed_ledger.world import CONFIG, NAME, Host, World, append, play, until

LONG = replace(CONFIG, roll_entries=1000, cursor_snapshot_s=1e6)


async def records_of(host: Host, ledger_id: int) -> list[bytes]:
    reader = await host.client.open(ledger_id, recover=True)
    if reader.last_add_confirmed < 0:
        return []
    entries = await reader.read(0, reader.last_add_confirmed, max_bytes=1 << 20)
    return [bytes(entry.payload) for entry in entries]


def kinds(records: Sequence[bytes]) -> str:
    """Return a letter for each record: S snapshot, c change, p part; 1 for those of version 1."""
    return "".join(map(_kind, records))


def _kind(record: bytes) -> str:
    if is_old(record):
        return "1"
    info = PositionInfo.FromString(record)
    if info.HasField("change"):
        return "c"
    return "p" if info.HasField("part") else "S"


async def ack_each(cursor: Cursor, positions: Sequence[Position]) -> None:
    """Each acknowledgement is a record of its own."""
    for position in positions:
        cursor.ack([position])
        await cursor.flush()


async def left_by_an_old_broker(host: Host, *, parts: bool = False) -> list[Position]:
    """A log whose owner has crashed; its cursor has a ledger with records of version 1."""
    log = await host.open(LONG)
    positions = await append(log, range(12))
    await log.open_cursor("s", initial=EARLIEST)
    log.abandon()
    writer = await host.client.create(CONFIG.quorums)
    acked = AckSet()
    if parts:
        acked.add_range(positions[3].ledger_id, 3, 3)
        first = encode_snapshot(positions[0], acked, {}, version=1, whole_bytes_max=4)
        records = [*encode_snapshot(positions[0], acked, {}), *first]
    else:
        run = (positions[3].ledger_id, 3, 3)
        records = [
            *encode_snapshot(Position(positions[0].ledger_id, -1), acked, {}),
            encode_change_1(Change(positions[0], (run,))),
        ]
    for record in records:
        writer.append([record])
    await writer.wait_confirmed(len(records) - 1)
    path = cursor_path(NAME, "s")
    found = await host.store.get(path)
    assert found is not None
    info = ManagedCursorInfo.FromString(found.value)
    info.cursorsLedgerId = writer.ledger_id
    await host.store.set(path, info.SerializeToString(), found.stat.version)
    return positions


# -- which version is written


def test_version_1_is_written_while_a_broker_does_not_announce_the_other() -> None:
    async def scenario(world: World) -> None:
        world.formats.clear()
        async with world.host("a") as host:
            log = await host.open(LONG)
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[1:6:2])
            assert cursor.old_records == 2
            log.abandon()
            assert kinds(await records_of(host, cursor.ledger_id)) == "S11"

    play(scenario)


def test_version_2_is_written_when_all_announce_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(LONG)
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[1:6:2])
            await ack_each(cursor, positions[:1])
            assert cursor.old_records == 0
            log.abandon()
            records = await records_of(host, cursor.ledger_id)
            assert kinds(records) == "Sccc"
            assert [read_as_snapshot(r).mark_delete for r in records[1:]] == [
                *2 * [Position(positions[0].ledger_id, -1)],
                positions[1],
            ]
            assert all(len(record) < 100 for record in records)

    play(scenario)


@pytest.mark.parametrize("parts", [False, True])
def test_records_of_version_1_are_left_when_the_log_is_opened(
    parts: bool,
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            positions = await left_by_an_old_broker(host, parts=parts)
            before = await host.store.get(cursor_path(NAME, "s"))
            assert before is not None
            old_id = ManagedCursorInfo.FromString(before.value).cursorsLedgerId
            log = await host.open(LONG)
            cursor = log.cursors["s"]
            assert cursor.old_records == 0
            assert cursor.ledger_id != old_id
            assert [cursor.is_acked(p) for p in positions[:5]] == [True, False, False, True, False]
            found = await host.store.get(cursor_path(NAME, "s"))
            assert found is not None
            info = ManagedCursorInfo.FromString(found.value)
            assert info.cursorsLedgerId == cursor.ledger_id
            assert old_id not in await world.ledgers(host)
            log.abandon()
            (record,) = await records_of(host, cursor.ledger_id)
            last = read_as_snapshot(record)
            assert last.mark_delete == positions[0]
            assert list(last.acked.ranges()) == [(positions[3].ledger_id, 3, 3)]

    play(scenario)


def test_records_of_version_1_are_left_when_the_last_old_broker_has_gone() -> None:
    async def scenario(world: World) -> None:
        world.formats.clear()
        async with world.host("a") as host:
            positions = await left_by_an_old_broker(host)
            log = await host.open(LONG)
            cursor = log.cursors["s"]
            assert cursor.old_records == 1
            log.check_roll()
            await trio.sleep(5)
            assert cursor.old_records == 1
            world.formats.add(CHANGE_2)
            log.check_roll()
            await until(lambda: cursor.old_records == 0)
            await ack_each(cursor, positions[5:6])
            log.abandon()
            assert kinds(await records_of(host, cursor.ledger_id)) == "Sc"

    play(scenario)


def test_an_older_broker_joins_later() -> None:
    """After a rollback version 1 is written; records of version 2 are read exactly."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(LONG)
            positions = await append(log, range(20))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[1:6:2])
            world.formats.clear()
            await ack_each(cursor, positions[7:10:2])
            world.formats.add(CHANGE_2)
            await ack_each(cursor, positions[11:12])  # It would not help this ledger any longer.
            ledger_id = cursor.ledger_id
            assert cursor.old_records == 3
            log.abandon()
            assert kinds(await records_of(host, ledger_id)) == "Scc111"
            log = await host.open(LONG)
            cursor = log.cursors["s"]
            assert cursor.old_records == 0
            assert [n for n, p in enumerate(positions) if cursor.is_acked(p)] == [1, 3, 5, 7, 9, 11]

    play(scenario)


def test_a_topic_whose_cursor_cannot_get_its_new_ledger_is_not_served() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            positions = await left_by_an_old_broker(host)
            before = await host.store.get(cursor_path(NAME, "s"))
            held = host.link.hold_next("multi")
            with pytest.raises(ManagedLedgerError, match="needs a new ledger"):
                await host.open(replace(LONG, stuck_s=3))
            assert held.caught.is_set()
            assert before is not None
            log = await host.open(LONG)
            held.let_go()
            cursor = log.cursors["s"]
            assert [cursor.is_acked(p) for p in positions[:5]] == [True, False, False, True, False]
            await ack_each(cursor, positions[1:2])

    play(scenario)


# -- snapshots in between


def test_a_snapshot_is_written_after_so_many_changes_while_there_are_holes() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(LONG, cursor_snapshot_records=3))
            positions = await append(log, range(20))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[:3])  # in order: no holes
            await ack_each(cursor, positions[4:12])
            log.abandon()
            records = await records_of(host, cursor.ledger_id)
            assert kinds(records) == "Scc" + "ccSccScc"
            last = read_as_snapshot(records[8])
            assert last.mark_delete == positions[2]
            assert list(last.acked.ranges()) == [(positions[0].ledger_id, 4, 9)]

    play(scenario)


def test_a_snapshot_is_the_last_record_after_so_long_while_there_are_holes() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(LONG, cursor_snapshot_s=30.0))
            positions = await append(log, range(20))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[1:5])
            await trio.sleep(29)
            writer = cursor.writer
            assert writer is not None
            assert writer.last_add_confirmed == 3
            await trio.sleep(2)
            assert writer.last_add_confirmed == 4
            await trio.sleep(100)
            assert writer.last_add_confirmed == 4  # once is enough
            await ack_each(cursor, positions[:1])  # no holes any longer
            await trio.sleep(100)
            log.abandon()
            records = await records_of(host, cursor.ledger_id)
            assert kinds(records) == "ScccSc"
            assert list(read_as_snapshot(records[4]).acked.ranges()) == [
                (positions[0].ledger_id, 1, 4)
            ]
            assert read_as_snapshot(records[5]).mark_delete == positions[4]

    play(scenario)


def test_a_snapshot_that_fits_no_frame_is_written_in_parts() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            config = replace(LONG, cursor_snapshot_records=2, cursor_snapshot_bytes_max=20)
            log = await host.open(config)
            positions = await append(log, range(20))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[1:8:2])
            log.abandon()
            records = await records_of(host, cursor.ledger_id)
            assert kinds(records) == "ppcpppc"
            assert {read_as_snapshot(r).mark_delete.entry_id for r in records} == {-1}
            cursor = (await host.open(config)).cursors["s"]
            assert [n for n, p in enumerate(positions) if cursor.is_acked(p)] == [1, 3, 5, 7]

    play(scenario)


def test_a_seek_is_written_as_a_snapshot() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(LONG)
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[:6])
            await cursor.reset(positions[2])
            log.abandon()
            records = await records_of(host, cursor.ledger_id)
            assert kinds(records) == "ScccccS"
            assert read_as_snapshot(records[-1]).mark_delete == positions[2]
            log = await host.open(LONG)
            assert log.cursors["s"].mark_delete == positions[2]

    play(scenario)


# -- crashes


@pytest.mark.parametrize("seed", range(12))
def test_after_a_crash_at_any_moment_nobody_skips_what_was_not_acknowledged(seed: int) -> None:
    """No reader skips a message, and Daybook has every acknowledgement that it confirmed."""
    rng = random.Random(seed)
    config = replace(
        LONG,
        cursor_snapshot_records=rng.choice([1, 2, 5, 1000]),
        cursor_snapshot_s=rng.choice([0.3, 1.0, 1e6]),
        cursor_snapshot_bytes_max=rng.choice([30, 4 << 20]),
        cursor_roll_records=rng.choice([3, 10, 5000]),
        flush_s=0.05,
    )

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(config)
            positions = await append(log, range(60))
            await log.open_cursor("s", initial=EARLIEST)
            acked: set[Position] = set()
            for _ in range(5):
                cursor, receipts = log.cursors["s"], set[Position]()
                for _ in range(rng.randrange(1, 20)):
                    taken = rng.sample(positions[:40], rng.randrange(1, 4))
                    acked.update(taken)
                    cursor.ack(taken)
                    if rng.random() < 0.6:
                        await cursor.flush()
                        receipts = set(acked)
                    else:
                        await trio.sleep(rng.uniform(0, 0.1))
                log.abandon()
                if cursor.ledger_id >= 0:
                    records = await records_of(host, cursor.ledger_id)
                    skipped = read_as_snapshot(records[-1])
                    for position in positions:
                        told = position <= skipped.mark_delete or position in skipped.acked
                        assert not told or position in acked
                log = await host.open(config)
                found = {p for p in positions if log.cursors["s"].is_acked(p)}
                assert receipts <= found <= acked
                acked = found

    play(scenario, seed)


def test_bookies_that_take_no_snapshot_leave_the_cursor_for_a_new_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(LONG, cursor_snapshot_s=5.0))
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await ack_each(cursor, positions[1:3])
            before = cursor.ledger_id
            # The log is ours, no matter which client fences the ledger.
            await host.client.open(before, recover=True)
            await until(lambda: cursor.ledger_id != before)
            log.abandon()
            assert kinds(await records_of(host, cursor.ledger_id)) == "S"

    play(scenario)
