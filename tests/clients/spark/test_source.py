"""The stream reader as Spark calls it: admission control, the end of an AvailableNow run."""

import logging
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import StructType

from daybook.clients.python.errors import NotAllowedError, NotReadyError, UnavailableError
from daybook.clients.python.reader import OffsetRange, SealedLedger, TopicLedgers
from daybook.clients.spark.offsets import DataLossError, Partition, Progress, Retained
from daybook.clients.spark.options import SourceOptions, parse_options
from daybook.clients.spark.source import DaybookDataSource, StreamReader, plan
from daybook.clients.spark.topics import Held

T, U = "persistent://public/default/t", "persistent://public/default/u"
T0, T1, T2, U0 = Partition(T, 0), Partition(T, 1), Partition(T, 2), Partition(U, 0)
URL = {"service.url": "pulsar://x"}
OPTIONS = parse_options(URL | {"topic": "t"}, streaming=True)
SEVERAL = parse_options(URL | {"subscribe": "t,u"}, streaming=True)
ALL = ReadAllAvailable()
AWAY = NotReadyError(0, "no contact")


class Reader(StreamReader):
    """A stream reader without a cluster: the test sets what the brokers answer, and the time."""

    def __init__(self, options: SourceOptions, held: Held) -> None:
        super().__init__(options)
        self.held = held
        self.error: Exception | None = None
        self.now_s = 1000.0
        self.asked = 0
        self.ledgers_of: dict[str, TopicLedgers | Exception] = {}
        self.ledgers_asked = 0

    def _ask(self) -> Held:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.held

    def _ledgers(self, topic: str) -> TopicLedgers:
        self.ledgers_asked += 1
        found = self.ledgers_of[topic]
        if isinstance(found, Exception):
            raise found
        return found

    def _sample(self, topic: str, offset: int) -> float:
        return 10.0

    def _now_s(self) -> float:  # type: ignore[override]
        return self.now_s

    def set(self, **partitions: Retained) -> None:
        """Set the offsets that a partition holds, by names such as t0."""
        self.held = replace(
            self.held,
            partitions={Partition(_full(n), int(n[-1])): r for n, r in partitions.items()},
        )


def _full(name: str) -> str:
    return T if name.startswith("t") else U


def holding(partitions: Mapping[Partition, Retained], **more: Any) -> Held:
    stored_in = {p: f"{p.topic}-partition-{p.number}" for p in (T0, T1, T2, U0)}
    return Held(dict(partitions), stored_in, **more)


def reader(
    held: Mapping[Partition, Retained], *, fail: bool = True, options: SourceOptions = OPTIONS
) -> Reader:
    return Reader(replace(options, fail_on_data_loss=fail), holding(held))


def offset(*, instance: str | None = None, **partitions: int | tuple[int, int]) -> dict[str, Any]:
    """Return an offset of Spark's; partitions have names such as t0."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for name, at in sorted(partitions.items()):
        stored = {"next": at} if isinstance(at, int) else {"created": at[1], "next": at[0]}
        topics.setdefault(_full(name), {})[name[-1]] = stored
    return {**({} if instance is None else {"instance": instance}), "topics": topics, "version": 2}


def no_ledgers(topic: str) -> TopicLedgers:
    raise AssertionError(f"nobody asks for the ledgers of {topic}")


TWO = {T0: Retained(0, 100), T1: Retained(10, 60)}


def test_a_stream_starts_at_the_end_unless_told_otherwise() -> None:
    assert reader(TWO).initialOffset() == offset(t0=100, t1=60)
    early = reader(TWO, options=replace(OPTIONS, starting={T0: -2, T1: 30}))
    assert early.initialOffset() == offset(t0=0, t1=30)


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        (ALL, offset(t0=100, t1=60)),
        (ReadMaxRows(1000), offset(t0=100, t1=60)),
        (ReadMaxRows(60), offset(t0=40, t1=30)),
        (ReadMaxRows(1), offset(t0=1, t1=10)),
    ],
)
def test_a_trigger_takes_what_it_may(limit: ReadLimit, end: dict[str, Any]) -> None:
    assert reader(TWO).latestOffset(offset(t0=0, t1=10), limit) == end


def test_the_default_limit_is_that_of_the_options() -> None:
    def default(**options: Any) -> ReadLimit:
        return reader(TWO, options=replace(OPTIONS, **options)).getDefaultReadLimit()

    assert reader(TWO).getDefaultReadLimit() == ALL
    assert default(offsets_per_trigger_max=7) == ReadMaxRows(7)
    assert default(offsets_per_trigger_min=7) == ReadMinRows(7)
    both = default(offsets_per_trigger_min=7, offsets_per_trigger_max=9)
    assert both == ReadMaxRows(9)


def sized(**options: Any) -> Reader:
    """Return a reader of a partition with 100 messages of 5 bytes, and one with 50 of 10."""
    stream = reader(TWO, options=replace(OPTIONS, **options))
    sealed = (SealedLedger(1, 0, 100, 100, 500),)
    stream.ledgers_of = {
        f"{T}-partition-0": TopicLedgers(OffsetRange(0, 100), "zk://x", sealed),
        f"{T}-partition-1": TopicLedgers(OffsetRange(10, 60)),
    }
    return stream


BYTES = ReadMaxBytes(100)
BEGIN, SHARED = offset(t0=0, t1=10), offset(t0=10, t1=15)


def test_a_trigger_takes_so_many_bytes() -> None:
    stream = sized(bytes_per_trigger_max=100)
    assert stream.getDefaultReadLimit() == BYTES
    assert stream.latestOffset(BEGIN, BYTES) == SHARED
    assert stream.latestOffset(BEGIN, ReadMaxBytes(1)) == offset(t0=1, t1=10), "it goes on"
    assert stream.latestOffset(BEGIN, ALL) == offset(t0=100, t1=60), "Spark asks for everything"
    assert stream.ledgers_asked == 2, "sizes are asked for once a minute"
    stream.now_s += 61
    assert stream.latestOffset(BEGIN, BYTES) == SHARED
    assert stream.ledgers_asked == 4


@pytest.mark.parametrize(
    ("rows", "end"), [(1000, SHARED), (6, offset(t0=4, t1=12)), (3, offset(t0=2, t1=11))]
)
def test_of_two_limits_the_smaller_counts(rows: int, end: dict[str, Any]) -> None:
    stream = sized(bytes_per_trigger_max=100, offsets_per_trigger_max=rows)
    assert stream.getDefaultReadLimit() == ReadMaxRows(rows)
    assert stream.latestOffset(BEGIN, ReadMaxRows(rows)) == end


def test_a_trigger_reads_nothing_while_sizes_are_not_known() -> None:
    stream = sized(bytes_per_trigger_max=100)
    known, stream.ledgers_of = stream.ledgers_of, dict.fromkeys(stream.ledgers_of, AWAY)
    assert stream.latestOffset(BEGIN, BYTES) == BEGIN
    stream.ledgers_of = known
    assert stream.latestOffset(BEGIN, BYTES) == SHARED
    stream.now_s += 61
    stream.ledgers_of = dict.fromkeys(stream.ledgers_of, AWAY)
    assert stream.latestOffset(BEGIN, BYTES) == SHARED, "old sizes are better than none"


def test_a_run_that_ends_takes_unknown_sizes_for_an_error() -> None:
    stream = sized(bytes_per_trigger_max=100)
    stream.ledgers_of = dict.fromkeys(stream.ledgers_of, AWAY)
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(NotReadyError):
        stream.latestOffset(BEGIN, BYTES)


@pytest.mark.parametrize("limit", [ReadMinRows(50), ReadMaxRows(90)])
def test_a_trigger_waits_for_enough_messages_but_not_too_long(limit: ReadLimit) -> None:
    """pulsar-spark 117: each message was a batch, because no option made a trigger wait."""
    options = replace(OPTIONS, offsets_per_trigger_min=50, trigger_delay_max_s=60.0)
    stream = reader({T0: Retained(0, 10)}, options=options)
    first = stream.latestOffset(offset(t0=0), limit)
    assert first == offset(t0=10), "the first trigger of a run takes what there is"
    stream.set(t0=Retained(0, 30))
    stream.now_s += 59
    assert stream.latestOffset(first, limit) == first
    assert stream.latestOffset(first, ALL) == offset(t0=30), "Spark may ask for everything"
    stream.now_s += 59
    assert stream.latestOffset(first, limit) == first
    stream.now_s += 2
    assert stream.latestOffset(first, limit) == offset(t0=30)
    stream.set(t0=Retained(0, 80))
    assert stream.latestOffset(offset(t0=30), limit) == offset(t0=80)


def test_an_available_now_run_does_not_wait_for_more_messages() -> None:
    stream = reader({T0: Retained(0, 10)}, options=replace(OPTIONS, offsets_per_trigger_min=50))
    stream.prepareForTriggerAvailableNow()
    first = stream.latestOffset(offset(t0=0), ReadMinRows(50))
    assert first == offset(t0=10)
    assert stream.latestOffset(first, ReadMinRows(50)) == first


def test_available_now_ends_at_what_was_there_at_the_start() -> None:
    stream = reader(TWO)
    stream.prepareForTriggerAvailableNow()
    stream.set(t0=Retained(0, 500), t1=Retained(10, 600), t2=Retained(0, 5))
    first = stream.latestOffset(offset(t0=0, t1=10), ReadMaxRows(60))
    assert first == offset(t0=40, t1=30, t2=0)
    last = offset(t0=100, t1=60, t2=0)
    assert stream.latestOffset(first, ALL) == last
    assert stream.latestOffset(last, ALL) == last
    assert stream.reportLatestOffset() == offset(t0=500, t1=600, t2=5)


def test_a_batch_that_was_planned_before_a_restart_may_lie_beyond_the_target() -> None:
    stream = reader(TWO)
    stream.prepareForTriggerAvailableNow()
    stream.set(t0=Retained(0, 120), t1=Retained(10, 60))
    assert stream.latestOffset(offset(t0=110, t1=60), ALL) == offset(t0=110, t1=60)


def test_nothing_new_is_no_task() -> None:
    same = offset(t0=100, t1=60)
    assert reader(TWO).partitions(same, same) == []


def test_tasks_cover_what_lies_between_and_name_where_it_is() -> None:
    (task,) = reader(TWO).partitions(offset(t0=90, t1=60), offset(t0=100, t1=60))
    part = task.value.part
    assert (part.topic, part.partition, part.start, part.end) == (T, 0, 90, 100)
    assert (task.value.topic, task.value.stored_in) == ("t", f"{T}-partition-0")
    assert task.value.patience_s == OPTIONS.outage_timeout_s, "its tasks wait as the stream does"


def test_a_checkpoint_of_version_1_goes_on() -> None:
    held = {T0: Retained(0, 100, 7), T1: Retained(0, 60, 8)}
    stream = reader(held)
    end = stream.latestOffset({"0": 90, "1": 60}, ALL)
    assert end == offset(t0=(100, 7), t1=(60, 8))
    (task,) = stream.partitions({"0": 90, "1": 60}, end)
    assert (task.value.part.start, task.value.part.end) == (90, 100)
    assert reader(held).partitions({"0": 90, "1": 60}, {"0": 90, "1": 60}) == []


# -- topics that come, go, and come again


def test_a_new_partition_is_announced_and_then_read_from_its_first_offset() -> None:
    """So its start is in the checkpoint, and is the same if the batch is planned again."""
    stream = reader({T0: Retained(0, 100)})
    stream.set(t0=Retained(0, 100), t1=Retained(3, 9))
    announced = stream.latestOffset(offset(t0=100), ALL)
    assert announced == offset(t0=100, t1=3)
    assert stream.partitions(offset(t0=100), announced) == []
    end = stream.latestOffset(announced, ALL)
    assert end == offset(t0=100, t1=9)
    (task,) = stream.partitions(announced, end)
    assert (task.value.part.partition, task.value.part.start, task.value.part.end) == (1, 3, 9)


@pytest.mark.parametrize(
    ("before", "anew"),
    [
        (offset(t0=90, t1=60), {T0: Retained(0, 8), T1: Retained(0, 70)}),  # fewer messages
        (offset(t0=(90, 7), t1=60), {T0: Retained(0, 90, 9), T1: Retained(0, 70)}),  # as many
        (offset(t0=(90, 7), t1=60), {T0: Retained(0, 900, 9), T1: Retained(0, 70)}),  # more
    ],
)
def test_a_topic_made_anew_is_data_loss_or_read_from_its_beginning(
    before: dict[str, Any],
    anew: dict[Partition, Retained],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(DataLossError, match=f"{T} partition 0 was deleted and created again"):
        reader(anew).latestOffset(before, ALL)
    stream = reader(anew, fail=False)
    announced = stream.latestOffset(before, ReadMaxRows(5))
    assert announced["topics"][T]["0"]["next"] == 0
    assert announced["topics"][T]["1"]["next"] == 65
    assert "deleted and created again" in caplog.text
    parts = [task.value.part for task in stream.partitions(before, announced)]
    assert [(part.partition, part.start, part.end) for part in parts] == [(1, 60, 65)]
    caplog.clear()
    end = stream.latestOffset(announced, ALL)
    assert end["topics"][T]["0"]["next"] == anew[T0].next
    assert not caplog.records
    parts = [task.value.part for task in stream.partitions(announced, end)]
    assert [(part.partition, part.start) for part in parts] == [(0, 0), (1, 65)]


def test_a_batch_that_is_planned_again_after_a_topic_was_made_anew_ends() -> None:
    """The offsets of the old topic cannot be read: an error once, or the stream goes on."""
    planned = offset(t0=(90, 7)), offset(t0=(95, 7))
    anew = {T0: Retained(0, 200, 9)}
    with pytest.raises(DataLossError, match="created again before its offsets 90 to 95 were read"):
        reader(anew).partitions(*planned)
    lenient = reader(anew, fail=False)
    assert lenient.partitions(*planned) == []
    announced = lenient.latestOffset(planned[1], ALL)
    assert announced == offset(t0=(0, 9))
    # The batch that announces is planned again, with and without data loss.
    assert reader(anew).partitions(planned[1], announced) == []
    assert lenient.latestOffset(announced, ALL) == offset(t0=(200, 9))


def test_trimmed_offsets_are_left_behind_in_one_trigger() -> None:
    held = {T0: Retained(5000, 5010, 7)}
    with pytest.raises(DataLossError, match="offsets 3 to 5000 are no longer retained"):
        reader(held).latestOffset(offset(t0=(3, 7)), ReadMaxRows(4))
    stream = reader(held, fail=False)
    end = stream.latestOffset(offset(t0=(3, 7)), ReadMaxRows(4))
    assert end == offset(t0=(5004, 7))
    (task,) = stream.partitions(offset(t0=(3, 7)), end)
    assert (task.value.part.start, task.value.part.end) == (5000, 5004)


def test_a_deleted_topic_is_data_loss_or_told_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = offset(t0=5, u0=7)
    with pytest.raises(DataLossError, match=f"{U} lacks partitions: it was deleted"):
        reader({T0: Retained(0, 9)}, options=SEVERAL).latestOffset(before, ALL)
    stream = reader({T0: Retained(0, 9)}, options=SEVERAL, fail=False)
    end = stream.latestOffset(before, ALL)
    assert end == offset(t0=9)
    assert f"{U} lacks partitions" in caplog.text
    assert len(stream.partitions(before, end)) == 1
    caplog.clear()
    assert stream.latestOffset(end, ALL) == end
    assert not caplog.records, "it was told once"
    stream.set(t0=Retained(0, 9), u0=Retained(0, 3))
    assert stream.latestOffset(end, ALL) == offset(t0=9, u0=0)


def test_a_topic_that_is_not_there_at_the_start_is_an_error() -> None:
    stream = Reader(SEVERAL, holding({T0: Retained(0, 9)}, missing=["the topic u does not exist"]))
    with pytest.raises(ValueError, match="the topic u does not exist"):
        stream.initialOffset()


def test_topics_in_several_are_shown_as_the_option_names_them() -> None:
    held = {T0: Retained(0, 9), U0: Retained(0, 9)}
    tasks = reader(held, options=SEVERAL).partitions(offset(t0=0, u0=0), offset(t0=9, u0=9))
    assert [task.value.topic for task in tasks] == ["t", "u"]


def test_another_cluster_is_refused_and_an_unknown_one_is_not() -> None:
    before = offset(t0=3, instance="a")
    stream = Reader(OPTIONS, holding({T0: Retained(0, 9)}, instance="b"))
    with pytest.raises(ValueError, match="is of the cluster instance a, and the brokers at"):
        stream.latestOffset(before, ALL)
    with pytest.raises(ValueError, match="cluster instance a"):
        stream.partitions(before, offset(t0=5, instance="a"))
    stream.held = holding({T0: Retained(0, 9)})
    assert stream.latestOffset(before, ALL) == offset(t0=9, instance="a")
    stream.held = holding({T0: Retained(0, 9)}, instance="b")
    assert stream.latestOffset(offset(t0=3), ALL) == offset(t0=9, instance="b")


# -- brokers that are away


def test_a_stream_waits_for_brokers_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    stream = reader(TWO)
    first = stream.latestOffset(offset(t0=0, t1=10), ALL)
    stream.error = AWAY
    for _ in range(3):
        assert stream.latestOffset(first, ALL) == first
        stream.now_s += 300
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert stream.reportLatestOffset() == offset(t0=100, t1=60), "the last known end"
    assert stream.partitions(offset(t0=0, t1=10), first), "a batch that is planned needs no answer"
    stream.error = None
    stream.set(t0=Retained(0, 120), t1=Retained(10, 60))
    assert stream.latestOffset(first, ALL) == offset(t0=120, t1=60)
    stream.error = AWAY
    stream.now_s += 10_000
    assert stream.latestOffset(first, ALL) == first, "each outage has its own time"


def test_a_stream_that_was_restarted_waits_too() -> None:
    stream = reader(TWO)
    stream.error = AWAY
    start = offset(t0=0, t1=10)
    assert stream.latestOffset(start, ALL) == start
    assert stream.reportLatestOffset() is None
    with pytest.raises(NotReadyError):
        stream.initialOffset()


def test_an_available_now_run_does_not_take_an_outage_for_its_end() -> None:
    stream = reader(TWO)
    stream.prepareForTriggerAvailableNow()
    stream.error = AWAY
    with pytest.raises(NotReadyError, match="no contact"):
        stream.latestOffset(offset(t0=0, t1=10), ALL)


def test_an_outage_that_is_too_long_ends_the_stream() -> None:
    stream = reader(TWO)
    stream.error = AWAY
    start = offset(t0=0, t1=10)
    assert stream.latestOffset(start, ALL) == start
    stream.now_s += 901
    with pytest.raises(UnavailableError, match="not answered for 901 s, longer than outageTimeout"):
        stream.latestOffset(start, ALL)


def test_an_error_that_waiting_does_not_mend_ends_the_stream_at_once() -> None:
    stream = reader(TWO)
    stream.error = NotAllowedError(0, "forbidden")
    with pytest.raises(NotAllowedError, match="forbidden"):
        stream.latestOffset(offset(t0=0, t1=10), ALL)


def test_a_trigger_asks_the_brokers_once() -> None:
    """Spark 57351: the work for each micro-batch grew with the partitions."""
    stream = reader(TWO)
    end = stream.latestOffset(offset(t0=0, t1=10), ALL)
    stream.reportLatestOffset()
    stream.partitions(offset(t0=0, t1=10), end)
    assert stream.asked == 1


def test_the_driver_keeps_nothing_of_earlier_triggers() -> None:
    """Spark 54237: the memory of the driver grew with each trigger."""
    stream = reader({T0: Retained(0, 0)})

    def trigger(number: int) -> None:
        start = offset(t0=10 * number)
        stream.set(t0=Retained(0, 10 * number + 10))
        end = stream.latestOffset(start, ALL)
        assert end == offset(t0=10 * number + 10)
        assert len(stream.partitions(start, end)) == 1
        stream.commit(end)

    def size() -> int:
        return len(pickle.dumps(vars(stream)))

    for number in range(100):
        trigger(number)
    before = size()
    for number in range(100, 1_000):
        trigger(number)
    assert size() < before + 50, "only the numbers are longer"


# -- options and columns


def test_no_task_has_more_records_than_allowed() -> None:
    options = replace(OPTIONS, records_per_partition_max=40)
    held = holding({T0: Retained(0, 100), T1: Retained(0, 10)})
    start, end = {T0: Progress(0), T1: Progress(0)}, {T0: Progress(100), T1: Progress(10)}
    sizes = [len(task.value.part) for task in plan(options, start, end, held, no_ledgers)]
    assert sizes == [33, 33, 34, 10]


def test_a_task_has_the_columns_of_the_schema() -> None:
    source = DaybookDataSource(URL | {"topic": "t"})
    schema = StructType().add("value", "binary").add("key", "string")
    options = source._options(schema, streaming=False)
    held = holding({T0: Retained(0, 9)})
    tasks = plan(options, {T0: Progress(0)}, {T0: Progress(9)}, held, no_ledgers)
    assert [(task.value.columns, task.value.key_type) for task in tasks] == [
        (("value", "key"), "string")
    ]
    with pytest.raises(ValueError, match="the column has the type binary"):
        source.reader(StructType().add("value", "string"))
    with pytest.raises(ValueError, match="value is NOT NULL"):
        source.reader(StructType().add("value", "binary", nullable=False))


def test_spark_asks_for_a_task_where_there_is_none() -> None:
    """A batch without partitions is one partition without a value to Spark."""
    from pyspark.sql.datasource import InputPartition

    source = DaybookDataSource({"service.url": "pulsar://x", "topic": "t"})
    assert list(source.reader(StructType()).read(InputPartition(None))) == []


def test_without_pyspark_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import daybook\n"
        "try:\n    daybook.spark.DaybookDataSource\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'daybook-mq[spark]'" in done.stdout


def test_the_format_is_imported_without_the_client() -> None:
    """Spark starts several processes for a query, and most of them need names and options only."""
    program = (
        "import sys\n"
        "from daybook.clients.spark import push_down, source\n"
        "from daybook.clients.spark.options import parse_options\n"
        "options = {'service.url': 'pulsar://x', 'topic': 't'}\n"
        "source.BatchReader(parse_options(options, streaming=False))\n"
        "heavy = ('trio', 'h11', 'fastavro', 'daybook.clients.python.client')\n"
        "print([each for each in heavy if each in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
