"""The arithmetic of offsets: no offset is left out or read twice."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.clients.spark.offsets import (
    BatchPlan,
    DataLossError,
    OffsetRange,
    Partition,
    Progress,
    Retained,
    Stored,
    batch_plan,
    carry_over,
    check_losses,
    limit,
    limit_bytes,
    parse_offsets,
    parse_times,
    resolve,
    split,
    stored_sizes,
)

T, U = "persistent://public/default/t", "persistent://shop/eu/u"
T0, T1, T2, U0 = Partition(T, 0), Partition(T, 1), Partition(T, 2), Partition(U, 0)
RETAINED = {T0: Retained(10, 100), T1: Retained(0, 50)}


# -- options


def test_named_bounds_are_those_of_each_partition() -> None:
    assert resolve("earliest", RETAINED, "x") == {T0: 10, T1: 0}
    assert resolve("latest", RETAINED, "x") == {T0: 100, T1: 50}


def test_json_names_offsets_and_bounds() -> None:
    spec = parse_offsets('{"t": {"0": 42, "1": -2}}', T, "x")
    assert resolve(spec, RETAINED, "x") == {T0: 42, T1: 0}
    assert resolve(parse_offsets('{"0": -1, "1": 7}', T, "x"), RETAINED, "x") == {T0: 100, T1: 7}


def test_json_names_topics_by_short_or_full_names() -> None:
    spec = parse_offsets('{"t": {"0": 1}, "persistent://shop/eu/u": {"0": -2}}', None, "x")
    assert spec == {T0: 1, U0: -2}
    assert parse_offsets('{"shop/eu/u": {"0": 5}}', T, "x") == {U0: 5}


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "[1]",
        '{"a": 1}',
        '{"0": "1"}',
        '{"0": -3}',
        "5",
        '{"t": 5, "u": {"0": 1}}',
        '{"a b/c": {"0": 1}}',
        '{"0": true}',
        '{"²": 1}',
        '{"9999999999": 1}',
    ],
)
def test_other_texts_are_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match="x"):
        parse_offsets(text, T, "x")


def test_json_without_topics_is_for_one_topic() -> None:
    with pytest.raises(ValueError, match="x names no topics, and the query reads several"):
        parse_offsets('{"0": 1}', None, "x")


def test_times_are_milliseconds_and_have_no_special_numbers() -> None:
    assert parse_times('{"t": {"0": 1764000000000}}', None, "x") == {T0: 1764000000000}
    with pytest.raises(ValueError, match="-1 of partition 0 is no valid integer"):
        parse_times('{"0": -1}', T, "x")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({T0: 1}, r"the partitions \[0\] of .*/t, but the query reads \[0, 1\]"),
        ({T0: 1, T1: 1, U0: 1}, r"the partitions \[0\] of .*/u, but the query reads \[\]"),
    ],
)
def test_json_must_name_every_partition(spec: dict[Partition, int], says: str) -> None:
    with pytest.raises(ValueError, match=f"startingOffsets names {says}"):
        resolve(spec, RETAINED, "startingOffsets")


# -- planning a batch

OLD, NEW = 7, 9  # creations of a topic


def planned(
    start: Mapping[Partition, Progress],
    end: Mapping[Partition, Progress],
    held: Mapping[Partition, Retained],
) -> BatchPlan:
    return batch_plan(start, end, held)


@pytest.mark.parametrize(
    ("start", "end", "held", "ranges", "losses"),
    [
        # the offsets that are there are read
        (Progress(90), Progress(100), Retained(10, 100), [(90, 100)], []),
        (Progress(90, OLD), Progress(95, OLD), Retained(10, 100, OLD), [(90, 95)], []),
        (Progress(90, OLD), Progress(90, OLD), Retained(10, 100, OLD), [], []),
        # a checkpoint of version 1, or a broker that does not tell the creation
        (Progress(90), Progress(95, OLD), Retained(10, 100, OLD), [(90, 95)], []),
        (Progress(90, OLD), Progress(95, OLD), Retained(10, 100), [(90, 95)], []),
        # trimmed, and never there
        (Progress(5), Progress(100), Retained(10, 100), [(10, 100)], ["offsets 5 to 10 are no"]),
        (Progress(5), Progress(8), Retained(10, 100), [], ["offsets 5 to 8 are no longer"]),
        (Progress(5), Progress(5), Retained(10, 100), [], []),
        (Progress(90), Progress(101), Retained(10, 100), [(90, 100)], ["up to 101 were asked for"]),
        # a new partition of a checkpoint that did not name its first offset
        (None, Progress(50), Retained(3, 50), [(3, 50)], []),
        # made anew before the batch was planned first
        (Progress(90, OLD), Progress(0, NEW), Retained(0, 8, NEW), [], []),
        (Progress(90, OLD), Progress(5, NEW), Retained(0, 8, NEW), [(0, 5)], []),
        (Progress(3, OLD), Progress(5, NEW), Retained(1, 8, NEW), [(1, 5)], []),
        # the same, and only the numbers tell
        (
            Progress(90),
            Progress(5),
            Retained(0, 8),
            [(0, 5)],
            ["begins at offset 90 and ends"],
        ),
        # made anew, or deleted, after the batch was planned first
        (Progress(3, OLD), Progress(5, OLD), Retained(0, 8, NEW), [], ["offsets 3 to 5 were"]),
        (Progress(5, OLD), Progress(5, OLD), Retained(0, 8, NEW), [], []),
        (Progress(3, OLD), Progress(5, OLD), None, [], ["deleted before its offsets 3 to 5"]),
        (Progress(5, OLD), Progress(5, OLD), None, [], []),
    ],
)
def test_a_batch_reads_what_can_be_read_and_tells_the_rest(
    start: Progress | None,
    end: Progress,
    held: Retained | None,
    ranges: list[tuple[int, int]],
    losses: list[str],
) -> None:
    found = planned(
        {} if start is None else {T0: start}, {T0: end}, {} if held is None else {T0: held}
    )
    assert [(each.start, each.end) for each in found.ranges] == ranges
    assert all((each.topic, each.partition) == (T, 0) for each in found.ranges)
    assert len(found.losses) == len(losses)
    for loss, says in zip(found.losses, losses, strict=True):
        assert says in loss
        assert f"{T} partition 0" in loss


def test_several_losses_are_one_sentence() -> None:
    check_losses([])
    with pytest.raises(DataLossError) as caught:
        check_losses(["t is gone", "u is gone"])
    assert str(caught.value) == (
        "t is gone (and 1 more like this): set failOnDataLoss=false to continue with what is there"
    )


# -- going on


@pytest.mark.parametrize(
    ("start", "held", "begin", "losses"),
    [
        ({T0: Progress(42, OLD)}, {T0: Retained(10, 100, OLD)}, {T0: 42}, []),
        ({T0: Progress(42)}, {T0: Retained(10, 100, OLD)}, {T0: 42}, []),
        ({T0: Progress(100)}, {T0: Retained(10, 100)}, {T0: 100}, []),
        # new partitions and topics begin at their first offset
        ({T0: Progress(42)}, {T0: Retained(0, 100), T2: Retained(3, 9)}, {T0: 42, T2: 3}, []),
        ({T0: Progress(42)}, {T0: Retained(0, 100), U0: Retained(0, 9)}, {T0: 42, U0: 0}, []),
        # trimmed: the stream goes on at the first offset that is left
        ({T0: Progress(4, OLD)}, {T0: Retained(10, 100, OLD)}, {T0: 10}, ["offsets 4 to 10"]),
        # made anew, with fewer messages, and with more
        ({T0: Progress(101)}, {T0: Retained(10, 100)}, {T0: 10}, ["deleted and created again"]),
        (
            {T0: Progress(42, OLD)},
            {T0: Retained(0, 500, NEW)},
            {T0: 0},
            ["deleted and created again"],
        ),
        # gone: partitions, and whole topics
        (
            {T0: Progress(42), T1: Progress(7), U0: Progress(5)},
            {T0: Retained(0, 100)},
            {T0: 42},
            ["/t lacks partitions: it was deleted (the query had read partition 1 up to 7)", "/u"],
        ),
    ],
)
def test_a_stream_goes_on_where_it_was_and_tells_what_is_lost(
    start: dict[Partition, Progress],
    held: dict[Partition, Retained],
    begin: dict[Partition, int],
    losses: Sequence[str],
) -> None:
    found = carry_over(start, held)
    assert found.start == begin
    assert len(found.losses) == len(losses)
    assert all(says in loss for loss, says in zip(found.losses, losses, strict=True))


# -- limits and splits


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    st.integers(1, 200),
)
def test_a_limit_is_kept_and_makes_progress(
    partitions: dict[int, tuple[int, int]], offsets_max: int
) -> None:
    start = {Partition(T, p): low for p, (low, _) in partitions.items()}
    end = {Partition(T, p): low + size for p, (low, size) in partitions.items()}
    limited = limit(start, end, offsets_max)
    taken = sum(limited[p] - start[p] for p in limited)
    assert taken == min(offsets_max, sum(size for _, size in partitions.values()))
    assert all(start[p] <= limited[p] <= end[p] for p in start)


ledgers = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5000)), max_size=4)


@given(st.dictionaries(st.integers(0, 4), st.tuples(ledgers, st.integers(0, 30))), st.data())
def test_a_limit_of_bytes_is_kept_and_makes_progress(
    partitions: dict[int, tuple[list[tuple[int, int]], int]], data: st.DataObject
) -> None:
    start: dict[Partition, int] = {}
    end: dict[Partition, int] = {}
    sizes: dict[Partition, list[Stored]] = {}
    for number, (shape, tail) in partitions.items():
        partition, first = Partition(T, number), 7
        sealed: list[Stored] = []
        for messages, size in shape:
            sealed.append(Stored(first, first + messages, size))
            first += messages
        start[partition] = data.draw(st.integers(7, first))
        end[partition] = first + tail
        sizes[partition] = stored_sizes(start[partition], end[partition], sealed, 100.0)
        edges = [start[partition], *(each.next for each in sizes[partition])]
        assert [each.first for each in sizes[partition]] == edges[:-1], "there is no gap"
        assert edges[-1] == end[partition]
    bytes_max = data.draw(st.integers(1, 20_000))
    limited = limit_bytes(start, end, sizes, bytes_max)
    assert all(start[p] <= limited[p] <= end[p] for p in start)
    taken = sum(limited[p] - start[p] for p in limited)
    assert taken >= min(1, sum(end[p] - start[p] for p in end))
    used = sum(
        each.bytes * (min(each.next, limited[p]) - each.first) / (each.next - each.first)
        for p, several in sizes.items()
        for each in several
        if each.first < limited[p]
    )
    assert used <= bytes_max + 1e-3 or taken == 1
    whole = sum(each.bytes for several in sizes.values() for each in several)
    if whole <= bytes_max:
        assert limited == end


def test_bytes_are_shared_in_proportion_and_small_shares_are_not_starved() -> None:
    start, end = {T0: 0, T1: 0}, {T0: 300, T1: 100}
    sizes = {T0: [Stored(0, 300, 3000)], T1: [Stored(0, 100, 1000)]}
    assert limit_bytes(start, end, sizes, 400) == {T0: 30, T1: 10}
    # Half a message is the share of each: two of them fit, and none goes without for ever.
    several = {Partition(T, i): 0 for i in range(4)}
    ends = dict.fromkeys(several, 10)
    tens = {p: [Stored(0, 10, 100)] for p in several}
    assert sum(limit_bytes(several, ends, tens, 20).values()) == 2
    small = limit_bytes(
        {T0: 0, T1: 0},
        {T0: 1000, T1: 1},
        {T0: [Stored(0, 1000, 10_000)], T1: [Stored(0, 1, 10)]},
        105,
    )
    assert small == {T0: 9, T1: 1}


def test_the_sizes_of_ledgers_count_and_their_mean_is_that_of_the_open_one() -> None:
    sealed = [Stored(0, 10, 1000), Stored(10, 30, 200)]
    assert stored_sizes(5, 40, sealed, 7.0) == [
        Stored(5, 10, 500),
        Stored(10, 30, 200),
        Stored(30, 40, 400),
    ]
    assert stored_sizes(5, 40, [], 7.0) == [Stored(5, 40, 245)]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), max_size=5),
    st.integers(1, 40),
    st.none() | st.integers(1, 30),
)
def test_splitting_keeps_every_offset_once(
    sizes: list[tuple[int, int]], partitions_min: int, records_max: int | None
) -> None:
    whole = [OffsetRange(i, low, low + size, T) for i, (low, size) in enumerate(sizes)]
    parts = split(whole, partitions_min, records_max)
    assert len(parts) >= min(partitions_min, sum(map(len, whole)))
    assert all(len(part) > 0 and part.topic == T for part in parts)
    assert records_max is None or all(len(part) <= records_max for part in parts)
    assert sorted((p.partition, o) for p in parts for o in range(p.start, p.end)) == [
        (w.partition, o) for w in whole for o in range(w.start, w.end)
    ]
