"""Contexts: clusters by name, whose credentials are for their own addresses alone."""

import json
import stat
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from daybook.clients.cli import contexts
from daybook.clients.cli.main import main
from daybook.clients.cli.options import (
    admin_url_option,
    client_arguments,
    cluster_options,
    zookeeper_options,
)
from tests.clients.cli.conftest import Daybook
from tests.harness.certificates import Authority

PROD = "pulsar://127.0.0.1:9"
PROD_ADMIN = "http://127.0.0.1:9"
OTHER = "http://127.0.0.1:19"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Path("token").write_text("eyJ.very-secret.x")
    Path("password").write_text("very-secret")
    return tmp_path


def run(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    done = CliRunner().invoke(main, list(arguments), env=env)
    assert done.exit_code == code, done.output
    assert "very-secret" not in done.output
    return done.output


def add(name: str, *arguments: str) -> str:
    return run("context", "add", name, *arguments)


def prod(*arguments: str) -> str:
    urls = ("--service-url", PROD, "--admin-url", PROD_ADMIN, "--zookeeper", "127.0.0.1:29")
    return add("prod", *urls, "--token-file", "token", *arguments)


def shown(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("context", "show", name, "--output", "json"))
    return found


def test_a_context_is_kept_for_the_user_alone(here: Path) -> None:
    prod()
    file = here / "config/daybook/contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "very-secret" not in file.read_text()
    assert shown("prod") == {
        "context": "prod",
        "in_use": False,
        "service_url": PROD,
        "admin_url": PROD_ADMIN,
        "zookeeper": "127.0.0.1:29",
        "token_file": str(here / "token"),
    }
    assert [each.name for each in file.parent.iterdir()] == ["contexts.json"]


def test_contexts_are_used_listed_and_removed() -> None:
    prod()
    add("test", "--admin-url", OTHER, "--use")
    run("context", "use", "prod")
    rows = json.loads(run("context", "list", "--output", "json"))
    assert [(each["context"], each["in_use"]) for each in rows] == [("prod", True), ("test", False)]
    assert "in_use" in run("context", "show")
    run("context", "remove", "prod")
    assert "No context is in use" in run("context", "show", code=1)
    run("context", "use", "test")
    run("context", "use", "--none")
    assert "No context is in use" in run("context", "show", code=1)
    assert "There is no context 'prod'; there are: test." in run("context", "use", "prod", code=1)
    assert "There is no context 'x'" in run("context", "remove", "x", code=1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Give an address at least"),
        (("--service-url", "http://x"), "pulsar://"),
        (("--admin-url", "pulsar://x"), "http://"),
        (("--admin-url", "http://ann:pw@x"), "An address has no user and no password"),
        (("--admin-url", "http://x", "--tls-trusted", "ca"), "The options of TLS are for"),
        (("--admin-url", "http://x", "--tls-no-verify-host"), "The options of TLS are for"),
        (("--admin-url", "http://x", "--basic-user", "ann"), "need each other"),
        (
            ("--admin-url", "http://x", "--token-file", "t", "--basic-user", "a"),
            "There are several credentials",
        ),
    ],
)
def test_a_context_that_no_command_could_use(arguments: tuple[str, ...], says: str) -> None:
    assert says in run("context", "add", "x", *arguments, code=1)
    assert contexts.load().contexts == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--token-file", "none"), "none cannot be read: No such file or directory (--token-file)"),
        (("--token-file", "lines"), "is not one line of ASCII (--token-file)"),
        (("--token-file", "password"), "password holds no token"),
        (("--token-file", "empty"), "empty is empty, or is not one line"),
        (("--basic-password-file", "empty"), "empty is empty (--basic-password-file)"),
        (("--basic-password-file", "none"), "No such file or directory (--basic-password-file)"),
        (("--tls-trusted", "none"), "No such file or directory (--tls-trusted)"),
        (("--tls-trusted", "lines"), "holds no certificate that can be read"),
        (
            ("--tls-certificate", "alice.pem", "--tls-key", "none"),
            "none cannot be read: No such file or directory (--tls-key)",
        ),
        (
            ("--tls-certificate", "alice.pem", "--tls-key", "ben.key"),
            "alice.pem (--tls-certificate, --tls-key)",
        ),
        (("--tls-key", "ben.key"), "give both (--tls-certificate, --tls-key)"),
    ],
)
def test_the_files_of_a_context_are_what_the_options_say(
    here: Path, arguments: tuple[str, ...], says: str
) -> None:
    authority = Authority(here)
    for name in ("alice", "ben"):
        issued = authority.issue(name)
        Path(f"{name}.pem").write_bytes(issued.certificate.read_bytes())
        Path(f"{name}.key").write_bytes(issued.key.read_bytes())
    Path("lines").write_text("very-secret\nvery-secret.x.y\n")
    Path("empty").write_text("\n")
    user = ("--basic-user", "ann") if "--basic-password-file" in arguments else ()
    command = ("context", "add", "x", "--admin-url", "https://x", *user)
    assert says in " ".join(run(*command, *arguments, code=1).split())
    assert contexts.load().contexts == {}
    add("x", "--admin-url", "https://x", "--tls-certificate", "alice.pem", "--tls-key", "alice.key")


def test_a_context_is_replaced_only_if_that_is_said() -> None:
    prod()
    assert "There is a context prod already" in run(
        "context", "add", "prod", "--admin-url", OTHER, code=1
    )
    assert shown("prod")["admin_url"] == PROD_ADMIN
    add("prod", "--admin-url", OTHER, "--replace")
    assert shown("prod") == {"context": "prod", "in_use": False, "admin_url": OTHER}
    assert "is not a name" in run("context", "add", "a/b", "--admin-url", OTHER, code=1)


def test_a_file_that_others_may_write_is_not_used() -> None:
    prod("--use")
    contexts.contexts_file().chmod(0o620)
    assert "Others may write" in run("topics", "list", code=1)
    assert "Others may write" in run("context", "list", code=1)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"version": 1, "contexts": {"a": {"x": 1}}}'])
def test_a_damaged_file_is_said(content: str) -> None:
    prod("--use")
    contexts.contexts_file().write_text(content)
    assert "is damaged" in run("topics", "list", code=1)
    assert "is damaged" in run("context", "add", "x", "--admin-url", OTHER, code=1)
    assert contexts.contexts_file().read_text() == content, "what is damaged is not overwritten"


def test_a_file_of_another_version_is_left_alone() -> None:
    contexts.contexts_file().parent.mkdir(parents=True)
    contexts.contexts_file().write_text('{"version": 2}')
    assert "another version of Daybook" in run("context", "list", code=1)


# -- what commands take from a context


def asked(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what a command with a service URL and an admin URL would use."""
    found: dict[str, Any] = {}

    @click.command()
    @cluster_options
    def both(service_url: str, admin_url: str) -> None:
        for name, url in (("service", service_url), ("admin", admin_url)):
            found[name] = url
            found[f"{name}-arguments"] = client_arguments(url)

    done = CliRunner().invoke(both, list(arguments), env=env)
    if done.exit_code:
        return {"error": done.output}
    return found


def test_a_command_takes_everything_from_the_context(here: Path) -> None:
    prod("--use")
    token = {"tls": None, "token": (here / "token").as_uri(), "basic": None}
    expected = {
        "service": PROD,
        "admin": PROD_ADMIN,
        "service-arguments": token,
        "admin-arguments": token,
    }
    assert asked() == expected
    run("context", "use", "--none")
    assert asked("--context", "prod") == expected
    assert asked(env={"DAYBOOK_CONTEXT": "prod"}) == expected
    assert asked()["service"] == "pulsar://127.0.0.1:6650"
    assert "There is no context 'x'" in asked("--context", "x")["error"]
    assert "There is no context ''" in asked("--context", "")["error"]


def test_the_credentials_of_a_context_are_for_its_addresses_alone() -> None:
    prod("--use")
    others = ("--service-url", "pulsar://evil", "--admin-url", "http://evil")
    for given in (others, (*others, "--context", "prod")):
        found = asked(*given)
        assert found["admin"] == "http://evil"
        assert found["admin-arguments"]["token"] is None
        assert found["service-arguments"]["token"] is None
    variables = {"DAYBOOK_SERVICE_URL": "pulsar://evil", "DAYBOOK_ADMIN_URL": "http://evil"}
    found = asked(env=variables)
    assert (found["service"], found["admin"]) == ("pulsar://evil", "http://evil")
    assert found["admin-arguments"]["token"] is None


def test_the_order_of_option_variable_context_and_default(here: Path) -> None:
    prod("--use", "--replace")
    variables = {"DAYBOOK_SERVICE_URL": "pulsar://var", "DAYBOOK_ADMIN_URL": "http://var"}
    assert asked("--admin-url", "http://opt", env=variables)["admin"] == "http://opt"
    assert asked(env=variables)["admin"] == "http://var"
    assert asked(env={**variables, "DAYBOOK_CONTEXT": "prod"})["admin"] == "http://var"
    named = asked("--context", "prod", env=variables)
    assert (named["service"], named["admin"]) == (PROD, PROD_ADMIN)
    assert named["admin-arguments"]["token"] == (here / "token").as_uri()
    given = asked(env={"DAYBOOK_TOKEN": "abc"})
    assert given["admin-arguments"]["token"] == "abc"
    assert (
        asked("--token", "def", env={"DAYBOOK_TOKEN": "abc"})["admin-arguments"]["token"] == "def"
    )


def test_a_command_never_reaches_two_clusters() -> None:
    prod("--use")
    mixed = asked("--service-url", "pulsar://other")
    assert "--service-url says which cluster is meant" in mixed["error"]
    mixed = asked(env={"DAYBOOK_SERVICE_URL": "pulsar://other"})
    assert "DAYBOOK_SERVICE_URL says which cluster is meant" in mixed["error"]
    both = asked(env={"DAYBOOK_CONTEXT": "prod", "DAYBOOK_DIR": "/x"})
    assert "name two clusters" in both["error"]
    assert "DAYBOOK_DIR is /x" in asked(env={"DAYBOOK_DIR": "/x"})["error"]
    assert asked("--context", "prod", env={"DAYBOOK_DIR": "/x"})["admin"] == PROD_ADMIN


def test_a_context_without_the_address_is_an_error() -> None:
    add("half", "--admin-url", OTHER, "--use")
    assert "The context half has no service url" in asked()["error"]
    assert "The context half has no zookeeper" in run("ledgers", "list", code=1)


def test_tls_comes_from_the_context_too(here: Path) -> None:
    urls = ("--service-url", "pulsar+ssl://x", "--admin-url", "https://x")
    Path("ca.pem").write_bytes(Authority(here).trusted.read_bytes())
    add("safe", *urls, "--tls-trusted", "ca.pem", "--tls-no-verify-host", "--use")
    tls = asked()["service-arguments"]["tls"]
    assert (tls.trusted, tls.verify_host) == (str(here / "ca.pem"), False)
    tls = asked("--tls-trusted", "/other.pem")["service-arguments"]["tls"]
    assert (str(tls.trusted), tls.verify_host) == ("/other.pem", False)
    found = asked("--service-url", "pulsar+ssl://y", "--admin-url", "https://y")
    assert found["admin-arguments"]["tls"].trusted is None
    assert found["admin-arguments"]["tls"].verify_host is True


def test_a_password_comes_from_the_context() -> None:
    add("p", "--admin-url", OTHER, "--basic-user", "ann", "--basic-password-file", "password")

    @click.command()
    @admin_url_option
    def one(admin_url: str) -> None:
        basic = client_arguments(admin_url)["basic"]
        assert basic is not None
        assert basic() == "ann:very-secret"
        assert client_arguments("http://other")["basic"] is None

    done = CliRunner().invoke(one, ["--context", "p"], catch_exceptions=False)
    assert done.exit_code == 0


def test_zookeeper_comes_from_the_context() -> None:
    prod("--use")

    @click.command()
    @zookeeper_options
    def ask(zookeeper: str, root: str) -> None:
        click.echo(f"{zookeeper}{root}")

    def answer(*arguments: str, **env: str) -> str:
        return CliRunner().invoke(ask, list(arguments), env=env).output.strip()

    assert answer() == "127.0.0.1:29/ledgers"
    assert answer(DAYBOOK_ZOOKEEPER="z:1") == "z:1/ledgers"
    assert answer("--context", "prod", DAYBOOK_ZOOKEEPER="z:1") == "127.0.0.1:29/ledgers"


def test_servers_know_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker or bookie must not join a cluster because somebody looked at it."""
    from daybook.clients.cli.service import _with_zookeeper

    prod("--use")
    monkeypatch.setenv("DAYBOOK_CONTEXT", "prod")
    assert _with_zookeeper({}, "DAYBOOK_BROKER_", ()) == {"zookeeper": "127.0.0.1:2181"}
    assert "No such option '--context'" in run("broker", "--context", "prod", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list"),
        ("produce", "t", "token"),
        ("consume", "t"),
        ("ledgers", "list"),
        ("pipeline", "archive", "t", "there"),
        ("doctor",),
    ],
)
def test_a_command_that_fails_to_connect_says_from_which_context(
    daybook: Daybook, words: tuple[str, ...]
) -> None:
    prod("--use")
    code, _, err = daybook(*words)
    assert code == (2 if words == ("doctor",) else 1)
    assert "The context 'prod' has this address." in err


def test_names_of_contexts_are_completed() -> None:
    prod()
    add("production-2", "--admin-url", OTHER)
    add("test", "--admin-url", OTHER)

    def completed(*words: str) -> list[str]:
        *before, last = words
        shell = ShellComplete(main, {}, "daybook", "_DAYBOOK_COMPLETE")
        return [each.value for each in shell.get_completions(before, last)]

    assert completed("topics", "list", "--context", "prod") == ["prod", "production-2"]
    assert completed("ledgers", "list", "--context", "t") == ["test"]
    for command in ("use", "show", "remove"):
        assert completed("context", command, "") == ["prod", "production-2", "test"]
    contexts.contexts_file().write_text("{")
    assert completed("context", "use", "") == []


def test_a_context_that_goes_before_the_directory_is_named(here: Path) -> None:
    prod("--use")
    said = "using the context prod, and not the cluster of ./daybook-data"
    assert said not in run("topics", "list", code=1)
    (here / "daybook-data").mkdir()
    assert run("topics", "list", code=1).count(said) == 1
    assert said not in run("topics", "list", "--context", "prod", code=1)
