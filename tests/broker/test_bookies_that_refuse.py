"""A broker that no bookie lets in serves nothing: it does not start, or is not ready."""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import structlog
import trio
from structlog.testing import CapturingLogger

from daybook.bookie.ledger.client import LedgerClient, Quorums
from daybook.bookie.ledger.security import BookieAccess
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.errors import CannotJoinError
from daybook.broker.joining import check_bookies
from daybook.wire.logging import forward_to
from tests.bookie.ledger.test_security import B1, World
from tests.harness.certificates import Authority
from tests.managed_ledger.world import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with trio.open_nursery() as nursery:
        world = World(tmp_path, nursery, Authority(tmp_path))
        nursery.start_soon(world.flusher.run)
        yield world
        nursery.cancel_scope.cancel()


async def check(world: World, client: LedgerClient) -> None:
    await check_bookies(client, world.store.session("broker"), LedgerPaths())


async def why_not_joined(world: World, access: BookieAccess) -> str:
    async with world.client(access) as client:
        with pytest.raises(CannotJoinError) as caught:
            await check(world, client)
    return str(caught.value)


async def test_a_broker_with_credentials_that_all_bookies_refuse_does_not_start(
    world: World,
) -> None:
    async with world.bookie():
        async with world.client(world.access()) as client:
            await check(world, client)
            assert client.refused_by_all() == ""
        wrong = await why_not_joined(world, world.access(password="wrong"))
        assert "all bookies that answer refuse it (1 of 1)" in wrong
        assert "bookie_user and bookie_password_file" in wrong
        none = await why_not_joined(world, BookieAccess(True, world.authority.trusted))
        assert "demands TLS or credentials" in none
    async with world.bookie(tls="off", bookie_tls=False):
        assert "has no TLS, and bookie_tls is set" in await why_not_joined(world, world.access())


async def test_bookies_that_are_away_or_silent_prove_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybook.broker.joining._ASKED_S", 1.0)
    async with world.client(world.access(), secure_timeout_s=0.2) as client:
        await check(world, client)  # No bookie has ever started.
        async with world.bookie() as running:
            running.flusher.flush = lambda: None  # type: ignore[method-assign]
            await check(world, client)
            assert client.refused_by_all() == ""


async def test_a_password_that_changes_later_makes_the_broker_not_ready(world: World) -> None:
    file = world.directory / "changing.password"
    file.write_text("secret\n")
    access = world.access(password="changing")
    async with world.bookie(), world.client(access) as client:
        await check(world, client)
        await until(lambda: bool(client.directory.writable))
        file.write_text("wrong\n")
        writer = await client.create_deferred(Quorums(1, 1, 1))
        writer.append([b"x"])  # This needs a connection of its own.
        await until(lambda: bool(client.refused_by_all()))
        assert "refuses the user 'broker' or its password" in client.refused_by_all()
        file.write_text("secret\n")
        await until(lambda: not client.refused_by_all() and client.directory.is_usable(B1))


def test_what_a_library_warns_of_has_the_form_of_the_log() -> None:
    lines, root = CapturingLogger(), logging.getLogger()
    before = list(root.handlers)
    wrapper = structlog.make_filtering_bound_logger(0)
    forward_to(structlog.wrap_logger(lines, processors=[], wrapper_class=wrapper))
    (added,) = [handler for handler in root.handlers if handler not in before]
    try:
        logging.getLogger("daybook.bookie.x").error("%s refuses", "b1")
        logging.getLogger("daybook.bookie.x").info("nothing of note")
    finally:
        root.removeHandler(added)
    (line,) = lines.calls
    assert line.method_name == "error"
    assert line.kwargs == {"event": "b1 refuses", "logger": "daybook.bookie.x"}
