"""Readers at the end of a log read nothing at bookies; readers that are behind share reads."""

from collections.abc import Sequence

import pytest
import trio

from daybook.bookie.errors import LedgerError, ReadUnknownError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry, LogReader
from tests.managed_ledger.world import World, append, number_of, play

MB = 1 << 20
READERS = 10


async def read_all_at_once(log: ManagedLedger, positions: Sequence[Position]) -> list[list[int]]:
    """Let ten readers read everything from the first position on."""
    found: list[list[int]] = [[] for _ in range(READERS)]

    async def read(mine: list[int]) -> None:
        at = positions[0]
        while at <= positions[-1]:
            got = await log.read(at, max_entries=3, max_bytes=MB)
            mine += [number_of(entry.data) for entry in got]
            at = log.next_position(got[-1].position)

    async with trio.open_nursery() as nursery:
        for mine in found:
            nursery.start_soon(read, mine)
    return found


async def two_cursors(log: ManagedLedger) -> None:
    for name in "ab":
        await log.open_cursor(name, initial=log.before_first)


def test_ten_subscriptions_that_wait_for_the_next_message_read_nothing_at_bookies() -> None:
    """They may have waited for long: each message comes minutes after the one before."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await two_cursors(log)
            for number in range(3):
                log.await_next()
                await trio.sleep(100)
                positions = await append(log, range(number, number + 1))
                assert await read_all_at_once(log, positions) == [[number]] * READERS
            assert host.logs.cache.reads == 0

    play(scenario)


def test_nothing_is_kept_in_memory_for_readers_that_are_not_there() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            assert host.logs.cache.bytes == 0
            log.await_next()
            await append(log, range(1))
            kept = host.logs.cache.bytes
            assert kept
            await trio.sleep(60)
            await append(log, range(3))
            assert host.logs.cache.bytes == kept, "nobody came back for the next entries"

    play(scenario)


def test_ten_subscriptions_that_are_behind_together_cost_the_reads_of_one() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(30))
            await two_cursors(log)
            await read_all_at_once(log, positions[:1])
            assert host.logs.cache.reads == 1
        async with world.host("b") as host:
            log = await host.open()
            assert await read_all_at_once(log, positions) == [list(range(30))] * READERS
            ledgers = {position.ledger_id for position in positions}
            assert host.logs.cache.reads <= len(ledgers) + 1, "one reader alone needs as many"

    play(scenario)


def test_a_shared_read_that_fails_or_is_given_up_leaves_the_others_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch = LogReader._fetch
    begun = trio.Event()

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            (at,) = await append(log, range(1))
            await two_cursors(log)
            got: list[LogEntry] = []

            async def fails(*args: object) -> list[LogEntry]:
                monkeypatch.setattr(LogReader, "_fetch", fetch)
                begun.set()
                await trio.sleep(1)
                raise ReadUnknownError(at.ledger_id, at.entry_id, "its bookies are away")

            async def first() -> None:
                with pytest.raises(LedgerError):
                    await log.read(at, max_entries=1, max_bytes=MB)

            async def second() -> None:
                await begun.wait()
                got.extend(await log.read(at, max_entries=1, max_bytes=MB))

            monkeypatch.setattr(LogReader, "_fetch", fails)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                nursery.start_soon(second)
            assert [number_of(entry.data) for entry in got] == [0]
            assert not log._reader._under_way

    play(scenario)
