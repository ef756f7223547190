"""Counts of the runs that were made, by commit: one line for each series.

    python -m tests.simulation.tally           the sum, and what the present commit has

A line of the file is a JSON object: what ran (`cluster`), `commit`, whether the working tree was
`changed`, the first and the last seed, how many runs, how many failed, how many seconds they took,
and how many seconds of CPU: other programs on the machine lengthen the former.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

PATH = Path("docs/tally.jsonl")
CLUSTER = "cluster"


class Entry(msgspec.Struct, frozen=True):
    what: str
    commit: str
    changed: bool
    first: int
    last: int
    runs: int
    failures: int
    seconds: float
    cpu_s: float = 0.0  # 0: not measured


def append(path: Path, entry: Entry) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")


def read(path: Path) -> list[Entry]:
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Entry) for line in lines if line.strip()]


def present() -> tuple[str, bool]:
    """Return the checked-out commit, and True if the code was changed; ("", True) without one."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    return commit, not commit or bool(_git("status", "--porcelain", "--", ":!docs"))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def summary(entries: Sequence[Entry], commit: str) -> list[str]:
    """Format for people one line per sum."""
    here = [each for each in entries if each.commit == commit and not each.changed]
    return [_sum("in all", entries), _sum(f"on {commit or 'no commit'}, unchanged", here)]


def _sum(title: str, entries: Sequence[Entry]) -> str:
    runs = sum(each.runs for each in entries)
    failures = sum(each.failures for each in entries)
    rates = _rate(entries, lambda entry: entry.seconds, "a minute")
    rates += _rate(entries, lambda entry: entry.cpu_s, "a minute of CPU")
    return ", ".join([f"{title}: {runs} runs", f"{failures} failed", *rates])


def _rate(entries: Sequence[Entry], seconds: Callable[[Entry], float], of: str) -> list[str]:
    """Return the rate over the series whose duration is known."""
    known = [entry for entry in entries if seconds(entry)]
    total_s = sum(map(seconds, known))
    return [f"{60 * sum(entry.runs for entry in known) / total_s:.0f} {of}"] if known else []


if __name__ == "__main__":
    print("\n".join(summary(read(PATH), present()[0])))
    sys.exit(0)
