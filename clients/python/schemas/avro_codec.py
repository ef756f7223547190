"""Functions that turn records of one class into Avro and back, generated for that class.

A general library looks at the schema again for each field of each record.  Here the look happens
once: it makes the source of two functions, as the module `dataclasses` does for its methods.

    encode    an instance becomes bytes, without a dict in between
    decode    bytes become an instance, without a dict in between

The functions know the common types (see `fields`).  A value, or bytes, that they do not expect are
left to fastavro, which decides: it encodes or decodes what is unusual, and words the error of what
is wrong.  So the functions must never return something else than fastavro would; `compiled` returns
None for a class with other types.

The source has no text from outside in it: names of fields are identifiers of the class, and are
checked to be; everything else is passed in by number.
"""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from inspect import Parameter, signature
from struct import Struct
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from daybook.clients.python.schemas.fields import AvroType, avro_definition, is_record

T = TypeVar("T")

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_KNOWN_MAX = 1 << 14
_VARINT_BYTES_MAX = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_DAY_ZERO = date(1970, 1, 1).toordinal()
_DEPTH_MAX = 16  # records in records


class _UnusualError(Exception):
    """fastavro has to decide about this value, or these bytes."""


class _Longs(dict[int, bytes]):
    """The encoding of each integer: looked up for small ones, computed for others."""

    def __missing__(self, number: int) -> bytes:
        if not _LONG_MIN <= number <= _LONG_MAX:
            raise _UnusualError
        left, encoded = (number << 1) ^ (number >> 63), bytearray()
        while left > 0x7F:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        encoded.append(left)
        found = bytes(encoded)
        if len(self) < _KNOWN_MAX:
            self[number] = found
        return found


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a place, and the place behind it."""
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise _UnusualError
    if found > 0xFFFF_FFFF_FFFF_FFFF:
        raise _UnusualError
    return (found >> 1) ^ -(found & 1), at


def _read_size(data: bytes, at: int) -> tuple[int, int]:
    size, at = _read_long(data, at)
    if size < 0:
        raise _UnusualError
    return size, at


def _micros(value: datetime) -> int:
    if type(value) is not datetime or value.tzinfo is None:
        raise _UnusualError
    return (value - _EPOCH) // _US


def _from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _days(value: date) -> int:
    if type(value) is not date:
        raise _UnusualError
    return value.toordinal() - _DAY_ZERO


def _from_days(days: int) -> date:
    return date.fromordinal(days + _DAY_ZERO)


@dataclasses.dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """The functions of one class."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


def compiled(
    cls: type[T], encode: Callable[[T], bytes], decode: Callable[[bytes], T]
) -> Codec[T] | None:
    """Return the functions of a class; None for one that has types which only fastavro knows.

    `encode` and `decode` are asked about what is unusual.
    """
    compiler = _Compiler()
    try:
        source = "\n".join(compiler.functions(cls))
    except _UnusualError:
        return None
    compiler.names |= {"encode_otherwise": encode, "decode_otherwise": decode}
    exec(compile(source, f"<Avro of {cls.__name__}>", "exec"), compiler.names)  # noqa: S102
    return Codec(compiler.names["encode"], compiler.names["decode"])


class _Compiler:
    """Writes the source of the functions of one class.

    A place in the data is `i`, the data are `d`.  A writer function returns the parts of the bytes;
    a reader function returns the value and the place behind it.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "Unusual": _UnusualError,
            "longs": _Longs(),
            "read_long": _read_long,
            "read_size": _read_size,
            "pack_double": Struct("<d").pack,
            "double_at": Struct("<d").unpack_from,
            "pack_float": Struct("<f").pack,
            "float_at": Struct("<f").unpack_from,
            "micros": _micros,
            "from_micros": _from_micros,
            "days": _days,
            "from_days": _from_days,
        }
        self._open: list[type[Any]] = []  # the records that are being written
        self._records: dict[type[Any], tuple[str, str]] = {}

    def _given(self, value: object) -> str:
        """Return a name by which the source knows an object."""
        name = f"g{len(self.names)}"
        self.names[name] = value
        return name

    def functions(self, cls: type[Any]) -> list[str]:
        """Return the source of `encode` and `decode` of a class."""
        writer, parts, reader, made = self._body(cls)
        values = f"b''.join(({', '.join(parts)},))"
        return [
            *self.lines,
            "def encode(v):",
            f"    if type(v) is {made.partition('(')[0]}:",
            "        try:",
            *(f"            {line}" for line in writer),
            f"            return {values}",
            "        except Exception: pass",
            "    return encode_otherwise(v)",
            "def decode(d):",
            "    try:",
            "        i = 0",
            *(f"        {line}" for line in reader),
            "        if i == len(d):",
            f"            return {made}",
            "    except Exception: pass",
            "    return decode_otherwise(d)",
        ]

    def record(self, cls: type[Any]) -> tuple[str, str]:
        """Write the functions of a record inside of another one; return their names."""
        if cls in self._records:
            return self._records[cls]
        writer, parts, reader, made = self._body(cls)
        number = len(self.names)
        names = f"write{number}", f"read{number}"
        self.lines += [
            f"def {names[0]}(v):",
            *(f"    {line}" for line in writer),
            f"    return ({', '.join(parts)},)",
            f"def {names[1]}(d, i):",
            *(f"    {line}" for line in reader),
            f"    return {made}, i",
        ]
        self.names[names[0]] = None  # The next number is another one.
        self._records[cls] = names
        return names

    def _body(self, cls: type[Any]) -> tuple[list[str], list[str], list[str], str]:
        """Return the statements of a writer, the parts that it makes, those of a reader, a call."""
        if cls in self._open or len(self._open) >= _DEPTH_MAX:
            raise _UnusualError
        self._open.append(cls)
        fields = _fields_of(cls)
        hints = get_type_hints(cls, include_extras=True)
        null_last = _null_last(cls)
        made = self._given(cls)
        writer: list[str] = []
        parts: list[str] = []
        reader: list[str] = []
        for index, name in enumerate(fields):
            writer.append(f"x{index} = v.{name}")
            last = name in null_last
            lines, found = self._write(hints[name], f"x{index}", null_last=last)
            writer += lines
            parts += found
            reader += self._read(hints[name], f"x{index}", null_last=last)
        values = ", ".join(f"{name}=x{index}" for index, name in enumerate(fields))
        if _takes_positions(cls, fields):
            values = ", ".join(f"x{index}" for index in range(len(fields)))
        self._open.pop()
        return writer, parts, reader, f"{made}({values})"

    def _write(
        self,
        hint: Any,  # noqa: ANN401
        x: str,
        *,
        null_last: bool = False,
    ) -> tuple[list[str], list[str]]:
        """Return statements that check and prepare the value `x`, and the parts of its bytes."""
        kind, inner = _kind_of(hint)
        match kind:
            case "string":
                lines = [f"if type({x}) is not str: raise Unusual", f"{x} = {x}.encode()"]
                return lines, [f"longs[len({x})]", x]
            case "bytes":
                return [f"if type({x}) is not bytes: raise Unusual"], [f"longs[len({x})]", x]
            case "long":
                return [f"if type({x}) is not int: raise Unusual"], [f"longs[{x}]"]
            case "int":
                check = f"if type({x}) is not int or not {_INT_MIN} <= {x} <= {_INT_MAX}"
                return [f"{check}: raise Unusual"], [f"longs[{x}]"]
            case "double" | "float":
                check = f"if type({x}) is not float and type({x}) is not int: raise Unusual"
                return [check], [f"pack_{kind}({x})"]
            case "boolean":
                check = f"if {x} is not True and {x} is not False: raise Unusual"
                return [check], [f"b'\\1' if {x} else b'\\0'"]
            case "datetime":
                return [], [f"longs[micros({x})]"]
            case "date":
                return [], [f"longs[days({x})]"]
            case "enum":
                longs = _Longs()
                symbols = {each: longs[index] for index, each in enumerate(inner)}
                check = f"if type({x}) is not {self._given(inner)}: raise Unusual"
                return [check], [f"{self._given(symbols)}[{x}]"]
            case "optional":
                null, wanted = ("b'\\2'", "b'\\0'") if null_last else ("b'\\0'", "b'\\2'")
                lines, parts = self._write(inner, x)
                joined = f"b''.join(({wanted}, {', '.join(parts)},))"
                body = [f"    {line}" for line in [*lines, f"{x} = {joined}"]]
                return [f"if {x} is None: {x} = {null}", "else:", *body], [x]
            case "list" | "map":
                return self._write_collection(kind, inner, x)
            case _:
                writer, _ = self.record(inner)
                return [f"if type({x}) is not {self._given(inner)}: raise Unusual"], [
                    f"*{writer}({x})"
                ]

    def _write_collection(
        self,
        kind: str,
        inner: Any,  # noqa: ANN401
        x: str,
    ) -> tuple[list[str], list[str]]:
        e, p = f"{x}e", f"{x}p"
        lines, parts = self._write(inner, e)
        body = [*lines, f"{p} += ({', '.join(parts)},)"]
        loop = f"for {e} in {x}:"
        if kind == "map":
            k = f"{x}k"
            check = f"if type({k}) is not str: raise Unusual"
            key = f"{k} = {k}.encode()"
            body = [check, key, f"{p} += (longs[len({k})], {k})", *body]
            loop = f"for {k}, {e} in {x}.items():"
        wanted = "list" if kind == "list" else "dict"
        return [
            f"if type({x}) is not {wanted}: raise Unusual",
            f"{p} = [longs[len({x})]] if {x} else []",
            loop,
            *(f"    {line}" for line in body),
            f"{p}.append(b'\\0')",
        ], [f"*{p}"]

    def _read(self, hint: Any, x: str, *, null_last: bool = False) -> list[str]:  # noqa: ANN401
        """Return statements that read the value `x` at the place `i`."""
        kind, inner = _kind_of(hint)
        match kind:
            case "string" | "bytes":
                # One byte is enough for the size of most texts.
                cut = f"d[i:{x}].decode()" if kind == "string" else f"d[i:{x}]"
                return [
                    f"{x} = d[i]",
                    f"if {x} & 129: {x}, i = read_size(d, i)",
                    "else:",
                    f"    {x} >>= 1",
                    "    i += 1",
                    f"{x} += i",
                    f"{x}, i = {cut}, {x}",
                ]
            case "long" | "int":
                lines = [
                    f"{x} = d[i]",
                    f"if {x} & 129: {x}, i = read_long(d, i)",
                    "else:",
                    f"    {x} >>= 1",
                    "    i += 1",
                ]
                if kind == "int":
                    lines.append(f"if not {_INT_MIN} <= {x} <= {_INT_MAX}: raise Unusual")
                return lines
            case "double" | "float":
                size = 8 if kind == "double" else 4
                return [f"({x},) = {kind}_at(d, i)", f"i += {size}"]
            case "boolean":
                return [f"{x} = d[i]", f"if {x} > 1: raise Unusual", f"{x} = {x} == 1", "i += 1"]
            case "datetime":
                return [f"{x}, i = read_long(d, i)", f"{x} = from_micros({x})"]
            case "date":
                return [f"{x}, i = read_long(d, i)", f"{x} = from_days({x})"]
            case "enum":
                return [f"{x}, i = read_size(d, i)", f"{x} = {self._given(tuple(inner))}[{x}]"]
            case "optional":
                body = [f"    {line}" for line in self._read(inner, x)]
                null, wanted = (2, 0) if null_last else (0, 2)
                return [
                    f"{x} = d[i]",
                    "i += 1",
                    f"if {x} == {null}: {x} = None",
                    f"elif {x} != {wanted}: raise Unusual",
                    "else:",
                    *body,
                ]
            case "list" | "map":
                return self._read_collection(kind, inner, x)
            case _:
                _, reader = self.record(inner)
                return [f"{x}, i = {reader}(d, i)"]

    def _read_collection(self, kind: str, inner: Any, x: str) -> list[str]:  # noqa: ANN401
        e, n, k = f"{x}e", f"{x}n", f"{x}k"
        key = self._read(str, k) if kind == "map" else []
        add = f"{x}[{k}] = {e}" if kind == "map" else f"{x}.append({e})"
        body = [*key, *self._read(inner, e), add]
        # Each element takes a byte at least, so a wrong count ends at the end of the data.
        return [
            f"{x} = {'{}' if kind == 'map' else '[]'}",
            "while True:",
            f"    {n}, i = read_size(d, i)",
            f"    if not {n}: break",
            f"    if {n} > len(d): raise Unusual",
            f"    for _ in range({n}):",
            *(f"        {line}" for line in body),
        ]


def _fields_of(cls: type[Any]) -> list[str]:
    """Return the names of the fields, in their order."""
    names: list[str] = []
    if dataclasses.is_dataclass(cls):
        for each in dataclasses.fields(cls):
            if not each.init:
                raise _UnusualError
            names.append(each.name)
    else:
        for field in msgspec.structs.fields(cls):
            if field.name != field.encode_name:
                raise _UnusualError
            names.append(field.name)
    if not names or not all(name.isidentifier() for name in names):
        raise _UnusualError  # A record without fields takes no byte.
    return names


def _null_last(cls: type[Any]) -> set[str]:
    """Return the fields whose union has null behind the other type, because of their default."""
    fields: list[dict[str, Any]] = avro_definition(cls, times=True)["fields"]
    unions = [each for each in fields if isinstance(each["type"], list)]
    return {each["name"] for each in unions if each["type"][-1] == "null"}


def _takes_positions(cls: type[Any], fields: Sequence[str]) -> bool:
    """Return True if the class takes these fields by position, which is faster than by name."""
    parameters = signature(cls).parameters
    kinds = {each.kind for each in parameters.values()}
    return kinds == {Parameter.POSITIONAL_OR_KEYWORD} and list(parameters) == list(fields)


def _kind_of(hint: Any) -> tuple[str, Any]:  # noqa: ANN401
    """Return the kind of a field, and the type inside of it."""
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        if len(extras) != 1 or not isinstance(extras[0], AvroType):
            raise _UnusualError  # msgspec.Meta may ask for checks.
        named = extras[0].name
        if (hint, named) not in ((int, "int"), (int, "long"), (float, "float"), (float, "double")):
            raise _UnusualError
        return named, None
    plain = {
        str: "string",
        bytes: "bytes",
        int: "long",
        float: "double",
        bool: "boolean",
        datetime: "datetime",
        date: "date",
    }
    if hint in plain:
        return plain[hint], None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        wanted = [each for each in arguments if each is not NoneType]
        if len(arguments) != len(wanted) + 1 or len(wanted) != 1:
            raise _UnusualError
        return "optional", wanted[0]
    if origin is list:
        return "list", arguments[0]
    if origin is dict and arguments[0] is str:
        return "map", arguments[1]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "enum", hint
    if is_record(cast("object", hint)):
        return "record", cast("type[Any]", hint)
    raise _UnusualError
