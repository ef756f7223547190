"""A whole bookie, on real files, TCP and the metadata store in memory."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest
import trio
import trio.testing
from prometheus_client.exposition import generate_latest

from daybook.bookie.registry.cookies import delete_cookie, read_cookie
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import (
    BookieInfo,
    bookie_info,
    readonly_bookies,
    writable_bookies,
)
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.cookie_validation import COOKIE_FILE
from daybook.bookie.server.host import START_ERRORS, RunningBookie, run_bookie
from daybook.bookie.server.http import create_registry
from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import MemoryIndexes
from daybook.bookie.storage.limits import StoreLimits
from daybook.wire.clock import SystemClock
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.tcp import TcpNetwork
from tests.bookie.server.peer import PATIENCE_S, connect
from tests.bookie.server.test_hostile import wait_until

PATHS = LedgerPaths()


class Cluster:
    """A metadata store, and bookies that are started and stopped."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.store = MemoryStore(SystemClock())
        self.looking = self.store.session("observer")
        self._indexes = MemoryIndexes()
        self._rng = Random(1)

    def config(self, *directories: str, bookie_id: str = "b1", port: int = 0) -> BookieConfig:
        paths = tuple(str(self.tmp_path / name) for name in directories or ("d0",))
        return BookieConfig(directories=paths, bookie_id=bookie_id, port=port)

    @asynccontextmanager
    async def run(
        self,
        config: BookieConfig,
        session: MemorySession | None = None,
        limits: StoreLimits | None = None,
    ) -> AsyncIterator[RunningBookie]:
        session = session or self.store.session("bookie")

        async def bookie(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            await run_bookie(
                config,
                network=TcpNetwork(),
                metadata=session,
                disk=FileDisk(),
                index=self._indexes.open,
                clock=SystemClock(),
                rng=self._rng,
                store_limits=limits,
                task_status=task_status,
            )

        async with trio.open_nursery() as nursery:
            with trio.fail_after(PATIENCE_S):
                running: RunningBookie = await nursery.start(bookie)
            yield running
            nursery.cancel_scope.cancel()

    async def refused(self, config: BookieConfig) -> str:
        """Return why this bookie does not start, and check that its directories are unchanged."""
        before = self._files(config)
        why = await self.failed(config)
        assert self._files(config) == before
        return why

    async def failed(self, config: BookieConfig) -> str:
        """Return why this bookie does not start."""
        with pytest.raises((*START_ERRORS, BaseExceptionGroup)) as caught:
            async with self.run(config):
                pass
        error: BaseException = caught.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, START_ERRORS)
        return str(error)

    def _files(self, config: BookieConfig) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for directory in config.directories
            for path in sorted(Path(directory).rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def test_a_new_bookie_announces_where_it_is_and_serves(cluster: Cluster) -> None:
    async with cluster.run(cluster.config(bookie_id="")) as running:
        assert running.bookie_id == f"127.0.0.1:{running.port}"
        assert await writable_bookies(cluster.looking, PATHS) == [running.bookie_id]
        info = await bookie_info(cluster.looking, PATHS, running.bookie_id)
        assert info is not None
        assert (info.host, info.port) == ("127.0.0.1", running.port)
        assert running.why_unhealthy() == ""
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.OK
    assert await writable_bookies(cluster.looking, PATHS) == [], "it has said goodbye"


async def test_it_is_the_same_bookie_on_another_port(cluster: Cluster) -> None:
    async with cluster.run(cluster.config(bookie_id="")) as running:
        name = running.bookie_id
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.OK
    async with cluster.run(cluster.config(bookie_id="")) as running:
        assert running.bookie_id == name
        info = await bookie_info(cluster.looking, PATHS, name)
        assert info is not None
        assert info.port == running.port
        async with connect(running.port) as peer:
            assert (await peer.read(7, 0)).status == Status.OK


async def test_the_cookie_is_where_apache_looks_for_it(cluster: Cluster) -> None:
    config = cluster.config("d0", "d1")
    async with cluster.run(config):
        record = await cluster.looking.get("/ledgers/cookies/b1")
        instance = await cluster.looking.get("/ledgers/INSTANCEID")
        assert record is not None
        assert instance is not None
        d0, d1 = config.directories
        assert record.value.decode() == (
            f'5\nbookieHost: "b1"\njournalDir: "{d0},{d1}"\nledgerDirs: "2\\t{d0}\\t{d1}"\n'
            f'instanceId: "{instance.value.decode()}"\n'
        )
        for directory in config.directories:
            assert (Path(directory) / COOKIE_FILE).read_bytes() == record.value


async def test_a_wiped_directory_is_not_taken_for_a_new_bookie(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()):
        pass
    assert "hold nothing of it" in await cluster.refused(cluster.config("empty"))


async def test_one_wiped_directory_of_two(cluster: Cluster) -> None:
    async with cluster.run(cluster.config("d0", "d1")):
        pass
    (cluster.tmp_path / "d1" / COOKIE_FILE).unlink()
    assert "exchanged or is not mounted" in await cluster.refused(cluster.config("d0", "d1"))


async def test_a_directory_that_is_left_out(cluster: Cluster) -> None:
    async with cluster.run(cluster.config("d0", "d1")):
        pass
    assert "was started with" in await cluster.refused(cluster.config("d0"))
    assert "was started with" in await cluster.refused(cluster.config("d0", "d1", "d2"))


async def test_the_directory_of_another_bookie(cluster: Cluster) -> None:
    async with cluster.run(cluster.config("d0", bookie_id="b1")):
        pass
    async with cluster.run(cluster.config("d1", bookie_id="b2")):
        pass
    assert "belongs to bookie b1" in await cluster.refused(cluster.config("d0", bookie_id="b2"))
    together = cluster.config("d0", "d1", bookie_id="b1")
    assert "not belong to the same bookie" in await cluster.refused(together)


async def test_a_directory_from_another_cluster(cluster: Cluster, tmp_path: Path) -> None:
    other = Cluster(tmp_path)
    other._rng = Random(2)
    async with other.run(other.config()):
        pass
    assert "another cluster" in await cluster.refused(cluster.config())


async def test_a_bookie_that_the_cluster_has_forgotten(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, connect(running.port) as peer:
        assert await peer.add(7, 0) is Status.OK
    cookie = await read_cookie(cluster.looking, PATHS, "b1")
    assert cookie is not None
    await delete_cookie(cluster.looking, PATHS, "b1", cookie.version)
    assert "does not know bookie b1" in await cluster.refused(cluster.config())


async def test_a_first_start_that_was_cut_short_goes_on(cluster: Cluster) -> None:
    async with cluster.run(cluster.config("d0", "d1")):
        pass
    cookie = await read_cookie(cluster.looking, PATHS, "b1")
    assert cookie is not None
    await delete_cookie(cluster.looking, PATHS, "b1", cookie.version)
    (cluster.tmp_path / "d1" / COOKIE_FILE).unlink()
    async with cluster.run(cluster.config("d0", "d1")) as running, connect(running.port) as peer:
        assert await peer.add(7, 0) is Status.OK


async def test_a_bookie_with_one_directory_may_be_moved(cluster: Cluster) -> None:
    async with cluster.run(cluster.config("d0")):
        pass
    (cluster.tmp_path / "d0").rename(cluster.tmp_path / "moved")
    async with cluster.run(cluster.config("moved")) as running:
        assert running.bookie_id == "b1"


async def test_two_processes_on_one_directory(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running:
        assert "d0" in await cluster.refused(cluster.config())
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.OK


async def test_a_port_that_is_taken(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running:
        other = cluster.config("d1", bookie_id="b2", port=running.port)
        assert str(running.port) in await cluster.refused(other)


async def test_after_a_lost_session_it_announces_itself_again(cluster: Cluster) -> None:
    session = cluster.store.session("bookie")
    async with cluster.run(cluster.config(), session) as running:
        for _ in range(3):
            cluster.store.expire(session.session_id)
            await wait_until(lambda: running.registration.registered)
            assert await writable_bookies(cluster.looking, PATHS) == ["b1"]
        assert running.registration.sessions_lost == 3
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.OK


async def test_without_the_metadata_store_it_goes_on_serving(cluster: Cluster) -> None:
    session = cluster.store.session("bookie")
    async with cluster.run(cluster.config(), session) as running, connect(running.port) as peer:
        session.suspend()
        assert await peer.add(7, 0) is Status.OK
        cluster.store.expire(session.session_id)
        assert await peer.add(7, 1) is Status.OK
        session.resume()
        await wait_until(lambda: running.registration.registered)
        assert await writable_bookies(cluster.looking, PATHS) == ["b1"]


async def test_a_record_that_somebody_deletes_comes_back(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()):
        await cluster.looking.delete("/ledgers/available/b1", 0)
        with trio.fail_after(PATIENCE_S):
            while await writable_bookies(cluster.looking, PATHS) != ["b1"]:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_the_record_of_the_process_before_us_is_replaced_at_once(cluster: Cluster) -> None:
    """The earlier process was killed: its session, and the registration, still exist."""
    killed = cluster.store.session("bookie")
    async with cluster.run(cluster.config(), killed) as running:
        killed.crash()
    assert await writable_bookies(cluster.looking, PATHS) == ["b1"]
    async with cluster.run(cluster.config(port=running.port)) as running:
        info = await bookie_info(cluster.looking, PATHS, "b1")
        assert info is not None
        assert info.port == running.port
        record = await cluster.looking.get("/ledgers/available/b1")
        assert record is not None
        assert record.stat.owner != killed.session_id


async def test_a_copy_of_its_directories_is_another_process(cluster: Cluster) -> None:
    """The copy has the mark of the running process, and would lack its later acknowledgements."""
    started = trio.Event()

    async def start_copy() -> None:
        async with cluster.run(cluster.config("d1")):
            started.set()

    async with cluster.run(cluster.config()), trio.open_nursery() as nursery:
        marks = [cluster.tmp_path / name / "REGISTRATION" for name in ("d0", "d1")]
        shutil.copytree(marks[0].parent, marks[1].parent)
        before = await cluster.looking.get("/ledgers/available/b1")
        nursery.start_soon(start_copy)
        while marks[0].read_bytes() == marks[1].read_bytes():  # noqa: ASYNC110
            await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert not started.is_set()
        assert await cluster.looking.get("/ledgers/available/b1") == before
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("http_port", "told"), [(8000, 8000), (0, None)])
async def test_its_record_says_where_http_is_served(
    cluster: Cluster, http_port: int, told: int | None
) -> None:
    config = msgspec.structs.replace(cluster.config(), http_port=http_port)
    async with cluster.run(config):
        info = await bookie_info(cluster.looking, PATHS, "b1")
        assert info is not None
        assert info.http_port == told


@pytest.mark.parametrize("place", ["available", "available/readonly"])
async def test_the_record_of_a_stranger_is_waited_for(cluster: Cluster, place: str) -> None:
    stranger = cluster.store.session("stranger")
    info = BookieInfo("b1", "elsewhere", 1, {"daybook.process": "another"})
    path = f"/ledgers/{place}/b1"
    await stranger.create(path, info.encode(), ephemeral=True, make_parents=True)
    started = trio.Event()

    async def start() -> None:
        async with cluster.run(cluster.config()):
            started.set()
            record = await cluster.looking.get("/ledgers/available/b1")
            assert record is not None
            assert record.stat.owner != stranger.session_id

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await trio.sleep(0.2)
        assert not started.is_set()
        record = await cluster.looking.get(path)
        assert record is not None
        assert record.value == info.encode()
        cluster.store.expire(stranger.session_id)


async def test_a_bookie_without_room_is_announced_as_read_only(cluster: Cluster) -> None:
    limits = StoreLimits(free_bytes_min=1 << 60)
    async with cluster.run(cluster.config(), limits=limits) as running:
        assert await writable_bookies(cluster.looking, PATHS) == []
        assert await readonly_bookies(cluster.looking, PATHS) == ["b1"]
        assert running.why_unhealthy() == "takes no new entries: too little room on its disk"
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.READ_ONLY


async def test_what_it_counts_is_there_to_be_read(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, connect(running.port) as peer:
        assert await peer.add(7, 0) is Status.OK
        text = generate_latest(create_registry(running.sources())).decode()
        assert "daybook_bookie_store_entries_added_total 1.0" in text
        assert "daybook_bookie_server_connections 1.0" in text
        assert "daybook_bookie_registration_registered 1.0" in text
