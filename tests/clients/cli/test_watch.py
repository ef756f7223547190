"""`--watch`, and completion."""

import json
import subprocess
import sys

import click
import pytest

from daybook.clients.cli import watch
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.output import OutputFormat, output_option, write_record
from tests.clients.cli.conftest import Daybook, FakeAdmin

PATH = "/admin/v2/persistent/public/default/orders"


class Naps:
    """Ends the command by Ctrl-C after so many waits."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.waited: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> Naps:
    made = Naps(3)
    monkeypatch.setattr(watch, "time", made)
    return made


def test_each_look_is_a_line_of_json_without_a_terminal(
    daybook: Daybook, fake_admin: FakeAdmin, naps: Naps
) -> None:
    fake_admin.answers["GET", f"{PATH}/partitions"] = 200, {"partitions": 0}
    fake_admin.answers["GET", f"{PATH}/stats"] = 200, {"msgInCounter": 1}
    code, out, err = daybook("topics", "stats", "orders", "--watch", "--every", "1m")
    assert (code, err, naps.waited) == (0, "", [60, 60, 60])
    assert [json.loads(line) for line in out.splitlines()] == [{"msgInCounter": 1}] * 3


def test_a_terminal_shows_each_look_in_place_of_the_one_before(
    naps: Naps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @output_option
    @watch.watch_option
    def look(output: OutputFormat) -> None:
        write_record({"waited": len(naps.waited)}, output)

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(click, "clear", lambda: click.echo("<clear>"))
    look.main(["--watch"], standalone_mode=False)
    assert capsys.readouterr().out.split() == [
        *("<clear>", "waited", "0", "<clear>", "waited", "1", "<clear>", "waited", "2")
    ]


def test_only_the_first_failure_ends_the_command(
    naps: Naps, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @output_option
    @watch.watch_option
    def look(output: OutputFormat) -> None:
        if len(naps.waited) == 1:
            raise UserError("the broker is away.")
        write_record({"waited": len(naps.waited)}, output)

    look.main(["--watch"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert [json.loads(line)["waited"] for line in out.splitlines()] == [0, 2]
    assert err == "Error: the broker is away.\n"
    naps.left, naps.waited = 3, [0.0]
    with pytest.raises(UserError):
        look.main(["--watch"], standalone_mode=False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(daybook: Daybook, shell: str) -> None:
    code, out, _ = daybook("completion", shell)
    assert code == 0
    assert f"_DAYBOOK_COMPLETE={shell}_complete" in out


def test_names_of_commands_are_completed() -> None:
    program = "from daybook.clients.cli.main import main; main(prog_name='daybook')"
    environment = {
        "_DAYBOOK_COMPLETE": "bash_complete",
        "COMP_WORDS": "daybook top",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["plain,topics"], done.stderr
