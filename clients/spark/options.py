"""The options of the Spark source, and the task that the driver sends to a worker.

The names are those of Spark's Kafka source where it has the same option.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, cast, get_args

from daybook.clients.python.reader import SealedLedger
from daybook.clients.spark.offsets import OffsetRange, OffsetSpec, parse_offsets
from daybook.clients.spark.schema import DEFAULT, Columns, KeyType, parse_columns

OnUnreadable: TypeAlias = Literal["fail", "null", "skip"]
ReadFrom: TypeAlias = Literal["auto", "bookies", "brokers"]

_Choice = TypeVar("_Choice", OnUnreadable, ReadFrom)
_NAMES = (
    "service.url",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "columns",
    "includeHeaders",
    "keyType",
    "onUnreadable",
    "read",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    service_url: str
    topic: str
    starting: OffsetSpec | None  # None: earliest for a batch, latest for a stream
    ending: OffsetSpec
    offsets_per_trigger_max: int | None
    partitions_min: int
    fail_on_data_loss: bool
    columns: Columns
    key_type_given: bool
    on_unreadable: OnUnreadable = "fail"
    read_from: ReadFrom = "auto"


@dataclass(frozen=True, slots=True)
class TaskLedgers:
    """The sealed ledgers with offsets of a task, in order, and the address of the ledgers."""

    url: str
    sealed: tuple[SealedLedger, ...]


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
    on_unreadable: OnUnreadable = "fail"
    read_from: ReadFrom = "auto"
    ledgers: TaskLedgers | None = None  # None: the brokers have everything


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options; their names are case-insensitive.  Raise ValueError with advice."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in _NAMES}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}; there are: {', '.join(_NAMES)}")
    if streaming and "endingoffsets" in given:
        raise ValueError("endingOffsets is for batch queries; a stream has no end")
    if not streaming and "maxoffsetspertrigger" in given:
        raise ValueError("maxOffsetsPerTrigger is for streams; a batch has no triggers")
    for required in ("service.url", "topic"):
        if not given.get(required):
            raise ValueError(f"the option {required!r} is missing")
    topic = given["topic"]
    starting = given.get("startingoffsets")
    return SourceOptions(
        service_url=given["service.url"],
        topic=topic,
        starting=None if starting is None else parse_offsets(starting, topic, "startingOffsets"),
        ending=parse_offsets(given.get("endingoffsets", "latest"), topic, "endingOffsets"),
        offsets_per_trigger_max=_positive(given, "maxOffsetsPerTrigger"),
        partitions_min=_positive(given, "minPartitions") or 1,
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        columns=_columns(given),
        key_type_given="keytype" in given,
        on_unreadable=_choice(given, "onUnreadable", OnUnreadable, "fail"),
        read_from=_choice(given, "read", ReadFrom, "auto"),
    )


def parse_column_options(options: Mapping[str, str]) -> Columns:
    """Parse the options that decide the columns, which are for both kinds of queries."""
    return _columns({name.lower(): value for name, value in options.items()})


def _columns(given: Mapping[str, str]) -> Columns:
    names = DEFAULT
    if "columns" in given:
        names = parse_columns(given["columns"], "columns")
    if _boolean(given, "includeHeaders", default=False) and "headers" not in names:
        names = (*names, "headers")
    key_type = given.get("keytype", "binary").strip().lower()
    if key_type == "string":
        return Columns(names, "string")
    if key_type != "binary":
        raise ValueError(f"keyType={given['keytype']!r} is neither binary nor string")
    return Columns(names)


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
    if not text.strip().isdigit() or int(text) == 0:
        raise ValueError(f"{name}={text!r} is not a positive number")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}={text!r} is neither true nor false")
    return text == "true"
