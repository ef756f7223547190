"""The types of an Avro definition by their names, within limits.  Pure.

A definition comes from the network, so it may be wrong, or large on purpose.  It has at most 10,000
types and 64 levels as it is written.  One of Avro's messages must also end: a type without
an end, and many values that take no bytes, are found by `check_bounded`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

TYPES_MAX = 10_000
_LEVELS_MAX = 64
_VALUES_PER_BYTE = 64
PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
RECORD_TYPES = ("record", "error")
_TOO_DEEP = f"the schema has more than {_LEVELS_MAX} levels"
_UNBOUNDED = "use schemaMode=raw"

Definition: TypeAlias = dict[str, Any]


def load_definition(data: bytes) -> Definition:
    """Return the definition of a record.  Raise ValueError if it is none."""
    try:
        loaded = json.loads(data)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError:
        raise ValueError(f"the schema is no Avro definition: {data!r:.80}") from None
    definition = cast("Definition", loaded if isinstance(loaded, dict) else {})
    if definition.get("type") != "record":
        raise ValueError("the schema is no record: read the topic with schemaMode=raw")
    return definition


def full_name(definition: Mapping[str, Any], space: str) -> str:
    name = definition["name"]
    space = str(definition.get("namespace") or space)
    return str(name) if "." in name or not space else f"{space}.{name}"


def aliases_of(definition: Definition) -> dict[str, tuple[str, ...]]:
    """Return the aliases of each field of a record, if no other field has the name.

    If several fields have the same alias, it is that of the last one.
    """
    fields: list[Definition] = definition["fields"]
    owners = {alias: each["name"] for each in fields for alias in each.get("aliases", ())}
    found: dict[str, tuple[str, ...]] = {each["name"]: () for each in fields}
    for alias, name in owners.items():
        if alias not in found:
            found[name] += (alias,)
    return found


class Names:
    """Finds the types of one definition.  Raises ValueError if it is none, or is too large."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._found: dict[str, tuple[Definition, str]] = {}
        self._types = 0
        try:
            self._collect(definition, "", 0)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None

    def find(self, name: str, space: str) -> tuple[Definition, str] | None:
        """Return a named type, and the namespace in which it is defined."""
        found = self._found.get(name if "." in name or not space else f"{space}.{name}")
        return self._found.get(name) if found is None else found

    def check_bounded(self) -> None:
        """Raise ValueError if a short message could be nested without end, or have endless items.

        Such a message of Avro could end its reader, or keep it busy for days.
        """
        _Bounds(self).check()

    def _collect(self, found: Any, space: str, level: int) -> None:  # noqa: ANN401
        self._types += 1
        if self._types > TYPES_MAX:
            raise ValueError(f"the schema has more than {TYPES_MAX:,} types")
        _check_levels(level)
        if isinstance(found, str):
            return
        if isinstance(found, list):
            for each in cast("list[object]", found):
                self._collect(each, space, level + 1)
            return
        definition = _checked(found)
        kind = definition["type"]
        if not isinstance(kind, str):
            self._collect(kind, space, level + 1)
            return
        if kind in (*RECORD_TYPES, "enum", "fixed"):
            name = full_name(definition, space)
            known = self._found.setdefault(name, (definition, space))[0]
            if known is not definition and known != definition:
                raise ValueError(f"the schema defines the type {name} twice")
            space = name.rpartition(".")[0]
        if kind in RECORD_TYPES:
            for each in definition["fields"]:
                self._collect(each["type"], space, level + 1)
        for part in _PARTS.get(kind, ()):
            self._collect(definition[part], space, level + 1)


_PARTS: Mapping[str, tuple[str, ...]] = {"array": ("items",), "map": ("values",)}


def _is_name(found: Any) -> bool:  # noqa: ANN401
    return isinstance(found, str) and found != ""


def _is_field(found: Any) -> bool:  # noqa: ANN401
    if not isinstance(found, dict):
        return False
    field = cast("Definition", found)
    return _is_name(field.get("name")) and "type" in field and _are_texts(field.get("aliases", []))


def _are_texts(found: Any) -> bool:  # noqa: ANN401
    return isinstance(found, list) and all(
        isinstance(each, str) for each in cast("list[object]", found)
    )


def _are_fields(found: Any) -> bool:  # noqa: ANN401
    if not isinstance(found, list) or not all(map(_is_field, cast("list[object]", found))):
        return False
    names = [each["name"] for each in cast("list[Definition]", found)]
    return len(set(names)) == len(names)


def _is_size(found: Any) -> bool:  # noqa: ANN401
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


_NEEDED: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "record": {"name": _is_name, "fields": _are_fields},
    "error": {"name": _is_name, "fields": _are_fields},
    "enum": {"name": _is_name, "symbols": _are_texts},
    "fixed": {"name": _is_name, "size": _is_size},
    "array": {"items": lambda found: found is not None},
    "map": {"values": lambda found: found is not None},
}


def _checked(found: Any) -> Definition:  # noqa: ANN401
    """Return a type that is an object, if it has what its kind needs.  Raise ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"the schema has the type {found!r:.40}, which Avro does not know")
    definition = cast("Definition", found)
    kind = definition.get("type")
    if not isinstance(kind, str | dict | list):
        raise ValueError(f"the schema has a type without a kind: {definition!r:.80}")
    for part, is_right in _NEEDED.get(kind, {}).items() if isinstance(kind, str) else ():
        if not is_right(definition.get(part)):
            raise ValueError(f"the schema has a type {kind} without right {part}")
    return definition


class _Size(NamedTuple):
    """How many values a value of a type can have beyond `_VALUES_PER_BYTE` for each of its bytes.

    `most` is the same for any part from its beginning: bytes that follow may be missing.
    """

    whole: int
    most: int
    levels: int  # with names expanded


_BYTE = _Size(1 - _VALUES_PER_BYTE, 1 - _VALUES_PER_BYTE, 0)  # a value that takes a byte or more
_NOTHING = _Size(1, 1, 0)


class _Bounds:
    """Looks at each type of a definition once.

    Items of arrays and maps must not have more than `_VALUES_PER_BYTE` values for each byte, so a
    message has at most `TYPES_MAX` values more than that, and ends.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._open: set[int] = set()
        self._known: dict[int, _Size] = {}  # by the id of the definition of a record

    def check(self) -> None:
        try:
            size = self._size(self._names.definition, "")
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        if size.most > TYPES_MAX:
            raise ValueError(
                f"the schema has more than {TYPES_MAX:,} values that take no bytes: {_UNBOUNDED}"
            )

    def _size(self, found: Any, space: str) -> _Size:  # noqa: ANN401
        if isinstance(found, list):
            return _union([self._size(each, space) for each in cast("list[object]", found)])
        if isinstance(found, str):
            return self._named(found, space)
        definition = cast("Definition", found)
        kind = definition["type"]
        if not isinstance(kind, str):
            return self._size(kind, space)
        if kind in RECORD_TYPES:
            return self._record(definition, space)
        if kind in _PARTS:
            return _several(kind, self._size(definition[_PARTS[kind][0]], space))
        if kind in ("enum", "fixed"):
            return _BYTE if definition.get("size", 1) else _NOTHING
        return self._named(kind, space)

    def _named(self, name: str, space: str) -> _Size:
        if name in PRIMITIVES:
            return _NOTHING if name == "null" else _BYTE
        found = self._names.find(name, space)
        if found is None:
            raise ValueError(f"the schema has the type {name!r}, which is not known")
        return self._size(*found)

    def _record(self, definition: Definition, space: str) -> _Size:
        own = id(definition)
        if own in self._open:
            raise ValueError(
                f"the schema has the record {definition['name']} inside of itself, so a message may"
                f" have any number of levels: {_UNBOUNDED}"
            )
        if own not in self._known:
            _check_levels(len(self._open))
            self._open.add(own)
            inner = full_name(definition, space).rpartition(".")[0]
            fields = [self._size(each["type"], inner) for each in definition["fields"]]
            whole = most = 1
            for each in fields:
                most = max(most, whole + each.most)
                whole += each.whole
            self._known[own] = _Size(whole, most, _levels(fields))
            self._open.discard(own)
        return self._known[own]


def _union(branches: list[_Size]) -> _Size:
    """Return the size of a union: the number of the branch is in front."""
    whole, most = (max((each[of] for each in branches), default=0) for of in (0, 1))
    return _Size(whole - _VALUES_PER_BYTE, most - _VALUES_PER_BYTE, _levels(branches))


def _several(kind: str, item: _Size) -> _Size:
    """Return the size of an array or a map: a number is in front of the items.

    In front of each item of a map is its name.
    """
    name_bytes = 1 if kind == "map" else 0
    if item.whole > _VALUES_PER_BYTE * name_bytes:
        raise ValueError(
            f"the schema has an {kind} whose items may have more than {_VALUES_PER_BYTE} values in"
            f" a byte, so a short message may have any number of them: {_UNBOUNDED}"
        )
    return _Size(_BYTE.whole, _BYTE.whole + max(0, item.most), _levels([item]))


def _levels(parts: list[_Size]) -> int:
    levels = 1 + max((each.levels for each in parts), default=0)
    _check_levels(levels)
    return levels


def _check_levels(levels: int) -> None:
    if levels > _LEVELS_MAX:
        raise ValueError(_TOO_DEEP)


def skips_blindly(names: Names) -> bool:
    """Return True if fastavro does not notice that items of an array are missing that it skips.

    It notices the end of a message at what begins with a number: texts, unions, arrays and so on.
    """
    return _Blind(names).any()


class _Blind:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[int, bool] = {}
        self._found = False

    def any(self) -> bool:
        self._notices(self._names.definition, "")
        return self._found

    def _notices(self, found: Any, space: str) -> bool:  # noqa: ANN401
        if isinstance(found, list):
            for each in cast("list[object]", found):
                self._notices(each, space)
            return True
        if isinstance(found, str):
            if found in PRIMITIVES:
                return found in ("int", "long", "bytes", "string")
            named = self._names.find(found, space)
            return named is not None and self._notices(*named)
        definition = cast("Definition", found)
        kind = definition["type"]
        if kind in RECORD_TYPES:
            own = id(definition)
            if own not in self._known:
                self._known[own] = False
                inner = full_name(definition, space).rpartition(".")[0]
                notices = [self._notices(each["type"], inner) for each in definition["fields"]]
                self._known[own] = any(notices)
            return self._known[own]
        if kind in _PARTS:
            if not self._notices(definition[_PARTS[kind][0]], space) and kind == "array":
                self._found = True
            return True
        return kind == "enum" or (kind != "fixed" and self._notices(kind, space))
