"""`python -m daybook.broker` as a process: its output, and its end."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import trio

from daybook.bookie.registry.instance import PATH
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.own_address import reachable_host
from tests.harness.processes import ServerProcess

pytestmark = pytest.mark.real
T = TypeVar("T")
TIMEOUT_S = 180


def command(**settings: object) -> tuple[list[str], dict[str, str]]:
    environment = {f"DAYBOOK_BROKER_{k.upper()}": str(v) for k, v in settings.items()}
    return [sys.executable, "-m", "daybook.broker"], {**os.environ, **environment}


def run(**settings: object) -> subprocess.CompletedProcess[str]:
    words, environment = command(**settings)
    return subprocess.run(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@contextmanager
def broker(cluster: StandaloneProcess, log: Path, /, **settings: Any) -> Iterator[ServerProcess]:
    """Run a further broker of the cluster; it is killed at the end if it still runs."""
    process = ServerProcess.broker(log, zookeeper=cluster.zookeeper, **settings)
    try:
        yield process.read_ready()
    finally:
        process.kill()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


def brokers(cluster: StandaloneProcess) -> list[str]:
    url = cluster.ready["brokers"][0]["admin_url"]
    found: list[str] = json.loads(get(f"{url}/admin/v2/brokers"))
    return found


def test_settings_that_make_no_sense() -> None:
    done = run(prot=1)
    assert done.returncode == 1
    assert "prot" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_metadata_store_it_says_so_and_ends() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        done = run(zookeeper=f"127.0.0.1:{port}", http_port=0, port=0, start_timeout_s=1)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken(cluster: StandaloneProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for ports in ({"port": port, "http_port": 0}, {"port": 0, "http_port": port}):
            done = run(zookeeper=cluster.ready["zookeeper"], **ports)
            assert done.returncode == 2
            assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
            assert "Traceback" not in done.stderr


def test_a_broker_with_the_ledgers_of_another_root_does_not_join(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    """Two roots share one ZooKeeper: the broker names both, ends with 2, and changes nothing."""
    root = LedgerPaths("/two/ledgers")

    async def look(work: Callable[[MetadataStore], Awaitable[T]]) -> T:
        async with open_zookeeper(str(cluster.ready["zookeeper"]), session_timeout_s=10) as store:
            return await work(store)

    async def two_roots(store: MetadataStore) -> tuple[str, str]:
        ours = await ensure_layout(store, LedgerPaths(), SystemRandom())
        return ours, await ensure_layout(store, root, SystemRandom())

    async def state(store: MetadataStore) -> list[object]:
        paths = ("/admin/clusters", "/daybook/guards", "/loadbalance/brokers", root.root)
        bound = await store.get(PATH)
        assert bound is not None
        return [bound, *[await store.get_children(path) for path in paths]]

    ours, theirs = trio.run(look, two_roots)
    before = trio.run(look, state)
    settings = {"zookeeper": cluster.ready["zookeeper"], "port": 0, "http_port": 0}
    for where, said in ((root.root, theirs), ("/nowhere", "no bookie has started")):
        done = run(**settings, ledgers_root=where, cluster="other")
        assert done.returncode == 2
        for each in ("cannot join", ours, said, where, "daybook cluster show"):
            assert each in done.stderr
        assert "Traceback" not in done.stderr
        assert trio.run(look, state) == before
    log = tmp_path / "log"
    with broker(cluster, log, cluster="other") as other:  # Another name is no other cluster.
        other.process.send_signal(signal.SIGTERM)
        assert other.process.wait(TIMEOUT_S) == 0
        assert "`cluster` of this broker is new" in log.read_text()


def test_it_serves_and_leaves_in_good_order(cluster: StandaloneProcess, tmp_path: Path) -> None:
    with broker(cluster, tmp_path / "log", name="extra") as extra:
        facts, process = extra.ready, extra.process
        assert facts["name"] == "extra"
        assert facts["pid"] == process.pid
        assert facts["service_url"] == f"pulsar://127.0.0.1:{facts['port']}"
        for path in ("/healthz", "/readyz", "/admin/v2/brokers/health"):
            assert get(facts["admin_url"] + path) == "ok"
        assert 'daybook_broker_in_contact{cluster="standalone"} 1.0' in get(
            facts["admin_url"] + "/metrics"
        )
        assert facts["broker_id"] in brokers(cluster)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert facts["broker_id"] not in brokers(cluster)


WARNING = "everybody who reaches this broker may read, write and delete everything"


def test_a_broker_on_all_addresses_advertises_one_and_warns_in_one_line(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    with broker(cluster, tmp_path / "open.log", host="0.0.0.0") as process:
        host = urlsplit(process.ready["service_url"]).hostname
        assert host == reachable_host()
        assert get(f"http://{host}:{process.http_port}/readyz")
    lines = (tmp_path / "open.log").read_text().splitlines()
    assert len([line for line in lines if WARNING in line]) == 1
    with broker(cluster, tmp_path / "local.log"):
        pass
    assert WARNING not in (tmp_path / "local.log").read_text()


def test_a_broker_that_asks_who_clients_are_does_not_warn(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    settings = {
        "authentication": '["token"]',
        "token_secret_key": f"data:;base64,{base64.b64encode(bytes(range(48))).decode()}",
        "advertised_host": "127.0.0.1",
    }
    with broker(cluster, tmp_path / "log", host="0.0.0.0", **settings):
        pass
    assert WARNING not in (tmp_path / "log").read_text()


def test_it_ends_with_its_parent_if_told_to(cluster: StandaloneProcess, tmp_path: Path) -> None:
    with broker(cluster, tmp_path / "log", exit_with_parent="true") as extra:
        process = extra.process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
