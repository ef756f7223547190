"""A certificate authority in two files, and the certificates that it signs.

    authority = Authority.create(now)
    authority = Authority.load(Path("authority.pem"), Path("authority.key"), now)
    issued = authority.issue(("broker-1.example", "10.0.0.1"), CERTIFICATE_LIFE, now)

An authority lives for ten years and signs certificates of servers and clients, no authorities.
Keys are of the elliptic curve P-256.  Certificates begin to be valid a day early, because the
clocks of other machines may be behind, and never outlive their authority.

A certificate of a server is valid for a client, too: servers call each other with it.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.key_files import read_private
from daybook.wire.clock import WallClock

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=90)
_EARLY = timedelta(days=1)
_COMMON_NAME_MAX = 64  # RFC 5280, ub-common-name
_RENEWED_AT = 2 / 3  # the share of its life after which a certificate is renewed


@dataclass(frozen=True, slots=True, repr=False)
class Issued:
    """A certificate and its private key, in PEM form."""

    certificate: bytes
    key: bytes


class Authority:
    """An authority with its private key, which is in memory."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def create(cls, now: datetime) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        # Several authorities in one file of trusted ones are told apart by their names.
        mark = f"{x509.random_serial_number() & 0xFFFFFFFF:08x}"
        name = _name(f"Daybook authority {now:%Y-%m-%d} {mark}")
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLY)
            .not_valid_after(now + AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: Path, key: Path, now: datetime) -> Self:
        """Read an authority.  Raise UserError if it cannot sign certificates now."""
        own = read_certificate(certificate)
        private = read_key(key)
        if private.public_key() != own.public_key():
            raise UserError(f"The key {key} does not belong to the authority {certificate}.")
        try:
            constraints = own.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = x509.BasicConstraints(ca=False, path_length=None)
        if not constraints.ca:
            raise UserError(f"{certificate} is no authority: it may not sign certificates.")
        check_time(own, certificate, now)
        return cls(own, private)

    def pair(self) -> Issued:
        return Issued(self.certificate.public_bytes(Encoding.PEM), _pem(self._key))

    def issue(
        self,
        names: Sequence[str],
        life: timedelta,
        now: datetime,
        *,
        key: ec.EllipticCurvePrivateKey | None = None,
        common_name: str = "",
    ) -> Issued:
        """Issue a certificate for a server with these names and addresses.

        Without `key` a new private key is made.  The common name is the first name unless it is
        given.  Raise UserError for something that is no name.
        """
        alternatives = [_alternative(name) for name in dict.fromkeys(names)]
        fitting = (name for name in names if len(name) <= _COMMON_NAME_MAX)
        common = common_name or next(fitting, "daybook")
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(common, alternatives, usages, life, now, key)

    def issue_to_client(
        self,
        common_name: str,
        life: timedelta,
        now: datetime,
        *,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Issued:
        """Issue a certificate for a client.  Raise UserError for something that is no name."""
        if not 0 < len(common_name) <= _COMMON_NAME_MAX or not common_name.isprintable():
            raise UserError(f"The name of a client has 1 to {_COMMON_NAME_MAX} characters.")
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(common_name, [], usages, life, now, key)

    def _issue(
        self,
        common_name: str,
        alternatives: Sequence[x509.GeneralName],
        usages: Sequence[x509.ObjectIdentifier],
        life: timedelta,
        now: datetime,
        key: ec.EllipticCurvePrivateKey | None,
    ) -> Issued:
        key = key or ec.generate_private_key(ec.SECP256R1())
        own = self.certificate
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(own.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _EARLY, own.not_valid_before_utc))
            .not_valid_after(min(now + life, own.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(identifier, critical=False)
        )
        if alternatives:
            names = x509.SubjectAlternativeName(alternatives)
            builder = builder.add_extension(names, critical=False)
        issued = builder.sign(self._key, hashes.SHA256())
        return Issued(issued.public_bytes(Encoding.PEM), _pem(key))


def time_of(clock: WallClock) -> datetime:
    """Return the time of a clock, in UTC."""
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC)


def read_certificate(file: Path) -> x509.Certificate:
    """Return the first certificate in a file, which may hold its key, too.  Raise UserError."""
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())[0]
    except OSError as error:
        raise UserError(f"The certificate {file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UserError(f"{file} is damaged: it holds no certificate in PEM form.") from None


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses of a server to which a certificate is made out."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = found.get_values_for_type(x509.IPAddress)
    return (*found.get_values_for_type(x509.DNSName), *map(str, addresses))


def common_name_of(certificate: x509.Certificate) -> str:
    return _common_name(certificate.subject)


def issuer_of(certificate: x509.Certificate) -> str:
    """Return the name of the authority that has signed a certificate."""
    return _common_name(certificate.issuer)


def kind_of(certificate: x509.Certificate) -> str:
    """Return authority, server, client, or other."""
    extensions = certificate.extensions
    try:
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "authority"
        usages = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return "other"
    if ExtendedKeyUsageOID.SERVER_AUTH in usages:
        return "server"
    return "client" if ExtendedKeyUsageOID.CLIENT_AUTH in usages else "other"


def renewal_time(certificate: x509.Certificate) -> datetime:
    """Return when two thirds of the life of a certificate are over."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) * _RENEWED_AT


def is_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Return True for a certificate that is to be renewed, or that is not valid yet."""
    return not certificate.not_valid_before_utc <= now < renewal_time(certificate)


def check_time(certificate: x509.Certificate, file: Path, now: datetime) -> None:
    """Raise UserError if a certificate is not valid now."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        raise UserError(
            f"The clock of this machine says {now:%Y-%m-%d %H:%M} UTC, and {file} is valid from"
            f" {begin:%Y-%m-%d %H:%M} on: set the clock.  If the clock was wrong when the file was"
            " made, make it anew."
        )
    if now >= end:
        raise UserError(
            f"{file} has expired at {end:%Y-%m-%d %H:%M} UTC, and the clock of this machine says"
            f" {now:%Y-%m-%d %H:%M}: make it anew, or set the clock."
        )


def read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return a private key.  Raise UserError if others may read it, or it cannot be used."""
    content = read_private(file)
    try:
        key = load_pem_private_key(content, None)
    except TypeError:
        raise UserError(f"The key {file} is encrypted: write it without a password.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(f"{file} is damaged: it holds no private key in PEM form.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"The key {file} is not of an elliptic curve.")
    return key


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        pass
    if not name or not name.isascii() or not name.isprintable() or set(name) & set(" :/,"):
        raise UserError(f"{name!r} is no name of a host and no address.")
    return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
