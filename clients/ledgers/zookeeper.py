"""How a program connects to ZooKeeper, and as whom, for `connect`."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from daybook.clients.python.tls import TlsOptions
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.tls_files import TlsFiles

AnyPath: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """`user` with the password in `password_file` is the identity; it is read when it is needed.

    With `tls`, connections have TLS, and the certificate in there is an identity, too.
    """

    tls: TlsOptions | None = None
    user: str = ""
    password_file: AnyPath | None = None

    def __post_init__(self) -> None:
        if bool(self.user) != (self.password_file is not None):
            raise ValueError("the user of ZooKeeper and the file of its password belong together")
        if ":" in self.user:
            raise ValueError("the user of ZooKeeper must not have a colon")

    @property
    def access(self) -> ZooKeeperAccess:
        password_file = None if self.password_file is None else Path(self.password_file)
        if self.tls is None:
            return ZooKeeperAccess(user=self.user, password_file=password_file)
        trusted, certificate, key = (
            None if path is None else Path(path)
            for path in (self.tls.trusted, self.tls.certificate, self.tls.key)
        )
        return ZooKeeperAccess(
            TlsFiles(certificate, key, trusted), self.tls.verify_host, self.user, password_file
        )
