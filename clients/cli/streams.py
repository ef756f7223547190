"""`daybook pipeline run`, `copy` and `mirror`: streams from topics to topics, on Spark."""

import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import (
    Function,
    cluster_options,
    given_about_storage,
    storage_of_query,
    storage_options,
)
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.pictures import picture_option
from daybook.clients.cli.spark import (
    check_cluster,
    ended_by_signals,
    open_spark,
    query_security,
    spark_installed,
    spark_option,
    without_advice,
)
from daybook.clients.pipelines.session import is_remote
from daybook.clients.pipelines.spec import (
    ROWS_PER_BATCH,
    Cluster,
    CopySource,
    Pipeline,
    SpecError,
    copy_pipeline,
    read_pipeline,
)

if TYPE_CHECKING:
    from daybook.clients.pipelines.run import Stop
    from daybook.clients.python.tls import TlsOptions
    from daybook.clients.spark.credential_options import QueryCredentials

_LISTED = ("topic", "partition", "from", "to", "behind")
_KAFKA = "kafka://"


def _copy_options(function: Function) -> Function:
    """Add what `copy` and `mirror` have in common."""
    options = (
        click.argument("topic"),
        click.argument("target"),
        click.option(
            "--checkpoint",
            required=True,
            metavar="DIRECTORY",
            help="Where Spark keeps how far it is; the next run goes on there.",
        ),
        click.option(
            "--source-url",
            metavar="URL",
            help="Where TOPIC is: pulsar://HOST:PORT,... of another cluster, or"
            " kafka://HOST:PORT,... [default: the cluster of TARGET]",
        ),
        click.option(
            "--source-token-file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="With --source-url: a file with the token for that cluster. It is shown no other"
            " credentials.",
        ),
        click.option(
            "--starting",
            type=click.Choice(["earliest", "latest"]),
            default="earliest",
            show_default=True,
            help="Where the first run begins.",
        ),
        click.option(
            "--partition-by",
            type=click.Choice(["source", "key"]),
            default="source",
            show_default=True,
            help="Keep each message in the partition of its number, or hash the keys anew.",
        ),
        click.option(
            "--rows-per-batch",
            type=click.IntRange(min=1),
            default=ROWS_PER_BATCH,
            show_default=True,
            help="A batch has at most so many messages.",
        ),
        click.option(
            "--name",
            help="The name of the sink in the cluster of TARGET. [default: copy-TOPIC-to-TARGET]",
        ),
        picture_option,
        spark_option,
        storage_options,
        cluster_options,
        output_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--available-now", is_flag=True, help="Read what is there now, and end. [default: until Ctrl-C]"
)
@picture_option
@spark_option
@storage_options
@cluster_options
@output_option
def run(
    file: Path,
    available_now: bool,
    picture: Path | None,
    settings: dict[str, str],
    service_url: str,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Run the pipeline that FILE (TOML) describes.

    It goes on where its last run has ended.  Ctrl-C ends it after the batch under way.
    """
    with _sentences():
        storage = storage_of_query(service_url)
        cluster = Cluster(service_url, admin_url, *query_security(service_url), storage)
        pipeline = read_pipeline(file, cluster)
    if (option := given_about_storage()) and not _reads_from(pipeline, service_url):
        raise UserError(
            f"{option} is for the bookies of the cluster of this command, and [source] in {file}"
            " names other brokers: write bookie.tls, zookeeper.tls and so on there."
        )
    if not is_remote({**pipeline.spark, **settings}):  # The driver may see other brokers.
        _check_clusters(pipeline, f"--service-url, or with service.url in {file}")
    with ended_by_signals():
        _run(pipeline, settings, output, picture, until_end=available_now)


@click.command()
@_copy_options
def copy(output: OutputFormat, **options: Any) -> None:  # noqa: ANN401
    """Copy a TOPIC to the topic TARGET, up to its present end.

    Each message is copied once, with its key, properties, event time and order.  The next run with
    the same checkpoint copies what has come since.
    """
    _copy(output, until_end=True, **options)


@click.command()
@_copy_options
def mirror(output: OutputFormat, **options: Any) -> None:  # noqa: ANN401
    """Copy a TOPIC to the topic TARGET, and what comes, until Ctrl-C.

    It goes on where the last `mirror` or `copy` with the same checkpoint has ended.
    """
    _copy(output, until_end=False, **options)


def _copy(
    output: OutputFormat,
    *,
    until_end: bool,
    topic: str,
    target: str,
    checkpoint: str,
    source_url: str | None,
    source_token_file: Path | None,
    starting: str,
    partition_by: str,
    rows_per_batch: int,
    name: str | None,
    picture: Path | None,
    settings: dict[str, str],
    service_url: str,
    admin_url: str,
) -> None:
    if source_token_file is not None and source_url is None:
        raise UserError("--source-token-file needs --source-url: else --token-file is for both.")
    with _sentences():
        source = _copy_source(source_url or service_url, topic)
        pipeline = copy_pipeline(
            source,
            target,
            Cluster(service_url, admin_url, *query_security(service_url)),
            checkpoint,
            source_token_file=source_token_file,
            storage=_storage_of_source(source, service_url),
            name=name,
            same_partitions=partition_by == "source",
            starting=starting,
            rows_per_batch=rows_per_batch,
        )
    _check_clusters(pipeline, "--service-url" if source_url is None else "--source-url")
    with ended_by_signals():
        with _sentences():
            from daybook.clients.pipelines.copies import prepare_target

            click.echo(prepare_target(pipeline, same_partitions=partition_by == "source"), err=True)
        _run(pipeline, settings, output, picture, until_end=until_end)


def _check_clusters(pipeline: Pipeline, source_option: str) -> None:
    """Raise UserError if no broker answers: that of the target, or that of a Daybook source."""
    target = _brokers(pipeline.sink)
    if pipeline.source_format == "daybook":
        url, tls, who = source = _brokers(pipeline.source)
        if source != target:
            check_cluster(url, source_option, tls, who)
    url, tls, who = target
    check_cluster(url, "--service-url", tls, who)


def _brokers(
    options: Mapping[str, str],
) -> tuple[str, "TlsOptions | None", "QueryCredentials"]:
    """Return the address among options, whose names may have any case, and what belongs to it."""
    from daybook.clients.spark.bookie_options import uses_tls
    from daybook.clients.spark.credential_options import parse_credentials
    from daybook.clients.spark.tls_options import parse_tls
    from daybook.clients.spark.zookeeper_options import wants_tls

    given = {name.lower(): value for name, value in options.items()}
    with _sentences():
        url = given["service.url"]
        for_others = uses_tls(given) or wants_tls(given)
        return url, parse_tls(given, url, for_others=for_others), parse_credentials(given)


def _reads_from(pipeline: Pipeline, service_url: str) -> bool:
    """Return True if the source of a pipeline is the cluster at this address."""
    source = {name.lower(): value for name, value in pipeline.source.items()}
    return pipeline.source_format == "daybook" and source["service.url"] == service_url


def _storage_of_source(source: CopySource, service_url: str) -> dict[str, str]:
    """Return the options of a source about its bookies and its ZooKeeper.

    Variables are for the cluster of the command; options are for that of the source.
    """
    option = given_about_storage()
    if source.format == "kafka":
        if option:
            raise UserError(f"{option} is for bookies, and Kafka has none: leave it out.")
        return {}
    if not option and source.address != service_url:
        return {}
    return storage_of_query(source.address)


def _copy_source(url: str, topic: str) -> CopySource:
    if url.startswith(_KAFKA):
        return CopySource("kafka", url.removeprefix(_KAFKA), topic)
    return CopySource("daybook", url, topic)


def _run(
    pipeline: Pipeline,
    settings: Mapping[str, str],
    output: OutputFormat,
    picture: Path | None,
    *,
    until_end: bool,
) -> None:
    with _sentences():
        from daybook.clients.pipelines.picture import Picture, title_of
        from daybook.clients.pipelines.report import summary, table
        from daybook.clients.pipelines.run import Stop
        from daybook.clients.pipelines.run import run as run_queries

        stop = Stop()
        drawn = None if picture is None else Picture(picture, title_of(pipeline), _say)
        with (
            open_spark(pipeline.name, {**pipeline.spark, **settings}) as spark,
            _asked_by_signals(stop),
        ):
            result = run_queries(
                spark,
                pipeline,
                until_end=until_end,
                stop=stop,
                say=_say,
                picture=drawn,
            )
    sums = summary(result.rows, result.letters, result.took_s)
    if output == "json":
        write_record({"partitions": table(result.rows), **sums}, output)
        return
    write_rows(table(result.rows), _LISTED, output)
    click.echo()
    if _shows_bars() and (bars := result.history.line()):
        sums["rate over time"] = bars
    write_record(sums, output)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _shows_bars() -> bool:
    """Return True for a terminal that shows texts in UTF-8."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return sys.stdout.isatty() and encoding == "utf8"


@contextmanager
def _asked_by_signals(stop: "Stop") -> Generator[None]:
    """Let Ctrl-C and SIGTERM ask for a clean end; they replace the handlers of PySpark."""

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.ask()

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _sentences() -> Generator[None]:
    """Turn the errors that a user can correct into sentences."""
    from daybook.clients.python.errors import BrokerError

    try:
        with spark_installed():
            yield
    except (SpecError, BrokerError, ValueError) as error:
        raise UserError(f"{without_advice(error).rstrip('.')}.") from None
    except Exception as error:
        if type(error).__name__ != "PipelineError":
            raise
        raise UserError(f"{str(error).rstrip('.')}.") from error
