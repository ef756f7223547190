"""The streaming queries of a pipeline.

Rows and dead letters are two queries with a checkpoint each, so both are written exactly once: one
query writes to one topic.  The source is read twice for that.

    CHECKPOINT/rows  CHECKPOINT/dead-letters
"""

# pyright: basic
# (the libraries underneath have no types)

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic  # noqa: TID251  Spark's driver has no clock of trio's
from typing import TYPE_CHECKING, Any, cast

from daybook.clients.pipelines.history import History
from daybook.clients.pipelines.picture import Picture
from daybook.clients.pipelines.report import BatchReport, Line, Tally
from daybook.clients.pipelines.spec import Pipeline
from daybook.clients.pipelines.steps import first_line, frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from daybook.clients.pipelines.kafka_topics import KafkaCheckpoint

_POLL_S = 0.25
_STOP_POLL_S = 0.02
_LINE_S = 10.0
_WRITTEN = "written"
# Spark's words for a query that has started, and has nothing to do.
_IDLE = ("Waiting for data to arrive", "Waiting for next trigger")
# Spark puts these words before the reason.
_OF_THE_QUERY = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")
_PYTHON_ERROR = re.compile(
    r"(?:^|: )(?:(?:daybook|builtins)\.)?[A-Z]\w*(?:Error|Loss): (.+)$", re.MULTILINE
)
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+)$", re.MULTILINE)
_KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:errors\.)?(\w+): (.+)")
_GONE_FROM_KAFKA = re.compile(
    r"Could not read records in offset \[(\d+), (\d+)\) for topic partition (\S+)"
)


class PipelineError(Exception):
    """A query has failed; the message is its reason."""


class Stop:
    """Asks a run to end: after the micro-batches that are under way, or at once."""

    def __init__(self) -> None:
        self.asked = False
        self.now = False

    def ask(self) -> None:
        """The second time a run ends at once."""
        self.now = self.asked
        self.asked = True


@dataclass(slots=True)
class Result:
    """The sums of a run that has ended."""

    rows: Tally
    letters: Tally | None
    took_s: float
    history: History


@dataclass(slots=True)
class RunningQuery:
    """A streaming query, and what it has done in this run."""

    name: str
    query: "StreamingQuery"
    tally: Tally = field(default_factory=Tally)
    last: int | None = None  # A stop was asked for when so many micro-batches had ended.

    def look(self) -> None:
        """Add the micro-batches that have ended since the last look."""
        for progress in self.query.recentProgress:
            self.tally.add(_report(self.name, progress))

    def has_started(self) -> bool:
        """Return True when a micro-batch has ended, or when there was none to begin with."""
        return bool(self.query.recentProgress) or self.is_idle()

    def is_idle(self) -> bool:
        """Return True if the query waits for messages."""
        return self.query.status["message"] in _IDLE

    def wait(self, seconds: float) -> None:
        """Wait until the query ends, but not longer than so many seconds."""
        try:
            self.query.awaitTermination(cast("int", seconds))  # It takes parts of a second, too.
        except Exception as error:
            raise PipelineError(reason_of(error)) from error

    def check(self) -> None:
        """Raise PipelineError if the query has failed."""
        if (error := self.query.exception()) is not None:
            raise PipelineError(reason_of(error))

    def may_stop(self) -> bool:
        """Return True once the micro-batch that was under way at the first call has ended."""
        self.look()
        if self.last is None:
            self.last = self.tally.batches
        # One trigger has all micro-batches of a run that ends, so an active one says nothing.
        return not self.query.status["isTriggerActive"] or self.tally.batches > self.last


def run(
    spark: "SparkSession",
    pipeline: Pipeline,
    *,
    until_end: bool,
    stop: Stop,
    say: Callable[[str], None],
    picture: Picture | None = None,
) -> Result:
    """Run a pipeline until it has read what is there now (`until_end`), or until it is stopped.

    `picture` is written every minute and in the end, also if the run fails.

    Raise SpecError for a pipeline that Spark refuses, and PipelineError if a query fails.
    """
    made = frames(spark, pipeline)
    kafka = _kafka_checkpoint(spark, pipeline, say)
    began_s = monotonic()
    history = History()
    queries = [_start(made.rows, pipeline, "rows", until_end=until_end)]
    try:
        if made.dead_letters is not None and has_begun(queries[0], stop):
            queries.append(_start(made.dead_letters, pipeline, "dead-letters", until_end=until_end))
        _Watch(queries, pipeline.name, stop, say, history, picture, kafka).until_end(began_s)
    finally:
        for each in queries:
            each.query.stop()
        if picture is not None:
            picture.write(history)
    tallies = [each.tally for each in queries]
    letters = tallies[1] if len(tallies) > 1 else None
    return Result(tallies[0], letters, monotonic() - began_s, history)


def _kafka_checkpoint(
    spark: "SparkSession", pipeline: Pipeline, say: Callable[[str], None]
) -> "KafkaCheckpoint | None":
    """Return the topics of Kafka that the checkpoint is of; None without Kafka.

    Raise SpecError if it is of other ones, and PipelineError if Kafka does not tell.
    """
    if pipeline.source_format != "kafka":
        return None
    if getattr(spark, "_jvm", None) is None:
        say(
            f"{pipeline.name}: Spark Connect does not tell the ids of Kafka's topics, so a topic"
            " that is deleted and created again is not noticed."
        )
        return None
    from py4j.protocol import Py4JError

    from daybook.clients.pipelines.kafka_topics import KafkaCheckpoint

    try:
        found = KafkaCheckpoint(spark, pipeline)
        found.begin(say)
    except Py4JError as error:
        told = _KAFKA_ERROR.search(str(error))
        if told is None or told[1] == "UnknownTopicOrPartitionException":
            raise PipelineError(reason_of(error)) from error
        raise PipelineError(f"Kafka does not tell the ids of its topics: {told[2]}") from error
    return found


def has_begun(first: RunningQuery, stop: Stop) -> bool:
    """Wait until a query has ended its first micro-batch, or waits for messages; then return True.

    Two queries that start at the same moment disturb each other: Spark copies the settings of a
    thread while another thread changes them, and one of the queries dies.  Return False if the
    run shall stop before.
    """
    while first.query.isActive and not first.has_started():
        if stop.asked:
            return False
        first.wait(_POLL_S)
    first.check()
    return True


def _start(frame: "DataFrame", pipeline: Pipeline, part: str, *, until_end: bool) -> RunningQuery:
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    options = {**pipeline.sink, "checkpointLocation": f"{pipeline.checkpoint}/{part}"}
    name = pipeline.name
    if part != "rows":
        name = f"{pipeline.name}-{part}"
        options |= {"topic": pipeline.dead_letters or "", "valueFormat": "bytes"}
    if options.get("semantics") == "exactly-once":
        options["sinkName"] = name
    writer = (
        frame.observe(_WRITTEN, F.count(F.lit(1)).alias("rows"))
        .writeStream.format("daybook")
        .options(**options)
        .queryName(name)
        .outputMode("append")
    )
    if until_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=pipeline.every)
    try:
        return RunningQuery(name, writer.start())
    except Exception as error:
        raise PipelineError(reason_of(error)) from error


@dataclass(slots=True)
class _Watch:
    """Watches the queries of a run: it reports, and stops them when it is asked to."""

    queries: list[RunningQuery]
    name: str
    stop: Stop
    say: Callable[[str], None]
    history: History
    picture: Picture | None
    kafka: "KafkaCheckpoint | None" = None
    batches: int = 0  # which the history has

    def until_end(self, began_s: float) -> None:
        """Return when all queries have ended, or when they are idle after a stop was asked for."""
        line, due_s = Line(self.name, monotonic()), monotonic() + _LINE_S
        told = False
        while active := [each for each in self.queries if each.query.isActive]:
            if self.stop.asked:
                if not told:
                    self.say(
                        f"{self.name}: stopping after the batch under way; Ctrl-C again stops at"
                        " once."
                    )
                    told = True
                for each in active:
                    if each.may_stop() or self.stop.now:
                        each.query.stop()
            active[0].wait(_STOP_POLL_S if self.stop.asked else _POLL_S)
            self._look(began_s, idle=False)
            if monotonic() >= due_s:
                self._look(began_s, idle=self.queries[0].is_idle())
                if self.kafka is not None:
                    self.kafka.look()
                letters = self.queries[1].tally if len(self.queries) > 1 else None
                self.say(line.text(self.queries[0].tally, letters, monotonic()))
                due_s = monotonic() + _LINE_S
        self._look(began_s, idle=False)
        if self.kafka is not None:
            self.kafka.look()

    def _look(self, began_s: float, *, idle: bool) -> None:
        """Add what has happened; an idle query gives a point, too.  Raise PipelineError."""
        for each in self.queries:
            each.look()
        rows = self.queries[0].tally
        if idle or rows.batches > self.batches:
            self.batches = rows.batches
            self.history.add(monotonic() - began_s, rows.read, rows.behind)
            if self.picture is not None:
                self.picture.update(self.history)
        for each in self.queries:
            each.check()


def _report(name: str, progress: Any) -> BatchReport:  # noqa: ANN401
    source = progress.sources[0]
    observed = progress.observedMetrics.get(_WRITTEN)
    late = sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
    return BatchReport(
        name,
        progress.batchId,
        progress.numInputRows,
        source.startOffset,
        source.endOffset,
        source.latestOffset,
        late,
        None if observed is None else observed["rows"],
    )


def reason_of(error: BaseException) -> str:
    """Return one sentence of an error of a query: that of the Python side, if it has failed.

    Other errors are Spark's own, such as a lost task, which may not come again.
    """
    text = _OF_THE_QUERY.sub("", str(error).strip())
    if gone := _GONE_FROM_KAFKA.search(text):
        first, end, place = gone.groups()
        return (
            f"Kafka holds not all of the offsets {first} to {int(end) - 1} of {place}:"
            " its retention has deleted messages that were not read"
        )
    if "UnknownTopicOrPartitionException" in text:
        return "Kafka has no such topic: look at its name, and at the address of Kafka"
    if found := _RAISED.findall(text) or _PYTHON_ERROR.findall(text):
        return str(found[-1]).split(" SQLSTATE:")[0].rstrip(".")
    return f"{first_line(text)}: run the pipeline again, which goes on behind its last batch"
