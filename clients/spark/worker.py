"""The clients of a worker process: one for each address, used by one task after the other.

Connecting costs more than many a task reads.  So the clients stay open until the process ends.
Spark forks its workers from a daemon, and a client does not survive a fork: each process makes its
own, and forgets those of its parent without touching them.

A task whose client failed discards it, so that the next task connects again.
"""

# pyright: basic
# (the libraries underneath have no types)

import atexit
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic  # noqa: TID251  the threads of Spark have no clock of trio's
from typing import Any, TypeAlias

from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.context import LedgerLimits
from daybook.bookie.ledger.security import BookieAccess
from daybook.clients import ledgers
from daybook.clients.ledgers.zookeeper import ZooKeeperOptions
from daybook.clients.python import blocking
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.credential_options import ANONYMOUS, QueryCredentials
from daybook.clients.spark.option_names import in_options

_log = logging.getLogger(__name__)
_READ_BYTES = 5 << 19
# Few megabytes are under way, so that writers go on.  Large parts, each in one answer of a bookie,
# take little processor time for an entry, in the worker and in the bookie.
_READS = ledgers.Limits(
    read_bytes=_READ_BYTES,
    read_ahead=3,
    reads_max=4,
    ledger=LedgerLimits(
        bookies=BookieLimits(batch_bytes_max=_READ_BYTES, batch_entry_bytes_max=_READ_BYTES // 4)
    ),
)
_CONNECT_S = 5.0
_AWAY_S = 60.0  # ledgers that were out of reach are not tried again for so long

_Key: TypeAlias = tuple[object, ...]


class _Kept:
    """The open clients of one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.clients: dict[_Key, Any] = {}
        self.away: dict[str, float] = {}  # addresses of ledgers, and until when they are not tried
        self.warned = False


_kept = _Kept()


def _here() -> _Kept:
    """Return the clients of this process: a process that was forked has none yet."""
    global _kept
    if _kept.process != os.getpid():
        _kept = _Kept()
    return _kept


def client_of(
    service_url: str,
    patience_s: float,
    tls: TlsOptions | None = None,
    credentials: QueryCredentials = ANONYMOUS,
) -> blocking.Client:
    """Return the client of this process that waits so long for these brokers.

    Queries with other credentials have other clients.
    """
    limits = ClientLimits(operation_timeout_s=patience_s)
    client: blocking.Client = _get(
        ("brokers", service_url, patience_s, tls, credentials),
        lambda: blocking.connect(
            service_url,
            timeout_s=None,
            limits=limits,
            tls=tls,
            token=credentials.token,
            basic=credentials.basic,
        ),
    )
    return client


def ledgers_of(
    url: str,
    zookeeper: ZooKeeperOptions | None = None,
    bookies: BookieAccess | None = None,
) -> "ledgers.blocking.Client":
    """Return the client of this process for these ledgers.

    Raise LedgerError, or ValueError if a file that `bookies` names cannot be used.
    """
    client: ledgers.blocking.Client = _get(
        (f"ledgers, {zookeeper}, {bookies}", url),
        lambda: ledgers.blocking.connect(
            url,
            limits=_READS,
            connect_timeout_s=_CONNECT_S,
            zookeeper=zookeeper,
            bookie_access=bookies,
        ),
    )
    return client


def discard(client: object) -> None:
    """Close a client that failed, so that the next task connects again."""
    kept = _here()
    with kept.lock:
        for key in [key for key, each in kept.clients.items() if each is client]:
            del kept.clients[key]
    _close(client)


def are_away(url: str) -> bool:
    """Return True if these ledgers were out of reach a short time ago."""
    return monotonic() < _here().away.get(url, 0.0)


def note_away(url: str, why: object) -> None:
    """Note that these ledgers are out of reach; the first time, warn of it."""
    kept = _here()
    kept.away[url] = monotonic() + _AWAY_S
    if not kept.warned:
        kept.warned = True
        _log.warning(
            "the ledgers at %s cannot be read here, so the brokers are asked for all messages (%s);"
            " make ZooKeeper and the bookies reachable for Spark's workers (zookeeper.tls with"
            " tls.trusted, if ZooKeeper has TLS; zookeeper.user and zookeeper.password.file, if it"
            " asks who connects; bookie.tls, bookie.user and bookie.password.file, if bookies do),"
            " or set read=brokers",
            url,
            in_options(str(why)),
        )


def _get(key: _Key, connect: Callable[[], Any]) -> Any:  # noqa: ANN401  one of two clients
    kept = _here()
    with kept.lock:
        client = kept.clients.get(key)
        if client is None:
            client = kept.clients[key] = connect()
        return client


def _close(client: Any) -> None:  # noqa: ANN401
    with suppress(Exception):  # It failed before: a second error says nothing new.
        client.close()


def _close_all() -> None:
    kept = _here()
    with kept.lock:
        clients, kept.clients = list(kept.clients.values()), {}
    for client in clients:
        _close(client)


atexit.register(_close_all)
