"""The audit log: what is noted, and what happens to lines that cannot be written."""

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from daybook.broker.errors import AuthorizationError
from daybook.broker.security import audit as audit_module
from daybook.broker.security.action_sums import Action, ActionSums
from daybook.broker.security.audit import Audit
from daybook.broker.security.audit_file import AuditFile
from daybook.broker.security.identity import Caller, Identity
from daybook.broker.security.refusal_budget import OTHERS, RefusalBudget, Source, host_source
from daybook.broker.service.places import Places
from daybook.wire.logging import silent_log
from daybook.wire.messages.registry import encode
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


class OwnProbes:
    """The addresses of probes: all, or none."""

    all = False

    def __contains__(self, _peer: object) -> bool:
        return self.all


async def test_the_probes_of_the_own_port_are_not_noted(tmp_path: Path) -> None:
    path, own_probes = tmp_path / "audit", OwnProbes()
    async with open_broker(settings={**LOCKED, "audit_file": str(path)}) as cluster:
        await store_policies(cluster.broker.session)
        cluster.broker.context = replace(cluster.broker.context, own_probes=own_probes)
        own_probes.all = True
        await connected(cluster, "writer")
        await refusal(cluster, b"nonsense")
        own_probes.all = False
        await connected(cluster, "writer")
    (found,) = lines(path)
    assert found["peer"].startswith("client-3")


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
    reads = [
        f"{topic}/examinemessage",
        f"{topic}/ledger/1/entry/2",
        f"{topic}/subscription/s/position/1",
    ]
    for read in reads:
        await status(served, "GET", read, **bearer("reader"))
    audit._write()
    shown = [
        (each["action"], each["role"], each["object"], each["allowed"]) for each in lines(path)
    ]
    assert shown == [
        ("DELETE", "root", topic, True),
        ("DELETE", "reader", topic, False),
        ("GET", "", f"{topic}/stats", False),
        *(("GET", "reader", read, True) for read in reads),
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
    assert isinstance(line, audit_module._Line)
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


# -- bounds


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def numbered(path: Path) -> list[int]:
    """Return the numbers of the lines in all files, the oldest first."""
    count = len(list(path.parent.glob(f"{path.name}*")))
    files = [path.with_name(f"{path.name}.{number}") for number in range(count - 1, 0, -1)]
    return [int(each["action"]) for file in (*files, path) for each in lines(file)]


async def test_full_files_are_renamed_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path), FixedClock(), silent_log(), bytes_max=2_000, files_max=3)
    for number in range(100):
        audit.note(str(number), "peer", ALICE)
        audit._write()
        sizes = [each.stat().st_size for each in files_in(tmp_path)]
        assert max(sizes) <= 2_000
        assert len(sizes) <= 3
    kept = numbered(path)
    assert kept == list(range(kept[0], 100))
    assert 10 < len(kept) < 50
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in files_in(tmp_path))


async def test_one_file_alone_begins_again_and_older_numbers_go(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    others = [tmp_path / "audit.x", tmp_path / "audit.1.gz"]
    for each in (*others, tmp_path / "audit.1", tmp_path / "audit.7"):
        each.write_text("{}")
    audit = Audit(str(path), FixedClock(), silent_log(), bytes_max=500, files_max=1)
    for number in range(10):
        audit.note(str(number), "peer", ALICE)
        audit._write()
    assert {*files_in(tmp_path)} == {path, *others}
    assert 0 < path.stat().st_size <= 500


@pytest.mark.parametrize("number", range(1, 5))
def test_a_rotation_that_is_interrupted_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "audit"
    file = AuditFile(path, bytes_max=10, files_max=4)
    for letter in "abcd":
        file.append(letter.encode() * 8 + b"\n")
    calls = 0

    class Killed(BaseException):
        pass

    def replace(self: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise Killed
        self.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        if number < 4:
            with pytest.raises(Killed):
                file.append(b"e" * 8 + b"\n")
    file.append(b"f" * 8 + b"\n")
    found = "".join(sorted(each.read_text()[0] for each in tmp_path.iterdir()))
    assert found in {"bcdf", "cdf", "df"}, "the newest are kept"
    assert path.read_text() == "f" * 8 + "\n"
    assert "d" in found


def test_half_a_line_is_followed_by_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_bytes(b'{"time": "2026')
    AuditFile(path, bytes_max=0, files_max=1).append(b"{}\n")
    assert path.read_bytes() == b'{"time": "2026\n{}\n'


def test_a_write_that_fails_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit"
    file = AuditFile(path, bytes_max=0, files_max=1)
    file.append(b"one\n")
    real = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, data[:3])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="full"):
            file.append(b"two and more\n")
    assert path.read_bytes() == b"one\n"
    file.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


async def test_a_full_disk_stops_no_client_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_module, "_RETRY_S", 0.01)
    logged: list[str] = []
    log: Any = SimpleNamespace(error=lambda event, **_: logged.append(event))
    audit = Audit("/dev/full", FixedClock(), log, lines_max=5)
    async with open_broker(settings={**LOCKED, "audit_file": "/dev/full"}) as cluster:
        await store_policies(cluster.broker.session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(audit.run)
            for number in range(9):
                audit.note(str(number), "peer", ALICE)
            with trio.fail_after(60):
                while audit.failures < 5:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                writer = await connected(cluster, "writer")
                await writer.producer()
                writer.send(1, b"a message")
                await writer.receipts(1)
            assert (len(audit), audit.dropped) == (5, 4)
            assert [each for each in logged if "cannot be written" in each] == logged
            assert len(logged) == 1
            nursery.cancel_scope.cancel()


async def test_a_flood_of_refusals_has_few_lines_and_its_number(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit", FixedClock()
    audit = Audit(str(path), clock, silent_log(), refusals=RefusalBudget(3, 5))
    for number in range(50):
        audit.note("CONNECT", f"10.0.0.1:{number}", None, refused=AuthorizationError("no"))
        audit.note("PRODUCER", "10.0.0.2:1", ALICE, refused=AuthorizationError("no"))
        audit.note("PRODUCER", "10.0.0.2:1", ALICE)
    clock.now += 60_000
    audit.note("CONNECT", "10.0.0.1:1", None, refused=AuthorizationError("no"))
    audit._write()
    found = lines(path)
    refused = [each for each in found if each.get("allowed") is False]
    assert len(refused) == 6
    allowed = [each for each in found if each.get("allowed")]
    assert len(allowed) == 21
    assert [each["times"] for each in allowed if "times" in each] == [30]
    left_out = {each["source"]: each["refusals"] for each in found if "source" in each}
    assert left_out == {"10.0.0.1": 47, "alice": 48}
    assert audit.refusals.left_out == 95


def test_garbage_without_credentials_hides_no_wrong_credentials(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path), FixedClock(), silent_log())
    no = AuthorizationError("no")
    for number in range(5_000):
        peer = f"10.{number // 256}.{number % 256}.1:1"
        audit.note("CONNECT", peer, None, refused=no, with_credentials=False)
    audit.note("CONNECT", "127.200.7.1:1", None, refused=no)
    audit._tell_sums(end=True)
    audit._write()
    found = lines(path)
    assert [each["peer"] for each in found if each.get("peer", "").startswith("127")] != []
    sums = [each for each in found if "refusals" in each]
    assert sum(each["refusals"] for each in sums) == 5_000 - (len(found) - len(sums) - 1)
    assert not any(each["credentials"] for each in sums)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=80))
def test_each_refusal_is_noted_or_counted(steps: list[tuple[int, int]]) -> None:
    budget, now_s, noted, told = RefusalBudget(2, 9), 1000.0, 0, 0
    for source, passed_s in steps:
        now_s += passed_s
        told += sum(count for _, count in budget.next_window(now_s))
        noted += budget.admit(host_source(f"source-{source}"))
    told += sum(count for _, count in budget.end(now_s))
    assert noted + told == len(steps)
    assert told == budget.left_out


def test_the_sources_that_are_told_apart_are_bounded() -> None:
    budget = RefusalBudget(1, 10)
    sources = [host_source(f"10.{high}.{low}.1") for high in range(50) for low in range(100)]
    noted = sum(map(budget.admit, sources))
    assert noted == 2_000
    assert len(budget._left_out) <= 1_001
    told = budget.end(0.0)
    assert len(told) == 21
    assert sum(count for _, count in told) == 5_000 - noted


NETWORKS: dict[str, Callable[[int], str]] = {
    "one host": lambda number: "10.0.0.1",
    "hosts of one network": lambda number: f"10.0.0.{number % 256}",
    "many networks": lambda number: f"10.{number % 9}.{number % 900 // 9}.{number // 900}",
    "addresses of IPv6": lambda number: f"2001:db8:7:{number:x}::1",
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_flood_of_refusals_hides_no_first_refusal_of_another_source(kind: str) -> None:
    budget = RefusalBudget()
    noted = sum(budget.admit(host_source(NETWORKS[kind](number))) for number in range(20_000))
    assert noted <= 3_000
    for other in ("192.0.2.1", "2001:db8:8::1", "unknown"):
        assert budget.admit(host_source(other)), other
    assert budget.admit(Source("alice"))
    # A role is no host, even if it is named like one.
    assert budget.admit(Source("10.0.0.1"))


def test_a_flood_of_refusals_of_roles_hides_no_host() -> None:
    budget = RefusalBudget()
    assert sum(budget.admit(Source(f"role-{number}")) for number in range(5_000)) == 1_000
    assert budget.admit(host_source("10.0.0.1"))
    assert sum(count for _, count in budget.end(0.0)) == 4_000
    assert budget.admit(Source("role-4999"))


def test_a_network_is_bounded_and_begins_anew_each_minute() -> None:
    budget = RefusalBudget()
    hosts = [host_source(f"10.0.0.{number}") for number in range(256)]
    for _ in range(2):
        assert sum(map(budget.admit, hosts)) == 100
        assert not budget.admit(hosts[-1])
        (*_, (last, rest)) = budget.next_window(budget._began_s + 60)
        assert (last, rest) == (OTHERS, 157 - 21)
    assert host_source("::1") == host_source("[::1]")._replace(name="::1")
    assert host_source("::ffff:10.0.0.1").network == host_source("10.0.0.2").network
    assert host_source("::ffff:10.0.1.1").network != host_source("10.0.0.2").network


# -- actions that are repeated


def test_an_action_that_is_repeated_has_few_lines_and_its_number(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit", FixedClock()
    ben = Caller(Identity("ben", "token"))
    audit = Audit(str(path), clock, silent_log(), actions=ActionSums(2))
    for number in range(50):
        audit.note("PRODUCER", f"10.0.0.1:{number}", ALICE, "topic a")
    for others in (
        ("PRODUCER", "10.0.0.1:1", ben, "topic a"),
        ("PRODUCER", "10.0.0.1:1", Caller(Identity("alice", "token"), "ben"), "topic a"),
        ("PRODUCER", "10.0.0.2:1", ALICE, "topic a"),
        ("PRODUCER", "10.0.0.1:1", ALICE, "topic b"),
        ("SUBSCRIBE", "10.0.0.1:1", ALICE, "topic a"),
    ):
        audit.note(*others)
    audit._write()
    assert len(lines(path)) == 2 + 5
    clock.now += 60_000
    audit.note("PRODUCER", "10.0.0.1:1", ALICE, "topic a")
    audit._write()
    summed, again = lines(path)[7:]
    assert summed.pop("time") != ""
    assert summed == {
        "role": "alice",
        "original": "",
        "method": "token",
        "peer": "10.0.0.1",
        "action": "PRODUCER",
        "object": "topic a",
        "allowed": True,
        "reason": "",
        "times": 48,
    }
    assert "times" not in again
    assert audit.actions.summed == 48


async def test_the_sums_are_written_when_the_broker_ends(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path), FixedClock(), silent_log(), actions=ActionSums(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        await trio.lowlevel.checkpoint()
        for _ in range(5):
            audit.note("A", "peer:1", ALICE)
        nursery.cancel_scope.cancel()
    assert [each.get("times", 1) for each in lines(path)] == [1, 4]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 20)), max_size=80))
def test_each_action_has_a_line_or_is_counted(steps: list[tuple[int, int]]) -> None:
    sums, now_s, noted, told = ActionSums(2, 5), 1000.0, 0, 0
    for number, passed_s in steps:
        now_s += passed_s
        told += sum(times for _, times in sums.next_window(now_s))
        noted += sums.admit(Action(str(number), "", "", "", "", ""))
        assert len(sums._times) <= 5
    told += sum(times for _, times in sums.end(now_s))
    assert noted + told == len(steps)
    assert told == sums.summed


def test_the_actions_that_are_told_apart_are_bounded_and_the_busy_one_stays() -> None:
    sums, busy = ActionSums(1, 10), Action("A", "", "", "", "", "busy")
    for number in range(1_000):
        assert sums.admit(busy) is (number == 0)
        assert sums.admit(busy._replace(target=str(number)))
        assert len(sums._times) <= 10
    assert sums.end(0.0) == [(busy, 999)]


# -- before the authentication


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (encode(pb.CommandPing()), "PING before CONNECT"),
        (encode(pb.CommandProducer(topic="t", producer_id=1, request_id=1)), "before CONNECT"),
        (b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff", "cannot be parsed"),
        (b"\x7f\xff\xff\xff", "bytes"),
        (None, "did not send CONNECT in time"),
        (b"\0\0", "every"),
    ],
)
async def test_a_violation_before_the_authentication_is_noted_and_counted(
    tmp_path: Path, autojump_clock: MockClock, frame: bytes | None, why: str
) -> None:
    path = tmp_path / "audit"
    async with open_broker(settings={**LOCKED, "audit_file": str(path)}) as cluster:
        client = await cluster.client(connect=False)
        if frame is not None:
            client.frames.send([frame])
        await client.wait_closed()
        assert cluster.broker.context.request_counts.cut == {"greeting": 1}
    (found,) = lines(path)
    assert (found["action"], found["role"], found["allowed"]) == ("CONNECT", "", False)
    assert why in found["reason"]
    assert found["peer"].startswith("client-")


async def test_a_flood_of_violations_is_logged_in_few_lines() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        logged: list[str] = []
        log: Any = SimpleNamespace(info=lambda event, **facts: logged.append(f"{event} {facts}"))
        cluster.broker.context.cut_log._log = log
        for _ in range(60):
            client = await cluster.client(connect=False)
            client.tell(pb.CommandPing())
            await client.wait_closed()
        assert cluster.broker.context.request_counts.cut["greeting"] == 60
    assert len(logged) == 10


async def test_a_role_has_its_number_of_connections(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    settings = {**LOCKED, "audit_file": str(path)}
    async with open_broker(settings=settings) as cluster:
        await store_policies(cluster.broker.session)
        places = Places(100, of_role_max=1)
        cluster.broker.prove = lambda peer: partial(
            places.prove, places.add(peer, lambda _: None, shakes=False)
        )
        await connected(cluster, "writer")
        assert await refusal(cluster, token("writer")) == pb.ServiceNotReady
        await connected(cluster, "reader")
        for _ in range(3):
            await connected(cluster, "root")  # a super user
    (refused,) = [each for each in lines(path) if not each["allowed"]]
    assert "connections_per_role_max" in refused["reason"]
