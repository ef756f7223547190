"""`daybook certificates`."""

import json
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from daybook.clients.cli.main import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def certificates(*words: str) -> Result:
    return CliRunner().invoke(main, ["certificates", *words])


def made(*words: str) -> str:
    done = certificates(*words)
    assert done.exit_code == 0, done.output
    return done.output


def shown(*words: str) -> dict[str, dict[str, Any]]:
    rows = json.loads(made("show", *words, "--output", "json"))
    return {Path(row["file"]).name: row for row in rows}


def mode_of(file: str) -> int:
    return stat.S_IMODE(Path(file).stat().st_mode)


def test_an_authority_and_what_it_signs() -> None:
    made("create-authority")
    made("create-server", "m1.example", "--san", "10.0.0.1", "--days", "30")
    made("create-client", "alice")
    assert mode_of("certificates") == 0o700
    for name in ("authority", "m1.example", "alice"):
        assert mode_of(f"certificates/{name}.key") == 0o600
        assert mode_of(f"certificates/{name}.pem") == 0o644
    rows = shown()
    assert {name: row["kind"] for name, row in rows.items()} == {
        "authority.pem": "authority",
        "m1.example.pem": "server",
        "alice.pem": "client",
    }
    assert rows["m1.example.pem"]["names"] == "m1.example,10.0.0.1"
    assert rows["m1.example.pem"]["days left"] == 29
    assert rows["alice.pem"]["days left"] == 89
    assert rows["alice.pem"]["signed by"] == rows["authority.pem"]["name"]
    assert shown("certificates/alice.pem").keys() == {"alice.pem"}


def test_a_renewed_certificate_fits_its_key_and_keeps_its_names() -> None:
    made("create-authority")
    made("create-server", "m1", "--san", "::1", "--days", "10")
    key = Path("certificates/m1.key").read_bytes()
    before = Path("certificates/m1.pem").read_bytes()
    refused = certificates("create-server", "m1")
    assert refused.exit_code == 1
    assert "m1.pem exists already, and is not overwritten" in refused.output
    assert Path("certificates/m1.pem").read_bytes() == before
    made("create-server", "m1", "--renew")
    row = shown()["m1.pem"]
    assert (row["names"], row["days left"]) == ("m1,::1", 89)
    assert Path("certificates/m1.key").read_bytes() == key
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        "certificates/m1.pem", "certificates/m1.key"
    )
    made("create-server", "m1", "--renew", "--san", "other")
    assert shown()["m1.pem"]["names"] == "m1,other"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show",), "There are no certificates"),
        (("show", "none.pem"), "none.pem cannot be read"),
        (("create-server", "m1"), "There is no authority in certificates: make one with"),
        (("create-client", "m1", "--directory", "d"), "There is no authority in d"),
        (("create-server", "a/b"), "cannot be the name of a certificate"),
        (("create-client", "authority"), "cannot be the name of a certificate"),
    ],
)
def test_what_cannot_be_done_is_said(words: tuple[str, ...], said: str) -> None:
    done = certificates(*words)
    assert done.exit_code == 1
    assert said in " ".join(done.output.split())


def test_an_authority_is_never_overwritten_nor_is_a_key_without_a_certificate() -> None:
    made("create-authority")
    before = Path("certificates/authority.key").read_bytes()
    assert certificates("create-authority").exit_code == 1
    assert Path("certificates/authority.key").read_bytes() == before
    Path("certificates/m1.key").write_text("precious")
    done = certificates("create-server", "m1")
    assert "m1.key exists already" in done.output
    assert Path("certificates/m1.key").read_text() == "precious"
    assert not Path("certificates/m1.pem").exists()
    assert "cannot be read" in certificates("create-client", "new", "--renew").output


def test_a_key_that_others_may_read_signs_nothing() -> None:
    made("create-authority")
    Path("certificates/authority.key").chmod(0o644)
    done = certificates("create-client", "alice")
    assert done.exit_code == 1
    assert "Other users of this machine may use certificates/authority.key" in done.output
    assert not Path("certificates/alice.pem").exists()
