"""The stream reader as Spark calls it: admission control, the end of an AvailableNow run."""

import subprocess
import sys
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from daybook.clients.spark.offsets import DataLossError, Retained
from daybook.clients.spark.options import parse_options
from daybook.clients.spark.source import DaybookDataSource, StreamReader

OPTIONS = parse_options({"service.url": "pulsar://x", "topic": "t"}, streaming=True)
ALL = ReadAllAvailable()


class Reader(StreamReader):
    """A stream reader without a cluster: the test sets the offsets that the topic holds."""

    held: dict[int, Retained]

    def _retained(self) -> dict[int, Retained]:
        return self.held


def reader(*, held: dict[int, Retained], fail: bool = True) -> Reader:
    made = Reader(replace(OPTIONS, fail_on_data_loss=fail))
    made.held = held
    return made


TWO = {0: Retained(0, 100), 1: Retained(10, 60)}


def test_a_stream_starts_at_the_end_unless_told_otherwise() -> None:
    assert reader(held=TWO).initialOffset() == {"0": 100, "1": 60}
    early = Reader(replace(OPTIONS, starting={0: -2, 1: 30}))
    early.held = TWO
    assert early.initialOffset() == {"0": 0, "1": 30}


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        (ALL, {"0": 100, "1": 60}),
        (ReadMaxRows(1000), {"0": 100, "1": 60}),
        (ReadMaxRows(60), {"0": 40, "1": 30}),
        (ReadMaxRows(1), {"0": 1, "1": 10}),
    ],
)
def test_a_trigger_takes_what_it_may(limit: ReadLimit, end: dict[str, int]) -> None:
    assert reader(held=TWO).latestOffset({"0": 0, "1": 10}, limit) == end


def test_the_default_limit_is_the_option() -> None:
    assert reader(held=TWO).getDefaultReadLimit() == ALL
    limited = Reader(replace(OPTIONS, offsets_per_trigger_max=7))
    assert limited.getDefaultReadLimit() == ReadMaxRows(7)


def test_available_now_ends_at_what_was_there_at_the_start() -> None:
    stream = reader(held=TWO)
    stream.prepareForTriggerAvailableNow()
    stream.held = {0: Retained(0, 500), 1: Retained(10, 600), 2: Retained(0, 5)}
    first = stream.latestOffset({"0": 0, "1": 10}, ReadMaxRows(60))
    assert first == {"0": 40, "1": 30, "2": 0}
    assert stream.latestOffset(first, ALL) == {"0": 100, "1": 60, "2": 0}
    assert stream.latestOffset({"0": 100, "1": 60, "2": 0}, ALL) == {"0": 100, "1": 60, "2": 0}
    assert stream.reportLatestOffset() == {"0": 500, "1": 600, "2": 5}


def test_a_batch_that_was_planned_before_a_restart_may_lie_beyond_the_target() -> None:
    stream = reader(held=TWO)
    stream.prepareForTriggerAvailableNow()
    stream.held = {0: Retained(0, 120), 1: Retained(10, 60)}
    assert stream.latestOffset({"0": 110, "1": 60}, ALL) == {"0": 110, "1": 60}


def test_nothing_new_is_no_task() -> None:
    same = {"0": 100, "1": 60}
    assert reader(held=TWO).partitions(same, same) == []


def test_tasks_cover_what_lies_between() -> None:
    tasks = reader(held=TWO).partitions({"0": 90, "1": 60}, {"0": 100, "1": 60})
    assert [(t.value.part.partition, t.value.part.start, t.value.part.end) for t in tasks] == [
        (0, 90, 100)
    ]


def test_a_topic_made_anew_is_data_loss_or_read_from_its_beginning() -> None:
    before, anew = {"0": 90, "1": 60}, {0: Retained(0, 8), 1: Retained(0, 70)}
    with pytest.raises(DataLossError):
        reader(held=anew).latestOffset(before, ALL)
    lenient = reader(held=anew, fail=False)
    end = lenient.latestOffset(before, ReadMaxRows(5))
    assert end == {"0": 2, "1": 63}
    parts = [task.value.part for task in lenient.partitions(before, end)]
    assert [(part.partition, part.start) for part in parts] == [(0, 0), (1, 60)]
    assert sum(map(len, parts)) == 5
    with pytest.raises(DataLossError):
        reader(held=anew).partitions(before, end)


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
