"""The demo fails if anything is wrong: it names each single fault and exits with 1."""

import tempfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from examples.flights import __main__ as demo
from examples.flights import chart
from examples.flights.carriers import TotalsResult
from examples.flights.flights import Flights
from examples.flights.pipelines import SparkResult
from examples.flights.tally import Tally
from examples.flights.verdict import failures, table

ROWS = 20
TOTALS = TotalsResult(
    messages=4, flights=ROWS, micro_batches=2, restarts=1, seconds=1.0, differences=[]
)
SPARK = SparkResult(rows=ROWS, batch_s=1.0, totals=TOTALS, differences=[])


def good_run(*, without: tuple[str, ...] = ()) -> Tally:
    """Return a run with all rows in two partitions, a kill midway, and row 4 delivered twice."""
    tally = Tally(ROWS)
    tally.sent = ROWS
    for row in range(ROWS):
        if row == ROWS // 2 and "kill" not in without:
            tally.note_killed("broker-1", row - 0.5)
        if not (row == 7 and "acknowledge" in without):
            tally.note_acknowledged(row, row % 2, float(row))
        if not (row == 7 and "deliver" in without):
            tally.note_delivered(row, row % 2)
    tally.note_delivered(4, 0)
    return tally


def test_a_good_run_has_no_failures_and_says_what_came_again() -> None:
    tally = good_run()
    assert failures(tally, SPARK) == []
    assert (tally.duplicated, tally.lost, tally.out_of_order) == (1, 0, 0)
    shown = dict(table(tally, SPARK))
    assert shown["delivered again"].startswith("1 ")
    assert shown["stored"] == "20 = sent"
    tally.repeated = 3
    again = "20 = sent; 3 were sent again after the kill, and not stored again"
    assert dict(table(tally, SPARK))["stored"] == again


def test_the_pause_is_that_of_one_partition_even_while_others_go_on() -> None:
    tally = Tally(100)
    for row in range(40):
        tally.note_acknowledged(row, row % 2, row / 10)
    tally.note_killed("broker-1", 4.0)
    for row in range(40, 60):
        tally.note_acknowledged(row, 1, row / 10)
    tally.note_acknowledged(60, 0, 6.0)
    assert tally.pause_s == pytest.approx(6.0 - 3.8)


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("kill", "no broker was killed"),
        ("deliver", "1 acknowledged rows are lost"),
        ("acknowledge", "19 of 20 rows were acknowledged"),
    ],
)
def test_what_did_not_happen_is_a_failure(without: str, says: str) -> None:
    assert says in failures(good_run(without=(without,)), SPARK)


def test_rows_out_of_order_are_a_failure() -> None:
    tally = Tally(ROWS)
    for row in (13, 11):
        tally.note_delivered(row, partition=1)
    assert tally.out_of_order == 1
    assert "1 rows were delivered out of order" in failures(tally, SPARK)


def test_a_refused_row_is_a_failure() -> None:
    tally = good_run()
    tally.note_refused(3, "no receipt")
    assert failures(tally, SPARK) == ["1 rows were refused, the first: row 3: no receipt"]


@pytest.mark.parametrize(
    ("spark", "says"),
    [
        (replace(SPARK, differences=["batch: UA: 1, 2"]), "batch: UA: 1, 2"),
        (replace(SPARK, rows=ROWS - 1), "the batch read 19 of 20 rows"),
        (
            replace(SPARK, rows=ROWS + 2),
            "the batch read 2 rows too many: they are stored twice",
        ),
        (
            replace(SPARK, totals=replace(TOTALS, flights=ROWS - 1)),
            "the stream read 19 of 20 rows",
        ),
        (
            replace(SPARK, totals=replace(TOTALS, differences=["totals: UA: None, 2"])),
            "totals: UA: None, 2",
        ),
    ],
)
def test_what_spark_did_not_find_is_a_failure(spark: SparkResult, says: str) -> None:
    assert failures(good_run(), spark) == [says]


@pytest.mark.parametrize(
    ("without", "spark", "code", "verdict"),
    [
        ((), SPARK, 0, "verdict: all is well"),
        (("deliver",), SPARK, 1, "verdict: FAILED"),
        ((), replace(SPARK, differences=["stream: UA"]), 1, "verdict: FAILED"),
    ],
)
def test_the_command_exits_with_the_verdict_and_names_the_picture(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    without: tuple[str, ...],
    spark: SparkResult,
    code: int,
    verdict: str,
) -> None:
    def run(flights: Flights, directory: Path, *_: object, keep: bool) -> tuple[Tally, SparkResult]:
        assert not keep
        assert len(flights.messages) == ROWS
        return good_run(without=without), spark

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(tmp_path))
    monkeypatch.setattr(demo, "load", lambda rows: Flights("", [b""] * rows, [""] * rows))
    done = CliRunner().invoke(demo.main, ["--rows", str(ROWS)])
    assert done.exit_code == code, done.output
    assert verdict in done.output
    assert str(tmp_path / "rate.svg") in done.output


def test_the_picture_is_drawn_with_the_kill_where_it_was() -> None:
    points = [(i / 10, i * 1000) for i in range(1, 101)]
    picture = ElementTree.fromstring(chart.draw(points, 5.0, "a < b", "note"))
    red = [e for e in picture.iter() if e.get("stroke") == "#d62728"]
    middle = (chart.LEFT + chart.WIDTH - chart.RIGHT) / 2
    assert [float(e.get("x1", 0)) for e in red] == [pytest.approx(middle, abs=20)]
    texts = [e.text for e in picture.iter() if e.text]
    assert "a < b" in texts
    assert "10,000" in texts  # acknowledged messages per second: a round number on the axis


@pytest.mark.parametrize("top", [0.7, 1.0, 9, 11, 123, 96_250, 1e6])
def test_grid_lines_are_few_and_round(top: float) -> None:
    step = chart.round_step(top)
    assert 2 <= top / step <= 5
    assert f"{step:.0e}"[0] in "125"
