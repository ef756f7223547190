"""Many idle clients of real processes; `many_clients` with larger numbers is a program."""

from collections.abc import Iterator

import pytest

from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.many_clients import MB, measure, raise_descriptors

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

OFFICIAL, RAW, BOOKIE = 300, 1000, 600


@pytest.fixture
def one_broker() -> Iterator[StandaloneProcess]:
    raise_descriptors()
    with StandaloneProcess(brokers=1) as running:
        yield running


async def test_idle_clients_cost_next_to_nothing_and_come_and_go(
    one_broker: StandaloneProcess,
) -> None:
    """There are more of each kind than arenas.  `measure` fails if the probe is not served."""
    steps = await measure(one_broker, official=OFFICIAL, raw=RAW, bookie=BOOKIE)
    before, most = steps[0], max(step.broker_bytes for step in steps)
    assert most - before.broker_bytes < 60 * MB, steps
    assert max(step.bookie_bytes for step in steps) - before.bookie_bytes < 30 * MB, steps
    first, again = (
        step for step in steps if "raw clients" in step.name and "bookie" not in step.name
    )
    assert again.broker_bytes - first.broker_bytes < 10 * MB, steps
