"""The log lines of hosts in a simulated run, kept to be shown; an error is a bug of the host.

The exception is an alarm about a ledger whose copies cannot be made again for now.  Some parts of
the product log through Python's own `logging`; `listening` takes these over during a run.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO, cast

import structlog
from structlog.typing import EventDict
from structlog.typing import FilteringBoundLogger as Log

from tests.simulation.scheduler import HOST

_ALARMS = "daybook.bookie.replication.rereplicator"  # logs alarms as errors


class HostLogs:
    """The logs of all hosts of one run.  `say` is called with each line and its host's name."""

    def __init__(self, say: Callable[[str, str], None] | None = None) -> None:
        self.say = say
        self.errors: list[str] = []
        self.lines: dict[str, int] = {}  # the number of occurrences of each line
        # By line: called with the host and the facts of each occurrence.
        self.on_line: dict[str, Callable[[str, dict[str, Any]], None]] = {}

    def of(self, host: str) -> "HostLog":
        return HostLog(self, host)


class HostLog:
    def __init__(self, logs: HostLogs, host: str) -> None:
        self._logs = logs
        self._host = host

    def structured(self) -> Log:
        """Return a sink for a host that is given a logger."""
        log: Log = structlog.wrap_logger(
            structlog.PrintLogger(cast("TextIO", None)),
            processors=[self._take],
            wrapper_class=structlog.make_filtering_bound_logger("info"),
        )
        return log

    def warning(self, event: str, **facts: object) -> None:
        self.put("warning", event, facts)

    def _take(self, _logger: object, level: str, event: EventDict) -> NoReturn:
        facts: dict[str, Any] = dict(event)
        self.put(level, str(facts.pop("event")), facts)
        raise structlog.DropEvent

    def put(self, level: str, event: str, facts: dict[str, Any]) -> None:
        logs = self._logs
        logs.lines[event] = logs.lines.get(event, 0) + 1
        if event in logs.on_line:
            logs.on_line[event](self._host, facts)
        if level == "error":
            why = facts.get("exc_info") or facts.get("why") or facts.get("said")
            logs.errors.append(f"{self._host}: {event}: {why!r}")
        if logs.say is not None:
            rest = ", ".join(f"{key} {value}" for key, value in facts.items())
            logs.say(self._host, f"{event}: {rest}" if rest else event)


class _Handler(logging.Handler):
    def __init__(self, logs: HostLogs) -> None:
        super().__init__(logging.WARNING)
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        host = HOST.get().partition("#")[0]
        if not host:
            return  # the record belongs to no host of the cluster
        bug = record.levelno >= logging.ERROR and record.name != _ALARMS
        facts: dict[str, Any] = {"said": record.getMessage()}
        if record.exc_info is not None:
            facts["exc_info"] = record.exc_info[1]
        self._logs.of(host).put("error" if bug else "warning", str(record.msg), facts)


@contextmanager
def listening(logs: HostLogs) -> Generator[None]:
    """Route records of `logging` to the logs of the hosts that make them."""
    handler, root = _Handler(logs), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
