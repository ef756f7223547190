"""The check after all rounds: `daybook ledgers check` finds every copy of every entry.

Faults cost copies: disks rot, and an ensemble change leaves copies out since it needs only an ack
quorum.  The soak marks these fragments once, as an operator would; auto-recovery does the rest.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import trio

from tests.harness.processes import DAYBOOK

_REST_S = 5.0  # the pause between two checks
_SHOWN_MAX = 5
_FOUND = (0, 3, 4, 5)  # the exit codes of a complete check


@dataclass(frozen=True, slots=True)
class Wholeness:
    """The fragments that lacked copies at first, and the time that the repair took."""

    fragments: int
    lacking: int
    seconds: float
    problem: str = ""  # the copies that are still missing

    def __str__(self) -> str:
        mended = f"{self.lacking} lacked some, and were whole after {self.seconds:.0f} s"
        what = self.problem or (mended if self.lacking else "all there at once")
        return f"{self.fragments} fragments read on every bookie: {what}"


async def wait_whole(zookeeper: str, patience_s: float) -> Wholeness:
    """Read every copy again and again, until all are found or the time is over."""
    started_s = trio.current_time()
    rows = await _check(zookeeper, "--mend")
    lacking = len(_broken(rows))
    while _broken(rows) and trio.current_time() < started_s + patience_s:
        await trio.sleep(_REST_S)
        rows = await _check(zookeeper)
    broken = _broken(rows)
    problem = ""
    if broken:
        shown = "; ".join(
            f"ledger {row['ledger']}: {row['state']}, {row['what']}" for row in broken[:_SHOWN_MAX]
        )
        problem = f"{len(broken)} fragments are not whole: {shown}"
    return Wholeness(len(rows), lacking, trio.current_time() - started_s, problem)


def _broken(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["state"] != "whole"]


async def _check(zookeeper: str, *options: str) -> list[dict[str, Any]]:
    """Check all ledgers, and read each copy."""
    command = (
        *DAYBOOK,
        *("ledgers", "check", "--read", *options),
        *("--zookeeper", zookeeper, "--output", "json"),
    )
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode not in _FOUND:
        raise RuntimeError(f"ledgers check: {done.stderr.decode(errors='replace')[-500:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows
