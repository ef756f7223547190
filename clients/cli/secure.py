"""The secrets of a secure standalone cluster, in the folder `security` of its data directory.

    authority.pem, authority.key     the authority whose certificates clients trust (10 years)
    server.pem                       the certificate of brokers and bookies, and its key (90 days)
    zookeeper.pem                    the certificate of ZooKeeper, and its key (10 years)
    admin.pem                        the certificate of commands, and its key (90 days)
    token-private.pem, token-public.pem    the keys of tokens
    admin.token                      a token for the role `admin`, which may do everything
    broker.token                     the token by which brokers introduce themselves to each other
    environment.sh                   the variables by which commands find the cluster

The folder appears as a whole, so a start that was interrupted leaves none.  Files that are made
from the keys (certificates, tokens) are made anew if they are away.  Keys are never made anew:
clients would meet an authority that they do not trust, or tokens that count no more.

A file of a certificate holds its key, too, so that one step replaces both.  It is replaced when two
thirds of its life are over, at a start and while the cluster runs; all but ZooKeeper read it again.
ZooKeeper reads its certificate at its start, so that one lives as long as the authority.

Bookies let in who shows a certificate of the authority with the common name of `server.pem` or of
`admin.pem`, and ZooKeeper who shows one with any name.  A cluster that was made secure before there
was this has `storage` False: its bookies and its ZooKeeper ask nobody.
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
    from daybook.clients.cli.zookeeper import ServerTls

FOLDER = "security"
ADMIN_ROLE, BROKER_ROLE = "admin", "broker"
SERVER_NAME, ADMIN_NAME = "daybook", "admin"  # common names of certificates
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_LOOK_S = 3600.0
_NO_TOKEN_IS_REVOKED = b"# Each line revokes a token: id ID, digest SHA256, or role ROLE TIME.\n"
_AUTHORITY_ENDS_SOON = timedelta(days=180)
_KEYS = ("authority.pem", "authority.key", "token-private.pem", "token-public.pem")
REVOKED = "revoked-tokens"
_TOKENS = {"admin.token": ADMIN_ROLE, "broker.token": BROKER_ROLE}
_CERTIFICATES = ("server.pem", "zookeeper.pem", "admin.pem")
_SECRETS = ("authority.key", "token-private.pem", *_CERTIFICATES, *_TOKENS)
# A secure cluster sets these itself: nothing else may weaken or contradict them.
OWN_SETTINGS = frozenset(
    (
        *("tls_port", "https_port", "tls_certificate", "tls_key", "tls_trusted", "require_tls"),
        *("authentication", "token_secret_key", "token_public_key", "token_role_claim"),
        *("token_secret_keys", "token_public_keys", "revoked_tokens_file"),
        *("token_audience", "authorization", "super_users", "broker_token_file", "audit_file"),
        "anonymous_role",
    )
)
# So does one whose bookies are locked, and one whose ZooKeeper is.
OWN_STORAGE_SETTINGS = frozenset(
    (
        *("tls", "tls_client_certificates", "authentication_force", "users_file"),
        *("allowed_certificates", "allowed_certificate_roles"),
        *("bookie_tls", "bookie_user", "bookie_password_file"),
    )
)
OWN_ZOOKEEPER_SETTINGS = frozenset(("zookeeper_tls", "zookeeper_user", "zookeeper_password_file"))


@dataclass(frozen=True, slots=True)
class Security:
    """The folder, and the names to which the certificate of the brokers is made out.

    `storage`: bookies, and ZooKeeper if it belongs to the cluster, are locked, too.
    """

    directory: Path
    names: tuple[str, ...]
    storage: bool = False

    @property
    def trusted(self) -> Path:
        """The file with the authority, for clients."""
        return self.directory / "authority.pem"

    @property
    def server(self) -> Path:
        return self.directory / "server.pem"

    @property
    def zookeeper(self) -> Path:
        return self.directory / "zookeeper.pem"

    @property
    def admin_certificate(self) -> Path:
        """The file with the certificate of commands and its key, for bookies and ZooKeeper."""
        return self.directory / "admin.pem"

    @property
    def admin_token(self) -> Path:
        return self.directory / "admin.token"

    @property
    def revoked_tokens(self) -> Path:
        return self.directory / REVOKED

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
            "revoked_tokens_file": str(self.revoked_tokens),
            "authorization": True,
            "super_users": [ADMIN_ROLE, BROKER_ROLE],
            "broker_token_file": str(self.directory / "broker.token"),
            "authenticate_metrics": True,
            "audit_file": str(audit_file),
            **({"bookie_tls": True} if self.storage else {}),
        }

    def bookie_settings(self, http_port: int) -> dict[str, Any]:
        """Return the settings of a bookie with this HTTP port, which has TLS, too.

        All clients of the bookies in the cluster start together with them, and have certificates,
        so `authentication_force` locks none of them out.
        """
        if not self.storage:
            return {}
        return {
            "http_port": -1,
            "https_port": http_port,
            "tls": "required",
            "tls_certificate": str(self.server),
            "tls_key": str(self.server),
            "tls_trusted": str(self.trusted),
            "tls_client_certificates": "required",
            "authentication": "require",
            "authentication_force": True,
            "allowed_certificates": [SERVER_NAME, ADMIN_NAME],
            "bookie_tls": True,
        }

    @property
    def zookeeper_server(self) -> "ServerTls | None":
        """The TLS of the cluster's own ZooKeeper; None if it asks nobody."""
        if not self.storage:
            return None
        from daybook.clients.cli.zookeeper import ServerTls
        from daybook.wire.tls_files import TlsFiles

        return ServerTls(TlsFiles(self.zookeeper, self.zookeeper, self.trusted), "required")

    @property
    def admin_files(self) -> dict[str, Path]:
        """The files of TLS by which a command enters bookies and the cluster's own ZooKeeper."""
        certificate = self.admin_certificate
        return {"trusted": self.trusted, "certificate": certificate, "key": certificate}

    # -- making and renewing

    def prepare(self, clock: WallClock, report: Callable[[str], None]) -> None:
        """Make what is away, and renew a certificate that is due or lacks a name.

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
        if (renewed := self.renew(clock)) and not is_new:
            report(_listed(renewed))
        self._make_tokens(clock)
        if not self.revoked_tokens.exists():
            # A list that is lost revokes nothing, and must not be missed in silence.
            replace(self.revoked_tokens, _NO_TOKEN_IS_REVOKED, public=True)
            if not is_new:
                report(f"{self.revoked_tokens} was not there: it is new, and revokes no token")

    def renew(self, clock: WallClock) -> list[Path]:
        """Replace the certificates that are away or due; return those that were replaced.

        Raise UserError if the authority cannot sign one.
        """
        due = [file for file in self._certificates() if self._is_renewal_due(file, clock)]
        if due:
            authority = self._load(clock)
            for file in due:
                self._issue(file, authority, clock)
        return due

    def _certificates(self) -> dict[Path, tuple[str, ...]]:
        """Return the files of certificates, and the names to which they are made out."""
        files = {self.server: self.names}
        if self.storage:
            files |= {self.zookeeper: LOCAL_NAMES, self.admin_certificate: ()}
        return files

    def _common_name(self, file: Path) -> str:
        return ADMIN_NAME if file == self.admin_certificate else SERVER_NAME

    def _issue(self, file: Path, authority: "Authority", clock: WallClock) -> None:
        from daybook.clients.cli.authority import AUTHORITY_LIFE, CERTIFICATE_LIFE, time_of

        common, now = self._common_name(file), time_of(clock)
        if file == self.admin_certificate:
            issued = authority.issue_to_client(common, CERTIFICATE_LIFE, now)
        else:
            life = AUTHORITY_LIFE if file == self.zookeeper else CERTIFICATE_LIFE
            names = self._certificates()[file]
            issued = authority.issue(names, life, now, common_name=common)
        replace(file, issued.certificate + issued.key)

    async def keep_renewed(self, clock: WallClock, report: Callable[[str], None]) -> None:
        """Renew each certificate whenever it is due, until cancelled.

        The time is looked at every hour: the clock may be set, and the machine may sleep.
        """
        said = ""
        while True:
            try:
                renewed = self.renew(clock)
            except UserError as error:
                if said != str(error):
                    said = str(error)
                    report(f"a certificate cannot be renewed: {error}")
            else:
                said = ""
                if renewed:
                    hint = "ZooKeeper takes its own at its next start; no other restart is needed"
                    if self.zookeeper not in renewed:
                        hint = "no restart is needed"
                    report(f"{_listed(renewed)}; {hint}")
            await trio.sleep(_LOOK_S)

    def write_environment(self, places: Mapping[str, str], *, own_zookeeper: bool = True) -> None:
        """Write the variables by which commands find the cluster, for a shell to read.

        The file names the files with secrets, and holds none of them.  With `own_zookeeper`, the
        ZooKeeper of the cluster is locked if its bookies are.
        """
        variables = {"TLS_TRUSTED": self.trusted, "TOKEN_FILE": self.admin_token}
        flags: dict[str, str] = {}
        if self.storage:
            certificate = self.admin_certificate
            variables |= {"TLS_CERTIFICATE": certificate, "TLS_KEY": certificate}
            flags = {"BOOKIES_TLS": "true"} | ({"ZOOKEEPER_TLS": "true"} if own_zookeeper else {})
        lines = [
            f"export DAYBOOK_{name}={shlex.quote(str(value))}\n"
            for name, value in {**places, **variables, **flags}.items()
        ]
        head = "# Written by `daybook standalone` at every start.\n"
        # An address from elsewhere would win over the ones below, or contradict them.
        unset = (
            "unset DAYBOOK_DIR DAYBOOK_TOKEN DAYBOOK_TLS_CERTIFICATE DAYBOOK_TLS_KEY"
            " DAYBOOK_BOOKIES_TLS DAYBOOK_ZOOKEEPER_TLS\n"
        )
        replace(self.environment, "".join([head, unset, *lines]).encode(), public=True)

    def _is_renewal_due(self, file: Path, clock: WallClock) -> bool:
        from cryptography.exceptions import InvalidSignature

        from daybook.clients.cli.authority import (
            common_name_of,
            is_due,
            names_of,
            read_certificate,
            read_key,
            time_of,
        )

        try:
            found = read_certificate(file)
            found.verify_directly_issued_by(read_certificate(self.trusted))
            fits = read_key(file).public_key() == found.public_key()
        except (UserError, ValueError, TypeError, InvalidSignature):
            return True
        lacking = {*self._certificates()[file]} - {*names_of(found)}
        # Bookies know a process by the common name.
        fits = fits and (not self.storage or common_name_of(found) == self._common_name(file))
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
        from daybook.broker.security.keys import private_key, public_keys, read_key
        from daybook.broker.security.tokens import ClaimRules, Tokens, WrongCredentialsError, create
        from daybook.clients.cli.tokens import new_token_id
        from daybook.wire.settings import ConfigError

        now_s = clock.now_ms() // 1000
        try:
            key = private_key(str(self.directory / "token-private.pem"))
            public = public_keys(read_key(str(self.directory / "token-public.pem")))
            known = Tokens(public, ClaimRules())
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
            claims = {"sub": role, "iat": now_s, "jti": new_token_id()}
            made = create(key, claims, {}).encode()
            if not is_valid(made, role):
                raise self._damaged_keys("they do not belong together")
            replace(file, made + b"\n")

    def _damaged_keys(self, why: str) -> UserError:
        return UserError(
            f"The keys of tokens in {self.directory} cannot be used ({why}): put back"
            " token-private.pem and token-public.pem, from a backup."
        )


def _listed(files: Sequence[Path]) -> str:
    """Return the sentence that these files have new certificates."""
    names = [file.name for file in files]
    if len(names) == 1:
        return f"a new certificate is in {names[0]}"
    return f"new certificates are in {', '.join(names[:-1])} and {names[-1]}"


def names_for(hosts: Sequence[str], further: Sequence[str]) -> tuple[str, ...]:
    """Return the names for the certificate: this machine's, the hosts of brokers, and further."""
    own = socket.gethostname()
    return tuple(dict.fromkeys(name for name in (*LOCAL_NAMES, own, *hosts, *further) if name))
