"""The operations of a store, and their answers."""

from collections.abc import Generator
from contextlib import contextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from daybook.bookie.storage.ledger_directory import LAST_ENTRY
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.status import StoreStatus
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import entry, key

OK, FENCED, NO_ENTRY = StoreStatus.OK, StoreStatus.FENCED, StoreStatus.NO_ENTRY
NO_LEDGER, UNAUTHORIZED = StoreStatus.NO_LEDGER, StoreStatus.UNAUTHORIZED
BAD_REQUEST, READ_ONLY = StoreStatus.BAD_REQUEST, StoreStatus.READ_ONLY


async def test_an_entry_comes_back_as_it_was_stored(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(7, 0, size=10)
        answers.add(7, 1, size=100_000)
        assert await answers.all() == [OK, OK]
        assert await store.read(7, 0) == entry(7, 0, size=10)
        assert await store.read(7, 1) == entry(7, 1, size=100_000)
        assert await store.read(7, LAST_ENTRY) == entry(7, 1, size=100_000)
        assert bytes(store.try_read(7, 1) or b"") == entry(7, 1, size=100_000)
        assert await status_of(store.read(7, 2)) is NO_ENTRY
        assert await status_of(store.read(8, 0)) is NO_LEDGER
        assert await status_of(store.read(8, LAST_ENTRY)) is NO_LEDGER


async def test_ids_that_cannot_be_are_refused(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, -1)
        answers.add(-1, 0)
        answers.add(1, -4096)
        assert answers.statuses == [BAD_REQUEST] * 3
        answers.add(1, 0)
        assert (await answers.all())[-1] is OK
        assert await status_of(store.read(1, -4096)) is BAD_REQUEST
        assert await status_of(store.fence(-1, b"key")) is BAD_REQUEST


async def test_what_is_kept_in_memory_for_a_ledger_is_small(host: Host) -> None:
    """Otherwise any writer could fill the bookie's memory with bytes that are never read."""
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0, master_key=bytes(10_000))
        assert await answers.all() == [UNAUTHORIZED]
        assert await status_of(store.fence(1, bytes(10_000))) is UNAUTHORIZED
        assert await status_of(store.write_lac(1, key(1), 5, bytes(1 << 20))) is BAD_REQUEST
        assert store.ledgers() == []
        assert await status_of(store.write_lac(1, key(1), 5, bytes(36))) is OK


async def test_everything_that_waits_shares_a_sync_and_is_answered_in_order_in_one_go(
    host: Host,
) -> None:
    async with host.store() as store:
        heard: list[str] = []

        @contextmanager
        def answering() -> Generator[None]:
            yield
            heard.append("commit")

        store.answer_within(answering)
        free = host.platter.stick()
        for number in range(100):
            store.add(
                number % 3,
                number,
                b"key",
                memoryview(entry(number % 3, number)),
                recovery=False,
                done=lambda _, number=number: heard.append(str(number)),  # type: ignore[misc]
            )
            if number == 0:
                # The first is on its way, the others gather behind it.
                await wait_all_tasks_blocked()
        assert heard == []
        assert store.bytes_in_flight > 100 * 60
        free.set()
        await store.force(0)
        await store.force(2)
        assert heard == ["0", "commit", *map(str, range(1, 100)), "commit"]
        assert store.statistics().commits == 2
        assert store.bytes_in_flight == 0


async def test_the_first_master_key_is_the_one(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        answers.add(1, 1, master_key=b"wrong")
        answers.add(1, 1, master_key=b"wrong", recovery=True)
        answers.add(2, 0, master_key=b"")
        assert answers.statuses == [UNAUTHORIZED] * 3
        await answers.all()
        assert await status_of(store.fence(1, b"wrong")) is UNAUTHORIZED
        assert await status_of(store.write_lac(1, b"wrong", 0, b"")) is UNAUTHORIZED
        assert await status_of(store.read(2, 0)) is NO_LEDGER
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 1, master_key=b"wrong")
        answers.add(1, 1)
        assert await answers.all() == [UNAUTHORIZED, OK]


async def test_a_fenced_ledger_takes_recovery_adds_only_for_ever(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        await store.fence(1, key(1))
        await store.fence(2, key(2))  # not known before
        await store.fence(2, key(2))
    for _ in range(2):
        async with host.store() as store:
            answers = Answers(store)
            for ledger_id in (1, 2):
                answers.add(ledger_id, 5)
                answers.add(ledger_id, 6, recovery=True)
                assert await answers.all() == [FENCED, OK]
                assert store.is_fenced(ledger_id)
                assert await status_of(store.read(ledger_id, 5)) is NO_ENTRY


async def test_a_fencing_read_sees_what_was_accepted_before_it(host: Host) -> None:
    """Otherwise it could answer "no" for an add that is acknowledged afterwards."""
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        free = host.platter.stick()
        answers.add(1, 1)
        got: list[bytes] = []

        async def fencing_read() -> None:
            got.append(bytes(await store.fencing_read(1, 1, key(1))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fencing_read)
            await wait_all_tasks_blocked()
            assert got == []
            answers.add(1, 2)  # behind the fence
            assert answers.statuses == [FENCED]
            free.set()
        assert got == [entry(1, 1)]
        assert await answers.all() == [FENCED, OK]
        assert await status_of(store.fencing_read(1, 2, key(1))) is NO_ENTRY


async def test_a_read_waits_for_an_entry_that_is_on_its_way(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        free = host.platter.stick()
        answers.add(1, 1)
        try:
            assert store.try_read(1, 1) is None
            with trio.move_on_after(0.01) as scope:
                await store.read(1, 1)
        finally:
            free.set()  # otherwise the store, too, would wait for its disk
        assert scope.cancelled_caught
        assert await store.read(1, 1) == entry(1, 1)


async def test_the_same_id_again_is_acknowledged_with_the_first_and_changes_nothing(
    host: Host,
) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        answers.add(1, 0, note="other")
        assert answers.statuses == []
        assert await answers.all() == [OK, OK]
        answers.add(1, 0, note="other")
        assert answers.statuses == [OK]
        await answers.all()
        await store.maintenance.checkpoint()
        answers.add(1, 0, note="other")  # the index knows the entry
        assert await answers.all() == [OK]
        assert await store.read(1, 0) == entry(1, 0)
        assert await store.entry_ids(1) == [0]


async def test_late_ids_find_their_place_also_behind_a_checkpoint(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        for entry_id in (5, 1000, 3, 4):
            answers.add(1, entry_id)
        await answers.all()
        await store.maintenance.checkpoint()
        for entry_id in (2, 999, 4, 600):
            answers.add(1, entry_id, note="late")
        assert await answers.all() == [OK] * 4
        await store.maintenance.checkpoint()
        answers.add(1, 1, note="latest")
        await answers.all()
        assert await store.entry_ids(1) == [1, 2, 3, 4, 5, 600, 999, 1000]
        assert await store.read(1, 4) == entry(1, 4)
        assert await store.read(1, 999) == entry(1, 999, note="late")
        assert await status_of(store.read(1, 601)) is NO_ENTRY


async def test_a_late_id_that_is_looked_up_is_refused_if_a_fence_comes_first(host: Host) -> None:
    async with host.store(blocks_cached=1) as store:
        answers = Answers(store)
        for entry_id in (0, 600):
            answers.add(1, entry_id)
        await answers.all()
        await store.maintenance.checkpoint()
        answers.add(1, 1)
        await store.fence(1, key(1))
        assert await answers.all() == [FENCED]
        assert await status_of(store.read(1, 1)) is NO_ENTRY


async def test_two_late_adds_of_one_id_keep_the_first_bytes(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 9)
        await answers.all()
        await store.maintenance.checkpoint()
        answers.add(1, 3, note="a")
        answers.add(1, 3, note="b")
        assert await answers.all() == [OK, OK]
        data = await store.read(1, 3)
        assert data in (entry(1, 3, note="a"), entry(1, 3, note="b"))
        await store.maintenance.checkpoint()
        assert await store.read(1, 3) == data


async def test_late_ids_that_are_looked_up_are_bounded_however_small(host: Host) -> None:
    async with host.store(in_flight_bytes_max=100_000) as store:
        answers = Answers(store)
        answers.add(1, 1000)
        await answers.all()
        await store.maintenance.checkpoint()
        for entry_id in range(200):
            answers.add(1, entry_id)
        statuses = await answers.all()
        assert set(statuses) == {OK, StoreStatus.TOO_MANY}
        assert statuses.count(OK) < 50
        answers.add(1, 500)
        assert await answers.all() == [OK]


async def test_the_lac_is_what_durable_records_say(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        assert store.last_add_confirmed(1) == -1
        free = host.platter.stick()
        answers.add(1, 6, lac=5)
        answers.add(1, 4, lac=3)
        assert store.last_add_confirmed(1) == -1
        free.set()
        await answers.all()
        assert store.last_add_confirmed(1) == 5
        await store.write_lac(1, key(1), 9, b"nine")
        await store.write_lac(1, key(1), 8, b"eight")
        assert store.last_add_confirmed(1) == 9
        body, last = await store.read_lac(1)
        assert (body, bytes(last or b"")) == (b"nine", entry(1, 6, lac=5))
        await store.write_lac(2, key(2), 0, b"zero")
        assert await store.read_lac(2) == (b"zero", None)
        assert await status_of(store.read_lac(3)) is NO_LEDGER
        await store.fence(4, key(4))
        assert await status_of(store.read_lac(4)) is NO_ENTRY
    async with host.store() as store:
        assert store.last_add_confirmed(1) == 9
        body, last = await store.read_lac(1)
        assert (body, bytes(last or b"")) == (b"nine", entry(1, 6, lac=5))


async def test_who_watches_the_lac_hears_of_it_and_of_fences(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        heard: list[str] = []
        store.watch_lac(1, -1, lambda: heard.append("past -1"))
        store.watch_lac(1, 0, lambda: heard.append("past 0"))
        store.watch_lac(1, -1, lambda: heard.append("never"))()
        answers.add(1, 1, lac=0)
        assert heard == []
        await answers.all()
        assert heard == ["past -1"]
        store.watch_lac(1, -1, lambda: heard.append("at once"))
        assert heard == ["past -1", "at once"]
        await store.fence(1, key(1))
        assert heard == ["past -1", "at once", "past 0"]
        store.watch_lac(1, 5, lambda: heard.append("fenced already"))
        assert heard[-1] == "fenced already"


async def test_a_deleted_ledger_is_gone_and_stays_gone(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        for entry_id in range(600):
            answers.add(1, entry_id)
        await answers.all()
        await store.maintenance.checkpoint()
        answers.add(1, 600)
        await answers.all()
        await store.delete(1)
        await store.delete(2)  # not known before
        assert store.ledgers() == []
        assert await status_of(store.read(1, 0)) is NO_LEDGER
        await store.maintenance.checkpoint()
    async with host.store() as store:
        assert store.ledgers() == []
        for ledger_id in (1, 2):
            assert await status_of(store.read(ledger_id, 0)) is NO_LEDGER
            answers = Answers(store)
            answers.add(ledger_id, 601)
            answers.add(ledger_id, 601, recovery=True)
            assert await answers.all() == [FENCED, FENCED]
    index = host.platter.index("d0/index")
    assert await index.scan(b"b", b"c", 10) == []


async def test_a_fence_behind_a_deletion_is_answered_when_that_is_durable(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        free = host.platter.stick()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.delete, 1)
            await trio.lowlevel.checkpoint()
            with trio.move_on_after(0.01) as scope:
                await store.fence(1, key(1))
            assert scope.cancelled_caught
            free.set()


async def test_more_in_flight_than_allowed_is_refused(host: Host) -> None:
    async with host.store(in_flight_bytes_max=5000) as store:
        answers = Answers(store)
        free = host.platter.stick()
        for entry_id in range(10):
            answers.add(1, entry_id, size=1000)
        assert answers.statuses == [StoreStatus.TOO_MANY] * 5
        free.set()
        await answers.all()
        answers.add(1, 20, size=1000)
        assert await answers.all() == [OK]


async def test_a_cancelled_store_still_stops_cleanly(host: Host) -> None:
    with trio.CancelScope() as scope:
        async with host.store() as store:
            answers = Answers(store)
            answers.add(1, 0)
            scope.cancel()
            await trio.sleep_forever()
    async with host.store() as store:
        assert store.statistics().replayed_bytes < 100
        assert await store.read(1, 0) == entry(1, 0)


async def test_a_closing_store_takes_nothing(host: Host) -> None:
    async with host.store() as store:
        pass
    answers = Answers(store)
    answers.add(1, 0)
    answers.add(1, 0, recovery=True)
    assert answers.statuses == [READ_ONLY] * 2
    assert await status_of(store.fence(1, key(1))) is READ_ONLY


async def test_each_ledger_stays_in_its_directory_whatever_their_order(host: Host) -> None:
    host.directories = ["d0", "d1", "d2"]
    async with host.store() as store:
        answers = Answers(store)
        for ledger_id in range(9):
            answers.add(ledger_id, 0)
        assert await answers.all() == [OK] * 9
    assert all(host.logs(directory) for directory in host.directories)
    host.directories = ["d3", "d2", "d0", "d1"]
    async with host.store() as store:
        answers = Answers(store)
        for ledger_id in range(9):
            assert await store.read(ledger_id, 0) == entry(ledger_id, 0)
            answers.add(ledger_id, 1)
        await answers.all()
        assert store.ledgers() == list(range(9))
    assert host.logs("d3") == []


async def test_segments_roll_and_all_of_them_can_be_read(host: Host) -> None:
    async with host.store(log=LogLimits(segment_bytes=5000, group_bytes_max=1000)) as store:
        answers = Answers(store)
        for entry_id in range(200):
            answers.add(1, entry_id)
            if entry_id % 7 == 0:
                await answers.all()
        await answers.all()
        assert len(host.logs()) > 4
        for entry_id in (0, 199, 57, 58, 3, 120):
            assert await store.read(1, entry_id) == entry(1, entry_id)
