"""The options of the Spark source, and the task that the driver sends to a worker.

The names are those of Spark's Kafka source where it has the same option.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast, get_args

from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.bookie_options import BOOKIE_NAMES, parse_bookie_access, uses_tls
from daybook.clients.spark.credential_options import (
    ANONYMOUS,
    CREDENTIAL_NAMES,
    QueryCredentials,
    parse_credentials,
)
from daybook.clients.spark.offsets import (
    OffsetRange,
    OffsetSpec,
    PartitionValues,
    check_milliseconds,
    parse_offsets,
    parse_times,
)
from daybook.clients.spark.option_names import unknown_option
from daybook.clients.spark.schema import DEFAULT, Columns, KeyType, Mode, parse_columns
from daybook.clients.spark.selection import Selection, parse_selection
from daybook.clients.spark.tls_options import TLS_NAMES, parse_tls
from daybook.clients.spark.zookeeper_options import ZOOKEEPER_NAMES, parse_zookeeper, wants_tls

if TYPE_CHECKING:  # Spark's short-lived processes import this module, and none of these.
    from daybook.bookie.ledger.security import BookieAccess
    from daybook.clients.ledgers.zookeeper import ZooKeeperOptions
    from daybook.clients.pipelines.archive.checked import NamedFile
    from daybook.clients.python.reader import SealedLedger
    from daybook.clients.spark.filters import Condition
    from daybook.clients.spark.typed_schema import TypedColumns

OnUnreadable: TypeAlias = Literal["fail", "null", "skip"]
ReadFrom: TypeAlias = Literal["auto", "bookies", "brokers", "archive+live"]
SchemaMode: TypeAlias = Literal["raw", "topic"]

_Choice = TypeVar("_Choice", OnUnreadable, ReadFrom, SchemaMode)
_NAMES = (
    "service.url",
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "columns",
    "includeHeaders",
    "keyType",
    "schemaMode",
    "mode",
    "onUnreadable",
    "read",
    "archive",
    "pushDown",
    "subscription",
    "outageTimeout",
    *TLS_NAMES,
    *ZOOKEEPER_NAMES,
    *CREDENTIAL_NAMES,
    *BOOKIE_NAMES,
)
_FOR_BATCHES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_FOR_STREAMS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "subscription",
    "outageTimeout",
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TRIGGER_DELAY_S = 15 * 60.0  # as Spark's Kafka source has it
_OUTAGE_S = 15 * 60.0
PATIENCE_S = 60.0  # for a task of a batch


@dataclass(frozen=True, slots=True)
class AtTimes:
    """A bound of a query: the first message of each partition that was published then or later."""

    times: int | PartitionValues  # in milliseconds since 1970: one for all partitions, or for each
    option: str
    # If no message is so late, the bound is the end of the partition, or else an error.
    end_if_none: bool


Bounds: TypeAlias = OffsetSpec | AtTimes


@dataclass(frozen=True, slots=True)
class TypedOptions:
    """The options of typed columns (`schemaMode=topic`)."""

    mode: Mode
    columns: tuple[str, ...] | None  # None: all
    key_type: KeyType
    headers: bool


@dataclass(frozen=True, slots=True)
class SourceOptions:
    streaming: bool
    service_url: str
    selection: Selection
    starting: Bounds | None  # None: earliest for a batch, latest for a stream
    ending: Bounds
    offsets_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_max_s: float
    partitions_min: int
    records_per_partition_max: int | None
    fail_on_data_loss: bool
    columns: Columns
    key_type_given: bool
    subscription: str | None
    outage_timeout_s: float
    on_unreadable: OnUnreadable
    read_from: ReadFrom
    typed: TypedOptions | None  # None: schemaMode=raw
    typed_columns: "TypedColumns | None" = None  # as the brokers know the schema
    archive: str | None = None  # the directory, with read=archive+live
    tls: TlsOptions | None = None
    zookeeper: "ZooKeeperOptions | None" = None
    credentials: QueryCredentials = ANONYMOUS
    bookies: "BookieAccess | None" = None


@dataclass(frozen=True, slots=True)
class TaskLedgers:
    """The sealed ledgers with offsets of a task, in order, and the address of the ledgers."""

    url: str
    sealed: "tuple[SealedLedger, ...]"


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One task of a query: a range of offsets, and where to read it."""

    service_url: str
    topic: str  # as the column `topic` shows it
    part: OffsetRange
    fail_on_data_loss: bool
    columns: tuple[str, ...] = DEFAULT  # the columns of each row, in order; see `schema`
    key_type: KeyType = "binary"
    stored_in: str = ""  # the full name of the topic or partition that is read; "": look it up
    patience_s: float = PATIENCE_S  # how long the task waits for brokers that do not answer
    created: int | None = None  # the creation of the topic for which the offsets were planned
    on_unreadable: OnUnreadable = "fail"
    read_from: ReadFrom = "auto"
    ledgers: TaskLedgers | None = None  # None: the brokers have everything
    files: "tuple[NamedFile, ...] | None" = None  # files of an archive that hold the whole range
    typed: "TypedColumns | None" = None  # the columns of each row are made of `columns`
    tls: TlsOptions | None = None
    zookeeper: "ZooKeeperOptions | None" = None
    credentials: QueryCredentials = ANONYMOUS
    bookies: "BookieAccess | None" = None  # TLS and credentials for bookies
    conditions: "tuple[Condition, ...]" = ()  # rows for which one fails are dropped


def parse_options(
    options: Mapping[str, str], *, streaming: bool, by_load: bool = False
) -> SourceOptions:
    """Parse the options; their names are case-insensitive.  Raise ValueError with advice.

    `by_load` is True for the frame that `daybook.spark.load` makes.
    """
    given = {name.lower(): value for name, value in options.items()}
    if not given:
        raise ValueError(
            "there are no options, and Spark gives Python sources none of a table in its catalog:"
            " use CREATE TEMPORARY VIEW v USING daybook OPTIONS (...), or SELECT ... FROM t"
            " WITH (`service.url` = '...', `topic` = '...')"
        )
    known = {name.lower(): name for name in _NAMES}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(unknown_option(unknown[0], _NAMES))
    for name in _FOR_BATCHES if streaming else _FOR_STREAMS:
        if name.lower() in given:
            why = "is for batch queries; a stream has no end"
            raise ValueError(f"{name} {why if streaming else 'is for streams, not for batches'}")
    if wants_push_down(given):
        _check_push_down(streaming=streaming, by_load=by_load)
    service_url = _service_url(given)
    selection = parse_selection(given)
    typed = _typed(given)
    return SourceOptions(
        streaming=streaming,
        service_url=service_url,
        selection=selection,
        starting=_bounds(given, "starting", selection.only_topic),
        ending=_bounds(given, "ending", selection.only_topic) or "latest",
        offsets_per_trigger_max=_positive(given, "maxOffsetsPerTrigger"),
        bytes_per_trigger_max=_bytes(given, "maxBytesPerTrigger"),
        offsets_per_trigger_min=_trigger_minimum(given),
        trigger_delay_max_s=_seconds(given, "maxTriggerDelay", _TRIGGER_DELAY_S),
        partitions_min=_positive(given, "minPartitions") or 1,
        records_per_partition_max=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        columns=Columns() if typed else _columns(given),
        key_type_given="keytype" in given,
        subscription=_subscription(given),
        outage_timeout_s=_seconds(given, "outageTimeout", _OUTAGE_S),
        on_unreadable=_choice(given, "onUnreadable", OnUnreadable, "fail"),
        read_from=_choice(given, "read", ReadFrom, "auto"),
        typed=typed,
        archive=_archive(given),
        tls=parse_tls(given, service_url, for_others=uses_tls(given) or wants_tls(given)),
        zookeeper=parse_zookeeper(given),
        credentials=parse_credentials(given),
        bookies=parse_bookie_access(given),
    )


def wants_push_down(options: Mapping[str, str]) -> bool:
    """Return True if the options ask for filters to be pushed down."""
    given = {name.lower(): value for name, value in options.items()}
    return _boolean(given, "pushDown", default=False)


def _check_push_down(*, streaming: bool, by_load: bool) -> None:
    if streaming:
        raise ValueError(
            "pushDown=true is for batch queries: Spark hands no filters to streams, so leave it"
            " out, and name partitions by assign and offsets by startingOffsets"
        )
    if not by_load:
        raise ValueError(
            "pushDown=true needs daybook.spark.load(spark, **options) in place of spark.read,"
            " which would use the filters of one query for all others on the same frame"
        )


def parse_column_options(options: Mapping[str, str]) -> Columns:
    """Parse the options that decide the columns, which are for both kinds of queries."""
    return _columns({name.lower(): value for name, value in options.items()})


def parse_typed_options(options: Mapping[str, str]) -> TypedOptions | None:
    """Parse the options of typed columns; return None for `schemaMode=raw`."""
    return _typed({name.lower(): value for name, value in options.items()})


def parse_topics(
    options: Mapping[str, str],
) -> tuple[str, Selection, TlsOptions | None, QueryCredentials]:
    """Parse the options that name the brokers and the topics, and how to reach them."""
    given = {name.lower(): value for name, value in options.items()}
    service_url = _service_url(given)
    tls = parse_tls(given, service_url, for_others=uses_tls(given) or wants_tls(given))
    return service_url, parse_selection(given), tls, parse_credentials(given)


def _bounds(given: Mapping[str, str], side: str, topic: str | None) -> Bounds | None:
    """Return the bound that the options give for one side, which is `starting` or `ending`."""
    names = [f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"]
    named = [name for name in names if name.lower() in given]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} exclude each other: give one of them")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ValueError(
            f"startingOffsetsByTimestampStrategy={strategy!r} is neither error nor latest"
        )
    end_if_none = side == "ending" or strategy == "latest"
    if not named:
        if side == "starting" and "startingoffsetsbytimestampstrategy" in given:
            raise ValueError(
                "startingOffsetsByTimestampStrategy needs startingTimestamp or"
                " startingOffsetsByTimestamp"
            )
        return None
    (name,) = named
    text = given[name.lower()]
    if name == f"{side}Offsets":
        return parse_offsets(text, topic, name)
    if name == f"{side}Timestamp":
        if not re.fullmatch(r"[0-9]{1,15}", text.strip()):
            raise ValueError(f"{name}={text!r} is not a time in milliseconds since 1970")
        check_milliseconds([int(text)], name)
        return AtTimes(int(text), name, end_if_none)
    return AtTimes(parse_times(text, topic, name), name, end_if_none)


def _trigger_minimum(given: Mapping[str, str]) -> int | None:
    least, most = _positive(given, "minOffsetsPerTrigger"), _positive(given, "maxOffsetsPerTrigger")
    if least is None and "maxtriggerdelay" in given:
        raise ValueError("maxTriggerDelay needs minOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ValueError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    return least


def _subscription(given: Mapping[str, str]) -> str | None:
    name = given.get("subscription")
    if name is not None and not name.strip():
        raise ValueError("the option 'subscription' is empty: name a subscription")
    return name


def _archive(given: Mapping[str, str]) -> str | None:
    """Return the directory of the archive that the query reads; None without one."""
    asked = given.get("read", "auto").strip().lower() == "archive+live"
    directory = given.get("archive", "").strip()
    if not asked:
        if "archive" in given:
            raise ValueError("the option 'archive' needs read=archive+live")
        return None
    if not directory:
        raise ValueError("read=archive+live needs the option 'archive': name its directory")
    if "topic" not in given:
        raise ValueError("read=archive+live needs the option 'topic': an archive has one topic")
    return directory


def _columns(given: Mapping[str, str]) -> Columns:
    names = DEFAULT
    if "columns" in given:
        names = parse_columns(given["columns"], "columns")
    if _boolean(given, "includeHeaders", default=False) and "headers" not in names:
        names = (*names, "headers")
    return Columns(names, _key_type(given))


def _typed(given: Mapping[str, str]) -> TypedOptions | None:
    if _choice(given, "schemaMode", SchemaMode, "raw") == "raw":
        if "mode" in given:
            raise ValueError("mode needs schemaMode=topic; onUnreadable is for schemaMode=raw, too")
        return None
    mode = given.get("mode", "FAILFAST").strip().upper()
    if mode not in get_args(Mode):
        raise ValueError(f"mode={given['mode']!r} is neither FAILFAST nor PERMISSIVE")
    names: tuple[str, ...] | None = None
    if "columns" in given:
        names = tuple(name.strip() for name in given["columns"].split(","))
        if len(set(names)) < len(names):
            raise ValueError(f"columns={given['columns']!r} names a column twice")
    headers = _boolean(given, "includeHeaders", default=False)
    return TypedOptions(cast("Mode", mode), names, _key_type(given), headers)


def _service_url(given: Mapping[str, str]) -> str:
    found = given.get("service.url", "").strip()
    if not found:
        raise ValueError("the option 'service.url' is missing: name the brokers")
    return found


def _key_type(given: Mapping[str, str]) -> KeyType:
    found = given.get("keytype", "binary").strip().lower()
    if found not in get_args(KeyType):
        raise ValueError(f"keyType={given['keytype']!r} is neither binary nor string")
    return cast("KeyType", found)


def _choice(given: Mapping[str, str], name: str, choices: object, default: _Choice) -> _Choice:
    text = given.get(name.lower(), default).strip().lower()
    known = get_args(choices)
    if text not in known:
        raise ValueError(f"{name}={text!r} is none of {', '.join(known)}")
    return cast("_Choice", text)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) == 0:
        raise ValueError(f"{name}={text!r} is not a positive number")
    return int(text)


def _bytes(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,15})\s*(b|([kmgt])(i?b)?)?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{name}={text!r} is not a size: write a number and a unit, such as 64m")
    return int(match[1]) * _UNITS_BYTES[match[3] or ""]


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    match = re.fullmatch(r"([0-9]{1,9})\s*([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _UNITS_S:
        raise ValueError(
            f"{name}={text!r} is not a time: write a number and a unit ({', '.join(_UNITS_S)})"
        )
    return int(match[1]) * _UNITS_S[match[2]]


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}={text!r} is neither true nor false")
    return text == "true"
