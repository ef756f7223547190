"""The topics of Kafka that a run compares with its checkpoint, without Kafka and its JVM."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError

from daybook.clients.pipelines.kafka_record import KafkaTopics
from daybook.clients.pipelines.kafka_topics import KafkaCheckpoint
from daybook.clients.pipelines.run import _kafka_checkpoint
from daybook.clients.pipelines.spec import Cluster, CopySource, SpecError, copy_pipeline

PIPELINE = copy_pipeline(
    CopySource("kafka", "k:9092", "orders"), "t", Cluster("pulsar://x", "http://x"), "/checkpoint"
)
ONE = KafkaTopics("c", {"orders": "id1"})


class Checkpoint(KafkaCheckpoint):
    """A record in memory; the test plays Kafka."""

    def __init__(self, now: KafkaTopics, text: str | None = None, *, offsets: bool = False) -> None:
        self._checkpoint = "/checkpoint"
        self._known = None
        self.now: KafkaTopics | None = now
        self.text = text
        self.offsets = offsets
        self.said: list[str] = []

    def start(self) -> None:
        self.begin(self.said.append)

    def _ask(self, settings: Mapping[str, str]) -> KafkaTopics:
        if self.now is None:
            raise Py4JError("no Kafka")
        return self.now

    def _read(self) -> str | None:
        return self.text

    def _has_offsets(self) -> bool:
        return self.offsets

    def _write(self, text: str) -> None:
        self.text = text


def test_the_first_run_writes_the_record_before_its_first_offset() -> None:
    new = Checkpoint(ONE)
    new.start()
    assert (new.text, new.said) == (ONE.encode(), [])
    again = Checkpoint(ONE, new.text, offsets=True)
    again.start()
    assert (again.text, again.said) == (ONE.encode(), [])


def test_a_checkpoint_of_an_earlier_release_gets_a_record_and_a_word() -> None:
    old = Checkpoint(ONE, offsets=True)
    old.start()
    assert old.text == ONE.encode()
    (said,) = old.said
    assert "/checkpoint is of an earlier release" in said


def test_a_topic_made_anew_is_refused_at_the_start_and_during_the_run() -> None:
    anew = KafkaTopics("c", {"orders": "id2"})
    with pytest.raises(SpecError, match="deleted and created again"):
        Checkpoint(anew, ONE.encode(), offsets=True).start()
    running = Checkpoint(ONE)
    running.start()
    running.look()
    running.now = anew
    with pytest.raises(SpecError, match="deleted and created again"):
        running.look()
    assert running.text == ONE.encode(), "the next run refuses it, too"


def test_a_run_goes_on_while_kafka_is_away_and_keeps_topics_that_come() -> None:
    running = Checkpoint(ONE)
    running.start()
    running.now = None
    running.look()
    with pytest.raises(Py4JError):
        running.check()
    more = KafkaTopics("c", {"orders": "id1", "others": "id7"})
    running.now = more
    running.look()
    assert running.text == more.encode()


def test_a_client_of_spark_connect_says_that_nothing_is_noticed() -> None:
    said: list[str] = []
    assert _kafka_checkpoint(cast("Any", object()), PIPELINE, said.append) is None
    (line,) = said
    assert "a topic that is deleted and created again is not noticed" in line
