"""`daybook bookies password`: lines that bookies accept, and passwords that nobody sees."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from daybook.clients.cli import bookie_users
from daybook.clients.cli.main import main
from daybook.wire.digest_md5 import secret_of
from daybook.wire.digest_users import parse_users, user_line


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, typed: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(main, ["bookies", "password", "users", *arguments], input=typed)
    assert done.exit_code == code, done.output
    assert "secret" not in done.output
    return done.output


def state(*arguments: str, typed: str = "") -> object:
    return json.loads(run(*arguments, "--output", "json", typed=typed))["state"]


def users() -> dict[str, bytes]:
    return parse_users(Path("users").read_text())


def test_a_user_is_added_changed_and_removed() -> None:
    assert state("broker", typed="secret-1\nsecond line\n") == "added"
    assert Path("users").read_text() == f"broker:bookkeeper:{users()['broker'].hex()}\n"
    assert stat.S_IMODE(Path("users").stat().st_mode) == 0o600
    other = user_line("a:b", "secret-2")  # as `htdigest` may have written it
    Path("users").write_text(f"# a comment\n{Path('users').read_text()}{other}\n")
    Path("password").write_text("secret-2\r\n")
    assert state("broker", "--password-file", "password") == "changed"
    assert len(Path("users").read_text().splitlines()) == 3
    wanted = {name: secret_of(name, "secret-2") for name in ("a:b", "broker")}
    assert users() == wanted
    assert state("a:b", "--remove") == "removed"
    assert users() == {"broker": wanted["broker"]}
    assert Path("users").read_text().startswith("# a comment\n")
    assert "has no user 'a:b'" in run("a:b", "--remove", code=1)


def test_a_password_is_made() -> None:
    assert state("broker", "--generate", "made") == "added"
    made = Path("made").read_text()
    assert len(made.strip()) == 32
    assert stat.S_IMODE(Path("made").stat().st_mode) == 0o600
    assert users() == {"broker": secret_of("broker", made.strip())}
    assert "exists already" in run("broker", "--generate", "made", code=1)


def test_the_user_is_asked_twice_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class Terminal:
        def isatty(self) -> bool:
            return True

    def prompt(text: str, *, hide_input: bool, confirmation_prompt: bool, err: bool) -> str:
        del text, err
        asked.append(hide_input and confirmation_prompt)
        return "secret"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(click, "prompt", prompt)
    assert bookie_users._password("broker", None, None) == "secret"
    assert asked == [True]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "is no user"),
        (("a\nb",), "is no user"),
        (("#a",), "is no user"),
        (("te:mp",), "colons separate the parts of a line"),
        (("a",), "The password is empty"),
        (("a", "--password-file", "none"), "No such file or directory (--password-file)"),
        (("a", "--password-file", "odd"), "not a text in UTF-8"),
    ],
)
def test_mistakes_write_nothing(arguments: tuple[str, ...], says: str) -> None:
    Path("odd").write_bytes(b"\xffsecret")
    assert says in run(*arguments, code=1)
    assert not Path("users").exists()


def test_other_files_stay_as_they_are() -> None:
    assert "Give one of" in run("a", "--remove", "--generate", "x", code=2)
    for content in (b"ann:$apr1$secret\n", b"\xffsecret"):
        Path("users").write_bytes(content)
        assert "is not a file of users" in run("a", typed="x\n", code=1)
        assert Path("users").read_bytes() == content


def test_several_at_once_lose_nobody() -> None:
    names = [f"user-{number}" for number in range(8)]
    Path("password").write_text("secret-1\n")
    command = [sys.executable, "-m", "daybook", "bookies", "password", "users"]
    running = [
        subprocess.Popen([*command, name, "--password-file", "password"], stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [each.wait() for each in running] == [0] * len(names)
    assert sorted(users()) == names


@pytest.mark.parametrize("make", [os.mkfifo, partial(os.symlink, "/dev/null")])
def test_a_pipe_or_a_device_is_no_file_of_users(make: Callable[[str], None]) -> None:
    make("users")
    assert "not a regular file" in run("broker", typed="secret-1\n", code=1)
