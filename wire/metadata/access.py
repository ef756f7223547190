"""How a process connects to ZooKeeper, and whom it says it is.

    access = ZooKeeperAccess(tls=TlsFiles(trusted=Path("ca.pem")),
                             user="daybook", password_file=Path("zookeeper.password"))

The settings `zookeeper_tls`, `zookeeper_user` and `zookeeper_password_file` of each process, and
the options of commands, become such an object.  The password is read at each new connection.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daybook.wire.changing_files import read_regular
from daybook.wire.metadata.acl import digest_identity
from daybook.wire.settings import ConfigError
from daybook.wire.tls_files import TlsFiles

_PASSWORD_BYTES_MAX = 64 << 10


class PasswordFileError(OSError):
    """The file with the password cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str

    @property
    def identity(self) -> str:
        return digest_identity(self.user, self.password)

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, ...)"


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    tls: TlsFiles | None = None  # None: without TLS
    verify_host: bool = True
    user: str = ""  # empty: no identity, unless TLS shows a certificate
    password_file: Path | None = None

    @property
    def has_identity(self) -> bool:
        return bool(self.user) or (self.tls is not None and self.tls.certificate is not None)

    def credentials(self) -> Credentials | None:
        """Read the password; None without a user.  Raise PasswordFileError."""
        if not self.user:
            return None
        assert self.password_file is not None
        return Credentials(self.user, read_password(self.password_file))


def read_password(file: Path) -> str:
    """Return the first line of a file.  Raise PasswordFileError."""
    try:
        text = read_regular(file, _PASSWORD_BYTES_MAX).decode()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            why = "it is not text"
        raise PasswordFileError(f"the password file {file} cannot be read: {why}") from None
    password, _, rest = text.partition("\n")
    if not password or rest.strip():
        raise PasswordFileError(f"the password file {file} must hold one line, the password")
    return password.removesuffix("\r")


class ZooKeeperSettings(Protocol):
    """The settings of a process that connects to ZooKeeper; "" stands for none."""

    @property
    def zookeeper_tls(self) -> bool: ...
    @property
    def zookeeper_user(self) -> str: ...
    @property
    def zookeeper_password_file(self) -> str: ...
    @property
    def tls_certificate(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_trusted(self) -> str: ...


def access_of_settings(settings: ZooKeeperSettings) -> ZooKeeperAccess:
    """Return what the settings of a process say.  Raise ConfigError."""
    user, password_file = settings.zookeeper_user, settings.zookeeper_password_file
    if bool(user) != bool(password_file):
        raise ConfigError(
            "zookeeper_user and zookeeper_password_file belong together: set both, or neither"
        )
    if ":" in user:
        raise ConfigError("zookeeper_user must not have a colon")
    certificate, key = settings.tls_certificate, settings.tls_key
    if bool(certificate) != bool(key):
        raise ConfigError("tls_certificate and tls_key belong together: name both, or neither")
    files = TlsFiles(_path(certificate), _path(key), _path(settings.tls_trusted))
    tls = files if settings.zookeeper_tls else None
    return ZooKeeperAccess(tls, True, user, _path(password_file))


def _path(text: str) -> Path | None:
    return Path(text) if text else None
