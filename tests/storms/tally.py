"""The number of schedules, and of failures, on each commit: `tally.jsonl`.

The file has a line for each commit and kind.  The suffix `-dirty` of a commit stands for changes
on top of it that were not committed yet.
"""

import json
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.storms.run import Report

TALLY = Path(__file__).with_name("tally.jsonl")


@dataclass(frozen=True, slots=True)
class Line:
    commit: str
    kind: str
    schedules: int
    failures: int


def read_tally(path: Path = TALLY) -> list[Line]:
    text = path.read_text() if path.exists() else ""
    return [Line(**json.loads(line)) for line in text.splitlines()]


def add_to_tally(report: Report, commit: str, path: Path = TALLY) -> list[Line]:
    """Add a report to the lines of this commit; return all lines."""
    lines = {(line.commit, line.kind): line for line in read_tally(path)}
    for kind, schedules in sorted(report.schedules.items()):
        failures = sum(failure.kind == kind for failure in report.failures)
        known = lines.get((commit, kind), Line(commit, kind, 0, 0))
        lines[commit, kind] = replace(
            known, schedules=known.schedules + schedules, failures=known.failures + failures
        )
    path.write_text("".join(f"{json.dumps(asdict(line))}\n" for line in lines.values()))
    return list(lines.values())


def present_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, cwd=TALLY.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()
