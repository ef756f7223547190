"""The strategies: a table of what may follow what; types, pairs, documents, Protobuf."""

import json
from base64 import b64encode
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from daybook.broker.errors import IncompatibleSchemaError, InvalidSchemaError
from daybook.broker.protocol.schemas.compatibility import (
    AUTO_UPDATE,
    SchemaRules,
    Strategy,
    check,
    for_consumer,
    needed,
)
from daybook.broker.protocol.schemas.schema import (
    AVRO,
    JSON,
    KEY_VALUE,
    PROTOBUF,
    PROTOBUF_NATIVE,
    STRING,
    TYPES,
    Schema,
    from_rest,
    join,
    rest_text,
    split,
)
from daybook.broker.protocol.schemas.validation import examine


def record(*fields: str, **optional: int) -> bytes:
    members: list[dict[str, Any]] = [{"name": each, "type": "int"} for each in fields]
    members += [{"name": n, "type": "int", "default": value} for n, value in optional.items()]
    return json.dumps({"type": "record", "name": "R", "fields": members}).encode()


def enum(*symbols: str) -> bytes:
    return json.dumps({"type": "enum", "name": "E", "symbols": symbols}).encode()


NONE, A, A_B, B = record(), record("a"), record("a", b=0), record("b")
S = Strategy


def follows(old: Schema, new: Schema, strategy: Strategy) -> bool:
    try:
        check(examine(new), [examine(old)], strategy)
    except IncompatibleSchemaError:
        return False
    return True


@pytest.mark.parametrize("kind", [AVRO, JSON, PROTOBUF])
@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (A, A, [*S]),
        (A, A_B, [S.BACKWARD, S.FORWARD, S.FULL]),  # a field with a default comes
        (A_B, A, [S.BACKWARD, S.FORWARD, S.FULL]),  # ... and goes
        (A, NONE, [S.BACKWARD]),  # a field without a default goes
        (NONE, A, [S.FORWARD]),  # ... and comes
        (A, B, []),
    ],
)
def test_which_schema_may_follow(
    kind: int, old: bytes, new: bytes, allowed: list[Strategy]
) -> None:
    for strategy in Strategy:
        plain = Strategy(strategy.value.removesuffix("_TRANSITIVE"))
        expected = plain in allowed or strategy is S.ALWAYS_COMPATIBLE
        assert follows(Schema(kind, old), Schema(kind, new), strategy) is expected, strategy


def test_the_type_of_a_schema_never_changes() -> None:
    for strategy in Strategy:
        expected = strategy is S.ALWAYS_COMPATIBLE
        assert follows(Schema(AVRO, A), Schema(JSON, A), strategy) is expected
        assert follows(Schema(STRING, b""), Schema(AVRO, A), strategy) is expected


def test_values_of_an_enum_come_and_go_in_protobuf_only() -> None:
    small, large = enum("A"), enum("A", "B")
    assert not follows(Schema(AVRO, small), Schema(AVRO, large), S.FULL)
    assert follows(Schema(AVRO, small), Schema(AVRO, large), S.BACKWARD)
    assert follows(Schema(PROTOBUF, small), Schema(PROTOBUF, large), S.FULL)


def test_a_transitive_strategy_needs_all_versions() -> None:
    assert needed(S.BACKWARD_TRANSITIVE, [3, 4, 5]) == [3, 4, 5]
    assert needed(S.BACKWARD, [3, 4, 5]) == [5]
    assert needed(S.ALWAYS_INCOMPATIBLE, [3, 4, 5]) == [5]
    assert not needed(S.ALWAYS_COMPATIBLE, [3, 4, 5])
    assert not needed(S.FULL, [])


def test_a_consumer_is_checked_by_what_it_has_to_read() -> None:
    wanted = {
        S.FORWARD: S.BACKWARD,
        S.FORWARD_TRANSITIVE: S.BACKWARD,
        S.FULL: S.BACKWARD,
        S.BACKWARD: S.BACKWARD,
        S.BACKWARD_TRANSITIVE: S.BACKWARD_TRANSITIVE,
        S.FULL_TRANSITIVE: S.FULL_TRANSITIVE,
        S.ALWAYS_COMPATIBLE: S.ALWAYS_COMPATIBLE,
        S.ALWAYS_INCOMPATIBLE: S.ALWAYS_INCOMPATIBLE,
    }
    assert {strategy: for_consumer(strategy) for strategy in wanted} == wanted


def test_pulsars_older_policy_names_every_strategy() -> None:
    assert set(AUTO_UPDATE.values()) == set(Strategy) - {S.UNDEFINED}
    assert SchemaRules().strategy is S.FULL


# -- pairs


def pair(key: tuple[str, bytes], value: tuple[str, bytes]) -> Schema:
    types = {"key.schema.type": key[0], "value.schema.type": value[0]}
    return Schema(KEY_VALUE, join(key[1], value[1]), types)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (pair(("STRING", b""), ("AVRO", A)), True),
        (pair(("STRING", b""), ("AVRO", A_B)), True),
        (pair(("STRING", b""), ("AVRO", B)), False),
        (pair(("INT32", b""), ("AVRO", A)), False),
        (pair(("BYTES", b""), ("AVRO", A)), False),
    ],
)
def test_both_parts_of_a_pair_are_compared(new: Schema, expected: bool) -> None:
    assert follows(pair(("STRING", b""), ("AVRO", A)), new, S.FULL) is expected
    assert follows(new, pair(("STRING", b""), ("AVRO", A)), S.FULL) is expected


def test_a_pair_of_nothing_is_a_pair_of_bytes() -> None:
    key, value = split(Schema(KEY_VALUE, b"\xff" * 4 + b"\0" * 4))
    assert (key.type, value.type) == (None, None)
    assert follows(pair(("BYTES", b""), ("BYTES", b"")), Schema(KEY_VALUE, b"\0" * 8), S.FULL)


@pytest.mark.parametrize(
    "broken",
    [
        Schema(KEY_VALUE, b""),
        Schema(KEY_VALUE, b"\0\0\0\5a"),
        Schema(KEY_VALUE, b"\0" * 9),
        pair(("ODD", b""), ("AVRO", A)),
        pair(("KEY_VALUE", b"\0" * 8), ("AVRO", A)),
        pair(("STRING", b""), ("AVRO", b"{")),
        Schema(KEY_VALUE, b"\0" * 8, {"key.schema.properties": "["}),
    ],
)
def test_a_pair_that_cannot_be_taken_apart_is_refused(broken: Schema) -> None:
    with pytest.raises(InvalidSchemaError):
        examine(broken)


# -- old JSON documents, Protobuf


def document(id_: str) -> Schema:
    return Schema(JSON, json.dumps({"type": "object", "id": id_, "properties": {}}).encode())


def test_old_documents_of_json_are_taken_for_the_type_json_only() -> None:
    assert follows(document("urn:a"), document("urn:a"), S.FULL)
    assert not follows(document("urn:a"), document("urn:b"), S.FULL)
    assert follows(document("urn:a"), Schema(JSON, A), S.FULL)
    assert follows(Schema(JSON, A), document("urn:a"), S.FULL)
    with pytest.raises(InvalidSchemaError):
        examine(Schema(AVRO, document("urn:a").data))
    with pytest.raises(InvalidSchemaError):
        examine(Schema(JSON, b'{"type":"odd"}'))


def native(root: str, *, names: tuple[str, ...] = ("M", "N")) -> Schema:
    file = FileDescriptorProto(name="f.proto", package="a")
    for name in names:
        file.message_type.add(name=name).nested_type.add(name="Inner")
    content = FileDescriptorSet(file=[file]).SerializeToString()
    data = {
        "fileDescriptorSet": b64encode(content).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": "f.proto",
    }
    return Schema(PROTOBUF_NATIVE, json.dumps(data).encode())


def test_the_root_message_of_protobuf_stays() -> None:
    assert follows(native("a.M"), native("a.M", names=("M",)), S.FULL)
    assert not follows(native("a.M"), native("a.N"), S.FULL)
    assert not follows(native("a.M"), native("a.M.Inner"), S.FULL)
    with pytest.raises(InvalidSchemaError, match="does not define"):
        examine(native("a.Gone"))


# -- in REST


def test_rest_names_every_type() -> None:
    for name in TYPES:
        if name in ("NONE", "KEY_VALUE"):
            continue
        assert from_rest(name.lower(), "x", {}).type_name == name
    for name in ("NONE", "BYTES", "AUTO_CONSUME", "odd"):
        with pytest.raises(InvalidSchemaError, match="is not the type of a schema"):
            from_rest(name, "", {})


def test_a_pair_is_the_same_after_a_round_through_rest() -> None:
    types = {"key.schema.type": "AVRO", "value.schema.type": "STRING"}
    made = from_rest("KEY_VALUE", json.dumps({"key": json.loads(A), "value": ""}), types)
    assert json.loads(rest_text(made)) == {"key": json.loads(A), "value": ""}
    assert json.loads(split(made)[0].schema.data) == json.loads(A)
    assert split(made)[1].schema.data == b""
