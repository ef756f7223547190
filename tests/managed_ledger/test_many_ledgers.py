"""The cost of thousands of ledgers, and of many cursors."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import trio

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor_ledger import add_ranges
from daybook.managed_ledger.ledger_list import LedgerList, sealed_ledger, unrecorded
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.trim import Retention, SealedLedger, trimmable
from daybook.managed_ledger.records import log_path, nested
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo, MessageRange
from tests.managed_ledger.test_ledger_list import nothing
from tests.managed_ledger.world import CONFIG, NAME, NOW, World, append, play, read_all

MANY = 20_000


@contextmanager
def cheap(cpu_s: float = 10.0) -> Generator[None]:
    """A linear algorithm takes some tens of milliseconds, a quadratic one minutes."""
    started_s = time.process_time()
    yield
    assert time.process_time() - started_s < cpu_s


def long_list(count: int) -> ManagedLedgerInfo:
    """Return a list of closed ledgers 0 to count - 1, of ten entries each."""
    info = ManagedLedgerInfo()
    for ledger_id in range(count):
        info.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=1000)
    return info


def test_a_list_is_taken_over_in_linear_time() -> None:
    info = long_list(MANY)
    with cheap():
        ledgers = LedgerList(nothing(), "it", info, 0)
        for ledger in info.ledgerInfo:
            ledgers.seal(sealed_ledger(ledger, 5))
        for row in list(ledgers.sealed):
            ledgers.learn(replace(row, last_offset=row.ledger_id))
        assert len(unrecorded(ledgers)) == MANY
    assert ledgers.entries_between(EARLIEST, Position(MANY - 1, 9)) == 10 * MANY


def test_what_the_list_says_already_is_no_news() -> None:
    info = long_list(5)
    info.ledgerInfo[3].ClearField("entries")
    ledgers = LedgerList(nothing(), "it", info, 0)
    for ledger in info.ledgerInfo:
        ledgers.seal(sealed_ledger(ledger, 5))
    assert [row.ledger_id for row in unrecorded(ledgers)] == [3]
    ledgers.learn(replace(ledgers.sealed[1], last_offset=7))
    ledgers.learn(replace(ledgers.sealed[2], ledger_id=77))  # trimmed meanwhile
    assert [row.ledger_id for row in unrecorded(ledgers)] == [1, 3]


def test_going_back_from_the_end_does_not_walk_the_whole_list() -> None:
    info = long_list(MANY)
    ledgers = LedgerList(nothing(), "it", info, 0)
    for ledger in info.ledgerInfo:
        ledgers.seal(sealed_ledger(ledger, 5))
    with cheap():
        for _ in range(MANY):
            at = Position(MANY - 1, 0)
            assert ledgers.previous_position(at) == ledgers.floor(Position(MANY - 2, 99))
            assert ledgers.next_position(ledgers.previous_position(at)) == at


def test_many_ledgers_and_many_cursors_are_looked_through_once() -> None:
    sealed = [SealedLedger(ledger_id, 10, 1000, 0) for ledger_id in range(MANY)]
    held = [Position(ledger_id, 9) for ledger_id in range(MANY // 2, MANY)]
    with cheap():
        assert len(trimmable(sealed, held, Retention(0), 1)) == MANY // 2 + 1


def test_ranges_over_many_ledgers_are_read_in_linear_time() -> None:
    lengths = dict.fromkeys(range(MANY), 10)
    ranges = [
        MessageRange(
            lowerEndpoint=nested(Position(ledger_id, 4)),
            upperEndpoint=nested(Position(ledger_id + 1, 2)),
        )
        for ledger_id in range(MANY - 1)
    ]
    acked = AckSet()
    with cheap():
        add_ranges(acked, ranges, lengths)
    assert len(acked) == 8 * (MANY - 1)


def test_a_log_of_thousands_of_ledgers_opens_and_is_trimmed() -> None:
    """Opening looks only at the last two ledgers; one write of the list drops all."""

    async def scenario(world: World) -> None:
        count = 3000
        async with world.host("a") as host:
            world.metadata.tree._nodes["/ledgers/idgen"].children_created = count
            log = await host.open()
            await append(log, range(7))
            await log.close()
            path = log_path(NAME)
            record = await host.store.get(path)
            assert record is not None
            info = ManagedLedgerInfo.FromString(record.value)
            ours = list(info.ledgerInfo)
            del info.ledgerInfo[:]
            info.ledgerInfo.extend(long_list(count).ledgerInfo)
            info.ledgerInfo.extend(ours)
            await host.store.set(path, info.SerializeToString(), record.stat.version)
            with cheap(20.0):
                log = await host.open(replace(CONFIG, retention=NOW))
                before = log.ledgers.version
                gone = await log.trim()
                assert len(gone) == count + len(ours)
                assert log.ledgers.version == before + 1
            assert await read_all(log) == []
            await trio.sleep(5)
            assert set(await world.ledgers(host)) == set(await world.ids_of(host))

    play(scenario)


def test_a_log_of_hundreds_of_cursors_is_closed_and_opened() -> None:
    async def scenario(world: World) -> None:
        count = 300
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(7))
            for number in range(count):
                cursor = await log.open_cursor(f"s{number}", initial=EARLIEST)
                cursor.ack([positions[number % 7]])
            host.link.delay_s = 0.002
            started_s = trio.current_time()
            await log.close()
            log = await host.open()
            assert trio.current_time() - started_s < 10.0
            for number in range(count):
                cursor = log.cursors[f"s{number}"]
                assert [p for p in positions if cursor.is_acked(p)] == [positions[number % 7]]

    play(scenario)
