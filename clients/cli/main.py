"""`daybook`: the command line.

The commands are listed here with their help lines, and their modules imported when one of them
runs: `daybook --help` and the start of every command stay fast, whatever the others need.
"""

import importlib
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class _Command:
    module: str
    help: str


_COMMANDS = {
    "standalone": _Command("standalone", "Run a whole cluster on this machine."),
    "local": _Command("local", "Look at, stop and break the parts of a standalone cluster."),
    "produce": _Command("produce", "Send lines to a topic."),
    "consume": _Command("consume", "Write the messages of a topic to standard output."),
    "topics": _Command("topics", "Create, list, look at and delete topics."),
    "ledgers": _Command("ledgers", "List and read ledgers."),
    "bookies": _Command("bookies", "List the bookies of a cluster."),
    "bookie": _Command("bookie", "Run one bookie."),
    "broker": _Command("broker", "Run one broker."),
    "version": _Command("version", "Say which version this is."),
}


class _LazyGroup(click.Group):
    """Each command is the attribute of its module that has its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(f"clients.cli.{entry.module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, _COMMANDS, n=1)
            ctx.fail(f"No such command {name!r}." + "".join(f" Did you mean {c!r}?" for c in close))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])


def _say_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    del parameter
    if asked:
        context.invoke(importlib.import_module("clients.cli.version").version)
        context.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_say_version,
    help="The same as `daybook version`.",
)
def main() -> None:
    """Daybook: a publish/subscribe message broker whose topics are chains of replicated ledgers."""


if __name__ == "__main__":
    main(prog_name="daybook")
