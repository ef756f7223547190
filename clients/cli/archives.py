"""`daybook pipeline archive`, `compact-archive` and `replay`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import trio

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import (
    Function,
    cluster_options,
    service_url_option,
    storage_of_query,
    storage_options,
)
from daybook.clients.cli.output import OutputFormat, counted, output_option, write_rows
from daybook.clients.cli.pictures import Report, drawn_reports, picture_option
from daybook.clients.cli.progress import open_progress
from daybook.clients.cli.run import run_async, until_signal
from daybook.clients.cli.spark import (
    EndedBySignalError,
    check_cluster,
    ended_by_signals,
    open_spark,
    query_security,
    spark_installed,
    spark_option,
)
from daybook.clients.python.arguments import Compression, compression_type
from daybook.clients.python.errors import BrokerError, Remedy

if TYPE_CHECKING:
    from daybook.clients.pipelines.archive.manifest import Manifest
    from daybook.clients.pipelines.archive.replay import ReplayedPartition

_UNITS = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_COLUMNS = ("partition", "begin", "end", "files", "rows", "bytes")
_LONG_STEP_S = 5.0  # a step that takes longer is told of
_REPLAYED = ("partition", "begin", "next", "end", "messages")

T = TypeVar("T")


def _bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    del context, parameter
    match = re.fullmatch(r"(\d{1,9})(KB|MB|GB|)", value.strip().upper())
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a size: write 256MB, for example.")
    return int(match[1]) * _UNITS[match[2]]


def _file_size_option(function: Function) -> Function:
    option = click.option(
        "--file-size",
        default="256MB",
        show_default=True,
        metavar="SIZE",
        callback=_bytes,
        help="The size of a full file.",
    )
    return option(function)


@click.command()
@click.argument("topic")
@click.argument("directory")
@storage_options
@service_url_option
@_file_size_option
@click.option(
    "--rows-per-step",
    type=click.IntRange(min=1),
    default=10_000_000,
    show_default=True,
    help="The manifest is replaced after so many messages at the latest.",
)
@click.option("--compact", is_flag=True, help="Merge small files afterwards.")
@click.option("--follow", is_flag=True, help="Go on with new messages until a signal comes.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: the pause before the next look at the topic.",
)
@picture_option
@spark_option
@output_option
def archive(
    topic: str,
    directory: str,
    service_url: str,
    file_size: int,
    rows_per_step: int,
    compact: bool,
    follow: bool,
    interval: float,
    picture: Path | None,
    settings: dict[str, str],
    output: OutputFormat,
) -> None:
    """Bring the archive of a TOPIC in DIRECTORY up to the end of the topic.

    The archive holds Parquet files by day, and a manifest with their offsets. If the command is
    stopped, run it again: it goes on where the manifest ends.
    """
    path = _path(directory)
    storage = storage_of_query(service_url)
    tls, who = query_security(service_url)
    check_cluster(service_url, "--service-url", tls, who)
    title = f"Archive\n{topic} \u2192 {directory}"
    with (
        ended_by_signals(),
        drawn_reports(picture, title) as drawn,
        open_spark("archive", settings) as spark,
    ):
        from daybook.clients.pipelines.archive import compact as compaction
        from daybook.clients.pipelines.archive import run

        job = run.ArchiveJob(service_url, topic, path, file_size, rows_per_step, tls, who, storage)

        def once(report: Report) -> "Manifest":
            report = drawn(report)

            def tell(progress: run.Progress) -> None:
                report(progress.rows, progress.done, progress.total)

            manifest = run.archive(spark, job, tell)
            return compaction.compact(path, file_size) if compact else manifest

        what = f"Archiving {topic}"
        manifest = _follow(what, once, interval) if follow else run_reported(what, once)
    write_rows(_table(manifest), _COLUMNS, output)


@click.command("compact-archive")
@click.argument("directory")
@_file_size_option
@output_option
def compact_archive(directory: str, file_size: int, output: OutputFormat) -> None:
    """Merge the small files of the archive in DIRECTORY.

    The old files are kept for a day, for queries that are using them. The command can be stopped
    at any time.
    """
    path = _path(directory)
    with spark_installed():
        from daybook.clients.pipelines.archive import compact as compaction

    def work(report: Report) -> "Manifest":
        def tell(progress: compaction.CompactProgress) -> None:
            report(progress.rows, progress.done, progress.total)

        return compaction.compact(path, file_size, tell)

    with ended_by_signals():
        manifest = run_reported(f"Compacting {directory}", work, "byte")
    write_rows(_table(manifest), _COLUMNS, output)


@click.command()
@click.argument("directory")
@click.argument("topic")
@cluster_options
@click.option(
    "--rows-per-step",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="About so many messages are committed at once; a file is never divided.",
)
@click.option(
    "--compression",
    type=click.Choice(get_args(Compression)),
    default="none",
    show_default=True,
    help="Compress batches.",
)
@click.option(
    "--without-schemas",
    is_flag=True,
    help="Write the bytes of typed messages, and give the topic no schema.",
)
@picture_option
@spark_option
@output_option
def replay(
    directory: str,
    topic: str,
    service_url: str,
    admin_url: str,
    rows_per_step: int,
    compression: Compression,
    without_schemas: bool,
    picture: Path | None,
    settings: dict[str, str],
    output: OutputFormat,
) -> None:
    """Write the archive in DIRECTORY into a TOPIC, each message exactly once.

    The TOPIC does not exist, or holds nothing, or holds what an earlier run has written: if the
    command is stopped, run it again.
    """
    path = _path(directory)
    tls, who = query_security(service_url)
    check_cluster(service_url, "--service-url", tls, who)
    title = f"Replay\n{directory} \u2192 {topic}"
    with (
        ended_by_signals(),
        drawn_reports(picture, title) as drawn,
        open_spark("replay", settings) as spark,
    ):
        from daybook.clients.pipelines.archive import replay as replaying

        job = replaying.ReplayJob(
            service_url,
            admin_url,
            path,
            topic,
            rows_per_step,
            compression_type(compression),
            with_schemas=not without_schemas,
            tls=tls,
            credentials=who,
        )

        def work(report: Report) -> "Mapping[int, ReplayedPartition]":
            report = drawn(report)

            def tell(progress: replaying.ReplayProgress) -> None:
                report(progress.rows, progress.done, progress.total)

            return replaying.replay(spark, job, tell)

        found = run_reported(f"Replaying {directory} into {topic}", work)
    rows = [
        {
            "partition": number,
            "begin": part.begin,
            "next": part.next,
            "end": part.end,
            "messages": part.messages,
        }
        for number, part in found.items()
    ]
    write_rows(rows, _REPLAYED, output)


def _path(directory: str) -> Path:
    from daybook.clients.pipelines.archive.errors import ArchiveError
    from daybook.clients.pipelines.archive.store import directory_of

    try:
        return directory_of(directory)
    except ArchiveError as error:
        raise UserError(f"{error}.") from None


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


class _Reported:
    """The progress of one command on standard error, with its rate and the time now."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._rows = 0
        self._behind = 0
        self._began_s = self._step_began_s = 0.0
        self._took_s: float | None = None  # None: it runs

    async def run(self, work: Callable[[Report], T]) -> T:
        """Run `work` in a thread, which is left alone if the caller is cancelled."""
        async with open_progress(self._what) as advance:
            self._began_s = trio.current_time()

            def show(rows: int, done: int, total: int) -> None:
                self._rows, self._behind = rows, total - done
                self._step_began_s = trio.current_time()
                advance(done, total, self)

            def report(rows: int, done: int, total: int) -> None:
                trio.from_thread.run_sync(show, rows, done, total)

            found = await trio.to_thread.run_sync(work, report, abandon_on_cancel=True)
            self._took_s = trio.current_time() - self._began_s
            return found

    def __str__(self) -> str:
        """The state now: a step may take minutes, and reports nothing meanwhile."""
        step_s = trio.current_time() - self._step_began_s
        parts = [self._rate(), f"{counted(self._behind, self._unit)} behind"]
        if step_s >= _LONG_STEP_S:
            parts.append(f"the step under way has taken {step_s:.0f} s so far")
        return ", ".join(parts)

    @property
    def line(self) -> str:
        return f"{self._what}: {self._rate()}."

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def _rate(self) -> str:
        took_s = trio.current_time() - self._began_s if self._took_s is None else self._took_s
        rate = self._rows / took_s if took_s else 0.0
        return f"{counted(self._rows, 'message')} in {took_s:.1f} s ({rate:,.0f}/s)"


def run_reported(what: str, work: Callable[[Report], T], unit: str = "offset") -> T:
    """Run `work` in a thread, and report its progress and rate on standard error.

    A signal raises EndedBySignalError at once.  `work` may be stopped anywhere, and goes on when
    the command is run again.
    """
    done: list[T] = []
    reported = _Reported(what, unit)

    async def finish() -> None:
        done.append(await reported.run(work))

    received = run_async(lambda: until_signal(finish), _sentence)
    if received is not None:
        raise EndedBySignalError(received)
    click.echo(reported.line, err=True)
    return done[0]


def _follow(what: str, work: "Callable[[Report], Manifest]", interval_s: float) -> "Manifest":
    """Run `work` again and again until a signal comes; return the last result.

    A run that fails because something is away is tried again after the pause.
    """
    done: list[Manifest] = []

    async def repeat() -> None:
        while True:
            reported = _Reported(what, "offset")
            try:
                done.append(await reported.run(work))
            except Exception as error:
                if not done or not _may_pass(error):
                    raise
                click.echo(f"{_sentence(error)} The next try is in {interval_s:g} s.", err=True)
            else:
                if not reported.is_empty:
                    click.echo(reported.line, err=True)
            await trio.sleep(interval_s)

    received = run_async(lambda: until_signal(repeat), _sentence)
    assert received is not None, "only a signal or an error ends it"
    if not done:
        raise EndedBySignalError(received)
    return done[-1]


def _may_pass(error: Exception) -> bool:
    """Return True if the next try may have more success."""
    if isinstance(error, BrokerError):
        return error.remedy is not Remedy.GIVE_UP
    return isinstance(error, TimeoutError) or type(error).__module__.startswith("pyspark.")


def _sentence(error: Exception) -> str | None:
    if isinstance(error, BrokerError | ValueError | OSError):
        return f"{error}."
    if type(error).__module__.startswith("pyspark."):
        return _cause(error)
    return None


def _cause(error: Exception) -> str:
    """Return the sentence of the Python worker that failed, or the best line that Spark has."""
    lines = [line.strip() for line in str(error).splitlines()]
    for line in reversed(lines):
        if match := re.match(r"daybook\.[\w.]+: (.+)", line):
            return f"{match[1].rstrip('.')}."
    own = [line for line in lines if re.match(r"[\w.]*Error: ", line)]
    return f"A task of Spark failed: {(own or lines or [''])[-1]}"
