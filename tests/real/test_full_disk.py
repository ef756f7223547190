"""Bookies with full disks: the producer gets an error, acknowledged messages stay, it goes on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("full-disk")]

SMALL, LARGE = "size=300m", "size=800m"  # the bookie keeps 256 MB for work that must never stop
MESSAGE = bytes(200_000)
REFUSED_S = 20.0  # A send that no bookie can store takes as long as that.
PATIENCE_S = 300.0  # only so that nothing hangs forever


def _mount(path: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Yield a directory with little room for each bookie of a cluster in `tmp_path`."""
    disks = [tmp_path / f"bookie-{number}" for number in (1, 2, 3)]
    mounted: list[Path] = []
    for disk in disks:
        disk.mkdir()
        if _mount(disk, SMALL):
            mounted.append(disk)
    if len(mounted) < len(disks):
        pytest.skip("file systems cannot be mounted here")
    try:
        yield disks
    finally:
        for disk in mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)


async def test_full_disks_lose_nothing_and_room_is_all_it_takes(
    tmp_path: Path, small_disks: list[Path]
) -> None:
    ports = ("--port", "0", "--admin-port", "0", "--zookeeper-port", "0")
    with StandaloneProcess(directory=tmp_path, brokers=1, options=ports) as cluster:
        async with connect(cluster.service_url) as client:
            consumer = await client.subscribe("full", "s", initial_position="earliest")
            acknowledged = await _fill(cluster, "full")
            assert 50 < len(acknowledged) < 250  # as many as fit, and not more
            for disk in small_disks:
                await trio.run_process(["mount", "-o", f"remount,{LARGE}", str(disk)])
            with trio.fail_after(PATIENCE_S):
                async with await client.create_producer("full", send_timeout_s=None) as producer:
                    await producer.send(b"after" + MESSAGE)
            wanted, got = set(acknowledged), set[int]()
            with trio.fail_after(PATIENCE_S):
                while True:
                    message = await consumer.receive()
                    if (message.data or b"").startswith(b"after"):
                        break
                    got.add(int((message.data or b"").partition(b" ")[0]))
            assert wanted <= got


async def _fill(cluster: StandaloneProcess, topic: str) -> list[int]:
    """Send until a send is refused; return the numbers that were acknowledged."""
    acknowledged: list[int] = []
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer(topic, send_timeout_s=REFUSED_S) as producer,
    ):
        for number in range(1000):
            try:
                await producer.send(b"%d " % number + MESSAGE)
            except BrokerError:
                return acknowledged
            acknowledged.append(number)
    raise AssertionError("disks with 44 MB of room took 200 MB")
