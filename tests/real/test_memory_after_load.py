"""Processes give the memory of their busiest moment back to the system."""

import pytest
import trio

from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S
from tests.harness.standalone import pids, resident_bytes

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

MB = 1 << 20
_CLIENTS = 60  # more bytes at once than may wait for one bookie
_MESSAGE_BYTES = 4 * MB
_LEFT_BYTES = 30 * MB  # the few arenas that a pool keeps, and pieces of the heap
_POLL_S = 0.2


async def test_the_memory_of_many_large_messages_is_given_back(cluster: StandaloneProcess) -> None:
    """Sixty clients send a message of 4 MB each at the same time, and stay connected."""
    servers = {
        name: pid
        for name, pid in (await pids(cluster)).items()
        if pid and name.startswith("bookie")  # A broker keeps entries in memory on purpose.
    }
    before = {name: resident_bytes(pid) for name, pid in servers.items()}
    peak = dict(before)

    def look() -> dict[str, int]:
        """Return how many bytes each process has more than before."""
        for name, pid in servers.items():
            peak[name] = max(peak[name], resident_bytes(pid))
        return {name: resident_bytes(pid) - before[name] for name, pid in servers.items()}

    async def watch() -> None:
        while True:
            look()
            await trio.sleep(0.01)

    async def send(topic: str, done: trio.Event) -> None:
        async with (
            connect(cluster.service_url) as client,
            await client.create_producer(topic) as producer,
        ):
            await producer.send(bytes(_MESSAGE_BYTES))
            sent[topic] = True
            await done.wait()

    sent: dict[str, bool] = {}
    done = trio.Event()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for number in range(_CLIENTS):
                nursery.start_soon(send, f"large-{number}", done)
            while len(sent) < _CLIENTS:  # noqa: ASYNC110  the senders stay
                await trio.sleep(_POLL_S)
            while max(look().values()) > _LEFT_BYTES:  # noqa: ASYNC110  memory has no event
                await trio.sleep(_POLL_S)
            done.set()
            nursery.cancel_scope.cancel()
    grown = max(peak[name] - before[name] for name in servers)
    assert grown > 2 * _LEFT_BYTES, "the load needed too little memory to show anything"
