"""The tally counts runs under the commit that they tested."""

from pathlib import Path

from tests.simulation.many import run_many
from tests.simulation.tally import CLUSTER, Entry, append, present, read, summary


def test_what_is_appended_is_read_and_summed(tmp_path: Path) -> None:
    path = tmp_path / "tally.jsonl"
    assert read(path) == []
    entries = [
        Entry(CLUSTER, "aaa", False, 1, 100, 100, 0, 60.0),
        Entry(CLUSTER, "aaa", True, 101, 150, 50, 2, 30.0, 15.0),
        Entry(CLUSTER, "bbb", False, 1, 10, 10, 1, 30.0),
    ]
    for entry in entries:
        append(path, entry)
    assert read(path) == entries
    assert summary(entries, "aaa") == [
        "in all: 160 runs, 3 failed, 80 a minute, 200 a minute of CPU",
        "on aaa, unchanged: 100 runs, 0 failed, 100 a minute",
    ]


def test_the_commit_is_known_or_said_not_to_be() -> None:
    commit, changed = present()
    assert len(commit) == 12 or (commit == "" and changed)


def test_a_series_is_ended_by_time_and_counted_as_far_as_it_came() -> None:
    series = run_many(range(13, 1_000_000), jobs=1, minutes=0.0)
    assert (series.runs, series.failed) == (1, [])
    assert len(series.marks) == 1
    assert series.cpu_s > 0
