"""Start a bookie again whose directories were emptied, exchanged or damaged.

`daybook bookie repair-cookie` does it for any bookie that is stopped.  `daybook bookies repair`
does it for one of a standalone cluster, which it stops and starts.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from daybook.clients.cli.control import ask
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import dir_option
from daybook.clients.cli.part import part_options, run_part, standalone_of
from daybook.clients.cli.plan import is_for_one_part
from daybook.clients.cli.supervisor import reason_in


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

    A directory of a standalone cluster needs no settings: those of its bookie are taken.

    Exit codes: 0 done, 1 the settings make no sense, 2 it cannot be done, and is said why.
    """
    paths = [str(directory.absolute()) for directory in directories]
    settings = {
        "directories": json.dumps(paths, ensure_ascii=False) if paths else None,
        "bookie_id": bookie_id,
    }
    if options.get("config") is None:
        options["config"] = _config_beside(directories)
    run_part(
        "daybook.bookie.server",
        "DAYBOOK_BOOKIE_",
        {**settings, **options},
        arguments=["--repair-cookie"],
        directories=directories,
    )


def _config_beside(directories: Sequence[Path]) -> Path | None:
    """The settings of the bookie whose directories these are, in a standalone cluster."""
    for directory in directories:
        cluster = standalone_of(directory)
        if cluster is not None:
            config = cluster.path / "conf" / f"{directory.absolute().name}.toml"
            if config.exists():
                return config
    return None


@click.command(short_help="Bring back a bookie of a standalone cluster that lost its directory.")
@click.argument("bookie")
@click.option(
    "--set-aside",
    is_flag=True,
    help="Rename its directory to DIRECTORY.lost-1 first: it is damaged, and cannot be started.",
)
@dir_option
def repair(bookie: str, set_aside: bool, directory: Path) -> None:
    """Bring back BOOKIE, bookie-1 or its HOST:PORT, which does not start.

    For a bookie of the standalone cluster in this directory whose own directory was emptied, or,
    with --set-aside, damaged.  The bookie starts with what it has, is in doubt about everything
    else, and copies its entries back from the other bookies while it serves.  Nothing is deleted.
    """
    directory = directory.absolute()
    part = _find(directory, bookie)
    name = part["name"]
    if part["state"] in ("running", "paused"):
        raise UserError(f"{name} is {part['state']}, and needs no repair to start.")
    ask(directory, "stop", name)
    config = directory / "conf" / f"{name}.toml"
    if set_aside:
        for lost in tomllib.loads(config.read_text())["directories"]:
            _set_aside(Path(lost))
    _give_cookies(name, config)
    ask(directory, "start", name)
    click.echo(
        f"{name} runs again, and copies back what it lost: `daybook autorecovery status` and"
        " `daybook bookies health` show how far it is."
    )


def _find(directory: Path, bookie: str) -> dict[str, Any]:
    """The part of that name or address.  Raise `UserError` if there is none."""
    bookies = [p for p in ask(directory, "status", None) if p["name"].startswith("bookie-")]
    for part in bookies:
        if bookie in (part["name"], part["address"]):
            return part
    there = ", ".join(f"{part['name']} ({part['address']})" for part in bookies)
    raise UserError(f"There is no bookie {bookie} in {directory}; there are {there}.")


def _set_aside(lost: Path) -> None:
    if not lost.exists():
        return
    number = 1
    while (target := lost.with_name(f"{lost.name}.lost-{number}")).exists():
        number += 1
    lost.rename(target)
    click.echo(f"{lost} was renamed to {target}.", err=True)


def _give_cookies(name: str, config: Path) -> None:
    """Raise `UserError` with the bookie's own words if it refuses."""
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "daybook.bookie.server",
            "--config",
            config,
            "--repair-cookie",
        ],
        env={k: v for k, v in os.environ.items() if not is_for_one_part(k)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    why = reason_in(done.stderr)
    if done.returncode and not why.startswith("nothing to repair"):
        raise UserError(
            f"{name} cannot be repaired, and stays down: {why.rstrip('.')}.  If its directory is of"
            " no use any more, add --set-aside: it is renamed, and nothing in it is deleted."
        )
