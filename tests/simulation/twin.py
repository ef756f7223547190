"""Another process, with another hash seed, that repeats runs.

    with Twin() as twin:
        twin.line(20)          the result line of seed 20; "" if the process has died

The process is started on first use, and makes one run after the other: starting costs as much as
several runs.
"""

import os
import subprocess
import sys
from types import TracebackType

_HASH_SEED = "4711"


class Twin:
    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Twin":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.communicate()  # closing its input ends the process

    def line(self, seed: int) -> str:
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(seed, file=process.stdin, flush=True)
        except BrokenPipeError:
            return ""
        return process.stdout.readline().strip()


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation", "--seeds", "-"],
        env={**os.environ, "PYTHONHASHSEED": _HASH_SEED},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
