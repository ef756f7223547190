"""The record of Kafka's topics beside a checkpoint: other topics are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from daybook.clients.pipelines.kafka_record import KafkaTopics, checked, parse
from daybook.clients.pipelines.spec import SpecError

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka_v1" / "kafka.json"
ONE = KafkaTopics("c", {"orders": "id1"})


def test_a_record_is_read_as_it_was_written() -> None:
    for record in (
        KafkaTopics(),
        ONE,
        KafkaTopics("c", {"a": None, "\N{GREEK SMALL LETTER BETA}": "2"}),
    ):
        assert parse(record.encode(), "f") == record
    assert ONE.encode() == '{"version": 1, "cluster": "c", "topics": {"orders": "id1"}}'


def test_the_record_of_a_release_is_read() -> None:
    record = KafkaTopics(
        "wGQ3XvR5QnCrkWc1tqGkZQ", {"orders": "aW9HbGdWQm5hbWVkVG9waQ", "others": None}
    )
    assert parse(GOLDEN.read_text(), "f") == record
    assert record.encode() == GOLDEN.read_text()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "1", "{}", '{"version": 2, "cluster": null, "topics": {}}'),
        *('{"version": 1, "topics": {}}', '{"version": 1, "cluster": 1, "topics": {}}'),
        '{"version": 1, "cluster": null, "topics": {"a": 1}}',
        '{"version": 1, "cluster": null, "topics": []}',
    ],
)
def test_a_damaged_record_is_never_a_new_one(text: str) -> None:
    with pytest.raises(SpecError, match=r"f is damaged .* restore it from a copy, or take a new"):
        parse(text, "f")


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (KafkaTopics("d", {"orders": "id1"}), "is the checkpoint of the cluster c of Kafka"),
        (KafkaTopics("c", {"orders": "id2"}), "orders of Kafka was deleted and created again"),
        (KafkaTopics("c", {"orders": "id2", "x": "1"}), "orders of Kafka was deleted and created"),
        (
            KafkaTopics("c", {"x": "1", "y": "2"}),
            "is the checkpoint of orders of Kafka, and not of",
        ),
    ],
)
def test_other_topics_are_refused_with_what_to_do(now: KafkaTopics, says: str) -> None:
    with pytest.raises(SpecError, match=rf"{says}.*take a new checkpoint"):
        checked(ONE, now, "here")


@pytest.mark.parametrize(
    ("known", "now", "then"),
    [
        (KafkaTopics(), ONE, ONE),
        (ONE, ONE, ONE),
        (ONE, KafkaTopics("c", {}), ONE),
        (ONE, KafkaTopics(None, {"orders": None}), ONE),
        (KafkaTopics(None, {"orders": None}), ONE, ONE),
        (
            ONE,
            KafkaTopics("c", {"orders": "id1", "x": "2"}),
            KafkaTopics("c", {"orders": "id1", "x": "2"}),
        ),
        (
            KafkaTopics("c", {"orders": "id1", "x": "2"}),
            ONE,
            KafkaTopics("c", {"orders": "id1", "x": "2"}),
        ),
    ],
)
def test_what_is_new_or_away_is_kept(
    known: KafkaTopics, now: KafkaTopics, then: KafkaTopics
) -> None:
    assert checked(known, now, "here") == then


def test_a_topic_that_was_away_and_came_anew_is_noticed() -> None:
    away: Any = checked(ONE, KafkaTopics("c", {}), "here")
    assert json.loads(away.encode())["topics"] == {"orders": "id1"}
    with pytest.raises(SpecError, match="deleted and created again"):
        checked(away, KafkaTopics("c", {"orders": "id9"}), "here")
