"""The behavior of the underreplication records, on any metadata store."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from daybook.bookie.errors import LayoutError, MalformedRecordError
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Check, Lock, Underreplication
from daybook.bookie.replication.auditor import Election
from daybook.wire.metadata.store import ANY, MetadataStore

PATHS = LedgerPaths()
BASE = "/ledgers/underreplication"
B1, B2, B3 = BookieId("b1:3181"), BookieId("b2:3181"), BookieId("b3:3181")
Open = Callable[[], Awaitable[MetadataStore]]


async def ids(underreplication: Underreplication) -> list[int]:
    return [ledger_id async for ledger_id in underreplication.marked_ledgers()]


async def value(store: MetadataStore, path: str) -> bytes:
    record = await store.get(f"{BASE}/{path}")
    assert record is not None
    return record.value


class UnderreplicationSuite:
    """A test module derives a class from this, and has a fixture `open_store`."""

    async def test_records_are_the_bytes_that_apache_writes(self, open_store: Open) -> None:
        store = await open_store()
        underreplication = Underreplication(store, PATHS, "host-1")
        await underreplication.mark(12345, [B1, B2], 1700000000000)
        await underreplication.mark(4294967301, [B3], 5)
        assert await underreplication.lock(12345)
        await underreplication.pause()
        await underreplication.set_lost_delay_s(90)
        await underreplication.set_check_began_ms(Check.LEDGERS, 300)
        assert await value(store, "LAYOUT") == b'type: "BASIC"\nversion: 1\n'
        assert await value(store, "ledgers/0000/0000/0000/3039/urL0000012345") == (
            b'replica: "b1:3181"\nreplica: "b2:3181"\nctime: 1700000000000\n'
        )
        assert await value(store, "ledgers/0000/0001/0000/0005/urL4294967301") == (
            b'replica: "b3:3181"\nctime: 5\n'
        )
        assert await value(store, "locks/urL0000012345") == b'bookieId: "host-1"\n'
        assert await value(store, "disable") == b""
        assert await value(store, "lostBookieRecoveryDelay") == b"90"
        assert await value(store, "checkallledgersctime") == bytes.fromhex("08ac02")

    async def test_what_is_written_is_read_again(self, open_store: Open) -> None:
        underreplication = Underreplication(await open_store(), PATHS, "w")
        assert await ids(underreplication) == []
        assert await underreplication.read_mark(7) is None
        for ledger_id in (7, 2**40, 0, 123456):
            await underreplication.mark(ledger_id, [B1], ledger_id + 1)
        assert await ids(underreplication) == [0, 7, 123456, 2**40]
        mark = await underreplication.read_mark(2**40)
        assert mark is not None
        assert (mark.missing, mark.since_ms, mark.version) == ((B1,), 2**40 + 1, 0)
        assert await underreplication.check_began_ms(Check.LEDGERS) is None
        await underreplication.set_check_began_ms(Check.LEDGERS, 17)
        await underreplication.set_check_began_ms(Check.LEDGERS, 2**41)
        assert await underreplication.check_began_ms(Check.LEDGERS) == 2**41

    async def test_a_mark_is_added_to_and_its_version_changes(self, open_store: Open) -> None:
        underreplication = Underreplication(await open_store(), PATHS, "w")
        await underreplication.mark(7, [B1], 1)
        first = await underreplication.read_mark(7)
        await underreplication.mark(7, [B2, B1], 3)
        second = await underreplication.read_mark(7)
        assert first is not None
        assert second is not None
        assert (first.missing, first.since_ms, first.version) == ((B1,), 1, 0)
        assert (second.missing, second.since_ms, second.version) == ((B1, B2), 3, 1)

    async def test_the_same_that_is_found_again_while_it_is_mended_stays_marked(
        self, open_store: Open
    ) -> None:
        underreplication = Underreplication(await open_store(), PATHS, "w")
        await underreplication.mark(7, [B1], 1)
        before = await underreplication.read_mark(7)
        assert before is not None
        await underreplication.mark(7, [B1], 2)  # another client has found more damage
        assert not await underreplication.resolve(before)
        assert await ids(underreplication) == [7]

    async def test_what_is_at_a_wrong_place_is_no_mark(self, open_store: Open) -> None:
        store = await open_store()
        underreplication = Underreplication(store, PATHS, "w")
        await underreplication.mark(7, [B1], 1)
        for stray in ("urL0000000099", "urL9999999999999999999", "urL0x7", "x"):
            path = f"{BASE}/ledgers/0000/0000/0000/0007/{stray}"
            await store.create(path, b"", make_parents=True)
        assert await ids(underreplication) == [7]

    async def test_a_ledger_that_is_marked_again_stays_marked(self, open_store: Open) -> None:
        underreplication = Underreplication(await open_store(), PATHS, "w")
        await underreplication.mark(7, [B1], 1)
        before = await underreplication.read_mark(7)
        assert before is not None
        await underreplication.mark(7, [B2], 2)
        assert not await underreplication.resolve(before)
        after = await underreplication.read_mark(7)
        assert after is not None
        assert await underreplication.resolve(after)
        assert await underreplication.read_mark(7) is None
        assert await underreplication.resolve(after)

    async def test_another_mark_of_the_same_version_stays(self, open_store: Open) -> None:
        underreplication = Underreplication(await open_store(), PATHS, "w")
        await underreplication.mark(7, [B1], 1)
        old = await underreplication.read_mark(7)
        assert old is not None
        await underreplication.resolve(old)
        await underreplication.mark(7, [B2], 2)
        assert not await underreplication.resolve(old)
        assert await ids(underreplication) == [7]

    async def test_empty_directories_go_with_their_last_mark(self, open_store: Open) -> None:
        store = await open_store()
        underreplication = Underreplication(store, PATHS, "w")
        for ledger_id in (1, 2**20, 2**20 + 1):
            await underreplication.mark(ledger_id, [B1], 1)
        for ledger_id in (1, 2**20):
            mark = await underreplication.read_mark(ledger_id)
            assert mark is not None
            assert await underreplication.resolve(mark)
        assert await store.get_children(f"{BASE}/ledgers/0000/0000") == ["0010"]
        assert await ids(underreplication) == [2**20 + 1]

    async def test_one_works_on_a_ledger_until_it_lets_go_or_dies(self, open_store: Open) -> None:
        first, second = await two(open_store)
        assert await first.lock(7)
        assert await first.lock(7)  # the answer was lost: the lock is ours
        assert not await second.lock(7)
        assert await second.locks() == {7: Lock("w1", ours=False)}
        await second.release(7)  # the lock is not ours
        assert not await second.lock(7)
        await first.release(7)
        assert await second.lock(7)
        assert await first.locks() == {7: Lock("w2", ours=False)}

    async def test_the_switch_and_its_watch(self, open_store: Open) -> None:
        underreplication, other = await two(open_store)
        changed = trio.Event()
        assert not await underreplication.is_paused(changed.set)
        await other.pause()
        await other.pause()
        await changed.wait()
        again = trio.Event()
        assert await underreplication.is_paused(again.set)
        await other.resume()
        await other.resume()
        await again.wait()
        assert not await underreplication.is_paused()

    async def test_asking_for_an_audit_keeps_the_delay_and_is_heard(self, open_store: Open) -> None:
        underreplication, other = await two(open_store)
        assert await underreplication.lost_delay_s() is None
        await underreplication.set_lost_delay_s(60)
        heard = trio.Event()
        assert await underreplication.lost_delay_s(heard.set) == 60
        await other.request_audit()
        await heard.wait()
        assert await underreplication.lost_delay_s() == 60

    async def test_asking_for_an_audit_sets_no_delay(self, open_store: Open) -> None:
        underreplication, other = await two(open_store)
        heard = trio.Event()
        assert await underreplication.lost_delay_s(heard.set) is None
        await other.request_audit()
        await heard.wait()
        assert await underreplication.lost_delay_s() is None

    async def test_records_of_another_kind_are_refused(self, open_store: Open) -> None:
        store = await open_store()
        underreplication = Underreplication(store, PATHS, "w")
        await underreplication.check_layout()
        await underreplication.mark(1, [B1], 1)
        await underreplication.check_layout()
        for layout in (b'type: "BASIC"\nversion: 2\n', b'type: "LISTS"\nversion: 1\n', b"\xff"):
            await store.set(f"{BASE}/LAYOUT", layout, ANY)
            with pytest.raises(LayoutError):
                await underreplication.check_layout()
        await underreplication.set_lost_delay_s(1)
        for delay in (b"soon", b"-1", b"1" * 30):
            await store.set(f"{BASE}/lostBookieRecoveryDelay", delay, ANY)
            with pytest.raises(MalformedRecordError):
                await underreplication.lost_delay_s()
        await underreplication.set_check_began_ms(Check.LEDGERS, 1)
        await store.set(f"{BASE}/checkallledgersctime", b"\xff", ANY)
        with pytest.raises(MalformedRecordError):
            await underreplication.check_began_ms(Check.LEDGERS)

    async def test_a_mark_that_does_not_parse_is_a_mark(self, open_store: Open) -> None:
        store = await open_store()
        underreplication = Underreplication(store, PATHS, "w")
        await underreplication.mark(7, [B1], 1)
        await store.set(f"{BASE}/ledgers/0000/0000/0000/0007/urL0000000007", b"\xff{", ANY)
        mark = await underreplication.read_mark(7)
        assert mark is not None
        assert mark.missing == ()
        assert await ids(underreplication) == [7]

    async def test_the_first_candidate_is_elected_then_the_next(
        self, open_store: Open, nursery: trio.Nursery
    ) -> None:
        works = {name: trio.Event() for name in ("a1", "a2", "a3")}
        elections: dict[str, Election] = {}
        scopes: dict[str, trio.CancelScope] = {}
        stores: dict[str, MetadataStore] = {}

        def at_work(name: str) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                works[name].set()
                await trio.sleep_forever()

            return work

        async def stand(name: str, *, task_status: trio.TaskStatus[None]) -> None:
            with trio.CancelScope() as scopes[name]:
                task_status.started()
                await elections[name].run(at_work(name))

        for name in works:
            stores[name] = await open_store()
            elections[name] = Election(stores[name], PATHS, name)
            await nursery.start(stand, name)
            await until(partial(stands, stores[name], len(stores)))
        await works["a1"].wait()
        assert await elections["a3"].auditor() == "a1"
        names = await stores["a1"].get_children(f"{BASE}/auditorelection")
        assert names == ["V_0000000000", "V_0000000001", "V_0000000002"]
        assert await value(stores["a1"], "auditorelection/V_0000000000") == b'bookieId: "a1"\n'
        assert not works["a2"].is_set()

        # Its vote is deleted: it stands again, behind the others.
        works["a1"] = trio.Event()
        await stores["a3"].delete(f"{BASE}/auditorelection/V_0000000000", ANY)
        await works["a2"].wait()
        assert await value(stores["a1"], "auditorelection") == b'bookieId: "a2"\n'
        await until(lambda: resigned(elections["a1"]))
        assert not works["a1"].is_set()
        assert not works["a3"].is_set()


async def stands(store: MetadataStore, candidates: int) -> bool:
    return len(await store.get_children(f"{BASE}/auditorelection") or []) == candidates


async def resigned(election: Election) -> bool:
    return not election.elected


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(60):
        while not await condition():  # noqa: ASYNC110  what is looked at has no event
            await trio.sleep(0.01)


async def two(open_store: Open) -> tuple[Underreplication, Underreplication]:
    return (
        Underreplication(await open_store(), PATHS, "w1"),
        Underreplication(await open_store(), PATHS, "w2"),
    )
