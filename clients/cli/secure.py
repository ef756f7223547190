"""The secrets of a secure standalone cluster, in the folder `security` of its data directory.

    authority.pem, authority.key     the authority whose certificates clients trust (10 years)
    server.pem                       the certificate of the brokers, and its private key (90 days)
    token-private.pem, token-public.pem    the keys of tokens
    admin.token                      a token for the role `admin`, which may do everything
    broker.token                     the token by which brokers introduce themselves to each other
    environment.sh                   the variables by which commands find the cluster

The folder appears as a whole, so a start that was interrupted leaves none.  Files that are made
from the keys (`server.pem`, the tokens) are made anew if they are away.  Keys are never made anew:
clients would meet an authority that they do not trust, or tokens that count no more.

`server.pem` holds the certificate and its key, so that one step replaces both.  It is replaced when
two thirds of its life are over, at a start and while the cluster runs; brokers read it again.
"""

import shlex
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.key_files import check_private, make_directory, read_private, replace
from daybook.wire.clock import WallClock

if TYPE_CHECKING:
    from daybook.clients.cli.authority import Authority

FOLDER = "security"
ADMIN_ROLE, BROKER_ROLE = "admin", "broker"
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_LOOK_S = 3600.0
_AUTHORITY_ENDS_SOON = timedelta(days=180)
_KEYS = ("authority.pem", "authority.key", "token-private.pem", "token-public.pem")
_TOKENS = {"admin.token": ADMIN_ROLE, "broker.token": BROKER_ROLE}
_SECRETS = ("authority.key", "token-private.pem", "server.pem", *_TOKENS)
# A secure cluster sets these itself: nothing else may weaken or contradict them.
OWN_SETTINGS = frozenset(
    (
        *("tls_port", "https_port", "tls_certificate", "tls_key", "tls_trusted", "require_tls"),
        *("authentication", "token_secret_key", "token_public_key", "token_role_claim"),
        *("token_audience", "authorization", "super_users", "broker_token_file", "audit_file"),
        "anonymous_role",
    )
)


@dataclass(frozen=True, slots=True)
class Security:
    """The folder, and the names to which the certificate of the brokers is made out."""

    directory: Path
    names: tuple[str, ...]

    @property
    def trusted(self) -> Path:
        """The file with the authority, for clients."""
        return self.directory / "authority.pem"

    @property
    def server(self) -> Path:
        return self.directory / "server.pem"

    @property
    def admin_token(self) -> Path:
        return self.directory / "admin.token"

    @property
    def environment(self) -> Path:
        return self.directory / "environment.sh"

    def broker_settings(self, port: int, http_port: int, audit_file: Path) -> dict[str, Any]:
        """Return the settings of a broker that has these two ports, both with TLS."""
        return {
            "port": -1,
            "http_port": -1,
            "tls_port": port,
            "https_port": http_port,
            "require_tls": True,
            "tls_certificate": str(self.server),
            "tls_key": str(self.server),
            "tls_trusted": str(self.trusted),
            "authentication": ["token"],
            "token_public_key": str(self.directory / "token-public.pem"),
            "authorization": True,
            "super_users": [ADMIN_ROLE, BROKER_ROLE],
            "broker_token_file": str(self.directory / "broker.token"),
            "authenticate_metrics": True,
            "audit_file": str(audit_file),
        }

    def bookie_settings(self) -> dict[str, Any]:
        """Return the settings of a bookie.  It has no TLS and no authentication yet."""
        return {}

    # -- making and renewing

    def prepare(self, clock: WallClock, report: Callable[[str], None]) -> None:
        """Make what is away, and renew the certificate if it is due or lacks a name.

        Raise UserError for keys that are lost or damaged, or that others may read, and for a clock
        at whose time the authority is not valid.
        """
        from daybook.clients.cli.authority import time_of

        is_new = not self.directory.exists()
        if is_new:
            self._make(clock)
        check_private(self.directory)
        away = [name for name in _KEYS if not (self.directory / name).exists()]
        if away:
            raise UserError(
                f"{' and '.join(away)} {'are' if len(away) > 1 else 'is'} away from"
                f" {self.directory}: put back what was there, from a backup.  If it is lost, remove"
                f" the folder; the next start with --secure makes new keys, and what clients have"
                " of the old ones is void."
            )
        for name in _SECRETS:
            if (self.directory / name).exists():
                check_private(self.directory / name)
        end = self._load(clock).certificate.not_valid_after_utc
        if end - time_of(clock) < _AUTHORITY_ENDS_SOON:
            report(
                f"the authority in {self.directory} expires at {end:%Y-%m-%d}: before that, remove"
                " the folder, start again with --secure, and give all clients the new authority and"
                " new tokens"
            )
        if self.renew(clock) and not is_new:
            report("the certificate of the brokers was renewed")
        self._make_tokens(clock)

    def renew(self, clock: WallClock) -> bool:
        """Replace the certificate of the brokers if it is time; return True if it was.

        Raise UserError if the authority cannot sign one.
        """
        if not self._is_renewal_due(clock):
            return False
        from daybook.clients.cli.authority import CERTIFICATE_LIFE, time_of

        issued = self._load(clock).issue(self.names, CERTIFICATE_LIFE, time_of(clock))
        replace(self.server, issued.certificate + issued.key)
        return True

    async def keep_renewed(self, clock: WallClock, report: Callable[[str], None]) -> None:
        """Renew the certificate whenever it is due, until cancelled.

        The time is looked at every hour: the clock may be set, and the machine may sleep.
        """
        said = ""
        while True:
            try:
                renewed = self.renew(clock)
            except UserError as error:
                if said != str(error):
                    said = str(error)
                    report(f"the certificate of the brokers cannot be renewed: {error}")
            else:
                said = ""
                if renewed:
                    report("the certificate of the brokers was renewed; no restart is needed")
            await trio.sleep(_LOOK_S)

    def write_environment(self, places: Mapping[str, str]) -> None:
        """Write the variables by which commands find the cluster, for a shell to read.

        The file names the files with secrets, and holds none of them.
        """
        files = {"TLS_TRUSTED": self.trusted, "TOKEN_FILE": self.admin_token}
        lines = [
            f"export DAYBOOK_{name}={shlex.quote(str(value))}\n"
            for name, value in {**places, **files}.items()
        ]
        head = "# Written by `daybook standalone` at every start.\n"
        # An address from elsewhere would win over the ones below, or contradict them.
        unset = "unset DAYBOOK_DIR DAYBOOK_TOKEN DAYBOOK_TLS_CERTIFICATE DAYBOOK_TLS_KEY\n"
        replace(self.environment, "".join([head, unset, *lines]).encode(), public=True)

    def _is_renewal_due(self, clock: WallClock) -> bool:
        from cryptography.exceptions import InvalidSignature

        from daybook.clients.cli.authority import (
            is_due,
            names_of,
            read_certificate,
            read_key,
            time_of,
        )

        try:
            found = read_certificate(self.server)
            found.verify_directly_issued_by(read_certificate(self.trusted))
            fits = read_key(self.server).public_key() == found.public_key()
        except (UserError, ValueError, TypeError, InvalidSignature):
            return True
        lacking = {*self.names} - {*names_of(found)}
        return not fits or bool(lacking) or is_due(found, time_of(clock))

    def _load(self, clock: WallClock) -> "Authority":
        from daybook.clients.cli.authority import Authority, time_of

        return Authority.load(self.trusted, self.directory / "authority.key", time_of(clock))

    def _make(self, clock: WallClock) -> None:
        """Make the keys in another folder, and rename it when all of them are there."""
        from daybook.clients.cli.authority import Authority, time_of
        from daybook.clients.cli.tokens import new_key_pair

        new = self.directory.with_name(f".{FOLDER}.new")
        if new.exists():
            shutil.rmtree(new)  # A start was interrupted.
        make_directory(new)
        own = Authority.create(time_of(clock)).pair()
        private, public = new_key_pair("ES256")
        contents = (own.certificate, own.key, private, public)
        for name, content in zip(_KEYS, contents, strict=True):
            replace(new / name, content, public=name not in _SECRETS)
        new.rename(self.directory)

    def _make_tokens(self, clock: WallClock) -> None:
        """Write the tokens that are away, or that the keys do not know.  Raise UserError."""
        from daybook.broker.security.keys import private_key, public_key
        from daybook.broker.security.tokens import ClaimRules, Tokens, WrongCredentialsError, create
        from daybook.wire.settings import ConfigError

        now_s = clock.now_ms() // 1000
        try:
            key = private_key(str(self.directory / "token-private.pem"))
            known = Tokens(public_key(str(self.directory / "token-public.pem")), ClaimRules())
        except ConfigError as error:
            raise self._damaged_keys(str(error)) from None

        def is_valid(token: bytes, role: str) -> bool:
            try:
                return known.verify(token.decode().strip(), now_s).role == role
            except (WrongCredentialsError, UnicodeDecodeError):
                return False

        for name, role in _TOKENS.items():
            file = self.directory / name
            if file.exists() and is_valid(read_private(file), role):
                continue
            made = create(key, {"sub": role, "iat": now_s}, {}).encode()
            if not is_valid(made, role):
                raise self._damaged_keys("they do not belong together")
            replace(file, made + b"\n")

    def _damaged_keys(self, why: str) -> UserError:
        return UserError(
            f"The keys of tokens in {self.directory} cannot be used ({why}): put back"
            " token-private.pem and token-public.pem, from a backup."
        )


def names_for(hosts: Sequence[str], further: Sequence[str]) -> tuple[str, ...]:
    """Return the names for the certificate: this machine's, the hosts of brokers, and further."""
    own = socket.gethostname()
    return tuple(dict.fromkeys(name for name in (*LOCAL_NAMES, own, *hosts, *further) if name))
