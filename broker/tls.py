"""The TLS of one broker: that of its ports, and that of its connections to other brokers.

Both use the same files.  A broker shows its own certificate to others, too, in case they demand
one.  It trusts the authorities in `tls_trusted`, or those of the machine if there is none.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from daybook.broker.config import BrokerConfig
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log
from daybook.wire.tls import TlsClient, TlsServer
from daybook.wire.tls_files import ReloadedContext, TlsFiles, client_context, server_context


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """`server` is None for a broker that has no port with TLS."""

    server: TlsServer | None
    client: TlsClient

    async def run(self) -> None:
        """Warn of certificates that expire, until cancelled."""
        if self.server is None:
            await trio.sleep_forever()
        else:
            await self.server.contexts.run()


def open_tls(config: BrokerConfig, clock: WallClock, log: Log) -> BrokerTls | None:
    """Return what the settings say; None without any file.  Raise TlsFilesError."""
    files = TlsFiles(
        _path(config.tls_certificate), _path(config.tls_key), _path(config.tls_trusted)
    )
    if not files.paths:
        return None
    server = None
    if config.tls_port >= 0 or config.https_port >= 0:
        build = partial(server_context, client_certificates=config.tls_client_certificates)
        server = TlsServer(ReloadedContext(files, build, clock=clock, log=log))
    return BrokerTls(
        server, TlsClient(ReloadedContext(files, client_context, clock=clock, log=log))
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None
