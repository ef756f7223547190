"""The log of a bookie or a broker: lines of key=value on stderr, or nothing.

A host receives its logger from the process that starts it.  The simulator gives it a silent one.
Lines that any client can cause go through a `LogLimiter`: a flood of bad requests becomes a few
lines per minute and a count.
"""

import logging
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NoReturn

import structlog
import trio
from structlog.typing import EventDict
from structlog.typing import FilteringBoundLogger as Log

__all__ = [
    "LIMITER_INTERVAL_S",
    "Log",
    "LogLimiter",
    "forward_to",
    "log_to_stderr",
    "silent_log",
    "std_log",
]

LIMITER_INTERVAL_S = 60.0
_KINDS_MAX = 1_000  # remembered by one limiter; the kind logged longest ago is forgotten first


def log_to_stderr(**facts: str) -> Log:
    """Return a logger whose lines begin with time, level and event, and carry `facts`."""
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
    """Return a logger that drops every line."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[_drop],
        wrapper_class=structlog.make_filtering_bound_logger("critical"),
    )
    return log


def std_log(logger: logging.Logger) -> Log:
    """Return a logger that writes its lines to one of the standard library, for libraries."""
    log: Log = structlog.wrap_logger(
        logger,
        processors=[structlog.processors.LogfmtRenderer(key_order=["event"])],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
    return log


class _Forwarder(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"exc_info": record.exc_info} if record.exc_info else {}
        try:
            self._log.log(record.levelno, record.getMessage(), logger=record.name, **facts)
        except Exception:
            self.handleError(record)


def forward_to(log: Log) -> None:
    """Give the warnings of libraries, which use the standard library's logging, this log's form."""
    logging.getLogger().addHandler(_Forwarder(log))


def _drop(_logger: object, _name: str, _event: EventDict) -> NoReturn:
    raise structlog.DropEvent


@dataclass(slots=True)
class _Window:
    """The lines of one kind in one interval, which ends at `until_s`."""

    until_s: float
    lines: int = 0
    dropped: int = 0


class LogLimiter:
    """Writes at most `lines_max` lines of a kind in each interval, and counts the others.

    The next line of that kind says in `not_logged` how many were dropped before it.
    """

    def __init__(self, log: Log, *, lines_max: int = 1) -> None:
        assert lines_max > 0
        self._log = log
        self._lines_max = lines_max
        self._windows: dict[Hashable, _Window] = {}  # in the order in which they began

    def __len__(self) -> int:
        """Return how many kinds are remembered."""
        return len(self._windows)

    def info(self, event: str, kind: Hashable = None, **facts: object) -> None:
        """Log a line of this kind, or count it."""
        if self._admit(kind, facts):
            self._log.info(event, **facts)

    def warning(self, event: str, kind: Hashable = None, **facts: object) -> None:
        """Log a warning of this kind, or count it."""
        if self._admit(kind, facts):
            self._log.warning(event, **facts)

    def error(self, event: str, kind: Hashable = None, **facts: object) -> None:
        """Log an error of this kind, or count it."""
        if self._admit(kind, facts):
            self._log.error(event, **facts)

    def _admit(self, kind: Hashable, facts: dict[str, object]) -> bool:
        """Return True if a line of this kind may be written now; add the count of dropped lines."""
        now_s = trio.current_time()
        window = self._windows.get(kind)
        dropped = 0 if window is None else window.dropped
        if window is None or now_s >= window.until_s:
            self._windows.pop(kind, None)
            if len(self._windows) >= _KINDS_MAX:
                del self._windows[next(iter(self._windows))]
            window = self._windows[kind] = _Window(now_s + LIMITER_INTERVAL_S)
        if window.lines >= self._lines_max:
            window.dropped += 1
            return False
        window.lines += 1
        if dropped:
            facts["not_logged"] = dropped
        return True
