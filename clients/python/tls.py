"""TLS of a client: who is trusted, and the certificate by which the client shows who it is.

    connect("pulsar+ssl://broker:6651", tls=TlsOptions(trusted="ca.pem"))

A client whose URL says TLS reaches every broker with TLS, and no answer of a broker changes that.
Errors about a file name its field in brackets, such as (trusted=).
"""

import logging
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from daybook.clients.python.errors import TlsError
from daybook.wire.transport import Listener, Network, Stream

if TYPE_CHECKING:
    from daybook.wire.tls_files import ReloadedContext

_log = logging.getLogger("daybook.client")
TLS_SCHEMES = ("pulsar+ssl", "https")
AnyPath: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The TLS of a client.  The files are in PEM form, and are read again when they change.

    `trusted` holds the authorities that may sign the certificates of brokers; without it, those of
    the machine count.  `certificate` (with its chain) and `key` are for brokers that ask who the
    client is.  Without `verify_host`, a certificate may be made out to another host; its signature
    is checked all the same.
    """

    trusted: AnyPath | None = None
    certificate: AnyPath | None = None
    key: AnyPath | None = None
    verify_host: bool = True


def is_encrypted(url: str) -> bool:
    """Return True if a service URL or an admin URL says TLS."""
    return url.partition("://")[0] in TLS_SCHEMES


def network_for(url: str, tls: TlsOptions | None, network: Network) -> Network:
    """Return the network for a URL: with TLS if the URL says so.

    Raise ValueError if `tls` is given for a URL without TLS, and TlsError if a file is of no use.
    """
    if not is_encrypted(url):
        if tls is not None:
            raise ValueError(
                f"tls is given, and the URL {url!r} is without TLS: begin it with pulsar+ssl:// (an"
                " admin URL with https://), or leave tls out"
            )
        return network
    return _TlsNetwork(network, tls or TlsOptions())


class _TlsNetwork:
    """A network whose connections all have TLS."""

    def __init__(self, network: Network, options: TlsOptions) -> None:
        from daybook.wire.tls import TlsClient  # slow to import, and needed for TLS alone

        self._network = network
        self._tls = TlsClient(_contexts(options))

    async def connect(self, host: str, port: int) -> Stream:
        return await self._tls.connect(await self._network.connect(host, port), host)

    async def listen(self, host: str, port: int) -> Listener:
        return await self._network.listen(host, port)


def check_files(options: TlsOptions) -> None:
    """Raise TlsError if a file cannot be read, or is not what it ought to be."""
    _contexts(options)


def _contexts(options: TlsOptions) -> "ReloadedContext":
    # Slow to import, and needed for TLS alone.
    from functools import partial

    from daybook.wire.clock import SystemClock
    from daybook.wire.logging import Log
    from daybook.wire.tls_files import ReloadedContext, TlsFiles, TlsFilesError, client_context

    files = TlsFiles(_path(options.certificate), _path(options.key), _path(options.trusted))
    try:
        return ReloadedContext(
            files,
            partial(client_context, verify_host=options.verify_host),
            clock=SystemClock(),
            log=cast("Log", _ClientLog()),
        )
    except TlsFilesError as error:
        raise TlsError(f"{error} ({_fields_in(str(error), options)})") from None


def _fields_in(error: str, options: TlsOptions) -> str:
    """Return the fields whose files an error names, as a caller writes them."""
    fields = {"trusted": options.trusted, "certificate": options.certificate, "key": options.key}
    named = [name for name, path in fields.items() if path is not None and str(path) in error]
    return ", ".join(f"{name}=" for name in named or ("certificate", "key"))


def _path(path: AnyPath | None) -> Path | None:
    return None if path is None else Path(path)


class _ClientLog:
    """The part of a structured log that is used here, as lines of the client's logger."""

    def info(self, event: str, **facts: object) -> None:
        _log.info("%s: %s", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        _log.warning("%s: %s", event, facts)
