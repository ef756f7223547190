"""How much lies behind a position: entries, messages and bytes, counted or estimated."""

from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.offsets import offset_before
from daybook.managed_ledger.position import Position
from tests.managed_ledger.world import World, append, play


def all_positions(log: ManagedLedger) -> list[Position]:
    found = [log.before_first]
    while found[-1] < log.last_confirmed:
        found.append(log.next_position(found[-1]))
    return found


async def check(log: ManagedLedger, messages: int) -> None:
    """The numbers agree with the entries that are read, if they are said to be exact."""
    positions = all_positions(log)
    for index, position in enumerate(positions):
        found = log.behind(position)
        entries = len(positions) - 1 - index
        assert found.entries == entries
        truth = log.confirmed_offset - await offset_before(log, position)
        assert truth == entries * messages
        assert found.messages == truth
        assert 0 <= found.bytes <= log.size_bytes
    assert log.behind(positions[0]).bytes == log.size_bytes
    assert log.behind(positions[-1]).bytes == 0


def test_of_equal_batches_the_estimate_is_the_count() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(23), messages=7)
            assert len(log.ledgers.ids) >= 4
            await check(log, 7)
            assert log.behind(log.before_first).exact
            assert log.behind(log.ledgers.sealed[1].last).exact
            assert not log.behind(log.next_position(log.before_first)).exact

    play(scenario)


def test_messages_one_by_one_are_counted_exactly_also_by_the_next_owner() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            await append(await host.open(), range(17))
        async with world.host("b") as host:
            log = await host.open()
            await append(log, range(17, 23))
            await check(log, 1)
            for position in all_positions(log)[log.ledgers.sealed[0].entries :]:
                assert log.behind(position).exact

    play(scenario)


def test_unequal_batches_are_estimated_between_the_ends_of_their_ledger() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            for number in range(23):
                await append(log, range(number, number + 1), messages=1 + 9 * (number % 2))
            last = -1
            for row in log.ledgers.sealed:
                assert row.last_offset is not None
                assert log.behind(row.last).messages == log.confirmed_offset - row.last_offset
                for entry_id in range(row.entries):
                    found = log.behind(Position(row.ledger_id, entry_id)).messages
                    assert log.confirmed_offset - row.last_offset <= found
                    assert found <= log.confirmed_offset - last
                last = row.last_offset
            truth = log.confirmed_offset - await offset_before(log, log.before_first)
            assert truth == sum(1 + 9 * (number % 2) for number in range(23))

    play(scenario)
