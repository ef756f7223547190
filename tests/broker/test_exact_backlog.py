"""The backlog of a subscription equals a full count, whatever has happened, over real ledgers."""

from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
import trio

from daybook.broker.dispatch.backlog import Backlog, BacklogSize
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.offsets import start_of
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.holes import pending_messages
from daybook.managed_ledger.records import cursor_path
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo
from daybook.managed_ledger.recount import recount
from daybook.wire.batch import count_messages
from tests.managed_ledger.world import (
    CONFIG,
    NAME,
    NOW,
    Host,
    Sent,
    World,
    append,
    message,
    play,
    settle,
    until,
)


class StubTopic:
    """The part of a topic that a backlog uses."""

    def __init__(self, log: ManagedLedger, world: World) -> None:
        self.log = log
        self._world = world
        self.entries_read = 0

    async def entry_start(self, position: Position) -> Any:
        self.entries_read += 1
        return await start_of(self.log, position)

    async def recount(self, cursor: Cursor) -> None:
        await recount(self.log, cursor)

    def start_task(self, task: Any, *args: object) -> None:
        self._world.nursery.start_soon(task, *args)


async def append_batches(log: ManagedLedger, first: int, count: int) -> None:
    for number in range(first, first + count):
        await append_one(log, number)


async def append_one(log: ManagedLedger, number: int) -> None:
    sent, messages = Sent(sent=1), 1 + number % 4

    def done(position: Position | None, error: Exception | None) -> None:
        assert position is not None, error
        sent.acked.append(number)

    log.append(message(number, messages, size=37 * (number % 5)), messages, done)
    await settle(sent)


async def full_count(log: ManagedLedger, cursor: Cursor) -> BacklogSize:
    """Count by reading everything."""
    messages = entries = size = 0
    oldest: int | None = None
    at = log.next_position(log.before_first)
    while found := await log.read(at, max_entries=100, max_bytes=1 << 20):
        for entry in found:
            if cursor.is_acked(entry.position):
                continue
            start = await start_of(log, entry.position)
            assert start is not None
            oldest = start.publish_ms if oldest is None else oldest
            pending = cursor.pending_of(entry.position)
            messages += pending_messages(pending, count_messages(entry.data))
            entries += 1
            size += len(entry.data)
        at = log.next_position(found[-1].position)
    return BacklogSize(messages, entries, size, True, True, oldest)


def positions_of(log: ManagedLedger) -> list[Position]:
    found: list[Position] = []
    at = log.next_position(log.before_first)
    while at <= log.last_confirmed:
        found.append(at)
        at = log.next_position(at)
    return found


async def deliver(log: ManagedLedger, rng: Random) -> None:
    """Note the sizes of some entries, as the dispatcher does."""
    positions = positions_of(log)
    if positions:
        found = await log.read(rng.choice(positions), max_entries=10, max_bytes=1 << 20)
        first = found[0].position
        counts = [count_messages(entry.data) for entry in found]
        log.sizes.note(first.ledger_id, first.entry_id, counts, [len(e.data) for e in found])


async def step(log: ManagedLedger, cursor: Cursor, rng: Random, number: int) -> int:
    positions = positions_of(log)
    some = rng.choice(positions) if positions else log.last_confirmed
    match rng.randrange(9):
        case 0 | 1:
            count = rng.randrange(1, 6)
            await append_batches(log, number, count)
            return number + count
        case 2 | 3:
            cursor.ack(rng.sample(positions, min(len(positions), rng.randrange(1, 6))))
        case 4:
            start = await start_of(log, some) if positions else None
            if start is not None:
                pending = rng.randrange(1 << start.messages)
                if cursor.ack_part(some, pending):
                    cursor.ack([some])
        case 5 if rng.random() < 0.4:
            cursor.ack_cumulative(some)
        case 6 if rng.random() < 0.3:
            await cursor.reset(log.previous_position(some))
        case 7:
            await deliver(log, rng)
        case _:
            await log.trim()
    return number


@pytest.mark.parametrize("seed", range(6))
def test_pulsar_5543_the_backlog_equals_a_full_count(seed: int) -> None:
    """Seeks, cumulative, individual and partial acks, takeovers, crashes and trims, mixed."""
    rng = Random(seed)

    async def scenario(world: World) -> None:
        number = 0
        for life in range(4):
            async with world.host(f"host-{life}") as host:
                log = await host.open(replace(CONFIG, retention=NOW))
                cursor = await log.open_cursor("sub", initial=log.before_first)
                backlog = Backlog(cast("Any", StubTopic(log, world)), cursor)
                for _ in range(25):
                    number = await step(log, cursor, rng, number)
                    if rng.random() < 0.3:
                        await backlog.read()
                        assert backlog.size() == await full_count(log, cursor)
                await backlog.read()
                assert backlog.size() == await full_count(log, cursor)
                if rng.random() < 0.5:
                    await cursor.flush()
                    log.abandon()  # A crash: the records of the cursor's ledger are all there is.
                else:
                    await log.close()

    play(scenario)


async def with_holes(host: Host, entries: int = 40) -> tuple[ManagedLedger, Cursor]:
    log = await host.open(replace(CONFIG, roll_entries=1_000))
    cursor = await log.open_cursor("sub", initial=log.before_first)
    await append_batches(log, 0, entries)
    return log, cursor


@pytest.mark.parametrize("clean", [True, False])
def test_the_next_owner_knows_the_backlog_without_reading_holes(clean: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log, cursor = await with_holes(host)
            for _ in range(4):
                await deliver_all(log)
            cursor.ack(positions_of(log)[1:30:2])
            assert not cursor.uncounted
            truth = await full_count(log, cursor)
            await cursor.flush()
            if clean:
                await log.close()
            else:
                log.abandon()
        async with world.host("b") as host:
            log = await host.open()
            cursor = log.cursors["sub"]
            topic = StubTopic(log, world)
            backlog = Backlog(cast("Any", topic), cursor)
            assert not cursor.uncounted
            await backlog.read()
            assert backlog.size() == truth
            assert topic.entries_read == 2

    play(scenario)


async def deliver_all(log: ManagedLedger) -> None:
    for position in positions_of(log):
        found = await log.read(position, max_entries=1, max_bytes=1)
        size = [count_messages(found[0].data)], [len(found[0].data)]
        log.sizes.note(position.ledger_id, position.entry_id, *size)


def test_if_pulsar_wrote_last_the_holes_are_counted_again() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log, cursor = await with_holes(host)
            await deliver_all(log)
            cursor.ack(positions_of(log)[1:30:2])
            truth = await full_count(log, cursor)
            await log.close()
            # Pulsar writes the state without what it does not know.
            path = cursor_path(NAME, "sub")
            record = await host.store.get(path)
            assert record is not None
            info = ManagedCursorInfo.FromString(record.value)
            assert info.holes
            info.ClearField("holes")
            await host.store.set(path, info.SerializeToString(), record.stat.version)
        async with world.host("b") as host:
            log = await host.open()
            cursor = log.cursors["sub"]
            backlog = Backlog(cast("Any", StubTopic(log, world)), cursor)
            assert len(cursor.uncounted) == 15
            before = backlog.size()
            assert (before.entries, before.exact, before.bytes_exact) == (25, False, False)
            await backlog.read()
            assert backlog.size() == truth

    play(scenario)


def test_a_long_run_is_counted_by_its_ends() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log, cursor = await with_holes(host, 600)
            cursor.ack([log.last_confirmed])  # far ahead, and nothing was delivered here
            assert len(cursor.uncounted) == 599
            reads = world_reads(log)
            backlog = Backlog(cast("Any", StubTopic(log, world)), cursor)
            await backlog.read()
            assert backlog.size() == await full_count(log, cursor)
            assert reads == []

    def world_reads(log: ManagedLedger) -> list[Position]:
        """Return a list of the reads that come, but not of single entries with their header."""
        reads: list[Position] = []
        read = log.read

        async def noted(start: Position, **options: Any) -> Any:
            if options["max_entries"] == 256:
                reads.append(start)
            return await read(start, **options)

        log.read = noted  # type: ignore[method-assign]
        return reads

    play(scenario)


def test_what_was_read_before_the_subscription_moved_on_does_not_count() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log, cursor = await with_holes(host)
            backlog = Backlog(cast("Any", StubTopic(log, world)), cursor)
            await backlog.read()
            await deliver_all(log)
            cursor.ack(positions_of(log)[3:20:2])
            found, truth = backlog.size(), await full_count(log, cursor)
            assert not found.exact
            assert (found.entries, found.oldest_ms) == (truth.entries, 0)
            cursor.ack_cumulative(positions_of(log)[30])
            found, truth = backlog.size(), await full_count(log, cursor)
            assert (found.exact, found.bytes_exact, found.oldest_ms) == (False, False, None)
            assert found.messages < 2 * truth.messages

    play(scenario)


def test_a_count_continues_when_its_caller_gives_up() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log, cursor = await with_holes(host)
            cursor.ack(positions_of(log)[1:30:2])
            assert cursor.uncounted
            backlog = Backlog(cast("Any", StubTopic(log, world)), cursor)
            with trio.move_on_after(0):
                await backlog.read()
            assert cursor.uncounted
            await until(lambda: not cursor.uncounted)
            await backlog.read()
            assert backlog.size() == await full_count(log, cursor)

    play(scenario)


def test_an_empty_log_and_one_that_is_all_acknowledged_have_no_backlog() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            cursor = await log.open_cursor("sub", initial=log.before_first)
            backlog = Backlog(cast("Any", StubTopic(log, world)), cursor)
            await backlog.read()
            assert backlog.size() == BacklogSize(0, 0, 0, exact=True)
            positions = await append(log, range(12), messages=3)
            cursor.ack(positions)
            await backlog.read()
            assert backlog.size() == BacklogSize(0, 0, 0, exact=True)

    play(scenario)
