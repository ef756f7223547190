"""python -m tests.fuzz.worker TARGET SECONDS: one process that searches in one target.

Most targets are searched by libFuzzer, through atheris: it changes inputs and keeps those that
reach something new, as reported by our code, which is instrumented on import.  If one input runs
whole hosts, random search finds new paths as well, and instruments cost too much (`wander`).

Findings do not end the search: each is written down once and counted.  Standard output gets a line
of JSON every half second; libFuzzer's messages go to standard error.
"""

import atexit
import faulthandler
import json
import random
import signal
import sys
import time
from typing import Any

from tests.fuzz.targets import WHOLE_HOSTS

MEASURE_EVERY = 200  # One input in so many is measured: steps and memory.
_REPORT_S = 0.5
_INPUT_S_MAX = 600  # Then libFuzzer ends the process and keeps the input.
_RSS_MB_MAX = 2048
_PACKAGES = ["wire", "bookie", "managed_ledger", "broker", "clients"]


class Search:
    """The sums over all inputs of a search."""

    def __init__(self, name: str) -> None:
        from tests.fuzz import bounds, corpus, targets

        self.target = targets.TARGETS[name]
        self.facts: dict[str, Any] = {}  # other values to report
        self._bounds, self._corpus = bounds, corpus
        self._executions = 0
        self._accepted = 0
        self._signatures: dict[str, str] = {}
        self._said = 0.0

    def one(self, data: bytes) -> None:
        self._executions += 1
        measure = self._executions % MEASURE_EVERY == 0
        try:
            outcome = self._bounds.examine(self.target, data, measure=measure)
            self._accepted += outcome is self._bounds.Outcome.ACCEPTED
        except self._bounds.FindingError as finding:
            if finding.signature not in self._signatures:
                file = self._corpus.keep_crash(self.target, data, finding)
                self._signatures[finding.signature] = str(file.relative_to(self._corpus.ROOT))
        now = time.monotonic()
        if now - self._said >= _REPORT_S:
            self._said = now
            self.report()

    def report(self) -> None:
        line: dict[str, Any] = {
            "executions": self._executions,
            "accepted": self._accepted,
            "findings": self._signatures,
            **self.facts,
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    name, seconds = sys.argv[1], int(sys.argv[2])
    faulthandler.register(signal.SIGQUIT)  # shows where a hanging process is
    if name in WHOLE_HOSTS:
        _search_by_chance(name, seconds)
    else:
        _search_by_coverage(name, seconds)


def _search_by_chance(name: str, seconds: int) -> None:
    from tests.fuzz.wander import wander

    search = Search(name)
    wander(search.target, seconds, search.one, random.Random(), search.facts)
    search.report()


def _search_by_coverage(name: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        search = Search(name)
    from tests.fuzz import corpus

    atexit.register(search.report)
    crashes = corpus.CRASHES / name
    crashes.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={search.target.input_bytes_max}",
        f"-timeout={_INPUT_S_MAX}",
        f"-rss_limit_mb={_RSS_MB_MAX}",
        f"-artifact_prefix={crashes}/",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus.work_directory(search.target))], search.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
