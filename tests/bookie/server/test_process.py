"""The process: its start and end, and that a kill loses no acknowledged entry."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
import trio

from daybook.clients import ledgers
from daybook.wire.messages.bookie import AddRun, ReadAnswer, Status, decode_answer, encode_read
from tests.bookie.server.peer import Peer, add_frame, connect, make_entry
from tests.harness.processes import PATIENCE_S, ServerProcess, end, http_get
from tests.harness.zookeeper import run_zookeeper

# Other processes say nothing when they change: we have to look again and again.
# ruff: noqa: ASYNC110

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running.address


@pytest.fixture
def config(zookeeper: str, tmp_path: Path) -> Path:
    """Return the settings file of a bookie in a cluster of this test's own."""
    file = tmp_path / "bookie.toml"
    settings = {
        "directories": [str(tmp_path / "d0")],
        "port": 0,
        "zookeeper": zookeeper,
        "ledgers_root": f"/{tmp_path.name}",
        "session_timeout_s": 60.0,
        "exit_with_parent": True,
    }
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    return file


async def test_it_says_that_it_is_ready_and_how_it_is(config: Path) -> None:
    bookie = await ServerProcess.bookie(config).wait_ready()
    try:
        assert bookie.ready["ready"] is True
        assert bookie.ready["name"] == f"127.0.0.1:{bookie.port}"
        url = f"http://127.0.0.1:{bookie.ready['http_port']}"
        for path in ("healthz", "readyz"):
            assert await trio.to_thread.run_sync(http_get, f"{url}/{path}") == (200, "ok")
        async with connect(bookie.port) as peer:
            assert await peer.add(7, 0) is Status.OK
        _, metrics = await trio.to_thread.run_sync(http_get, f"{url}/metrics")
        assert "daybook_bookie_store_entries_added_total 1.0" in metrics
    finally:
        bookie.process.send_signal(signal.SIGTERM)
        assert await bookie.wait() == 0
        bookie.kill()
    log = (config.parent / "log").read_text()
    assert "event=stopping why=SIGTERM" in log
    assert "Traceback" not in log
    made = [config.parent / "d0", *(config.parent / "d0").rglob("*")]
    open_to_others = [str(each) for each in made if stat.S_IMODE(each.stat().st_mode) & 0o077]
    assert not open_to_others, "entries, and the master keys of ledgers in the index"


def test_a_bookie_that_others_reach_warns_in_one_line(config: Path) -> None:
    warning = "everybody who reaches this bookie may read, write and delete entries"
    for host, count in (("127.0.0.1", 0), ("0.0.0.0", 1)):
        log = config.parent / "log"
        log.unlink(missing_ok=True)
        settings = config.read_text()
        with config.open("a") as file:
            file.write(f'host = "{host}"\nadvertised_host = "127.0.0.1"\nbookie_id = "one"\n')
        end(ServerProcess.bookie(config).read_ready().process, signal.SIGTERM)
        config.write_text(settings)
        assert len([line for line in log.read_text().splitlines() if warning in line]) == count


async def takes_an_add(port: int, entry_id: int) -> bool:
    async with connect(port) as peer:
        await peer.send(add_frame(7, entry_id))
        return await peer.receive() is not None


async def test_idle_connections_leave_a_bookie_its_descriptors(config: Path) -> None:
    """Without descriptors the bookie can open no segment, and its storage fails for good."""
    files = 200
    bookie = await ServerProcess.bookie(config, files=files).wait_ready()
    url = f"http://127.0.0.1:{bookie.ready['http_port']}"
    try:
        async with connect(bookie.port) as peer:
            assert await peer.add(7, 0) is Status.OK
            with ExitStack() as stack:
                for port in (bookie.port, bookie.ready["http_port"]):
                    for _ in range(2 * files):
                        idle = stack.enter_context(socket.socket())
                        idle.setblocking(False)
                        idle.connect_ex(("127.0.0.1", port))
                with trio.fail_after(PATIENCE_S):
                    while (
                        "connections_refused_total 0.0"
                        in (await trio.to_thread.run_sync(http_get, f"{url}/metrics"))[1]
                    ):
                        await trio.sleep(0.1)
                assert await trio.to_thread.run_sync(http_get, f"{url}/readyz") == (200, "ok")
                assert bookie.open_files < files
                for entry_id in range(1, 20):
                    assert await peer.add(7, entry_id) is Status.OK
        with trio.fail_after(PATIENCE_S):
            # The bookie has to notice that they have gone.
            while not await takes_an_add(bookie.port, 20):
                await trio.sleep(0.1)
        assert await trio.to_thread.run_sync(http_get, f"{url}/healthz") == (200, "ok")
    finally:
        bookie.kill()
    log = (config.parent / "log").read_text()
    assert "fewer connections than connections_max" in log
    assert "Traceback" not in log
    assert len(log.splitlines()) < 60


async def test_it_ends_with_whoever_started_it(config: Path) -> None:
    bookie = await ServerProcess.bookie(config).wait_ready()
    assert bookie.process.stdin is not None
    bookie.process.stdin.close()
    assert await bookie.wait() == 0
    bookie.kill()


async def test_what_it_cannot_start_with_is_one_sentence(config: Path) -> None:
    bookie = await ServerProcess.bookie(config).wait_ready()
    try:
        second = await trio.run_process(
            [sys.executable, "-m", "daybook.bookie.server", "--config", str(config)],
            capture_stderr=True,
            capture_stdout=True,
            check=False,
            env={**os.environ, "DAYBOOK_BOOKIE_EXIT_WITH_PARENT": "false"},
        )
        assert second.returncode == 2
        assert second.stdout == b""
        (line,) = [text for text in second.stderr.decode().splitlines() if "level=error" in text]
        assert "d0" in line
        assert "Traceback" not in second.stderr.decode()
    finally:
        bookie.kill()


def test_settings_that_make_no_sense_end_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "bookie.toml").write_text("prot = 1\n")
    run = subprocess.run(
        [sys.executable, "-m", "daybook.bookie.server", "--config", str(tmp_path / "bookie.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1


def keep_port(config: Path, bookie: ServerProcess) -> None:
    config.write_text(config.read_text().replace("port = 0", f"port = {bookie.port}"))


async def test_killed_at_any_time_it_has_everything_that_it_acknowledged(config: Path) -> None:
    """Small and large entries from three writers, without a pause, and SIGKILL at random."""
    rng = Random(4)
    acknowledged: dict[tuple[int, int], bytes] = {}
    next_ids = dict.fromkeys(range(3), 0)
    fenced: list[int] = []
    for round_number in range(6):
        bookie = await ServerProcess.bookie(config).wait_ready()
        # At the same address, a bookie replaces its own registration and waits for no session.
        keep_port(config, bookie)
        async with trio.open_nursery() as nursery:
            for ledger_id in next_ids:
                nursery.start_soon(write, bookie.port, ledger_id, next_ids, acknowledged)
            goal = len(acknowledged) + rng.randrange(20, 400)
            with trio.fail_after(PATIENCE_S):
                while len(acknowledged) < goal:
                    await trio.sleep(0.001)
            async with connect(bookie.port) as peer:
                ledger_id = 100 + round_number
                await peer.read(ledger_id, -1, fence_key=add_frame(0, 0)[8:28])
                fenced.append(ledger_id)
            bookie.kill()
    assert len(acknowledged) > 100
    bookie = await ServerProcess.bookie(config).wait_ready()
    try:
        await check(bookie.port, acknowledged, fenced)
    finally:
        bookie.kill()


async def write(
    port: int, ledger_id: int, next_ids: dict[int, int], acknowledged: dict[tuple[int, int], bytes]
) -> None:
    """Add entries, many at a time, until the connection breaks."""
    async with connect(port) as peer, trio.open_nursery() as nursery:
        sent: dict[int, bytes] = {}

        async def send() -> None:
            while True:
                frames: list[bytes] = []
                for _ in range(20):
                    entry_id = next_ids[ledger_id]
                    next_ids[ledger_id] += 1
                    payload = b"%d-%d" % (ledger_id, entry_id) * (1 + entry_id * 37 % 2000)
                    sent[entry_id] = payload
                    frames.append(add_frame(ledger_id, entry_id, payload, lac=entry_id - 1))
                try:
                    await peer.send(*frames)
                except trio.BrokenResourceError:
                    return

        nursery.start_soon(send)
        while (frame := await peer.receive()) is not None:
            answer = bookie_answer(frame)
            if answer.status == Status.OK:
                acknowledged[ledger_id, answer.first] = sent[answer.first]
        nursery.cancel_scope.cancel()


def bookie_answer(frame: bytes) -> AddRun:
    answer = decode_answer(memoryview(frame))
    assert isinstance(answer, AddRun)
    return answer


async def check(port: int, acknowledged: dict[tuple[int, int], bytes], fenced: list[int]) -> None:
    async with connect(port) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(ask, peer, list(acknowledged))
        for _ in acknowledged:
            answer = await peer.answer()
            assert isinstance(answer, ReadAnswer)
            ledger_id, entry_id = answer.ledger_id, answer.entry_id
            assert answer.status == Status.OK, f"entry {entry_id} of ledger {ledger_id} is gone"
            payload = acknowledged[ledger_id, entry_id]
            assert answer.entry == make_entry(ledger_id, entry_id, payload, entry_id - 1)
        for ledger_id in fenced:
            assert await peer.add(ledger_id, 0) is Status.FENCED


async def ask(peer: Peer, wanted: list[tuple[int, int]]) -> None:
    for start in range(0, len(wanted), 100):
        await peer.send(*(encode_read(*ids) for ids in wanted[start : start + 100]))


async def test_a_bookie_that_syncs_late_ends_its_limbo_after_a_kill(config: Path) -> None:
    """An entry acknowledged by two of three is read again, and is on the killed one, too."""
    files = [_of_many(config, number) for number in range(3)]
    bookies = [await ServerProcess.bookie(file).wait_ready() for file in files]
    try:
        async with ledgers.connect(_address(config)) as client:
            async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                for number in range(60):
                    if number == 30:
                        bookies[1].kill()
                    await writer.append(b"%d" % number)
            bookies[1] = await ServerProcess.bookie(files[1]).wait_ready()
            await _until_free(bookies[1])
            reader = await client.open(writer.ledger_id, recover=False)
            assert [bytes(entry.data) async for entry in reader.read()] == [
                b"%d" % number for number in range(60)
            ]
        async with connect(bookies[1].port) as peer:
            for number in (0, 29, 59):
                assert (await peer.read(writer.ledger_id, number)).status == Status.OK
    finally:
        for bookie in bookies:
            bookie.kill()


def _address(config: Path) -> str:
    settings = tomllib.loads(config.read_text())
    return f"zk://{settings['zookeeper']}{settings['ledgers_root']}"


def _of_many(config: Path, number: int) -> Path:
    """Return the settings of one of several bookies, which acknowledges before the sync."""
    directory = config.parent / f"b{number}"
    directory.mkdir()
    settings = tomllib.loads(config.read_text())
    settings |= {"directories": [str(directory / "d0")], "sync": "deferred", "session_timeout_s": 2}
    settings |= {"autorecovery": False}
    file = directory / "bookie.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    return file


async def _until_free(bookie: ServerProcess) -> None:
    url = f"http://127.0.0.1:{bookie.ready['http_port']}/api/v1/bookie/limbo"
    with trio.fail_after(PATIENCE_S):
        while True:
            limbo = json.loads((await trio.to_thread.run_sync(http_get, url))[1])
            if not limbo["in_doubt"] and not limbo["ledgers"]:
                assert limbo["ledgers_cleared"] == 1
                return
            await trio.sleep(0.1)


async def test_a_cookie_that_was_lost_is_given_back_by_command(config: Path) -> None:
    bookie = await ServerProcess.bookie(config).wait_ready()
    bookie.process.terminate()
    assert await bookie.wait() == 0
    bookie.kill()
    shutil.rmtree(tomllib.loads(config.read_text())["directories"][0])  # noqa: ASYNC240
    environ = {**os.environ, "DAYBOOK_BOOKIE_BOOKIE_ID": bookie.ready["name"]}
    command = [
        sys.executable,
        "-m",
        "daybook.bookie.server",
        "--config",
        str(config),
        "--repair-cookie",
    ]
    for code, told in ((0, json.dumps({"repaired": bookie.ready["name"]})), (2, "")):
        done = await trio.run_process(
            command, env=environ, capture_stdout=True, capture_stderr=True, check=False
        )
        assert (done.returncode, done.stdout.decode().strip()) == (code, told)
    assert "nothing to repair" in done.stderr.decode()
    bookie = await ServerProcess.bookie(config).wait_ready()
    try:
        assert bookie.ready["name"] == environ["DAYBOOK_BOOKIE_BOOKIE_ID"]
    finally:
        bookie.kill()
