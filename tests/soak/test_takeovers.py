"""Tests of the quantiles and the histogram of takeovers."""

import pytest

from tests.soak.takeovers import describe, histogram, quantile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0], 0.5, 1.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0], 0.99, 2.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
    ],
)
def test_a_quantile_is_one_of_the_values(
    values: list[float], share: float, expected: float
) -> None:
    assert quantile(values, share) == expected


def test_rows_grow_wider_and_those_between_are_shown_though_empty() -> None:
    rows = [line.split() for line in histogram([2.1, 2.2, 3.4, 5.5, 12.0])]
    assert [(row[0], row[4]) for row in rows if row[4] != "0"] == [
        ("2.0", "2"),
        ("3.0", "1"),
        ("5.0", "1"),
        ("10.0", "1"),
    ]
    assert ["2.5", "to", "3.0", "s", "0"] in rows


def test_the_most_frequent_row_has_the_longest_bar() -> None:
    bars = [line.count("#") for line in histogram([2.1, 2.2, 2.7])]
    assert bars == [40, 20]


def test_in_words() -> None:
    assert describe([3.0, 2.0])[0] == "2 takeovers: p50 2.00 s, p99 3.00 s, max 3.00 s"
    assert describe([]) == ["no owner was killed"]
