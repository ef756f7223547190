"""The supervisor, with small real processes as parts."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from daybook.clients.cli.control import ask
from daybook.clients.cli.control_server import serve_control
from daybook.clients.cli.directory import open_directory
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.supervisor import (
    Keeper,
    Part,
    PartFailedError,
    PartState,
    Supervisor,
    last_words,
)

# Other processes say nothing when they change: we have to look again and again.
# ruff: noqa: ASYNC110

pytestmark = pytest.mark.real
PATIENCE_S = 180.0
READY = "echo noise; echo '{\"ready\": true}'; "
GOOD = READY + "exec sleep 600"


def part(tmp_path: Path, script: str, name: str = "part-1", kind: str = "part") -> Part:
    return Part(
        name=name,
        kind=kind,
        command=lambda: ["sh", "-c", script],
        log=tmp_path / f"{name}.log",
        environ=os.environ,
        facts={"address": "here"},
    )


@asynccontextmanager
async def running(*parts: Part) -> AsyncGenerator[Supervisor]:
    said: list[str] = []
    supervisor = Supervisor(parts, said.append)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            yield supervisor
            nursery.cancel_scope.cancel()


async def wait_state(keeper: Keeper, state: PartState) -> None:
    while keeper.state is not state:
        await trio.sleep(0.01)


def process_state(pid: int) -> str:
    """Return the state as in `ps`; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    """Return False for a process that has ended, even if its parent has not waited for it."""
    return process_state(pid) not in ("", "Z")


async def test_a_part_is_running_when_it_says_so(tmp_path: Path) -> None:
    async with running(part(tmp_path, GOOD)) as supervisor:
        (keeper,) = supervisor.keepers.values()
        assert keeper.state is PartState.STARTING
        await supervisor.wait_ready()
        assert keeper.facts() == {
            "name": "part-1",
            "state": "running",
            "pid": keeper.pid,
            "restarts": 0,
            "address": "here",
            "why": None,
        }
        assert (tmp_path / "part-1.log").read_text().splitlines() == ["noise", '{"ready": true}']


async def test_a_part_may_be_probed_instead(tmp_path: Path) -> None:
    here = tmp_path / "here"

    async def probe() -> None:
        while not here.exists():
            await trio.sleep(0.01)

    probed = Part(
        name="p",
        kind="p",
        command=lambda: ["sh", "-c", f"touch {here}; exec sleep 600"],
        log=tmp_path / "p.log",
        environ=os.environ,
        facts={},
        probe=probe,
    )
    async with running(probed) as supervisor:
        await supervisor.wait_ready()


async def test_a_part_that_dies_is_started_again(tmp_path: Path) -> None:
    async with running(part(tmp_path, GOOD)) as supervisor:
        await supervisor.wait_ready()
        keeper = supervisor.keepers["part-1"]
        first = keeper.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await wait_state(keeper, PartState.RESTARTING)
        await wait_state(keeper, PartState.RUNNING)
        assert keeper.pid != first
        assert keeper.facts()["restarts"] == 1


async def test_a_part_that_cannot_be_started_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: without descriptors the supervisor ended, and the kernel killed all parts."""
    async with running(part(tmp_path, GOOD), part(tmp_path, GOOD, "other")) as supervisor:
        await supervisor.wait_ready()
        keeper, other = supervisor.keepers.values()
        stays = other.pid
        failed = trio.Event()

        def no_descriptor(*_: object, **__: object) -> NoReturn:
            failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as short:
            short.setattr(subprocess, "Popen", no_descriptor)
            assert keeper.pid is not None
            os.kill(keeper.pid, signal.SIGKILL)
            await failed.wait()
            await wait_state(keeper, PartState.RESTARTING)
        await wait_state(keeper, PartState.RUNNING)
        assert other.pid == stays


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("before", [PartState.RUNNING, PartState.PAUSED])
async def test_a_part_stays_down_until_it_is_started(
    tmp_path: Path, how: str, before: PartState
) -> None:
    async with running(part(tmp_path, GOOD)) as supervisor:
        await supervisor.wait_ready()
        keeper = supervisor.keepers["part-1"]
        first = keeper.pid
        assert first is not None
        if before is PartState.PAUSED:
            keeper.pause()
        await getattr(keeper, how)()
        assert (keeper.state, keeper.pid) == (PartState.DOWN, None)
        assert not is_alive(first)
        await getattr(keeper, how)()
        await keeper.start()
        assert keeper.state is PartState.RUNNING
        await keeper.start()


async def test_a_part_can_be_paused(tmp_path: Path) -> None:
    async with running(part(tmp_path, GOOD)) as supervisor:
        await supervisor.wait_ready()
        keeper = supervisor.keepers["part-1"]
        keeper.pause()
        assert keeper.state is PartState.PAUSED
        assert keeper.pid is not None
        while process_state(keeper.pid) != "T":
            await trio.sleep(0.01)
        with pytest.raises(PartFailedError, match="paused, not running"):
            keeper.pause()
        keeper.resume()
        with pytest.raises(PartFailedError, match="running, not paused"):
            keeper.resume()


async def test_a_cluster_whose_vital_part_cannot_start_fails_with_its_last_words(
    tmp_path: Path,
) -> None:
    words = 'level=error event="cannot go on" why="bad disk"'
    bad = part(tmp_path, f"echo '{words}' >&2; exit 3", "z", "zookeeper")
    async with running(part(tmp_path, GOOD, "b", "broker"), bad) as supervisor:
        with pytest.raises(PartFailedError, match="z did not start: bad disk"):
            await supervisor.wait_ready()
    one, other = (part(tmp_path, f"exit {code}", f"b-{code}", "broker") for code in (4, 5))
    async with running(part(tmp_path, GOOD, "z", "zookeeper"), one, other) as supervisor:
        with pytest.raises(PartFailedError, match=r"b-\d did not start: exit code"):
            await supervisor.wait_ready()


async def test_a_cluster_starts_without_a_bookie_or_one_of_its_brokers_and_says_so(
    tmp_path: Path,
) -> None:
    bookie = part(tmp_path, "echo 'empty directory' >&2; exit 2", "bookie-1", "bookie")
    broker = part(tmp_path, "exit 4", "broker-1", "broker")
    good = part(tmp_path, GOOD, "broker-2", "broker")
    async with running(bookie, broker, good) as supervisor:
        lacking = await supervisor.wait_ready()
        assert sorted(lacking) == [
            "bookie-1 did not start: empty directory",
            "broker-1 did not start: exit code 4",
        ]
        keeper = supervisor.keepers["bookie-1"]
        assert keeper.facts()["why"] == "bookie-1 did not start: empty directory"
        assert supervisor.keepers["broker-2"].facts()["why"] is None


async def test_a_part_that_does_not_start_is_tried_again_and_may_get_ready(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    bookie = part(tmp_path, f"test -e {mended} || exit 2; {GOOD}", "bookie-1", "bookie")
    async with running(bookie) as supervisor:
        assert await supervisor.wait_ready() == ["bookie-1 did not start: exit code 2"]
        mended.touch()
        keeper = supervisor.keepers["bookie-1"]
        await wait_state(keeper, PartState.RUNNING)
        assert keeper.failure is None


async def test_kinds_stop_in_order(tmp_path: Path) -> None:
    order = tmp_path / "order"
    parts = [
        part(tmp_path, f"trap 'echo {n} >>{order}; exit' TERM; {READY} sleep 600 & wait", n, k)
        for n, k in [("zk", "zookeeper"), ("b1", "bookie"), ("br1", "broker")]
    ]
    async with running(*parts) as supervisor:
        await supervisor.wait_ready()
        await supervisor.stop(["broker", "bookie", "zookeeper"])
        assert order.read_text().split() == ["br1", "b1", "zk"]


async def test_a_part_may_end_otherwise_while_others_need_it(tmp_path: Path) -> None:
    order = tmp_path / "order"
    script = f"trap 'echo asked >>{order}; exit' TERM; {READY} sleep 600 & wait"
    alone = replace(part(tmp_path, script), lone_stop=signal.SIGKILL)
    async with running(alone) as supervisor:
        await supervisor.wait_ready()
        keeper = supervisor.keepers["part-1"]
        await keeper.stop()
        assert not order.exists()
        await keeper.start()
        await supervisor.stop(["part"])
        assert order.read_text() == "asked\n"


def test_last_words_are_those_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n\n")
    assert last_words(log) == "old"
    assert last_words(log, since=5) == ""
    assert last_words(tmp_path / "missing") == ""


async def test_orders_come_through_the_socket(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory, directory.control_socket() as path:
        async with running(part(tmp_path, GOOD)) as supervisor, trio.open_nursery() as nursery:
            await nursery.start(serve_control, supervisor, path)
            await supervisor.wait_ready()

            async def order(command: str, name: str | None = "part-1") -> str:
                (facts,) = await trio.to_thread.run_sync(ask, tmp_path, command, name)
                return str(facts["state"])

            assert await order("status", None) == "running"
            assert await order("kill") == "down"
            assert await order("start") == "running"
            assert await order("pause") == "paused"
            assert await order("resume") == "running"
            assert await order("stop") == "down"
            for command, name, error in [
                ("kill", "part-2", "There is no part-2; the parts are part-1"),
                ("kill", None, "kill: name a part"),
                ("explode", "part-1", "There is no command explode"),
                ("pause", "part-1", "part-1 is down, not running"),
            ]:
                with pytest.raises(UserError, match=error):
                    await order(command, name)
            stream = await trio.open_unix_socket(path)
            await stream.send_all(b"[1, 2]\n")
            assert b"not a request" in await stream.receive_some()
            nursery.cancel_scope.cancel()
    with pytest.raises(UserError, match="No standalone cluster runs in"):
        ask(tmp_path, "status", None)


PARENT = """
import os, sys, trio
from pathlib import Path
from daybook.clients.cli.supervisor import Part, Supervisor
script = "echo '{\\"ready\\": true}'; exec sleep 600"
here = Path(sys.argv[1])
parts = [Part(n, n, lambda: ["sh", "-c", script], here / n, os.environ, {}) for n in ("a", "b")]
async def main():
    supervisor = Supervisor(parts, print)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await supervisor.wait_ready()
        supervisor.keepers["b"].pause()
        await trio.to_thread.run_sync(lambda: None)
        print(*(k.pid for k in supervisor.keepers.values()), flush=True)
trio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has to help")
async def test_no_part_outlives_its_supervisor(tmp_path: Path) -> None:
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    with trio.fail_after(PATIENCE_S):
        while any(is_alive(pid) for pid in pids):
            await trio.sleep(0.01)


async def test_other_parts_start_when_zookeeper_serves(tmp_path: Path) -> None:
    """One start in five took ten seconds longer.

    A bookie had connected while ZooKeeper was starting: ZooKeeper accepted the connection, and
    never answered.
    """
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.01; done; "
    zookeeper = part(tmp_path, wait + GOOD, name="zookeeper", kind="zookeeper")
    bookie = part(tmp_path, GOOD, name="bookie-1", kind="bookie")
    async with running(bookie, zookeeper) as supervisor:
        while supervisor.keepers["zookeeper"].pid is None:
            await trio.sleep(0.01)
        await trio.sleep(0.1)
        assert supervisor.keepers["bookie-1"].pid is None
        gate.touch()
        await supervisor.wait_ready()
        assert supervisor.keepers["bookie-1"].state is PartState.RUNNING
