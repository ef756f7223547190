"""What a bookie says while it runs: lines of key=value on stderr, or nothing.

A host is given its logger; the simulator gives none.  What a stranger can cause goes through a
`LogGate`: a flood of bad connections is a few lines a minute and a count.
"""

import sys
from typing import NoReturn

import structlog
import trio
from structlog.typing import EventDict
from structlog.typing import FilteringBoundLogger as Log

__all__ = ["Log", "LogGate", "log_to_stderr", "silent_log"]

_WINDOW_S = 60.0
_LINES_MAX = 20  # in a window


def log_to_stderr(**facts: str) -> Log:
    """A logger whose lines begin with time, level and event, and carry `facts`."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
    return log.bind(**facts)


def silent_log() -> Log:
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[_drop],
        wrapper_class=structlog.make_filtering_bound_logger("critical"),
    )
    return log


def _drop(_logger: object, _name: str, _event: EventDict) -> NoReturn:
    raise structlog.DropEvent


class LogGate:
    """Warnings, but not more than a few in each window; the next line says how many were left."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._window_end = 0.0
        self._lines = 0
        self._dropped = 0

    def warning(self, event: str, **facts: object) -> None:
        now = trio.current_time()
        if now >= self._window_end:
            self._window_end = now + _WINDOW_S
            self._lines = 0
        if self._lines >= _LINES_MAX:
            self._dropped += 1
            return
        self._lines += 1
        if self._dropped:
            facts["not_logged"], self._dropped = self._dropped, 0
        self._log.warning(event, **facts)
