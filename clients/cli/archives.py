"""`daybook pipeline archive`."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import trio

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import OutputFormat, output_option, service_url_option
from daybook.clients.cli.output import counted, write_rows
from daybook.clients.cli.progress import open_progress
from daybook.clients.cli.run import run_async, until_signal
from daybook.clients.python.errors import BrokerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from daybook.clients.pipelines.archive.manifest import Manifest

_UNITS = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_COLUMNS = ("partition", "begin", "end", "files", "rows", "bytes")

Report = Callable[[int, int, int], None]
"""Takes the number of rows so far, and how much is done of a total."""


def _bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    del context, parameter
    match = re.fullmatch(r"(\d{1,9})(KB|MB|GB|)", value.strip().upper())
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a size: write 256MB, for example.")
    return int(match[1]) * _UNITS[match[2]]


@click.command()
@click.argument("topic")
@click.argument("directory")
@service_url_option
@click.option(
    "--file-size",
    default="256MB",
    show_default=True,
    metavar="SIZE",
    callback=_bytes,
    help="The size of a full file.",
)
@click.option(
    "--rows-per-step",
    type=click.IntRange(min=1),
    default=10_000_000,
    show_default=True,
    help="The manifest is replaced after so many messages at the latest.",
)
@output_option
def archive(
    topic: str,
    directory: str,
    service_url: str,
    file_size: int,
    rows_per_step: int,
    output: OutputFormat,
) -> None:
    """Bring the archive of a TOPIC in DIRECTORY up to the end of the topic.

    The archive holds Parquet files by day, and a manifest with their offsets. If the command is
    stopped, run it again: it goes on where the manifest ends.
    """
    from daybook.clients.pipelines.archive.errors import ArchiveError
    from daybook.clients.pipelines.archive.store import directory_of

    try:
        path = directory_of(directory)
    except ArchiveError as error:
        raise UserError(f"{error}.") from None
    with _session() as spark:
        from daybook.clients.pipelines.archive.run import ArchiveJob, Progress, archive

        job = ArchiveJob(service_url, topic, path, file_size, rows_per_step)

        def work(report: Report) -> "Manifest":
            def tell(progress: Progress) -> None:
                report(progress.rows, progress.done, progress.total)

            return archive(spark, job, tell)

        manifest = run_reported(f"Archiving {topic}", work)
    write_rows(_table(manifest), _COLUMNS, output)


def _table(manifest: "Manifest") -> list[dict[str, Any]]:
    return [
        {
            "partition": number,
            "begin": part.begin,
            "end": part.end,
            "files": len(part.files),
            "rows": part.rows,
            "bytes": part.bytes,
        }
        for number, part in sorted(manifest.partitions.items())
    ]


def run_reported(what: str, work: "Callable[[Report], Manifest]") -> "Manifest":
    """Run `work` in a thread, and report its progress and rate on standard error.

    A signal ends the command at once.  `work` may be stopped anywhere, and goes on when the command
    is run again.
    """
    done: list[Manifest] = []
    rows, began_s, took_s = 0, 0.0, 0.0

    async def run() -> int | None:
        nonlocal took_s, began_s
        async with open_progress(what) as advance:
            began_s = trio.current_time()

            def show(count: int, so_far: int, total: int) -> None:
                nonlocal rows, took_s
                rows, took_s = count, trio.current_time() - began_s
                behind = counted(total - so_far, "offset")
                advance(so_far, total, f"{_rate(rows, took_s)}, {behind} behind")

            def report(count: int, so_far: int, total: int) -> None:
                trio.from_thread.run_sync(show, count, so_far, total)

            async def finish() -> None:
                found = await trio.to_thread.run_sync(work, report, abandon_on_cancel=True)
                done.append(found)

            return await until_signal(finish)

    received = run_async(run, _sentence)
    if received is not None:
        click.echo("Stopped. Run the command again to go on.", err=True)
        raise SystemExit(128 + received)
    click.echo(f"{what}: {_rate(rows, took_s)}.", err=True)
    return done[0]


def _rate(rows: int, took_s: float) -> str:
    rate = rows / took_s if took_s else 0.0
    return f"{counted(rows, 'message')} in {took_s:.1f} s ({rate:,.0f}/s)"


def _sentence(error: Exception) -> str | None:
    if isinstance(error, BrokerError | ValueError | OSError):
        return f"{error}."
    if type(error).__module__.startswith("pyspark."):
        return f"A task of Spark failed: {_cause(error)}"
    return None


def _cause(error: Exception) -> str:
    """Return the last line of the traceback of a Python worker, which is its own error."""
    lines = [line.strip() for line in str(error).splitlines()]
    own = [line for line in lines if re.match(r"(daybook|pyspark|builtins)?[\w.]*Error: ", line)]
    return (own or lines)[-1]


@contextmanager
def _session() -> "Generator[SparkSession]":
    """Open Spark as its own settings say, or on this machine."""
    try:
        from pyspark.sql import SparkSession

        from daybook.clients.spark import DaybookDataSource
    except ModuleNotFoundError as error:
        raise UserError(
            f"Archives need {error.name}: install it with pip install 'daybook-mq[spark]'."
        ) from None
    spark = (
        SparkSession.builder.appName("daybook archive")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.dataSource.register(DaybookDataSource)
    try:
        yield spark
    finally:
        spark.stop()
