"""`daybook bookie`: run one in the foreground, or look after a directory of one that is stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import click

from daybook.clients.cli.lazy import LazyCommand, LazyGroup
from daybook.clients.cli.service import run_service, service_options


class _Care(LazyGroup):
    lazy: ClassVar[Mapping[str, LazyCommand]] = {
        "check": LazyCommand("bookie_directory", "Read all of a directory; change nothing."),
        "rebuild-index": LazyCommand("bookie_directory", "Make its index again from the log."),
        "export": LazyCommand("bookie_directory", "Write its entries as lines of JSON."),
        "repair-cookie": LazyCommand("bookie_directory", "Let it start with empty directories."),
    }


@click.group(cls=_Care, invoke_without_command=True)
@click.option(
    "--directory",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where entries are kept; may be given more than once.",
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
    help="Between looks for deleted ledgers, whose room is given back; 0: only when asked to."
    "  [default: 120]",
)
@click.option(
    "--scrub-interval",
    "scrub_interval_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Between looks for damage in all that is written; 0: only when asked to."
    "  [default: 86400]",
)
@click.option(
    "--sync",
    type=click.Choice(["always", "deferred"]),
    help="Acknowledge when it is on the disk, or before: read docs/bookie.md on what that gives up."
    "  [default: always]",
)
@click.option(
    "--cookie-repair",
    type=click.Choice(["off", "auto"]),
    help="Start with empty directories that took the place of lost ones, and copy what they had."
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
    """Run one bookie; or check, export or mend a directory of one that is stopped.

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
