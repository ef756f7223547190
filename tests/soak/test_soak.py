"""A short soak does all that a long one does, and a soak reports the violations that it finds."""

from collections import Counter
from io import StringIO
from pathlib import Path
from random import SystemRandom

import pytest

from tests.history.record import Violation
from tests.soak.faults import FAULTS
from tests.soak.report import Report
from tests.soak.soak import LEDGERS, TOPICS, Settings, soak

_SEED_MAX = 1_000_000


def seed() -> int:
    return SystemRandom().randrange(_SEED_MAX)


@pytest.mark.real
@pytest.mark.xdist_group("soak")
async def test_a_short_soak_of_topics_finds_nothing(tmp_path: Path) -> None:
    report = await soak(Settings(seed(), tmp_path, minutes=0.5), StringIO())
    assert report.ok, "\n".join(report.lines())
    assert report.topics is not None
    assert report.ledgers is None
    assert report.faults.total() > 3
    assert report.topics["Ok"] > 300
    assert report.topics["Read"] > 300
    assert report.lines()[-1].endswith(": ok")
    assert not (tmp_path / "cluster").exists()


@pytest.mark.real
@pytest.mark.xdist_group("soak")
async def test_a_short_soak_of_ledgers_finds_nothing(tmp_path: Path) -> None:
    settings = Settings(seed(), tmp_path, minutes=0.05, workloads=(LEDGERS,), bookies=4, repair_s=0)
    report = await soak(settings, StringIO())
    assert report.ok, "\n".join(report.lines())
    assert report.topics is None
    assert report.ledgers is not None
    assert report.ledgers["entries confirmed"] > 10
    assert report.ledgers["entries read"] >= report.ledgers["entries confirmed"]
    assert "kill broker" not in report.faults


@pytest.mark.real
@pytest.mark.xdist_group("soak")
async def test_a_few_kills_of_owners_lose_nothing_and_are_measured(tmp_path: Path) -> None:
    report = await soak(Settings(seed(), tmp_path, kills=2, bookies=3), StringIO())
    assert report.ok, "\n".join(report.lines())
    assert len(report.takeovers_s) == 2
    assert report.faults == {"kill broker": 2}


def test_a_report_counts_what_was_broken(tmp_path: Path) -> None:
    report = Report(7, tmp_path)
    for rule in (
        *("lost-write", "poll-order", "phantom", "phantom", "under-replicated"),
        *("lost-entry", "entry-changed", "end-changed", "confirm-order"),
    ):
        report.violations.append(str(Violation(rule, "t", "p/1", "")))
        report.rules[rule] += 1
    assert not report.ok
    counts = "2 lost, 1 reordered, 2 invented, 1 changed, 1 other ends, 2 others"
    assert counts in report.lines()
    assert report.lines()[-1] == "seed 7: FAILED"


def test_a_report_says_how_often_each_fault_was_done(tmp_path: Path) -> None:
    report = Report(7, tmp_path)
    report.expect(FAULTS)
    report.faults.update(Counter({"kill broker": 3, "pause zookeeper": 1}))
    lines = report.lines()
    assert "4 faults in 0 rounds:" in lines
    assert "     3 kill broker" in lines
    (missing,) = [line for line in lines if line.startswith("     0 ")]
    assert "bookie: rots" in missing
    assert "kill broker" not in missing


def test_the_workloads_decide_which_servers_there_are(tmp_path: Path) -> None:
    shapes = {
        workloads: Settings(7, tmp_path, workloads=workloads).shape()
        for workloads in ((TOPICS,), (LEDGERS,), (TOPICS, LEDGERS))
    }
    assert {key: (shape.bookies, shape.brokers) for key, shape in shapes.items()} == {
        (TOPICS,): (4, 3),
        (LEDGERS,): (6, 0),
        (TOPICS, LEDGERS): (6, 3),
    }
