"""An entry that cannot be read now is an error, and never a gap; it is read later."""

from dataclasses import replace

import pytest
import trio

from daybook.bookie.errors import LedgerError, ReadUnknownError
from daybook.bookie.ledger.reader import LedgerReader
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.wire.entry import Entry
from tests.managed_ledger.world import (
    BOOKIES,
    CONFIG,
    NOW,
    World,
    append,
    number_of,
    play,
    read_all,
    send,
    settle,
    until,
)

MB = 1 << 20


@pytest.mark.parametrize("away", ["bookies", "store"])
@pytest.mark.parametrize("where", ["an old ledger", "the present one"])
def test_what_cannot_be_read_now_is_not_skipped(away: str, where: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(14))
            at = positions[1 if where == "an old ledger" else 13]
            if away == "bookies":
                for name in BOOKIES:
                    world.network.block("a", name)
            else:
                host.store.suspend()
            if away == "store" and where == "the present one":
                (found,) = await log.read(at, max_entries=1, max_bytes=MB)
                assert number_of(found.data) == 13
            else:
                with pytest.raises(ReadUnknownError):
                    await log.read(at, max_entries=1, max_bytes=MB)
            for name in BOOKIES:
                world.network.unblock("a", name)
            world.network.cut("a")
            host.store.resume()
            await until(lambda: len(host.client.directory.usable()) == 3)
            (found,) = await log.read(at, max_entries=1, max_bytes=MB)
            assert found.position == at
            assert await read_all(log) == list(range(14))

    play(scenario)


def test_one_entry_that_cannot_be_read_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry behind it could be read."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(14))
            read = LedgerReader.read

            async def damaged(
                reader: LedgerReader, first: int, last: int, *, max_bytes: int
            ) -> list[Entry]:
                if first == 2:
                    raise ReadUnknownError(reader.ledger_id, first, "a test says so")
                return await read(reader, first, min(last, 1), max_bytes=max_bytes)

            monkeypatch.setattr(LedgerReader, "read", damaged)
            assert len(await log.read(positions[0], max_entries=9, max_bytes=MB)) == 2
            for _ in range(2):
                with pytest.raises(ReadUnknownError):
                    await log.read(positions[2], max_entries=9, max_bytes=MB)
            monkeypatch.undo()
            assert await read_all(log) == list(range(14))

    play(scenario)


@pytest.mark.parametrize("away", ["bookies", "store"])
def test_reading_ahead_of_demand_fails_in_silence(away: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(14))
            first = [p for p in positions if p.ledger_id == positions[0].ledger_id]
            for position in first[:-1]:
                await log.read(position, max_entries=1, max_bytes=MB)
            if away == "bookies":
                for name in BOOKIES:
                    world.network.block("a", name)
            else:
                host.store.suspend()
            await log.read(first[-1], max_entries=1, max_bytes=MB)  # and the next one behind it
            await trio.sleep(100)
            for name in BOOKIES:
                world.network.unblock("a", name)
            world.network.cut("a")
            host.store.resume()
            assert log.usable
            assert await read_all(log) == list(range(14))

    play(scenario)


def test_who_waits_for_what_is_trimmed_meanwhile_goes_on_behind_it() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=NOW))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(14))
            for position in positions[:2]:
                for name in BOOKIES:
                    world.network.unblock("a", name)
                world.network.cut("a")
                await log.read(position, max_entries=1, max_bytes=MB)
                for name in BOOKIES:
                    world.network.block("a", name)
            found: list[int] = []

            async def read() -> None:
                while True:
                    try:
                        entries = await log.read(positions[2], max_entries=1, max_bytes=MB)
                        break
                    except LedgerError:
                        await trio.sleep(1)
                found.extend(number_of(entry.data) for entry in entries)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.sleep(0.01)
                cursor.ack(positions[:12])
                nursery.start_soon(cursor.flush)
                for name in BOOKIES:
                    world.network.unblock("a", name)
                world.network.cut("a")
                await until(lambda: cursor.stored_mark_delete == positions[11])
                await log.trim()
            assert found in ([2], [12])
            assert log.before_first == Position(positions[12].ledger_id, -1)

    play(scenario)


def test_a_ledger_is_read_to_its_end_through_each_step_of_its_closing() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, roll_entries=50))
            host.logs.cache.bytes_max = 0
            sent = await settle(send(log, range(9)))
            first = sent.positions[0].ledger_id
            seen: dict[str, list[int]] = {}
            host.link.delay_s = 0.05
            log.roll()
            while log.state.name != "OPEN" or log.current_ledger_id == first:
                state = log.state.name
                seen[state] = await read_all(log, sent.positions[0])
                await trio.sleep(0.01)
            host.link.delay_s = 0
            seen["OPEN"] = await read_all(log)
            assert seen.keys() >= {"ROLLING", "SEALING", "OPEN"}
            assert all(numbers == list(range(9)) for numbers in seen.values()), seen

    play(scenario)
