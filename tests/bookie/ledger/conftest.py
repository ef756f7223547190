"""Fixtures: clusters of fake bookies, by their number of bookies."""

from collections.abc import AsyncGenerator

import pytest

from tests.bookie.ledger.cluster import Cluster, open_cluster


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
async def four() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=4) as cluster:
        yield cluster
