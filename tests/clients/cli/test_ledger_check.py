"""`daybook ledgers check` where a bookie does not answer, beside one that is gone."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.bookie_client import BookieClient
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo
from daybook.bookie.registry.registrations import register_bookie as register
from daybook.bookie.registry.underreplication import Underreplication
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from tests.clients.cli.conftest import Daybook

PATHS = LedgerPaths()
LEDGERS = 5


class Cluster:
    """One bookie that has a cookie, and ledgers of which it should have the only copies."""

    def __init__(self, port: int) -> None:
        self.bookie = BookieId(f"127.0.0.1:{port}")
        self.session = MemoryStore(SystemClock()).session("before")
        trio.run(self._fill)

    async def _fill(self) -> None:
        store = self.session
        await ensure_layout(store, PATHS, Random(1))
        await create_cookie(store, PATHS, Cookie(self.bookie, ["/j"], ["/l"], "i"))
        metadata = LedgerMetadata(
            quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (self.bookie,)),)
        ).closed_at(2, 15)
        async with trio.open_nursery() as nursery:
            for _ in range(LEDGERS):
                await LedgerMetadataStore(store, PATHS, Random(1)).create(metadata, nursery)

    async def register(self) -> None:
        host, _, port = self.bookie.rpartition(":")
        await register(self.session, PATHS, BookieInfo(self.bookie, host, int(port)))

    async def ask_to_leave(self) -> None:
        await AdminStates(self.session, PATHS).give(self.bookie, AdminRecord(AdminState.LEAVE, 1))

    async def ask_what_nobody_understands(self) -> None:
        await self.ask_to_leave()
        await self.session.set(f"{PATHS.underreplication}/orders/{self.bookie}", b"{}", -1)

    async def marked(self) -> list[int]:
        return [
            ledger_id
            async for ledger_id in Underreplication(self.session, PATHS, "").marked_ledgers()
        ]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch, hurried: None, silent_port: int) -> Cluster:
    del hurried
    return found(monkeypatch, silent_port)


def found(monkeypatch: pytest.MonkeyPatch, port: int) -> Cluster:
    cluster = Cluster(port)

    @asynccontextmanager
    async def open_memory(_: str, **__: object) -> AsyncGenerator[MemorySession]:
        yield cluster.session

    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", open_memory)
    return cluster


def checked(daybook: Daybook, *options: str) -> tuple[int, set[tuple[str, str]], str]:
    """Return the exit code, the states with their reasons, and standard error."""
    code, out, err = daybook("ledgers", "check", "--output", "json", *options)
    rows = json.loads(out)
    assert len(rows) == LEDGERS
    return code, {(row["state"], row["what"]) for row in rows}, err


def test_of_a_registered_bookie_that_does_not_answer_nothing_is_known(
    daybook: Daybook, frozen: Cluster
) -> None:
    trio.run(frozen.register)
    code, found, err = checked(daybook, "--mend")
    what = f"{frozen.bookie} did not answer; no copy found of 0-2"
    assert (code, found) == (4, {("unknown", what)})
    assert trio.run(frozen.marked) == []
    assert err.splitlines() == ["Checking: 0 %, ledger 0."], "the others are not waited for again"


def test_one_that_lost_its_registration_and_is_only_silent_is_not_gone(
    daybook: Daybook, frozen: Cluster
) -> None:
    code, found, _ = checked(daybook, "--mend")
    what = f"{frozen.bookie} did not answer, and is not registered any more"
    assert (code, found) == (4, {("unknown", f"{what}; no copy found of 0-2")})
    assert trio.run(frozen.marked) == []


def test_one_that_answers_and_is_not_registered_is_not_gone(
    daybook: Daybook, frozen: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answering(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    monkeypatch.setattr(BookieClient, "probe", answering)
    code, found, _ = checked(daybook)
    what = f"{frozen.bookie} answers, and is not registered any more; no copy found of 0-2"
    assert (code, found) == (4, {("unknown", what)})


def test_an_order_that_does_not_parse_is_none_to_leave(daybook: Daybook, frozen: Cluster) -> None:
    trio.run(frozen.ask_what_nobody_understands)
    code, found, _ = checked(daybook)
    what = f"{frozen.bookie} did not answer, and is not registered any more"
    assert (code, found) == (4, {("unknown", f"{what}; no copy found of 0-2")})


def test_one_that_was_asked_to_leave_and_is_silent_is_gone(
    daybook: Daybook, frozen: Cluster
) -> None:
    trio.run(frozen.ask_to_leave)
    code, found, _ = checked(daybook)
    what = f"{frozen.bookie}: it is gone (it was asked to leave); no copy of 0-2"
    assert (code, found) == (5, {("no copy", what)})


def test_one_that_is_not_registered_and_does_not_listen_is_gone(
    daybook: Daybook, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = found(monkeypatch, 1)
    code, states, _ = checked(daybook, "--mend")
    why = "not registered, and its address refuses connections"
    what = f"{cluster.bookie}: it is gone ({why}); no copy of 0-2"
    assert (code, states) == (5, {("no copy", what)})
    assert trio.run(cluster.marked) == list(range(LEDGERS))
