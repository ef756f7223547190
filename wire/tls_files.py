"""The certificates and keys of TLS, as files, and the settings of TLS that are made of them.

    files = TlsFiles(certificate=Path("broker.pem"), key=Path("broker.key"), trusted=Path("ca.pem"))
    contexts = ReloadedContext(files, partial(server_context, client_certificates="optional"), ...)
    contexts.get()      # the context for the next handshake

All files are PEM.  `certificate` holds the certificate and the chain above it; `trusted` holds the
certificates of the authorities whose signatures count.  A private key must not be encrypted,
because nobody is there to type its password.

The files are read again when they have changed: a change takes effect at the next handshake, a
second later at most.  Files that cannot be used (half written, a key that does not fit yet) leave
the previous ones in force, and are logged once.  `ReloadedContext.run` warns once a day of a
certificate that expires within a week.

Settings that cannot be used raise `TlsFilesError`, whose text is one sentence that names the file.
TLS is version 1.2 or newer.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

import trio

from daybook.wire.changing_files import FileStamp, read_regular, stamp_of
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log

if TYPE_CHECKING:
    from cryptography import x509

ClientCertificates: TypeAlias = Literal["off", "optional", "required"]

_LOOK_S = 1.0
_FILE_BYTES_MAX = 16 << 20
_EXPIRY_LOOK_S = 3600.0
_DAY_MS = 24 * 3600 * 1000
_EXPIRES_SOON_MS = 7 * _DAY_MS
_NOT_THE_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


class TlsFilesError(OSError):
    """A certificate, a key or the trusted authorities cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    certificate: Path | None = None
    key: Path | None = None
    trusted: Path | None = None  # clients without it trust the authorities of the machine

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(p for p in (self.certificate, self.key, self.trusted) if p is not None)


def server_context(files: TlsFiles, client_certificates: ClientCertificates) -> ssl.SSLContext:
    """Return the context of a server.  Raise TlsFilesError."""
    if files.certificate is None or files.key is None:
        raise TlsFilesError("a server with TLS needs a certificate and its private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Connections live long, so resumption gains little; without it each proof of identity is new.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_certificate(context, files.certificate, files.key)
    if client_certificates != "off":
        if files.trusted is None:
            raise TlsFilesError(
                "certificates of clients are checked against trusted authorities, and none are"
                " given"
            )
        _load_trusted(context, files.trusted)
        required = client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def client_context(files: TlsFiles, *, verify_host: bool = True) -> ssl.SSLContext:
    """Return the context of a client.  Raise TlsFilesError.

    The client always checks who has signed the server's certificate.  Without `verify_host` it
    accepts a certificate that is made out to another host.
    """
    if (files.certificate is None) != (files.key is None):
        raise TlsFilesError("a client's certificate and its private key belong together: give both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = verify_host
    if files.trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_trusted(context, files.trusted)
    if files.certificate is not None and files.key is not None:
        _load_certificate(context, files.certificate, files.key)
    return context


class _EncryptedKeyError(Exception):
    pass


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def password() -> NoReturn:
        raise _EncryptedKeyError

    _check_readable(certificate, "the certificate")
    _check_readable(key, "the private key")
    try:
        context.load_cert_chain(certificate, key, password)
    except _EncryptedKeyError:
        raise TlsFilesError(
            f"the private key {key} is encrypted, and nobody can type its password here: write it"
            f" without one (`openssl pkey -in {key} -out KEY`)"
        ) from None
    except ssl.SSLError as error:
        if error.reason in _NOT_THE_KEY:
            raise TlsFilesError(
                f"the private key {key} does not belong to the certificate {certificate}"
            ) from None
        _check_certificates(certificate, "the certificate")
        raise TlsFilesError(
            f"the certificate {certificate} with the private key {key} cannot be used:"
            f" {error.reason or error}"
        ) from None


def _load_trusted(context: ssl.SSLContext, trusted: Path) -> None:
    _check_readable(trusted, "the file of trusted authorities")
    try:
        context.load_verify_locations(cafile=trusted)
    except ssl.SSLError as error:
        raise TlsFilesError(
            f"the file of trusted authorities {trusted} holds no certificate that can be read:"
            f" {error.reason or error}"
        ) from None


def _check_readable(path: Path, what: str) -> None:
    try:
        read_regular(path, _FILE_BYTES_MAX)
    except OSError as error:
        raise TlsFilesError(f"{what} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise TlsFilesError(f"{what} {path} cannot be used: {error}") from None


def _check_certificates(path: Path, what: str) -> "list[x509.Certificate]":
    from cryptography import x509  # slow to import, and needed for certificates alone

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        raise TlsFilesError(f"{what} {path} is not a certificate in PEM form") from None


def expires_ms(certificate: Path) -> int:
    """Return when the first certificate of a chain expires.  Raise TlsFilesError."""
    found = _check_certificates(certificate, "the certificate")
    return int(found[0].not_valid_after_utc.timestamp() * 1000)


Signature: TypeAlias = tuple[tuple[int, int, int] | None, ...]


def _do_nothing() -> None:
    """Do nothing; nobody wants to know."""


class ReloadedContext:
    """The context that a set of files makes at the moment."""

    def __init__(
        self,
        files: TlsFiles,
        build: Callable[[TlsFiles], ssl.SSLContext],
        *,
        clock: WallClock,
        log: Log,
    ) -> None:
        """Read the files.  Raise TlsFilesError if they cannot be used."""
        self._files = files
        self._build = build
        self._clock = clock
        self._log = log
        self.on_changed: Callable[[], None] = _do_nothing  # called when changed files are in force
        self._signature = self._stamp()
        self._context = build(files)
        self._looked_at = -_LOOK_S
        self._warned_ms = -_DAY_MS

    def get(self) -> ssl.SSLContext:
        """Return the context for a new handshake, from changed files if there are any."""
        now = trio.current_time()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._look()
        return self._context

    @property
    def latest(self) -> ssl.SSLContext:
        """The context as it is, without a look at the files; for threads."""
        return self._context

    def _look(self) -> None:
        # The signature is older than what is read: a change meanwhile is read again.
        signature = self._stamp()
        if signature == self._signature:
            return
        self._signature = signature
        files = ", ".join(map(str, self._files.paths))
        try:
            self._context = self._build(self._files)
        except OSError as error:  # also a file that was removed while it was read
            self._log.warning(
                "the changed certificates cannot be used, so the previous ones stay in force",
                why=str(error),
                files=files,
            )
            return
        self._log.info("the certificates have changed and are in force", files=files)
        self.warn_of_expiry()
        self.on_changed()

    def _stamp(self) -> Signature:
        return tuple(_stamp(path) for path in self._files.paths)

    async def run(self) -> None:
        """Look every hour whether the certificate expires soon, until cancelled."""
        while True:
            self.warn_of_expiry()
            await trio.sleep(_EXPIRY_LOOK_S)

    def warn_of_expiry(self) -> None:
        """Warn, once a day, of a certificate that expires within a week or has expired."""
        if self._files.certificate is None:
            return
        try:
            until_ms = expires_ms(self._files.certificate)
        except TlsFilesError:
            return  # Half written: `_look` has warned of it, or will.
        now_ms = self._clock.now_ms()
        if until_ms - now_ms > _EXPIRES_SOON_MS or abs(now_ms - self._warned_ms) < _DAY_MS:
            return
        self._warned_ms = now_ms
        expired = until_ms <= now_ms
        self._log.warning(
            "the certificate has expired: clients refuse it, until its file is replaced"
            if expired
            else "the certificate expires soon: replace its file; no restart is needed",
            file=str(self._files.certificate),
            days=(until_ms - now_ms) // _DAY_MS,
        )


def _stamp(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if it cannot be read."""
    try:
        return stamp_of(path)
    except OSError:
        return None
