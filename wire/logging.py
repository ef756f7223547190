"""The log of a bookie or a broker: lines of key=value on stderr, or nothing.

A host receives its logger from the process that starts it.  The simulator gives it a silent one.
Lines that any client can cause go through a `LogLimiter`: a flood of bad requests becomes a few
lines per minute and a count.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO, TypeAlias

import trio

LIMITER_INTERVAL_S = 60.0
_KINDS_MAX = 1_000  # remembered by one limiter; the kind logged longest ago is forgotten first

Write: TypeAlias = Callable[[str, str, dict[str, object]], None]
"""Takes the level, the event and the facts of a line.  The facts are its own."""


class Log:
    """Passes lines to a function, each with the facts that the log carries.

    `exc_info` is the fact with an exception; a log that writes shows its traceback.
    """

    __slots__ = ("_facts", "_write")

    def __init__(self, write: Write, facts: Mapping[str, object] | None = None) -> None:
        self._write = write
        self._facts = dict(facts or {})

    def bind(self, **facts: object) -> "Log":
        """Return a log whose lines carry these facts, too."""
        return Log(self._write, {**self._facts, **facts})

    def info(self, event: str, /, **facts: object) -> None:
        self._write("info", event, {**self._facts, **facts})

    def warning(self, event: str, /, **facts: object) -> None:
        self._write("warning", event, {**self._facts, **facts})

    def error(self, event: str, /, **facts: object) -> None:
        self._write("error", event, {**self._facts, **facts})


def log_to_stderr(**facts: str) -> Log:
    """Return a logger whose lines begin with time, level and event, and carry `facts`."""
    return Log(_to_file(sys.stderr), facts)


def silent_log() -> Log:
    """Return a logger that drops every line."""
    return Log(_drop)


def std_log(logger: logging.Logger) -> Log:
    """Return a logger that writes its lines to one of the standard library, for libraries."""

    def write(level: str, event: str, facts: dict[str, object]) -> None:
        error = facts.pop("exc_info", None)
        shown = error if isinstance(error, BaseException) else None
        logger.log(_LEVELS[level], logfmt({"event": event, **facts}), exc_info=shown)

    return Log(write)


_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _drop(_level: str, _event: str, _facts: dict[str, object]) -> None:
    """Do nothing."""


def _to_file(file: TextIO) -> Write:
    def write(level: str, event: str, facts: dict[str, object]) -> None:
        error = facts.pop("exc_info", None)
        if isinstance(error, BaseException):
            facts["exception"] = "".join(traceback.format_exception(error)).rstrip("\n")
        time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = logfmt({"timestamp": time, "level": level, "event": event, **facts})
        file.write(line + "\n")
        file.flush()

    return write


def logfmt(facts: Mapping[str, object]) -> str:
    """Return facts as a line of key=value; a fact that is True is its key alone.

    Values with spaces, quotes or equals signs are quoted.  Keys have no spaces.
    """
    return " ".join(_pair(key, value) for key, value in facts.items())


def _pair(key: str, value: object) -> str:
    if value is True:
        return key
    if value is None or value is False:
        return f"{key}=" if value is None else f"{key}=false"
    text = str(value)
    quoted = any(sign in text for sign in ' ="')
    if quoted:
        text = text.replace("\\", "\\\\")
    text = text.replace('"', '\\"').replace("\n", "\\n")
    return f'{key}="{text}"' if quoted else f"{key}={text}"


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
