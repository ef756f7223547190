"""Groups of commands that import the module of a command only when it runs.

A group lists each command with its help line, so `--help` and the start of every command stay fast.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """One command: `module` in `clients.cli` has an attribute with the name of the command."""

    module: str
    help: str


class LazyGroup(click.Group):
    """A subclass lists its commands in the order in which `--help` shows them."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"daybook.clients.cli.{entry.module}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table: to import all commands would take a second."""
        names = [name for name in self.lazy if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.lazy[name].help) for name in names]
        return found or super().shell_complete(ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, self.lazy, n=1)
            ctx.fail(f"No such command {name!r}." + "".join(f" Did you mean {c!r}?" for c in close))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.lazy.items()])
