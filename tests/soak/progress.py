"""The progress of a soak: one line that changes on a terminal, one line now and then in a pipe."""

import sys
from typing import TextIO

import trio

from tests.soak.round import Round

_TERMINAL_S, _PIPE_S = 0.5, 15.0


class Progress:
    def __init__(self, total_s: float, out: TextIO = sys.stdout) -> None:
        self._total_s = total_s  # 0 if it is unknown
        self._out = out
        self._live = out.isatty()
        self._started_s = trio.current_time()
        self._round: Round | None = None

    def watch(self, one: Round) -> None:
        self._round = one

    def say(self, line: str) -> None:
        """Print a line that stays."""
        print(f"\r\x1b[K{line}" if self._live else line, file=self._out, flush=True)

    async def run(self) -> None:
        while True:
            await trio.sleep(_TERMINAL_S if self._live else _PIPE_S)
            if self._round is not None:
                line = self._line(self._round)
                if self._live:
                    print(f"\r\x1b[K{line}", end="", file=self._out, flush=True)
                else:
                    print(line, file=self._out, flush=True)

    def _line(self, one: Round) -> str:
        passed_s = trio.current_time() - self._started_s
        total = f"/{_minutes(self._total_s)}" if self._total_s else ""
        return f"{_minutes(passed_s)}{total} {one.describe()}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
