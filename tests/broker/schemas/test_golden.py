"""The records of schemas, byte by byte (`docs/formats/schemas.md`).

If a test here fails, a format has changed: it needs a new version and new golden files.
"""

from pathlib import Path

import pytest

from daybook.broker.errors import StorageFailedError
from daybook.broker.protocol.schemas.schema import AVRO, NO_SCHEMA, Schema, SchemaVersion
from daybook.broker.schemas.records import (
    custom_metadata,
    decode_entry,
    decode_locator,
    encode_entry,
    first_locator,
    hash_of,
    index_entry,
    locator_path,
    other_owner,
    schema_id,
)
from daybook.broker.schemas.records_pb2 import SchemaLocator
from daybook.wire.topics import TopicName

GOLDEN = Path(__file__).parents[2] / "golden" / "schemas_v1"
SCHEMA = Schema(AVRO, b'{"type":"record","name":"R","fields":[]}', {"owner": "me", "a": "b"})
LATER = Schema(AVRO, b'"int"')
ID, TIME_MS = "public/default/t", 1_700_000_000_000
VERSIONS = [
    index_entry(0, 17, 0, hash_of(SCHEMA)),
    index_entry(1, 18, 0, hash_of(None)),
    index_entry(2, 21, 0, hash_of(LATER)),
]


def locator() -> bytes:
    value = first_locator(VERSIONS[0])
    for added in VERSIONS[1:]:
        value = decode_locator(value, "t").with_version(added)
    return value


WRITTEN = {
    "locator": locator(),
    "entry": encode_entry(ID, SCHEMA, TIME_MS, []),
    "entry_deleted": encode_entry(ID, None, TIME_MS, VERSIONS[:1]),
}


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_todays_code_writes_the_golden_bytes(name: str) -> None:
    assert WRITTEN[name] == golden(name)


def test_todays_code_reads_the_golden_bytes() -> None:
    found = decode_locator(golden("locator"), "t")
    assert [(v.version, v.ledger_id, v.entry_id, v.deleted) for v in found.all] == [
        (0, 17, 0, False),
        (1, 18, 0, True),
        (2, 21, 0, False),
    ]
    assert found.live == [found.all[2]] == [found.last]
    assert decode_entry(golden("entry"), 0, "t") == SchemaVersion(0, SCHEMA, TIME_MS)
    nothing = Schema(NO_SCHEMA, b"")
    assert decode_entry(golden("entry_deleted"), 1, "t") == SchemaVersion(
        1, nothing, TIME_MS, deleted=True
    )


def test_fields_that_are_not_known_are_kept() -> None:
    future = golden("locator") + b"\x9a\x3e\x03new"
    changed = decode_locator(future, "t").with_version(index_entry(3, 22, 0, b"h"))
    assert b"\x9a\x3e\x03new" in changed
    assert decode_locator(changed, "t").last.version == 3
    assert len(SchemaLocator.FromString(changed).index) == 4


def test_partitions_share_the_record_of_their_topic() -> None:
    name = TopicName.parse("persistent://a/b/a topic~-partition-3")
    assert locator_path(name) == "/schemas/a/b/a+topic%7E"
    assert locator_path(name.base) == locator_path(name)
    assert schema_id(name) == "a/b/a+topic%7E"


@pytest.mark.parametrize("value", [b"\xff", b"", b"\x0a\x00"])
def test_garbage_is_told_from_nothing(value: bytes) -> None:
    with pytest.raises(StorageFailedError):
        decode_locator(value, "t")
    with pytest.raises(StorageFailedError):
        decode_entry(value, 0, "t")


def test_a_ledger_names_its_topic() -> None:
    custom = custom_metadata(ID, "tree")
    assert custom == {
        "application": b"pulsar",
        "component": b"schema",
        "pulsar/schemaId": b"public/default/t",
        "daybook/tree": b"tree",
    }
    assert other_owner(custom, ID) is None
    assert other_owner({}, ID) is None
    assert other_owner(custom, "public/default/u") == ID
    topics = {"application": b"pulsar", "component": b"managed-ledger"}
    assert other_owner(topics, ID) == "the component managed-ledger"
