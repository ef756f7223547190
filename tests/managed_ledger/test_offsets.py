"""Offsets are exact, and never start again."""

from dataclasses import replace
from itertools import pairwise

import pytest

from daybook.managed_ledger.errors import LogCorruptError, ManagedLedgerError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.offsets import (
    facts_at,
    position_of_offset,
    position_of_time,
    retained_offsets,
    sealed_offsets,
)
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import custom_metadata, log_path
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from tests.managed_ledger.world import (
    CONFIG,
    NAME,
    NOW,
    World,
    append,
    message,
    number_of,
    play,
    read_all,
)


@pytest.mark.parametrize("messages", [1, 3])
def test_every_offset_and_every_time_has_its_position(messages: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(10, 33), messages=messages)
            for again in range(2):
                end = log.next_position(log.last_confirmed)
                count = 23 * messages
                assert await retained_offsets(log) == (0, count)
                for offset in range(-1, count):
                    found = await position_of_offset(log, offset)
                    assert found == positions[max(0, offset) // messages]
                assert await position_of_offset(log, count) == end
                for number in range(8, 33):
                    assert await position_of_time(log, number) == positions[max(0, number - 10)]
                assert await position_of_time(log, 33) == end
                facts = await facts_at(log, positions[4])
                assert (facts.first_offset, facts.last_offset) == (
                    4 * messages,
                    5 * messages - 1,
                )
                if not again:
                    await log.close()
                    log = await host.open()

    play(scenario)


def test_an_empty_log() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            assert await retained_offsets(log) == (0, 0)
            begin = Position(log.current_ledger_id, 0)
            assert await position_of_offset(log, 0) == begin
            assert await position_of_offset(log, -5) == begin
            assert await position_of_time(log, 0) == begin
            with pytest.raises(ManagedLedgerError):
                await facts_at(log, begin)

    play(scenario)


def test_offsets_go_on_when_everything_was_trimmed() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=NOW))
            await append(log, range(10))
            await log.close()
            for _ in range(3):
                log = await host.open(replace(CONFIG, retention=NOW))
                await log.trim()
                assert await read_all(log) == []
                assert await retained_offsets(log) == (10, 10)
                assert log.next_offset == 10
                log.abandon()
            log = await host.open(replace(CONFIG, retention=NOW))
            (position,) = await append(log, range(10, 11))
            assert await position_of_offset(log, 3) == position
            assert (await facts_at(log, position)).last_offset == 10

    play(scenario)


async def pulsar_log(world: World, entries: list[list[int]]) -> None:
    """Make a log as a Pulsar broker without an index leaves it; a number of messages per entry."""
    async with world.host("pulsar") as host:
        info = ManagedLedgerInfo()
        number = 0
        for ledger in entries:
            writer = await host.client.create(CONFIG.quorums, custom=custom_metadata(NAME))
            for messages in ledger:
                writer.append(message(number, messages))
                number += 1
            await writer.wait_confirmed(len(ledger) - 1)
            if ledger is not entries[-1]:
                await writer.close()
                info.ledgerInfo.add(
                    ledgerId=writer.ledger_id,
                    entries=len(ledger),
                    size=writer.length,
                    timestamp=1_700_000_000_000,
                )
            else:
                info.ledgerInfo.add(ledgerId=writer.ledger_id, timestamp=0)
                writer.abandon()
        await host.store.create(log_path(NAME), info.SerializeToString(), make_parents=True)


def test_entries_that_a_pulsar_broker_did_not_number_are_counted() -> None:
    async def scenario(world: World) -> None:
        shape = [[1, 1, 5], [2], [3, 3, 3], [10, 1]]
        await pulsar_log(world, shape)
        async with world.host("a") as host:
            for again in range(2):
                log = await host.open()
                assert log.next_offset == 29 + again
                first, offset, number = log.before_first, 0, 0
                for ledger in shape:
                    for messages in ledger:
                        position = log.next_position(first)
                        for inner in range(offset, offset + messages):
                            assert await position_of_offset(log, inner) == position
                        found = await facts_at(log, position)
                        assert (found.first_offset, found.messages) == (offset, messages)
                        (entry,) = await log.read(position, max_entries=1, max_bytes=1)
                        assert number_of(entry.data) == number
                        first, offset, number = position, offset + messages, number + 1
                assert await retained_offsets(log) == (0, 29 + again)
                (ours,) = await append(log, range(100 + again, 101 + again))
                assert await position_of_offset(log, 29 + again) == ours
                log.abandon()

    play(scenario)


@pytest.mark.parametrize("messages", [1, 3])
def test_sealed_ledgers_are_told_with_their_offsets(messages: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            assert await sealed_offsets(log) == []
            await append(log, range(13), messages=messages)
            for again in range(2):
                found = await sealed_offsets(log)
                assert [each.ledger for each in found] == [
                    e for e in log.ledgers.sealed if e.entries
                ]
                assert found[0].first == 0
                for before, after in pairwise(found):
                    assert before.next == after.first
                for each in found:
                    assert each.next - each.first == each.ledger.entries * messages
                    begin = Position(each.ledger.ledger_id, 0)
                    assert await position_of_offset(log, each.first) == begin
                    assert await position_of_offset(log, each.next - 1) == each.ledger.last
                # The messages of the ledger that is open are in none of them.
                assert found[-1].next <= await offset_of_first_open(log)
                if not again:
                    await log.close()
                    log = await host.open()

    play(scenario)


async def offset_of_first_open(log: ManagedLedger) -> int:
    begin = Position(log.current_ledger_id, 0)
    if begin > log.last_confirmed:
        return log.next_offset
    return (await facts_at(log, begin)).first_offset


def test_a_trimmed_ledger_is_not_among_the_sealed_ones() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(13))
            cursor = await log.open_cursor("c", initial=log.before_first)
            before = await sealed_offsets(log)
            cursor.ack_cumulative(before[0].ledger.last)
            await cursor.flush()
            log.config = replace(CONFIG, retention=NOW)
            await log.trim()
            after = await sealed_offsets(log)
            assert after == before[1:]
            assert after
            first, _ = await retained_offsets(log)
            assert all(each.first >= first for each in after)

    play(scenario)


def test_sealed_ledgers_that_a_pulsar_broker_did_not_number_have_counted_offsets() -> None:
    async def scenario(world: World) -> None:
        await pulsar_log(world, [[1, 1, 5], [2], [3, 3, 3], [10, 1]])
        async with world.host("a") as host:
            log = await host.open()
            found = await sealed_offsets(log)
            assert [(e.first, e.next) for e in found] == [(0, 7), (7, 9), (9, 18), (18, 29)]

    play(scenario)


def test_an_entry_that_is_no_message_is_corrupt() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await log.close()
            writer = await host.client.create(CONFIG.quorums)
            writer.append([b"nonsense"])
            await writer.wait_confirmed(0)
            info = ManagedLedgerInfo()
            info.ledgerInfo.add(ledgerId=writer.ledger_id)
            record = await host.store.get(log_path(NAME))
            assert record is not None
            value = info.SerializeToString()
            await host.store.set(log_path(NAME), value, record.stat.version)
            with pytest.raises(LogCorruptError):
                await host.open()

    play(scenario)
