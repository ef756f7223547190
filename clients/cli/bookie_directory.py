"""`daybook bookie check | rebuild-index | export | repair-cookie`: work on a stopped bookie.

Exit codes of the first three: 0 all is well, 1 something is damaged or lost, 2 the command cannot
run, for instance because a bookie uses the directory.
"""

import json
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, NoReturn, TypeVar

import click

from daybook.bookie.storage.offline import (
    CheckReport,
    DirectoryInUseError,
    ExportedEntry,
    OfflineError,
    Progress,
    StoreError,
    UnsupportedVersionError,
    check_directory,
    export_entries,
    log_bytes,
    remake_index,
)
from daybook.clients.cli.output import OutputFormat, output_option, write_record
from daybook.clients.cli.progress import open_progress
from daybook.clients.cli.run import run_async
from daybook.clients.cli.service import run_service, service_options, standalone_of

T = TypeVar("T")

_DAMAGED, _IMPOSSIBLE = 1, 2
_directory = click.argument(
    "directory", type=click.Path(path_type=Path, exists=True, file_okay=False)
)


@click.command()
@_directory
@output_option
def check(directory: Path, output: OutputFormat) -> None:
    """Read the whole DIRECTORY, and compare it with its index.  Nothing is changed."""

    async def run(progress: Progress) -> CheckReport:
        return await check_directory(directory, progress)

    # Entries behind the last checkpoint are read twice.
    report = _run("checking", directory, run)
    record = asdict(report)
    problems = record.pop("problems")
    if output == "json":
        write_record({**record, "problems": problems}, output)
    else:
        write_record(record, output)
        for problem in problems:
            click.echo(problem, err=True)
    if problems:
        sys.exit(_DAMAGED)


@click.command("rebuild-index")
@_directory
def rebuild_index(directory: Path) -> None:
    """Rebuild the index of DIRECTORY from the log alone.

    The old index stays until the new one is complete.
    """

    async def run(progress: Progress) -> list[str]:
        return await remake_index(directory, progress)

    losses = _run("reading", directory, run)
    for loss in losses:
        click.echo(f"lost: {loss}", err=True)
    if losses:
        click.echo("The bookie will answer 'unknown' for entries that it does not have.", err=True)
        sys.exit(_DAMAGED)
    click.echo("the index is rebuilt", err=True)


@click.command()
@_directory
@click.option(
    "--ledger",
    "ledgers",
    type=click.IntRange(min=0),
    multiple=True,
    help="Export only this ledger; may be given more than once.",
)
@click.option(
    "--to",
    "target",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    help="The file to write.  [default: standard output]",
)
def export(directory: Path, ledgers: tuple[int, ...], target: IO[str]) -> None:
    """Write the entries in DIRECTORY as lines of JSON, with their bytes in base64.

    They are ordered by ledger and entry.  The line of an entry that cannot be read has the reason.
    """
    damaged = 0
    missing = set(ledgers)

    async def run(progress: Progress) -> None:
        nonlocal damaged
        entries: AsyncGenerator[ExportedEntry] = export_entries(
            directory, progress, frozenset(ledgers)
        )
        async with aclosing(entries):
            async for entry in entries:
                damaged += entry.data is None
                missing.discard(entry.ledger_id)
                with _writing(target):
                    target.write(json.dumps(_line(entry)) + "\n")
        with _writing(target):
            target.flush()

    _run("exporting", directory, run)
    for ledger_id in sorted(missing):
        click.echo(f"no entry of ledger {ledger_id} is here", err=True)
    if damaged:
        click.echo(f"{damaged} entries cannot be read", err=True)
        sys.exit(_DAMAGED)


@contextmanager
def _writing(target: IO[str]) -> Generator[None]:
    """Turn errors of the output file into OfflineError, so that they do not blame the directory."""
    try:
        yield
    except BrokenPipeError:
        raise  # The reader of the pipe is done; click ends the command.
    except (OSError, click.FileError) as error:
        with suppress(OSError, click.FileError):
            target.close()  # here, since click would fail in closing it
        raise OfflineError(f"the entries cannot be written: {error}") from error


def _line(entry: ExportedEntry) -> dict[str, object]:
    place = {"ledger": entry.ledger_id, "entry": entry.entry_id}
    if entry.data is None:
        return {**place, "error": entry.error}
    return {**place, "data": b64encode(entry.data).decode()}


def _run(what: str, directory: Path, work: Callable[[Progress], Awaitable[T]]) -> T:
    async def run() -> T:
        done, size = 0, log_bytes(directory)
        async with open_progress(what) as advance:

            def progress(count: int) -> None:
                nonlocal done
                done += count
                advance(done, size, "")

            return await work(progress)

    try:
        return run_async(run, lambda _: None)
    except DirectoryInUseError:
        _refuse(f"{directory} is in use: stop the bookie first")
    except OfflineError as error:
        _refuse(str(error))
    except BrokenPipeError:
        raise
    except (OSError, StoreError, UnsupportedVersionError) as error:
        _refuse(f"{directory}: {error}")


def _refuse(why: str) -> NoReturn:
    click.echo(why, err=True)
    sys.exit(_IMPOSSIBLE)


@click.command("repair-cookie")
@click.option(
    "--directory",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="All directories of the bookie, in their order, including empty ones.",
)
@click.option("--bookie-id", help="The id of the bookie, if no directory contains it.")
@service_options
def repair_cookie(directories: tuple[Path, ...], bookie_id: str | None, **options: object) -> None:
    """Write new cookies into the directories of a stopped bookie.

    Use it if directories are empty because a disk was lost or replaced.  At its next start the
    bookie fences all ledgers that name it and puts them in limbo, serves, and copies the entries
    that it lacks from other bookies.  Nothing is removed: a directory that holds data but no cookie
    is refused.

    For a directory of a standalone cluster the settings of its bookie are used.

    Exit codes: 0 done, 1 the settings are invalid, 2 it cannot be done, with the reason.
    """
    paths = [str(directory.absolute()) for directory in directories]
    settings = {
        "directories": json.dumps(paths, ensure_ascii=False) if paths else None,
        "bookie_id": bookie_id,
    }
    if options.get("config") is None:
        options["config"] = _config_beside(directories)
    run_service(
        "daybook.bookie.server",
        "DAYBOOK_BOOKIE_",
        {**settings, **options},
        arguments=["--repair-cookie"],
        directories=directories,
    )


def _config_beside(directories: Sequence[Path]) -> Path | None:
    """Return the settings file of the bookie, if its directories are in a standalone cluster."""
    for directory in directories:
        cluster = standalone_of(directory)
        if cluster is not None:
            config = cluster.path / "conf" / f"{directory.absolute().name}.toml"
            if config.exists():
                return config
    return None
