"""A short soak of ledgers does what a long one does; one that finds something says so."""

from io import StringIO
from pathlib import Path
from random import SystemRandom

import pytest

from tests.history.events import Event, Stamped
from tests.history.ledger_events import Append, Confirmed, LedgerEnd
from tests.history.record import Violation
from tests.history.recorder import FileSink
from tests.soak.ledgers.soak import Report, Settings, soak
from tests.soak.ledgers.tally import Tally

_SEED_MAX = 1_000_000


@pytest.mark.real
@pytest.mark.xdist_group("soak")
async def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    seed = SystemRandom().randrange(_SEED_MAX)
    report = await soak(Settings(seed, tmp_path, minutes=0.08, bookies=4), StringIO())
    assert report.ok, "\n".join(report.lines())
    assert report.counts["entries confirmed"] > 10
    assert report.counts["entries read"] >= report.counts["entries confirmed"]
    assert report.lines()[-1].endswith(": ok")


def test_a_report_counts_what_was_broken(tmp_path: Path) -> None:
    report = Report(Settings(7, tmp_path, 1.0))
    for rule in ("lost-entry", "false-no", "entry-changed", "end-changed", "confirm-order"):
        report.violations.append(str(Violation(rule, "", "ledger 1", "")))
        report.rules[rule] += 1
    assert not report.ok
    assert "2 lost, 1 with other bytes, 1 other ends, 1 others" in report.lines()
    assert report.lines()[-1] == "seed 7: FAILED"


def test_a_tally_counts_what_files_say_while_they_grow(tmp_path: Path) -> None:
    tally, path = Tally(tmp_path), tmp_path / "writer-1.0.1.jsonl"
    events: list[Event] = [
        Append(1, "w", 0, "d", 3),
        Append(1, "w", 1, "d", 3),
        Confirmed(1, "w", 1),
        LedgerEnd(1, "w", 1, 6, "close"),
    ]
    with FileSink(path) as sink:
        for at_ns, event in enumerate(events):
            sink.put(Stamped(at_ns, "writer-1.0.1", event))
            if at_ns == 1:
                tally.look()
                assert tally.counts["append"] == 2
    with path.open("ab") as file:
        file.write(b'{"at_ns":9,"by":"writer-1.0.1","kind":"app')  # killed in the middle of it
    tally.look()
    assert tally.counts["entries confirmed"] == 2
    assert tally.counts["ends by close"] == 1
