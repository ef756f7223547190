"""`daybook bookie`: run a bookie in the foreground, or work on the directory of a stopped one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import click

from daybook.clients.cli.lazy import LazyCommand, LazyGroup
from daybook.clients.cli.service import run_service, service_options


class _DirectoryCommands(LazyGroup):
    lazy: ClassVar[Mapping[str, LazyCommand]] = {
        "check": LazyCommand("bookie_directory", "Read a whole directory, and change nothing."),
        "rebuild-index": LazyCommand(
            "bookie_directory", "Rebuild the index of a directory from its log."
        ),
        "export": LazyCommand(
            "bookie_directory", "Write the entries of a directory as lines of JSON."
        ),
        "repair-cookie": LazyCommand(
            "bookie_directory", "Let a bookie start with empty directories."
        ),
    }


@click.group(cls=_DirectoryCommands, invoke_without_command=True)
@click.option(
    "--directory",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory for entries; give the option once for each disk.",
)
@click.option(
    "--bookie-id",
    help="The name by which ledgers refer to this bookie. It is fixed at the first start."
    "  [default: host:port]",
)
@click.option(
    "--reclaim-interval",
    "reclaim_interval_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Interval of garbage collection, which frees the space of deleted ledgers; 0: only on"
    " request."
    "  [default: 120]",
)
@click.option(
    "--scrub-interval",
    "scrub_interval_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Interval of the search for damage in everything that is stored; 0: only on request."
    "  [default: 86400]",
)
@click.option(
    "--sync",
    type=click.Choice(["always", "deferred"]),
    help="always: acknowledge an entry once it is on disk. deferred: acknowledge it before; see"
    " docs/bookie.md for what can be lost."
    "  [default: always]",
)
@click.option(
    "--cookie-repair",
    type=click.Choice(["off", "auto"]),
    help="auto: start with empty directories in place of lost ones, and copy the lost entries back."
    "  [default: off]",
)
@service_options
@click.pass_context
def bookie(
    context: click.Context,
    /,
    directories: tuple[Path, ...],
    bookie_id: str | None,
    **options: object,
) -> None:
    """Run a bookie; or check, export or repair the directory of a stopped one.

    An option wins over the environment (DAYBOOK_BOOKIE_PORT and so on), and the environment wins
    over the settings file.
    """
    if context.invoked_subcommand is not None:
        return
    paths = [str(directory.absolute()) for directory in directories]
    settings = {
        "directories": json.dumps(paths, ensure_ascii=False) if paths else None,
        "bookie_id": bookie_id,
    }
    run_service(
        "daybook.bookie.server", "DAYBOOK_BOOKIE_", {**settings, **options}, directories=directories
    )
