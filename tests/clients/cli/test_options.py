"""The places where commands look for the address of the cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from daybook.clients.cli.credentials import given_credentials
from daybook.clients.cli.main import main
from daybook.clients.cli.options import (
    bookie_access,
    bookie_options,
    cluster_options,
    tls_options,
    zookeeper_options,
)
from daybook.clients.cli.zookeeper_access import zookeeper_access
from tests.clients.cli.conftest import Daybook

BROKERS = (9, 19)  # ports where nobody listens


def write_cluster(directory: Path, zookeeper: str = "", **security: object) -> None:
    """Write the state of a cluster; with `security`, in the present version of the format."""
    directory.mkdir()
    brokers = [{"port": port, "http_port": port + 1} for port in BROKERS]
    saved = {
        "version": 3 if security else 1,
        **security,
        "zookeeper": zookeeper,
        "zookeeper_port": 29,
        "brokers": brokers,
        "bookies": [],
    }
    (directory / "standalone.json").write_text(json.dumps(saved))


def said(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments), input="")
    assert done.exit_code == 1, done.output
    return done.output


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text("one\n")
    for name in ("DIR", "SERVICE_URL", "ADMIN_URL", "ZOOKEEPER"):
        monkeypatch.delenv(f"DAYBOOK_{name}", raising=False)
    return tmp_path


def test_the_cluster_of_the_usual_directory_is_found_with_all_its_brokers(here: Path) -> None:
    write_cluster(here / "daybook-data")
    assert "No broker answers at pulsar://127.0.0.1:9,127.0.0.1:19 (" in said(
        "produce", "t", "lines"
    )
    assert "No broker answers at http://127.0.0.1:10,127.0.0.1:20 (" in said("topics", "list")


def test_another_directory_and_another_zookeeper_are_found(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(here / "mine", zookeeper="127.0.0.1:39")
    monkeypatch.setenv("DAYBOOK_DIR", str(here / "mine"))
    assert "No ZooKeeper answers at 127.0.0.1:39 (nobody listens" in said("ledgers", "list")
    assert "pulsar://127.0.0.1:9,127.0.0.1:19 (" in said("produce", "t", "lines")


def test_what_is_said_counts_first(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cluster(here / "daybook-data")
    monkeypatch.setenv("DAYBOOK_SERVICE_URL", "pulsar://127.0.0.1:49")
    assert "pulsar://127.0.0.1:49 (" in said("produce", "t", "lines")
    assert "pulsar://127.0.0.1:59 (" in said(
        "produce", "t", "lines", "--service-url", "pulsar://127.0.0.1:59"
    )


@pytest.mark.parametrize(
    ("variable", "value", "words", "sentence"),
    [
        ("DIR", "/nonexistent", ["topics", "list"], "DAYBOOK_DIR is /nonexistent, and no"),
        ("DIR", "/nonexistent", ["ledgers", "list"], "DAYBOOK_DIR is /nonexistent, and no"),
        ("DIR", "/nonexistent", ["produce", "t"], "DAYBOOK_DIR is /nonexistent, and no"),
        ("DIR", "/nonexistent", ["broker"], "DAYBOOK_DIR is /nonexistent, and no"),
        ("DIR", "/nonexistent", ["local", "status"], "was ever started in /nonexistent"),
        ("DIR", "", ["topics", "list"], "DAYBOOK_DIR is set, and empty"),
        ("DIR", "", ["local", "status"], "DAYBOOK_DIR is set, and empty"),
        ("ZOOKEEPER", "", ["ledgers", "list"], "DAYBOOK_ZOOKEEPER is set, and empty"),
        ("SERVICE_URL", "", ["produce", "t"], "DAYBOOK_SERVICE_URL is set, and empty"),
        ("SERVICE_URL", "pulsar://h:1", ["topics", "list"], "with --admin-url or"),
        ("ADMIN_URL", "http://h:1", ["bookies", "list"], "with --zookeeper or"),
        ("ZOOKEEPER", "h:1", ["produce", "t"], "with --service-url or"),
    ],
)
def test_no_command_reaches_another_cluster_than_the_one_that_was_meant(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    words: list[str],
    sentence: str,
) -> None:
    write_cluster(here / "daybook-data")
    monkeypatch.setenv(f"DAYBOOK_{variable}", value)
    assert sentence in said(*words)


def test_help_says_so_without_looking(here: Path) -> None:
    (here / "daybook-data").mkdir()
    (here / "daybook-data" / "standalone.json").write_text("rubbish")
    shown = CliRunner().invoke(main, ["produce", "--help"])
    assert shown.exit_code == 0
    assert "pulsar://127.0.0.1:6650" in shown.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "ledgers"], "'ledgers' is not a path in ZooKeeper, such as /ledgers."),
        (["--root", "/ledgers/"], "'/ledgers/' is not a path"),
        (["--root", ""], "'' is not a path"),
        (["--root", "/a/../b"], "'/a/../b' is not a path"),
        (["--zookeeper", ""], "'' is not HOST:PORT."),
        (["--zookeeper", "h:1,h:99999"], "'h:99999' is not HOST:PORT."),
        (["--zookeeper", "h:x"], "'h:x' is not HOST:PORT."),
        (["--zookeeper", "zk://h:1/l"], "write that as --zookeeper h:1 --ledgers-root /l."),
        (
            ["--zookeeper", "zk+hierarchical://h:1;g/l"],
            "write that as --zookeeper h:1,g:2181 --ledgers-root /l.",
        ),
        (["--zookeeper", "etcd://h:1/l"], "'etcd', which is none of"),
    ],
)
def test_what_is_no_place_is_refused(words: list[str], said: str) -> None:
    for command in (["ledgers", "list"], ["bookies", "health"], ["autorecovery", "pause"]):
        done = CliRunner().invoke(main, [*command, *words])
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("topics", "stats", "t", "--service-url", "pulsar://h:6650"), "--admin-url http://"),
        (("topics", "list", "--service-url=pulsar://h:6650"), "--admin-url http://"),
        (("consume", "t", "--admin-url", "http://h:8080"), "--service-url pulsar://"),
        (("produce", "t", "--admin-url", "http://h:8080"), "--service-url pulsar://"),
    ],
    ids=str,
)
def test_the_address_of_the_other_protocol_is_refused_with_the_right_option(
    daybook: Daybook, words: tuple[str, ...], right: str
) -> None:
    code, out, err = daybook(*words)
    assert (code, out) == (2, "")
    assert f"but {right}" in err


@pytest.mark.parametrize("part", ["broker", "bookie"])
def test_the_help_says_which_setting_wins(daybook: Daybook, part: str) -> None:
    said = " ".join(daybook(part, "--help")[1].split())
    assert "An option wins over the environment" in said
    assert "the environment wins over the settings file" in said


def test_the_help_explains_the_words_of_the_field(daybook: Daybook) -> None:
    assert "append-only log" in daybook("ledgers", "--help")[1]
    assert "To fence a ledger is to" in " ".join(daybook("ledgers", "--help")[1].split())
    assert "Bookies store messages in ledgers" in " ".join(daybook("cluster", "--help")[1].split())
    said = " ".join(daybook("produce", "--help")[1].split())
    assert "the key is before it, the value behind it" in said
    assert "consumers decompress them" in said


def test_options_of_tls_are_for_brokers_with_tls(here: Path) -> None:
    output = said("topics", "list", "--admin-url", "http://127.0.0.1:9", "--tls-trusted", "ca.pem")
    assert "--tls-trusted is for brokers with TLS, and http://127.0.0.1:9 is without" in output
    output = said("topics", "list", "--admin-url", "https://127.0.0.1:9", "--tls-trusted", "ca.pem")
    assert "the file of trusted authorities ca.pem cannot be read" in output
    output = said(
        "produce", "t", "lines", "--service-url", "pulsar+ssl://127.0.0.1:9", "--tls-key", "k.pem"
    )
    assert "a client's certificate and its private key belong together" in output


def test_variables_of_tls_do_not_matter_without_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBOOK_TLS_TRUSTED", "ca.pem")
    output = said("topics", "list", "--admin-url", "http://127.0.0.1:9")
    assert "No broker answers at http://127.0.0.1:9 (" in output


SECURE: dict[str, Any] = {
    "security": "secure",
    "host": "localhost",
    "names": [],
    "locked": ["brokers", "bookies", "zookeeper"],
}


@click.command()
@cluster_options
def echo(service_url: str, admin_url: str) -> None:
    """Show what a command would take to its brokers."""
    for url in (service_url, admin_url):
        tls = tls_options(url)
        click.echo(f"{url} {tls and tls.trusted} {given_credentials(url).token}")


def echoed(*words: str) -> list[list[str]]:
    """Return the URL, the trusted authorities and the token for both addresses."""
    done = CliRunner().invoke(echo, list(words))
    assert done.exit_code == 0, done.output
    return [line.split() for line in done.output.splitlines()]


def test_the_directory_of_a_secure_cluster_gives_its_credentials(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(here / "daybook-data", **SECURE)
    folder = here / "daybook-data" / "security"
    keys = [str(folder / "authority.pem"), (folder / "admin.token").as_uri()]
    expected = [
        ["pulsar+ssl://localhost:9,localhost:19", *keys],
        ["https://localhost:10,localhost:20", *keys],
    ]
    assert echoed() == expected
    monkeypatch.chdir("/")
    monkeypatch.setenv("DAYBOOK_DIR", str(here / "daybook-data"))
    assert echoed() == expected
    assert [line[2] for line in echoed("--token", "mine")] == ["mine", "mine"]
    assert [line[1] for line in echoed("--tls-trusted", "ca.pem")] == ["ca.pem", "ca.pem"]


@pytest.mark.parametrize(
    "words",
    [
        ("--service-url", "pulsar+ssl://elsewhere:1"),
        ("--admin-url", "https://elsewhere:1"),
        ("--service-url", "pulsar+ssl://elsewhere:1", "--admin-url", "https://elsewhere:2"),
    ],
)
def test_no_other_cluster_is_shown_the_token_of_a_directory(
    here: Path, words: tuple[str, ...]
) -> None:
    write_cluster(here / "daybook-data", **SECURE)
    others = [line for line in echoed(*words) if "elsewhere" in line[0]]
    assert [line[1:] for line in others] == [["None", "None"]] * (len(words) // 2)


def test_no_other_cluster_of_the_environment_is_shown_it_either(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(here / "daybook-data", **SECURE)
    monkeypatch.setenv("DAYBOOK_SERVICE_URL", "pulsar+ssl://elsewhere:1")
    monkeypatch.setenv("DAYBOOK_ADMIN_URL", "https://elsewhere:1")
    assert [line[1:] for line in echoed()] == [["None", "None"]] * 2


def test_a_cluster_that_is_not_secure_has_no_credentials(here: Path) -> None:
    insecure = {**SECURE, "security": "insecure", "locked": []}
    write_cluster(here / "daybook-data", **insecure)
    (here / "daybook-data" / "security").mkdir()
    assert [line[1:] for line in echoed()] == [["None", "None"]] * 2


@click.command()
@bookie_options
@zookeeper_options
def storage(zookeeper: str, root: str) -> None:
    """Show what a command would show to ZooKeeper and to its bookies."""
    del root
    tls, bookies = zookeeper_access(zookeeper).tls, bookie_access()
    files = None if tls is None else (tls.trusted, tls.certificate, tls.key)
    click.echo(f"{files}|{bookies.tls}|{(bookies.trusted, bookies.certificate, bookies.key)}")


def shown(*words: str) -> list[str]:
    done = CliRunner().invoke(storage, list(words))
    assert done.exit_code == 0, done.output
    return done.output.strip().split("|")


NOTHING = ["None", "False", "(None, None, None)"]


def test_the_directory_gives_the_certificate_of_the_admin(here: Path) -> None:
    write_cluster(here / "daybook-data", **SECURE)
    folder = here / "daybook-data" / "security"
    files = str((folder / "authority.pem", folder / "admin.pem", folder / "admin.pem"))
    assert shown() == [files, "True", files]
    other = str((Path("ca.pem"), folder / "admin.pem", folder / "admin.pem"))
    assert shown("--tls-trusted", "ca.pem") == [other, "True", other]


@pytest.mark.parametrize("variable", [False, True])
def test_no_other_zookeeper_is_shown_that_certificate(
    here: Path, variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(here / "daybook-data", **SECURE)
    if variable:
        monkeypatch.setenv("DAYBOOK_ZOOKEEPER", "elsewhere:1")
        assert shown() == NOTHING
    else:
        assert shown("--zookeeper", "elsewhere:1") == NOTHING


@pytest.mark.parametrize(
    ("locked", "own"), [(["brokers"], True), (["brokers", "bookies"], False), ([], True)]
)
def test_parts_that_are_open_are_shown_nothing(here: Path, locked: list[str], own: bool) -> None:
    security = "secure" if locked else "insecure"
    written = {**SECURE, "locked": locked, "security": security}
    write_cluster(here / "daybook-data", zookeeper="" if own else "zk:2181", **written)
    zookeeper, bookies, _ = shown()
    assert zookeeper == "None"
    assert bookies == str("bookies" in locked)


def options_of(command: click.Command) -> Iterator[click.Option]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options_of(inner)


def test_every_variable_of_an_option_is_known(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that no command knows is reported, so one that is read must not be."""
    read = {str(option.envvar) for option in options_of(main) if option.envvar}
    assert {"DAYBOOK_TLS_TRUSTED", "DAYBOOK_TOKEN_FILE", "DAYBOOK_DIR"} <= read
    for name in read:
        monkeypatch.setenv(name, "x")
    done = CliRunner().invoke(main, ["version"])
    assert "no command knows this variable" not in done.output


def started_worker(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, object]:
    """Return the settings with which `daybook autorecovery run` would start."""
    started: list[dict[str, object]] = []

    def run_service(_: str, __: str, options: dict[str, object]) -> None:
        started.append(options)

    monkeypatch.setattr("daybook.clients.cli.autorecovery.run_service", run_service)
    done = CliRunner().invoke(main, ["autorecovery", "run", *words])
    assert done.exit_code == 0, done.output
    (settings,) = started
    return {name: settings[name] for name in ("zookeeper_tls", "bookie_tls", *TLS_FILES)}


TLS_FILES = ("tls_trusted", "tls_certificate", "tls_key")


def test_a_worker_of_auto_recovery_gets_the_certificate(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_cluster(here / "daybook-data", **SECURE)
    folder = here / "daybook-data" / "security"
    files = [folder / "authority.pem", folder / "admin.pem", folder / "admin.pem"]
    both = {"zookeeper_tls": True, "bookie_tls": True, **dict(zip(TLS_FILES, files, strict=True))}
    assert started_worker(monkeypatch) == both
    nothing = dict.fromkeys(both)
    assert started_worker(monkeypatch, "--zookeeper", "elsewhere:1") == nothing
    # A settings file says which ZooKeeper is meant, and how it is reached.
    config = tmp_path / "worker.toml"
    config.write_text('zookeeper = "elsewhere:1"\n')
    assert started_worker(monkeypatch, "--config", str(config)) == nothing


def test_a_worker_beside_the_zookeeper_of_others_gets_it_for_bookies_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = {**SECURE, "locked": ["brokers", "bookies"]}
    write_cluster(here / "daybook-data", zookeeper="zk:2181", **locked)
    found = started_worker(monkeypatch)
    assert (found["zookeeper_tls"], found["bookie_tls"]) == (None, True)
    assert found["tls_certificate"] == here / "daybook-data" / "security" / "admin.pem"
