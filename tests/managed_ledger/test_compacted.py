"""Compacted ledgers: their format, their owner, and their removal when nothing names them."""

from typing import cast

import pytest
import trio

from daybook.bookie.errors import NoSuchLedgerError, ReadUnknownError
from daybook.bookie.ledger.reader import LedgerReader
from daybook.managed_ledger.compacted import (
    CURSOR,
    LEDGER,
    BadCompactedEntryError,
    CompactedReader,
    create_compacted,
    decode_entry,
    delete_compacted,
    encode_head,
    open_compacted,
)
from daybook.managed_ledger.errors import EntryTooLargeError, LogCorruptError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import compacted_metadata
from daybook.wire.digest import DigestType
from daybook.wire.entry import Entry
from daybook.wire.metadata.store import StoreUnavailableError
from daybook.wire.proto import pulsar_pb2 as pb
from tests.managed_ledger.world import CONFIG, NAME, TREE, Host, World, append, message, play, until

TOPIC = "persistent://t/n/a"
# idSize, MessageIdData(ledgerId=7, entryId=2, partition=-1), size, entry: as RawMessageImpl writes.
GOLDEN = (
    bytes.fromhex("0000000f" + "0807" + "1002" + "18ffffffffffffffffff01" + "00000003") + b"abc"
)


def test_an_entry_is_stored_as_pulsars_brokers_store_it() -> None:
    assert encode_head(Position(7, 2), -1, 3) + b"abc" == GOLDEN
    entry = decode_entry(1, 0, memoryview(GOLDEN))
    assert entry.position == Position(7, 2)
    assert bytes(entry.data) == b"abc"


@pytest.mark.parametrize("size", range(len(GOLDEN)))
def test_an_entry_that_is_cut_off_is_an_error(size: int) -> None:
    with pytest.raises(BadCompactedEntryError):
        decode_entry(1, 0, memoryview(GOLDEN[:size]))


def test_an_entry_with_more_behind_it_is_an_error() -> None:
    with pytest.raises(BadCompactedEntryError):
        decode_entry(1, 0, memoryview(GOLDEN + b"x"))


class _Away:
    """A ledger whose copies have moved, while the metadata store is away."""

    ledger_id, last_add_confirmed = 7, 0

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        raise StoreUnavailableError("the session was lost")


async def test_a_read_without_metadata_is_one_that_may_work_later() -> None:
    reader = CompactedReader(cast("LedgerReader", _Away()))
    with pytest.raises(ReadUnknownError, match="no metadata"):
        await reader.read(0, max_entries=1, max_bytes=1)


async def write(log: ManagedLedger, *positions: Position, close: bool = True) -> int:
    writer = await create_compacted(log, log.last_confirmed)
    for position in positions:
        writer.append(position, f"entry {position}".encode())
    await writer.wait_confirmed()
    if close:
        await writer.close()
    else:
        writer.abandon()
    return writer.ledger_id


async def contents(reader: CompactedReader) -> dict[Position, bytes]:
    found: dict[Position, bytes] = {}
    entry_id = 0
    while entries := await reader.read(entry_id, max_entries=2, max_bytes=1 << 20):
        found |= {entry.position: bytes(entry.data) for entry in entries}
        entry_id += len(entries)
    return found


def test_what_is_written_is_read_with_original_positions() -> None:
    async def scenario(world: World) -> None:
        async with world.host("one") as host:
            log = await host.logs.open(NAME, CONFIG)
            positions = [Position(1, 3), Position(1, 4), Position(5, 0)]
            ledger_id = await write(log, *positions)
            reader = await open_compacted(log, ledger_id)
            assert await contents(reader) == {p: f"entry {p}".encode() for p in positions}
            metadata = await host.client.metadata(ledger_id)
            assert metadata.digest_type is DigestType.CRC32
            horizon = log.last_confirmed
            to = pb.MessageIdData(
                ledgerId=horizon.ledger_id, entryId=horizon.entry_id & (2**64 - 1), partition=-1
            )
            assert metadata.custom == compacted_metadata(TOPIC, to.SerializeToString(), TREE)
            assert metadata.custom["component"] == b"compacted-ledger"

    play(scenario)


def test_a_ledger_that_names_another_topic_is_neither_read_nor_deleted() -> None:
    async def scenario(world: World) -> None:
        async with world.host("one") as host:
            log = await host.logs.open(NAME, CONFIG)
            other = await host.logs.open("t/n/persistent/b", CONFIG)
            theirs = await write(other, Position(1, 0))
            for ledger_id in (theirs, log.current_ledger_id):
                with pytest.raises(LogCorruptError):
                    await open_compacted(log, ledger_id)
                assert not await delete_compacted(log.context, NAME, ledger_id)
            assert await contents(await open_compacted(other, theirs))

    play(scenario)


async def publish(log: ManagedLedger, ledger_id: int) -> None:
    cursor = await log.open_cursor(CURSOR, initial=log.before_first)
    cursor.advance(log.last_confirmed, {LEDGER: ledger_id})
    await cursor.flush()


async def reopened(host: Host, log: ManagedLedger) -> ManagedLedger:
    log.abandon()
    return await host.logs.open(NAME, CONFIG)


def test_the_next_owner_finds_horizon_and_ledger_in_the_cursor() -> None:
    async def scenario(world: World) -> None:
        async with world.host("one") as host:
            log = await host.logs.open(NAME, CONFIG)
            positions = await append(log, range(7))
            ledger_id = await write(log, positions[3])
            await publish(log, ledger_id)
            log = await reopened(host, log)
            cursor = log.cursors[CURSOR]
            assert cursor.mark_delete == positions[-1]
            assert cursor.properties[LEDGER] == ledger_id
            assert await contents(await open_compacted(log, ledger_id))

    play(scenario)


def test_a_compacted_ledger_is_an_orphan_when_a_later_owner_does_not_name_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("one") as host:
            log = await host.logs.open(NAME, CONFIG)
            await append(log, range(3))
            named = await write(log, Position(1, 0))
            lost = await write(log, Position(1, 0), close=False)
            await publish(log, named)
            # Its own run may still publish a ledger of the present owner.
            assert await host.logs.remove_orphans() == []
            log = await reopened(host, log)
            assert list(await host.logs.remove_orphans()) == [lost]
            assert await contents(await open_compacted(log, named))

    play(scenario)


def test_a_ledger_stays_while_the_record_that_replaces_it_is_not_durable() -> None:
    async def scenario(world: World) -> None:
        async with world.host("one") as host:
            log = await host.logs.open(NAME, CONFIG)
            await append(log, range(3))
            named = await write(log, Position(1, 0))
            await publish(log, named)
            log = await reopened(host, log)
            cursor = log.cursors[CURSOR]
            cursor.advance(cursor.mark_delete, {LEDGER: 10**6})  # not flushed
            assert not cursor.is_stored
            assert await host.logs.remove_orphans() == []
            log = await reopened(host, log)  # as after a crash
            assert log.cursors[CURSOR].properties[LEDGER] == named
            assert await contents(await open_compacted(log, named))

    play(scenario)


def test_the_compacted_ledger_of_a_deleted_log_is_an_orphan() -> None:
    async def scenario(world: World) -> None:
        async with world.host("one") as host:
            log = await host.logs.open(NAME, CONFIG)
            ledger_id = await write(log, Position(1, 0))
            await publish(log, ledger_id)
            await host.logs.delete(log)
            assert await host.logs.remove_orphans(of_gone_logs=True) == []
            assert ledger_id in await host.logs.remove_orphans(of_gone_logs=True)
            with pytest.raises(NoSuchLedgerError):
                await host.client.metadata(ledger_id)

    play(scenario)


def test_a_cursor_is_created_with_its_numbers_in_one_record() -> None:
    async def scenario(world: World) -> None:
        async with world.host("one") as host:
            log = await host.logs.open(NAME, CONFIG)
            await log.open_cursor("s", initial=log.before_first, numbers={"n": 1})
            log = await reopened(host, log)
            assert log.cursors["s"].properties == {"n": 1}

    play(scenario)


def test_the_largest_entry_that_the_log_takes_fits_into_a_compacted_ledger() -> None:
    """Once, the compaction of a topic with such an entry failed each time."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            (position,) = await append(log, range(1))
            overhead = log.traffic.take().bytes - sum(map(len, message(0)))
            told: list[tuple[Position | None, Exception | None]] = []
            for more in (0, 1):
                payload = [b"x" * (log.entry_bytes_max - overhead + more)]
                log.append(payload, 1, lambda *outcome: told.append(outcome))
            await until(lambda: len(told) == 2)
            (_, refused), (largest, _) = told
            assert isinstance(refused, EntryTooLargeError)
            assert largest is not None
            entry = (await log.read(largest, max_entries=1, max_bytes=1))[0]
            assert len(entry.data) == log.entry_bytes_max
            writer = await create_compacted(log, log.last_confirmed)
            assert writer.fits(entry.data)
            assert not writer.fits(bytes(entry.data) + bytes(9))
            writer.append(position, b"small")
            writer.append(Position((1 << 63) - 1, (1 << 40) - 1), entry.data)
            await writer.close()
            reader = await open_compacted(log, writer.ledger_id)
            found = await reader.read(0, max_entries=9, max_bytes=1 << 30)
            assert [len(each.data) for each in found] == [5, log.entry_bytes_max]

    play(scenario)
