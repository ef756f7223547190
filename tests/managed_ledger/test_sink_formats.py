"""The stored forms of sinks, byte by byte: `docs/formats/sinks.md`.

If a golden test here fails, a format has changed: it needs a new version and new golden files.
"""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.managed_ledger.errors import InvalidNameError, LogCorruptError
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.sink import (
    ManifestId,
    SinkPartition,
    SinkRecord,
    SinkState,
    Source,
)
from daybook.managed_ledger.records_pb2 import KeyValue
from daybook.managed_ledger.sinks.errors import SinkCorruptError, StagedEntryError
from daybook.managed_ledger.sinks.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    make_manifest,
)
from daybook.managed_ledger.sinks.progress import (
    Progress,
    decode_progress,
    encode_progress,
    held_by_sinks,
    progress_of,
    property_of,
)
from daybook.managed_ledger.sinks.record import (
    PendingBatch,
    check_name,
    decode_pending,
    decode_record,
    encode_pending,
    encode_record,
    of_role_path,
    pending_batches,
    pending_path,
    record_path,
    sink_id_of,
)
from daybook.managed_ledger.sinks.staging import (
    ENTRY_ROOM_BYTES,
    Run,
    Runs,
    StagingEnd,
    applied_entry,
    check_staged,
    decode_body,
    decode_end,
    encode_body,
    encode_end,
    messages_of,
    new_end,
    staged_entry,
)
from daybook.wire.batch import (
    encode_batch,
    impossible_claim,
    num_messages,
    parse_metadata,
    verify_checksum,
)
from daybook.wire.errors import WireError
from daybook.wire.proto import pulsar_pb2 as pb

GOLDEN = Path(__file__).parents[1] / "golden" / "sinks_v1"
P0, P1 = (f"persistent://public/default/t-partition-{i}" for i in range(2))
ID = "0123456789abcdef0123456789abcdef"
BYTES_MAX = 5 << 20

RECORD = SinkRecord(
    sink_id=ID,
    state=SinkState.BLOCKED,
    source=Source("6ad0b0f3", "hdfs://ns/checkpoints/orders"),
    batch_id=7,
    manifest=ManifestId(4711, "ab" * 32, "cd" * 32),
    rows=5,
    hash=2**64 - 1,
    once=False,
    partitions={
        P0: SinkPartition(created=301, following=12, batch=7, blocked="the topic was terminated"),
        P1: SinkPartition(created=302, following=9, batch=6, skipped=True),
    },
    abandoned=frozenset({"b", "a"}),
)
PENDING = PendingBatch(1, "orders", 7, 4711, "ab" * 32, 301, 9, 3, applied=True)
RUNS = Runs()
for topic, size in ((P0, 100), (P0, 200), (P1, 50), (P0, 10)):
    RUNS.add(topic, 2, size)
END = new_end(
    "orders", "a1", "6ad0b0f3", 7, {P0[: -len("-partition-0")]: 2}, RUNS, rows=8, hash_=2**63
)
MANIFEST = make_manifest(
    "orders", replace(RECORD, state=SinkState.APPLIED), 8, "6ad0b0f3", [(21, END), (23, END)]
)
PROGRESS = Progress("orders", 11, 30, 4, 2**40, applying=True)
STAGED = staged_entry(
    pb.MessageMetadata(partition_key="k", event_time=7, num_messages_in_batch=2), b"body"
)

STORED: dict[str, bytes] = {
    "record.json": encode_record(RECORD),
    "record_of_role.json": encode_record(replace(RECORD, role="alice")),
    "pending.json": encode_pending(PENDING),
    "staging_end.json": encode_end(END),
    "manifest.json": b"".join(encode_manifest(MANIFEST)[0]),
    "progress.json": encode_progress(PROGRESS).encode(),
    "staged_entry.hex": STAGED.hex().encode(),
}


@pytest.mark.parametrize("name", STORED)
def test_todays_code_writes_the_golden_bytes(name: str) -> None:
    assert (GOLDEN / name).read_bytes().rstrip(b"\n") == STORED[name]


def test_todays_code_reads_the_golden_bytes() -> None:
    def golden(name: str) -> bytes:
        return (GOLDEN / name).read_bytes().rstrip(b"\n")

    assert decode_record(golden("record.json"), "orders") == RECORD
    of_role = replace(RECORD, role="alice")
    assert decode_record(golden("record_of_role.json"), "orders") == of_role
    assert decode_pending(golden("pending.json"), "path") == PENDING
    assert decode_end(memoryview(golden("staging_end.json")), 21) == END
    _, checksum = encode_manifest(MANIFEST)
    assert decode_manifest(golden("manifest.json"), checksum, 4711) == MANIFEST
    assert decode_progress(golden("progress.json").decode(), "list") == PROGRESS


@pytest.mark.parametrize("state", SinkState)
def test_records_come_back(state: SinkState) -> None:
    record = replace(RECORD, state=state)
    assert decode_record(encode_record(record), "orders") == record
    fresh = SinkRecord(ID)
    assert decode_record(encode_record(fresh), "orders") == fresh


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"version":1}', b"\xff"])
def test_what_does_not_parse_is_refused(value: bytes) -> None:
    with pytest.raises(SinkCorruptError):
        decode_record(value, "orders")
    with pytest.raises(SinkCorruptError):
        decode_pending(value, "path")
    with pytest.raises(SinkCorruptError):
        decode_end(memoryview(value), 1)
    with pytest.raises(LogCorruptError):
        decode_progress(value.decode(errors="replace"), "list")


def test_a_newer_version_is_refused() -> None:
    newer = encode_record(RECORD).replace(b'"version":1', b'"version":2')
    with pytest.raises(SinkCorruptError, match="newer release"):
        decode_record(newer, "orders")
    end = encode_end(END).replace(b'"version":1', b'"version":2')
    with pytest.raises(SinkCorruptError, match="newer release"):
        decode_end(memoryview(end), 21)


def test_names_and_paths() -> None:
    assert record_path("a/b") == "/daybook/sinks/a%2Fb"
    digest = "2bd806c97f0e00af1a1fc3328fa763a9"  # printf %s alice | sha256sum
    assert of_role_path("alice") == f"/daybook/sinks-of-roles/{digest}"
    assert pending_path(P0, ID, 7).endswith(f"t-partition-0/{ID}-7")
    assert sink_id_of(f"{ID}-7") == ID
    for name in ("", " ", ".", "..", "x" * 513):
        with pytest.raises(InvalidNameError):
            check_name(name)


# -- staging


def test_runs_are_neighbouring_entries_of_one_topic() -> None:
    assert END.runs == [Run(0, 0, 1, 4, 300), Run(1, 2, 2, 2, 50), Run(0, 3, 3, 2, 10)]
    assert (END.entries, END.bytes, END.largest) == (4, 360, 200)


def test_the_owner_sets_its_fields_behind_those_of_the_task() -> None:
    head, body = applied_entry(memoryview(STAGED), "daybook.sink.x", 2**40, 99)
    payload = memoryview(head + bytes(body))
    verify_checksum(payload)
    metadata, found = parse_metadata(payload)
    assert bytes(found) == b"body"
    assert (metadata.producer_name, metadata.sequence_id) == ("daybook.sink.x", 2**40)
    assert (metadata.publish_time, metadata.event_time) == (99, 7)
    assert (metadata.partition_key, metadata.num_messages_in_batch) == ("k", 2)
    assert messages_of(memoryview(STAGED)) == 2


def test_what_can_be_staged() -> None:
    body = encode_batch([(pb.SingleMessageMetadata(), b"x")] * 3)
    batch = staged_entry(pb.MessageMetadata(num_messages_in_batch=3), body)
    assert check_staged(memoryview(batch), BYTES_MAX) == 3
    single = staged_entry(pb.MessageMetadata(), b"")
    assert check_staged(memoryview(single), BYTES_MAX) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_name": "p"},
        {"sequence_id": 0},
        {"publish_time": 1},
        {"highest_sequence_id": 4},
        {"num_chunks_from_msg": 2},
        {"marker_type": 1},
        {"txnid_least_bits": 1},
    ],
    ids=str,
)
def test_fields_that_a_task_may_not_set(fields: dict[str, object]) -> None:
    metadata = pb.MessageMetadata(**fields)  # type: ignore[arg-type]
    with pytest.raises(StagedEntryError):
        staged_entry(metadata, b"")
    raw = metadata.SerializePartialToString()
    entry = len(raw).to_bytes(4, "big") + raw
    with pytest.raises(StagedEntryError):
        check_staged(memoryview(entry), BYTES_MAX)


def test_entries_that_nobody_could_read_are_refused() -> None:
    whole = staged_entry(pb.MessageMetadata(num_messages_in_batch=1000), b"x")
    bad = [whole, b"", b"\0\0", b"\0\0\0\x09x", b"\0\0\0\x02\xff\xff"]
    large = staged_entry(pb.MessageMetadata(), b"x" * 1000)
    for entry in bad:
        with pytest.raises(StagedEntryError):
            check_staged(memoryview(entry), BYTES_MAX)
    with pytest.raises(StagedEntryError, match="smaller batches"):
        check_staged(memoryview(large), len(large) + ENTRY_ROOM_BYTES - 1)
    assert check_staged(memoryview(large), len(large) + ENTRY_ROOM_BYTES) == 1


def as_readers_see(entry: bytes) -> int | None:
    """Return the number of messages in the entry of a topic; None if readers refuse it."""
    try:
        payload = b"".join(applied_entry(memoryview(entry), "x", 0, 1))
        metadata, body = parse_metadata(memoryview(payload))
    except (StagedEntryError, WireError):
        return None
    return None if impossible_claim(metadata, len(body)) else num_messages(metadata)


@given(
    fields=st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda count, key, text, tail: (
                pb.MessageMetadata(
                    num_messages_in_batch=count, properties=[pb.KeyValue(key=key, value=text)]
                ).SerializePartialToString()
                + tail
            ),
            st.integers(-1, 20) | st.just(1 << 20),
            st.sampled_from(["k", None]),
            st.sampled_from(["v", None]),
            st.sampled_from([b"", b"\x82\x01\x01\xff", b"\x22\x01\xff", b"\x08", b"\x0b"]),
        ),
    ),
    body=st.binary(max_size=100),
)
def test_a_broker_takes_what_readers_of_the_topic_can_read(fields: bytes, body: bytes) -> None:
    entry = len(fields).to_bytes(4, "big") + fields + body
    try:
        found: int | None = check_staged(memoryview(entry), BYTES_MAX)
    except StagedEntryError as error:
        if "may not have the field" in str(error):
            return
        found = None
    assert found == as_readers_see(entry)


def test_the_check_of_an_entry_does_not_copy_its_body() -> None:
    entry = memoryview(staged_entry(pb.MessageMetadata(), bytes(1 << 20)))
    tracemalloc.start()
    try:
        assert check_staged(entry, BYTES_MAX) == 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_bodies_come_back() -> None:
    entries = [b"a", b"", b"ccc"]
    assert [bytes(each) for each in decode_body(memoryview(encode_body(entries)))] == entries
    assert list(decode_body(memoryview(b""))) == []
    for cut in range(1, len(encode_body(entries))):
        if cut in (5, 9):
            continue  # between two entries
        with pytest.raises(StagedEntryError, match="cut off"):
            list(decode_body(memoryview(encode_body(entries)[:cut])))


# -- the manifest


def test_a_share_is_in_the_order_of_the_tasks() -> None:
    assert MANIFEST.entries == {P0: 6, P1: 2}
    assert MANIFEST.shares[P0].first == 12
    assert [tuple(each) for each in pieces(MANIFEST, P0, 12)] == [
        (21, 0, 1, 12),
        (21, 3, 3, 14),
        (23, 0, 1, 15),
        (23, 3, 3, 17),
    ]
    assert pieces(MANIFEST, P0, 13) == [(21, 1, 1, 13), *pieces(MANIFEST, P0, 14)]
    assert pieces(MANIFEST, P0, 16) == [(23, 1, 1, 16), (23, 3, 3, 17)]
    assert pieces(MANIFEST, P0, 18) == []


def pieces(manifest: Manifest, topic: str, start: int) -> list[tuple[int, int, int, int]]:
    found = manifest.pieces_from(topic, start)
    return [(staged.ledger_id, first, last, sequence) for staged, first, last, sequence in found]


def test_a_damaged_manifest_is_not_applied() -> None:
    entries, checksum = encode_manifest(MANIFEST)
    data = b"".join(entries)
    with pytest.raises(SinkCorruptError, match="does not match"):
        decode_manifest(data.replace(b"23", b"24"), checksum, 1)


def test_pending_nodes_say_where_a_share_begins() -> None:
    record = replace(RECORD, state=SinkState.COMMITTED)
    (found,) = pending_batches("orders", record, {P0: 3}).items()
    assert found == (P0, PendingBatch(1, "orders", 7, 4711, "ab" * 32, 301, 9, 3))


def test_a_staging_end_has_no_unknown_topic() -> None:
    assert isinstance(END, StagingEnd)
    assert {END.topics[run.topic] for run in END.runs} == {P0, P1}


# -- progress


def test_a_sink_holds_the_log_while_it_applies() -> None:
    def properties(*texts: str) -> list[KeyValue]:
        ours = [KeyValue(key=property_of(str(i)), value=text) for i, text in enumerate(texts)]
        return [KeyValue(key="index", value="7"), *ours]

    done = encode_progress(Progress("orders", 11, 20, 4, 99, applying=False))
    assert held_by_sinks(properties()) == []
    assert held_by_sinks(properties(done)) == []
    assert held_by_sinks(properties(done, encode_progress(PROGRESS))) == [Position(30, -1)]
    assert held_by_sinks(properties("garbage")) == [EARLIEST]
    assert progress_of({"index": "7", property_of("x"): encode_progress(PROGRESS)}) == {
        "x": PROGRESS
    }
