"""Decoded values become Arrow columns: all values of a column at once, whatever their depth.

`getters` says how the values of the fields of a record are found: records of Avro are dicts, and
those of JSON structures.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import accumulate, chain
from math import isinf
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from daybook.clients.spark.typed_schema import Field, Kind, Leaf, Listed, Mapped, Record

Getters: TypeAlias = Callable[[tuple[Field, ...]], list[Callable[[Any], Any]]]

_LEAVES: dict[str, Any] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_EXPONENT_MAX = 38  # all digits that a decimal may have
WRONG = (
    pa.ArrowException,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,  # such as a record that lacks a field, as the default of another field
    AttributeError,
)
"""The errors of `column` for a value that its type does not hold."""


def by_name(fields: tuple[Field, ...]) -> list[Callable[[Any], Any]]:
    """Return the getters of dicts."""
    return [itemgetter(each.name) for each in fields]


def by_number(fields: tuple[Field, ...]) -> list[Callable[[Any], Any]]:
    """Return the getters of structures whose attributes are f0, f1, ..."""
    return [attrgetter(f"f{index}") for index in range(len(fields))]


def arrow_type(kind: Kind) -> Any:  # noqa: ANN401
    """Return the type of a column, as Spark expects it."""
    match kind:
        case Leaf():
            return pa.decimal128(*kind.digits) if kind.kind == "decimal" else _LEAVES[kind.kind]
        case Record():
            return pa.struct([(each.name, arrow_type(each.kind)) for each in kind.fields])
        case Listed():
            return pa.list_(pa.field("element", arrow_type(kind.item.kind)))
        case Mapped():
            return pa.map_(pa.string(), arrow_type(kind.value.kind))


def column(kind: Kind, values: Sequence[Any], getters: Getters) -> Any:  # noqa: ANN401
    """Return values as an array.  Raise one of WRONG."""
    match kind:
        case Leaf():
            return _leaves(kind, values)
        case Record():
            parts = columns(kind.fields, values, getters)
            nulls = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(parts, fields=list(arrow_type(kind)), mask=nulls)
        case Listed():
            inner = column(kind.item.kind, _flat(values), getters)
            return pa.ListArray.from_arrays(_offsets(values), inner, type=arrow_type(kind))
        case Mapped():
            names = pa.array(_flat(values), pa.string())
            several = [None if each is None else each.values() for each in values]
            inner = column(kind.value.kind, _flat(several), getters)
            return pa.MapArray.from_arrays(_offsets(values), names, inner, type=arrow_type(kind))


def columns(fields: tuple[Field, ...], records: Sequence[Any], getters: Getters) -> list[Any]:
    """Return the fields of records as arrays.  Raise one of WRONG."""
    return [
        column(each.kind, [None if record is None else get(record) for record in records], getters)
        for each, get in zip(fields, getters(fields), strict=True)
    ]


def _flat(values: Sequence[Any]) -> list[Any]:
    return list(chain.from_iterable(each for each in values if each is not None))


def _offsets(values: Sequence[Any]) -> Any:  # noqa: ANN401
    """Return where the items of each value begin; null for a value that is null."""
    ends = list(accumulate((0 if each is None else len(each) for each in values), initial=0))
    nulls = [each is None for each in values]
    return pa.array(
        [None if is_null else at for at, is_null in zip(ends, [*nulls, False], strict=True)],
        pa.int32(),
    )


def _leaves(leaf: Leaf, values: Sequence[Any]) -> Any:  # noqa: ANN401
    kind = arrow_type(leaf)
    match leaf.kind:
        case "date":
            return pa.array(values, pa.int32()).cast(kind)
        case "timestamp" | "timestamp_ntz":
            numbers = pa.array(values, pa.int64())
            if leaf.micros != 1:
                numbers = pc.multiply_checked(  # pyright: ignore[reportAttributeAccessIssue]
                    numbers, leaf.micros
                )
            return numbers.cast(kind)
        case "decimal":
            return pa.array([_decimal(each, leaf.digits[1]) for each in values], kind)
        case "float":
            return _floats(values, kind)
        case "binary":
            return pa.array([_binary(each) for each in values], kind)
        case "string" if leaf.otherwise is not None:
            known = {*leaf.symbols, None}
            return pa.array([each if each in known else leaf.otherwise for each in values], kind)
        case _:
            return pa.array(values, kind)


def _floats(values: Sequence[Any], kind: Any) -> Any:  # noqa: ANN401
    """Return numbers as floats.  Raise ValueError for one that is too large, and not infinite."""
    found = pa.array(values, kind)
    infinite = pc.is_inf(found)  # pyright: ignore[reportAttributeAccessIssue]
    if pc.any(infinite).as_py():  # pyright: ignore[reportAttributeAccessIssue]
        for value, is_infinite in zip(values, infinite.to_pylist(), strict=True):
            if is_infinite and not isinf(value):
                raise ValueError(f"{value} is too large for a float")
    return found


def _decimal(value: bytes | str | Decimal | None, scale: int) -> Decimal | None:
    if value is None:
        return None
    if isinstance(value, Decimal):
        return _exact(value, scale)
    unscaled = int.from_bytes(_binary(value) or b"", "big", signed=True)
    return Decimal(f"{unscaled}E-{scale}")


def _exact(value: Decimal, scale: int) -> Decimal:
    """Return a decimal that Arrow stores as it is: it makes 0 of some very small ones."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a decimal of a message is a number"
    if not any(digits):
        return Decimal(0)
    behind = max(0, -exponent - scale)
    if any(digits[-behind:] if behind else ()) or exponent > _EXPONENT_MAX:
        raise ValueError(f"{value} has more digits than its column")
    return Decimal((sign, digits[:-behind], -scale)) if behind else value


def _binary(value: bytes | str | None) -> bytes | None:
    """Return bytes; the default of a field has them as text, in Avro's words."""
    return value.encode("latin-1") if isinstance(value, str) else value
