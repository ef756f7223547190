"""`daybook tokens`, and the token that other commands take."""

import base64
import hashlib
import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from daybook.clients.cli.credentials import credential_options, given_credentials
from daybook.clients.cli.main import main


def tokens(*arguments: str | Path, given: str = "") -> Result:
    return CliRunner().invoke(main, ["tokens", *map(str, arguments)], input=given)


def made(*arguments: str | Path) -> str:
    result = tokens(*arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def validated(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made("validate", *arguments, "--output", "json"))
    return found


def test_a_secret_key_and_a_token_of_it(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    made("create-secret-key", key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 64
    token = made("create", "--secret-key", key, "--subject", "alice", "--expires", "1h")
    found = validated("--secret-key", key, token)
    assert found["role"] == "alice"
    assert 3500 < found["expires in s"] <= 3600
    shown = json.loads(made("show", token, "--output", "json"))
    assert (shown["alg"], shown["sub"]) == ("HS256", "alice")
    again = tokens("create-secret-key", key)
    assert again.exit_code == 1
    assert "not overwritten" in again.output
    encoded = tmp_path / "encoded"
    made("create-secret-key", encoded, "--base64")
    assert len(base64.b64decode(encoded.read_bytes())) == 64


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_a_key_pair_and_a_token_of_it(tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    made("create-key-pair", private, public, "--algorithm", algorithm)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    token = made("create", "--private-key", private, "--subject", "a", "--key-id", "1")
    found = validated("--public-key", public, token)
    shown = json.loads(made("show", token, "--output", "json"))
    digest = hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()
    assert found == {"role": "a", "expires in s": None, "id": shown["jti"], "digest": digest}
    assert shown["digest"] == digest
    other, both = tmp_path / "other", tmp_path / "both"
    made("create-key-pair", tmp_path / "other private", other)
    assert tokens("validate", "--public-key", other, token).exit_code == 1
    both.write_bytes(other.read_bytes() + public.read_bytes())
    assert validated("--public-key", both, token) == found
    refused = tokens("validate", "--secret-key", public, token)
    assert refused.exit_code == 1
    assert "public or private key" in refused.output


def test_each_token_has_an_id_of_its_own(tmp_path: Path) -> None:
    key = tmp_path / "key"
    made("create-secret-key", key)
    create = ("create", "--secret-key", key, "--subject", "a")
    found = {validated("--secret-key", key, made(*create))["id"] for _ in range(5)}
    assert len(found) == 5
    assert all(len(each) == 32 for each in found)
    assert validated("--secret-key", key, made(*create, "--claim", "jti=mine"))["id"] == "mine"


def test_the_first_of_several_secret_keys_signs(tmp_path: Path) -> None:
    new, old, config = tmp_path / "new", tmp_path / "old", tmp_path / "broker.toml"
    for key in (new, old):
        made("create-secret-key", key)
    config.write_text(f'token_secret_keys = ["{new}", "{old}"]\nsuper_users = ["root"]\n')
    token = made("create", "--superuser", "--config", config)
    assert validated("--secret-key", new, token)["role"] == "root"


def test_a_token_for_a_super_user_needs_the_settings_of_a_broker_only(tmp_path: Path) -> None:
    key, config = tmp_path / "key", tmp_path / "broker.toml"
    made("create-secret-key", key)
    config.write_text(
        f'token_secret_key = "{key}"\nsuper_users = ["root", "x"]\ntoken_audience = "us"\n'
    )
    token = made("create", "--superuser", "--config", config)
    assert validated("--secret-key", key, "--audience", "us", token)["role"] == "root"
    for wrong in (
        ("--superuser",),
        ("--superuser", "--config", config, "--subject", "a"),
        ("--config", config),
        ("--subject", "a"),
        ("--secret-key", key, "--private-key", key, "--subject", "a"),
        ("--secret-key", key, "--subject", "a", "--expires", "soon"),
        ("--secret-key", key, "--subject", "a", "--claim", "x"),
    ):
        assert tokens("create", *wrong).exit_code != 0, wrong


def test_what_is_wrong_with_a_token_is_said_without_it(tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    made("create-secret-key", key)
    made("create-secret-key", other)
    token = made("create", "--secret-key", key, "--subject", "a", "--claim", "role=b")
    assert validated("--secret-key", key, "--role-claim", "role", token)["role"] == "b"
    for result in (
        tokens("validate", "--secret-key", other, token),
        tokens("validate", "--secret-key", key, "--audience", "us", given=token),
        tokens("validate", "--secret-key", key, f"{token}x"),
        tokens("show", "nonsense"),
    ):
        assert result.exit_code == 1
        assert token not in result.output


@click.command()
@credential_options
def echo() -> None:
    """Show what a command would send."""
    found = given_credentials("pulsar://x")
    click.echo(found.token or (found.basic() if found.basic else "nothing"))


def test_the_token_of_a_command(tmp_path: Path) -> None:
    file = tmp_path / "token"
    runner = CliRunner()
    assert runner.invoke(echo, []).output == "nothing\n"
    assert runner.invoke(echo, ["--token", "abc"]).output == "abc\n"
    assert runner.invoke(echo, [], env={"DAYBOOK_TOKEN": "abc"}).output == "abc\n"
    uri = f"{file.as_uri()}\n"
    assert runner.invoke(echo, ["--token-file", str(file)]).output == uri
    assert runner.invoke(echo, [], env={"DAYBOOK_TOKEN_FILE": str(file)}).output == uri
    both = runner.invoke(echo, ["--token", "abc", "--token-file", str(file)])
    assert both.exit_code == 1
    assert "abc" not in both.output


def test_the_password_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("password").write_text("secret\n")
    given = ["--basic-user", "ann", "--basic-password-file", "password"]
    runner = CliRunner()
    assert runner.invoke(echo, given).output == "ann:secret\n"
    variables = {"DAYBOOK_BASIC_USER": "ann", "DAYBOOK_BASIC_PASSWORD_FILE": "password"}
    assert runner.invoke(echo, [], env=variables).output == "ann:secret\n"
    for wrong in (given[:2], given[2:], [*given, "--token", "abc"], ["--basic-user", "a:b"]):
        refused = runner.invoke(echo, wrong)
        assert refused.exit_code == 1, wrong
        assert "secret" not in refused.output
        assert "abc" not in refused.output
    assert "need each other" in runner.invoke(echo, given[:2]).output


def test_times_of_a_token_are_shown_in_words_too(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    made("create-secret-key", key)
    times = ("--claim", "sub2=x", "--expires", "1h")
    token = made("create", "--secret-key", key, "--subject", "alice", *times)
    told = json.loads(made("show", token, "--output", "json"))
    assert isinstance(told["exp"], int)
    lines = dict(line.split(maxsplit=1) for line in made("show", token).splitlines())
    for name in ("iat", "exp"):
        number, words = lines[name].split(maxsplit=1)
        assert number == str(told[name])
        assert words.strip("()") == datetime.fromtimestamp(told[name], UTC).isoformat()
