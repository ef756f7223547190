"""The command line as a whole: its commands, their help, and how few modules it loads."""

# pyright: reportPrivateUsage=false

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from daybook.clients.cli.main import _PREFIXES, _VARIABLES, main
from tests.clients.cli.conftest import Daybook

# The interpreter and click alone load about 110.
MODULES_MAX = {"--help": 130, "version": 200, "local": 160, "bookie": 160}
HEAVY = {"trio", "kazoo", "google.protobuf", "msgspec", "rich", "structlog", "starlette", "pyspark"}
COMMANDS = main.list_commands(click.Context(main))


def modules_after(statements: str) -> set[str]:
    code = f"{statements}\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["version"], ["local", "--help"], ["bookie", "--help"]], ids=str
)
def test_light_commands_load_few_modules(arguments: list[str]) -> None:
    loaded = modules_after(
        f"from daybook.clients.cli.main import main\nmain({arguments}, standalone_mode=False)"
    )
    assert not loaded & HEAVY
    assert len(loaded) <= MODULES_MAX[arguments[0]]


def test_the_help_of_the_group_lists_every_command() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in shown.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists_and_has_help(command: str) -> None:
    shown = CliRunner().invoke(main, [command, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage:" in shown.output


def test_an_unknown_command_is_a_usage_error() -> None:
    shown = CliRunner().invoke(main, ["prodcue"])
    assert shown.exit_code == 2
    assert "No such command 'prodcue'. Did you mean 'produce'?" in shown.output


def test_a_command_that_resembles_none_is_a_usage_error_without_advice() -> None:
    shown = CliRunner().invoke(main, ["xyz"])
    assert shown.exit_code == 2
    assert "No such command 'xyz'.\n" in shown.output


def test_version_is_an_option_as_well() -> None:
    shown = CliRunner().invoke(main, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == CliRunner().invoke(main, ["version"]).output


def test_every_option_of_every_command_is_explained() -> None:
    def commands(command: click.Command) -> list[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        context = click.Context(command)
        below = [command.get_command(context, name) for name in command.list_commands(context)]
        return [command, *(each for found in below if found for each in commands(found))]

    mute = [
        (command.name, parameter.name)
        for command in commands(main)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert mute == []


def test_version_says_it_to_programs_too() -> None:
    shown = CliRunner().invoke(main, ["version", "--output", "json"])
    assert set(json.loads(shown.output)) == {"daybook", "python"}


def test_a_variable_that_no_command_knows_is_reported(
    daybook: Daybook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBOOK_SERVICEURL", "pulsar://here")
    monkeypatch.setenv("DAYBOOK_BROKER_PORT", "1")
    code, _, err = daybook("version")
    assert code == 0
    assert err == (
        "DAYBOOK_SERVICEURL is ignored: no command knows this variable."
        " Did you mean DAYBOOK_SERVICE_URL?\n"
    )


def commands_of(command: click.Command, words: str = "daybook") -> dict[str, click.Command]:
    """Return all commands below one, by their words."""
    if not isinstance(command, click.Group):
        return {words: command}
    found: dict[str, click.Command] = {}
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        found |= commands_of(below, f"{words} {name}")
    return found


def test_every_variable_of_a_command_is_known() -> None:
    """A variable that a command reads must not be reported as one that no command knows."""
    read = {
        name
        for command in commands_of(main).values()
        for option in command.params
        for name in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }
    assert "DAYBOOK_TLS_TRUSTED" in read
    assert {name for name in read if not name.startswith(_PREFIXES)} <= _VARIABLES


def test_every_command_that_asks_brokers_takes_all_credentials_and_contexts() -> None:
    security = {
        *("context_name", "token", "token_file", "basic_user", "basic_password_file"),
        *("tls_trusted", "tls_certificate", "tls_key", "tls_verify_host"),
    }
    asking = 0
    for words, command in commands_of(main).items():
        names = {option.name for option in command.params}
        urls = {
            option.name
            for option in command.params
            if isinstance(option, click.Option) and option.envvar and not option.hidden
        } & {"service_url", "admin_url"}
        if urls:
            asking += 1
            assert security <= names, words
    assert asking > 50
