"""`daybook tokens revoke` and `check`: the list of revoked tokens, line by line."""

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from daybook.broker.security.keys import TokenKey
from daybook.broker.security.revoked import parse
from daybook.broker.security.tokens import create, digest_of
from daybook.clients.cli.main import main

LIST = Path("revoked")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str, *words: str, code: int = 0, typed: str = "") -> str:
    done = CliRunner().invoke(main, ["tokens", command, str(LIST), *words], input=typed)
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def token(**claims: object) -> str:
    return create(TokenKey(b"k" * 64, ("HS256",)), {"sub": "alice", **claims}, {})


def test_a_token_is_revoked_by_its_id() -> None:
    LIST.write_text("# the laptop\nid 1\n")
    LIST.chmod(0o644)
    assert "state added" in run("revoke", typed=f"{token(jti='7')}\n")
    assert LIST.read_text() == "# the laptop\nid 1\nid 7\n"
    assert stat.S_IMODE(LIST.stat().st_mode) == 0o644, "the broker can still read it"
    Path("token").write_text(token(jti="8"))
    run("revoke", "--token-file", "token")
    run("revoke", "--id", "a b")
    assert parse(LIST.read_bytes()).ids == {"1", "7", "8", "a b"}
    assert "state known" in run("revoke", "--id", "8")
    assert LIST.read_text().count("id 8") == 1
    assert sorted(os.listdir()) == ["revoked", "token"]


@pytest.mark.parametrize("claims", [{}, {"jti": " 7"}, {"jti": "7\nid 8"}, {"jti": ""}])
def test_a_token_without_an_id_for_a_line_is_revoked_by_its_digest(
    claims: dict[str, object],
) -> None:
    made = token(**claims)
    run("revoke", typed=made)
    assert LIST.read_text() == f"digest {digest_of(made).hex()}\n"
    assert stat.S_IMODE(LIST.stat().st_mode) == 0o600
    assert made not in LIST.read_text()


def test_the_older_tokens_of_a_role_are_revoked() -> None:
    run("revoke", "--role", "the alice", "--before", "2026-11-28T06:00+01:00")
    assert LIST.read_text() == "role the alice 2026-11-28T05:00:00Z\n"
    assert "state known" in run("revoke", "--role", "the alice", "--before", "2026-11-28T04:00Z")
    before = datetime.now(UTC).timestamp()
    run("revoke", "--role", "ben")
    assert parse(LIST.read_bytes()).before_s["ben"] >= before - 1


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        ((), "the token cannot be parsed: nothing was revoked", 1),
        (("--token-file", "none"), "No such file or directory (--token-file)", 1),
        (("--id", "a\nid b"), "is no id that a line can hold", 1),
        (("--id", " "), "is no id that a line can hold", 1),
        (("--role", "a\nid b"), "is no role that a line can hold", 1),
        (("--role", " a"), "is no role that a line can hold", 1),
        (("--role", "a", "--before", "soon"), "--before must be a time", 1),
        (("--before", "1h"), "--before needs --role", 2),
        (("--role", "a", "--id", "7"), "Give one of --token-file, --id and --role", 2),
    ],
)
def test_mistakes_write_nothing(words: tuple[str, ...], says: str, code: int) -> None:
    assert says in run("revoke", *words, code=code, typed="secret")
    assert not LIST.exists()


@pytest.mark.parametrize("content", [b"idd 1\n", b"id 1\nid 2", b"\xff\n"])
def test_a_list_that_brokers_do_not_use_is_left_alone(content: bytes) -> None:
    LIST.write_bytes(content)
    assert "names all wrong lines" in run("revoke", "--id", "7", code=1)
    assert LIST.read_bytes() == content


def test_a_list_that_would_be_too_large_is_left_alone() -> None:
    LIST.write_bytes(b"#" * ((1 << 20) - 2) + b"\n")
    assert "would be larger than 1,048,576 bytes" in run("revoke", "--id", "7", code=1)


def test_every_wrong_line_is_named() -> None:
    LIST.write_bytes(b"id 1\nidd secret\n\n\xff\nrole a secret\nid 2")
    found = CliRunner().invoke(main, ["tokens", "check", str(LIST), "--output", "json"])
    assert found.exit_code == 1
    rows = {row["line"]: row["problem"] for row in json.loads(found.output)}
    assert rows == {
        2: "it is not `id ID`, `digest SHA256` or `role ROLE TIME`",
        4: "it is not UTF-8",
        5: "the time has to be such as 2026-11-28T06:00:00Z, or a number of seconds since 1970",
        6: "it is not complete: end it with a line feed",
    }
    assert "secret" not in run("check", code=1)


def test_a_right_list_is_counted() -> None:
    LIST.write_text("# x\nid 1\nrole a 5\nrole a 6\n")
    assert run("check") == "revoked_tokens_file revoked tokens 1 roles 1"
    LIST.unlink()
    assert "No such file or directory" in run("check", code=1)


@pytest.mark.parametrize("command", ["revoke", "check"])
def test_what_brokers_would_not_read_is_not_read(command: str) -> None:
    """A pipe would hold the command up for ever."""
    os.mkfifo("revoked")
    more = ("--id", "7") if command == "revoke" else ()
    assert "it is not a regular file" in run(command, *more, code=1)
