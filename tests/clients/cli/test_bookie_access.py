"""The options of the command line about bookies: TLS, and credentials."""

from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from daybook.bookie.errors import ReadUnknownError
from daybook.bookie.ledger.security import BookieAccess
from daybook.clients.cli.metadata import _say
from daybook.clients.cli.options import bookie_access, bookie_options, service_url_option


def run(*words: str, environment: dict[str, str] | None = None) -> tuple[Result, BookieAccess]:
    found: list[BookieAccess] = []

    @click.command()
    @bookie_options
    def command() -> None:
        found.append(bookie_access())

    done = CliRunner().invoke(command, words, env=environment)
    return done, found[0] if found else BookieAccess()


def test_options_and_variables(tmp_path: Path) -> None:
    wanted = BookieAccess(True, Path("/ca.pem"), user="me", password_file=Path("/run/secret"))
    words: Sequence[str] = (
        *("--bookie-tls", "--tls-trusted", "/ca.pem"),
        *("--bookie-user", "me", "--bookie-password-file", "/run/secret"),
    )
    assert run(*words)[1] == wanted
    environment = {
        "DAYBOOK_BOOKIES_TLS": "true",
        "DAYBOOK_TLS_TRUSTED": "/ca.pem",
        "DAYBOOK_BOOKIES_USER": "me",
        "DAYBOOK_BOOKIES_PASSWORD_FILE": "/run/secret",
    }
    assert run(environment=environment)[1] == wanted
    assert run()[1] == BookieAccess()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--bookie-user", "me"), "belong together"),
        (("--bookie-password-file", "/x"), "belong together"),
        (("--tls-trusted", "/ca.pem"), "--tls-trusted needs --bookie-tls"),
    ],
)
def test_options_that_do_not_fit_together(words: Sequence[str], says: str) -> None:
    done, _ = run(*words)
    assert done.exit_code != 0
    assert says in str(done.exception) + done.output


def test_the_files_of_tls_are_there_once_beside_other_options_of_tls() -> None:
    @click.command()
    @bookie_options
    @service_url_option
    def command(service_url: str) -> None: ...

    names = [parameter.name for parameter in command.params]
    assert names.count("tls_trusted") == 1


def test_a_bookie_that_refuses_a_command_has_its_options_named() -> None:
    said = _say(ReadUnknownError(7, 0, "bookie b1: UNAUTHORIZED"), "zk:2181")
    assert said is not None
    assert "entry 0 of ledger 7 could not be read: bookie b1: UNAUTHORIZED" in said
    assert "--bookie-tls, or --bookie-user and --bookie-password-file" in said
    said = _say(ReadUnknownError(7, 0, "bookie b1: no answer"), "zk:2181")
    assert said is not None
    assert "`daybook bookies list`" in said
