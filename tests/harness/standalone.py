"""The services of a running cluster, for tests that inspect and break them."""

from pathlib import Path
from typing import Any

import trio

from daybook.clients.python.admin import Admin
from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S

PAGE_BYTES = 4096
_POLL_S = 0.2


async def order(cluster: StandaloneProcess, command: str, *names: str) -> None:
    """Kill, stop, start, pause or resume these services, one after the other."""
    for name in names:
        await trio.to_thread.run_sync(cluster.local, command, name)


async def owner_of(cluster: StandaloneProcess, topic: str, *, asked: str = "") -> str:
    """Return the name of the topic's broker, according to the broker at `asked`, or any."""
    async with connect(asked or cluster.service_url) as client:
        url = await client.lookup(topic)
    (name,) = [b["name"] for b in cluster.ready["brokers"] if b["service_url"] == url]
    return str(name)


async def wait_running(cluster: StandaloneProcess) -> None:
    """Wait until all parts run."""
    with trio.fail_after(PATIENCE_S):
        while True:
            parts = await trio.to_thread.run_sync(cluster.parts)
            if all(part["state"] == "running" for part in parts):
                return
            await trio.sleep(_POLL_S)


async def pids(cluster: StandaloneProcess) -> dict[str, int]:
    """Return the process ids of the parts; 0: the part is down."""
    parts = await trio.to_thread.run_sync(cluster.parts)
    return {str(part["name"]): int(part["pid"] or 0) for part in parts}


def part(cluster: StandaloneProcess, name: str) -> dict[str, Any]:
    """Return what the ready line reports about a broker or a bookie."""
    parts = [*cluster.ready["brokers"], *cluster.ready["bookies"]]
    (found,) = [dict(each) for each in parts if each["name"] == name]
    return found


def admin_of(cluster: StandaloneProcess) -> Admin:
    """Return an admin client of all brokers: one of them may be down."""
    return Admin(cluster.admin_url)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
