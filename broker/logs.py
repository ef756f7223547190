"""What a broker says while it runs: lines of key=value on stderr, or nothing.

A host is given its logger; the simulator gives none.
"""

import sys
from typing import NoReturn

import structlog
from structlog.typing import EventDict
from structlog.typing import FilteringBoundLogger as Log

__all__ = ["Log", "log_to_stderr", "silent_log"]


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
