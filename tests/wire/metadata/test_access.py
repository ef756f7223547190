"""The identity of a process for ZooKeeper: the settings and the file of the password."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from daybook.bookie.replication import config as autorecovery
from daybook.bookie.server import config as bookie
from daybook.broker import config as broker
from daybook.wire.metadata.access import (
    PasswordFileError,
    ZooKeeperAccess,
    access_of_settings,
    read_password,
)
from daybook.wire.settings import ConfigError
from daybook.wire.tls_files import TlsFiles


@pytest.mark.parametrize("text", ["p w", "p w\n", "p w\r\n", "p w\n\n"])
def test_the_password_is_the_line_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "password").write_text(text, newline="")
    assert read_password(tmp_path / "password") == "p w"


@pytest.mark.parametrize("content", [b"", b"\n", b"one\ntwo\n", b"\xff\xfe"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(PasswordFileError, match="the password file"):
        read_password(tmp_path / "password")


def test_no_text_about_credentials_has_the_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("geheim")
    access = ZooKeeperAccess(user="daybook", password_file=tmp_path / "password")
    found = access.credentials()
    assert found is not None
    assert (found.user, found.password) == ("daybook", "geheim")
    assert "geheim" not in f"{found!r} {found} {access!r}"


@dataclass(frozen=True)
class Settings:
    zookeeper_tls: bool = False
    zookeeper_user: str = ""
    zookeeper_password_file: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_trusted: str = ""


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"zookeeper_user": "daybook"}, "belong together"),
        ({"zookeeper_password_file": "/p"}, "belong together"),
        ({"zookeeper_user": "a:b", "zookeeper_password_file": "/p"}, "must not have a colon"),
        ({"zookeeper_tls": True, "tls_certificate": "/c"}, "belong together"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        access_of_settings(Settings(**settings))  # type: ignore[arg-type]


def test_each_process_has_the_settings() -> None:
    values: dict[str, object] = {
        "zookeeper_tls": True,
        "zookeeper_user": "daybook",
        "zookeeper_password_file": "/p",
        "tls_certificate": "/c",
        "tls_key": "/k",
        "tls_trusted": "/t",
    }
    wanted = ZooKeeperAccess(
        TlsFiles(Path("/c"), Path("/k"), Path("/t")), True, "daybook", Path("/p")
    )
    environ = {
        f"DAYBOOK_AUTORECOVERY_{name.upper()}": "true" if value is True else str(value)
        for name, value in values.items()
    }
    assert broker.parse(values).zookeeper_access == wanted
    assert bookie.parse({**values, "directories": ["/d"]}).zookeeper_access == wanted
    assert autorecovery.load(None, environ).zookeeper_access == wanted
    assert wanted.has_identity
    assert not broker.parse({}).zookeeper_access.has_identity
    with pytest.raises(ConfigError, match="zookeeper_user and zookeeper_password_file"):
        broker.parse({"zookeeper_user": "daybook"})
