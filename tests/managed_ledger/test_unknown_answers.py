"""Lost answers of the metadata store: the log reads the outcome of its request."""

import pytest
import trio

from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.position import EARLIEST
from daybook.wire.metadata.store import MetadataError, Stat
from tests.managed_ledger.world import NAME, World, append, play, read_all, send, settle, until

LIST = f"/managed-ledgers/{NAME}"


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_when_the_log_is_taken_over(applied: bool, times: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            await log.close()
            for _ in range(times):
                host.link.lose_next(applied=applied and times == 1, operation="set", path=LIST)
            log = await host.open()
            await append(log, range(3, 6))
            assert await read_all(log) == list(range(6))
            ids = await world.ids_of(host)
            assert len(ids) == len(set(ids)) == 2

    play(scenario)


@pytest.mark.parametrize("applied", [True, False])
def test_in_a_roll_and_when_a_ledger_is_sealed(applied: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            sent = await settle(send(log, range(2)))
            host.link.lose_next(applied=applied, operation="set", path=LIST)  # new ledger
            host.link.lose_next(applied=applied, operation="set", path=LIST)  # length of the old
            log.roll()
            await until(lambda: log.current_ledger_id != sent.positions[0].ledger_id)
            await append(log, range(2, 4))
            assert log.fenced is None
            info = await world.list_of(host)
            assert [x.HasField("entries") for x in info.ledgerInfo] == [True, False]
            assert await read_all(log) == [0, 1, 2, 3]

    play(scenario)


def test_a_write_that_is_carried_out_after_we_looked_is_ours() -> None:
    """The answer is lost, the look-up comes too early, and the repetition meets its own write."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(2))
            before = log.ledgers.version
            host.link.lose_next(applied=False, operation="set", path=LIST)
            stored = host.store.set

            async def late(path: str, value: bytes, version: int) -> Stat:
                if path == LIST and log.ledgers.doubtful:
                    host.store.set = stored  # type: ignore[method-assign]
                    await stored(path, value, version)  # the first request arrives now
                return await stored(path, value, version)

            host.store.set = late  # type: ignore[method-assign]
            await log.set_property("a", "b")
            assert log.fenced is None
            assert log.ledgers.version == before + 1
            await append(log, range(2, 12))
            assert await read_all(log) == list(range(12))

    play(scenario)


@pytest.mark.parametrize("applied", [True, False])
def test_lost_and_meanwhile_somebody_else_has_it(applied: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            await append(old, range(3))
            one.link.lose_next(applied=applied, operation="set", path=LIST)
            one.link.lose_next(applied=True, operation="sync", path=LIST)  # slow to look
            old.roll()
            await trio.sleep(0.02)
            while True:
                try:
                    new = await two.open()
                    break
                except FencedError:
                    continue
            await append(new, range(100, 103))
            await until(lambda: not old.usable or old.state.name == "OPEN")
            sent = await settle(send(old, range(50, 51)))
            assert sent.failed
            assert await read_all(new) == [0, 1, 2, 100, 101, 102]
            new.abandon()
            assert await read_all(await two.open()) == [0, 1, 2, 100, 101, 102]

    play(scenario)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("step", ["create", "first snapshot", "fold", "delete"])
def test_of_cursors(applied: bool, step: str) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))

            def lose(when: str) -> None:
                if step == when:
                    host.link.lose_next(applied=applied, operation="multi")

            lose("create")
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack([log.next_position(cursor.mark_delete)])
            lose("first snapshot")
            await cursor.flush()
            assert cursor.ledger_id >= 0
            lose("delete")
            if step == "delete":
                await log.delete_cursor("s")
                log.abandon()
                assert (await host.open()).cursors == {}
                return
            lose("fold")
            await log.close()
            again = (await host.open()).cursors["s"]
            assert again.ledger_id == -1
            assert again.mark_delete == cursor.mark_delete
            assert again.backlog_entries == 2

    play(scenario)


def test_a_cursor_write_that_comes_late_changes_nothing() -> None:
    """Each write names the version of the record that it replaces."""

    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(5))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            requests: list[object] = []
            multi = host.store.multi

            async def spy(operations: object) -> list[int]:
                requests.append(operations)
                return await multi(operations)  # type: ignore[arg-type]

            host.store.multi = spy  # type: ignore[method-assign]
            cursor.ack([log.next_position(cursor.mark_delete)])
            await cursor.flush()  # the record points to a ledger
            await log.close()  # and is folded
            for request in requests:
                with pytest.raises(MetadataError):
                    await multi(request)  # type: ignore[arg-type]
            assert (await host.open()).cursors["s"].backlog_entries == 4

    play(scenario)


@pytest.mark.parametrize("applied", [True, False])
def test_when_a_log_is_created_and_deleted(applied: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            host.link.lose_next(applied=applied, operation="create", path="/managed-ledgers")
            log = await host.open()
            await append(log, range(1))
            host.link.lose_next(applied=applied, operation="delete", path=LIST)
            await host.logs.delete(log)
            assert not await host.logs.exists(NAME)

    play(scenario)


def test_a_store_that_is_away_holds_up_rolls_and_nothing_else() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            sent = await settle(send(log, range(2)))  # bookies are found through the store
            host.store.suspend()
            await settle(send(log, range(2, 40), sent))
            assert sent.acked == list(range(40))
            await trio.sleep(60)
            assert log.fenced is None
            assert await read_all(log) == list(range(40))
            host.store.resume()
            await append(log, range(40, 50))
            await trio.sleep(5)
            await append(log, range(50, 60))
            assert len(await world.ids_of(host)) > 1
            assert await read_all(log) == list(range(60))

    play(scenario)
