"""The Avro definition of a class: a dataclass or a structure of msgspec.

    int, Int32          long, int            list[T], dict[str, T]   array, map
    float, Float32      double, float        T | None                union with null
    str, bool, bytes    string, boolean, bytes
    datetime            timestamp-micros     date                    date
    an Enum of texts    enum                 a class of such fields  record

The same definition describes records as JSON, where times are texts.  A field with a default can be
added later, and be removed: old messages give it the default.  A field `T | None` without a default
gets the default null.
"""

import dataclasses
from datetime import date, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec


@dataclasses.dataclass(frozen=True, slots=True)
class AvroType:
    """An annotation that names the Avro type of a field: `Annotated[int, AvroType("int")]`."""

    name: str


Int32 = Annotated[int, AvroType("int")]
Float32 = Annotated[float, AvroType("float")]

_PLAIN: dict[Any, str] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    NoneType: "null",
}
_TIMES: dict[Any, Any] = {
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    date: {"type": "int", "logicalType": "date"},
}
_NO_DEFAULT = object()
_JSON = msgspec.json.Encoder()


def avro_definition(
    cls: type[Any], *, name: str | None = None, namespace: str | None = None, times: bool
) -> dict[str, Any]:
    """Return the Avro definition of a class.

    With `times`, dates and times are Avro's; without, they are texts.  Raise TypeError for a class
    that has none.
    """
    if not is_record(cls):
        raise TypeError(f"{cls!r} has no fields: write a dataclass, or a class of msgspec.Struct")
    found: dict[str, Any] = _Definer(times=times).record(cls, name)
    if namespace is not None:
        found = {"namespace": namespace, **found}
    return found


def is_record(kind: object) -> bool:
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    )


class _Definer:
    def __init__(self, *, times: bool) -> None:
        self._times = times
        self._names: dict[str, type[Any]] = {}  # the records and enums that are defined already

    def record(self, cls: type[Any], name: str | None = None) -> Any:  # noqa: ANN401
        known = self._known(cls, name or cls.__name__)
        if known is not None:
            return known
        hints = get_type_hints(cls, include_extras=True)
        fields: list[dict[str, Any]] = []
        for member, default in _members(cls):
            kind = self.type_of(hints[member], f"{cls.__name__}.{member}")
            found: dict[str, Any] = {"name": member, "type": kind}
            branches = cast("list[object]", kind) if isinstance(kind, list) else []
            is_optional = "null" in branches
            if default is None or (default is _NO_DEFAULT and is_optional):
                found["default"] = None
            elif default is not _NO_DEFAULT:
                # The default of a union is of its first branch.
                if is_optional:
                    found["type"] = [*branches[1:], "null"]
                found["default"] = _as_default(default)
            fields.append(found)
        return {"type": "record", "name": name or cls.__name__, "fields": fields}

    def type_of(self, hint: Any, where: str) -> Any:  # noqa: ANN401
        """Return the Avro type of an annotation."""
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            for extra in extras:
                if isinstance(extra, AvroType):
                    return extra.name
        if hint in _PLAIN:
            return _PLAIN[hint]
        if hint in _TIMES:
            return _TIMES[hint] if self._times else "string"
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            branches = [self.type_of(each, where) for each in arguments]
            return sorted(branches, key=lambda branch: branch != "null")
        if origin in (list, tuple, set, frozenset) and arguments:
            return {"type": "array", "items": self.type_of(arguments[0], where)}
        if origin is dict and arguments[0] is str:
            return {"type": "map", "values": self.type_of(arguments[1], where)}
        if isinstance(hint, type) and issubclass(hint, Enum):
            known = self._known(hint, hint.__name__)
            symbols = [each.value for each in hint]
            return known or {"type": "enum", "name": hint.__name__, "symbols": symbols}
        if is_record(cast("object", hint)):
            return self.record(cast("type[Any]", hint))
        raise TypeError(f"the field {where} has the type {hint!r}, which no schema can describe")

    def _known(self, cls: type[Any], name: str) -> str | None:
        """Return the name of a type that is defined already; else note it, and return None."""
        if name not in self._names:
            self._names[name] = cls
            return None
        if self._names[name] is not cls:
            raise TypeError(f"two classes of the schema are called {name}: rename one of them")
        return name


def _members(cls: type[Any]) -> list[tuple[str, object]]:
    """Return the names of the fields, and their defaults."""
    if dataclasses.is_dataclass(cls):
        return [(each.name, _default_of(each)) for each in dataclasses.fields(cls)]
    found: list[tuple[str, object]] = []
    for each in msgspec.structs.fields(cls):
        default: object = _NO_DEFAULT
        if each.default is not msgspec.NODEFAULT:
            default = each.default
        elif each.default_factory is not msgspec.NODEFAULT:
            default = each.default_factory()
        found.append((each.encode_name, default))
    return found


def _default_of(each: "dataclasses.Field[Any]") -> object:
    if each.default is not dataclasses.MISSING:
        return each.default
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return _NO_DEFAULT


def _as_default(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("latin-1")  # Avro's form of bytes in JSON
    return msgspec.json.decode(_JSON.encode(value))
