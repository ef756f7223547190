"""The metadata store on real ZooKeeper: the suite, and memory against ZooKeeper."""

import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient

from daybook.wire.clock import SystemClock
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.metadata.acl import ALL, OPEN_ACL, OWN, WORLD, Grant, digest_identity
from daybook.wire.metadata.announce import Process
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.protection import Step
from daybook.wire.metadata.store import (
    ANY,
    AccessDeniedError,
    Check,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    NoChrootError,
    Operation,
    SessionState,
    Set,
    Stat,
    StoreUnavailableError,
    VersionConflictError,
)
from daybook.wire.metadata.zookeeper import ZooKeeperStore, open_zookeeper
from daybook.wire.tls_files import TlsFiles
from tests.conformance.metadata import PATIENCE_S, REQUEST_TIMEOUT_S, Calls, MetadataSuite
from tests.conformance.rights import PASSWORD, RightsSuite, closed, protect
from tests.harness.links import FINE, Link, open_link_to
from tests.harness.zookeeper import ZooKeeperProcess, run_zookeeper

pytestmark = pytest.mark.real
SESSION_TIMEOUT_S = 60.0  # a JVM starts in one second, or in thirty
SHORT_SESSION_TIMEOUT_S = 3 * REQUEST_TIMEOUT_S  # silence is noticed after two thirds of it
_serial = count()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with run_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


class ZooKeeperWorld:
    def __init__(
        self,
        port: int,
        nursery: trio.Nursery,
        *,
        passwords: Path | None = None,
        access: ZooKeeperAccess | None = None,
    ) -> None:
        """`passwords` is the file with the password of all users."""
        self._passwords = passwords
        self._port = port
        self._access = access or ZooKeeperAccess()
        self._nursery = nursery
        self._root = f"/test/{next(_serial)}"
        self._proxies: dict[MetadataStore, Link] = {}
        self._closers: dict[MetadataStore, trio.Event] = {}
        self._closed: dict[MetadataStore, trio.Event] = {}

    async def open(
        self,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        *,
        user: str = "",
    ) -> MetadataStore:
        access = replace(self._access, user=user, password_file=self._passwords)
        store: ZooKeeperStore = await self._nursery.start(
            self._hold_open, session_timeout_s, request_timeout_s, access
        )
        return store

    async def _hold_open(
        self,
        session_timeout_s: float,
        request_timeout_s: float,
        access: ZooKeeperAccess,
        task_status: trio.TaskStatus[ZooKeeperStore],
    ) -> None:
        closer, closed = trio.Event(), trio.Event()
        async with (
            open_link_to(self._port) as proxy,
            open_zookeeper(
                f"127.0.0.1:{proxy.listens[1]}",
                session_timeout_s=session_timeout_s,
                root=self._root,
                request_timeout_s=request_timeout_s,
                connect_timeout_s=PATIENCE_S,
                access=access,
            ) as store,
        ):
            self._proxies[store], self._closers[store], self._closed[store] = proxy, closer, closed
            task_status.started(store)
            await closer.wait()
        closed.set()

    async def close(self, store: MetadataStore) -> None:
        self._closers[store].set()
        await self._closed[store].wait()

    def suspend(self, store: MetadataStore) -> None:
        self._proxies[store].refuse()

    def resume(self, store: MetadataStore) -> None:
        self._proxies[store].weather = FINE

    async def expire(self, store: MetadataStore) -> None:
        """ZooKeeper ends a session when another connection takes it over and closes it."""
        assert isinstance(store, ZooKeeperStore)
        kazoo = store._kazoo
        assert kazoo is not None
        # Without contact kazoo does not reveal these, but it keeps them for the reconnect.
        internals: Any = kazoo
        client_id = (internals._session_id, internals._session_passwd)

        def end() -> None:
            tls = self._access.tls or TlsFiles()
            thief = KazooClient(
                f"127.0.0.1:{self._port}",
                client_id=client_id,
                timeout=60,
                use_ssl=self._access.tls is not None,
                ca=tls.trusted,
                certfile=tls.certificate,
                keyfile=tls.key,
            )
            thief.start(PATIENCE_S)
            thief.stop()
            thief.close()

        await trio.to_thread.run_sync(end)

    def lose_next_answer(self, store: MetadataStore, *, applied: bool) -> None:
        self._proxies[store].lose_next(there=not applied)


@pytest.fixture
async def world(zookeeper: ZooKeeperProcess, tmp_path: Path) -> AsyncGenerator[ZooKeeperWorld]:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    async with trio.open_nursery() as nursery:
        yield ZooKeeperWorld(zookeeper.port, nursery, passwords=tmp_path / "password")
        nursery.cancel_scope.cancel()


class TestZooKeeper(MetadataSuite):
    pass


class TestRightsInZooKeeper(RightsSuite):
    pass


async def test_memory_and_zookeeper_give_the_same_answers(world: ZooKeeperWorld) -> None:
    # A server that stands still for a while gives no answer, and is not compared here.
    real = await world.open(request_timeout_s=PATIENCE_S)
    memory = MemoryStore(SystemClock()).session()
    rng = random.Random(1)
    for step in range(400):
        operation = draw(rng)
        assert await outcome(real, operation) == await outcome(memory, operation), (step, operation)


def draw(rng: random.Random) -> tuple[Any, ...]:
    path = rng.choice(["/a", "/b", "/a/c", "/a/d", "/a/c/e", "/b/f"])
    match rng.randrange(8):
        case 0:
            return ("create", path, b"", rng.random() < 0.2, rng.random() < 0.3)
        case 1:
            return ("set", path, b"x", rng.choice([ANY, 0, 1, 2]))
        case 2:
            return ("delete", path, rng.choice([ANY, 0, 1]))
        case 3 | 4:
            return ("multi", [draw_operation(rng) for _ in range(rng.randint(1, 4))])
        case 5:
            return ("get_children", path)
        case _:
            return ("get", path)


def draw_operation(rng: random.Random) -> Operation:
    path = rng.choice(["/a", "/b", "/a/c", "/b/f"])
    match rng.randrange(3):
        case 0:
            return Create(path, b"m", ephemeral=rng.random() < 0.2)
        case 1:
            return Set(path, b"m", rng.choice([ANY, 0, 1]))
        case _:
            return Delete(path, rng.choice([ANY, 0]))


async def outcome(store: MetadataStore, operation: tuple[Any, ...]) -> object:
    """Return the store's answer, without ids and times, which differ between two stores."""
    try:
        match operation:
            case ("create", path, value, ephemeral, sequential):
                return await store.create(path, value, ephemeral=ephemeral, sequential=sequential)
            case ("get", path):
                record = await store.get(path)
                if record is None:
                    return None
                return record.value, _facts(store, record.stat)
            case ("set", *arguments):
                return _facts(store, await store.set(*arguments))
            case (name, *arguments):
                return await getattr(store, name)(*arguments)
            case _:
                raise AssertionError(operation)
    except MetadataError as error:
        return type(error)


def _facts(store: MetadataStore, stat: Stat) -> tuple[int, bool, int, int]:
    owned = stat.owner == store.session_id
    return stat.version, owned, stat.children_count, stat.children_version


async def test_the_session_outlives_a_restart_of_zookeeper(
    zookeeper: ZooKeeperProcess, world: ZooKeeperWorld
) -> None:
    store = await world.open()
    await store.create("/e", b"", ephemeral=True)
    session_id = store.session_id
    heard = Calls()
    store.add_session_listener(heard)
    zookeeper.kill()
    await heard.wait_states(SessionState.SUSPENDED)
    await trio.to_thread.run_sync(zookeeper.start)
    await heard.wait_states(SessionState.SUSPENDED, SessionState.CONNECTED)
    record = await store.get("/e")
    assert record is not None
    assert record.stat.owner == store.session_id == session_id


async def test_a_zookeeper_that_falls_silent_is_unknown_not_failed(
    zookeeper: ZooKeeperProcess, world: ZooKeeperWorld
) -> None:
    store = await world.open(SHORT_SESSION_TIMEOUT_S)
    heard = Calls()
    store.add_session_listener(heard)
    zookeeper.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(MetadataError, match="did not answer to a write"):
            await store.create("/a", b"")
        await heard.wait_states(SessionState.SUSPENDED)
    finally:
        zookeeper.process.send_signal(signal.SIGCONT)
    await heard.wait(lambda: heard.states[-1] is SessionState.CONNECTED)
    await store.get("/a")


async def test_without_a_zookeeper_opening_fails_in_time() -> None:
    with pytest.raises(StoreUnavailableError, match="ZooKeeper at 127"):
        async with open_zookeeper("127.0.0.1:1", session_timeout_s=60.0, connect_timeout_s=0.3):
            raise AssertionError


async def test_an_error_in_the_block_comes_out_as_it_is(zookeeper: ZooKeeperProcess) -> None:
    address = f"127.0.0.1:{zookeeper.port}"
    with pytest.raises(ZeroDivisionError):
        async with open_zookeeper(address, session_timeout_s=SESSION_TIMEOUT_S):
            raise ZeroDivisionError


@pytest.mark.parametrize("chroot", ["/nope", "/nope/more"])
async def test_a_chroot_that_is_not_there_is_named(
    zookeeper: ZooKeeperProcess, chroot: str
) -> None:
    """Once, the broker waited forever, and `daybook cluster show` showed an empty cluster."""
    address = f"127.0.0.1:{zookeeper.port}{chroot}"
    with pytest.raises(NoChrootError, match=f"has no {chroot}, which .* create /nope.*correct"):
        async with open_zookeeper(address, session_timeout_s=SESSION_TIMEOUT_S):
            raise AssertionError
    servers = f"127.0.0.1:{zookeeper.port}"
    async with open_zookeeper(servers, session_timeout_s=SESSION_TIMEOUT_S) as store:
        # Nothing was created: the chroot may be a typing error.
        assert await store.get("/nope") is None


async def test_a_chroot_that_is_there_is_the_root(zookeeper: ZooKeeperProcess) -> None:
    servers = f"127.0.0.1:{zookeeper.port}"
    async with open_zookeeper(servers, session_timeout_s=SESSION_TIMEOUT_S) as store:
        await store.create("/within/all", b"", make_parents=True)
        address = f"{servers}/within/all/"
        async with open_zookeeper(address, session_timeout_s=SESSION_TIMEOUT_S) as inner:
            await inner.create("/a", b"x")
        assert await store.get("/within/all/a") is not None


async def test_a_new_connection_proves_the_identity_before_anything_else(
    zookeeper: ZooKeeperProcess, world: ZooKeeperWorld
) -> None:
    """Once a request is under way, it may not overtake the proof: ZooKeeper would refuse it."""
    store = await world.open(request_timeout_s=PATIENCE_S, user="a")
    await store.create("/x", b"", acl=(Grant(OWN, ALL),))
    heard = Calls()
    store.add_session_listener(heard)
    for number in range(3):
        zookeeper.kill()
        await heard.wait(lambda: heard.states[-1:] == [SessionState.SUSPENDED])
        versions: list[int] = []

        async def write(versions: list[int] = versions) -> None:
            versions.append((await store.set("/x", b"", ANY)).version)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(write)
            await trio.to_thread.run_sync(zookeeper.start)
        assert sorted(versions) == list(range(number * 10 + 1, number * 10 + 11))


async def test_a_changed_password_counts_at_the_next_connection(
    zookeeper: ZooKeeperProcess, world: ZooKeeperWorld, tmp_path: Path
) -> None:
    store = await world.open(user="a")
    new = digest_identity("a", "new")
    await store.create("/x", b"", acl=(Grant(new, ALL),))
    with pytest.raises(AccessDeniedError):
        await store.set("/x", b"", ANY)
    heard = Calls()
    store.add_session_listener(heard)
    (tmp_path / "password").write_text("new")
    zookeeper.kill()
    await trio.to_thread.run_sync(zookeeper.start)
    await heard.wait(lambda: heard.states[-1:] == [SessionState.CONNECTED])
    assert (await store.set("/x", b"", ANY)).version == 1


async def test_what_is_asked_for_at_once_shares_syncs_and_requests(
    zookeeper: ZooKeeperProcess,
) -> None:
    """Numbers of ledgers, too, come in blocks: one request with many sequential records."""
    servers, many = f"127.0.0.1:{zookeeper.port}", 100
    asked: Counter[str] = Counter()
    async with open_zookeeper(servers, session_timeout_s=SESSION_TIMEOUT_S) as store:
        await store.create("/shared", b"")
        kazoo: Any = store._kazoo
        call = kazoo._call

        def counting(request: object, answer: object) -> object:
            asked[type(request).__name__] += 1
            return call(request, answer)

        kazoo._call = counting
        paths: list[str] = []

        async def work() -> None:
            path = await store.create("/shared/n-", b"", ephemeral=True, sequential=True)
            paths.append(path)
            assert (await store.set(path, b"x", 0)).version == 1
            record = await store.get_newest(path)
            assert record is not None
            assert record.value == b"x"
            (version,) = await store.multi([Set(path, b"y", 1)])
            assert version == 2
            await store.delete(path, 2)

        async with trio.open_nursery() as nursery:
            for _ in range(many):
                nursery.start_soon(work)
        assert sorted(paths) == [f"/shared/n-{number:010d}" for number in range(many)]
        assert await store.get_children("/shared") == []
    # Refused writes are sent again one by one, so there were none.
    alone = ("Create", "SetData", "Delete")
    assert asked["Create"] + asked["Delete"] < many / 2
    assert sum(asked[each] for each in alone) + asked["Transaction"] < many / 2
    assert asked["Sync"] < many / 2


async def test_a_refusal_among_what_is_asked_for_at_once_is_that_of_its_write(
    zookeeper: ZooKeeperProcess,
) -> None:
    servers = f"127.0.0.1:{zookeeper.port}"
    async with open_zookeeper(servers, session_timeout_s=SESSION_TIMEOUT_S) as store:
        await store.create("/refused", b"")

        async def work(number: int) -> None:
            path = await store.create("/refused/n-", b"", sequential=True)
            assert (await store.set(path, b"x", 0)).version == 1
            with pytest.raises(VersionConflictError):
                await store.set(path, b"y", 0)
            with pytest.raises(VersionConflictError):
                await store.multi([Check(path, 0), Set("/refused", b"wrong", ANY)])
            assert await store.multi([Check(path, 1), Set(path, b"%d" % number, 1)]) == [-1, 2]
            record = await store.get_newest(path)
            assert record is not None
            assert record.value == b"%d" % number

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(work, number)
        record = await store.get_newest("/refused")
        assert record is not None
        assert record.value == b""


async def test_a_wrong_path_in_a_transaction_is_refused_before_it_waits_with_others(
    zookeeper: ZooKeeperProcess,
) -> None:
    servers = f"127.0.0.1:{zookeeper.port}"
    async with open_zookeeper(servers, session_timeout_s=SESSION_TIMEOUT_S) as store:
        await store.create("/paths", b"")

        async def good(number: int) -> None:
            await store.create(f"/paths/{number}", b"")

        async def bad() -> None:
            with pytest.raises(AssertionError, match="not absolute"):
                await store.multi([Check("/paths", ANY), Create("paths/wrong", b"")])

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(good, number)
                nursery.start_soon(bad)
        assert len(await store.get_children("/paths") or []) == 10


async def test_a_process_in_a_tree_of_others_runs_without_an_announcement(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """A bookie of Daybook beside Apache's needs no more rights than theirs."""
    (tmp_path / "password").write_text(PASSWORD)
    address = f"127.0.0.1:{zookeeper.port}"
    others = ZooKeeperAccess(user="others", password_file=tmp_path / "password")
    async with open_zookeeper(address, session_timeout_s=SESSION_TIMEOUT_S, access=others) as store:
        await store.create("/theirs", b"", acl=(Grant(OWN, ALL), Grant(WORLD, "r")))
        await store.create("/theirs/ledgers", b"", acl=OPEN_ACL)
    async with open_zookeeper(
        f"{address}/theirs", session_timeout_s=SESSION_TIMEOUT_S, process=Process("bookie", "b1")
    ) as store:
        await store.create("/ledgers/x", b"")
        assert await store.get("/daybook") is None


async def test_a_process_in_a_protected_tree_needs_an_identity(
    zookeeper: ZooKeeperProcess, world: ZooKeeperWorld, tmp_path: Path
) -> None:
    store = await world.open(user="a")
    await protect(store, closed("a"))
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "other").write_text("other")
    own, other = (
        ZooKeeperAccess(user="a", password_file=tmp_path / name) for name in ("password", "other")
    )
    assert isinstance(store, ZooKeeperStore)

    async def enter(access: ZooKeeperAccess) -> None:
        async with open_zookeeper(
            f"127.0.0.1:{zookeeper.port}{store._root}",
            session_timeout_s=SESSION_TIMEOUT_S,
            access=access,
            process=Process("broker", "b1"),
        ):
            pass

    await enter(own)
    with pytest.raises(AccessDeniedError, match="has no identity: set zookeeper_user"):
        await enter(ZooKeeperAccess())
    with pytest.raises(AccessDeniedError, match="check zookeeper_user and the password"):
        await enter(other)


async def test_required_means_that_readers_need_an_identity_too(
    zookeeper: ZooKeeperProcess, world: ZooKeeperWorld
) -> None:
    store = await world.open(user="a")
    await protect(store, closed("a", step=Step.REQUIRED))
    assert isinstance(store, ZooKeeperStore)
    with pytest.raises(AccessDeniedError, match="has no identity"):
        async with open_zookeeper(
            f"127.0.0.1:{zookeeper.port}{store._root}", session_timeout_s=SESSION_TIMEOUT_S
        ):
            raise AssertionError
