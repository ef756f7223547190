"""`authentication = "require"` starts only when nobody is left who would be locked out."""

from pathlib import Path
from random import Random

import msgspec
import pytest
import trio
from trio.abc import Clock

from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.cookie_validation import StartError
from daybook.bookie.server.entrance import Mode
from daybook.bookie.server.permit_record import QUIET_S, PermitRecord
from daybook.wire.digest_md5 import secret_of
from tests.bookie.server.peer import connect
from tests.bookie.server.test_host import Cluster
from tests.harness.disk import Platter, SimulatedDisk


class Bookie:
    """A bookie of which nothing exists but its record."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk

    async def run(
        self, mode: Mode, seconds: float, *, came_at: float | None = None, stays: bool = False
    ) -> None:
        """Run for that long; somebody comes without credentials, and may stay connected."""
        record = PermitRecord(self.disk, "d0", mode)
        await record.begin()
        unproven = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(record.run, lambda: unproven)
            if came_at is not None:
                await trio.sleep(came_at)
                record.came_without("10.0.0.9")
                unproven = int(stays)
                seconds -= came_at
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()

    async def objection(self, *, new: bool = False, force: bool = False) -> str:
        """Return why a start with "require" is refused, or ""."""
        record = PermitRecord(self.disk, "d0", "require")
        try:
            await record.check(new=new, force=force)
        except StartError as error:
            return str(error)
        return ""


@pytest.fixture
def bookie() -> Bookie:
    platter = Platter(Random(1))
    platter.make_directory("d0")
    return Bookie(platter.mount())


async def test_it_starts_after_ten_quiet_minutes(autojump_clock: Clock, bookie: Bookie) -> None:
    await bookie.run("permit", QUIET_S + 1)
    assert await bookie.objection() == ""


async def test_it_does_not_start_earlier(autojump_clock: Clock, bookie: Bookie) -> None:
    await bookie.run("permit", QUIET_S - 10)
    assert "it was only 590 s without" in await bookie.objection()
    await bookie.run("permit", QUIET_S - 10)
    assert await bookie.objection()  # The time of two runs is not added up.


async def test_it_does_not_start_soon_after_somebody_came_without_credentials(
    autojump_clock: Clock,
    bookie: Bookie,
) -> None:
    await bookie.run("permit", 2000, came_at=1900)
    why = await bookie.objection()
    assert "it was only 100 s" in why
    assert "10.0.0.9" in why
    await bookie.run("permit", 2000, came_at=1000)
    assert await bookie.objection() == ""


async def test_somebody_who_stays_connected_without_credentials_counts(
    autojump_clock: Clock, bookie: Bookie
) -> None:
    await bookie.run("permit", 5000, came_at=1, stays=True)
    assert "it was only 0 s" in await bookie.objection()


async def test_it_does_not_start_without_permit_before(
    autojump_clock: Clock, bookie: Bookie
) -> None:
    assert 'has not run with authentication = "permit"' in await bookie.objection()
    await bookie.run("permit", QUIET_S + 1)
    await bookie.run("off", 1)
    assert 'has not run with authentication = "permit"' in await bookie.objection()


async def test_a_new_bookie_and_one_that_is_forced_to_start(
    autojump_clock: Clock, bookie: Bookie
) -> None:
    assert await bookie.objection(new=True) == ""
    assert await bookie.objection(force=True) == ""


async def test_a_bookie_that_demands_credentials_goes_on_to_do_so(
    autojump_clock: Clock, bookie: Bookie
) -> None:
    await bookie.run("require", 1)
    assert await bookie.objection() == ""


async def test_somebody_who_came_is_written_down_at_once(
    autojump_clock: Clock, bookie: Bookie
) -> None:
    """A bookie may be killed at any time."""
    await bookie.run("permit", QUIET_S + 100)
    assert await bookie.objection() == ""
    record = PermitRecord(bookie.disk, "d0", "permit")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record.run, lambda: 0)
        record.came_without("10.0.0.9")
        await trio.sleep(1)
        assert "10.0.0.9" in await bookie.objection()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"mode": 1}', b'{"quiet_s": 9e9}', b"\xff"])
async def test_a_damaged_record_allows_nothing(
    autojump_clock: Clock, bookie: Bookie, content: bytes
) -> None:
    await bookie.disk.write_file("d0/AUTHENTICATION", content)
    assert await bookie.objection()


async def test_a_whole_bookie_refuses_to_start_and_changes_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    (tmp_path / "users").write_text(f"bookie:bookkeeper:{secret_of('bookie', 'x').hex()}\n")
    (tmp_path / "password").write_text("x\n")
    off = cluster.config()

    def with_mode(mode: Mode, *, force: bool = False) -> BookieConfig:
        return msgspec.structs.replace(
            off,
            authentication=mode,
            authentication_force=force,
            users_file=str(tmp_path / "users"),
            bookie_user="bookie",
            bookie_password_file=str(tmp_path / "password"),
        )

    async with cluster.run(off):
        pass
    assert "may lock clients out" in await cluster.refused(with_mode("require"))
    async with cluster.run(with_mode("permit")) as running, connect(running.port) as peer:
        await peer.add(1, 0)
    assert "127.0.0.1" in await cluster.refused(with_mode("require"))
    async with cluster.run(with_mode("require", force=True)):
        pass
    async with cluster.run(with_mode("require")):
        pass
