"""A caller may stop waiting, and a host may go down: the stored state stays whole."""

from dataclasses import replace

import pytest
import trio
import trio.lowlevel

from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.errors import (
    ClosedError,
    FencedError,
    LogCorruptError,
    ManagedLedgerError,
)
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import EARLIEST
from daybook.managed_ledger.protocol.log import LogState
from daybook.wire.metadata.store import MetadataError, OutcomeUnknownError, Stat
from tests.managed_ledger.world import (
    BOOKIES,
    CONFIG,
    NAME,
    NOW,
    Held,
    Host,
    Sent,
    World,
    append,
    play,
    read_all,
    send,
    settle,
    until,
)

LIST = f"/managed-ledgers/{NAME}"


async def listed_ledgers_exist(world: World, host: Host) -> None:
    assert set(await world.ids_of(host)) <= set(await world.ledgers(host))


# -- opening


@pytest.mark.parametrize("applied", [True, False])
def test_an_opening_that_is_cancelled_while_its_list_is_under_way(applied: bool) -> None:
    """The write may yet be carried out: the ledger that it names must not be deleted."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            await log.close()
            held = host.link.hold_next("set", LIST)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.open)
                await held.caught.wait()
                nursery.cancel_scope.cancel()
            await trio.sleep(5)
            if applied:
                held.let_go()
            await listed_ledgers_exist(world, host)
            log = await host.open()
            assert await read_all(log) == [0, 1, 2]
            await append(log, range(3, 5))
            await host.logs.remove_orphans()
            assert set(await world.ids_of(host)) == set(await world.ledgers(host))

    play(scenario)


def test_a_log_that_is_lost_while_its_cursors_are_recovered_is_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In seed 651176 the nursery of the log was cancelled already, and the broker died of that."""

    recover_cursor = ManagedLedger.recover_cursor

    async def recover_late(log: ManagedLedger, name: str) -> Cursor:
        cursor = await recover_cursor(log, name)
        log.lost("somebody else has taken it over")
        await trio.sleep(1)
        return cursor

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await log.open_cursor("s", initial=EARLIEST)
            await append(log, range(3))
            await log.close()
            with monkeypatch.context() as patch:
                patch.setattr(ManagedLedger, "recover_cursor", recover_late)
                with pytest.raises(FencedError, match="taken it over"):
                    await host.open()
            assert await read_all(await host.open()) == [0, 1, 2]

    play(scenario)


def test_an_opening_that_fails_leaves_nobody_who_hears_of_bookies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic whose cursor cannot be read is opened again for days; each attempt made a writer."""

    async def fail(log: ManagedLedger, name: str) -> Cursor:
        raise LogCorruptError(f"{name} cannot be read")

    async def wait(log: ManagedLedger, name: str) -> Cursor:
        await trio.sleep_forever()

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await log.open_cursor("s", initial=EARLIEST)
            await log.close()
            before = len(host.client.directory._listeners)
            for recover in (fail, wait):
                with monkeypatch.context() as patch, trio.move_on_after(60):
                    patch.setattr(ManagedLedger, "recover_cursor", recover)
                    with pytest.raises(LogCorruptError):
                        await host.open()
                assert len(host.client.directory._listeners) == before
            await append(await host.open(), range(3))

    play(scenario)


@pytest.mark.parametrize("operation", ["create", "set", "get", "get_children", "delete"])
@pytest.mark.parametrize("nth", range(3))
def test_an_opening_that_is_cancelled_anywhere_leaves_a_log_that_opens(
    operation: str, nth: int
) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(7))
            cursor.ack(positions[:2])
            await cursor.flush()
            log.abandon()
            async with trio.open_nursery() as nursery:
                held = [host.link.hold_next(operation) for _ in range(nth + 1)]
                for each in held[:-1]:
                    nursery.start_soon(let_go_soon, each)
                nursery.start_soon(host.open)
                await trio.sleep(2)
                nursery.cancel_scope.cancel()
            host.link.hold_no_more()
            if held[-1].caught.is_set():
                held[-1].let_go()
            await trio.sleep(1)
            await listed_ledgers_exist(world, host)
            log = await host.open()
            assert await read_all(log) == list(range(7))
            assert log.cursors["s"].mark_delete == positions[1]

    async def let_go_soon(held: Held) -> None:
        await held.caught.wait()
        await trio.sleep(0.4)
        held.let_go()

    play(scenario)


# -- rolling over, and whatever else writes the list


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("how", ["abandoned", "contact lost"])
def test_a_log_that_is_given_up_while_it_rolls(applied: bool, how: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            held = host.link.hold_next("set", LIST)
            log.roll()
            await held.caught.wait()
            if applied:
                held.let_go()
            if how == "contact lost":
                host.store.suspend()
            log.abandon()
            await trio.sleep(5)
            host.store.resume()
            await trio.sleep(30)
            await listed_ledgers_exist(world, host)
            log = await host.open()
            assert await read_all(log) == [0, 1, 2]

    play(scenario)


def test_a_write_that_comes_late_names_a_ledger_that_is_there() -> None:
    """The request gets no answer, the host ends, and only then the store carries it out."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            ids = await world.ids_of(host)
            requests: list[tuple[str, bytes, int]] = []
            stored = host.store.set

            async def lose(path: str, value: bytes, version: int) -> Stat:
                if path == LIST:
                    requests.append((path, value, version))
                    host.link.lose_next(applied=False, operation="set", path=LIST)
                return await stored(path, value, version)

            host.store.set = lose  # type: ignore[method-assign]
            log.roll()
            await until(lambda: len(requests) > 2)
            log.abandon()
            await trio.sleep(5)
            assert await world.ids_of(host) == ids
            await stored(*requests[0])
            await listed_ledgers_exist(world, host)
            host.store.set = stored  # type: ignore[method-assign]
            assert await read_all(await host.open()) == [0, 1, 2]

    play(scenario)


def test_a_write_that_is_refused_behind_one_in_doubt_may_be_carried_out_yet() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            requests: list[tuple[str, bytes, int]] = []
            stored = host.store.set

            async def refuse(path: str, value: bytes, version: int) -> Stat:
                if path != LIST:
                    return await stored(path, value, version)
                requests.append((path, value, version))
                if len(requests) == 1:
                    raise OutcomeUnknownError("a test says so")
                raise MetadataError("a test forbids it")

            host.store.set = refuse  # type: ignore[method-assign]
            log.roll()
            await until(lambda: len(requests) == 2)
            await trio.sleep(5)
            await stored(*requests[0])
            host.store.set = stored  # type: ignore[method-assign]
            log.abandon()
            await listed_ledgers_exist(world, host)
            assert await read_all(await host.open()) == [0, 1, 2]

    play(scenario)


@pytest.mark.parametrize("applied", [True, False])
def test_whoever_stops_waiting_for_a_property_fences_nobody(applied: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(2))
            held = host.link.hold_next("set", LIST)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.set_property, "color", "red")
                await held.caught.wait()
                nursery.cancel_scope.cancel()
            if applied:
                held.let_go()
            else:
                world.nursery.start_soon(let_go_later, held)
            await log.set_property("taste", "sweet")
            await append(log, range(2, 12))
            assert log.fenced is None
            assert log.get_property("color") == "red"
            assert await read_all(log) == list(range(12))

    async def let_go_later(held: Held) -> None:
        await trio.sleep(1)
        held.let_go()

    play(scenario)


@pytest.mark.parametrize("at", ["trim", "terminate", "create", "delete"])
def test_whoever_stops_waiting_leaves_nothing_half_done(at: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=NOW))
            keeper = await log.open_cursor("keeper", initial=EARLIEST)
            positions = await append(log, range(12))
            keeper.ack(positions[:11])
            await keeper.flush()
            held = host.link.hold_next("multi" if at in ("create", "delete") else "set")
            async with trio.open_nursery() as nursery:
                match at:
                    case "trim":
                        nursery.start_soon(log.trim)
                    case "terminate":
                        nursery.start_soon(log.terminate)
                    case "create":
                        nursery.start_soon(open_new, log)
                    case _:
                        nursery.start_soon(log.delete_cursor, "keeper")
                await held.caught.wait()
                nursery.cancel_scope.cancel()
            held.let_go()
            await trio.sleep(1)
            assert log.fenced is None
            await listed_ledgers_exist(world, host)
            assert list(log.ledgers.ids) == await world.ids_of(host)
            match at:
                case "trim":
                    assert log.before_first.ledger_id == positions[11].ledger_id
                case "terminate":
                    assert log.terminated == positions[-1] == await log.terminate()
                case "create":
                    again = await log.open_cursor("new", initial=EARLIEST)
                    again.ack_cumulative(positions[-1])
                    await again.flush()
                case _:
                    again = await log.open_cursor("keeper", initial=EARLIEST)
                    again.ack_cumulative(positions[11])
                    await again.flush()
            log.abandon()
            log = await host.open()
            assert await read_all(log, positions[11]) == [11]

    async def open_new(log: ManagedLedger) -> None:
        await log.open_cursor("new", initial=EARLIEST)

    play(scenario)


# -- giving up


def test_after_it_was_given_up_nothing_is_written_that_waited_for_the_store() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(2))
            await trio.sleep(5)
            before, ledgers = await world.list_of(host), await world.ledgers(host)
            cursors = await host.store.get(f"{LIST}/s")
            host.store.suspend()

            async def wait() -> None:
                with pytest.raises(FencedError):
                    await log.set_property("a", "b")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                cursor.ack(positions)
                await trio.sleep(15)
                log.roll()
                await trio.sleep(0.5)
                log.abandon()
                await trio.sleep(1)
                host.store.resume()
            await trio.sleep(30)
            assert await world.list_of(host) == before
            assert await world.ledgers(host) == ledgers
            assert await host.store.get(f"{LIST}/s") == cursors

    play(scenario)


@pytest.mark.parametrize("away", ["bookies", "store"])
@pytest.mark.parametrize("pending", ["appends", "acks", "nothing"])
def test_closing_ends_in_bounded_time(away: str, pending: str) -> None:
    """The next owner has to recover the log, and nothing is lost."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, close_s=20.0))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(3))
            cursor.ack(positions[:1])
            await cursor.flush()
            if away == "store":
                host.store.suspend()
            else:
                for name in BOOKIES:
                    world.network.block("a", name)
            if pending == "acks":
                cursor.ack(positions[1:2])
            sent = send(log, range(3, 5)) if pending == "appends" else Sent()
            started_s = trio.current_time()
            if away == "bookies" and pending != "appends":
                await log.close()  # Cursors are folded into their records.
            else:
                with pytest.raises(ManagedLedgerError, match="could not be closed"):
                    await log.close()
            assert trio.current_time() - started_s < 21
            assert not log.usable
            await settle(sent)
            host.store.resume()
            for name in BOOKIES:
                world.network.unblock("a", name)
            world.network.cut("a")
            again = await host.open()
            kept = await read_all(again)
            assert kept[:3] == [0, 1, 2]
            assert set(sent.acked) <= set(kept)
            assert again.cursors["s"].mark_delete >= positions[0]

    play(scenario)


def test_a_last_ledger_that_cannot_be_closed_does_not_hold_up_a_clean_close() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            host.link.hold_next("set", "/ledgers")
            started_s = trio.current_time()
            await log.close()
            assert trio.current_time() - started_s <= CONFIG.close_s
            assert await read_all(await host.open()) == [0, 1, 2]

    play(scenario)


def test_closing_while_a_ledger_is_being_trimmed() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(replace(CONFIG, retention=NOW))
            await append(log, range(7))
            await trio.sleep(1)
            host.link.delay_s = 0.3
            log.roll()
            await until(lambda: log.state is LogState.SEALING)
            await until(lambda: log.state is LogState.OPEN)
            await log.close()
            host.link.delay_s = 0
            await listed_ledgers_exist(world, host)
            log = await host.open()
            await host.logs.remove_orphans()
            assert set(await world.ids_of(host)) == set(await world.ledgers(host))

    play(scenario)


@pytest.mark.parametrize("end", ["close", "abandon", "fence", "delete"])
def test_a_log_that_has_ended_runs_nothing(end: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(7))
            cursor.ack(positions[:2])
            assert running("daybook.managed_ledger.") == ["_hold", "run"]
            match end:
                case "close":
                    await log.close()
                case "abandon":
                    log.abandon()
                case "fence":
                    log.lost("a test says so")
                case _:
                    await host.logs.delete(log)
            await trio.sleep(10)
            assert running("daybook.managed_ledger.") == []

    play(scenario)


def running(module: str) -> list[str]:
    """Return the names of the running tasks of a module."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    todo, names = [root], list[str]()
    while todo:
        task = todo.pop()
        names += [task.name.rpartition(".")[2]] if task.name.startswith(module) else []
        todo += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(names)


def test_what_is_asked_of_a_log_that_has_ended_is_refused() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            log.abandon()
            with pytest.raises(ClosedError):
                await log.set_property("a", "b")
            with pytest.raises(ClosedError):
                await log.terminate()

    play(scenario)


# -- stopping to wait


def test_a_close_that_is_cancelled_leaves_nothing_running() -> None:
    """The metadata store does not answer the request that closes the ledger."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            before = host.logs._context.nursery.child_tasks
            log = await host.open()
            await append(log, range(3))
            held = host.link.hold_next("set", "/ledgers")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.close)
                await held.caught.wait()
                nursery.cancel_scope.cancel()
            await trio.sleep(1)
            assert host.logs._context.nursery.child_tasks == before
            assert await read_all(await host.open()) == [0, 1, 2]

    play(scenario)


@pytest.mark.parametrize("pending", [0, 1])
def test_a_log_that_takes_no_appends_because_it_was_terminated_is_terminated(pending: int) -> None:
    """The log is terminated even if the caller went away while appends were pending."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            sent = send(log, range(3, 3 + pending))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.terminate)
                nursery.start_soon(log.terminate)
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await settle(sent)
            await trio.sleep(1)
            late = await settle(send(log, range(9, 10)))
            assert [str(error) for _, error in late.failed] == [f"{NAME} was terminated"]
            assert log.terminated == log.last_confirmed
            assert log.last_confirmed.entry_id == 2 + pending

    play(scenario)
