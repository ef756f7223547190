"""The driver's questions and cursors on a real cluster, without Spark."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from daybook.clients.python import blocking
from daybook.clients.python.errors import UnavailableError
from daybook.clients.python.limits import ClientLimits
from daybook.clients.spark.cursors import Cursors
from daybook.clients.spark.offsets import DataLossError, Partition, Progress
from daybook.clients.spark.options import AtTimes, parse_options
from daybook.clients.spark.selection import Selection, parse_selection
from daybook.clients.spark.source import StreamReader
from daybook.clients.spark.topics import TopicOffsets
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def fill(client: blocking.Client, topic: str, count: int, **options: Any) -> None:
    with client.create_producer(topic, **options) as producer:
        for n in range(count):
            producer.send_nowait(b"%d" % n)
        producer.flush()


@pytest.fixture
def asking(cluster: StandaloneProcess) -> Iterator[Any]:
    """Return a function that opens the questions of a query."""
    opened: list[TopicOffsets] = []

    def ask(**options: str) -> TopicOffsets:
        given = {name.lower(): value for name, value in options.items()}
        made = TopicOffsets(cluster.service_url, parse_selection(given), ClientLimits())
        opened.append(made)
        return made

    yield ask
    for each in opened:
        each.close()


def test_all_ways_to_name_topics_find_the_same_partitions(
    asking: Any, client: blocking.Client, admin: blocking.Admin, topic: str
) -> None:
    parted, plain = f"{topic}-parted", f"{topic}-plain"
    admin.create_topic(parted, partitions=3)
    fill(client, parted, 30)
    fill(client, plain, 5)
    held = asking(subscribe=f"{parted},{plain}").held()
    partitions = [Partition(full(parted), n) for n in range(3)] + [Partition(full(plain), 0)]
    assert list(held.partitions) == partitions
    assert sum(each.next for each in held.partitions.values()) == 35
    assert held.stored_in[partitions[2]] == f"{full(parted)}-partition-2"
    assert held.stored_in[partitions[3]] == full(plain)
    assert held.instance
    assert len({each.created for each in held.partitions.values()}) == 4
    assert asking(subscribePattern=f"{re.escape(topic)}-.*").held() == held
    some = asking(assign=f'{{"{parted}": [0, 2]}}').held()
    assert list(some.partitions) == [partitions[0], partitions[2]]
    with pytest.raises(ValueError, match=rf"the partitions \[3\] of {full(parted)}, which has"):
        asking(assign=f'{{"{parted}": [0, 3]}}').held()


def test_a_topic_that_is_missing_is_named_and_not_made(
    asking: Any, client: blocking.Client, topic: str
) -> None:
    fill(client, topic, 5)
    held = asking(subscribe=f"{topic},{topic}-gone").held()
    assert list(held.partitions) == [Partition(full(topic), 0)]
    assert [f"{topic}-gone does not exist" in each for each in held.missing] == [True]
    with pytest.raises(ValueError, match="does not exist"):
        held.check_complete()
    assert not [name for name in client.topics() if f"{topic}-gone" in name]
    assert asking(subscribePattern=f"{topic}-gone.*").held().partitions == {}


def test_a_topic_that_is_made_anew_has_another_creation(
    asking: Any, client: blocking.Client, admin: blocking.Admin, topic: str
) -> None:
    fill(client, topic, 5)
    topics = asking(topic=topic)
    partition = Partition(full(topic), 0)
    before = topics.held().partitions[partition]
    admin.delete_topic(topic, force=True)
    fill(client, topic, 5)
    after = topics.held().partitions[partition]
    assert (after.first, after.next) == (before.first, before.next)
    assert after.created > before.created


def test_times_become_offsets_between_messages_and_within_batches(
    asking: Any, client: blocking.Client, topic: str
) -> None:
    fill(client, topic, 5)
    fill(client, topic, 3, batching=False)
    with client.create_reader(topic, start="earliest") as reader:
        times = [reader.receive(30).publish_time_ms for _ in range(8)]
    topics = asking(topic=topic)
    held = topics.held()
    (partition,) = held.partitions

    def offset_at(time_ms: int, *, end_if_none: bool = False) -> int:
        bounds = AtTimes(time_ms, "startingTimestamp", end_if_none)
        return int(topics.resolve(bounds, held, "startingOffsets")[partition])

    for time_ms in {0, *times, *(each - 1 for each in times)}:
        assert offset_at(time_ms) == next(n for n, at in enumerate(times) if at >= time_ms)
    by_partition = AtTimes({partition: times[-1]}, "startingOffsetsByTimestamp", False)
    assert topics.resolve(by_partition, held, "x")[partition] == times.index(times[-1])
    assert offset_at(times[-1] + 1, end_if_none=True) == 8
    with pytest.raises(ValueError, match=r"startingTimestamp: .* partition 0 has no message that"):
        offset_at(times[-1] + 1)
    with pytest.raises(ValueError, match="startingOffsetsByTimestamp names the partitions"):
        topics.resolve(
            AtTimes({Partition(full(topic), 7): 5}, "startingOffsetsByTimestamp", False), held, "x"
        )


def test_the_size_of_a_message_is_that_of_its_entry_shared_by_its_batch(
    asking: Any, client: blocking.Client, topic: str
) -> None:
    with client.create_producer(topic, batching=False) as producer:
        producer.send(bytes(10_000))
        producer.send(b"")
    with client.create_producer(topic, batch_messages_max=20) as producer:
        for _ in range(20):
            producer.send_nowait(bytes(1000))
        producer.flush()
    topics = asking(topic=topic)
    name = full(topic)
    assert 10_000 <= topics.bytes_of_message(name, 0) < 10_200
    assert 0 < topics.bytes_of_message(name, 1) < 200
    assert 1000 <= topics.bytes_of_message(name, 21) < 1100


def test_a_wrong_address_fails_within_seconds_in_one_sentence() -> None:
    began = time.monotonic()
    topics = TopicOffsets("pulsar://127.0.0.1:1", Selection({full("t"): "t"}), ClientLimits())
    with pytest.raises(UnavailableError) as caught:
        topics.held()
    assert time.monotonic() - began < 10
    said = str(caught.value)
    assert said.startswith("no broker can be reached")
    assert "check the option service.url='pulsar://127.0.0.1:1'" in said
    assert ".  " not in said


def backlog(admin: blocking.Admin, topic: str, subscription: str) -> int:
    found = admin.stats(topic)["subscriptions"][subscription]["msgBacklog"]
    assert isinstance(found, int)
    return found


def test_cursors_follow_one_batch_behind_the_checkpoint(
    asking: Any, client: blocking.Client, admin: blocking.Admin, topic: str
) -> None:
    fill(client, topic, 50, batching=False)
    topics = asking(topic=topic)
    held = topics.held()
    (partition,) = held.partitions
    created = held.partitions[partition].created
    cursors = Cursors(topics.client, "a-query", "t")
    cursors.open(held)
    assert backlog(admin, topic, "a-query") == 50
    cursors.begin({partition: 10})
    assert backlog(admin, topic, "a-query") == 40
    for end, expected in ((20, 40), (35, 30), (50, 15), (50, 0)):
        cursors.commit({partition: Progress(end, created)}, held)
        cursors.settle()
        assert backlog(admin, topic, "a-query") == expected
    # An offset of the topic that was there before is not one of the topic that is there now.
    cursors.commit({partition: Progress(40, created - 1)}, held)
    cursors.begin({partition: 0})
    cursors.commit({partition: Progress(50, created)}, held)
    cursors.close()
    assert backlog(admin, topic, "a-query") == 50


def test_a_subscription_belongs_to_one_query(
    asking: Any, client: blocking.Client, topic: str
) -> None:
    fill(client, topic, 5)
    with client.subscribe(topic, "taken"):
        topics = asking(topic=topic)
        with pytest.raises(ValueError, match=r"the subscription 'taken' of .* is in use"):
            Cursors(topics.client, "taken", "t").open(topics.held())


class Triggers:
    """Calls the stream reader as Spark does, and keeps the messages and the checkpoint."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.offset: dict[str, Any] | None = None

    def run(self, options: dict[str, str]) -> None:
        """Run a query with `availableNow` to its end."""
        stream = StreamReader(parse_options(options, streaming=True))
        try:
            stream.prepareForTriggerAvailableNow()
            before = self.offset or stream.initialOffset()
            while (end := stream.latestOffset(before, stream.getDefaultReadLimit())) != before:
                for partition in stream.partitions(before, end):
                    for batch in stream.read(partition):
                        self.stored += [int(value) for value in batch["value"].to_pylist()]
                stream.commit(end)
                before = self.offset = json.loads(json.dumps(end))
        finally:
            stream.stop()


def test_a_stream_of_a_pattern_finds_new_topics_and_its_subscription_follows(
    cluster: StandaloneProcess, client: blocking.Client, admin: blocking.Admin, topic: str
) -> None:
    options = {
        "service.url": cluster.service_url,
        "subscribePattern": f"{topic}-.*",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "20",
        "columns": "value",
        "subscription": "spark",
    }
    first, second = f"{topic}-a", f"{topic}-b"
    fill(client, first, 30, batching=False)
    triggers = Triggers()
    triggers.run(options)
    assert triggers.stored == list(range(30))
    assert backlog(admin, first, "spark") == 10, "the last micro-batch may be read again"
    fill(client, second, 15, batching=False)
    triggers.run(options)
    assert triggers.stored == [*range(30), *range(15)]
    assert backlog(admin, second, "spark") == 15
    admin.delete_topic(second, force=True)
    fill(client, second, 40, batching=False)
    with pytest.raises(DataLossError, match=f"{full(second)} partition 0 was deleted and created"):
        triggers.run(options)
    triggers.run(options | {"failOnDataLoss": "false"})
    assert triggers.stored == [*range(30), *range(15), *range(40)]
