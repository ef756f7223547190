"""Avro schemas: what is accepted, what is the same, and what reads what.

The answers in `CASES` are those that the Avro library in Pulsar's Java client 4.2.4 gave once.  The
generated pairs are read by fastavro.
"""

import io
import json
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from daybook.broker.errors import InvalidSchemaError
from daybook.broker.protocol.schemas.avro import (
    DEPTH_MAX,
    NODES_MAX,
    TooComplexError,
    parse,
    why_unreadable,
)
from tests.broker.schemas.avro_cases import CASES


@pytest.mark.parametrize(("writer", "reader", "answer"), CASES)
def test_the_answers_of_javas_library(writer: str, reader: str, answer: str) -> None:
    try:
        written, read = parse(writer.encode()), parse(reader.encode())
    except InvalidSchemaError:
        assert answer == "invalid"
        return
    why = why_unreadable(read, written, enums_grow=True)
    same = "same" if written.fingerprint == read.fingerprint else "different"
    assert f"{'yes' if why is None else 'no'} {same}" == answer, why


def test_an_enum_that_grows_needs_a_default_unless_readers_take_anything() -> None:
    small = parse(b'{"type":"enum","name":"E","symbols":["A"]}')
    large = parse(b'{"type":"enum","name":"E","symbols":["A","B"]}')
    safe = parse(b'{"type":"enum","name":"E","symbols":["A"],"default":"A"}')
    assert why_unreadable(small, large) == "the enum 'E' lacks the symbol 'B', and has no default"
    assert why_unreadable(large, small) is None
    assert why_unreadable(safe, large) is None
    assert why_unreadable(small, large, enums_grow=True) is None


def test_the_reason_names_the_path_to_the_field() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "string"}]}
    outer = {"type": "record", "name": "O", "fields": [{"name": "i", "type": inner}]}
    written = parse(json.dumps(outer).replace('"string"', '"int"').encode())
    assert why_unreadable(parse(json.dumps(outer).encode()), written) == (
        "field 'i' of 'O': field 'x' of 'I': string does not read int"
    )


@pytest.mark.parametrize("default", ["5", "null", '"x"', "[1]", "1.5"])
def test_a_default_that_is_not_of_its_type_does_not_help(default: str) -> None:
    field = '{"name":"a","type":"int","default":%s}' % default  # noqa: UP031
    reader = parse(b'{"type":"record","name":"R","fields":[%s]}' % field.encode())
    writer = parse(b'{"type":"record","name":"R","fields":[]}')
    assert (why_unreadable(reader, writer) is None) is (default == "5")


def recursive(*fields: str) -> bytes:
    members = [{"name": "next", "type": ["null", "Node"]}]
    members += [{"name": each, "type": "int"} for each in fields]
    return json.dumps({"type": "record", "name": "Node", "fields": members}).encode()


def test_records_that_contain_themselves_are_compared() -> None:
    assert why_unreadable(parse(recursive()), parse(recursive("a"))) is None
    assert why_unreadable(parse(recursive("a")), parse(recursive())) is not None
    assert parse(recursive("a")).fingerprint != parse(recursive()).fingerprint


def test_what_was_found_under_an_assumption_is_forgotten_with_it() -> None:
    """B reads B only if A reads X.  A fails at its last field, and with it what relied on it."""
    x = {"type": "record", "name": "X", "fields": [{"name": "b", "type": "B_of_x"}]}
    b_of_x = {"type": "record", "name": "B", "fields": [{"name": "a", "type": "X"}]}
    x["fields"] = [{"name": "b", "type": b_of_x}]
    writer = {"type": "record", "name": "O", "fields": [{"name": "u", "type": x}]}
    writer["fields"].append({"name": "b", "type": "B"})  # type: ignore[attr-defined]

    b = {"type": "record", "name": "B", "fields": [{"name": "a", "type": "A"}]}
    missing = {"name": "missing", "type": "int"}
    a = {"type": "record", "name": "A", "fields": [{"name": "b", "type": b}, missing]}
    anything = {"type": "record", "name": "Anything", "fields": []}
    reader = {
        "type": "record",
        "name": "O",
        "fields": [{"name": "u", "type": [a, anything]}, {"name": "b", "type": "B"}],
    }
    why = why_unreadable(parse(json.dumps(reader).encode()), parse(json.dumps(writer).encode()))
    assert why is not None
    assert "'missing'" in why


# -- bounds


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"type":' * 100_000,
        b'{"type":"array","items":' * (DEPTH_MAX + 1) + b'"int"' + b"}" * (DEPTH_MAX + 1),
        b'{"type":"int","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff",
        b"",
        b"NaN",
    ],
)
def test_a_bomb_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(data)


def test_the_deepest_and_the_largest_schema_that_is_taken() -> None:
    nested = b'{"type":"array","items":' * DEPTH_MAX + b'"int"' + b"}" * DEPTH_MAX
    assert parse(nested).nodes == DEPTH_MAX + 1

    def wide(count: int) -> bytes:
        fields = [{"name": f"f{n}", "type": "int"} for n in range(count)]
        return json.dumps({"type": "record", "name": "R", "fields": fields}).encode()

    assert parse(wide(NODES_MAX - 1)).nodes == NODES_MAX
    with pytest.raises(InvalidSchemaError, match="types"):
        parse(wide(NODES_MAX))


def test_a_comparison_that_takes_too_long_ends() -> None:
    def union(letter: str) -> Any:
        return [
            {"type": "record", "name": f"{letter}{n}", "fields": [{"name": "x", "type": "int"}]}
            for n in range(400)
        ]

    def whole(letter: str) -> bytes:
        records = [*union(letter), {"type": "record", "name": "Z", "fields": []}]
        return json.dumps(records).encode()

    with pytest.raises(TooComplexError):
        why_unreadable(parse(whole("a")), parse(whole("b")))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "name",
                        "fields",
                        "items",
                        "values",
                        "symbols",
                        "size",
                        "default",
                        "aliases",
                        "namespace",
                    ]
                ),
                inner | st.sampled_from(["record", "enum", "fixed", "array", "map", "int"]),
                max_size=6,
            )
        ),
    )
)
def test_any_json_is_parsed_or_refused(value: object) -> None:
    with suppress(InvalidSchemaError):
        parse(json.dumps(value).encode())


# -- generated pairs, which fastavro reads

PRIMITIVES = st.sampled_from(
    ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
)
SYMBOLS = st.lists(st.sampled_from("ABCD"), min_size=1, max_size=4, unique=True)
SAMPLES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 7,
    "long": 1 << 40,
    "float": 0.5,
    "double": 0.25,
    "string": "text",
    "bytes": b"text",
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2, path: str = "R") -> Any:
    """Return a schema whose named types are named by their place, so that two of them match."""
    kind = draw(st.sampled_from(["primitive", "record", "enum", "array", "map", "union"]))
    if not depth and kind in ("record", "array", "map", "union"):
        kind = "primitive"
    match kind:
        case "record":
            fields = []
            for name in draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True)):
                field = {"name": name, "type": draw(schemas(depth - 1, f"{path}_{name}"))}
                if draw(st.booleans()):
                    field["default"] = default_of(field["type"])
                fields.append(field)
            return {"type": "record", "name": path, "fields": fields}
        case "enum":
            symbols = draw(SYMBOLS)
            found = {"type": "enum", "name": f"{path}_enum", "symbols": symbols}
            if draw(st.booleans()):
                found["default"] = symbols[0]
            return found
        case "array":
            return {"type": "array", "items": draw(schemas(depth - 1, f"{path}_items"))}
        case "map":
            return {"type": "map", "values": draw(schemas(depth - 1, f"{path}_values"))}
        case "union":
            plain = draw(st.lists(PRIMITIVES, min_size=1, max_size=3, unique=True))
            extra = draw(schemas(depth - 1, f"{path}_branch"))
            is_plain = isinstance(extra, str | list)
            return plain if is_plain or not draw(st.booleans()) else [*plain, extra]
        case _:
            return draw(PRIMITIVES)


def default_of(schema: Any) -> Any:
    value = sample(schema)
    return (
        value.decode() if isinstance(value, bytes) else json.loads(json.dumps(value, default=str))
    )


def sample(schema: Any, branch: int = 0) -> Any:
    """Return a value of the schema; `branch` chooses in unions and enums."""
    if isinstance(schema, str):
        return SAMPLES[schema]
    if isinstance(schema, list):
        return sample(schema[branch % len(schema)], branch)
    match schema["type"]:
        case "record":
            return {f["name"]: sample(f["type"], branch) for f in schema["fields"]}
        case "enum":
            return schema["symbols"][branch % len(schema["symbols"])]
        case "array":
            return [sample(schema["items"], branch)]
        case _:
            return {"k": sample(schema["values"], branch)}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), schemas(), st.booleans())
def test_fastavro_reads_what_is_called_compatible(writer: Any, reader: Any, same: bool) -> None:
    if same:
        reader = writer
    written, read = parse(json.dumps(writer).encode()), parse(json.dumps(reader).encode())
    assume(why_unreadable(read, written) is None)
    for branch in range(4):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(writer), sample(writer, branch))
        buffer.seek(0)
        fastavro.schemaless_reader(
            buffer, fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
