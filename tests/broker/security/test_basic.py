"""Users and passwords: the hashes of htpasswd, files that change, and what is remembered."""

import base64
import os
import threading
from hashlib import sha1
from pathlib import Path
from random import Random

import bcrypt
import pytest
import trio
import trio.testing

from daybook.broker.errors import UnavailableError
from daybook.broker.security import apr1, basic
from daybook.broker.security.basic import Passwords, matches, parse
from daybook.broker.security.tokens import WrongCredentialsError
from daybook.wire.logging import silent_log
from daybook.wire.settings import ConfigError

# Made with `openssl passwd -apr1 -salt`.
APR1 = {
    ("myPassword", "r31....."): "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/",
    ("a", "abcdefgh"): "$apr1$abcdefgh$G8IsPsylW5ROvIKsQMRG61",
    ("", "abcdefgh"): "$apr1$abcdefgh$L.PT565ESX4Tp2bqNs7Ie.",
    ("a" * 32, "abcdefgh"): "$apr1$abcdefgh$2vYcYeWymveamQODB6Vav.",
    ("pässword", "abcdefgh"): "$apr1$abcdefgh$rRdIxwY5XRHT4TMtBPZn.0",
}
_SALT = b"$2b$04$abcdefghijklmnopqrstuu"  # the same in each process that runs tests
BCRYPT = bcrypt.hashpw(b"secret", _SALT).decode().replace("$2b$", "$2y$")
SHA = "{SHA}" + base64.b64encode(sha1(b"secret").digest()).decode()


def passwords(path: Path, text: str) -> Passwords:
    path.write_text(text)
    return Passwords(path, Random(1), silent_log())


async def role(users: Passwords, data: bytes) -> str:
    """Return the role, or the kind of the refusal."""
    try:
        return (await users.verify(data)).role
    except WrongCredentialsError as error:
        kind, shown = error.kind, str(error)
    assert "secret" not in shown
    return f"({kind})"


@pytest.mark.parametrize(("password", "salt"), APR1)
def test_apr1_is_that_of_openssl(password: str, salt: str) -> None:
    stored = APR1[password, salt]
    assert apr1.hashed(password.encode(), salt) == stored
    assert matches(password.encode(), stored)
    assert not matches(password.encode() + b"x", stored)


@pytest.mark.parametrize("stored", [BCRYPT, SHA, apr1.hashed(b"secret", "salt")])
def test_each_hash_is_checked(stored: str) -> None:
    assert matches(b"secret", stored)
    for wrong in (b"", b"Secret", b"secret ", b"secret\0x", b"x" * 100):
        assert not matches(wrong, stored)


@pytest.mark.parametrize(
    "stored", ["$2y$", "$2y$05$short", "$apr1$", "$apr1$abc", "{SHA}", "{SHA}?"]
)
def test_half_a_hash_matches_nothing(stored: str) -> None:
    assert not matches(b"", stored)
    assert not matches(b"secret", stored)


def test_bcrypt_does_not_match_a_password_that_only_begins_alike() -> None:
    stored = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    assert matches(b"x" * 72, stored)
    assert not matches(b"x" * 73, stored)


async def test_users_and_wrong_passwords(tmp_path: Path) -> None:
    users = passwords(tmp_path / "f", f"# people\nann:{BCRYPT}\n\nben:{SHA}\n")
    for _ in range(2):  # the second time from memory
        assert await role(users, b"ann:secret") == "ann"
        assert await role(users, b"ben:secret") == "ben"
        assert await role(users, b"ann:wrong") == "(password)"
        assert await role(users, b"eve:secret") == "(password)"
    for data in (b"", b"ann", b":secret", b"a\nn:secret", b"x" * 2000 + b":secret"):
        assert await role(users, data) == "(malformed)"


async def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "f"
    users = passwords(path, f"ann:{BCRYPT}\n")
    assert await role(users, b"ann:secret") == "ann"
    path.write_text(f"ann:{apr1.hashed(b'other', 'salt')}\nben:{SHA}\n")
    assert await role(users, b"ann:secret") == "(password)"
    assert await role(users, b"ann:other") == "ann"
    assert await role(users, b"ben:secret") == "ben"
    os.unlink(path)  # It is about to be replaced: nobody is locked out.
    assert await role(users, b"ben:secret") == "ben"
    path.write_text("half a line")
    assert await role(users, b"ben:secret") == "ben"
    path.write_text("")
    assert await role(users, b"ben:secret") == "(password)"


async def test_right_passwords_are_remembered_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = passwords(tmp_path / "f", f"ann:{BCRYPT}\nben:{SHA}\n")
    assert await role(users, b"ann:secret") == "ann"
    assert b"secret" not in b"".join(users._right)
    checked = []

    def counted(password: bytes, stored: str) -> bool:
        checked.append(stored)
        return matches(password, stored)

    monkeypatch.setattr(basic, "matches", counted)
    assert await role(users, b"ann:secret") == "ann"
    assert checked == []
    assert await role(users, b"ann:wrong") == "(password)"
    assert await role(users, b"ann:wrong") == "(password)"
    assert len(checked) == 2, "a wrong password must never be remembered"
    monkeypatch.setattr(basic, "_REMEMBERED_MAX", 1)
    assert await role(users, b"ben:secret") == "ben"
    assert len(users._right) == 1


async def test_an_unknown_user_costs_as_much_as_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = passwords(tmp_path / "f", f"ann:{BCRYPT}\n")
    checked = []
    monkeypatch.setattr(basic, "matches", lambda _, stored: checked.append(stored))
    assert await role(users, b"eve:secret") == "(password)"
    assert checked == [BCRYPT]


async def test_an_unknown_user_costs_as_much_as_the_slowest_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = apr1.hashed(b"secret", "salt")
    users = passwords(tmp_path / "f", f"ben:{SHA}\nann:{BCRYPT}\neve:{cheap}\n")
    checked = []
    monkeypatch.setattr(basic, "matches", lambda _, stored: checked.append(stored))
    assert await role(users, b"zoe:secret") == "(password)"
    assert checked == [BCRYPT]


async def test_a_flood_of_wrong_passwords_is_bounded_and_does_not_reach_remembered_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = passwords(tmp_path / "f", f"ann:{BCRYPT}\nben:{SHA}\n")
    assert await role(users, b"ann:secret") == "ann"
    go_on = threading.Event()
    monkeypatch.setattr(basic, "matches", lambda *_: go_on.wait() and False)
    outcomes: list[str] = []

    async def flood() -> None:
        try:
            outcomes.append(await role(users, b"ben:wrong"))
        except UnavailableError as error:
            outcomes.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(basic.WAITING_MAX + 10):
            nursery.start_soon(flood)
        await trio.testing.wait_all_tasks_blocked()
        assert len(outcomes) == 10
        assert all("too many passwords" in each for each in outcomes)
        assert await role(users, b"ann:secret") == "ann"
        go_on.set()
    assert outcomes[10:] == ["(password)"] * basic.WAITING_MAX


@pytest.mark.parametrize("text", ["ann", ":x", "ann:plain", "ann:$1$salt$hash", "ann:"])
def test_a_line_that_is_not_one_of_htpasswd_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1") as caught:
        parse(text)
    assert "plain" not in str(caught.value)


def test_a_broker_does_not_start_without_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="basic_file"):
        Passwords(tmp_path / "missing", Random(1), silent_log())
