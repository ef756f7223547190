"""`daybook bookies` on a metadata store in memory."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import pytest

from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo
from daybook.bookie.registry.registrations import register_bookie as register
from daybook.clients.cli.bookies import _why_not_writable
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.store import MetadataStore
from tests.clients.cli.conftest import Daybook

PATHS = LedgerPaths()


async def fill(store: MetadataStore) -> None:
    """One bookie of each state."""
    await ensure_layout(store, PATHS, Random(1))
    for bookie_id in ("b1", "b2", "b3"):
        await create_cookie(store, PATHS, Cookie(bookie_id, ["/j"], ["/l"], "i"))
    await register(store, PATHS, BookieInfo("b1", "host", 3181, http_port=8000))
    await register(store, PATHS, BookieInfo("b2", "host", 3182), read_only=True)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_memory(hosts: str, **_: object) -> AsyncGenerator[MetadataStore]:
        assert hosts == "zk:1"
        store = MemoryStore(SystemClock()).session("cli")
        await fill(store)
        yield store

    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", open_memory)
    monkeypatch.setenv("DAYBOOK_ZOOKEEPER", "zk:1")


def test_bookies_are_writable_readonly_or_away(daybook: Daybook, stored: None) -> None:
    del stored
    code, out, _ = daybook("bookies", "list", "--output", "json")
    assert code == 0
    assert json.loads(out) == [
        {"bookie": "b1", "state": "writable", "address": "host:3181", "http": "http://host:8000"},
        {"bookie": "b2", "state": "readonly", "address": "host:3182", "http": None},
        {"bookie": "b3", "state": "away", "address": None, "http": None},
    ]
    lines = daybook("bookies", "list")[1].splitlines()
    assert lines[0].split() == ["bookie", "state", "address", "http"]
    assert lines[3].split() == ["b3", "away", "-", "-"]


def test_another_root_is_said_to_hold_nothing(daybook: Daybook, stored: None) -> None:
    del stored
    code, _, err = daybook("bookies", "list", "--root", "/elsewhere")
    assert code == 1
    assert err.startswith("Error: ")
    assert "--ledgers-root" in err


def test_without_zookeeper_it_says_how_to_get_one(daybook: Daybook, hurried: None) -> None:
    del hurried
    code, out, err = daybook("bookies", "list", "--zookeeper", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "Waiting for ZooKeeper at 127.0.0.1:1, for 3 s more.",
        "Error: No ZooKeeper answers at 127.0.0.1:1 (nobody listens at 127.0.0.1:1): start a"
        " cluster with `daybook standalone` (`daybook local start zookeeper` if only ZooKeeper is"
        " down), or say where yours is with --zookeeper or DAYBOOK_ZOOKEEPER.",
    ]


@pytest.mark.parametrize(
    ("answering", "refusing", "says"),
    [(2, 1, None), (1, 2, "not known"), (0, 3, "not known"), (0, 1, "Nothing can be published")],
)
def test_a_bookie_that_refuses_the_command_is_not_taken_for_one_that_is_away(
    answering: int, refusing: int, says: str | None
) -> None:
    def row(answers: bool, refuses: bool) -> dict[str, object]:
        return {"state": "writable", "answers": answers, "refuses": refuses}

    rows = [row(True, False)] * answering + [row(False, True)] * refusing
    rows += [row(False, False)] * (3 - len(rows))
    why = _why_not_writable(rows, 2)
    assert (why is None) == (says is None)
    assert says is None or says in str(why)
