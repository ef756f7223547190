"""Real processes: one cluster for the tests that do not break it; others have their own."""

from collections.abc import Iterator
from itertools import count

import pytest

from clients.testing.standalone import StandaloneProcess

_serial = count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[StandaloneProcess]:
    """ZooKeeper, three bookies, two brokers.  Tests that use it leave it whole."""
    with StandaloneProcess() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"{request.node.originalname.replace('_', '-')}-{next(_serial)}"
