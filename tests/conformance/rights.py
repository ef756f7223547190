"""The contract of a metadata store about rights, run on the one in memory and on real ZooKeeper.

A test module derives a class from `RightsSuite` and has a fixture `world`.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest
import trio

from daybook.wire.metadata import protection
from daybook.wire.metadata.acl import ALL, OPEN_ACL, OWN, WORLD, Acl, Grant, digest_identity
from daybook.wire.metadata.announce import Announcer, Process, announced, announcement_path
from daybook.wire.metadata.protection import PATH, Protection, Step
from daybook.wire.metadata.store import (
    ANY,
    AccessDeniedError,
    Check,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    RecordExistsError,
    Set,
    VersionConflictError,
)

PASSWORD = "geheim"
PATIENCE_S = 180.0


class World(Protocol):
    """A metadata store with an empty tree."""

    async def open(self, *, user: str = "") -> MetadataStore:
        """Open a session for a user, or for a stranger."""
        ...

    async def close(self, store: MetadataStore) -> None: ...


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not await done():  # noqa: ASYNC110  another process
            await trio.sleep(0.02)


def identity(user: str) -> str:
    return digest_identity(user, PASSWORD)


def closed(*users: str, step: Step = Step.PROTECTED, generation: int = 1) -> Protection:
    return Protection(generation, step, ("/ledgers",), tuple(identity(user) for user in users))


async def protect(store: MetadataStore, new: Protection) -> None:
    """Write the protection of a tree as `daybook cluster secure-metadata` does."""
    await store.create("/daybook/lost", b"", make_parents=True)
    readable = (*new.private, Grant(WORLD, "r"))
    await store.multi(
        [
            Create(PATH, new.encode(), acl=readable),
            Create(new.identities_path, new.encode_identities(), acl=new.private),
        ]
    )


class RightsSuite:
    async def test_records_are_open_unless_someone_says_otherwise(self, world: World) -> None:
        store = await world.open(user="a")
        await store.create("/x", b"")
        assert await store.get_acl("/x") == OPEN_ACL
        assert await store.get_acl("/missing") is None
        assert await store.protection() == Protection()

    async def test_the_own_list_names_all_identities_of_the_session(self, world: World) -> None:
        store = await world.open(user="a")
        await store.create("/x", b"", acl=(Grant(OWN, ALL), Grant(WORLD, "r")))
        assert await store.get_acl("/x") == (Grant(identity("a"), ALL), Grant(WORLD, "r"))

    async def test_a_session_without_identity_has_no_own_list(self, world: World) -> None:
        store = await world.open()
        with pytest.raises(MetadataError):
            await store.create("/x", b"", acl=(Grant(OWN, ALL),))
        assert await store.get("/x") is None

    async def test_a_stranger_may_only_read(self, world: World) -> None:
        owner, stranger, other = (
            await world.open(user="a"),
            await world.open(),
            await world.open(user="b"),
        )
        readable = (Grant(identity("a"), ALL), Grant(WORLD, "r"))
        await owner.create("/x", b"1", acl=readable)
        await owner.create("/x/y", b"2", acl=readable)
        for store in (stranger, other):
            await store.sync("/x")
            record = await store.get("/x")
            assert record is not None
            assert record.value == b"1"
            assert await store.get_children("/x") == ["y"]
            for forbidden in (
                store.set("/x", b"", ANY),
                store.delete("/x/y", ANY),
                store.create("/x/z", b""),
                store.set_acl("/x", OPEN_ACL),
                store.multi([Set("/x", b"", ANY)]),
                store.multi([Create("/x/z", b"")]),
                store.multi([Check("/x", 0), Delete("/x/y", 0)]),
            ):
                with pytest.raises(AccessDeniedError):
                    await forbidden
            assert await store.get_acl("/x") == (Grant("digest:a:x", ALL), Grant(WORLD, "r"))
        await owner.delete("/x/y", 0)

    async def test_a_refusal_says_what_to_do(self, world: World) -> None:
        owner, stranger, other = (
            await world.open(user="a"),
            await world.open(),
            await world.open(user="b"),
        )
        await owner.create("/x", b"", acl=(Grant(OWN, ALL),))
        with pytest.raises(AccessDeniedError, match="no identity: set zookeeper_user"):
            await stranger.set("/x", b"", ANY)
        with pytest.raises(AccessDeniedError, match="check zookeeper_user and the password"):
            await other.set("/x", b"", ANY)

    async def test_what_may_not_be_read_is_denied_and_not_missing(self, world: World) -> None:
        owner, stranger = await world.open(user="a"), await world.open()
        await owner.create("/x", b"", acl=(Grant(OWN, ALL),))
        await stranger.sync("/x")
        for forbidden in (
            stranger.get("/x"),
            stranger.get_children("/x"),
            stranger.get_newest("/x"),
            stranger.get_newest_children("/x"),
            stranger.get_acl("/x"),
            stranger.multi([Check("/x", 0)]),
        ):
            with pytest.raises(AccessDeniedError):
                await forbidden
        with pytest.raises(AccessDeniedError):
            await stranger.create("/x/y/z", b"", make_parents=True)

    async def test_rights_are_checked_before_versions(self, world: World) -> None:
        owner, stranger = await world.open(user="a"), await world.open()
        await owner.create("/x", b"", acl=(Grant(OWN, ALL), Grant(WORLD, "r")))
        with pytest.raises(AccessDeniedError):
            await stranger.set("/x", b"", 7)
        with pytest.raises(AccessDeniedError):
            await stranger.create("/x/y", b"")
        await owner.create("/x/y", b"")
        with pytest.raises(AccessDeniedError):
            await stranger.create("/x/y", b"")
        with pytest.raises(RecordExistsError):
            await owner.create("/x/y", b"")
        with pytest.raises(VersionConflictError):
            await owner.set("/x", b"", 7)

    async def test_a_list_can_be_replaced(self, world: World) -> None:
        owner, stranger = await world.open(user="a"), await world.open()
        await owner.create("/x", b"")
        lists: tuple[Acl, ...] = ((Grant(identity("a"), ALL),), OPEN_ACL)
        await owner.set_acl("/x", lists[0])
        with pytest.raises(AccessDeniedError):
            await stranger.set("/x", b"", ANY)
        await owner.set_acl("/x", lists[1])
        await stranger.set("/x", b"", ANY)

    async def test_ephemeral_records_end_with_their_session_whatever_their_list(
        self, world: World
    ) -> None:
        owner, watcher = await world.open(user="a"), await world.open(user="a")
        await owner.create("/x", b"", ephemeral=True, acl=(Grant(identity("b"), ALL),))
        assert "x" in (await watcher.get_newest_children("/") or [])
        await world.close(owner)

        async def gone() -> bool:
            return "x" not in (await watcher.get_newest_children("/") or [])

        await until(gone)

    # -- the protection of the tree

    async def test_new_records_follow_the_protection(self, world: World) -> None:
        store = await world.open(user="a")
        await protect(store, closed("a", "b"))
        assert await store.protection() == closed("a", "b")
        ours = (Grant(identity("a"), ALL), Grant(identity("b"), ALL))
        await store.create("/ledgers/00/0001/L0002", b"password", make_parents=True)
        await store.multi([Create("/ledgers/00/0001/L0003", b"", ephemeral=True)])
        for path in ("/ledgers", "/ledgers/00", "/ledgers/00/0001"):
            assert await store.get_acl(path) == (*ours, Grant(WORLD, "r")), path
        for number in (2, 3):
            assert await store.get_acl(f"/ledgers/00/0001/L000{number}") == ours
        made = await store.create("/topics/n-", b"", sequential=True, make_parents=True)
        assert await store.get_acl(made) == (*ours, Grant(WORLD, "r"))

    async def test_all_sessions_hear_of_a_change(self, world: World) -> None:
        one, two = await world.open(user="a"), await world.open(user="a")
        changed = trio.Event()
        assert await two.protection(changed.set) == Protection()
        await protect(one, closed("a"))
        with trio.fail_after(PATIENCE_S):
            await changed.wait()
        assert await two.protection() == closed("a")
        await two.create("/x", b"")
        assert await two.get_acl("/x") == (Grant(identity("a"), ALL), Grant(WORLD, "r"))

    async def test_open_steps_leave_new_records_open(self, world: World) -> None:
        store = await world.open(user="a")
        await protect(store, closed("a", step=Step.OPENING))
        # The identities are known until all lists are gone: the way back needs them.
        assert await store.protection() == closed("a", step=Step.OPENING)
        await store.create("/x", b"")
        assert await store.get_acl("/x") == OPEN_ACL

    async def test_strangers_learn_the_step_and_not_the_identities(self, world: World) -> None:
        owner, stranger = await world.open(user="a"), await world.open()
        await protect(owner, closed("a"))
        await stranger.sync(PATH)

        async def heard() -> bool:
            return (await stranger.protection()).step is Step.PROTECTED

        await until(heard)
        found = await stranger.protection()
        assert (found.known, found.identities) == (False, ())
        with pytest.raises(AccessDeniedError):
            await stranger.get(closed("a").identities_path)

    async def test_nonsense_in_the_record_stops_creations(self, world: World) -> None:
        store = await world.open(user="a")
        await store.create("/daybook", b"")
        await store.create(PATH, b"{", acl=OPEN_ACL)

        async def refused() -> bool:
            try:
                await store.create("/x", b"")
            except MetadataError as error:
                return "cannot be parsed" in str(error)
            await store.delete("/x", ANY)
            return False

        await until(refused)

    async def test_processes_announce_themselves_with_proof(self, world: World) -> None:
        one, two = await world.open(user="a"), await world.open()
        for store, name in ((one, "one"), (two, "two")):
            await Announcer(store, Process("broker", name), store is one).announce()
        found = {each.process.name: each for each in await announced(one)}
        assert found["one"].identities == (identity("a"),)
        assert found["two"].identities == ()
        assert {each.session for each in found.values()} == {one.session_id, two.session_id}
        with pytest.raises(AccessDeniedError):
            await two.set(announcement_path(one.session_id), b"", ANY)

    async def test_an_announcement_follows_the_protection(self, world: World) -> None:
        one, two = await world.open(user="a"), await world.open(user="b")
        announcer = Announcer(two, Process("bookie", "two"), True)
        await announcer.announce()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announcer.run)
            await protect(one, closed("a", "b"))

            async def followed() -> bool:
                return [each.generation for each in await announced(one)] == [1]

            await until(followed)
            nursery.cancel_scope.cancel()
        # The tree's identities see who it is, although it has another one.
        assert (await announced(one))[0].identities == (identity("b"),)


def test_which_records_strangers_may_not_read() -> None:
    known = closed("a")
    private = known.private
    for path in ("/ledgers/00/0001/L2345", "/ledgers/000/0000/0021/4748/L3647", "/ledgers/L01"):
        assert known.acl(path) == private, path
    assert known.acl(known.identities_path) == private
    for path in (
        *("/ledgers", "/ledgers/00", "/ledgers/cookies/b:1", "/ledgers/available/L1:3181"),
        *("/managed-ledgers/a/b/persistent/L0001", "/other/00/0001/L2345", protection.PATH),
        "/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL0000000001",
    ):
        assert known.acl(path) == (*private, Grant(WORLD, "r")), path
