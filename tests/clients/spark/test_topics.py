"""The driver's questions to the brokers: one about all partitions of a batch query."""

import pytest

from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.reader import OffsetRange, SealedLedger, TopicLedgers
from daybook.clients.spark.offsets import Partition
from daybook.clients.spark.selection import parse_selection
from daybook.clients.spark.topics import TopicOffsets

TOPIC = "persistent://public/default/t"


class FakeClient:
    """A client of brokers that have a topic with two partitions; it notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def topics(self, namespace: str) -> list[str]:
        assert namespace == "public/default"
        return [TOPIC]

    def partitions(self, topic: str, *, create: bool) -> int:
        assert (topic, create) == (TOPIC, False)
        return 2

    def offsets_of(self, names: list[str]) -> list[OffsetRange]:
        return [each.held for each in self.ledgers_of(names)]

    def ledgers(self, topic: str) -> list[TopicLedgers]:
        return self.ledgers_of([topic])

    def ledgers_of(self, names: list[str]) -> list[TopicLedgers]:
        self.asked.append(tuple(name[-1] for name in names))
        found = [(int(name[-1]), OffsetRange(0, 10 + int(name[-1]))) for name in names]
        return [
            TopicLedgers(held, "zk://x", (SealedLedger(number, 0, held.next, 1, 1),))
            for number, held in found
        ]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def topics(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> TopicOffsets:
    monkeypatch.setattr(TopicOffsets, "client", client)
    return TopicOffsets("pulsar://x", parse_selection({"topic": "t"}), ClientLimits())


def test_offsets_and_ledgers_of_all_partitions_take_one_question(
    topics: TopicOffsets, client: FakeClient
) -> None:
    held = topics.held_with_ledgers()
    assert [held.partitions[Partition(TOPIC, i)].next for i in (0, 1)] == [10, 11]
    for number in (0, 1):
        (sealed,) = topics.ledgers(f"{TOPIC}-partition-{number}").sealed
        assert sealed.ledger_id == number
    assert client.asked == [("0", "1")]


def test_ledgers_that_were_taken_are_asked_for_again(
    topics: TopicOffsets, client: FakeClient
) -> None:
    """A stream asks in each trigger: what was true before says nothing."""
    topics.held_with_ledgers()
    for _ in range(2):
        topics.ledgers(f"{TOPIC}-partition-1")
    assert client.asked == [("0", "1"), ("1",)]
    topics.held()
    topics.ledgers(f"{TOPIC}-partition-0")
    assert client.asked[2:] == [("0", "1"), ("0",)]


def test_a_pattern_that_matches_no_topic_is_told_once(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TopicOffsets, "client", client)
    topics = TopicOffsets("x", parse_selection({"subscribepattern": "zzz.*"}), ClientLimits())
    for _ in range(2):
        assert not topics.held().partitions
    (record,) = caplog.records
    assert "no topic of public/default matches subscribePattern='zzz.*'" in record.getMessage()
