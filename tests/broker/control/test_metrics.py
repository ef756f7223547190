"""The metrics of a broker, read by the Prometheus parser: names of Pulsar's dashboards, bounds."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from daybook.broker import exposition, metrics
from daybook.broker.server import RunningBroker
from daybook.broker.topics.stats import statistics
from daybook.wire.topics import TopicName
from tests.broker.control.test_server import World, send, simulated

# Pulsar's own dashboards ask for these.  `docs/operations.md` says which others are missing.
_OF_TOPICS = (
    *("rate_in", "rate_out", "throughput_in", "throughput_out", "producers_count"),
    *("consumers_count", "subscriptions_count", "msg_backlog", "storage_size"),
    *("storage_backlog_size", "storage_offloaded_size", "storage_logical_size"),
)
_OF_SUBSCRIPTIONS = (
    *("back_log", "back_log_no_delayed", "delayed", "msg_rate_out", "msg_throughput_out"),
    *("unacked_messages", "blocked_on_unacked_messages", "last_consumed_timestamp"),
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(broker: RunningBroker) -> Samples:
    families = text_string_to_metric_families(broker.metrics.exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def started(world: World, topics: int) -> RunningBroker:
    broker = await world.broker("one")
    async with world.client("one") as client:
        for number in range(topics):
            name = TopicName.parse(f"t{number}").full
            async with await client.subscribe(name, "s"):
                await send(client, name, 2)
    return broker


def labels(**more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"cluster": "standalone", "namespace": "public/default", **more}.items()))


def test_the_names_that_pulsars_dashboards_ask_for() -> None:
    async def story(world: World) -> None:
        found = samples(await started(world, 1))
        topic = "persistent://public/default/t0"
        for name in _OF_TOPICS:
            assert (f"pulsar_{name}", labels(topic=topic)) in found, name
        for name in _OF_SUBSCRIPTIONS:
            where = labels(topic=topic, subscription="s")
            assert (f"pulsar_subscription_{name}", where) in found, name
        assert found["pulsar_topics_count", labels()] == 1
        assert found["pulsar_in_messages_total", labels(topic=topic)] == 2

    simulated(story)


def test_with_many_topics_there_are_sums_by_namespace() -> None:
    async def story(world: World) -> None:
        broker = await started(world, 3)
        broker.metrics.topics_max = 3
        assert any("topic" in dict(where) for _, where in samples(broker))
        broker.metrics.topics_max = 2
        found = samples(broker)
        assert not any("topic" in dict(where) for _, where in found)
        assert found["pulsar_in_messages_total", labels()] == 6
        assert found["pulsar_msg_backlog", labels()] == 6
        assert found["pulsar_topics_count", labels()] == 3
        assert ("pulsar_average_msg_size", labels()) not in found

    simulated(story)


def test_a_scrape_lets_other_tasks_run_between_small_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, the numbers and the text of all topics were made in one turn of the event loop."""
    turns = [0]
    seen = Counter[int]()  # pieces, by turn

    def noted(make: Callable[[Any], Any], subject: Any) -> Any:
        seen[turns[0]] += 1
        if make is generate_latest:
            assert all(len(family.samples) <= 2 for family in subject.collect())
        return make(subject)

    async def count_turns() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns[0] += 1

    async def story(world: World) -> None:
        broker = await started(world, 3)
        whole = broker.metrics.exposition().decode()
        monkeypatch.setattr(metrics, "_TOPICS_PER_TURN", 1)
        monkeypatch.setattr(exposition, "_SAMPLES", 2)
        monkeypatch.setattr(metrics, "statistics", partial(noted, statistics))
        monkeypatch.setattr(exposition, "generate_latest", partial(noted, generate_latest))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            scraped = (await broker.metrics.scrape()).decode()
            nursery.cancel_scope.cancel()
        assert without_process(scraped) == without_process(whole)

    simulated(story)
    assert len(seen) > 30
    assert max(seen.values()) <= 2, "two tasks may take turns as A B, B A"


def without_process(text: str) -> list[str]:
    """Leave out the numbers of the process, which are those of the moment."""
    return [line for line in text.splitlines() if "process_" not in line]
