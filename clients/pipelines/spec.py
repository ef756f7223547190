"""A pipeline: where rows come from, the steps that change them, and the topic that they go to.

`read_pipeline` reads it from a TOML file (docs/pipelines.md describes the file).  Errors name the
file, the line and the key, and say what to write.  Nothing here imports PySpark: a file is checked
before Spark starts.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from daybook.clients.pipelines.spec_file import PipelineFile, WrongKeyError

if TYPE_CHECKING:
    from daybook.clients.python.tls import TlsOptions
    from daybook.clients.spark.credential_options import QueryCredentials

SourceFormat: TypeAlias = Literal["daybook", "kafka"]
RecordFormat: TypeAlias = Literal["json", "avro"]

ROWS_PER_BATCH = 200_000
_OPTION_ROWS = "maxOffsetsPerTrigger"
# Kafka's default also reads messages whose transaction was aborted.
_ISOLATION, _COMMITTED = "kafka.isolation.level", "read_committed"
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_OF_THE_PIPELINE = ("columns", "keyType", "includeHeaders")  # The steps need certain columns.
_SINK_OF_THE_PIPELINE = ("sinkName", "checkpointLocation", "queryName")
_DURATION = re.compile(
    r"\s*[0-9]{1,9} *(millisecond|second|minute|hour|day|week)s?\s*", re.IGNORECASE
)
_DURATION_FORMS = "write a number and a unit, such as '30 seconds', '10 minutes' or '1 day'"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHORT = 30  # letters of a topic
_FILE_ENDINGS = (".file", ".trusted", ".certificate", ".key")


class SpecError(ValueError):
    """The pipeline cannot be run as it is described; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Parse:
    """The value of each message is a record."""

    format: RecordFormat
    schema: str  # in Spark's words: "sensor STRING NOT NULL, degrees DOUBLE"
    avro_schema: str | None = None  # the Avro schema by which producers wrote, as JSON


@dataclass(frozen=True, slots=True)
class EventTime:
    """The time of each row, and how late a row may be."""

    column: str  # an SQL expression
    late: str


@dataclass(frozen=True, slots=True)
class Window:
    """Rows are aggregated by windows of event time."""

    size: str
    columns: Mapping[str, str]  # the aggregates: name and SQL expression
    slide: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline that is checked as far as that is possible without Spark.

    `source` and `sink` are the options of Spark's formats, all of them texts.
    """

    name: str
    checkpoint: str
    source_format: SourceFormat
    source: Mapping[str, str]
    sink: Mapping[str, str]
    parse: Parse | None = None
    where: str | None = None
    time: EventTime | None = None
    deduplicate: tuple[str, ...] = ()
    window: Window | None = None
    columns: Mapping[str, str] | None = None
    dead_letters: str | None = None
    every: str = "1 second"
    spark: Mapping[str, str] = field(default_factory=dict[str, str])
    file: PipelineFile | None = field(default=None, compare=False)  # None: no file describes it

    def refused(self, error: WrongKeyError) -> SpecError:
        """Return the error for the user, with the line if there is a file."""
        return SpecError(f"{error}" if self.file is None else self.file.at(error))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where brokers are, for a pipeline that does not say it."""

    service_url: str
    admin_url: str
    tls: "TlsOptions | None" = None  # for URLs with TLS
    credentials: "QueryCredentials | None" = None  # for these URLs alone
    storage: Mapping[str, str] = field(default_factory=dict[str, str])
    """The options of a source about the bookies and the ZooKeeper of this cluster."""


def read_pipeline(path: Path, cluster: Cluster) -> Pipeline:
    """Read a pipeline from a TOML file.  Raise SpecError."""
    try:
        text = path.read_text()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text in UTF-8") from None
    return parse_pipeline(text, path, cluster)


def parse_pipeline(text: str, path: Path, cluster: Cluster) -> Pipeline:
    """Return the pipeline of the content of a file; relative paths in it begin at the file."""
    described = PipelineFile(path, text)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not TOML: {error}") from None
    try:
        file = msgspec.convert(found, _File)
    except msgspec.ValidationError as error:
        where, says = _explained(str(error))
        raise SpecError(described.at(WrongKeyError(where, says))) from None
    try:
        return replace(_checked(file, path, cluster), file=described)
    except WrongKeyError as error:
        raise SpecError(described.at(error)) from None


@dataclass(frozen=True, slots=True)
class CopySource:
    """The source of a copy: a topic of a cluster of Daybook or Pulsar, or one of Kafka."""

    format: SourceFormat
    address: str  # a service URL, or HOST:PORT,... of Kafka
    topic: str


def copy_pipeline(
    source: CopySource,
    target: str,
    cluster: Cluster,
    checkpoint: str,
    *,
    name: str | None = None,
    same_partitions: bool = True,
    starting: str = "earliest",
    rows_per_batch: int = ROWS_PER_BATCH,
    spark: Mapping[str, str] | None = None,
    source_token_file: Path | None = None,
    storage: Mapping[str, str] | None = None,
) -> Pipeline:
    """Return the pipeline that copies a topic to the topic `target` of `cluster`, exactly once.

    The credentials of `cluster` are shown to no other one: `source_token_file` is for the source,
    and so is `storage`, which says how its bookies and its ZooKeeper are reached.

    With `same_partitions` each message goes to the partition with the number of its own, and else
    to the partition of its key.  Raise SpecError for a name that no sink can have.
    """
    if source.format == "kafka":
        options = {"kafka.bootstrap.servers": source.address, "subscribe": source.topic}
        options |= {_ISOLATION: _COMMITTED}
    else:
        options = {**(storage or {}), "service.url": source.address, "topic": source.topic}
        if source.address.startswith("pulsar+ssl:"):
            options |= _tls_of(cluster)
        if source_token_file is not None:
            options["token.file"] = str(source_token_file.absolute())
        elif source.address == cluster.service_url:
            options |= _credentials_of(cluster)
    options |= {"startingOffsets": starting, _OPTION_ROWS: str(rows_per_batch)}
    named = name or f"copy-{_short(source.topic)}-to-{_short(target)}"
    if not _NAME.fullmatch(named):
        raise SpecError(f"the name {named!r} is too long or not one word: {_NAME_FORMS}")
    properties = "headers" if source.format == "kafka" else "properties"
    kept = ["key", "keyIsBytes", "value", "eventTime", properties]
    return Pipeline(
        name=named,
        checkpoint=absolute(checkpoint, Path()),
        source_format=source.format,
        source=options,
        sink=_sink_options({"topic": target}, cluster),
        columns={each: each for each in [*kept, *["partition"] * same_partitions]},
        spark=spark or {},
    )


def absolute(path: str, base: Path) -> str:
    """Return an absolute path; one with a scheme, such as s3://, stays."""
    return path if "://" in path else str((base / path).absolute())


def _short(topic: str) -> str:
    """Return a topic as a part of a name: two topics never become the same part."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", topic.partition("://")[2] or topic)
    if len(name) <= _SHORT:
        return name
    return f"{name[:_SHORT]}-{sha256(topic.encode()).hexdigest()[:8]}"


# -- the file


class _ParseTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    format: RecordFormat = "json"
    avro_schema: str | None = None


class _TimeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    late: str
    column: str = "message.eventTime"


class _DeduplicateTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    by: list[str]


class _WindowTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: str
    columns: dict[str, str]
    slide: str | None = None
    by: list[str] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    checkpoint: str
    source: dict[str, Any]
    sink: dict[str, Any]
    where: str | None = None
    dead_letters: str | None = None
    every: str = "1 second"
    parse: _ParseTable | None = None
    time: _TimeTable | None = None
    deduplicate: _DeduplicateTable | None = None
    window: _WindowTable | None = None
    columns: dict[str, str] | None = None
    spark: dict[str, Any] = {}


_TABLES: dict[tuple[str, ...], type[msgspec.Struct]] = {
    (): _File,
    ("parse",): _ParseTable,
    ("time",): _TimeTable,
    ("deduplicate",): _DeduplicateTable,
    ("window",): _WindowTable,
}


_NAME_FORMS = "use up to 100 letters, digits, '.', '_' and '-'"


def _checked(file: _File, path: Path, cluster: Cluster) -> Pipeline:
    if not _NAME.fullmatch(file.name):
        raise WrongKeyError(("name",), f"{file.name!r} is not a name: {_NAME_FORMS}")
    if not file.checkpoint.strip():
        raise WrongKeyError(("checkpoint",), "it is empty: name a directory")
    if "spark" in file.spark or any(name.startswith("spark.") for name in file.spark):
        raise WrongKeyError(("spark",), "leave 'spark.' away: master = 'local[2]', for example")
    source_format, source = _source(file.source, cluster, path.parent)
    _check_duration(("every",), file.every)
    parse = None if file.parse is None else _parse(file.parse, path.parent)
    time = _time(file)
    window = None if file.window is None else _window(file.window)
    if file.dead_letters is not None and parse is None and time is None:
        raise WrongKeyError(
            ("dead_letters",), "every message is a row without [parse] and [time]: leave it away"
        )
    if file.columns is not None and not file.columns:
        raise WrongKeyError(("columns",), "name a column at least, such as value = 'value'")
    return Pipeline(
        name=file.name,
        checkpoint=absolute(file.checkpoint, path.parent),
        source_format=source_format,
        source=source,
        sink=_sink(file, cluster, path.parent),
        parse=parse,
        where=file.where,
        time=time,
        deduplicate=tuple(_deduplicate(file)),
        window=window,
        columns=file.columns,
        dead_letters=file.dead_letters,
        every=file.every,
        spark=_flat(file.spark, ("spark",), prefix="spark."),
    )


def _source(
    table: Mapping[str, Any], cluster: Cluster, base: Path
) -> tuple[SourceFormat, dict[str, str]]:
    given = dict(table)
    format_ = given.pop("format", "daybook")
    if format_ not in ("daybook", "kafka"):
        raise WrongKeyError(("source", "format"), f"{format_!r} is neither 'daybook' nor 'kafka'")
    options = _with_paths(_flat(given, ("source",)), base)
    names = {name.lower() for name in options}
    for name in _OF_THE_PIPELINE:
        if name.lower() in names:
            raise WrongKeyError(("source", name), "the pipeline chooses it: leave it away")
    if not names & {name.lower() for name in _STARTS}:
        options["startingOffsets"] = "earliest"
    if _OPTION_ROWS.lower() not in names:
        options[_OPTION_ROWS] = str(ROWS_PER_BATCH)
    if format_ == "daybook":
        if "service.url" not in names:
            ours = {**cluster.storage, **_of_cluster(options, cluster)}
            options |= {name: value for name, value in ours.items() if name.lower() not in names}
        _check_source(options, _flat(given, ("source",)))
    elif "kafka.bootstrap.servers" not in names:
        raise WrongKeyError(("source",), "add kafka.bootstrap.servers = 'HOST:PORT'")
    elif _ISOLATION not in names:
        options[_ISOLATION] = _COMMITTED
    return format_, options


def _check_source(options: Mapping[str, str], given: Collection[str]) -> None:
    from daybook.clients.spark.options import parse_options

    try:
        parse_options(options, streaming=True)
    except ValueError as error:
        raise WrongKeyError(("source", *_option_in(str(error), given)), f"{error}") from None


def _sink(file: _File, cluster: Cluster, base: Path) -> dict[str, str]:
    given = dict(file.sink)
    if given.pop("format", "daybook") != "daybook":
        raise WrongKeyError(("sink", "format"), "a pipeline writes to a topic: leave it away")
    options = _with_paths(_flat(given, ("sink",)), base)
    for name in _SINK_OF_THE_PIPELINE:
        if name.lower() in {each.lower() for each in options}:
            raise WrongKeyError(("sink", name), "the pipeline chooses it: leave it away")
    from daybook.clients.spark.sink_options import SINK_NAMES, parse_sink_options

    # The queries add options of their own, so each option has one spelling.
    spelling = {name.lower(): name for name in SINK_NAMES}
    own = {spelling.get(name.lower(), name): value for name, value in options.items()}
    _check_one_cluster(own)
    options = _sink_options(own, cluster)
    if file.columns is None and (file.parse or file.window) is not None:
        options.setdefault("valueFormat", "json")
    try:
        parse_sink_options({**options, "checkpointLocation": file.checkpoint}, streaming=True)
    except ValueError as error:
        raise WrongKeyError(("sink", *_option_in(str(error), own)), f"{error}") from None
    return options


def _tls_of(cluster: Cluster) -> dict[str, str]:
    from daybook.clients.spark.tls_options import spark_options

    return spark_options(cluster.tls)


def _credentials_of(cluster: Cluster) -> dict[str, str]:
    from daybook.clients.spark.credential_options import credential_options

    return {} if cluster.credentials is None else credential_options(cluster.credentials)


def _with_paths(options: dict[str, str], base: Path) -> dict[str, str]:
    """Return options whose files have absolute paths, because workers have other directories."""
    from daybook.clients.spark.bookie_options import BOOKIE_NAMES
    from daybook.clients.spark.credential_options import CREDENTIAL_NAMES
    from daybook.clients.spark.tls_options import TLS_NAMES
    from daybook.clients.spark.zookeeper_options import ZOOKEEPER_NAMES

    known = (*CREDENTIAL_NAMES, *BOOKIE_NAMES, *ZOOKEEPER_NAMES, *TLS_NAMES)
    files = [name for name in known if name.endswith(_FILE_ENDINGS)]
    return {
        name: str((base / value).absolute()) if name.lower() in files and value.strip() else value
        for name, value in options.items()
    }


def _check_one_cluster(sink: Mapping[str, str]) -> None:
    """Raise an error for a sink whose credentials would be shown to the cluster of the command."""
    once = sink.get("semantics", "exactly-once") == "exactly-once"
    if once and _has_credentials(sink) and ("service.url" in sink) != ("admin.url" in sink):
        raise WrongKeyError(
            ("sink",), "with credentials of its own, it needs both service.url and admin.url"
        )


def _has_credentials(options: Mapping[str, str]) -> bool:
    from daybook.clients.spark.credential_options import CREDENTIAL_NAMES

    return not {name.lower() for name in options}.isdisjoint(CREDENTIAL_NAMES)


def _of_cluster(options: Mapping[str, str], cluster: Cluster) -> dict[str, str]:
    """Return the address of the cluster, its TLS, and its credentials.

    They are not for a table that has its own ones, or another admin URL.
    """
    other = _has_credentials(options) or "admin.url" in options
    credentials = {} if other else _credentials_of(cluster)
    return {"service.url": cluster.service_url, **_tls_of(cluster), **credentials}


def _sink_options(options: Mapping[str, str], cluster: Cluster) -> dict[str, str]:
    """Return the options of the sink: exactly once, unless they say something else."""
    made = {**({} if "service.url" in options else _of_cluster(options, cluster)), **options}
    if made.setdefault("semantics", "exactly-once") == "exactly-once":
        made.setdefault("admin.url", cluster.admin_url)
    return made


def _parse(table: _ParseTable, base: Path) -> Parse:
    if table.format == "json":
        if table.avro_schema is not None:
            raise WrongKeyError(
                ("parse", "avro_schema"), "it is for format = 'avro': leave it away"
            )
        return Parse("json", table.schema)
    if table.avro_schema is None:
        raise WrongKeyError(("parse",), "format = 'avro' needs avro_schema = 'FILE.avsc'")
    try:
        return Parse("avro", table.schema, (base / table.avro_schema).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise WrongKeyError(("parse", "avro_schema"), f"it cannot be read: {error}") from None


def _time(file: _File) -> EventTime | None:
    if file.time is None:
        for step in ("deduplicate", "window"):
            if getattr(file, step) is not None:
                raise WrongKeyError(
                    (step,), "it needs the table [time], with late = '10 minutes' for example"
                )
        return None
    _check_duration(("time", "late"), file.time.late)
    if file.deduplicate is None and file.window is None:
        raise WrongKeyError(("time",), "only [deduplicate] and [window] need it: leave it away")
    return EventTime(file.time.column, file.time.late)


def _deduplicate(file: _File) -> list[str]:
    if file.deduplicate is None:
        return []
    if not file.deduplicate.by:
        raise WrongKeyError(("deduplicate", "by"), "name a column at least, such as by = ['id']")
    return file.deduplicate.by


def _window(table: _WindowTable) -> Window:
    _check_duration(("window", "size"), table.size)
    if table.slide is not None:
        _check_duration(("window", "slide"), table.slide)
    if not table.columns:
        raise WrongKeyError(("window", "columns"), "name an aggregate, such as count = 'count(*)'")
    return Window(table.size, table.columns, table.slide, tuple(table.by))


def _check_duration(where: tuple[str, ...], text: str) -> None:
    if not _DURATION.fullmatch(text):
        raise WrongKeyError(where, f"{text!r} is not a time: {_DURATION_FORMS}")


def _flat(table: Mapping[str, Any], where: tuple[str, ...], prefix: str = "") -> dict[str, str]:
    """Return options as texts; tables become names with dots, as TOML makes tables of such."""
    found: dict[str, str] = {}
    for name, value in table.items():
        match value:
            case dict():
                inner = cast("dict[str, Any]", value)
                found |= _flat(inner, (*where, name), f"{prefix}{name}.")
            case bool():
                found[prefix + name] = str(value).lower()
            case str() | int() | float():
                found[prefix + name] = str(value)
            case _:
                raise WrongKeyError((*where, name), "write a text, a number, true or false")
    return found


# -- errors with lines


def _option_in(message: str, options: Collection[str]) -> tuple[str, ...]:
    """Return the key of the option that a message is about; nothing if none of them is."""
    found = {
        place.start(): name
        for name in options
        if (place := re.search(rf"\b{re.escape(name)}\b", message, re.IGNORECASE)) is not None
    }
    return (found[min(found)],) if found else ()


def _explained(message: str) -> tuple[tuple[str, ...], str]:
    """Return the key of an error of msgspec, and what is wrong there."""
    says, _, place = message.partition(" - at `$")
    where = tuple(re.findall(r"[^.\[\]`]+", re.sub(r"\[\.\.\.\]|\[[0-9]+\]", "", place)))
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", says):
        names = ", ".join(each.encode_name for each in msgspec.structs.fields(_TABLES[where]))
        return (*where, found[1]), f"there is no such key; there are: {names}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", says):
        return where, f"the key {found[1]} is missing"
    return where, says[:1].lower() + says[1:]
