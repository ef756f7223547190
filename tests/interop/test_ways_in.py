"""Apache Pulsar's clients and admin clients with TLS and credentials, right ones and wrong ones.

`docs/interop.md` has the table; `tests/test_ways_page.py` keeps it true.
"""

from collections.abc import Iterator

import pytest

from tests.harness.secure import SPREAD, SecureCluster
from tests.interop.ways import Ways
from tests.interop.ways_in import CLIENTS, IN, OUT, Way, asked, check_in, check_refused, open_client

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    cluster = SecureCluster(tmp_path_factory.mktemp("secure"))
    try:
        cluster.start()
        cluster.grant()
        cluster.spread(SPREAD)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, secure: SecureCluster) -> Iterator[Ways]:
    running = open_client(request.param, secure)
    yield running
    running.close()


@pytest.mark.parametrize("way", IN, ids=str)
def test_ways_in(secure: SecureCluster, client: Ways, way: Way) -> None:
    if client.name not in way.clients:
        pytest.skip("the client does not offer it")
    check_in(client, asked(client, secure, **way.fields(secure)))


@pytest.mark.parametrize("way", OUT, ids=str)
def test_wrong_ways(secure: SecureCluster, client: Ways, way: Way) -> None:
    if client.name not in way.clients:
        pytest.skip("the client does not offer it")
    check_refused(client, secure, way)
