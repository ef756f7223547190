"""Avro schemas: parsed, compared, and checked for what a reader understands of a writer.

`parse` accepts what the Avro library of Pulsar's clients accepts: references to types that are
defined later, names with `$`, defaults of any value.  It refuses what would be expensive: nesting
deeper than `DEPTH_MAX`, and more than `NODES_MAX` types.  Two schemas are the same if their
fingerprints are.  Documentation, aliases and the default of an enum are no part of it.

`why_unreadable` follows Avro's rules of schema resolution, in the form in which that library
carries them out:

- Records match by their fields; the names of records do not matter, except where a union has
  several.  A field is found by its name or by an alias of the reader.  A field that the writer
  lacks needs a default.
- Names of enums and fixed types match without their namespaces, or by an alias of the reader.
- Every branch of a writer's union has to be readable.  The reader's union takes the branch with
  the writer's type, and the writer's name; else a record that can read it; else a promotion.
- Numbers are promoted (int, long, float, double), and so are bytes and strings.
- The reader's enum has all symbols of the writer, or a default.  The library does not check this
  and fails at the message; callers may switch the rule off.

The check counts its steps, since two large unions are compared branch by branch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeAlias, cast

import msgspec

from daybook.broker.errors import InvalidSchemaError

DEPTH_MAX: Final = 64
NODES_MAX: Final = 10_000
STEPS_MAX: Final = 50_000  # some 60 ms; the largest schema without unions of records takes 20,000
_PRIMITIVES = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"},
)
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_SHOWN = 80

# The keys of an object that are part of its structure; all others are properties.
_STRUCTURE = {
    "record": {"type", "name", "namespace", "doc", "aliases", "fields"},
    "enum": {"type", "name", "namespace", "doc", "aliases", "symbols", "default"},
    "fixed": {"type", "name", "namespace", "doc", "aliases", "size"},
    "array": {"type", "items"},
    "map": {"type", "values"},
}
_FIELD = {"name", "type", "doc", "default", "order", "aliases"}


class TooComplexError(InvalidSchemaError):
    """Two schemas cannot be compared in a bounded time."""


@dataclass(slots=True, eq=False)
class Primitive:
    name: str


@dataclass(slots=True, eq=False)
class Named:
    """A type with a name: the name with its namespace, and aliases of the same form."""

    name: str
    aliases: frozenset[str]


@dataclass(slots=True, eq=False)
class Field:
    name: str
    aliases: frozenset[str]
    type: "Type"
    has_default: bool
    default: object = None


@dataclass(slots=True, eq=False)
class Record(Named):
    fields: dict[str, Field] = field(default_factory=dict[str, Field])


@dataclass(slots=True, eq=False)
class Enum(Named):
    symbols: frozenset[str]
    has_default: bool


@dataclass(slots=True, eq=False)
class Fixed(Named):
    size: int


@dataclass(slots=True, eq=False)
class Array:
    items: "Type"


@dataclass(slots=True, eq=False)
class Map:
    values: "Type"


@dataclass(slots=True, eq=False)
class Union:
    branches: list["Type"]


@dataclass(slots=True, eq=False)
class Reference:
    """A name that stands for a type, which may be defined later."""

    name: str
    type: "Type | None" = None


Type: TypeAlias = Primitive | Record | Enum | Fixed | Array | Map | Union | Reference


@dataclass(frozen=True, slots=True)
class AvroSchema:
    type: Type
    fingerprint: bytes
    nodes: int


def parse(data: bytes) -> AvroSchema:
    """Parse a schema.  Raise InvalidSchemaError."""
    try:
        content = msgspec.json.decode(data)
        parser = _Parser()
        found, canonical = parser.parse(content, "", 0)
        parser.resolve()
        fingerprint = sha256(msgspec.json.encode(canonical, order="sorted")).digest()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSchemaError(f"the Avro schema is not JSON: {error}") from None
    except (RecursionError, OverflowError):
        raise InvalidSchemaError("the Avro schema is nested too deeply") from None
    return AvroSchema(found, fingerprint, parser.nodes)


class _Parser:
    """Parses one schema.  Each method also returns the canonical form of what it has parsed."""

    def __init__(self) -> None:
        self.nodes = 0
        self._named: dict[str, Type] = {}
        self._references: list[tuple[Reference, str]] = []

    def parse(self, node: object, namespace: str, depth: int) -> tuple[Type, object]:
        self.nodes += 1
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"an Avro schema is nested at most {DEPTH_MAX} levels deep")
        if self.nodes > NODES_MAX:
            raise InvalidSchemaError(f"an Avro schema has at most {NODES_MAX} types")
        if isinstance(node, str):
            return self._by_name(node, namespace)
        if isinstance(node, list):
            return self._union(cast("list[object]", node), namespace, depth)
        if isinstance(node, dict):
            return self._object(cast("dict[str, Any]", node), namespace, depth)
        raise InvalidSchemaError(f"{_shown(node)} is not an Avro type")

    def resolve(self) -> None:
        """Find the types that names stand for."""
        for reference, plain in self._references:
            reference.type = self._named.get(reference.name) or self._named.get(plain)
            if reference.type is None:
                raise InvalidSchemaError(f"the Avro schema does not define {_shown(plain)}")

    def _by_name(self, name: str, namespace: str) -> tuple[Type, object]:
        if name in _PRIMITIVES:
            return Primitive(name), name
        reference = Reference(_full(name, namespace))
        self._references.append((reference, name))
        return reference, reference.name

    def _union(self, nodes: list[object], namespace: str, depth: int) -> tuple[Type, object]:
        parsed = [self.parse(node, namespace, depth + 1) for node in nodes]
        branches = [branch for branch, _ in parsed]
        kinds = [_kind(branch) for branch in branches]
        if "union" in kinds:
            raise InvalidSchemaError("a union holds another union, which Avro does not allow")
        if len(set(kinds)) < len(kinds):
            raise InvalidSchemaError("a union has the same type twice, which Avro does not allow")
        return Union(branches), [canonical for _, canonical in parsed]

    def _object(self, node: dict[str, Any], namespace: str, depth: int) -> tuple[Type, object]:
        kind = node.get("type")
        if kind == "error":  # a record, for Avro's calls
            kind = "record"
        if not isinstance(kind, str):
            raise InvalidSchemaError(f"an Avro type is named by a text, not by {_shown(kind)}")
        if kind not in _STRUCTURE:
            found, name = self._by_name(kind, namespace)
            properties = {key: value for key, value in node.items() if key != "type"}
            # A property of a reference belongs to nothing.
            plain = isinstance(found, Reference) or not properties
            return found, name if plain else {"type": name, "properties": properties}
        structure = _STRUCTURE[kind]
        properties = {key: value for key, value in node.items() if key not in structure}
        canonical: dict[str, object] = {"type": kind}
        if properties:
            canonical["properties"] = properties
        match kind:
            case "array":
                items, canonical["items"] = self.parse(_of(node, "items"), namespace, depth + 1)
                return Array(items), canonical
            case "map":
                values, canonical["values"] = self.parse(_of(node, "values"), namespace, depth + 1)
                return Map(values), canonical
            case _:
                return self._define(kind, node, canonical, namespace, depth)

    def _define(
        self,
        kind: str,
        node: dict[str, Any],
        canonical: dict[str, object],
        namespace: str,
        depth: int,
    ) -> tuple[Type, object]:
        """Parse the definition of a type with a name."""
        found: Type
        own, name = node.get("namespace"), _name(node)
        if isinstance(own, str) and "." not in name:
            namespace = own
        name = _full(name, namespace)
        inner = name.rpartition(".")[0]
        aliases = frozenset(_full(alias, inner) for alias in _texts(node, "aliases"))
        canonical["name"] = name
        if name in self._named or name in _PRIMITIVES:
            raise InvalidSchemaError(f"the Avro schema defines {_shown(name)} twice")
        match kind:
            case "record":
                # It is known before its fields are parsed, which may name it.
                found = record = self._named[name] = Record(name, aliases)
                canonical["fields"] = self._fields(record, node, inner, depth)
            case "enum":
                symbols = _texts(node, "symbols", required=True)
                if len(set(symbols)) < len(symbols):
                    raise InvalidSchemaError(f"the enum {_shown(name)} has a symbol twice")
                for symbol in symbols:
                    _check_name(symbol)
                default = node.get("default")
                if default is not None and default not in symbols:
                    raise InvalidSchemaError(f"the default of {_shown(name)} is not a symbol of it")
                canonical["symbols"] = symbols
                found = Enum(name, aliases, frozenset(symbols), default is not None)
            case _:
                size = node.get("size")
                if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                    raise InvalidSchemaError(f"the fixed type {_shown(name)} has no valid size")
                canonical["size"] = size
                found = Fixed(name, aliases, size)
        self._named[name] = found
        return found, canonical

    def _fields(
        self, record: Record, node: dict[str, Any], namespace: str, depth: int
    ) -> list[object]:
        nodes = node.get("fields")
        if not isinstance(nodes, list):
            raise InvalidSchemaError(f"the record {_shown(record.name)} has no list of fields")
        canonical: list[object] = []
        for each in cast("list[object]", nodes):
            if not isinstance(each, dict):
                raise InvalidSchemaError(f"{_shown(each)} is not a field of a record")
            member = cast("dict[str, Any]", each)
            name = _name(member)
            _check_name(name)
            if name in record.fields:
                raise InvalidSchemaError(
                    f"the record {_shown(record.name)} has two fields {_shown(name)}"
                )
            found, form = self.parse(_of(member, "type"), namespace, depth + 1)
            has_default = "default" in member
            aliases = frozenset(_texts(member, "aliases"))
            record.fields[name] = Field(name, aliases, found, has_default, member.get("default"))
            whole: dict[str, object] = {"name": name, "type": form}
            if has_default:
                whole["default"] = member["default"]
            if member.get("order", "ascending") != "ascending":
                whole["order"] = member["order"]
            properties = {key: value for key, value in member.items() if key not in _FIELD}
            if properties:
                whole["properties"] = properties
            canonical.append(whole)
        return canonical


def _of(node: dict[str, Any], key: str) -> object:
    if key not in node:
        raise InvalidSchemaError(f"{_shown(node)} has no {key!r}, which Avro needs")
    return node[key]


def _texts(node: dict[str, Any], key: str, *, required: bool = False) -> list[str]:
    found = node.get(key)
    if found is None and not required:
        return []
    if not isinstance(found, list) or not all(
        isinstance(each, str) for each in cast("list[object]", found)
    ):
        raise InvalidSchemaError(f"{key!r} of an Avro type is a list of texts")
    return cast("list[str]", found)


def _name(node: dict[str, Any]) -> str:
    name = node.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidSchemaError(f"{_shown(node)} has no name, which Avro needs")
    for part in name.split("."):
        _check_name(part)
    return name


def _check_name(name: str) -> None:
    first, rest = name[:1], name[1:]
    if not (first.isalpha() or first in ("_", "$")) or not all(
        char.isalnum() or char in "_$" for char in rest
    ):
        raise InvalidSchemaError(f"Avro does not allow the name {_shown(name)}")


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _kind(branch: Type) -> str:
    """Return what only one branch of a union may be."""
    match branch:
        case Primitive(name) | Reference(name):
            return name
        case Record() | Enum() | Fixed():
            return branch.name
        case Array():
            return "array"
        case Map():
            return "map"
        case Union():
            return "union"


def _shown(value: object) -> str:
    if isinstance(value, dict | list):  # its text might be long
        return "an object" if isinstance(value, dict) else "a list"
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


# -- what a reader understands


def why_unreadable(
    reader: AvroSchema, writer: AvroSchema, *, enums_grow: bool = False
) -> str | None:
    """Return why the reader cannot read all that the writer may write; None if it can.

    With `enums_grow`, a symbol that the reader's enum lacks does not count.  Raise TooComplexError.
    """
    return _Check(enums_grow=enums_grow).why(reader.type, writer.type)


class _Check:
    def __init__(self, *, enums_grow: bool) -> None:
        self._enums_grow = enums_grow
        self._steps = 0
        # Pairs of records, reader and writer, that are taken for readable: they were found to be,
        # or they are being checked, further up.
        self._readable: set[tuple[int, int]] = set()
        self._order: list[tuple[int, int]] = []  # the pairs as they were added

    def why(self, reader: Type, writer: Type) -> str | None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise TooComplexError(
                "the schemas are too complex to be compared: make their unions smaller"
            )
        reader, writer = _target(reader), _target(writer)
        if isinstance(writer, Union):
            return _first(self.why(reader, branch) for branch in writer.branches)
        if isinstance(reader, Union):
            branch = self._branch(reader, writer)
            if branch is None:
                return f"no branch of the reader's union reads {_described(writer)}"
            return self.why(branch, writer)
        match reader, writer:
            case Record(), Record():
                return self._why_record(reader, writer)
            case Enum(), Enum():
                return self._why_enum(reader, writer)
            case Fixed(), Fixed():
                return _why_fixed(reader, writer)
            case Array(), Array():
                return self.why(reader.items, writer.items)
            case Map(), Map():
                return self.why(reader.values, writer.values)
            case Primitive(), Primitive() if _promoted(reader, writer):
                return None
            case _:
                return f"{_described(reader)} does not read {_described(writer)}"

    def _branch(self, reader: Union, writer: Type) -> Type | None:
        """Return the branch of the reader's union that reads the writer's type."""
        branches = [_target(branch) for branch in reader.branches]
        similar: Type | None = None
        for branch in branches:
            if type(branch) is not type(writer):
                continue
            if not isinstance(branch, Named) or not isinstance(writer, Named):
                if not isinstance(branch, Primitive) or _kind(branch) == _kind(writer):
                    return branch
            elif branch.name == writer.name or writer.name in branch.aliases:
                return branch
            elif not isinstance(branch, Record):
                if _same_name(branch, writer):
                    similar = similar or branch
            elif self.why(branch, writer) is None:
                same = _short(branch.name) == _short(writer.name)
                similar = branch if similar is None or same else similar
        if similar is not None:
            return similar
        return next((branch for branch in branches if _promoted(branch, writer)), None)

    def _why_record(self, reader: Record, writer: Record) -> str | None:
        pair = id(reader), id(writer)
        if pair in self._readable:
            return None
        before = len(self._order)
        self._readable.add(pair)
        self._order.append(pair)
        renamed = writer.name == reader.name or writer.name in reader.aliases
        for wanted in reader.fields.values():
            self._steps += 1
            written = writer.fields.get(wanted.name)
            if written is None and renamed:
                names = (writer.fields.get(alias) for alias in wanted.aliases)
                written = next((each for each in names if each is not None), None)
            if written is not None:
                why = self.why(wanted.type, written.type)
            elif not wanted.has_default:
                why = "it has no default, and is not written"
            else:
                valid = self._is_value(wanted.type, wanted.default)
                why = None if valid else "it is not written, and its default is not of its type"
            if why is not None:
                # All that was found since relied on this pair.
                self._readable.difference_update(self._order[before:])
                del self._order[before:]
                return f"field {_shown(wanted.name)} of {_shown(reader.name)}: {why}"
        return None

    def _is_value(self, found: Type, value: object) -> bool:
        """Return True if the value is of the type, in the form that defaults have."""
        self._steps += 1
        match _target(found):
            case Primitive(name):
                return _is_plain(name, value)
            case Enum() as enum:
                return isinstance(value, str) and value in enum.symbols
            case Fixed():
                return isinstance(value, str)
            case Array(items):
                return isinstance(value, list) and all(
                    self._is_value(items, each) for each in cast("list[object]", value)
                )
            case Map(values):
                return isinstance(value, dict) and all(
                    self._is_value(values, each)
                    for each in cast("dict[str, object]", value).values()
                )
            case Union(branches):
                return any(self._is_value(branch, value) for branch in branches)
            case Record() as record:
                return isinstance(value, dict) and all(
                    self._is_value(each.type, cast("dict[str, object]", value)[each.name])
                    if each.name in value
                    else each.has_default
                    for each in record.fields.values()
                )
            case Reference():
                raise AssertionError("references were resolved")

    def _why_enum(self, reader: Enum, writer: Enum) -> str | None:
        if not _same_name(reader, writer):
            return f"the enum {_shown(reader.name)} does not read {_shown(writer.name)}"
        missing = writer.symbols - reader.symbols
        if not missing or reader.has_default or self._enums_grow:
            return None
        return (
            f"the enum {_shown(reader.name)} lacks the symbol {_shown(min(missing))}, and has no"
            " default"
        )


def _is_plain(name: str, value: object) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return isinstance(value, str)


def _why_fixed(reader: Fixed, writer: Fixed) -> str | None:
    if not _same_name(reader, writer):
        return f"the fixed type {_shown(reader.name)} does not read {_shown(writer.name)}"
    if reader.size != writer.size:
        return f"{_shown(reader.name)} has {reader.size} bytes, and is written with {writer.size}"
    return None


def _target(found: Type) -> Type:
    while isinstance(found, Reference):
        assert found.type is not None
        found = found.type
    return found


def _promoted(reader: Type, writer: Type) -> bool:
    if not isinstance(reader, Primitive) or not isinstance(writer, Primitive):
        return False
    return reader.name == writer.name or reader.name in _PROMOTIONS.get(writer.name, ())


def _same_name(reader: Named, writer: Named) -> bool:
    return _short(reader.name) == _short(writer.name) or writer.name in reader.aliases


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _described(found: Type) -> str:
    match found:
        case Primitive(name):
            return name
        case Record() | Enum() | Fixed():
            return f"{type(found).__name__.lower()} {_shown(found.name)}"
        case _:
            return f"a {type(found).__name__.lower()}"


def _first(reasons: Iterator[str | None]) -> str | None:
    return next((why for why in reasons if why is not None), None)


__all__: Sequence[str] = ("AvroSchema", "TooComplexError", "parse", "why_unreadable")
