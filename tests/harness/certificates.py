"""Authorities and certificates for tests, as PEM files in a directory of the test."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from daybook.wire.tls import parse_certificate
from daybook.wire.tls_files import TlsFiles
from daybook.wire.transport import PeerCertificate

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate and its private key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and writes them and their keys into `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        self._own = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 3650 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.trusted = directory / f"{name}.pem"
        self.trusted.write_bytes(self._own.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *common_names: str,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        valid_from: timedelta = -_DAY,
        valid_for: timedelta = 365 * _DAY,
        password: bytes | None = None,
        unit: str = "",
    ) -> Issued:
        """Issue a certificate for `common_names` (`name` if none) and write `name`.pem and .key."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [
            x509.NameAttribute(NameOID.COMMON_NAME, common) for common in common_names or (name,)
        ]
        if unit:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(attributes))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + min(valid_from, valid_for - _DAY))
            .not_valid_after(now + valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        issued = builder.sign(self._key, hashes.SHA256())
        result = Issued(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        result.certificate.write_bytes(issued.public_bytes(Encoding.PEM))
        result.key.write_bytes(
            key.private_bytes(
                Encoding.PEM,
                PrivateFormat.PKCS8,
                NoEncryption() if password is None else BestAvailableEncryption(password),
            )
        )
        return result

    def certificate(self, name: str, *, unit: str = "") -> PeerCertificate:
        """Issue a certificate, and return it as a server gets it from its client."""
        pem = self.issue(name, unit=unit).certificate.read_bytes()
        return parse_certificate(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))

    def files(self, name: str, *, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> TlsFiles:
        """Issue a certificate, and return it with this authority as the one that is trusted."""
        issued = self.issue(name, hosts=hosts)
        return TlsFiles(issued.certificate, issued.key, self.trusted)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )
