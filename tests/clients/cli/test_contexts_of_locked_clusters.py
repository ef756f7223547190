"""Contexts of clusters whose ZooKeeper and bookies are locked, and what `context add` warns of."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from daybook.broker.security.keys import TokenKey
from daybook.broker.security.tokens import create
from daybook.clients.cli import contexts
from daybook.clients.cli.main import main
from daybook.clients.cli.options import (
    bookie_access,
    bookie_options,
    cluster_options,
    storage_of_query,
    storage_options,
    zookeeper_options,
)
from daybook.clients.cli.zookeeper_access import zookeeper_access
from daybook.wire.metadata.acl import digest_identity
from tests.harness.certificates import Authority

ZOOKEEPER, BROKERS = "127.0.0.1:29", "pulsar+ssl://127.0.0.1:9"
STORAGE = (
    *("--zookeeper-tls", "--zookeeper-user", "zoe", "--zookeeper-password-file", "password"),
    *("--bookie-tls", "--bookie-user", "bob", "--bookie-password-file", "password"),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Path("password").write_text("very-secret\n")
    authority = Authority(tmp_path)
    issued = authority.issue("admin")
    Path("ca.pem").write_bytes(authority.trusted.read_bytes())
    Path("admin.pem").write_bytes(issued.certificate.read_bytes() + issued.key.read_bytes())
    return tmp_path


def add(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["context", "add", "boss", *words])
    assert done.exit_code == code, done.output
    assert "very-secret" not in done.output
    return done


def locked(*words: str) -> None:
    files = ("--tls-trusted", "ca.pem", "--tls-certificate", "admin.pem", "--tls-key", "admin.pem")
    addresses = ("--service-url", BROKERS, "--zookeeper", ZOOKEEPER)
    add(*addresses, *files, *(words or STORAGE), "--use")


def access(*words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what a command about ledgers would show to ZooKeeper and to bookies."""
    found: dict[str, Any] = {}

    @click.command()
    @bookie_options
    @zookeeper_options
    def command(zookeeper: str, root: str) -> None:
        keeper, bookies = zookeeper_access(zookeeper), bookie_access()
        tls = keeper.tls
        found["root"] = root
        found["zookeeper"] = None if tls is None else (tls.trusted, tls.certificate, tls.key)
        found["verify"] = keeper.verify_host
        found["zookeeper user"] = keeper.user, keeper.password_file
        found["bookie"] = bookies.tls, bookies.trusted, bookies.certificate, bookies.key
        found["bookie user"] = bookies.user, bookies.password_file

    done = CliRunner().invoke(command, words, env=env)
    assert done.exit_code == 0, done.output
    return found


def test_zookeeper_and_bookies_get_the_tls_and_the_users_of_the_context(here: Path) -> None:
    locked(*STORAGE, "--ledgers-root", "/ours", "--tls-no-verify-host")
    ca, admin, password = here / "ca.pem", here / "admin.pem", here / "password"
    assert access() == {
        "root": "/ours",
        "zookeeper": (ca, admin, admin),
        "verify": False,
        "zookeeper user": ("zoe", password),
        "bookie": (True, str(ca), str(admin), str(admin)),
        "bookie user": ("bob", str(password)),
    }


def test_the_files_of_a_context_serve_when_only_options_ask_for_tls(here: Path) -> None:
    locked("--tls-verify-host")
    found = access("--zookeeper-tls", "--bookie-tls")
    assert found["zookeeper"] == (here / "ca.pem", here / "admin.pem", here / "admin.pem")
    assert found["bookie"][:2] == (True, str(here / "ca.pem"))
    assert access()["zookeeper"] is None
    assert access()["bookie"][0] is False


def test_another_zookeeper_is_shown_nothing_of_the_context() -> None:
    locked(*STORAGE, "--ledgers-root", "/ours")
    for found in (access("--zookeeper", "evil:1"), access(env={"DAYBOOK_ZOOKEEPER": "evil:1"})):
        assert found["root"] == "/ledgers"
        assert (found["zookeeper"], found["zookeeper user"]) == (None, ("", None))
        assert (found["bookie"], found["bookie user"]) == ((False, None, None, None), ("", None))


def test_options_and_variables_go_before_the_context(here: Path) -> None:
    locked()
    found = access("--no-zookeeper-tls", env={"DAYBOOK_BOOKIES_TLS": "false"})
    assert (found["zookeeper"], found["bookie"][0]) == (None, False)
    found = access("--tls-trusted", "other.pem", "--ledgers-root", "/l")
    assert found["zookeeper"] == (Path("other.pem"), here / "admin.pem", here / "admin.pem")
    assert (str(found["bookie"][1]), found["root"]) == ("other.pem", "/l")


def test_a_user_is_never_given_the_password_of_another_one() -> None:
    locked()

    @click.command()
    @bookie_options
    @zookeeper_options
    def command(zookeeper: str, root: str) -> None:
        del root
        zookeeper_access(zookeeper)
        bookie_access()

    for words in (("--zookeeper-user", "eve"), ("--bookie-user", "eve")):
        done = CliRunner().invoke(command, words)
        assert "belong together" in f"{done.exception} {done.output}"


def test_workers_of_a_query_get_the_storage_of_the_context(here: Path) -> None:
    locked()
    found: list[dict[str, str]] = []

    @click.command()
    @storage_options
    @cluster_options
    def command(service_url: str, admin_url: str) -> None:
        del admin_url
        found.append(storage_of_query(service_url))

    admin = ("--admin-url", "https://127.0.0.1:8")
    assert CliRunner().invoke(command, [*admin, "--context", "boss"]).exit_code == 0
    assert CliRunner().invoke(command, [*admin, "--service-url", "pulsar://evil"]).exit_code == 0
    password, pem = str(here / "password"), str(here / "admin.pem")
    assert found == [
        {
            "bookie.tls": "true",
            "zookeeper.tls": "true",
            "tls.trusted": str(here / "ca.pem"),
            "tls.certificate": pem,
            "tls.key": pem,
            "bookie.user": "bob",
            "bookie.password.file": password,
            "zookeeper.user": "zoe",
            "zookeeper.password.file": password,
        },
        {},
    ]


def test_the_identity_is_that_of_the_context() -> None:
    locked()
    done = CliRunner().invoke(main, ["cluster", "identity"])
    assert done.output.strip() == digest_identity("zoe", "very-secret")
    options = ("--zookeeper-user", "amy", "--zookeeper-password-file", "password")
    done = CliRunner().invoke(main, ["cluster", "identity", *options])
    assert done.output.strip() == digest_identity("amy", "very-secret")


def test_lists_show_paths_and_no_secrets() -> None:
    locked()
    done = CliRunner().invoke(main, ["context", "show", "--output", "json"])
    shown = json.loads(done.output)
    assert (shown["zookeeper_user"], shown["bookie_tls"]) == ("zoe", True)
    assert shown["bookie_password_file"].endswith("/password")
    for command in ("list", "show"):
        assert "very-secret" not in CliRunner().invoke(main, ["context", command]).output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--zookeeper-user", "zoe"), "--zookeeper-user and --zookeeper-password-file belong"),
        (("--bookie-password-file", "password"), "--bookie-user and --bookie-password-file belong"),
        (
            ("--zookeeper-user", "z:e", "--zookeeper-password-file", "password"),
            "must not have a colon",
        ),
        (
            ("--zookeeper-user", "zoe", "--zookeeper-password-file", "none"),
            "none cannot be read: No such file or directory (--zookeeper-password-file)",
        ),
        (
            ("--bookie-user", "bob", "--bookie-password-file", "none"),
            "No such file or directory: '",
        ),
        (("--tls-trusted", "ca.pem"), "they are also for --zookeeper-tls and --bookie-tls"),
    ],
)
def test_what_no_command_could_use_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in " ".join(add("--zookeeper", ZOOKEEPER, *words, code=1).output.split())
    assert contexts.load().contexts == {}


def token(**claims: object) -> None:
    Path("token").write_text(create(TokenKey(b"k" * 64, ("HS256",)), {"sub": "a", **claims}, {}))


def test_an_expired_token_is_a_warning() -> None:
    token(exp=1_700_000_000)
    said = " ".join(add("--admin-url", "https://x", "--token-file", "token").stderr.split())
    assert said.startswith("Warning: the token in ")
    assert "has expired at 2023-11-14T22:13:20+00:00" in said
    token(exp=99_999_999_999)
    assert not add("--admin-url", "https://x", "--token-file", "token", "--replace").stderr


@pytest.mark.parametrize(
    ("urls", "warned"),
    [
        (("--service-url", "pulsar://b:1"), ["pulsar://b:1"]),
        (("--admin-url", "http://127.0.0.1:1,10.0.0.1:1"), ["http://127.0.0.1:1,10.0.0.1:1"]),
        (
            ("--service-url", "pulsar://b:1", "--admin-url", "http://b"),
            ["pulsar://b:1", "http://b"],
        ),
        (("--service-url", "pulsar://localhost", "--admin-url", "http://[::1]:8080"), []),
        (("--service-url", "pulsar+ssl://b", "--admin-url", "https://b"), []),
    ],
)
def test_credentials_in_the_clear_are_a_warning(urls: tuple[str, ...], warned: list[str]) -> None:
    token()
    said = add(*urls, "--token-file", "token").stderr.splitlines()
    assert [line.split()[1] for line in said] == warned
    assert all("can read the token" in line for line in said)
    assert not add(*urls, "--replace").stderr
    user = ("--basic-user", "ann", "--basic-password-file", "password", "--replace")
    assert add(*urls, *user).stderr.count("can read the password") == len(warned)


def test_the_password_for_zookeeper_in_the_clear_is_a_warning() -> None:
    user = ("--zookeeper-user", "zoe", "--zookeeper-password-file", "password", "--replace")
    assert "can read the password of --zookeeper-user" in add("--zookeeper", "zk:1", *user).stderr
    assert not add("--zookeeper", "zk:1", "--zookeeper-tls", *user).stderr
    assert not add("--zookeeper", ZOOKEEPER, *user).stderr
