"""The arithmetic of offsets: no offset is left out or read twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.clients.spark.offsets import (
    DataLossError,
    OffsetRange,
    Retained,
    carry_over,
    limit,
    parse_offsets,
    ranges,
    resolve,
    split,
)
from daybook.clients.spark.options import parse_options

RETAINED = {0: Retained(10, 100), 1: Retained(0, 50)}
BASE = {"service.url": "pulsar://localhost:6650", "topic": "t"}


def test_named_bounds_are_those_of_each_partition() -> None:
    assert resolve("earliest", RETAINED, "x") == {0: 10, 1: 0}
    assert resolve("latest", RETAINED, "x") == {0: 100, 1: 50}


def test_json_names_offsets_and_bounds() -> None:
    spec = parse_offsets('{"t": {"0": 42, "1": -2}}', "t", "x")
    assert resolve(spec, RETAINED, "x") == {0: 42, 1: 0}
    assert resolve(parse_offsets('{"0": -1, "1": 7}', "t", "x"), RETAINED, "x") == {0: 100, 1: 7}


@pytest.mark.parametrize("text", ["soon", "[1]", '{"a": 1}', '{"0": "1"}', '{"0": -3}', "5"])
def test_other_texts_are_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match="x"):
        parse_offsets(text, "t", "x")


def test_json_must_name_every_partition() -> None:
    with pytest.raises(ValueError, match=r"the topic has \[0, 1\]"):
        resolve({0: 1}, RETAINED, "startingOffsets")


def test_trimmed_offsets_are_data_loss_unless_the_query_may_go_on() -> None:
    start, end = {0: 5, 1: 0}, {0: 100, 1: 50}
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        ranges(start, end, RETAINED, fail_on_data_loss=True)
    kept = ranges(start, end, RETAINED, fail_on_data_loss=False)
    assert kept == [OffsetRange(0, 10, 100), OffsetRange(1, 0, 50)]


def test_offsets_that_were_never_there_are_data_loss_too() -> None:
    with pytest.raises(DataLossError):
        ranges({0: 10}, {0: 101}, RETAINED, fail_on_data_loss=True)


def test_a_partition_that_is_new_since_the_start_is_read_from_its_first_offset() -> None:
    assert ranges({0: 100}, {0: 100, 1: 50}, RETAINED, fail_on_data_loss=True) == [
        OffsetRange(1, 0, 50)
    ]


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    st.integers(1, 200),
)
def test_a_limit_is_kept_and_makes_progress(
    partitions: dict[int, tuple[int, int]], offsets_max: int
) -> None:
    start = {p: low for p, (low, _) in partitions.items()}
    end = {p: low + size for p, (low, size) in partitions.items()}
    limited = limit(start, end, offsets_max)
    taken = sum(limited[p] - start[p] for p in limited)
    assert taken == min(offsets_max, sum(size for _, size in partitions.values()))
    assert all(start[p] <= limited[p] <= end[p] for p in partitions)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), max_size=5),
    st.integers(1, 40),
)
def test_splitting_keeps_every_offset_once(
    sizes: list[tuple[int, int]], partitions_min: int
) -> None:
    whole = [OffsetRange(i, low, low + size) for i, (low, size) in enumerate(sizes)]
    parts = split(whole, partitions_min)
    assert len(parts) >= min(partitions_min, sum(map(len, whole)))
    assert all(len(part) > 0 for part in parts)
    assert sorted((p.partition, o) for p in parts for o in range(p.start, p.end)) == [
        (w.partition, o) for w in whole for o in range(w.start, w.end)
    ]


def test_options_have_their_defaults_and_any_case() -> None:
    options = parse_options(
        BASE | {"MINPARTITIONS": "3", "failondataloss": "False"}, streaming=True
    )
    assert (options.partitions_min, options.fail_on_data_loss) == (3, False)
    assert options.starting is None
    assert options.offsets_per_trigger_max is None


@pytest.mark.parametrize(
    ("extra", "streaming", "says"),
    [
        ({"subscribe": "t"}, False, "unknown option 'subscribe'"),
        ({"endingOffsets": "latest"}, True, "batch"),
        ({"maxOffsetsPerTrigger": "5"}, False, "streams"),
        ({"minPartitions": "0"}, False, "positive"),
        ({"failOnDataLoss": "maybe"}, False, "neither"),
        ({"topic": ""}, False, "missing"),
    ],
)
def test_wrong_options_are_errors(extra: dict[str, str], streaming: bool, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_options(BASE | extra, streaming=streaming)


def test_a_stream_goes_on_where_it_was_and_takes_new_partitions_from_their_start() -> None:
    held = RETAINED | {2: Retained(3, 9)}
    assert carry_over({0: 42, 1: 50}, held, fail_on_data_loss=True) == {0: 42, 1: 50, 2: 3}


@pytest.mark.parametrize("start", [{0: 101, 1: 0}, {0: 42, 1: 0, 2: 7}])
def test_a_topic_that_was_made_anew_is_data_loss_unless_the_query_may_go_on(
    start: dict[int, int],
) -> None:
    with pytest.raises(DataLossError, match="deleted and created again"):
        carry_over(start, RETAINED, fail_on_data_loss=True)
    expected = {0: 10 if start[0] > 100 else 42, 1: 0}
    assert carry_over(start, RETAINED, fail_on_data_loss=False) == expected
