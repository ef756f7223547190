"""Directories that were emptied or exchanged: which bookies start, in limbo, and which never do."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import read_cookie_generation
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.cookie_validation import (
    CLAIM_FILE,
    COOKIE_FILE,
    NEW_FILE,
    Identity,
    StartError,
)
from daybook.bookie.server.host import RunningBookie, repair_cookie
from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.markers import BIRTH_FILE, read_generation
from daybook.wire.clock import SystemClock
from daybook.wire.logging import silent_log
from daybook.wire.messages.bookie import Status
from tests.bookie.server.peer import PATIENCE_S, connect
from tests.bookie.server.test_admin import administered
from tests.bookie.server.test_host import PATHS, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def auto(config: BookieConfig) -> BookieConfig:
    return msgspec.structs.replace(config, cookie_repair="auto")


async def free(running: RunningBookie) -> None:
    """Return when no ledger is in limbo."""
    with trio.fail_after(PATIENCE_S):
        while running.store.limbo or running.store.limbo_ledgers.ledgers():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def offline(cluster: Cluster, config: BookieConfig) -> str:
    return await repair_cookie(
        config,
        metadata=cluster.looking,
        disk=FileDisk(),
        index=cluster._indexes.open,
        clock=SystemClock(),
        rng=cluster._rng,
        log=silent_log(),
    )


async def by_itself(cluster: Cluster, config: BookieConfig) -> BookieConfig:
    return auto(config)


async def by_command(cluster: Cluster, config: BookieConfig) -> BookieConfig:
    assert await offline(cluster, config) == "b1"
    return config


Repair = Callable[[Cluster, BookieConfig], Awaitable[BookieConfig]]


@pytest.mark.parametrize("repair", [by_itself, by_command])
@pytest.mark.parametrize("gone", [("d0",), ("d1",), ("d0", "d1")])
async def test_it_starts_with_empty_directories_and_is_born_anew(
    cluster: Cluster, repair: Repair, gone: tuple[str, ...]
) -> None:
    config = cluster.config("d0", "d1")
    async with cluster.run(config):
        pass
    for name in gone:
        shutil.rmtree(cluster.tmp_path / name)
        cluster._indexes = type(cluster._indexes)()
    assert "repair-cookie" in await cluster.refused(config)
    async with cluster.run(await repair(cluster, config)) as running:
        await free(running)
        with trio.fail_after(PATIENCE_S):
            while await writable_bookies(cluster.looking, PATHS) != ["b1"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
    assert (await read_generation(FileDisk(), config.directories) or 0) > 0
    async with cluster.run(config) as running:
        assert not running.store.limbo, "its cookies are those of the new life"


async def test_it_says_over_http_what_is_in_limbo(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, administered(running) as admin:
        answer = await admin.ask("limbo")
        assert (answer["in_doubt"], answer["ledgers"], answer["first_ledgers"]) == (False, 0, [])
        assert running.sources()["limbo"]() == running.data_integrity.statistics()


async def test_an_empty_place_is_not_filled_without_being_asked(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()):
        pass
    shutil.rmtree(cluster.tmp_path / "d0")
    assert "hold nothing of it" in await cluster.refused(cluster.config())


async def cut_short(identity: Identity) -> None:
    raise StartError("cut short")


@pytest.mark.parametrize("known", [True, False])
async def test_a_start_in_doubt_that_is_cut_short_is_repeated(
    cluster: Cluster, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 701062: the bookie was killed when its limbo was written, and its cookies were not."""
    config = auto(cluster.config())
    if known:
        async with cluster.run(config):
            pass
        shutil.rmtree(cluster.tmp_path / "d0")
        cluster._indexes = type(cluster._indexes)()
    else:
        orders = AdminStates(cluster.looking, PATHS)
        await orders.give(BookieId("b1"), AdminRecord(AdminState.LEFT, 1))

    with monkeypatch.context() as patch:
        patch.setattr(Identity, "write_cookies", cut_short)
        assert "cut short" in await cluster.failed(config)
    directory = cluster.tmp_path / "d0"
    assert any((directory / "log").iterdir())
    assert (directory / CLAIM_FILE).exists()
    async with cluster.run(config) as running:
        await free(running)
    assert (await read_generation(FileDisk(), config.directories) or 0) > 0
    assert not (directory / CLAIM_FILE).exists()


async def test_a_repair_by_command_that_is_cut_short_is_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.run(cluster.config()):
        pass
    shutil.rmtree(cluster.tmp_path / "d0")
    cluster._indexes = type(cluster._indexes)()
    with monkeypatch.context() as patch:
        patch.setattr(Identity, "write_cookies", cut_short)
        with pytest.raises(BaseExceptionGroup) as caught:
            await offline(cluster, cluster.config())
    assert caught.group_contains(StartError, match="cut short")
    assert any((cluster.tmp_path / "d0" / "log").iterdir())
    assert await offline(cluster, cluster.config()) == "b1"
    async with cluster.run(cluster.config()) as running:
        await free(running)


async def test_data_that_another_bookie_has_claimed_are_not_ours(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, connect(running.port) as peer:
        assert await peer.add(7, 0) is Status.OK
    cookie = cluster.tmp_path / "d0" / COOKIE_FILE
    claim = cookie.rename(cluster.tmp_path / "d0" / CLAIM_FILE)
    claim.write_text(claim.read_text().replace('"b1"', '"b2"'))
    assert "holds data" in await cluster.refused(auto(cluster.config()))


async def test_data_without_a_cookie_are_nobody_s(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, connect(running.port) as peer:
        assert await peer.add(7, 0) is Status.OK
    (cluster.tmp_path / "d0" / COOKIE_FILE).unlink()
    assert "holds data" in await cluster.refused(auto(cluster.config()))
    with pytest.raises(StartError, match="holds data"):
        await offline(cluster, cluster.config())


async def test_other_directories_are_no_loss(cluster: Cluster) -> None:
    async with cluster.run(cluster.config("d0", "d1")):
        pass
    assert "was started with" in await cluster.refused(auto(cluster.config("d2")))
    assert "was started with" in await cluster.refused(auto(cluster.config("d0", "d1", "d2")))
    assert "was started with" in await cluster.refused(auto(cluster.config("d1", "d0")))
    async with cluster.run(cluster.config("e0", bookie_id="b2")):
        pass
    both = cluster.config("d0", "e0", bookie_id="b1")
    assert "not belong to the same bookie" in await cluster.refused(auto(both))


async def test_there_is_nothing_to_repair_where_all_is_well(cluster: Cluster) -> None:
    with pytest.raises(StartError, match="nothing to repair"):
        await offline(cluster, cluster.config())
    async with cluster.run(cluster.config()):
        pass
    with pytest.raises(StartError, match="nothing to repair"):
        await offline(cluster, cluster.config())


async def test_a_bookie_that_runs_is_not_repaired_elsewhere(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running:
        with pytest.raises(StartError, match=f"announced at 127.0.0.1:{running.port}"):
            await offline(cluster, cluster.config("d1"))
    assert not (cluster.tmp_path / "d1").exists()


async def test_it_is_not_born_anew_while_another_process_is_that_bookie(cluster: Cluster) -> None:
    """A second process has an empty directory while the bookie serves: an add that is acknowledged
    by the first, after the second has copied all that it lacks, would be absent here.
    """
    one, other = cluster.config(), auto(cluster.config("d1"))
    born = trio.Event()

    async def start() -> None:
        async with cluster.run(other) as second:
            born.set()
            await free(second)

    async with cluster.run(one), trio.open_nursery() as nursery:
        before = await read_cookie_generation(cluster.looking, PATHS, "b1")
        nursery.start_soon(start)
        while not (cluster.tmp_path / "d1" / "REGISTRATION").exists():  # noqa: ASYNC110
            await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert not born.is_set()
        assert await readonly_bookies(cluster.looking, PATHS) == []
        assert await read_cookie_generation(cluster.looking, PATHS, "b1") == before
        nursery.cancel_scope.cancel()


async def test_a_name_that_was_here_before_is_born_anew(cluster: Cluster) -> None:
    """The bookie has left, perhaps with fences; a new one of that name needs an admin command."""
    orders = AdminStates(cluster.looking, PATHS)
    await orders.give(BookieId("b1"), AdminRecord(AdminState.LEFT, 1))
    async with cluster.run(cluster.config()) as running:
        await free(running)
        assert not running.store.writable
        assert await readonly_bookies(cluster.looking, PATHS) == ["b1"]
    assert (cluster.tmp_path / "d0" / BIRTH_FILE).exists()
    async with cluster.run(cluster.config("d1", bookie_id="b2")) as running:
        assert not running.store.limbo
    assert not (cluster.tmp_path / "d1" / BIRTH_FILE).exists()


def wipe_all_but_the_cookie(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != COOKIE_FILE:
            path.unlink()


def wipe_the_segments(directory: Path) -> None:
    for path in (directory / "log").glob("*.log"):
        path.unlink()


@pytest.mark.parametrize("wipe", [wipe_all_but_the_cookie, wipe_the_segments])
@pytest.mark.parametrize("name", ["d0", "d1"])
async def test_a_cookie_without_its_log_is_no_empty_bookie(
    cluster: Cluster, wipe: Callable[[Path], None], name: str
) -> None:
    """Once, it denied ledgers that it had acknowledged, and took adds of fenced ledgers."""
    config = cluster.config("d0", "d1")
    async with cluster.run(config) as running, connect(running.port) as peer:
        for ledger_id in (7, 8):  # one in each directory
            assert await peer.add(ledger_id, 0) is Status.OK
    async with cluster.run(config):
        pass
    wipe(cluster.tmp_path / name)
    cluster._indexes = type(cluster._indexes)()
    assert "nothing of the log" in await cluster.refused(config)
    async with cluster.run(auto(config)) as running:
        assert running.store.limbo
        await free(running)


async def test_a_bookie_that_never_stored_anything_starts_again(cluster: Cluster) -> None:
    log = cluster.tmp_path / "d0" / "log"
    for _ in range(2):
        async with cluster.run(cluster.config()) as running:
            assert not running.store.limbo
        assert [path.name for path in log.iterdir()] == [NEW_FILE]
    async with cluster.run(cluster.config()) as running, connect(running.port) as peer:
        assert await peer.add(7, 0) is Status.OK
    async with cluster.run(cluster.config()):
        assert not (log / NEW_FILE).exists(), "from now on an empty log is a lost one"
