"""The underreplication records on real ZooKeeper."""

import os
import random
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import trio

from daybook.clients.cli.ports import PortChooser
from daybook.clients.cli.zookeeper import find_server
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.metadata.zookeeper import open_zookeeper
from tests.bookie.registry.underreplication_suite import UnderreplicationSuite

pytestmark = pytest.mark.real
_serial = count()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with PortChooser(random.SystemRandom()) as ports:
        chosen = ports.any()
    server = find_server(directory, chosen, zookeeper_home=None, environ=os.environ)
    server.prepare()
    with (directory / "log").open("a") as log:
        process = subprocess.Popen(server.command(), stdout=log, stderr=subprocess.STDOUT)

    async def ready() -> None:
        with trio.fail_after(180):
            await server.wait_ready()

    trio.run(ready)
    yield chosen
    process.kill()
    process.wait()


@pytest.fixture
def open_store(port: int, nursery: trio.Nursery) -> Callable[[], Awaitable[MetadataStore]]:
    root = f"/test/{next(_serial)}"

    async def hold_open(*, task_status: trio.TaskStatus[MetadataStore]) -> None:
        async with open_zookeeper(f"127.0.0.1:{port}", session_timeout_s=60.0, root=root) as store:
            task_status.started(store)
            await trio.sleep_forever()

    async def open_one() -> MetadataStore:
        store: MetadataStore = await nursery.start(hold_open)
        return store

    return open_one


class TestMarksInZooKeeper(UnderreplicationSuite):
    pass
