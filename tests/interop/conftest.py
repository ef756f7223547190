"""One ZooKeeper and one JVM with Apache's client for all tests; clusters are made on demand.

`apache` has three of Apache's bookies (two with RocksDB, one with the default storage), `own` three
of ours, `mixed` two of each.  Tests leave them whole.

Tests of BookKeeper's own software get the mark `bookkeeper`: `make interop` runs them with each
release, and all others with one.
"""

from collections.abc import Iterator

import pytest

from tests.interop.apache import Apache, apache_here, pulsar_here
from tests.interop.cluster import Cluster, ZooKeeper
from tests.interop.peer import Peer, PulsarPeer

# BookKeeper's client and shell, and clusters with its bookies.  (`own` has its ZooKeeper only.)
OF_BOOKKEEPER = frozenset({"peer", "apache", "mixed"})


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and OF_BOOKKEEPER & fixtures_of(item):
            item.add_marker("bookkeeper")


def fixtures_of(item: pytest.Function) -> set[str]:
    """Return the names of the fixtures of a test, with those that its parameters name."""
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {*item.fixturenames, *(name for name in chosen if isinstance(name, str))}


@pytest.fixture(scope="session")
def release() -> Apache:
    return apache_here()


@pytest.fixture(scope="session")
def zookeeper(release: Apache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    running = ZooKeeper(release, tmp_path_factory.mktemp("interop"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def peer(release: Apache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    running = Peer(release, tmp_path_factory.mktemp("peer"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarPeer]:
    running = PulsarPeer(pulsar_here(), tmp_path_factory.mktemp("pulsar"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def apache(zookeeper: ZooKeeper, peer: Peer) -> Iterator[Cluster]:
    cluster = Cluster(zookeeper, "/apache")
    peer.init(cluster)
    for rocks in (True, True, False):
        cluster.add_apache(rocks=rocks)
    yield cluster.wait_ready()
    cluster.close()


@pytest.fixture(scope="session")
def own(zookeeper: ZooKeeper) -> Iterator[Cluster]:
    cluster = Cluster(zookeeper, "/own")
    for _ in range(3):
        cluster.add_own()
    yield cluster.wait_ready()
    cluster.close()


@pytest.fixture(scope="session")
def mixed(zookeeper: ZooKeeper) -> Iterator[Cluster]:
    """Create the cluster with our bookies; Apache's join it."""
    cluster = Cluster(zookeeper, "/mixed")
    for _ in range(2):
        cluster.add_own()
    cluster.wait_ready()
    for rocks in (True, False):
        cluster.add_apache(rocks=rocks)
    yield cluster.wait_ready()
    cluster.close()
