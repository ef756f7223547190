"""A short soak does all that a long one does; one that finds something says so."""

from io import StringIO
from pathlib import Path
from random import SystemRandom

import pytest

from tests.history.record import Violation
from tests.soak.soak import Report, Settings, soak

_SEED_MAX = 1_000_000


def settings(directory: Path, *, minutes: float = 0.0, kills: int = 0) -> Settings:
    return Settings(SystemRandom().randrange(_SEED_MAX), directory, minutes, kills)


@pytest.mark.real
@pytest.mark.xdist_group("soak")
async def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    report = await soak(settings(tmp_path, minutes=0.3), StringIO())
    assert report.ok, "\n".join(report.lines())
    assert report.events["Fault"] > 3
    assert report.events["Ok"] > 300
    assert report.events["Read"] > 300


@pytest.mark.real
@pytest.mark.xdist_group("soak")
async def test_a_few_kills_of_owners_lose_nothing_and_are_measured(tmp_path: Path) -> None:
    out = StringIO()
    report = await soak(settings(tmp_path, kills=2), out)
    assert report.ok, "\n".join(report.lines())
    assert len(report.takeovers_s) == 2
    assert report.lines()[-1].endswith(": ok")
    assert not (tmp_path / "cluster").exists()


def test_a_report_counts_what_was_broken(tmp_path: Path) -> None:
    report = Report(settings(tmp_path))
    for rule in ("lost-write", "poll-order", "phantom", "phantom", "under-replicated"):
        report.violations.append(str(Violation(rule, "t", "p/1", "")))
        report.rules[rule] += 1
    assert not report.ok
    assert "1 lost, 1 reordered, 2 invented, 1 others" in report.lines()
    assert report.lines()[-1].endswith(": FAILED")
