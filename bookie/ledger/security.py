"""How a client of bookies protects its connections, and proves who it is.

    security = open_bookie_security(BookieAccess(tls=True, trusted="ca.pem", user="broker",
                                                 password_file="/run/secret"), clock=..., log=...)
    await security.secure(connection, "bookie-1.example")     # before the first request

With TLS a connection begins with START_TLS in plain text, and nothing else is sent without it: a
bookie that has no TLS is not used.  Its certificate must be made out to the host in its
registration.  Then, with a user, follows SASL DIGEST-MD5 (`wire.digest_md5`): the bookie learns no
password, and has to prove that it knows it.  A bookie that asks nobody says so, and is used.

START_TLS and AUTH are sent in protocol v3, whatever the requests are sent in, because only v3
answers a refusal.  Apache's bookies take that, and answer nothing to a wrong password.

The files are read again when they change: those of TLS at the next connection, a second later at
most, and the password at each connection.  If it cannot be read, the last one counts.
"""

import logging
from collections import deque
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from random import Random, SystemRandom
from typing import Literal, Protocol, TypeAlias

import trio

from daybook.wire.changing_files import read_regular
from daybook.wire.clock import WallClock
from daybook.wire.connection import FrameConnection
from daybook.wire.digest_md5 import DigestClient, DigestError
from daybook.wire.errors import ConnectionLostError, TlsError, TlsRefusedError, WireError
from daybook.wire.logging import Log
from daybook.wire.messages import bookie_v3
from daybook.wire.messages.bookie import AUTH_DISABLED
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.settings import ConfigError
from daybook.wire.tls import TlsClient
from daybook.wire.tls_files import ReloadedContext, TlsFiles, client_context
from daybook.wire.transport import Stream

AnyPath: TypeAlias = str | PathLike[str]
SASL = "sasl"
PASSWORD_BYTES_MAX = 1024
ANSWER_BYTES_MAX = 1 << 16  # the largest frame of a bookie until the connection is ready
_NONCE_BITS = 128

_log = logging.getLogger(__name__)


class BookieSecurityError(ConnectionLostError):
    """A bookie and this client do not agree on TLS, or the bookie refuses the credentials.

    The text is a sentence that says what to do.
    """


class BookieRefusalError(BookieSecurityError):
    """And another attempt would end in the same way.  A timeout, for one, proves nothing."""


@dataclass(frozen=True, slots=True)
class BookieAccess:
    """How to reach bookies.  The files of TLS are in PEM form.

    `trusted` holds the authorities that may sign the certificates of bookies; without it, those of
    the machine count.  `certificate` and `key` prove who this client is to bookies that ask for a
    certificate, `user` and the first line of `password_file` to those that ask for a password.
    """

    tls: bool = False
    trusted: AnyPath | None = None
    certificate: AnyPath | None = None
    key: AnyPath | None = None
    user: str = ""
    password_file: AnyPath | None = None

    def check(self, words: Literal["settings", "options"] = "settings") -> None:
        """Raise ConfigError if the values do not belong together."""
        if bool(self.user) != bool(self.password_file):
            raise ConfigError(
                f"the {words} of bookie user and bookie password file belong together: give both,"
                " or neither"
            )


def open_bookie_security(
    access: BookieAccess, *, clock: WallClock, log: Log, rng: Random | None = None
) -> "BookieSecurity | None":
    """Return the security of the connections; None if there is none.

    Raise ConfigError, or TlsFilesError if a file of TLS is of no use.
    """
    access.check()
    tls = None
    if access.tls:
        files = TlsFiles(_path(access.certificate), _path(access.key), _path(access.trusted))
        tls = TlsClient(ReloadedContext(files, client_context, clock=clock, log=log))
    password = None
    if access.password_file:
        password = PasswordFile(Path(access.password_file))
    if tls is None and password is None:
        return None
    return BookieSecurity(tls, access.user, password, rng or SystemRandom())


class PasswordFile:
    """A password in the first line of a file.  Raise ConfigError if it cannot be read at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readable = True
        try:
            self._last = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the password file {path} cannot be used: {error}") from None

    def read(self) -> str:
        """Return the password; the last one if the file is away."""
        try:
            self._last = self._read()
            self._readable = True
        except (OSError, ValueError) as error:
            if self._readable:
                self._readable = False
                _log.error("the password file %s cannot be read: %s", self._path, error)
        return self._last

    def _read(self) -> str:
        content = read_regular(self._path, PASSWORD_BYTES_MAX)
        try:
            password = content.decode().partition("\n")[0].rstrip("\r")
        except UnicodeDecodeError:
            raise ValueError("it is no text in UTF-8") from None
        if not password:
            raise ValueError("its first line is empty")
        return password


class BookieSecurity:
    """The security of all connections of one client.  `rng` must be unpredictable."""

    def __init__(
        self, tls: TlsClient | None, user: str, password: PasswordFile | None, rng: Random
    ) -> None:
        self._tls = tls
        self._user = user
        self._password = password
        self._rng = rng

    async def secure(
        self, connection: FrameConnection, bookie: str, host: str, timeout_s: float
    ) -> None:
        """Make a new connection ready for requests.  `host` is in the bookie's registration.

        Raise BookieSecurityError if the bookie refuses, and ConnectionLostError if it is away.
        """
        try:
            with trio.fail_after(timeout_s):
                await self._secure(connection, bookie, host)
        except trio.TooSlowError:
            hint = " (Apache's bookies do not answer a wrong password)" if self._password else ""
            raise BookieSecurityError(
                f"bookie {bookie} did not complete TLS and authentication in time{hint}"
            ) from None
        except WireError as error:
            raise BookieSecurityError(f"bookie {bookie} breaks the protocol: {error}") from None
        except TlsRefusedError as error:
            raise BookieRefusalError(f"bookie {bookie}: {error}") from None
        except TlsError as error:
            raise BookieSecurityError(f"bookie {bookie}: {error}") from None

    async def _secure(self, connection: FrameConnection, bookie: str, host: str) -> None:
        answers = _Answers(connection, bookie)
        if self._tls is not None:
            await _start_tls(connection, answers, self._tls, host)
        if self._password is not None:
            await self._authenticate(connection, answers, self._password.read())
        answers.end()

    async def _authenticate(
        self, connection: FrameConnection, answers: "_Answers", password: str
    ) -> None:
        bookie = answers.bookie
        digest = DigestClient(self._user, password, f"{self._rng.getrandbits(_NONCE_BITS):032x}")
        token = b""
        for step in (1, 2):
            connection.send([bookie_v3.encode_auth(step, SASL, token)])
            response = await answers.next_of(pb.AUTH, "the credentials")
            if response.status != pb.EOK and step == 1 and self._tls is None:
                # It has seen no user and no password yet.
                raise BookieSecurityError(
                    f"bookie {bookie} refuses an authentication without TLS: set bookie_tls"
                    " (--bookie-tls), or the bookie takes no passwords (its users_file)"
                )
            if response.status != pb.EOK:
                raise BookieRefusalError(
                    f"bookie {bookie} refuses the user {self._user!r} or its password: compare"
                    " bookie_user and bookie_password_file with the users_file of the bookie"
                )
            message = response.authResponse
            if message.authPluginName == AUTH_DISABLED:
                return
            try:
                if step == 1:
                    token = digest.respond(message.payload)
                else:
                    digest.check(message.payload)
            except DigestError as error:
                raise BookieRefusalError(f"bookie {bookie}: {error}") from None


async def _start_tls(
    connection: FrameConnection, answers: "_Answers", tls: TlsClient, host: str
) -> None:
    bookie = answers.bookie
    connection.send([bookie_v3.encode_start_tls(0)])
    response = await answers.next_of(pb.START_TLS, "START_TLS")
    if response.status != pb.EOK:
        raise BookieRefusalError(
            f"bookie {bookie} has no TLS, and bookie_tls is set, so it is not used: give it a"
            ' certificate (tls = "optional"), or leave bookie_tls out'
        )
    answers.end()

    async def shake(stream: Stream, begun: bytes) -> Stream:
        if begun:
            raise BookieSecurityError(
                f"bookie {bookie} sends something in plain text in front of the TLS handshake"
            )
        return await tls.connect(stream, host)

    await connection.upgrade(shake)


class _Answers:
    """The answers of a bookie to START_TLS and AUTH, one at a time."""

    def __init__(self, connection: FrameConnection, bookie: str) -> None:
        self.bookie = bookie
        self._connection = connection
        self._received: deque[pb.Response] = deque()

    async def next_of(self, operation: pb.OperationType, what: str) -> pb.Response:
        """Return the next answer, which has to be one to this operation.

        Apache's bookies with TLS and passwords send an error of START_TLS after the handshake,
        because TLS alone has authenticated nobody: it means nothing to a client with a password.
        """
        while True:
            while not self._received:
                frames = await self._connection.receive()
                if not frames:
                    raise BookieSecurityError(
                        f"bookie {self.bookie} ended the connection in place of an answer to"
                        f" {what}: {self._connection.close_reason}"
                    )
                self._received.extend(map(bookie_v3.decode_response, frames))
            response = self._received.popleft()
            if response.header.operation == operation:
                return response
            if response.header.operation != pb.START_TLS:
                self.end(1)

    def end(self, more: int = 0) -> None:
        """Raise BookieSecurityError if the bookie has said something that nobody asked for."""
        if len(self._received) + more:
            raise BookieSecurityError(
                f"bookie {self.bookie} answers something that it was not asked"
            )


class BookieSettings(Protocol):
    """The settings of a process that connects to bookies; "" stands for none."""

    @property
    def bookie_tls(self) -> bool: ...
    @property
    def bookie_user(self) -> str: ...
    @property
    def bookie_password_file(self) -> str: ...
    @property
    def tls_certificate(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_trusted(self) -> str: ...


def access_of_settings(settings: BookieSettings) -> BookieAccess:
    """Return what the settings of a process say.  Raise ConfigError."""
    access = BookieAccess(
        settings.bookie_tls,
        settings.tls_trusted or None,
        settings.tls_certificate or None,
        settings.tls_key or None,
        settings.bookie_user,
        settings.bookie_password_file or None,
    )
    access.check()
    return access


def _path(path: AnyPath | None) -> Path | None:
    return None if path is None else Path(path)
