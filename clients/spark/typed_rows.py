"""Raw batches become batches of typed columns (`schemaMode=topic`).

Messages name the version of the schema with which they were written.  A task asks the broker once
for each version that it meets, also for that of the query: a topic that was created again may use
the same number for something else.

A message that is not of its schema ends the query (`mode=FAILFAST`), or its bytes go into the
column `_corrupt` and its other columns are null (`mode=PERMISSIVE`).
"""

# pyright: basic
# (the libraries underneath have no types)

import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import pyarrow as pa

from daybook.clients.python.errors import TopicNotFoundError
from daybook.clients.python.schemas.key_value import is_separated, parts_of, split
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark.typed_decoders import Part, part_of
from daybook.clients.spark.typed_schema import (
    CORRUPT,
    META,
    RECORDS,
    Field,
    Record,
    TypedColumns,
    contents,
)
from daybook.clients.spark.typed_values import WRONG, column, columns
from daybook.clients.spark.walk import UnreadableMessageError
from daybook.wire.proto import pulsar_pb2 as pb

Ask: TypeAlias = Callable[[bytes], SchemaInfo]
"""Asks the broker for a version of the schema."""
Values: TypeAlias = tuple[Any, ...]
_Decode: TypeAlias = Callable[[bytes | None, bytes | None], Values]

_log = logging.getLogger("daybook.spark")
_VERSION_BYTES = 8
_told: set[tuple[str, int]] = set()  # newer versions that this process has logged


class TypedRows:
    """One instance per task."""

    def __init__(self, wanted: TypedColumns, topic: str, where: str, ask: Ask) -> None:
        """`topic` is the full name without the partition, and `where` names both in errors."""
        self._wanted = wanted
        self._topic = topic
        self._where = where
        self._ask = ask
        self._pair = wanted.schema.info.type == pb.Schema.KeyValue
        self._parts = self._parts_needed()
        self._decoders: dict[bytes | None, _Decode | ValueError] = {}
        self._warned = False

    def typed(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Return the typed columns of raw rows.  Raise UnreadableMessageError or BrokerError."""
        found, wrong = self._decode(raw)
        built = self._build(found, wrong)
        if wrong:
            self._tell(raw, wrong)
        names = self._wanted.names
        arrays = [built[name] if name in built else self._other(name, raw, wrong) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names=list(names))

    # -- decoding

    def _parts_needed(self) -> dict[str, Part]:
        """Return how to read each part of a message; a record is the part ""."""
        info, names = self._wanted.schema.info, frozenset(self._wanted.names)
        found = dict(contents(info))
        if CORRUPT in names and not names & found.keys():
            names = frozenset(name for name, each in found.items() if isinstance(each, Field))
        if info.type in RECORDS:
            return {"": part_of(info, names)} if names & found.keys() else {}
        if self._pair:
            parts = zip(("key", "value"), parts_of(info), strict=True)
            return {name: part_of(part) for name, part in parts if name in names}
        return {"value": part_of(info)} if "value" in names else {}

    def _decode(self, raw: pa.RecordBatch) -> tuple[list[Values | None], dict[int, str]]:
        """Return the values of each row, and why the wrong ones are wrong, by row."""
        found: list[Values | None] = [None] * raw.num_rows
        wrong: dict[int, str] = {}
        if not self._parts:
            return found, wrong
        data = raw.column("value").to_pylist()
        separated = self._wanted.schema.is_separated
        keys = raw.column("key").to_pylist() if separated else [None] * len(data)
        versions: list[bytes | None] = raw.column("schemaVersion").to_pylist()
        for version, rows in groupby(range(len(data)), lambda row: versions[row]):
            decode = self._decoder(version)
            for row in rows:
                if data[row] is None and keys[row] is None:
                    continue  # a tombstone, or a row without content
                if isinstance(decode, ValueError):
                    wrong[row] = str(decode)
                    continue
                try:
                    found[row] = decode(keys[row], data[row])
                except ValueError as error:
                    wrong[row] = str(error)
        return found, wrong

    def _decoder(self, version: bytes | None) -> "_Decode | ValueError":
        found = self._decoders.get(version)
        if found is None:
            try:
                found = self._decoder_of(self._writer(version))
            except ValueError as error:
                found = error
            self._decoders[version] = found
        return found

    def _writer(self, version: bytes | None) -> SchemaInfo:
        if not version:  # The producer had no schema: its bytes are taken for what the topic has.
            return self._wanted.schema.info
        if len(version) != _VERSION_BYTES:
            raise ValueError(f"its schema has the version {version!r}, which is no number")
        number = int.from_bytes(version, "big")
        try:
            writer = self._ask(version)
        except TopicNotFoundError:
            raise ValueError(
                f"it was written with version {number} of the schema, which was deleted"
            ) from None
        self._log_newer(number, writer)
        return writer

    def _decoder_of(self, writer: SchemaInfo) -> _Decode:
        info, parts = self._wanted.schema.info, self._parts
        if not self._pair:
            (part,) = parts.values()
            decode = part.decoder(writer)
            return lambda key, data: (decode(data),)  # type: ignore[arg-type]
        if writer.type != info.type or is_separated(writer) != self._wanted.schema.is_separated:
            raise ValueError("it was written with a schema that is another kind of pair, or none")
        writers: dict[str, SchemaInfo] = dict(zip(("key", "value"), parts_of(writer), strict=True))
        decoders = {name: part.decoder(writers[name]) for name, part in parts.items()}
        separated = is_separated(writer)

        def decode_pair(key: bytes | None, data: bytes | None) -> Values:
            if not separated:
                assert data is not None, "a row without data has no pair"
                key, data = split(data)
            given = {"key": key, "value": data}
            return tuple(
                None if (each := given[name]) is None else decode(each)
                for name, decode in decoders.items()
            )

        return decode_pair

    def _log_newer(self, number: int, writer: SchemaInfo) -> None:
        began = self._wanted.schema.versions.get(self._topic)
        if began is None or number <= began or (self._topic, number) in _told:
            return
        _told.add((self._topic, number))
        _log.warning(
            "%s has messages with version %d of its schema, and this query began with version %d:"
            " it goes on reading the columns of that version%s; start it again to read the others",
            self._topic,
            number,
            began,
            _difference(self._wanted.schema.info, writer),
        )

    # -- columns

    def _build(self, found: list[Values | None], wrong: dict[int, str]) -> dict[str, Any]:
        """Return the columns of the content; rows with a value that does not fit become wrong."""
        try:
            return self._arrays(found)
        except WRONG:
            for row, each in enumerate(found):
                try:
                    self._arrays([each])
                except WRONG as error:
                    found[row] = None
                    wrong[row] = f"a value does not fit its column: {error}"
            return self._arrays(found)

    def _arrays(self, found: Sequence[Values | None]) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        for index, (name, part) in enumerate(self._parts.items()):
            values = [None if each is None else each[index] for each in found]
            if name == "" and isinstance(part.kind, Record):
                fields = part.kind.fields
                names = (each.name for each in fields)
                arrays |= zip(names, columns(fields, values, part.getters), strict=True)
            else:
                arrays[name] = column(part.kind, values, part.getters)
        return arrays

    def _other(self, name: str, raw: pa.RecordBatch, wrong: dict[int, str]) -> Any:  # noqa: ANN401
        """Return a column about the message."""
        if name in META:
            return raw.column(META[name])
        assert name == CORRUPT
        corrupt: list[bytes | None] = [None] * raw.num_rows
        for row in wrong:
            corrupt[row] = self._bytes_of(raw, row)
        return pa.array(corrupt, pa.binary())

    def _bytes_of(self, raw: pa.RecordBatch, row: int) -> bytes | None:
        data: bytes | None = raw.column("value")[row].as_py()
        if data is None and self._wanted.schema.is_separated:
            data = raw.column("key")[row].as_py()
        return data

    # -- wrong messages

    def _tell(self, raw: pa.RecordBatch, wrong: dict[int, str]) -> None:
        row = min(wrong)
        offset = raw.column("offset")[row].as_py()
        text = f"{self._where}: the message at offset {offset} is not of the schema: {wrong[row]}"
        if self._wanted.mode == "FAILFAST":
            raise UnreadableMessageError(
                f"{text}; set mode=PERMISSIVE to have such messages in the column {CORRUPT}"
            )
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s; its columns are null, like those of all others (mode=PERMISSIVE)", text
            )


def _difference(began: SchemaInfo, newer: SchemaInfo) -> str:
    """Return which fields two versions of a record do not share, in words."""
    if began.type not in RECORDS or newer.type != began.type:
        return ""
    try:
        before, after = (dict(contents(each)) for each in (began, newer))
    except ValueError:
        return ""
    added = sorted(after.keys() - before.keys())
    removed = sorted(before.keys() - after.keys())
    told = [f"without {', '.join(added)}" if added else ""]
    told.append(f"with defaults for {', '.join(removed)}" if removed else "")
    words = " and ".join(each for each in told if each)
    return f", {words}" if words else ""
