"""The filters of a query that Spark hands to the source (`pushDown=true`).  Pure.

    conditions = conditions_of(filters, names)        # the filters that this module understands
    begin, until = narrow(begin, until, conditions, name_shown)

Conditions on `topic`, `partition` and `offset` narrow what is read.  A task drops rows by those on
`timestamp` and by the equality of `key`.  Spark tests all filters again, so a condition that is
left out costs time only.  A condition that is here must never drop a row that Spark would keep:
each means exactly what Spark's filter means, nulls included, and what is not known to mean the same
is left out.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from daybook.clients.spark.offsets import Partition, Progress

Operator: TypeAlias = Literal[
    "=", "in", "<", "<=", ">", ">=", "starts", "ends", "contains", "is null", "is not null"
]
Value: TypeAlias = int | str | bytes
"""A number, a time in microseconds since 1970, a text, or a key in bytes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EQUALITY: tuple[Operator, ...] = ("=", "in")
_ORDER: tuple[Operator, ...] = ("<", "<=", ">", ">=")
_OPERATORS: Mapping[type[Filter], Operator] = {
    EqualTo: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StringStartsWith: "starts",
    StringEndsWith: "ends",
    StringContains: "contains",
    IsNull: "is null",
    IsNotNull: "is not null",
}
_KNOWN: Mapping[str, tuple[Operator, ...]] = {
    "topic": (*_EQUALITY, "starts", "ends", "contains"),
    "partition": (*_EQUALITY, *_ORDER),
    "offset": (*_EQUALITY, *_ORDER),
    "timestamp": (*_EQUALITY, *_ORDER, "is null", "is not null"),
    "key": _EQUALITY,
}
"""The columns that conditions are about, and what is asked about them."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one column of a row.

    `values` has one value, for "in" any number of them, and none for "is null".
    """

    column: str
    operator: Operator
    values: frozenset[Value] = frozenset()
    negated: bool = False

    def holds(self, value: Value | None) -> bool:
        """Return True if Spark keeps a row with this value."""
        if self.operator == "is null" or self.operator == "is not null":
            return ((value is None) == (self.operator == "is null")) != self.negated
        # In SQL a comparison with null is null, and so is its negation: the row is left out.
        return value is not None and self._compare(value) != self.negated

    def _compare(self, value: Any) -> bool:  # noqa: ANN401  a value of the type of the column
        if self.operator in _EQUALITY:
            return value in self.values
        bound: Any
        (bound,) = self.values
        match self.operator:
            case "<":
                found = value < bound
            case "<=":
                found = value <= bound
            case ">":
                found = value > bound
            case ">=":
                found = value >= bound
            case "starts":
                found = value.startswith(bound)
            case "ends":
                found = value.endswith(bound)
            case _:
                found = bound in value
        return bool(found)


# -- from Spark


def conditions_of(
    filters: Sequence[Filter], names: Mapping[str, str], key_type: str | None
) -> tuple[Condition, ...]:
    """Return the filters that are known to mean a condition; they are joined by AND.

    `names` has the columns by the names that they have in the table.  `key_type` is the type of the
    column `key`, or None if it may be anything.
    """
    found = (_condition(each, names, key_type) for each in filters)
    return tuple(each for each in found if each is not None)


def _condition(given: Filter, names: Mapping[str, str], key_type: str | None) -> Condition | None:
    negated = isinstance(given, Not)
    inner: Any = given.child if isinstance(given, Not) else given
    if isinstance(inner, EqualNullSafe):
        # Its negation keeps rows with null, which no condition says.
        if negated or inner.value is None:
            return None
        inner = EqualTo(inner.attribute, inner.value)
    operator = _OPERATORS.get(type(inner))
    column = names.get(inner.attribute[0]) if len(getattr(inner, "attribute", ())) == 1 else None
    if operator is None or column is None or operator not in _KNOWN.get(column, ()):
        return None
    if operator == "is null" or operator == "is not null":
        return Condition(column, operator, negated=negated)
    listed = inner.value if operator == "in" else (inner.value,)
    if None in listed:
        if negated or operator != "in":  # Spark keeps no row at all.
            return None
        listed = [each for each in listed if each is not None]  # `x IN (1, NULL)` holds for 1.
    values = [_value(column, each, key_type) for each in listed]
    if None in values or (column == "key" and negated):
        return None
    return Condition(column, operator, frozenset(v for v in values if v is not None), negated)


def _value(column: str, given: Any, key_type: str | None) -> Value | None:  # noqa: ANN401
    """Return a value of a filter as conditions hold it; None if it has an unexpected type."""
    if column in ("partition", "offset"):
        return given if type(given) is int else None
    if column == "timestamp":
        if not isinstance(given, datetime) or given.tzinfo is None:
            return None
        return (given - _EPOCH) // _MICROSECOND
    if column == "topic":
        return given if type(given) is str else None
    if key_type == "string" and type(given) is str:
        return given.encode()
    if key_type == "binary" and isinstance(given, bytes | bytearray):
        return bytes(given)
    return None


# -- what is read


def narrow(
    begin: Mapping[Partition, Progress],
    until: Mapping[Partition, Progress],
    conditions: Sequence[Condition],
    name_shown: Callable[[str], str],
) -> tuple[dict[Partition, Progress], dict[Partition, Progress]]:
    """Return the part of the offsets from `begin` to `until` that may have rows.

    `name_shown` returns what the column `topic` has for the full name of a topic.
    """
    low, high = _bounds([each for each in conditions if each.column == "offset"])
    starts: dict[Partition, Progress] = {}
    ends: dict[Partition, Progress] = {}
    for partition, end in until.items():
        shown: dict[str, Value] = {
            "topic": name_shown(partition.topic),
            "partition": partition.number,
        }
        if not all(each.holds(shown[each.column]) for each in conditions if each.column in shown):
            continue
        start = begin[partition]
        first = start.next if low is None else max(start.next, low)
        last = end.next if high is None else min(end.next, high)
        if first < last:
            starts[partition], ends[partition] = start._replace(next=first), end._replace(next=last)
    return starts, ends


def _bounds(conditions: Sequence[Condition]) -> tuple[int | None, int | None]:
    """Return the first offset for which all conditions can hold, and the one behind the last.

    None stands for no bound.
    """
    lows: list[int] = []
    highs: list[int] = []
    for each in conditions:
        if each.negated:
            continue
        values = [value for value in each.values if isinstance(value, int)]
        if not values:  # The list of IN is empty.
            return 0, 0
        if each.operator in (*_EQUALITY, ">="):
            lows.append(min(values))
        if each.operator == ">":
            lows.append(min(values) + 1)
        if each.operator in (*_EQUALITY, "<="):
            highs.append(max(values) + 1)
        if each.operator == "<":
            highs.append(max(values))
    return max(lows, default=None), min(highs, default=None)


# -- which rows a task drops


def wanted_times(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """Return the conditions on the time at which a message was sent."""
    return tuple(each for each in conditions if each.column == "timestamp")


def wanted_keys(conditions: Sequence[Condition]) -> frozenset[bytes] | None:
    """Return the keys that the conditions allow; None if they allow all, and messages without."""
    found: frozenset[Any] | None = None
    for each in conditions:
        if each.column == "key":
            found = each.values if found is None else found & each.values
    return found
