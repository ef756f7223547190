"""A log on real ledgers: append, read, roll, close, delete."""

from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.context import LogConfig
from daybook.managed_ledger.errors import (
    ClosedError,
    EntryTooLargeError,
    FencedError,
    LedgerIdTooLowError,
    NoSuchLogError,
    TerminatedError,
)
from daybook.managed_ledger.pending_adds import ENTRY_OVERHEAD_BYTES
from daybook.managed_ledger.position import EARLIEST, LATEST, Position
from daybook.wire.messages.bookie import FRAME_BYTES_MAX
from daybook.wire.metadata.store import MetadataError, Stat
from tests.managed_ledger.world import (
    BOOKIES,
    CONFIG,
    NAME,
    World,
    append,
    message,
    play,
    read_all,
    send,
    settle,
    until,
)


def test_what_is_appended_is_read_across_rolls() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            positions = await append(log, range(23))
            assert positions == sorted(positions)
            assert len({p.ledger_id for p in positions}) >= 4
            assert await read_all(log) == list(range(23))
            assert log.entries_between(log.before_first, log.last_confirmed) == 23
            info = await world.list_of(host)
            assert [x.HasField("entries") for x in info.ledgerInfo][-1] is False
            assert all(x.HasField("entries") for x in info.ledgerInfo[:-1])

    play(scenario)


def test_order_holds_while_rolls_go_on_under_load() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            sent = send(log, range(200))
            for first in range(200, 400, 20):
                await trio.sleep(0.02)
                send(log, range(first, first + 20), sent)
            await settle(sent)
            assert sent.acked == list(range(400))
            assert sent.positions == sorted(sent.positions)
            assert len(set(sent.positions)) == 400
            assert await read_all(log) == list(range(400))

    play(scenario)


def test_a_batch_takes_as_many_offsets_as_it_has_messages() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3), messages=10)
            assert (log.next_offset, log.confirmed_offset) == (30, 29)

    play(scenario)


def test_reading_begins_where_it_should_and_ends_at_the_end() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            assert await log.read(EARLIEST, max_entries=9, max_bytes=99) == []
            positions = await append(log, range(12))
            for number, position in enumerate(positions):
                assert await read_all(log, position) == list(range(number, 12))
            first_ledger = positions[0].ledger_id
            beyond = Position(first_ledger, 1000)
            following = [p for p in positions if p.ledger_id > first_ledger]
            assert (await log.read(beyond, max_entries=1, max_bytes=1))[0].position == following[0]
            assert await log.read(LATEST, max_entries=9, max_bytes=99) == []
            assert await log.read(EARLIEST, max_entries=0, max_bytes=99) == []
            (only,) = await log.read(EARLIEST, max_entries=9, max_bytes=1)
            assert only.position == positions[0]

    play(scenario)


def test_the_tail_of_a_ledger_is_read_while_it_is_being_closed() -> None:
    """A reader that knows only the ledger's metadata would not see its last entries yet."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            sent = await settle(send(log, range(4)))
            host.link.delay_s = 1.0
            log.roll()
            await until(lambda: log.current_ledger_id != sent.positions[0].ledger_id)
            assert log.state.name == "SEALING"
            host.logs.cache.bytes_max = 0
            assert await read_all(log) == [0, 1, 2, 3]
            assert log.state.name == "SEALING"

    play(scenario)


def test_the_log_itself_tells_that_its_end_has_moved_through_rolls_and_lost_bookies() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            seen: list[Position] = []
            log.on_confirmed = lambda: seen.append(log.last_confirmed)
            sent = send(log, range(8))
            world.kill(BOOKIES[0])
            log.roll()
            send(log, range(8, 30), sent)
            await settle(sent)
            assert seen == sorted(set(seen))
            assert seen[-1] == sent.positions[-1] == log.last_confirmed

    play(scenario)


def test_waiting_at_the_end() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host, trio.open_nursery() as nursery:
            log = await host.open()
            nursery.start_soon(log.wait_appended, log.last_confirmed)
            await trio.sleep(1)
            await append(log, range(1))
        async with world.host("b") as host:
            log = await host.open()
            ended: list[str] = []

            async def wait() -> None:
                with pytest.raises(ClosedError):
                    await log.wait_appended(log.last_confirmed)
                ended.append("closed")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(1)
                await log.close()
            assert ended == ["closed"]

    play(scenario)


def test_room() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, pending_bytes_max=100))
            await log.wait_room()
            sent = send(log, range(20))
            assert log.pending_bytes > 100
            await log.wait_room()
            assert len(sent.acked) > 0
            assert log.pending_bytes <= 100
            await settle(sent)
            assert log.pending_bytes == 0

    play(scenario)


def test_room_for_small_entries() -> None:
    """Each small entry costs more memory than its bytes."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, pending_bytes_max=10 * ENTRY_OVERHEAD_BYTES))
            sent = send(log, range(20))
            await log.wait_room()
            assert len(sent.acked) >= 10
            await settle(sent)

    play(scenario)


def test_age_rolls_a_ledger_and_an_empty_one_stays() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, roll_age_s=100.0))
            first = log.current_ledger_id
            await trio.sleep(200)
            log.check_roll()
            await trio.sleep(1)
            assert log.current_ledger_id == first
            await append(log, range(1))
            assert log.current_ledger_id != first

    play(scenario)


def test_a_healthy_log_does_not_roll_to_get_healthier() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(LogConfig(quorums=CONFIG.quorums))
            first = log.current_ledger_id
            for number in range(5):
                await append(log, range(number, number + 1))
                await trio.sleep(100)
                log.check_roll()
            assert log.current_ledger_id == first

    play(scenario)


def test_a_clean_close_leaves_everything_closed_and_refuses_more() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(7))
            sent = send(log, range(7, 9))
            await log.close()
            assert sent.acked == [7, 8]
            last = (await world.ids_of(host))[-1]
            assert (await host.client.metadata(last)).closed
            refused = send(log, range(9, 10))
            assert isinstance(refused.failed[0][1], ClosedError)
            again = await host.open()
            assert await read_all(again) == list(range(9))
            assert again.next_offset == 9

    play(scenario)


def test_a_log_that_is_created_again_has_another_creation() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            first = log.created
            assert first > 0
            await append(log, range(3))
            await log.close()
            log = await host.open()
            assert log.created == first, "a takeover creates nothing"
            await host.logs.delete(log)
            assert (await host.open()).created > first

    play(scenario)


def test_what_is_appended_while_it_closes_is_refused_and_answered() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            cursor = await log.open_cursor("s", initial=EARLIEST)
            await append(log, range(3))
            cursor.ack_cumulative(log.last_confirmed)
            host.link.delay_s = 0.5
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.close)
                await trio.sleep(0.2)
                sent = send(log, range(3, 5))
                assert len(sent.failed) == 2
            host.link.delay_s = 0
            assert await read_all(await host.open()) == [0, 1, 2]

    play(scenario)


def test_abandoning_tells_those_who_wait_that_it_is_in_doubt() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            sent = send(log, range(3))
            log.abandon()
            assert [type(error) for _, error in sent.failed] == [FencedError] * 3
            assert log.pending_bytes == 0
            with pytest.raises(ClosedError):
                await log.open_cursor("s", initial=EARLIEST)
            with pytest.raises(ClosedError):
                await log.trim()

    play(scenario)


def test_whoever_is_told_of_a_confirmation_may_give_up_or_append() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            outcomes: list[str] = []

            def done(position: Position | None, error: Exception | None) -> None:
                outcomes.append("acked" if error is None else type(error).__name__)
                if len(outcomes) == 1:
                    log.append(message(9), 1, done)
                if len(outcomes) == 2:
                    log.abandon()

            for number in range(4):
                log.append(message(number), 1, done)
            await trio.sleep(1)
            assert outcomes == ["acked", "acked", "FencedError", "FencedError", "FencedError"]

    play(scenario)


def test_logs_that_are_open_at_the_end_of_their_host_are_given_up() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            sent = send(log, range(2))
        assert len(sent.failed) == 2
        assert not log.usable

    play(scenario)


def test_terminated() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            assert log.terminated is None
            sent = send(log, range(7))
            end = await log.terminate()
            assert sent.acked == list(range(7))
            assert end == sent.positions[-1] == log.terminated == await log.terminate()
            assert isinstance(send(log, range(1)).failed[0][1], TerminatedError)
            await log.close()
            log = await host.open()
            assert log.terminated == end == await log.terminate()
            assert isinstance(send(log, range(1)).failed[0][1], TerminatedError)
            assert await read_all(log) == list(range(7))

    play(scenario)


def test_a_truncation_drops_everything_of_a_terminated_log() -> None:
    """The last ledger stayed before, because a terminated log began no other one."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            sent = send(log, range(7))
            end = await log.terminate()
            cursor = await log.open_cursor("s", initial=log.before_first)
            assert await log.truncate() == []
            assert await read_all(log) == list(range(7))
            cursor.ack_cumulative(end)
            await cursor.flush()
            assert await log.truncate() == [end.ledger_id] == [sent.positions[0].ledger_id]
            assert (await read_all(log), log.size_bytes) == ([], 0)
            await log.close()
            log = await host.open()
            assert log.terminated == end == await log.terminate()
            assert isinstance(send(log, range(1)).failed[0][1], TerminatedError)
            assert (await read_all(log), await log.truncate()) == ([], [])

    play(scenario)


def test_a_log_that_could_not_be_terminated_takes_appends() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            stored, asked = host.store.set, trio.Event()

            async def refuse(path: str, value: bytes, version: int) -> Stat:
                asked.set()
                await trio.sleep(1)
                raise MetadataError("a test forbids it")

            async def terminate() -> None:
                with pytest.raises(MetadataError, match="a test forbids it"):
                    await log.terminate()

            host.store.set = refuse  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(terminate)
                await asked.wait()
                nursery.start_soon(terminate)
            host.store.set = stored  # type: ignore[method-assign]
            positions = await append(log, range(3, 5))
            assert await log.terminate() == positions[-1]

    play(scenario)


def test_properties_stay() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            assert await host.logs.create(NAME, {"color": "red"})
            assert not await host.logs.create(NAME, {"color": "blue"})
            log = await host.open()
            await log.set_property("epoch", "3")
            await append(log, range(12))
            log.abandon()
            log = await host.open()
            assert (log.get_property("color"), log.get_property("epoch")) == ("red", "3")

    play(scenario)


def test_exists_list_create_delete() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            logs = host.logs
            assert not await logs.exists(NAME)
            with pytest.raises(NoSuchLogError):
                await logs.open(NAME, CONFIG, create=False)
            assert await logs.list("t/n/persistent") == []
            log = await host.open()
            assert await logs.exists(NAME)
            assert await logs.list("t/n/persistent") == ["a"]
            await append(log, range(12))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack_cumulative(log.last_confirmed)
            await cursor.flush()
            sent = send(log, range(12, 14))
            await logs.delete(log)
            assert sent.settled
            assert not await logs.exists(NAME)
            await trio.sleep(5)
            assert await world.ledgers(host) == []

    play(scenario)


def test_a_log_deleted_while_it_rolls_leaves_nothing() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            for delay_s in (0.0, 0.001, 0.005, 0.02, 0.05):
                log = await host.open()
                await settle(send(log, range(3)))
                host.link.delay_s = 0.01
                log.roll()
                await trio.sleep(delay_s)
                await host.logs.delete(log)
                await trio.sleep(5)
                assert await world.ledgers(host) == []

    play(scenario)


def test_an_entry_that_no_bookie_would_take_is_refused_and_the_log_goes_on() -> None:
    """Formerly the entry ended the log, and its client sent it to the next owner, forever."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            errors: list[Exception | None] = []
            for size in (FRAME_BYTES_MAX, FRAME_BYTES_MAX - 500):
                log.append([b"x" * size], 1, lambda _, error: errors.append(error))
            assert [type(error) for error in errors] == [EntryTooLargeError] * 2
            await append(log, range(3, 6))
            assert await read_all(log) == list(range(6))
            assert log.confirmed_offset == 5

    play(scenario)


def test_a_ledger_whose_id_is_not_above_the_last_one_is_not_listed() -> None:
    """The counter of ids was restored from a copy.  The log stays in its ledger and can be read."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            counter = world.metadata.tree._nodes["/ledgers/idgen"]
            counter.children_created = 100
            log = await host.open()
            await append(log, range(2))
            present = log.current_ledger_id
            counter.children_created = 50
            sent = send(log, range(2, 20))
            await settle(sent)
            assert sent.acked == list(range(2, 20))
            assert log.current_ledger_id == present
            assert [x.ledgerId for x in (await world.list_of(host)).ledgerInfo] == [present]
            log.abandon()
            with pytest.raises(LedgerIdTooLowError, match="counter of ids was lost"):
                await host.open()
            counter.children_created = 200
            log = await host.open()
            await append(log, range(20, 30))
            assert await read_all(log) == list(range(30))

    play(scenario)
