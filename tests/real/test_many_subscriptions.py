"""Many subscriptions and busy connections of real processes, in small numbers."""

from collections.abc import Iterator

import pytest

from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.many_clients import raise_descriptors
from tests.real.many_subscriptions import measure

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]


@pytest.fixture
def one_broker() -> Iterator[StandaloneProcess]:
    raise_descriptors()
    with StandaloneProcess(brokers=1) as running:
        yield running


async def test_all_subscriptions_receive_everything_from_memory(
    one_broker: StandaloneProcess,
) -> None:
    """`measure` fails if a message is missing."""
    everywhere, connections = await measure(
        one_broker,
        subscription_count=50,
        rate=50.0,
        connection_count=200,
        every_s=2.0,
        seconds=5.0,
    )
    assert everywhere.received == 50 * everywhere.sent
    assert everywhere.bookie_reads == 0
    assert connections.bookie_reads == 0
