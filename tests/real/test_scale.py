"""Many topics in real processes; `scale` with larger numbers is a program."""

from collections.abc import Iterator

import pytest

from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.scale import Run, Step

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

TOPICS, HELD = 300, 100
IDLE_S = 3.0


@pytest.fixture
def two_brokers() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(brokers=2, options=[f"--set=broker.topic_idle_unload_s={IDLE_S}"]) as it:
        yield it


async def test_topics_are_created_used_unloaded_loaded_again_and_taken_over(
    two_brokers: StandaloneProcess,
) -> None:
    """`Run.play` fails if a topic is not listed, if a message is missing, or if none leaves."""
    run = Run(two_brokers, TOPICS, HELD, lambda _: None)
    await run.play()
    steps: dict[str, Step] = {step.name: step for step in run.steps}
    assert steps["unloaded, as nobody uses them"].loaded == 0
    assert steps["read, each loaded for that"].loaded > 0
    assert steps["taken over, all with a receipt"].count == HELD
