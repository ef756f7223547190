"""The reason of a query that has failed, as the command reports it."""

from dataclasses import dataclass
from typing import Any

import pytest

from daybook.clients.pipelines.run import RunningQuery, Stop, has_begun, reason_of

STREAM = (
    "[STREAM_FAILED] Query [id = 1a4ff6fd-c861, runId = 9e5c0aed-e235] terminated with exception: "
)
INITIAL = (
    "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            f"{STREAM}{INITIAL} initialOffset: ValueError: the topic persistent://public/default/t"
            " does not exist (TopicNotFound)\n SQLSTATE: 38000",
            "the topic persistent://public/default/t does not exist (TopicNotFound)",
        ),
        (
            f"{STREAM}{INITIAL} commit: daybook.ConflictError: copy-a: the sink belongs to the"
            " query q: use another sink name (HTTP 409)\n SQLSTATE: 38000\n\tat org.apache",
            "copy-a: the sink belongs to the query q: use another sink name (HTTP 409)",
        ),
        (
            f"{STREAM}Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times:\n"
            'Traceback (most recent call last):\n  File "x.py", line 1\n'
            "ValueError: the header 'h' of a row is not UTF-8: encode it\n\n\tat org.apache",
            "the header 'h' of a row is not UTF-8: encode it",
        ),
        (
            f"{STREAM}[USER_RAISED_EXCEPTION] offset 61 of partition 0 of t is no row (the value"
            " is null): name a topic SQLSTATE: P0001",
            "offset 61 of partition 0 of t is no row (the value is null): name a topic",
        ),
        (
            f"{STREAM}Some data may have been lost because they are not available in Kafka any"
            " more;\n either the data was aged out.\nReason: Could not read records in offset"
            " [500, 750) for topic partition clicks-1\n with consumer group",
            "Kafka holds not all of the offsets 500 to 749 of clicks-1: its retention has deleted"
            " messages that were not read",
        ),
        (
            f"{STREAM}org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server"
            " does not host this topic-partition.",
            "Kafka has no such topic: look at its name, and at the address of Kafka",
        ),
        (
            f"{STREAM}Job 1 cancelled because SparkContext was shut down\n== Plan ==",
            "Job 1 cancelled because SparkContext was shut down: run the pipeline again, which"
            " goes on behind its last batch",
        ),
    ],
)
def test_the_reason_is_one_sentence_without_the_words_of_spark(error: str, reason: str) -> None:
    assert reason_of(Exception(error)) == reason


@dataclass
class Query:
    """A query of Spark that does what its script says, one step at each wait."""

    script: list[tuple[str, list[int]]]
    waits: int = 0

    @property
    def _now(self) -> tuple[str, list[int]]:
        return self.script[min(self.waits, len(self.script) - 1)]

    @property
    def isActive(self) -> bool:  # noqa: N802  Spark's name
        return self._now[0] != "ended"

    @property
    def status(self) -> dict[str, str]:
        return {"message": self._now[0]}

    @property
    def recentProgress(self) -> list[int]:  # noqa: N802  Spark's name
        return self._now[1]

    def awaitTermination(self, seconds: float) -> None:  # noqa: N802  Spark's name
        assert seconds > 0
        self.waits += 1

    def exception(self) -> None:
        return None


@pytest.mark.parametrize(
    ("script", "waits"),
    [
        ([("Initializing sources", []), ("Processing", []), ("Processing", [1])], 2),
        ([("Initializing sources", []), ("Waiting for data to arrive", [])], 1),
        ([("Initializing sources", []), ("ended", [])], 1),
    ],
)
def test_the_second_query_starts_when_the_first_one_has_started(
    script: list[tuple[str, list[int]]], waits: int
) -> None:
    """Two queries of Spark that start at the same moment disturb each other."""
    query: Any = Query(script)
    assert has_begun(RunningQuery("first", query), Stop())
    assert query.waits == waits


def test_the_second_query_does_not_start_after_a_stop() -> None:
    query: Any = Query([("Processing", [])])
    stop = Stop()
    stop.ask()
    assert not has_begun(RunningQuery("first", query), stop)
