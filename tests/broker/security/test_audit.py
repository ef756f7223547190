"""The audit log: what is noted, and what happens to lines that cannot be written."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.errors import AuthorizationError
from daybook.broker.security.audit import Audit
from daybook.broker.security.identity import Caller, Identity
from daybook.wire.logging import silent_log
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.security import test_sessions as sessions
from tests.broker.security.test_rights import LOCKED, app, bearer, connected, status, store_policies
from tests.broker.security.test_rights import access as admitting
from tests.broker.security.test_sessions import refusal, token
from tests.harness.broker import open_broker
from tests.harness.clocks import FixedClock

ALICE = Caller(Identity("alice", "token"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_what_clients_do_is_noted_without_their_credentials(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with open_broker(settings={**LOCKED, "audit_file": str(path)}) as cluster:
        await store_policies(cluster.broker.session)
        await refusal(cluster, b"nonsense")
        writer = await connected(cluster, "writer")
        await writer.producer()
        await writer.subscribe()
        writer.send(1, b"a message")
        await writer.receipts(1)
    found = lines(path)
    shown = [(each["action"], each["role"], each["allowed"]) for each in found]
    assert shown == [
        ("CONNECT", "", False),
        ("CONNECT", "writer", True),
        ("PRODUCER", "writer", True),
        ("SUBSCRIBE", "writer", False),
    ]
    assert found[2]["object"] == "the topic persistent://public/default/t"
    assert "lacks the right 'consume'" in found[3]["reason"]
    assert found[1]["method"] == "token"
    assert found[1]["peer"].startswith("client-2")
    text = path.read_text()
    for secret in ("nonsense", token("writer").decode(), "a message"):
        assert secret not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_what_the_rest_changes_or_refuses_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    admits, store = admitting()
    await store_policies(store)
    audit = admits._audit = Audit(str(path), FixedClock(), silent_log())
    served = app(admits)
    topic = "/admin/v2/persistent/public/default/t"
    await status(served, "GET", f"{topic}/stats", **bearer("reader"))
    await status(served, "DELETE", topic, **bearer("root"))
    await status(served, "DELETE", topic, **bearer("reader"), X_Original_Principal="reader")
    await status(served, "GET", f"{topic}/stats")
    audit._write()
    shown = [
        (each["action"], each["role"], each["object"], each["allowed"]) for each in lines(path)
    ]
    assert shown == [
        ("DELETE", "root", topic, True),
        ("DELETE", "reader", topic, False),
        ("GET", "", f"{topic}/stats", False),
    ]


async def test_lines_wait_for_a_file_and_the_lost_ones_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "audit"
    audit = Audit(str(path), FixedClock(), silent_log(), lines_max=2)
    for number in range(5):
        audit.note(f"A{number}", "peer", ALICE, refused=AuthorizationError("no"))
    with pytest.raises(OSError, match="No such file"):
        audit._write()
    assert (len(audit), audit.dropped) == (2, 3)
    path.parent.mkdir()
    audit._write()
    assert len(audit) == 0
    assert [each.get("action", each.get("dropped")) for each in lines(path)] == ["A0", "A1", 3]
    audit._write()
    assert len(lines(path)) == 3


async def test_a_file_that_was_renamed_is_created_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path), FixedClock(), silent_log())
    audit.note("A", "peer", ALICE)
    audit._write()
    path.rename(tmp_path / "old")
    audit.note("B", "peer", ALICE)
    audit._write()
    assert [each["action"] for each in lines(path)] == ["B"]


async def test_without_a_file_nothing_is_noted() -> None:
    audit = Audit("", FixedClock(), silent_log())
    audit.note("A", "peer", ALICE)
    assert len(audit) == 0


async def test_the_last_lines_are_written_when_the_broker_ends(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path), FixedClock(), silent_log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        await trio.lowlevel.checkpoint()
        audit.note("A", "peer", ALICE)
        nursery.cancel_scope.cancel()
    assert [each["action"] for each in lines(path)] == ["A"]


def test_a_proxy_is_noted_with_the_role_for_which_it_asks(tmp_path: Path) -> None:
    path = tmp_path / "audit"

    async def main() -> None:
        audit = Audit(str(path), FixedClock(), silent_log())
        audit.note("LOOKUP", "peer", Caller(Identity("proxy", "token"), "ben"), "x" * 10_000)
        audit._write()
        await trio.lowlevel.checkpoint()

    trio.run(main)
    (found,) = lines(path)
    assert (found["role"], found["original"]) == ("proxy", "ben")
    assert len(found["object"]) == 512


def test_a_line_that_waits_is_short_whatever_a_client_has_chosen(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path / "audit"), FixedClock(), silent_log())
    audit.note("GET", "1.2.3.4:5", None, "/" + "x" * 100_000, AuthorizationError("y" * 100_000))
    (line,) = audit._waiting
    assert len(line.target) == len(line.reason or "") == 512


@pytest.mark.parametrize("renewed", ["another role", "nothing"])
async def test_a_renewal_that_is_refused_is_noted_and_counted(
    tmp_path: Path, autojump_clock: MockClock, renewed: str
) -> None:
    path = tmp_path / "audit"
    async with open_broker(settings={**LOCKED, "audit_file": str(path)}) as cluster:
        client = await sessions.connected(cluster, token(exp=sessions.NOW_S + 20), renews=True)
        await client.wait(pb.CommandAuthChallenge)
        if renewed == "another role":
            sessions.answer(client, token("root"))
        await client.wait(pb.CommandError)
        await client.wait_closed()
        authentication = cluster.broker.context.authentication
        assert authentication is not None
        assert authentication.counts.failed["renewal", "not_renewed"] == 1
    assert [each["allowed"] for each in lines(path)] == [True, False]
    assert "renewed" in lines(path)[1]["reason"]
