"""Compares what a version of a schema wrote with what a query reads.

Times and decimals are numbers and bytes until they are in their columns.  A number in other units
would be a wrong value that nobody notices.  So every logical type, unit and scale of a version must
be that of the query, in each branch of its unions, wherever Avro's rules of resolution map a field
to one of the query.
"""

from typing import Any, cast

from daybook.clients.spark.typed_names import PRIMITIVES, RECORD_TYPES, Definition, Names, full_name
from daybook.clients.spark.typed_schema import (
    Field,
    Kind,
    Leaf,
    Listed,
    Mapped,
    Record,
    RefusedTypeError,
    leaf_of,
)

_STEPS_MAX = 100_000
_TOO_LARGE = "its schema is too large to be compared with that of the query"
_NULLS: tuple[Any, ...] = ("null", {"type": "null"})


def check_units(kind: Record, written: Names, *, aliases: bool) -> None:
    """Raise ValueError unless what was written counts as the query does.

    With `aliases`, a field is also found by an alias of the query's field, as in Avro.
    """
    try:
        _Comparison(written, aliases=aliases).record("", kind, written.definition, "")
    except RecursionError:
        raise ValueError(_TOO_LARGE) from None


class _Comparison:
    def __init__(self, written: Names, *, aliases: bool) -> None:
        self._written = written
        self._aliases = aliases
        self._steps = 0

    def record(self, where: str, kind: Record, definition: Definition, space: str) -> None:
        inner = full_name(definition, space).rpartition(".")[0]
        found, taken = self._by_name(kind), set[str]()
        for written in definition["fields"]:
            field = found.get(written["name"])
            if field is None:
                continue
            if field.name in taken:
                raise ValueError(f"two of its fields are {where}{field.name} of the query")
            taken.add(field.name)
            self._compare(f"{where}{field.name}", field.kind, written["type"], inner)

    def _by_name(self, kind: Record) -> dict[str, Field]:
        """Return the fields of a query by the names that a version may have for them."""
        found: dict[str, Field] = {}
        if self._aliases:
            found = {alias: each for each in kind.fields for alias in each.aliases}
        return found | {each.name: each for each in kind.fields}

    def _compare(self, where: str, wanted: Kind, found: Any, space: str) -> None:  # noqa: ANN401
        self._step()
        if found in _NULLS:
            return
        if isinstance(found, list):
            for branch in cast("list[object]", found):
                self._compare(where, wanted, branch, space)
            return
        definition = cast("Definition", {"type": found} if isinstance(found, str) else found)
        name = definition["type"]
        if not isinstance(name, str):
            self._compare(where, wanted, name, space)
            return
        if name not in PRIMITIVES and name not in _COMPLEX:
            named = self._written.find(name, space)
            if named is None:
                raise ValueError(f"its field {where} has the type {name!r}, which is not known")
            self._compare(where, wanted, *named)
            return
        self._compare_plain(where, wanted, definition, space)

    def _compare_plain(self, where: str, wanted: Kind, definition: Definition, space: str) -> None:
        match wanted, definition["type"]:
            case Record(), str(name) if name in RECORD_TYPES:
                self.record(f"{where}.", wanted, definition, space)
            case Listed(), "array":
                self._compare(f"{where}[]", wanted.item.kind, definition["items"], space)
            case Mapped(), "map":
                self._compare(f"{where}[]", wanted.value.kind, definition["values"], space)
            case Leaf(), "enum":
                _compare_leaves(where, wanted, Leaf("string"))
            case Leaf(), str(name) if name in PRIMITIVES or name == "fixed":
                try:
                    written = leaf_of(name, definition, where)
                except RefusedTypeError as refused:
                    raise ValueError(f"its field {refused}, unlike that of the query") from None
                _compare_leaves(where, wanted, written)
            case _, name:
                raise ValueError(f"its field {where} is of the type {name}, unlike the query's")

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise ValueError(_TOO_LARGE)


_COMPLEX = frozenset((*RECORD_TYPES, "array", "map", "enum", "fixed"))


def _compare_leaves(where: str, wanted: Leaf, written: Leaf) -> None:
    if _units(wanted) != _units(written):
        raise ValueError(
            f"its field {where} counts in other units than that of the query:"
            f" {_units(written) or 'plain values'} and {_units(wanted) or 'plain values'}"
        )


def _units(leaf: Leaf) -> str:
    """Return what a number or bytes stand for; nothing for themselves."""
    match leaf.kind:
        case "decimal":
            return f"decimal with {leaf.digits[1]} digits behind the point"
        case "timestamp" | "timestamp_ntz":
            return f"{leaf.kind} of {leaf.micros} µs"
        case "date":
            return leaf.kind
        case _:
            return ""
