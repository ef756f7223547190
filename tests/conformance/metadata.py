"""The contract of a metadata store, run on the one in memory and on real ZooKeeper.

A test module derives a class from `MetadataSuite` and has a fixture `world`.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest
import trio

from daybook.wire.metadata.store import (
    ANY,
    REQUEST_BYTES_MAX,
    VALUE_BYTES_MAX,
    Check,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    Operation,
    OutcomeUnknownError,
    RecordExistsError,
    SessionState,
    Set,
    StoreUnavailableError,
    VersionConflictError,
)
from daybook.wire.metadata.update import update

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST
REQUEST_TIMEOUT_S = 5.0
PATIENCE_S = 180.0  # only so that nothing hangs forever


class World(Protocol):
    """A metadata store with an empty tree, and the faults of the hosts that use it."""

    async def open(self) -> MetadataStore:
        """Open a session for another host.  Its requests wait for `REQUEST_TIMEOUT_S`."""
        ...

    async def close(self, store: MetadataStore) -> None: ...

    def suspend(self, store: MetadataStore) -> None:
        """Cut the host off."""
        ...

    def resume(self, store: MetadataStore) -> None: ...

    async def expire(self, store: MetadataStore) -> None:
        """Let the store end the session, whether the host is cut off or not."""
        ...

    def lose_next_answer(self, store: MetadataStore, *, applied: bool) -> None:
        """Lose the next request, or only its answer."""
        ...


class Calls:
    """A watch, or a listener, that counts its calls."""

    def __init__(self) -> None:
        self.count = 0
        self.states: list[SessionState] = []
        self._called = trio.Event()

    def __call__(self, *states: SessionState) -> None:
        self.count += 1
        self.states += states
        self._called.set()
        self._called = trio.Event()

    async def wait(self, done: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not done():
                await self._called.wait()

    async def wait_count(self, count: int) -> None:
        await self.wait(lambda: self.count >= count)
        assert self.count == count

    async def wait_states(self, *states: SessionState) -> None:
        await self.wait(lambda: len(self.states) >= len(states))
        assert self.states == list(states)


class MetadataSuite:
    async def test_a_record_is_created_read_replaced_and_deleted(self, world: World) -> None:
        store = await world.open()
        assert await store.create("/a", b"one") == "/a"
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"one"
        assert (record.stat.version, record.stat.owner, record.stat.children_count) == (0, 0, 0)
        assert record.stat.created_txid == record.stat.modified_txid
        assert (await store.set("/a", b"two", 0)).version == 1
        changed = await store.get("/a")
        assert changed is not None
        assert (changed.value, changed.stat.version) == (b"two", 1)
        assert changed.stat.created_txid == record.stat.created_txid < changed.stat.modified_txid
        await store.delete("/a", 1)
        assert await store.get("/a") is None

    async def test_a_write_tells_what_is_below_the_record_at_that_moment(
        self, world: World
    ) -> None:
        store = await world.open()
        await store.create("/a", b"")
        assert (await store.set("/a", b"1", 0)).children_count == 0
        await store.create("/a/b", b"")
        written = await store.set("/a", b"2", 1)
        assert written.children_count == 1
        record = await store.get("/a")
        assert record is not None
        assert record.stat == written

    async def test_all_hosts_see_the_same_records(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.create("/a", b"one")
        await two.sync("/a")
        record = await two.get("/a")
        assert record == await one.get("/a")
        await two.set("/a", b"two", 0)
        await one.sync("/a")
        record = await one.get("/a")
        assert record is not None
        assert record.value == b"two"

    async def test_the_newest_state_has_everything_that_was_written_before(
        self, world: World
    ) -> None:
        one, two = await world.open(), await world.open()
        assert await two.get_newest("/a") is None
        assert await two.get_newest_children("/a") is None
        await one.create("/a", b"0")
        for number in range(20):
            await one.set("/a", b"%d" % (number + 1), number)
            await one.create(f"/a/{number}", b"")
            record = await two.get_newest("/a")
            assert record is not None
            assert record.stat.version == number + 1
            assert len(await two.get_newest_children("/a") or ()) == number + 1

    async def test_writes_are_conditional(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"")
        for version in (1, 7):
            with pytest.raises(VersionConflictError):
                await store.set("/a", b"x", version)
            with pytest.raises(VersionConflictError):
                await store.delete("/a", version)
        assert (await store.set("/a", b"x", ANY)).version == 1
        with pytest.raises(VersionConflictError):
            await store.set("/a", b"x", 0)
        await store.delete("/a", ANY)

    async def test_refusals_have_names(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"")
        with pytest.raises(RecordExistsError):
            await store.create("/a", b"")
        with pytest.raises(NoRecordError):
            await store.create("/b/c", b"")
        with pytest.raises(NoRecordError):
            await store.set("/b", b"", ANY)
        with pytest.raises(NoRecordError):
            await store.delete("/b", ANY)
        await store.create("/a/c", b"")
        with pytest.raises(NotEmptyError):
            await store.delete("/a", ANY)
        with pytest.raises(MetadataError):
            await store.create("/huge", bytes(REQUEST_BYTES_MAX))
        await store.create("/large", bytes(VALUE_BYTES_MAX))

    async def test_missing_parents_are_made_on_request(self, world: World) -> None:
        store = await world.open()
        assert await store.create("/a/b/c", b"x", make_parents=True) == "/a/b/c"
        parent = await store.get("/a/b")
        assert parent is not None
        assert (parent.value, parent.stat.owner) == (b"", 0)
        await store.create("/a/b/d", b"x", make_parents=True, ephemeral=True)
        with pytest.raises(RecordExistsError):
            await store.create("/a/b/c", b"y", make_parents=True)
        assert await store.get_children("/a/b") == ["c", "d"]

    async def test_children_are_listed_in_order(self, world: World) -> None:
        store = await world.open()
        assert await store.get_children("/a") is None
        await store.create("/a", b"")
        assert await store.get_children("/a") == []
        for name in ("z", "b", "m"):
            await store.create(f"/a/{name}", b"")
        assert await store.get_children("/a") == ["b", "m", "z"]
        assert "a" in (await store.get_children("/") or [])

    async def test_sequential_records_are_numbered_by_the_children_so_far(
        self, world: World
    ) -> None:
        store = await world.open()
        await store.create("/a", b"")
        assert await store.create("/a/n-", b"", sequential=True) == "/a/n-0000000000"
        await store.create("/a/other", b"")
        await store.delete("/a/other", ANY)
        assert await store.create("/a/m-", b"", sequential=True) == "/a/m-0000000002"
        made = await store.create("/b/c/", b"", sequential=True, ephemeral=True, make_parents=True)
        assert made == "/b/c/0000000000"

    async def test_the_children_version_counts_creations_and_deletions(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"")
        await store.create("/a/b", b"")
        await store.create("/a/c", b"")
        await store.delete("/a/b", ANY)
        await store.set("/a/c", b"x", ANY)
        record = await store.get("/a")
        assert record is not None
        assert (record.stat.version, record.stat.children_version) == (0, 3)
        assert record.stat.children_count == 1

    # Ephemeral records

    async def test_ephemeral_records_end_with_their_session(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.create("/a", b"")
        await one.create("/a/e", b"", ephemeral=True)
        await two.sync("/a")
        record = await two.get("/a/e")
        assert record is not None
        assert record.stat.owner == one.session_id != two.session_id
        gone = Calls()
        assert await two.get_children("/a", gone) == ["e"]
        await world.close(one)
        await gone.wait_count(1)
        assert await two.get_children("/a") == []

    async def test_ephemeral_records_have_no_children(self, world: World) -> None:
        store = await world.open()
        await store.create("/e", b"", ephemeral=True)
        with pytest.raises(MetadataError):
            await store.create("/e/a", b"")
        assert await store.get("/e/a") is None

    async def test_ephemeral_records_survive_a_gap_in_the_contact(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.create("/e", b"", ephemeral=True)
        session_id = one.session_id
        heard = Calls()
        one.add_session_listener(heard)
        world.suspend(one)
        await heard.wait_states(SUSPENDED)
        assert one.session_state is SUSPENDED
        world.resume(one)
        await heard.wait_states(SUSPENDED, CONNECTED)
        assert one.session_id == session_id
        assert await two.get("/e") is not None

    # Several operations in one

    async def test_a_multi_is_carried_out_as_a_whole(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"0")
        await store.create("/old", b"")
        assert await store.multi(
            [
                Check("/a", 0),
                Create("/a/b", b"1"),
                Create("/e", b"2", ephemeral=True),
                Set("/a", b"1", 0),
                Set("/a", b"2", 1),
                Delete("/old", 0),
                Check("/a", ANY),
            ]
        ) == [-1, 0, 0, 1, 2, -1, -1]
        record, child, ephemeral = [await store.get(path) for path in ("/a", "/a/b", "/e")]
        assert record is not None
        assert child is not None
        assert ephemeral is not None
        assert record.value == b"2"
        assert record.stat.modified_txid == child.stat.created_txid == ephemeral.stat.created_txid
        assert ephemeral.stat.owner == store.session_id
        assert await store.get("/old") is None
        assert await store.multi([]) == []

    async def test_a_multi_is_refused_as_a_whole(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"0")
        await store.create("/a/child", b"")
        fine: list[Operation] = [
            Create("/new", b""),
            Set("/a", b"1", 0),
            Delete("/a/child", 0),
            Create("/e", b"", True),
        ]
        refused: list[tuple[list[Operation], type[MetadataError]]] = [
            ([Check("/a", 0)], VersionConflictError),
            ([Check("/b", ANY)], NoRecordError),
            ([Create("/new", b"")], RecordExistsError),
            ([Set("/b", b"", ANY), Check("/a", 7)], NoRecordError),
            ([Delete("/a", 7), Set("/b", b"", ANY)], VersionConflictError),
            ([Create("/e/child", b"")], MetadataError),
        ]
        before = await store.get("/a")
        for bad, error in refused:
            with pytest.raises(error):
                await store.multi([*fine, *bad])
            assert await store.get("/a") == before
            assert await store.get("/new") is None
            assert await store.get("/e") is None
            assert await store.get_children("/a") == ["child"]
        with pytest.raises(NotEmptyError):
            await store.multi([Delete("/a", ANY)])
        assert await store.create("/a/s", b"", sequential=True) == "/a/s0000000001"

    # Watches

    async def test_a_watch_on_a_record_is_called_once(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.create("/a", b"")
        changed, own, deleted, created = Calls(), Calls(), Calls(), Calls()
        await one.get("/a", changed)
        await two.get("/a", own)
        await two.create("/a/child", b"")  # is not a change of the record
        assert (changed.count, own.count) == (0, 0)
        await two.set("/a", b"1", ANY)
        await two.set("/a", b"2", ANY)
        await changed.wait_count(1)
        await own.wait_count(1)
        await two.delete("/a/child", ANY)
        await one.get("/a", deleted)
        await two.delete("/a", ANY)
        await deleted.wait_count(1)
        assert await one.get("/a", created) is None
        await two.create("/a", b"")
        await created.wait_count(1)
        assert (changed.count, own.count, deleted.count) == (1, 1, 1)

    async def test_a_watch_on_the_children_is_called_once(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        missing, added, removed, gone = Calls(), Calls(), Calls(), Calls()
        assert await one.get_children("/a", missing) is None
        await one.create("/a", b"")
        await one.get_children("/a", added)
        await two.set("/a", b"1", ANY)  # is not a change of its children
        await two.create("/a/b", b"")
        await added.wait_count(1)
        await two.set("/a/b", b"1", ANY)
        await one.get_children("/a", removed)
        await two.multi([Delete("/a/b", ANY), Create("/a/c", b""), Delete("/a/c", ANY)])
        await removed.wait_count(1)
        await one.get_children("/a", gone)
        await two.delete("/a", ANY)
        await gone.wait_count(1)
        assert (missing.count, added.count, removed.count) == (0, 1, 1)

    async def test_many_watches_on_one_record_are_all_called(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"")
        calls = [Calls() for _ in range(3)]
        for watch in calls:
            await store.get("/a", watch)
        await store.get("/a", calls[0])
        await store.set("/a", b"1", 0)
        await calls[0].wait_count(2)
        await calls[1].wait_count(1)
        await calls[2].wait_count(1)

    async def test_a_watch_sees_what_changed_behind_a_gap(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.create("/a", b"")
        record, children, heard = Calls(), Calls(), Calls()
        await one.get("/a", record)
        await one.get_children("/a", children)
        one.add_session_listener(heard)
        world.suspend(one)
        await heard.wait_states(SUSPENDED)
        await two.set("/a", b"1", 0)
        await two.create("/a/b", b"")
        assert (record.count, children.count) == (0, 0)
        world.resume(one)
        await record.wait_count(1)
        await children.wait_count(1)
        assert await one.get_children("/a") == ["b"]

    async def test_watches_are_called_when_the_session_is_lost(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"")
        record, missing, children = Calls(), Calls(), Calls()
        await store.get("/a", record)
        await store.get("/b", missing)
        await store.get_children("/a", children)
        await world.expire(store)
        for watch in (record, missing, children):
            await watch.wait_count(1)

    # Sessions

    async def test_a_lost_session_takes_its_records_along_and_is_followed_by_another(
        self, world: World
    ) -> None:
        one, two = await world.open(), await world.open()
        heard = Calls()
        one.add_session_listener(heard)
        session_id = one.session_id
        await one.create("/e", b"", ephemeral=True)
        await world.expire(one)
        await heard.wait(lambda: heard.states[-1:] == [CONNECTED])
        assert [s for s in heard.states if s is not SUSPENDED] == [LOST, CONNECTED]
        assert one.session_state is CONNECTED
        assert one.session_id not in (0, session_id)
        await two.sync("/e")
        assert await two.get("/e") is None
        await one.create("/e", b"", ephemeral=True)
        one.remove_session_listener(heard)

    async def test_a_host_that_is_cut_off_learns_of_the_loss_when_it_is_back(
        self, world: World
    ) -> None:
        one, two = await world.open(), await world.open()
        await one.create("/e", b"", ephemeral=True)
        heard, gone = Calls(), Calls()
        one.add_session_listener(heard)
        await two.get("/e", gone)
        world.suspend(one)
        await heard.wait_states(SUSPENDED)
        await world.expire(one)
        await gone.wait_count(1)
        assert one.session_state is SUSPENDED
        world.resume(one)
        await heard.wait_states(SUSPENDED, LOST, CONNECTED)

    async def test_a_request_waits_for_contact(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"0")
        await self.cut_off(world, store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.set, "/a", b"1", 0)
            nursery.start_soon(store.get, "/a")
            await trio.sleep(0.01)
            world.resume(store)
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"1"

    async def test_a_request_that_was_not_sent_is_known_to_have_failed(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"0")
        await self.cut_off(world, store)
        async with trio.open_nursery() as nursery:
            for attempt in (
                lambda: store.get("/a"),
                lambda: store.get_children("/a"),
                lambda: store.sync("/a"),
                lambda: store.get_newest("/a"),
                lambda: store.get_newest_children("/a"),
                lambda: store.create("/b", b""),
                lambda: store.create("/c/d", b"", make_parents=True),
                lambda: store.set("/a", b"1", ANY),
                lambda: store.delete("/a", ANY),
                lambda: store.multi([Set("/a", b"1", ANY)]),
            ):
                nursery.start_soon(raises_unavailable, attempt)
        world.resume(store)
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"0"
        assert await store.get("/b") is None

    async def test_no_request_crosses_into_another_session(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        await self.cut_off(world, one)
        await world.expire(one)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raises_unavailable, lambda: one.create("/e", b"", ephemeral=True))
            await trio.sleep(0.01)
            world.resume(one)
        assert await two.get("/e") is None

    async def test_a_closed_store_answers_nothing(self, world: World) -> None:
        store = await world.open()
        await world.close(store)
        with pytest.raises(StoreUnavailableError):
            await store.get("/a")

    # Lost answers

    @pytest.mark.parametrize("applied", [True, False])
    async def test_a_write_without_an_answer_is_unknown(self, world: World, applied: bool) -> None:
        store = await world.open()
        await store.create("/a", b"0")
        writes: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("/b", lambda: store.create("/b", b"1")),
            ("/a", lambda: store.set("/a", b"1", 0)),
            ("/a", lambda: store.multi([Set("/a", b"1", ANY), Create("/c", b"")])),
        ]
        for path, write in writes:
            before = await store.get(path)
            world.lose_next_answer(store, applied=applied)
            with pytest.raises(OutcomeUnknownError):
                await write()
            assert (await store.get(path) != before) is applied

    async def test_a_read_without_an_answer_may_be_repeated(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"0")
        changed = Calls()
        world.lose_next_answer(store, applied=True)
        with pytest.raises(StoreUnavailableError):
            await store.get("/a", changed)
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"0"

    async def test_a_cancelled_write_leaves_the_store_in_order(self, world: World) -> None:
        store = await world.open()
        await store.create("/a", b"0")
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.set("/a", b"1", 0)
        record = await store.get("/a")
        assert record is not None
        assert record.stat.version in (0, 1)
        assert (await store.set("/a", b"2", record.stat.version)).version == record.stat.version + 1

    # Compare-and-swap

    async def test_updates_of_many_hosts_are_all_kept(self, world: World) -> None:
        one, two = await world.open(), await world.open()
        await one.create("/a", b"")
        async with trio.open_nursery() as nursery:
            for number in range(8):
                store = one if number % 2 else two
                nursery.start_soon(update, store, "/a", adding(number))
        record = await one.get("/a")
        assert record is not None
        assert sorted(record.value) == list(range(8))
        assert record.stat.version == 8

    @pytest.mark.parametrize("applied", [True, False])
    async def test_an_update_whose_answer_is_lost_is_made_once(
        self, world: World, applied: bool
    ) -> None:
        store = await world.open()
        await store.create("/a", b"")
        known = await store.get("/a")
        world.lose_next_answer(store, applied=applied)
        assert await update(store, "/a", adding(1), known=known) == (b"\1", 1)
        assert await update(store, "/a", adding(2)) == (b"\1\2", 2)
        assert await update(store, "/a", adding(1)) == (b"\1\2", 2)

    async def cut_off(self, world: World, store: MetadataStore) -> None:
        heard = Calls()
        store.add_session_listener(heard)
        world.suspend(store)
        await heard.wait_states(SUSPENDED)
        store.remove_session_listener(heard)


async def raises_unavailable(attempt: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(StoreUnavailableError):
        await attempt()


def adding(number: int) -> Callable[[bytes], bytes | None]:
    return lambda value: None if number in value else value + bytes([number])
