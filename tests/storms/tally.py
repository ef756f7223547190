"""How many schedules ran on which commit, and how many of them broke a rule: `tally.json`."""

import json
import subprocess
from pathlib import Path

from tests.storms.run import Report

TALLY = Path(__file__).with_name("tally.json")


def add_to_tally(report: Report) -> dict[str, int]:
    """Add a report to what is known of this commit; the totals of all commits."""
    tally = json.loads(TALLY.read_text()) if TALLY.exists() else {}
    row = tally.setdefault(_commit(), {"schedules": {}, "violations": 0})
    for kind, count in sorted(report.schedules.items()):
        row["schedules"][kind] = row["schedules"].get(kind, 0) + count
    row["violations"] += len(report.failures)
    TALLY.write_text(json.dumps(tally, indent=2) + "\n")
    return {
        "schedules": sum(sum(each["schedules"].values()) for each in tally.values()),
        "violations": sum(each["violations"] for each in tally.values()),
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, cwd=TALLY.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()
