"""What hosts log in a simulated run: kept to be shown; an error is a bug of the host."""

from collections.abc import Callable
from typing import Any, NoReturn, TextIO, cast

import structlog
from structlog.typing import EventDict
from structlog.typing import FilteringBoundLogger as Log


class HostLogs:
    """Of all hosts of one run.  `say` hears of each line, with the name of its host."""

    def __init__(self, say: Callable[[str, str], None] | None = None) -> None:
        self.say = say
        self.errors: list[str] = []
        self.lines: dict[str, int] = {}  # how often each was said

    def of(self, host: str) -> "HostLog":
        return HostLog(self, host)


class HostLog:
    def __init__(self, logs: HostLogs, host: str) -> None:
        self._logs = logs
        self._host = host

    def structured(self) -> Log:
        """For a host that is given a logger."""
        log: Log = structlog.wrap_logger(
            structlog.PrintLogger(cast("TextIO", None)),
            processors=[self._take],
            wrapper_class=structlog.make_filtering_bound_logger("info"),
        )
        return log

    def warning(self, event: str, **facts: object) -> None:
        self._put("warning", event, facts)

    def _take(self, _logger: object, level: str, event: EventDict) -> NoReturn:
        facts: dict[str, Any] = dict(event)
        self._put(level, str(facts.pop("event")), facts)
        raise structlog.DropEvent

    def _put(self, level: str, event: str, facts: dict[str, Any]) -> None:
        logs = self._logs
        logs.lines[event] = logs.lines.get(event, 0) + 1
        if level == "error":
            why = facts.get("exc_info") or facts.get("why")
            logs.errors.append(f"{self._host}: {event}: {why!r}")
        if logs.say is not None:
            rest = ", ".join(f"{key} {value}" for key, value in facts.items())
            logs.say(self._host, f"{event}: {rest}" if rest else event)
