"""The start count of each bookie, and the positions up to which its logs were durable.

    <root>/underreplication/starts/<bookie id>
    {"version": 1, "starts": 7, "process": "5f0c...", "positions": {"/d0": 81920}}

At each start the bookie compares it with its directories (`server.start_count`).  The record is
deleted with the cookie, in one transaction.  It is never a part of the cookie: the transaction that
last wrote the cookie begins a cookie generation, and Apache's tools refuse a cookie with an unknown
field.

`process` is a random name of the process that counted the start.  Two processes with the same
identity count to the same number, and only this name tells them apart.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import MetadataStore

_VERSION = 1
NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StartRecord:
    starts: int
    process: str
    positions: Mapping[str, int]  # by directory: its log was durable below this position

    def encode(self) -> bytes:
        record = {
            "version": _VERSION,
            "starts": self.starts,
            "process": self.process,
            "positions": dict(self.positions),
        }
        return json.dumps(record).encode()

    @classmethod
    def decode(cls, value: bytes) -> "StartRecord":
        try:
            record = json.loads(value)
            if record["version"] != _VERSION:
                raise MalformedRecordError(f"a start count of version {record['version']}")
            positions = {
                str(directory): _number(position)
                for directory, position in record["positions"].items()
            }
            return cls(_number(record["starts"]), str(record["process"]), positions)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            shown = value[:200]
            raise MalformedRecordError(f"a start count that does not parse: {shown!r}") from error


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"not a position or a count: {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class StoredStarts:
    record: StartRecord
    version: int


async def read_starts(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str
) -> StoredStarts | None:
    """Return the record, or None.  Raise MalformedRecordError, which names the path."""
    path = paths.starts(bookie_id)
    record = await store.get(path)
    if record is None:
        return None
    try:
        return StoredStarts(StartRecord.decode(record.value), record.stat.version)
    except MalformedRecordError as error:
        raise MalformedRecordError(f"{path}: {error}") from error
