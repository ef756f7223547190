"""An authority and its certificates: what is in them, and what is wrong with damaged ones."""

import ipaddress
import os
import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from daybook.clients.cli.authority import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    Authority,
    common_name_of,
    is_due,
    issuer_of,
    kind_of,
    names_of,
    read_certificate,
    read_key,
    renewal_time,
)
from daybook.clients.cli.errors import UserError
from tests.harness.certificates import Authority as OtherAuthority

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create(NOW)


def written(directory: Path, authority: Authority) -> tuple[Path, Path]:
    own = authority.pair()
    files = (directory / "authority.pem", directory / "authority.key")
    for file, content in zip(files, (own.certificate, own.key), strict=True):
        file.write_bytes(content)
        file.chmod(0o600)
    return files


def certificate_of(content: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(content)


def test_an_authority_lives_for_ten_years_and_signs_no_other_authority(
    authority: Authority,
) -> None:
    own = authority.certificate
    assert own.not_valid_before_utc == NOW - DAY
    assert own.not_valid_after_utc == NOW + AUTHORITY_LIFE == NOW + 3650 * DAY
    limits = own.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert (limits.value.ca, limits.value.path_length) == (True, 0)
    assert kind_of(own) == "authority"
    assert Authority.create(NOW).certificate.subject != own.subject


def test_a_certificate_of_a_server_has_its_names_and_lives_for_ninety_days(
    authority: Authority,
) -> None:
    names = ("broker-1.example", "localhost", "127.0.0.1", "::1", "localhost")
    issued = authority.issue(names, CERTIFICATE_LIFE, NOW)
    found = certificate_of(issued.certificate)
    assert {*names_of(found)} == {*names}
    assert ipaddress.ip_address("::1") in found.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value.get_values_for_type(x509.IPAddress)
    assert found.not_valid_after_utc == NOW + 90 * DAY
    found.verify_directly_issued_by(authority.certificate)
    assert (kind_of(found), common_name_of(found)) == ("server", "broker-1.example")
    assert issuer_of(found) == common_name_of(authority.certificate)
    limits = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca) == (True, False)


def test_a_certificate_of_a_client_is_none_of_a_server(authority: Authority) -> None:
    found = certificate_of(authority.issue_to_client("alice", 30 * DAY, NOW).certificate)
    assert (kind_of(found), common_name_of(found), names_of(found)) == ("client", "alice", ())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_accepts_them_by_its_strictest_rules(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = Authority.create(now)
    trusted, _ = written(tmp_path, authority)
    for purpose, issued in {
        "sslserver": authority.issue(("a.example",), CERTIFICATE_LIFE, now),
        "sslclient": authority.issue_to_client("alice", CERTIFICATE_LIFE, now),
    }.items():
        file = tmp_path / purpose
        file.write_bytes(issued.certificate)
        words = ["openssl", "verify", "-x509_strict", "-purpose", purpose]
        done = subprocess.run(
            [*words, "-CAfile", str(trusted), str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout


def test_one_file_holds_a_certificate_and_its_key(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue(("localhost",), CERTIFICATE_LIFE, NOW)
    for content in (issued.certificate + issued.key, issued.key + issued.certificate):
        file = tmp_path / "server.pem"
        file.write_bytes(content)
        file.chmod(0o600)
        assert read_key(file).public_key() == read_certificate(file).public_key()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, file)


def test_a_certificate_is_due_at_two_thirds_of_its_life(authority: Authority) -> None:
    found = certificate_of(authority.issue(("a",), CERTIFICATE_LIFE, NOW).certificate)
    due = renewal_time(found)
    assert NOW + 59 * DAY < due < NOW + 60 * DAY
    assert not is_due(found, NOW)
    assert not is_due(found, due - timedelta(seconds=1))
    assert is_due(found, due)
    assert is_due(found, NOW - 2 * DAY), "the clock was set back: it is not valid yet"


def test_no_certificate_outlives_its_authority(authority: Authority) -> None:
    end = authority.certificate.not_valid_after_utc
    found = certificate_of(authority.issue(("a",), CERTIFICATE_LIFE, end - DAY).certificate)
    assert found.not_valid_after_utc == end


@pytest.mark.parametrize("name", ["", "a b", "http://a", "a,b", "caf\u00e9", "a/b"])
def test_what_is_no_name_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(UserError, match="no name of a host"):
        authority.issue((name,), DAY, NOW)
    if not name:
        with pytest.raises(UserError, match="1 to 64 characters"):
            authority.issue_to_client(name, DAY, NOW)


def test_a_written_authority_signs_again(authority: Authority, tmp_path: Path) -> None:
    loaded = Authority.load(*written(tmp_path, authority), NOW)
    found = certificate_of(loaded.issue(("a",), DAY, NOW).certificate)
    found.verify_directly_issued_by(authority.certificate)


def test_an_authority_that_cannot_sign_is_explained(authority: Authority, tmp_path: Path) -> None:
    certificate, key = written(tmp_path, authority)
    good = key.read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    _, wrong_key = written(other, Authority.create(NOW))
    locked = OtherAuthority(tmp_path, "mine").issue("locked", password=b"x")
    os.chmod(locked.key, 0o600)
    client = authority.issue_to_client("a", 30 * DAY, NOW)
    leaf, leaf_key = tmp_path / "leaf.pem", tmp_path / "leaf.key"
    leaf.write_bytes(client.certificate)
    leaf_key.write_bytes(client.key)
    leaf_key.chmod(0o600)
    for files, now, said in (
        ((tmp_path / "none", key), NOW, "none cannot be read: No such file"),
        ((certificate, tmp_path / "none"), NOW, "none cannot be read: No such file"),
        ((key, key), NOW, "authority.key is damaged: it holds no certificate"),
        ((certificate, wrong_key), NOW, "does not belong to the authority"),
        ((certificate, locked.key), NOW, "is encrypted"),
        ((leaf, leaf_key), NOW, "is no authority"),
        ((certificate, key), NOW - 9 * DAY, "The clock of this machine says 2026-11-19 12:00"),
        ((certificate, key), NOW + 3650 * DAY, "has expired at 2036-11-25 12:00"),
    ):
        with pytest.raises(UserError, match=said):
            Authority.load(*files, now)
    key.write_bytes(good[:80])
    with pytest.raises(UserError, match=r"authority\.key is damaged: it holds no private key"):
        Authority.load(certificate, key, NOW)
    key.write_bytes(good)
    key.chmod(0o640)
    with pytest.raises(UserError, match=r"mode 640.*chmod 600"):
        Authority.load(certificate, key, NOW)
