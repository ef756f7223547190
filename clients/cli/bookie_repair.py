"""`daybook bookie repair-cookie`: for a bookie whose directories were emptied or exchanged."""

import json
from pathlib import Path

import click

from clients.cli.part import part_options, run_part


@click.command("repair-cookie")
@click.option(
    "--directory",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="All directories of the bookie, in their order; also those that are empty.",
)
@click.option("--bookie-id", help="Which bookie it is, if no directory says so.")
@part_options
def repair_cookie(directories: tuple[Path, ...], bookie_id: str | None, **options: object) -> None:
    """Give the directories of a stopped bookie their cookies again.

    For a bookie of which directories are empty, because a disk was lost or exchanged.  When it is
    started then, it fences and suspects all ledgers that name it, serves, and copies from others
    what it lacks; it takes part meanwhile.  Nothing is removed: a directory without a cookie that
    holds data is refused.

    Exit codes: 0 done, 1 the settings make no sense, 2 it cannot be done, and is said why.
    """
    paths = [str(directory.absolute()) for directory in directories]
    settings = {
        "directories": json.dumps(paths, ensure_ascii=False) if paths else None,
        "bookie_id": bookie_id,
    }
    run_part(
        "bookie.server", "DAYBOOK_BOOKIE_", {**settings, **options}, arguments=["--repair-cookie"]
    )
