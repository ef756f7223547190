"""The manifest of an archive: which file holds which offsets of which partition.  Pure.

The files of a partition cover its offsets from `begin` to `end` without a gap and without an
overlap.  `docs/formats/archive.md` describes the JSON.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeAlias, TypeVar

VERSION = 1
Json: TypeAlias = Any
T = TypeVar("T")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_ID = re.compile(r"[0-9a-f]{32}")
PATH = re.compile(r"day=[0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9a-f]{32}\.parquet")
"""The path of a file that is whole, as the archiver names it."""
PART = re.compile(r"day=[0-9]{4}-[0-9]{2}-[0-9]{2}/\.[0-9a-f]{32}\.parquet")
"""The path of a file while it is written; no manifest can name it."""
_HEX = re.compile(r"([0-9a-f]{2})+")
_MOST = (1 << 63) - 1


def part_of(path: str) -> str:
    """Return where a file is while it is written.  Readers of Parquet leave such a name out."""
    day, _, name = path.partition("/")
    return f"{day}/.{name}"


class ManifestError(Exception):
    """A manifest that is not valid, in one sentence."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file with the offsets [first, next) of one partition.

    `rows` may be fewer than the offsets: a message that was sent in chunks is one row.
    """

    path: str  # relative to the directory, with slashes
    first: int
    next: int
    rows: int
    bytes: int
    day: str  # the day of its first message, in UTC
    # The publish times of its messages, in ms since 1970; None if some message has no such time.
    earliest_ms: int | None = None
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    created: int  # the creation of the topic, as the brokers number creations
    begin: int
    files: tuple[ArchivedFile, ...] = ()

    @property
    def end(self) -> int:
        """The offset behind the last one."""
        return self.files[-1].next if self.files else self.begin

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files)

    def overlapping(self, start: int, end: int) -> tuple[ArchivedFile, ...]:
        """Return the files that hold an offset of [start, end)."""
        return tuple(each for each in self.files if each.first < end and each.next > start)


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that was replaced; it is deleted some time after `at_s` (seconds since 1970)."""

    path: str
    at_s: int


@dataclass(frozen=True, slots=True)
class ArchivedSchema:
    """The definition of one version of the topic's schema, which messages name."""

    type: int  # a number of Pulsar's `Schema.Type`
    name: str
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest.  Copies of an archive have the id of the first one."""

    id: str
    topic: str  # the full name
    partitioned: bool  # False: the one partition, 0, is the topic itself
    instance: str  # the id of the cluster
    generation: int = 0  # counts the manifests of this directory
    # By version, as messages name it.  None: the topic did not have the definition any more.
    schemas: Mapping[bytes, ArchivedSchema | None] = field(
        default_factory=dict[bytes, ArchivedSchema | None]
    )
    partitions: Mapping[int, ArchivedPartition] = field(
        default_factory=dict[int, ArchivedPartition]
    )
    retired: tuple[Retired, ...] = ()

    def paths(self) -> set[str]:
        """Return the paths of all files, with those that are retired."""
        held = {each.path for part in self.partitions.values() for each in part.files}
        return held | {each.path for each in self.retired}

    def with_files(self, number: int, files: Sequence[ArchivedFile]) -> "Manifest":
        """Return a manifest with more files of a partition.  Raise ManifestError for a gap."""
        partition = self.partitions[number]
        grown = replace(partition, files=(*partition.files, *files))
        _check_covered(number, grown)
        return replace(self, partitions={**self.partitions, number: grown})

    def with_merged(
        self, number: int, old: Sequence[ArchivedFile], new: ArchivedFile, now_s: int
    ) -> "Manifest":
        """Return a manifest in which one file holds the offsets of several, which are retired.

        Raise ManifestError unless it holds the same rows.
        """
        partition = self.partitions[number]
        first = partition.files.index(old[0])
        if partition.files[first : first + len(old)] != tuple(old):
            raise ManifestError(f"partition {number} does not have the files that were merged")
        if (new.first, new.next) != (old[0].first, old[-1].next) or new.rows != sum(
            each.rows for each in old
        ):
            raise ManifestError(f"{new.path} does not hold what the merged files held")
        files = (*partition.files[:first], new, *partition.files[first + len(old) :])
        merged = replace(partition, files=files)
        _check_covered(number, merged)
        retired = tuple(Retired(each.path, now_s) for each in old)
        return replace(
            self,
            partitions={**self.partitions, number: merged},
            retired=(*self.retired, *retired),
        )


def encode(manifest: Manifest) -> bytes:
    """Return the JSON of a manifest, which is valid."""
    partitions = {
        str(number): {
            "created": part.created,
            "begin": part.begin,
            "end": part.end,
            "files": [
                {
                    "path": each.path,
                    "first": each.first,
                    "next": each.next,
                    "rows": each.rows,
                    "bytes": each.bytes,
                    "day": each.day,
                    "earliest": each.earliest_ms,
                    "latest": each.latest_ms,
                }
                for each in part.files
            ],
        }
        for number, part in sorted(manifest.partitions.items())
    }
    data = {
        "version": VERSION,
        "generation": manifest.generation,
        "id": manifest.id,
        "topic": manifest.topic,
        "partitioned": manifest.partitioned,
        "instance": manifest.instance,
        "schemas": {
            version.hex(): None
            if schema is None
            else {
                "type": schema.type,
                "name": schema.name,
                "data": b64encode(schema.data).decode(),
                "properties": dict(schema.properties),
            }
            for version, schema in sorted(manifest.schemas.items())
        },
        "partitions": partitions,
        "retired": [{"path": each.path, "at": each.at_s} for each in manifest.retired],
    }
    return json.dumps(data, indent=1).encode() + b"\n"


def parse(data: bytes) -> Manifest:
    """Parse and check a manifest.  Raise ManifestError."""
    try:
        found: Json = json.loads(
            data.decode(), object_pairs_hook=_object, parse_float=_float, parse_constant=_float
        )
    except (ValueError, RecursionError):
        raise ManifestError("the manifest is not JSON") from None
    try:
        if _typed(found, dict)["version"] != VERSION or type(found["version"]) is not int:
            raise ManifestError(f"the manifest does not have the version {VERSION}")
        manifest = Manifest(
            _like(found["id"], _ID),
            _text(found["topic"]),
            _typed(found["partitioned"], bool),
            _text(found["instance"]),
            _count(found["generation"]),
            {
                bytes.fromhex(_like(version, _HEX)): None if data is None else _schema(data)
                for version, data in _dict(found["schemas"]).items()
            },
            {
                int(_like(number, _NUMBER)): _partition(part)
                for number, part in _dict(found["partitions"]).items()
            },
            tuple(
                Retired(_path(each["path"]), _count(each["at"])) for each in _list(found["retired"])
            ),
        )
    except ManifestError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(
            f"the manifest lacks a part, or has one of another type: {error}"
        ) from None
    if not manifest.partitioned and set(manifest.partitions) - {0}:
        raise ManifestError("the topic is not partitioned, and the manifest has several partitions")
    for number, part in manifest.partitions.items():
        _check_covered(number, part)
        end = found["partitions"][str(number)].get("end")
        if part.end != end or type(end) is not int:
            raise ManifestError(f"the files of partition {number} do not end at its end")
    held = [each.path for part in manifest.partitions.values() for each in part.files]
    held += [each.path for each in manifest.retired]
    if len(set(held)) < len(held):
        raise ManifestError("the manifest names a file twice")
    return manifest


def _partition(data: Json) -> ArchivedPartition:
    files = tuple(
        ArchivedFile(
            _path(each["path"]),
            _count(each["first"]),
            _count(each["next"]),
            _count(each["rows"]),
            _count(each["bytes"]),
            _typed(each["day"], str),
            None if each["earliest"] is None else _count(each["earliest"]),
            None if each["latest"] is None else _count(each["latest"]),
        )
        for each in _list(data["files"])
    )
    return ArchivedPartition(_count(data["created"]), _count(data["begin"]), files)


def _schema(data: Json) -> ArchivedSchema:
    given: Json = data["properties"]
    _typed(given, dict)
    properties = {_text(name): _text(value) for name, value in given.items()}
    definition = b64decode(_typed(data["data"], str), validate=True)
    return ArchivedSchema(_count(data["type"]), _text(data["name"]), definition, properties)


def _check_covered(number: int, part: ArchivedPartition) -> None:
    expected = part.begin
    for each in part.files:
        if each.first > expected:
            raise ManifestError(
                f"partition {number} has a gap: no file holds the offsets {expected} to"
                f" {each.first}"
            )
        if each.first < expected:
            raise ManifestError(
                f"{each.path} of partition {number} begins at offset {each.first}, and the file"
                f" before it ends at {expected}: they overlap"
            )
        if not 0 < each.rows <= each.next - each.first:
            raise ManifestError(
                f"{each.path} has {each.rows} rows for the offsets {each.first} to {each.next}"
            )
        if not _is_day(each.day):
            raise ManifestError(f"{each.path} has the day {each.day!r}, which is none")
        if not each.path.startswith(f"day={each.day}/"):
            raise ManifestError(f"{each.path} is in the directory of another day than {each.day}")
        if (each.earliest_ms is None) != (each.latest_ms is None) or (
            each.earliest_ms is not None
            and each.latest_ms is not None
            and each.earliest_ms > each.latest_ms
        ):
            raise ManifestError(
                f"{each.path} has the publish times {each.earliest_ms} to {each.latest_ms}"
            )
        expected = each.next


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return an object of JSON.  Raise ManifestError if a key is there twice."""
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise ManifestError(f"an object of the manifest has the key {key!r} twice")
        found[key] = value
    return found


def _float(text: str) -> Json:
    raise ManifestError(f"{text} is not a number of the manifest")


def _dict(value: Json) -> Json:
    _typed(value, dict)
    return value


def _list(value: Json) -> Json:
    _typed(value, list)
    return value


def _path(value: Json) -> str:
    text = _text(value)
    # Only such a file may be deleted.
    if not PATH.fullmatch(text) or not _is_day(text[4:14]):
        raise ManifestError(f"{text!r} is not the path of a file of an archive")
    return text


def _is_day(text: str) -> bool:
    try:
        return bool(_DAY.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


def _count(value: Json) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ManifestError(f"{value!r} is not a number of the manifest")
    return value


def _text(value: Json) -> str:
    """Return a text that can be encoded.  JSON has escapes for halves of characters, too."""
    text = _typed(value, str)
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise ManifestError(f"{text!r} is not a text")
    return text


def _typed(value: Json, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ManifestError(f"{value!r} is not a {kind.__name__}")
    return value


def _like(value: Json, pattern: re.Pattern[str]) -> str:
    text = _typed(value, str)
    if not pattern.fullmatch(text):
        raise ManifestError(f"{text!r} is not of the form {pattern.pattern}")
    return text
