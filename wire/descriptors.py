"""Shares of a process's file descriptors for its ports, and a log of shortages.

A process that has no descriptor left can neither reconnect to the metadata store nor open a file,
so clients must never get the last ones.  Each port has a bound on its connections, and the bounds
leave a reserve for everything else:

    limit = service port + HTTP port + reserve

The limit is the hard limit of the process, because `process.prepare` raises the soft one to it.
"""

import resource
from collections.abc import Callable
from dataclasses import dataclass

import trio

from daybook.wire.settings import ConfigError

LIMIT_MIN = 96
_RESERVE_SHARE = 2  # at most half of a small limit is reserved
_HTTP_SHARE = 4  # at most a quarter of the rest goes to HTTP
_UNLIMITED = 1 << 30
_LINE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The most connections that each port may have."""

    limit: int
    service: int
    http: int


def open_files_limit() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def share_out(limit: int, *, reserve: int, service_max: int, http_max: int) -> Descriptors:
    """Return the bounds of both ports under a limit; raise ConfigError if the limit is too low.

    `reserve` descriptors are kept for everything else, or half of the limit if that is less.
    """
    if limit < LIMIT_MIN:
        raise ConfigError(
            f"this process may open {limit} files, and cannot serve with fewer than {LIMIT_MIN}:"
            " raise the limit (ulimit -n, or LimitNOFILE of the service)"
        )
    left = limit - min(reserve, limit // _RESERVE_SHARE)
    http = min(http_max, left // _HTTP_SHARE)
    return Descriptors(limit, service=min(service_max, left - http), http=http)


def bounds_of_ports(
    *, reserve: int, service_max: int, http_max: int, warn: Callable[..., object]
) -> Descriptors:
    """Share out the limit of this process; call `warn(event, **facts)` if it is below the settings.

    Raise ConfigError if the limit is too low to serve anybody.
    """
    shares = share_out(
        open_files_limit(), reserve=reserve, service_max=service_max, http_max=http_max
    )
    if shares.service < service_max:
        warn(
            "the process takes fewer connections than connections_max, because its limit of open"
            " files is low: raise it (ulimit -n, or LimitNOFILE of the service)",
            limit=shares.limit,
            connections=shares.service,
            wanted=service_max,
        )
    return shares


class ShortageLog:
    """Counts connections that could not be accepted, and logs them once a second at most."""

    def __init__(self, warn: Callable[..., object]) -> None:
        """`warn(event, **facts)` writes one log line."""
        self.failures = 0
        self._warn = warn
        self._said_at = -_LINE_EVERY_S
        self._unsaid = 0

    def failed(self, port: int, error: OSError) -> None:
        """Count a failed accept on `port`, which the caller repeats."""
        self.failures += 1
        self._unsaid += 1
        now = trio.current_time()
        if now - self._said_at >= _LINE_EVERY_S:
            self._warn(
                "new connections have to wait, because the process cannot accept them now",
                port=port,
                why=error.strerror or str(error),
                failures=self._unsaid,
            )
            self._said_at, self._unsaid = now, 0
