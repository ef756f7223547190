"""The columns of the source: their names and types, and which of them a query asks for.  Pure.

A query gets the columns of its schema (`.schema("value binary, offset bigint")`), or those that the
option `columns` names, or the default ones; `includeHeaders` adds `headers`.  A column that is not
asked for is not computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

KeyType: TypeAlias = Literal["binary", "string"]
Mode: TypeAlias = Literal["FAILFAST", "PERMISSIVE"]
"""A message that is not of the schema of its topic ends the query, or goes to `_corrupt`."""

TYPES: Mapping[str, str] = {
    "key": "binary",  # or string, as `keyType` says
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "eventTime": "timestamp",
    "properties": "map<string,string>",
    "messageId": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "keyIsBytes": "boolean",
    "orderingKey": "binary",
    "schemaVersion": "binary",
}
"""The types of all columns, in Spark's words."""

NAMED_ONLY = ("headers", "keyIsBytes", "orderingKey", "schemaVersion")
"""The columns that a query has only if it asks for them."""

DEFAULT: tuple[str, ...] = tuple(name for name in TYPES if name not in NAMED_ONLY)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a query, in order, and the type of `key`."""

    names: tuple[str, ...] = DEFAULT
    key_type: KeyType = "binary"

    @property
    def ddl(self) -> str:
        """The schema in Spark's words."""
        return ", ".join(f"{name} {self.type_of(name)}" for name in self.names)

    def type_of(self, name: str) -> str:
        """Return the type of a column."""
        return self.key_type if name == "key" else TYPES[name]


def parse_columns(text: str, option: str) -> tuple[str, ...]:
    """Parse names of columns, separated by commas.  Raise ValueError for anything else."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in TYPES:
            raise ValueError(f"{option}={text!r}: {_unknown(name)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{option}={text!r} names a column twice")
    return names


def columns_of_schema(
    fields: Sequence[tuple[str, str]], asked: Columns, *, key_type_given: bool
) -> Columns:
    """Return the columns of a schema that a user gave, as (name, type) pairs.

    `asked` are the columns of the options, and `key_type_given` tells if `keyType` is one of them.
    Raise ValueError for a schema that the source cannot fill.
    """
    key_type = asked.key_type
    for name, given in fields:
        if name not in TYPES:
            raise ValueError(f"the schema is not one of this source: {_unknown(name)}")
        if name == "key" and given in ("binary", "string") and not key_type_given:
            key_type = "binary" if given == "binary" else "string"
        wanted = Columns(key_type=key_type).type_of(name)
        if given != wanted:
            why = f" with keyType={key_type}" if name == "key" else ""
            raise ValueError(
                f"the schema says {name} {given}, but the column has the type {wanted}{why}: read"
                " it as it is, and cast it afterwards"
            )
    names = tuple(name for name, _ in fields)
    if asked.names != DEFAULT and asked.names != names:
        raise ValueError(
            f"the schema has the columns {', '.join(names)}, and the options ask for"
            f" {', '.join(asked.names)}: give one of them"
        )
    return Columns(names, key_type)


def _unknown(name: str) -> str:
    return f"there is no column {name!r}, only {', '.join(TYPES)}"
