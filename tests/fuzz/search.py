"""Spreads the time of a search over targets, one process after the other, and shows its progress.

Each target has a line; the last one is updated:

    [ 3/30] pulsar.entry        41,233 executions  38% accepted  cov  612  corpus  201  0 findings
"""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from tests.fuzz import corpus
from tests.fuzz.target import Target

_SECONDS_MIN = 2
_GRACE_S = 600  # on a busy machine; a search that hangs ends then
_STATUS = re.compile(r"cov: (\d+) .*corp: (\d+)/")
_LAST_WORDS = 30


@dataclass(slots=True)
class Progress:
    """The progress of the search in one target."""

    target: Target
    executions: int = 0
    accepted: int = 0
    coverage: int = 0
    inputs: int = 0
    findings: dict[str, str] = field(default_factory=dict[str, str])  # signature: file
    died: str = ""  # the last output of a process that ended early

    def line(self, number: int, count: int) -> str:
        share = 100 * self.accepted // max(1, self.executions)
        found = len(self.findings) + bool(self.died)
        return (
            f"[{number:2}/{count}] {self.target.name:18} {self.executions:10,} executions"
            f" {share:3}% accepted  cov {self.coverage:5}  corpus {self.inputs:4}"
            f"  {found} {'finding' if found == 1 else 'findings'}"
        )


def search(targets: Sequence[Target], minutes: float) -> list[Progress]:
    """Search in each target; findings are printed and written to `crashes/`."""
    shares = sum(target.weight for target in targets)
    results: list[Progress] = []
    for number, target in enumerate(targets, 1):
        seconds = max(_SECONDS_MIN, round(minutes * 60 * target.weight / shares))
        progress = Progress(target)
        _run(progress, seconds, lambda p=progress, n=number: _show(p.line(n, len(targets))))
        _show(progress.line(number, len(targets)), last=True)
        for signature, file in progress.findings.items():
            print(
                f"        {signature}\n        {corpus.repeat_command(target, corpus.ROOT / file)}"
            )
        if progress.died:
            print(progress.died)
        results.append(progress)
    return results


def _show(line: str, *, last: bool = False) -> None:
    if sys.stdout.isatty():
        print(f"\r{line}", end="\n" if last else "", flush=True)
    elif last:
        print(line, flush=True)


def _run(progress: Progress, seconds: int, changed: Any) -> None:
    command = [sys.executable, "-m", "tests.fuzz.worker", progress.target.name, str(seconds)]
    process = subprocess.Popen(
        command, cwd=corpus.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    words: list[str] = []
    listener = threading.Thread(target=_listen, args=(process.stderr, progress, words))
    listener.start()
    late_s = seconds + _GRACE_S
    timers = [
        # The process prints where it is.
        threading.Timer(late_s, process.send_signal, [signal.SIGQUIT]),
        threading.Timer(late_s + 5, process.kill),
    ]
    for timer in timers:
        timer.start()
    try:
        for line in process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                progress.executions = said["executions"]
                progress.accepted = said["accepted"]
                progress.findings = said["findings"]
                progress.coverage = said.get("coverage", progress.coverage)
                progress.inputs = said.get("inputs", progress.inputs)
                changed()
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    finally:
        for timer in timers:
            timer.cancel()
        listener.join()
    if code != 0:
        progress.died = f"the search ended with {code}:\n" + "".join(words[-_LAST_WORDS:])


def _listen(stream: IO[str], progress: Progress, words: list[str]) -> None:
    for line in stream:
        words.append(line)
        del words[:-_LAST_WORDS]
        if (match := _STATUS.search(line)) is not None:
            progress.coverage, progress.inputs = int(match[1]), int(match[2])
