"""The options that say how a command connects to ZooKeeper, and as whom."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daybook.clients.cli.zookeeper_access import remedy_for
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.store import (
    AccessDeniedError,
    MetadataStore,
    NoContactError,
    UnusableAccessError,
)
from daybook.wire.tls_files import TlsFiles
from tests.clients.cli.conftest import Daybook

GIVEN = (
    *("--zookeeper", "zk:1", "--zookeeper-tls", "--zookeeper-user", "daybook"),
    *("--zookeeper-password-file", "/p"),
)


class _ReplacedError(Exception):
    """This process would be another program now."""


@pytest.fixture
def accesses(monkeypatch: pytest.MonkeyPatch) -> list[ZooKeeperAccess]:
    """Return how commands connect, in order."""
    found: list[ZooKeeperAccess] = []

    @asynccontextmanager
    async def open_memory(
        _: str, *, access: ZooKeeperAccess, **__: object
    ) -> AsyncGenerator[MetadataStore]:
        found.append(access)
        yield MemoryStore(SystemClock()).session("cli")

    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", open_memory)
    return found


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the variables of the server by which a command replaces itself."""
    found: dict[str, str] = {}

    def replace(_: str, __: list[str], environ: Mapping[str, str]) -> None:
        found.update(environ)
        raise _ReplacedError

    monkeypatch.setattr(os, "execve", replace)
    return found


def test_options_and_variables_say_how_to_connect(
    accesses: list[ZooKeeperAccess], daybook: Daybook, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ("--tls-trusted", "/ca", "--tls-certificate", "/c", "--tls-key", "/k")
    daybook("cluster", "show", *GIVEN, *tls)
    files = TlsFiles(Path("/c"), Path("/k"), Path("/ca"))
    assert accesses.pop() == ZooKeeperAccess(files, True, "daybook", Path("/p"))
    daybook("cluster", "show", *GIVEN, "--tls-no-verify-host")
    assert accesses.pop() == ZooKeeperAccess(TlsFiles(), False, "daybook", Path("/p"))
    daybook("cluster", "show", "--zookeeper", "zk:1")
    assert accesses.pop() == ZooKeeperAccess()
    for name, value in (("TLS", "true"), ("USER", "daybook"), ("PASSWORD_FILE", "/p")):
        monkeypatch.setenv(f"DAYBOOK_ZOOKEEPER_{name}", value)
    _, _, err = daybook("cluster", "show", "--zookeeper", "zk:1")
    assert accesses.pop() == ZooKeeperAccess(TlsFiles(), True, "daybook", Path("/p"))
    assert "is ignored" not in err


def test_a_user_needs_a_password(daybook: Daybook) -> None:
    code, _, err = daybook("cluster", "show", "--zookeeper", "zk:1", "--zookeeper-user", "daybook")
    assert code == 1
    assert "belong together" in err


def test_a_file_that_cannot_be_used_is_named(
    daybook: Daybook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UnusableAccessError("the password file /p cannot be read: no")

    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", fail)
    code, _, err = daybook("cluster", "show", *GIVEN)
    assert code == 1
    assert err.endswith("the password file /p cannot be read: no.\n")


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        (("broker",), "DAYBOOK_BROKER_"),
        (("bookie",), "DAYBOOK_BOOKIE_"),
        (("autorecovery", "run"), "DAYBOOK_AUTORECOVERY_"),
    ],
    ids=["broker", "bookie", "autorecovery"],
)
def test_services_get_them_as_settings(
    environ: dict[str, str], command: tuple[str, ...], prefix: str
) -> None:
    from daybook.clients.cli.main import main

    with pytest.raises(_ReplacedError):
        main([*command, *GIVEN], standalone_mode=False)
    assert {name: environ.get(f"{prefix}ZOOKEEPER{name}") for name in ("", "_TLS", "_USER")} == {
        "": "zk:1",
        "_TLS": "true",
        "_USER": "daybook",
    }
    assert environ[f"{prefix}ZOOKEEPER_PASSWORD_FILE"] == "/p"


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (
            NoContactError("none", "z:1 hangs up: perhaps it is ZooKeeper's port with TLS"),
            "--zookeeper-tls",
        ),
        (NoContactError("none", "TLS with ZooKeeper at z:1 has failed: refused"), "--tls-trusted"),
        (AccessDeniedError("no identity of this session has the right"), "--zookeeper-user"),
    ],
)
def test_what_a_locked_zookeeper_needs_is_named(error: Exception, option: str) -> None:
    assert option in remedy_for(error)
    assert remedy_for(NoContactError("none", "z:1: connection refused")) == ""
