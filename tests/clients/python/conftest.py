"""The fixtures that the tests of the blocking client share."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import trio

from tests.clients.python.fake_broker import FakeCluster, fake_cluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Run a cluster in a thread of its own."""
    started: Future[FakeCluster] = Future()
    done = trio.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with fake_cluster() as made:
            started.set_result(made)
            await done.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    yield started.result()
    tokens[0].run_sync_soon(done.set)
    thread.join()
