"""Cursors in their ledgers: recorded, recovered, handed over, fenced."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.cursor_ledger import Recovered, encode_snapshot
from daybook.managed_ledger.errors import FencedError, LogCorruptError, ManagedLedgerError
from daybook.managed_ledger.position import EARLIEST, LATEST, Position
from daybook.managed_ledger.records import cursor_path
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo
from daybook.wire.metadata.store import (
    MetadataError,
    Operation,
    Set,
    VersionConflictError,
)
from tests.managed_ledger.world import CONFIG, NAME, Host, World, append, play, until


async def record_of(host: Host, name: str = "s") -> ManagedCursorInfo:
    record = await host.store.get(cursor_path(NAME, name))
    assert record is not None
    return ManagedCursorInfo.FromString(record.value)


def test_what_is_flushed_survives_a_crash() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(23))
            cursor = await log.open_cursor("s", initial=EARLIEST, properties={"k": "v"})
            assert cursor.backlog_entries == 23
            cursor.ack_cumulative(positions[3])
            await cursor.flush()
            cursor.ack([positions[i] for i in (5, 6, 9, 17)])
            await cursor.flush()
            cursor.ack([positions[4]])
            await cursor.flush()
            assert cursor.mark_delete == positions[6]
            log.abandon()
            for _ in range(2):  # also when it was recovered, and nothing happened
                log = await host.open()
                again = log.cursors["s"]
                assert again.mark_delete == positions[6]
                done = [i for i, p in enumerate(positions) if again.is_acked(p)]
                assert done == [0, 1, 2, 3, 4, 5, 6, 9, 17]
                assert (again.backlog_entries, again.acked_above) == (14, 2)
                assert again.read_start == positions[7]
                log.abandon()
            assert (await record_of(host)).cursorProperties[0].value == "v"

    play(scenario)


def test_acks_without_a_receipt_are_durable_within_the_flush_interval() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(4))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            for position in positions:
                cursor.ack([position])
                await trio.sleep(0.5)
            log.abandon()
            assert (await host.open()).cursors["s"].mark_delete == positions[-1]

    play(scenario)


@pytest.mark.parametrize("holes", [0, 3, 1500])
def test_a_clean_close_keeps_every_ack(holes: int) -> None:
    async def scenario(world: World) -> None:
        config = replace(CONFIG, roll_entries=10_000, flush_s=1000.0)
        async with world.host("a") as host:
            log = await host.open(config)
            positions = await append(log, range(2 * holes + 3))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack(positions[:1])
            await cursor.flush()
            acked = [positions[0], *positions[2 : 2 + 2 * holes : 2]]
            cursor.ack(acked)
            await log.close()
            record = await record_of(host)
            assert (record.cursorsLedgerId == -1) == (holes <= 1000)
            if holes > 1000:
                reader = await host.client.open(record.cursorsLedgerId, recover=False)
                assert reader.closed
                last = reader.last_add_confirmed
                (entry,) = await reader.read(last, last, max_bytes=1)
                assert bytes(entry.payload)[:1] != b"\0"  # a whole snapshot, for Pulsar
            log = await host.open(config)
            again = log.cursors["s"]
            assert [p for p in positions if again.is_acked(p)] == acked
            again.ack(positions)
            await log.close()
            await trio.sleep(5)
            assert set(await world.ledgers(host)) == set(await world.ids_of(host))

    play(scenario)


def test_a_cursor_that_was_recovered_and_not_used_is_folded_at_a_clean_close() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(4))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            for position in positions[:2]:  # the second is a change record
                cursor.ack([position])
                await cursor.flush()
            log.abandon()
            log = await host.open()
            await log.close()
            record = await record_of(host)
            assert record.cursorsLedgerId == -1
            assert record.markDeleteEntryId == positions[1].entry_id

    play(scenario)


def test_earliest_and_latest_are_stored_as_such() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await log.open_cursor("first", initial=LATEST)
            positions = await append(log, range(7))
            await log.open_cursor("earliest", initial=EARLIEST)
            await log.open_cursor("latest", initial=LATEST)
            await log.open_cursor("middle", initial=positions[2])
            assert (await log.open_cursor("middle", initial=EARLIEST)).backlog_entries == 4
            log.abandon()
            log = await host.open()
            backlog = {name: cursor.backlog_entries for name, cursor in log.cursors.items()}
            assert backlog == {"first": 7, "earliest": 7, "latest": 0, "middle": 4}
            await append(log, range(7, 9))
            assert log.cursors["latest"].backlog_entries == 2

    play(scenario)


def test_reset_moves_back_and_is_durable() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(12))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            for target in (positions[4], EARLIEST, positions[9], LATEST, positions[0]):
                cursor.ack([positions[11]])
                cursor.ack_cumulative(positions[8])
                await cursor.reset(target)
                log.abandon()
                log = await host.open()
                cursor = log.cursors["s"]
                assert [cursor.is_acked(p) for p in positions] == [p <= target for p in positions]

    play(scenario)


def test_acks_of_what_is_not_there_are_not_taken() -> None:
    """Otherwise an entry that is appended later would be skipped."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(7))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            end = log.last_confirmed
            (old, *_), present = positions, log.current_ledger_id
            cursor.ack(
                [
                    end.next_in_ledger(),
                    Position(present, 2**62),
                    Position(present + 1, 0),
                    Position(present, -1),
                    Position(old.ledger_id, 10**6),
                    Position(2**63, 0),
                    EARLIEST,
                ]
            )
            assert (cursor.acked_above, cursor.backlog_entries) == (0, 7)
            first = [p for p in positions if p.ledger_id == old.ledger_id]
            cursor.ack_cumulative(Position(old.ledger_id, 10**6))
            assert cursor.mark_delete == first[-1]
            cursor.ack_cumulative(LATEST)
            assert cursor.mark_delete == end
            await append(log, range(7, 9))
            assert cursor.backlog_entries == 2

    play(scenario)


def test_volatile_cursors_are_never_stored() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(4))
            cursor = log.new_volatile_cursor("r", LATEST)
            assert cursor.backlog_entries == 0
            await cursor.reset(EARLIEST)
            cursor.ack(positions[:2])
            await cursor.flush()
            assert cursor.backlog_entries == 2
            await trio.sleep(5)
            assert await host.store.get(cursor_path(NAME, "r")) is None
            assert set(await world.ledgers(host)) == set(await world.ids_of(host))

    play(scenario)


def test_a_cursor_that_is_deleted_is_gone_with_its_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(4))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack(positions[:2])
            await cursor.flush()
            ledger_id = cursor.ledger_id
            assert ledger_id in await world.ledgers(host)
            await log.delete_cursor("s")
            await log.delete_cursor("s")
            assert ledger_id not in await world.ledgers(host)
            again = await log.open_cursor("s", initial=EARLIEST)
            assert again.backlog_entries == 4
            log.abandon()
            assert (await host.open()).cursors["s"].backlog_entries == 4

    play(scenario)


def test_two_who_open_one_cursor_have_the_same() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(4))
            host.link.delay_s = 0.01
            opened: list[object] = []

            async def open_one(initial: Position) -> None:
                opened.append(await log.open_cursor("s", initial=initial))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_one, EARLIEST)
                nursery.start_soon(open_one, LATEST)
            assert opened[0] is opened[1]
            backlog = log.cursors["s"].backlog_entries
            log.abandon()
            assert (await host.open()).cursors["s"].backlog_entries == backlog

    play(scenario)


def test_the_pointer_to_a_new_ledger_follows_its_first_whole_snapshot() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack(positions[:2])
            await cursor.flush()
            before = await record_of(host)
            log.abandon()
            log = await host.open()
            cursor = log.cursors["s"]
            for name in ("bookie-1", "bookie-2", "bookie-3"):
                world.network.block("a", name)
            cursor.ack(positions[2:4])
            await trio.sleep(2)
            assert await record_of(host) == before
            for name in ("bookie-1", "bookie-2", "bookie-3"):
                world.network.unblock("a", name)
            world.network.cut("a")
            await cursor.flush()
            after = await record_of(host)
            assert after.cursorsLedgerId not in (-1, before.cursorsLedgerId)
            reader = await host.client.open(after.cursorsLedgerId, recover=False)
            assert not reader.closed
            assert before.cursorsLedgerId not in await world.ledgers(host)

    play(scenario)


def test_a_cursor_goes_over_to_a_new_ledger_after_so_many_records() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, cursor_roll_records=3))
            positions = await append(log, range(20))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            ids: list[int] = []
            for position in positions:
                cursor.ack([position])
                await cursor.flush()
                ids.append(cursor.ledger_id)
            assert len(set(ids)) == 5
            assert ids == sorted(ids)
            left = set(await world.ledgers(host)) - set(await world.ids_of(host))
            assert left == {ids[-1]}
            log.abandon()
            assert (await host.open()).cursors["s"].mark_delete == positions[-1]

    play(scenario)


def test_a_cursor_that_the_store_refuses_for_a_while_is_stored_afterwards() -> None:
    """In simulated seed 4112 one refusal stopped all acknowledgements until the next owner."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(3))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            refused: list[str] = []
            multi = host.store.multi

            async def refuse(operations: Sequence[Operation]) -> list[int]:
                if any(isinstance(each, Set) for each in operations) and len(refused) < 3:
                    refused.append(operations[0].path)
                    raise MetadataError("a test forbids it")
                return await multi(operations)

            host.store.multi = refuse  # type: ignore[method-assign]
            cursor.ack(positions[:2])
            await cursor.flush()
            assert len(refused) == 3
            left = set(await world.ledgers(host)) - set(await world.ids_of(host))
            assert left == {cursor.ledger_id}
            log.abandon()
            assert (await host.open()).cursors["s"].mark_delete == positions[1]

    play(scenario)


def test_a_cursor_whose_ledger_is_fenced_goes_on_if_the_log_is_ours() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack(positions[:1])
            await cursor.flush()
            before = cursor.ledger_id
            await host.client.open(before, recover=True)
            cursor.ack(positions[1:2])
            await cursor.flush()
            assert cursor.ledger_id != before
            log.abandon()
            assert (await host.open()).cursors["s"].mark_delete == positions[1]

    play(scenario)


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_close_that_fails_confirms_no_acks(taken_over: bool) -> None:
    """The close has taken changes out of the state, and nobody has stored them."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, flush_s=1000.0))
            positions = await append(log, range(3))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            multi = host.store.multi
            confirmed: list[bool] = []

            async def refuse(operations: Sequence[Operation]) -> list[int]:
                if any(isinstance(each, Set) for each in operations):
                    nursery.start_soon(flush)
                    await trio.sleep(0.01)
                    if taken_over:
                        raise VersionConflictError("a test has changed the record")
                    raise MetadataError("a test forbids it")
                return await multi(operations)

            async def flush() -> None:
                try:
                    await cursor.flush()
                    confirmed.append(True)
                except ManagedLedgerError:
                    confirmed.append(False)

            host.store.multi = refuse  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                cursor.ack(positions[:2])
                with pytest.raises((ManagedLedgerError, MetadataError)):
                    await log.close()
            # The task of the cursor waited for its turn meanwhile, and has had it by now.
            await trio.sleep(0.01)
            await flush()
            assert confirmed == [False, False]

    play(scenario)


def test_a_flush_that_waits_hears_of_the_end() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(3))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            host.store.suspend()
            heard: list[str] = []

            async def flush() -> None:
                with pytest.raises(FencedError):
                    await cursor.flush()
                heard.append("fenced")

            async with trio.open_nursery() as nursery:
                cursor.ack(positions)
                nursery.start_soon(flush)
                await trio.sleep(1)
                log.abandon()
            assert heard == ["fenced"]
            host.store.resume()
            await trio.sleep(30)
            assert (await record_of(host)).cursorsLedgerId == -1

    play(scenario)


def test_a_cursor_ledger_that_is_lost_falls_back_to_the_record() -> None:
    """After a crash acknowledged messages may be delivered again; none is skipped."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack_cumulative(positions[1])
            await cursor.flush()
            cursor.ack_cumulative(positions[5])
            await cursor.flush()
            log.abandon()
            await host.client.delete(cursor.ledger_id)
            assert (await host.open()).cursors["s"].mark_delete == positions[1]

    play(scenario)


def test_a_cursor_that_makes_no_sense_fails_the_open() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            await log.open_cursor("s", initial=EARLIEST)
            await log.close()
            writer = await host.client.create(CONFIG.quorums)
            writer.append([b"\0\7"])
            await writer.wait_confirmed(0)
            record = await host.store.get(cursor_path(NAME, "s"))
            assert record is not None
            info = ManagedCursorInfo(cursorsLedgerId=writer.ledger_id)
            await host.store.set(
                cursor_path(NAME, "s"), info.SerializeToString(), record.stat.version
            )
            with pytest.raises(LogCorruptError):
                await host.open()

    play(scenario)


def test_a_cursor_as_pulsar_leaves_it_is_read() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack([positions[1], positions[3], positions[4]])
            snapshot = encode_snapshot(positions[0], cursor._state.acked, {"x": 4})
            await log.close()
            writer = await host.client.create(CONFIG.quorums)
            for data in (b"\x08\x01\x10\x01", *snapshot):  # the last one counts
                writer.append([data])
            await writer.wait_confirmed(1)
            await writer.close()
            record = await host.store.get(cursor_path(NAME, "s"))
            assert record is not None
            info = ManagedCursorInfo(cursorsLedgerId=writer.ledger_id)
            await host.store.set(
                cursor_path(NAME, "s"), info.SerializeToString(), record.stat.version
            )
            again = (await host.open()).cursors["s"]
            assert [i for i, p in enumerate(positions) if again.is_acked(p)] == [0, 1, 3, 4]
            assert again.properties == {"x": 4}

    play(scenario)


def test_many_acks_in_a_row_are_few_records() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, roll_entries=1000))
            positions = await append(log, range(60))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            for position in positions:
                cursor.ack([position])
                await trio.sleep(0.01)
            await until(lambda: cursor.stored_mark_delete == positions[-1])
            reader = await host.client.open(cursor.ledger_id, recover=True)
            assert reader.last_add_confirmed + 1 <= 6

    play(scenario)


@pytest.mark.parametrize("closed", [True, False])
def test_properties_are_stored_with_the_reset_that_brings_them(closed: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(8))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack(positions[:2])
            await cursor.flush()
            await cursor.reset(positions[4], {"moved": 7})
            await cursor.reset(positions[3], {"moved": 9, "other": 1})
            cursor.ack([positions[6]])
            await cursor.flush()
            if closed:
                await log.close()
        async with world.host("b") as host:
            cursor = (await host.open()).cursors["s"]
            assert (cursor.mark_delete, cursor.acked_above) == (positions[3], 1)
            assert cursor.properties == {"moved": 9, "other": 1}

    play(scenario)


@pytest.mark.parametrize("formats", [True, False])
@pytest.mark.parametrize("end", ["crash", "close"])
def test_position_and_properties_advance_in_one_record(formats: bool, end: str) -> None:
    """Whenever the owner dies, the properties are those of the position; with old formats, too."""

    async def scenario(world: World) -> None:
        if not formats:
            world.formats.clear()
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(30))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            for index in (2, 5, 9):
                cursor.advance(positions[index], {"last": index, f"only-{index}": 1})
                await cursor.flush()
            cursor.advance(positions[9], {"last": 9, "same-place": 1})
            await cursor.flush()
            for index in range(10, 25):
                cursor.advance(positions[index], {"last": index})
                await trio.sleep(0.3)
            if end == "close":
                await log.close()
            else:
                log.abandon()
        async with world.host("b") as host:
            again = (await host.open()).cursors["s"]
            index = positions.index(again.mark_delete)
            assert again.properties == {"last": index}
            assert index == 24 or (end == "crash" and index > 15)

    play(scenario)


def test_properties_that_change_alone_are_stored() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(3))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.advance(positions[1], {"a": 1})
            await cursor.flush()
            cursor.advance(positions[1], {"b": 2})
            await cursor.flush()
            log.abandon()
            assert (await host.open()).cursors["s"].properties == {"b": 2}

    play(scenario)


@pytest.mark.parametrize("names", [3, 4_000])
def test_a_cursor_whose_ledger_is_lost_has_a_position_with_its_properties(names: int) -> None:
    """The record keeps the old ones of both if the new properties do not fit."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(9))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.advance(positions[1], {"last": 1})
            await cursor.flush()
            many = {f"name-of-a-producer-{n}": n for n in range(names)}
            cursor.advance(positions[5], {**many, "last": 5})
            await cursor.flush()
            await log.close()
            log = await host.open()
            cursor = log.cursors["s"]
            assert cursor.properties["last"] == 5
            cursor.advance(positions[7], {**many, "last": 7})
            await cursor.flush()
            record = await record_of(host)
            assert record.ByteSize() <= 65_536
            stored = {each.name: each.value for each in record.properties}
            at = positions.index(Position(record.markDeleteLedgerId, record.markDeleteEntryId))
            assert stored["last"] == at
            assert at == (7 if names == 3 else 1)
            await host.client.delete(record.cursorsLedgerId)
            log.abandon()
            again = (await host.open()).cursors["s"]
            assert (again.mark_delete, again.properties["last"]) == (positions[at], at)

    play(scenario)


@pytest.mark.parametrize("formats", [True, False])
@pytest.mark.parametrize("end", ["crash", "close"])
def test_acknowledged_messages_of_a_batch_survive(formats: bool, end: str) -> None:
    async def scenario(world: World) -> None:
        if not formats:
            world.formats.clear()
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, cursor_roll_records=1000))
            positions = await append(log, range(8))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack([positions[0]])
            await cursor.flush()
            assert not cursor.ack_part(positions[2], 0b1110)
            await cursor.flush()
            assert not cursor.ack_part(positions[4], 1 << 200)
            assert not cursor.ack_part(positions[5], 0b01)
            await cursor.flush()
            assert cursor.ack_part(positions[5], 0b10)
            cursor.ack([positions[5]])
            await cursor.flush()
            assert not cursor.ack_part(positions[2], 0b0111)
            await cursor.flush()
            if end == "close":
                await log.close()
                record = await record_of(host)
                assert record.cursorsLedgerId >= 0, "Pulsar does not read them in the record"
            else:
                log.abandon()
        async with world.host("b") as host:
            log = await host.open()
            again = log.cursors["s"]
            assert again.mark_delete == positions[0]
            assert [again.pending_of(p) for p in positions] == [
                None, None, 0b0110, None, 1 << 200, None, None, None
            ]  # fmt: skip
            assert again.is_acked(positions[5])
            again.ack_cumulative(positions[3])
            assert again.partly_acked == 1
            await again.flush()
            log.abandon()
            again = (await host.open()).cursors["s"]
            assert (again.partly_acked, again.pending_of(positions[4])) == (1, 1 << 200)

    play(scenario)


def test_a_seek_into_a_batch_is_stored_with_its_pending_messages() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(6))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack_part(positions[1], 0b10)
            await cursor.reset(positions[3], {"moved": 1}, (positions[4], 0b100))
            log.abandon()
            again = (await host.open()).cursors["s"]
            assert again.mark_delete == positions[3]
            assert again.pending_of(positions[1]) is None
            assert again.pending_of(positions[4]) == 0b100

    play(scenario)


def test_parts_of_entries_that_are_not_there_are_ignored() -> None:
    """A client may send any position, and an entry may be appended there later."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(3))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            last = positions[-1]
            assert not cursor.ack_part(Position(last.ledger_id, last.entry_id + 1), 1)
            assert not cursor.ack_part(Position(last.ledger_id + 9, 0), 1)
            assert not cursor.ack_part(Position(last.ledger_id, -1), 1)
            assert cursor.partly_acked == 0

    play(scenario)


def test_pulsar_15390_a_recovery_reads_as_many_records_whatever_the_age_of_the_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cursor of Pulsar took 27 hours.  Here it is one snapshot and the changes behind it."""
    roll, read = 10, [0]
    apply = Recovered.apply

    def counted(recovered: Recovered, record: bytes) -> None:
        read[0] += 1
        apply(recovered, record)

    monkeypatch.setattr(Recovered, "apply", counted)

    async def scenario(world: World) -> None:
        config = replace(CONFIG, roll_entries=1_000, cursor_roll_records=roll)
        async with world.host("a") as host:
            log = await host.open(config)
            await log.open_cursor("s", initial=EARLIEST)
            acked: list[Position] = []
            for age in (10, 40, 160):  # changes, each a record of its own
                positions = await append(log, range(age))
                for position in positions[::2]:  # each leaves a hole
                    log.cursors["s"].ack([position])
                    await log.cursors["s"].flush()
                acked += positions[::2]
                log.abandon()
                read[0] = 0
                log = await host.open(config)
                assert 0 < read[0] <= roll + 1, f"{read[0]} records after {age} entries"
                assert all(log.cursors["s"].is_acked(position) for position in acked)

    play(scenario)
