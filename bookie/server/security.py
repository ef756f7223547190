"""The security of one bookie, made of its settings: its port, its HTTP, and its own connections.

All of them use the same files of TLS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import trio

from daybook.bookie.ledger.security import BookieSecurity, open_bookie_security
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.entrance import Door
from daybook.bookie.server.reception import Reception
from daybook.bookie.server.users import Users
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log
from daybook.wire.tls import TlsServer
from daybook.wire.tls_files import ReloadedContext, TlsFiles, server_context


@dataclass(frozen=True, slots=True)
class SecurityOfBookie:
    server: TlsServer | None  # for its own ports, if they have TLS
    users: Users | None
    client: BookieSecurity | None  # for its connections to other bookies

    def reception(
        self, config: BookieConfig, *, rng: Random, log: Log, came_without: Callable[[str], None]
    ) -> Reception | None:
        """Return the reception of the port; None if everybody may enter, without TLS."""
        if config.tls == "off" and config.authentication == "off":
            return None
        door = self.door(config)
        return Reception(door, rng=rng, log=log, tls=self.server, came_without=came_without)

    def door(self, config: BookieConfig) -> Door:
        """Return the rules of the bookie."""
        return Door(
            mode=config.authentication,
            tls=config.tls != "off",
            require_tls=config.tls == "required",
            secret=None if self.users is None else self.users.secret,
            allowed_certificates=config.allowed_certificates,
            allowed_roles=config.allowed_certificate_roles,
        )

    async def run(self) -> None:
        """Warn of a certificate that expires, until cancelled."""
        if self.server is None:
            await trio.sleep_forever()
        else:
            await self.server.contexts.run()


def open_security(
    config: BookieConfig, *, clock: WallClock, log: Log, rng: Random
) -> SecurityOfBookie:
    """Return what the settings say.  Raise ConfigError, or TlsFilesError for a useless file."""
    server = None
    if config.tls != "off" or config.https_port >= 0:
        files = TlsFiles(
            Path(config.tls_certificate),
            Path(config.tls_key),
            Path(config.tls_trusted) if config.tls_trusted else None,
        )
        build = partial(server_context, client_certificates=config.tls_client_certificates)
        server = TlsServer(ReloadedContext(files, build, clock=clock, log=log))
    users = Users(Path(config.users_file), log) if config.users_file else None
    client = open_bookie_security(config.bookie_access, clock=clock, log=log, rng=rng)
    return SecurityOfBookie(server, users, client)
