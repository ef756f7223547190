"""`daybook bookie`: run one bookie in the foreground."""

import json
from pathlib import Path

import click

from clients.cli.part import part_options, run_part


@click.command()
@click.option(
    "--directory",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where entries are kept; may be given more than once.",
)
@click.option("--bookie-id", help="Who it is; decided at its first start.")
@part_options
def bookie(directories: tuple[Path, ...], bookie_id: str | None, **options: object) -> None:
    """Run one bookie.

    Settings come from the file, the environment (DAYBOOK_BOOKIE_PORT and so on), and these options,
    the latter first.
    """
    paths = [str(directory.absolute()) for directory in directories]
    settings = {
        "directories": json.dumps(paths, ensure_ascii=False) if paths else None,
        "bookie_id": bookie_id,
    }
    run_part("bookie.server", "DAYBOOK_BOOKIE_", {**settings, **options})
