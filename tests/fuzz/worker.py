"""python -m tests.fuzz.worker TARGET SECONDS: one process that searches in one target.

libFuzzer, through atheris, changes inputs and keeps those that reach something new; our code is
instrumented as it is imported.  Findings do not end the search: each is written down once and
counted.  On standard output, a line of JSON every half second; what libFuzzer has to say goes to
standard error.
"""

import atexit
import faulthandler
import json
import signal
import sys
import time
from typing import Any

import atheris

_PACKAGES = ["wire", "bookie", "managed_ledger", "broker", "clients"]
with atheris.instrument_imports(include=_PACKAGES):
    from tests.fuzz import corpus
    from tests.fuzz.bounds import FindingError, Outcome, examine
    from tests.fuzz.target import Target
    from tests.fuzz.targets import TARGETS

MEASURE_EVERY = 200  # Steps and memory of one in so many are measured.
_REPORT_S = 0.5
_INPUT_S_MAX = 60  # Then libFuzzer ends the process and keeps the input.
_RSS_MB_MAX = 2048


class Search:
    """What one input after the other comes to."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._executions = 0
        self._accepted = 0
        self._signatures: dict[str, str] = {}
        self._said = 0.0

    def one(self, data: bytes) -> None:
        self._executions += 1
        measure = self._executions % MEASURE_EVERY == 0
        try:
            outcome = examine(self._target, data, measure=measure)
            self._accepted += outcome is Outcome.ACCEPTED
        except FindingError as finding:
            if finding.signature not in self._signatures:
                file = corpus.keep_crash(self._target, data, finding)
                self._signatures[finding.signature] = str(file.relative_to(corpus.ROOT))
        now = time.monotonic()
        if now - self._said >= _REPORT_S:
            self._said = now
            self.report()

    def report(self) -> None:
        line: dict[str, Any] = {
            "executions": self._executions,
            "accepted": self._accepted,
            "findings": self._signatures,
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    name, seconds = sys.argv[1], int(sys.argv[2])
    faulthandler.register(signal.SIGQUIT)  # for one that hangs where libFuzzer does not see it
    with atheris.instrument_imports(include=_PACKAGES):
        target = TARGETS[name]
    search = Search(target)
    atexit.register(search.report)
    crashes = corpus.CRASHES / name
    crashes.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={target.input_bytes_max}",
        f"-timeout={_INPUT_S_MAX}",
        f"-rss_limit_mb={_RSS_MB_MAX}",
        f"-artifact_prefix={crashes}/",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus.work_directory(target))], search.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
