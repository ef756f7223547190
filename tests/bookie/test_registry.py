"""The layout of BookKeeper: paths and values as others read them, and many who write at once."""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.abc import Clock

from bookie.errors import BookieIdTakenError, LayoutError, MalformedRecordError
from bookie.registry import (
    BookieInfo,
    Cookie,
    LedgerPaths,
    bookie_info,
    check_bookie_id,
    check_layout,
    create_cookie,
    delete_cookie,
    ensure_layout,
    known_bookies,
    list_ledgers,
    new_ledger_id,
    prune_parents,
    read_cookie,
    read_instance_id,
    readonly_bookies,
    register_bookie,
    renew_cookie,
    unregister_bookie,
    update_cookie,
    writable_bookies,
)
from wire.clock import SystemClock
from wire.metadata.memory import MemorySession, MemoryStore
from wire.metadata.store import (
    RecordExistsError,
    StoreUnavailableError,
    VersionConflictError,
)

PATHS = LedgerPaths()
INFO = BookieInfo("b1", "10.0.0.1", 3181)
COOKIE = Cookie("10.0.0.1:3181", ["/j"], ["/d0", "/d1"], "7a1f")


@pytest.fixture
def ensemble() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def store(ensemble: MemoryStore) -> MemorySession:
    return ensemble.session("me")


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (1, "/ledgers/00/0000/L0001"),
        (12345, "/ledgers/00/0001/L2345"),
        (2147483646, "/ledgers/21/4748/L3646"),
        (2147483647, "/ledgers/000/0000/0021/4748/L3647"),
        (4294967301, "/ledgers/000/0000/0042/9496/L7301"),
        (9223372036854775807, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_paths(ledger_id: int, path: str) -> None:
    assert PATHS.ledger(ledger_id) == path


# -- the cluster


async def test_many_hosts_create_the_layout_at_once_and_agree(ensemble: MemoryStore) -> None:
    agreed: list[str] = []

    async def start(number: int) -> None:
        session = ensemble.session(f"host {number}")
        session.link.delay_s = number * 0.0001  # type: ignore[attr-defined]
        agreed.append(await ensure_layout(session, PATHS, random.Random(number)))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(start, number)
    assert len(set(agreed)) == 1
    store = ensemble.session()
    layout = await store.get("/ledgers/LAYOUT")
    assert layout is not None
    assert layout.value == (b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    assert await read_instance_id(store, PATHS) == agreed[0]
    names = await store.get_children("/ledgers")
    assert names == ["INSTANCEID", "LAYOUT", "available", "cookies", "idgen"]


async def test_creating_the_layout_survives_lost_answers(store: MemorySession) -> None:
    for applied in (True, False):
        store.link.lose_next(operation="create", path="/ledgers", applied=applied)  # type: ignore[attr-defined]
    first = await ensure_layout(store, PATHS, random.Random(1))
    assert await ensure_layout(store, PATHS, random.Random(2)) == first


async def test_another_layout_is_refused(store: MemorySession) -> None:
    with pytest.raises(LayoutError, match="missing"):
        await check_layout(store, PATHS)
    with pytest.raises(LayoutError, match="missing"):
        await writable_bookies(store, PATHS)
    await store.create("/ledgers/LAYOUT", b"1\nflat:1", make_parents=True)
    with pytest.raises(LayoutError, match="flat"):
        await ensure_layout(store, PATHS, random.Random(1))


# -- bookies


def test_registration_value() -> None:
    info = BookieInfo("b1", "h", 5, {"k": "v"}, http_port=8)
    assert info.encode().hex() == (
        "32190a06626f6f6b696510051a0168220a626f6f6b69652d727063"  # endpoint bookie, h:5
        "32170a0a6874747073657276657210081a01682204" + b"http".hex() + "3a060a016b120176"
    )
    assert BookieInfo.decode("b1", info.encode()) == info


def test_without_an_endpoint_the_id_is_the_address() -> None:
    assert BookieInfo.decode("10.1.2.3:3181", b"") == BookieInfo("10.1.2.3:3181", "10.1.2.3", 3181)
    for bad in ("b1", ":5", "b:x", "b:70000"):
        with pytest.raises(MalformedRecordError):
            BookieInfo.decode(bad, b"")
    with pytest.raises(MalformedRecordError):
        BookieInfo.decode("b1", b"\xff")


@pytest.mark.parametrize("bookie_id", ["readonly", "", "a/b", "a b", "ä"])
def test_ids_that_others_could_not_store_are_refused(bookie_id: str) -> None:
    with pytest.raises(MalformedRecordError):
        check_bookie_id(bookie_id)


async def test_a_bookie_registers_changes_to_read_only_and_leaves(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(store, PATHS, INFO)
    await register_bookie(store, PATHS, INFO)
    assert await writable_bookies(store, PATHS) == ["b1"]
    assert await bookie_info(store, PATHS, "b1") == INFO
    await register_bookie(store, PATHS, INFO, read_only=True)
    assert await writable_bookies(store, PATHS) == []
    assert await readonly_bookies(store, PATHS) == ["b1"]
    assert await bookie_info(store, PATHS, "b1") == INFO
    moved = BookieInfo("b1", "10.0.0.2", 3182)
    await register_bookie(store, PATHS, moved)
    assert await readonly_bookies(store, PATHS) == []
    assert await bookie_info(store, PATHS, "b1") == moved
    await unregister_bookie(store, PATHS, "b1")
    await unregister_bookie(store, PATHS, "b1")
    assert await writable_bookies(store, PATHS) == []
    assert await bookie_info(store, PATHS, "b1") is None


async def test_a_registration_goes_with_the_session(ensemble: MemoryStore) -> None:
    store, other = ensemble.session("me"), ensemble.session("other")
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(store, PATHS, INFO)
    gone = trio.Event()
    assert await writable_bookies(other, PATHS, gone.set) == ["b1"]
    ensemble.expire(store.session_id)
    await gone.wait()
    assert await writable_bookies(other, PATHS) == []


async def test_a_registration_whose_answer_was_lost_is_ours(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    store.link.lose_next(operation="create", applied=True)  # type: ignore[attr-defined]
    await register_bookie(store, PATHS, INFO)
    assert await writable_bookies(store, PATHS) == ["b1"]


async def test_the_record_of_a_process_that_died_is_waited_out(
    ensemble: MemoryStore, autojump_clock: Clock
) -> None:
    dead, store = ensemble.session("dead"), ensemble.session("me")
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(dead, PATHS, INFO)
    dead.crash()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(register_bookie, store, PATHS, INFO)
        await trio.sleep(2)
        ensemble.expire(dead.session_id)
    record = await store.get("/ledgers/available/b1")
    assert record is not None
    assert record.stat.owner == store.session_id


async def test_an_id_that_is_taken_is_refused(ensemble: MemoryStore, autojump_clock: Clock) -> None:
    other, store = ensemble.session("other"), ensemble.session("me")
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(other, PATHS, INFO)
    with pytest.raises(BookieIdTakenError):
        await register_bookie(store, PATHS, INFO, timeout_s=5)
    await unregister_bookie(store, PATHS, "b1")
    assert await writable_bookies(store, PATHS) == ["b1"]


# -- cookies


def test_cookie_text() -> None:
    assert COOKIE.encode() == (
        b'5\nbookieHost: "10.0.0.1:3181"\njournalDir: "/j"\n'
        b'ledgerDirs: "2\\t/d0\\t/d1"\ninstanceId: "7a1f"\n'
    )
    decoded = Cookie.decode(COOKIE.encode())
    assert decoded.encode() == COOKIE.encode()
    assert decoded.ledger_directories == ("/d0", "/d1")
    with_index = Cookie("b", ["/j"], ["/d"], "i", ["/x"])
    assert Cookie.decode(with_index.encode()).index_directories == ("/x",)


def test_old_and_broken_cookies() -> None:
    old = Cookie.decode(b"3\nb1:3181\n/j\n1\t/d0\n")
    assert (old.bookie_id, old.instance_id) == ("b1:3181", "")
    for bad in (b"", b"6\nx", b"5\nnonsense", b"3\nb\n/j\n2\t/d0", b"\xff\xff", b"5\n"):
        with pytest.raises(MalformedRecordError):
            Cookie.decode(bad)


async def test_cookies_are_kept_by_version(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    assert await read_cookie(store, PATHS, COOKIE.bookie_id) is None
    await create_cookie(store, PATHS, COOKIE)
    await create_cookie(store, PATHS, COOKIE)
    assert await known_bookies(store, PATHS) == ["10.0.0.1:3181"]
    stored = await read_cookie(store, PATHS, COOKIE.bookie_id)
    assert stored is not None
    assert stored.version == 0
    other = Cookie(COOKIE.bookie_id, ["/j"], ["/d0"], "7a1f")
    with pytest.raises(RecordExistsError):
        await create_cookie(store, PATHS, other)
    with pytest.raises(VersionConflictError):
        await update_cookie(store, PATHS, other, 7)
    store.link.lose_next(operation="set", applied=True)  # type: ignore[attr-defined]
    assert await update_cookie(store, PATHS, other, 0) == 1
    await delete_cookie(store, PATHS, COOKIE.bookie_id, 1)
    await delete_cookie(store, PATHS, COOKIE.bookie_id, 1)
    assert await known_bookies(store, PATHS) == []


async def test_a_cookie_that_is_renewed_says_when(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    await create_cookie(store, PATHS, COOKIE)
    born = await read_cookie(store, PATHS, COOKIE.bookie_id)
    assert born is not None
    assert born.modified_txid == born.created_txid
    store.link.lose_next(operation="set", applied=True)  # type: ignore[attr-defined]
    renewed = await renew_cookie(store, PATHS, COOKIE)
    again = await read_cookie(store, PATHS, COOKIE.bookie_id)
    assert again is not None
    assert again.modified_txid == renewed > born.created_txid == again.created_txid
    assert again.cookie.encode() == COOKIE.encode()
    other = Cookie(COOKIE.bookie_id, ["/j"], ["/d0"], "7a1f")
    with pytest.raises(MalformedRecordError):
        await renew_cookie(store, PATHS, other)


# -- ledgers


async def test_ids_are_counted_by_the_store_and_leave_nothing_behind(store: MemorySession) -> None:
    async with trio.open_nursery() as nursery:
        ids = [await new_ledger_id(store, PATHS, nursery) for _ in range(3)]
    assert ids == [0, 1, 2]
    assert await store.get_children("/ledgers/idgen") == []


async def test_an_id_whose_answer_was_lost_is_skipped(store: MemorySession) -> None:
    store.link.lose_next(operation="create", path="/ledgers/idgen/ID-", applied=True)  # type: ignore[attr-defined]
    await store.create("/ledgers/idgen", b"", make_parents=True)
    async with trio.open_nursery() as nursery:
        assert await new_ledger_id(store, PATHS, nursery) == 1


async def test_without_an_answer_at_all_there_is_no_id(
    store: MemorySession, autojump_clock: trio.testing.MockClock
) -> None:
    store.suspend()
    async with trio.open_nursery() as nursery:
        with pytest.raises(StoreUnavailableError):
            await new_ledger_id(store, PATHS, nursery)
        nursery.cancel_scope.cancel()


async def test_long_ids_count_in_generations(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create("/ledgers/idgen-long", b"", make_parents=True)
    async with trio.open_nursery() as nursery:
        assert await new_ledger_id(store, PATHS, nursery) == 1 << 32
        assert await new_ledger_id(store, PATHS, nursery) == (1 << 32) + 1
        overflow(store, monkeypatch, "HOB-0000000001")
        assert await new_ledger_id(store, PATHS, nursery) == 2 << 32


async def test_short_ids_that_are_used_up_become_long_ones(
    store: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow(store, monkeypatch, "/idgen/")
    async with trio.open_nursery() as nursery:
        assert await new_ledger_id(store, PATHS, nursery) == 1 << 32


def overflow(store: MemorySession, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Numbers wrap to negative ones there, as ZooKeeper's do."""
    create: Callable[..., Awaitable[str]] = store.create

    async def wrapped(path: str, value: bytes, **options: bool) -> str:
        if where in path:
            return f"{path}-2147483648"
        return await create(path, value, **options)

    monkeypatch.setattr(store, "create", wrapped)


async def test_listing_finds_all_ledgers_and_nothing_else(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    ids = [0, 7, 12345, 2147483646, 2147483647, 9223372036854775807]
    for ledger_id in ids:
        await store.create(PATHS.ledger(ledger_id), b"", make_parents=True)
    await store.create("/ledgers/underreplication/ledgers", b"", make_parents=True)
    await store.create("/ledgers/00/0000/other", b"")
    assert [ledger_id async for ledger_id in list_ledgers(store, PATHS)] == ids


async def test_a_missing_root_is_no_empty_list(store: MemorySession) -> None:
    with pytest.raises(LayoutError):
        async for _ in list_ledgers(store, PATHS):
            pass


async def test_empty_directories_are_removed_and_others_stay(store: MemorySession) -> None:
    for ledger_id in (1, 2, 10_000):
        await store.create(PATHS.ledger(ledger_id), b"", make_parents=True)
    for ledger_id in (1, 10_000):
        await store.delete(PATHS.ledger(ledger_id), 0)
        await prune_parents(store, PATHS, ledger_id)
    assert await store.get_children("/ledgers/00") == ["0000"]
    await store.delete(PATHS.ledger(2), 0)
    await prune_parents(store, PATHS, 2)
    assert await store.get_children("/ledgers") == []
