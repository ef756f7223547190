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
from daybook.broker.topics.rates import PERIOD_S
from daybook.broker.topics.stats import statistics
from daybook.wire.topics import TopicName
from tests.broker.control.test_server import World, send, simulated

# Pulsar's own dashboards ask for these.  `docs/operations.md` says which others are missing.
_OF_TOPICS = (
    *("rate_in", "rate_out", "throughput_in", "throughput_out", "producers_count"),
    *("consumers_count", "subscriptions_count", "msg_backlog", "storage_size"),
    *("storage_backlog_size", "storage_offloaded_size", "storage_logical_size"),
)
# Only topics that were used in the last minute have these.
_OF_TRAFFIC = (
    *("storage_write_rate", "storage_read_rate", "storage_write_latency_overflow"),
    *(f"storage_write_latency_le_{ms}" for ms in ("0_5", 1, 5, 10, 20, 50, 100, 200, 1000)),
    *("storage_write_latency_count", "storage_write_latency_sum", "entry_size_overflow"),
    *(f"entry_size_le_{size}" for size in (128, 512, "1_kb", "2_kb", "4_kb", "16_kb", "100_kb")),
    *("entry_size_le_1_mb", "entry_size_le_overflow", "entry_size_count", "entry_size_sum"),
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
    return [line for line in text.splitlines() if not ("process_" in line or "pulsar_lb_" in line)]


def test_the_traffic_of_the_last_minute() -> None:
    async def story(world: World) -> None:
        broker = await started(world, 1)
        topic = labels(topic="persistent://public/default/t0")
        names = {f"pulsar_{name}" for name in _OF_TRAFFIC}
        assert not names & {name for name, _ in samples(broker)}  # the minute is not over
        async with world.client("one") as client:
            async with await client.subscribe("t0", "s") as consumer:
                assert [(await consumer.receive()).data for _ in range(2)] == [b"0", b"1"]
            await send(client, "t0", 1)
        await trio.sleep(PERIOD_S)
        found = samples(broker)
        assert {name for name, where in found if where == topic} >= names
        latencies = [
            value
            for (name, where), value in found.items()
            if where == topic and "write_latency" in name and name[-3:] not in ("sum", "unt")
        ]
        assert sum(latencies) == found["pulsar_storage_write_latency_count", topic] == 3
        assert found["pulsar_entry_size_le_128", topic] == 3
        assert found["pulsar_entry_size_le_512", topic] == 0
        assert 0 < found["pulsar_entry_size_sum", topic] < 3 * 128
        assert 3 * 100 < found["pulsar_storage_write_latency_sum", topic] < 3 * 1_000_000
        assert found["pulsar_storage_write_rate", topic] == 3 / 60
        assert found["pulsar_storage_read_rate", topic] >= 2 / 60
        broker.metrics.topics_max = 0
        assert samples(broker)["pulsar_entry_size_le_128", labels()] == 3
        broker.metrics.topics_max = 10
        cluster = ("cluster", "standalone")
        slowest = found["pulsar_broker_publish_latency", (cluster, ("quantile", "1.0"))]
        assert 0.1 < slowest < 1000
        assert found["pulsar_broker_publish_latency_count", (cluster,)] == 3
        await trio.sleep(PERIOD_S)
        assert not names & {name for name, _ in samples(broker)}  # nobody has used the topic

    simulated(story)


def test_loads_and_decisions_of_balancing() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        async with (
            world.client("one") as client,
            await client.create_producer("t0") as producer,
        ):
            await producer.send(b"x")
            assert await broker.operations.of_brokers.load_report()
            found = samples(broker)
        identity = broker.ownership.identity.broker_id
        where = (("broker", identity), ("cluster", "standalone"))
        bundle = ("bundle", str(broker.context.policies.known_bundle_of(TopicName.parse("t0"))))
        assert found["pulsar_bundle_topics_count", (where[0], bundle, where[1])] == 1
        assert found["pulsar_bundle_producer_count", (where[0], bundle, where[1])] == 1
        assert found["pulsar_bundle_consumer_count", (where[0], bundle, where[1])] == 0
        assert found["pulsar_lb_cpu_usage", where] >= 0
        assert 0 < found["pulsar_lb_memory_usage", where] < 100
        assert found["process_cpu_seconds_total", ()] > 0
        for name in ("unload_bundle", "unload_broker", "bundles_split"):
            assert found[f"pulsar_lb_{name}_total", where] == 0

    simulated(story)


def test_a_bookie_in_quarantine_is_named_until_it_answers() -> None:
    async def story(world: World) -> None:
        broker = await started(world, 1)
        network, away = world.cluster.network, "bookie-2"

        def quarantined() -> dict[str, float]:
            gauge = "daybook_broker_bookie_in_quarantine"
            found = samples(broker).items()
            return {dict(labels)["bookie"]: v for (name, labels), v in found if name == gauge}

        names = [f"bookie-{number}:3181" for number in (1, 2, 3)]
        assert quarantined() == dict.fromkeys(names, 0.0)
        network.block("one", away)
        network.cut("one", away)
        await trio.sleep(5)
        assert quarantined() == {**dict.fromkeys(names, 0.0), f"{away}:3181": 1.0}
        assert list(broker.operations.of_brokers.quarantine()) == [f"{away}:3181"]
        network.unblock("one", away)
        await trio.sleep(5)
        assert quarantined() == dict.fromkeys(names, 0.0)
        counter = "daybook_broker_bookie_quarantines_total"
        assert samples(broker)[counter, (("cluster", "standalone"),)] == 1

    simulated(story)
