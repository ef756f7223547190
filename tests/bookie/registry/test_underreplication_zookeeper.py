"""The underreplication records on real ZooKeeper."""

from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import pytest
import trio

from daybook.wire.metadata.store import MetadataStore
from daybook.wire.metadata.zookeeper import open_zookeeper
from tests.bookie.registry.underreplication_suite import UnderreplicationSuite
from tests.harness.zookeeper import run_zookeeper

pytestmark = pytest.mark.real
_serial = count()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with run_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running.port


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
