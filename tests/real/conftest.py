"""Real processes: one cluster for the tests that do not break it; other tests have their own."""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from tests.harness.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real.spark_session import SharedSpark

_serial = count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[StandaloneProcess]:
    """Run ZooKeeper, three bookies, two brokers.  Tests that use it leave it whole."""
    with StandaloneProcess() as running:
        yield running


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """Run a cluster that the tests of a module break, and repair before they end; its logs remain.

    The third broker can take over while the last owner is being started.
    """
    directory = tmp_path_factory.mktemp("broken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAYBOOK_BROKER_ROLL_AGE_MIN_S", "0")  # Tests wait for rolls.
        running = StandaloneProcess(directory=directory, brokers=3, options=ANY_PORTS)
    with running:
        yield running


@pytest.fixture
def mended(broken: StandaloneProcess) -> Iterator[StandaloneProcess]:
    """Return the cluster that tests break; the parts that this test kills are started again."""
    yield broken
    for part in broken.parts():
        if part["state"] == "down":
            broken.local("start", part["name"])
    wait_until(lambda: all(each["state"] == "running" for each in broken.parts()), "all parts run")


@pytest.fixture
def client(cluster: StandaloneProcess) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.service_url) as client:
        yield client


@pytest.fixture
def admin(cluster: StandaloneProcess) -> Iterator[blocking.Admin]:
    with blocking.connect_admin(cluster.admin_url) as admin:
        yield admin


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SharedSpark]":
    """Return the Spark of this process, which is one for all files."""
    from tests.real.spark_session import SharedSpark

    shared = SharedSpark(tmp_path_factory.mktemp("warehouse"))
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def spark(shared_spark: "SharedSpark") -> "Iterator[SparkSession]":
    """Open a session in this process, without repetitions of tasks that fail."""
    with shared_spark.session() as session:
        yield session


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses."""
    return f"{request.node.originalname.replace('_', '-')}-{next(_serial)}"
