"""Records and batches: the effect of a damaged byte, and released bytes that never change."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.storage.ledger_directory import LAST_ENTRY
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.records import (
    BATCH_HEADER_BYTES,
    BatchFlag,
    Kind,
    SegmentHeader,
    UnsupportedVersionError,
    decode_batch_header,
    decode_record,
    decode_records,
    encode_batch_header,
    encode_record_header,
    record_seed,
)
from tests.bookie.storage.conftest import Answers, Host
from tests.bookie.storage.oracle import entry, key
from tests.harness.disk import Platter

GOLDEN = Path(__file__).parents[2] / "golden" / "bookie_storage_v1"
GOLDEN_INDEX = GOLDEN.with_name("bookie_storage_v2")  # rows with the segment usage
SEED = record_seed(77)


def record(position: int, payload: bytes, kind: Kind = Kind.ENTRY) -> bytes:
    return encode_record_header(SEED, position, kind, 3, 4, payload) + payload


@given(st.integers(0, 2**63), st.sampled_from(Kind), st.binary(max_size=200))
def test_a_record_survives_its_encoding(position: int, kind: Kind, payload: bytes) -> None:
    decoded = decode_record(SEED, position, memoryview(record(position, payload, kind) + b"more"))
    assert decoded is not None
    assert (decoded.kind, decoded.ledger_id, decoded.entry_id) == (kind, 3, 4)
    assert decoded.payload == payload


@given(st.binary(max_size=100), st.data())
def test_no_changed_bit_goes_unnoticed(payload: bytes, data: st.DataObject) -> None:
    good = record(5, payload)
    bad = bytearray(good)
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_record(SEED, 5, memoryview(bad)) is None


def test_a_record_is_valid_at_its_own_place_only() -> None:
    data = memoryview(record(5, b"payload"))
    assert decode_record(SEED, 5, data) is not None
    assert decode_record(SEED, 6, data) is None
    assert decode_record(record_seed(78), 5, data) is None
    head = encode_batch_header(77, 5, BatchFlag.NONE, 1, len(data), 0)
    assert decode_batch_header(77, 5, head) is not None
    assert decode_batch_header(77, 6, head) is None
    assert decode_batch_header(78, 5, head) is None


def test_a_record_of_a_newer_release_is_not_taken_for_a_damaged_one() -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_record(SEED, 5, memoryview(record(5, b"", kind=99)))  # type: ignore[arg-type]


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_at(data: bytes) -> None:
    assert decode_record(SEED, 0, memoryview(data)) is None
    assert decode_batch_header(1, 0, data) is None
    assert SegmentHeader.decode(data) is None
    assert decode_records(SEED, 0, memoryview(data)) == ([], not data)


def test_what_is_readable_of_a_damaged_batch_is_found() -> None:
    first = record(0, b"first")
    second = record(len(first), b"second")
    third = record(len(first) + len(second), b"third")
    data = bytearray(first + second + third)
    data[len(first) + 30] ^= 1
    records, whole = decode_records(SEED, 0, memoryview(data))
    assert not whole
    assert [bytes(found.payload) for found in records] == [b"first", b"third"]


async def write_everything(host: Host) -> None:
    """Write one record of each kind that occurs in ordinary work, over two segments."""
    async with host.store(log=LogLimits(segment_bytes=300)) as store:
        answers = Answers(store)
        for entry_id in range(3):
            answers.add(1, entry_id, lac=entry_id - 1, size=100)
        await answers.all()
        await store.write_lac(1, key(1), 1, b"explicit")
        await store.fence(2, key(2))
        await store.delete(3)
        await store.maintenance.checkpoint()
        answers.add(1, 3, lac=2)
        await answers.all()


async def test_the_format_is_the_released_one(host: Host) -> None:
    """If this fails, the format has changed: it needs a new version and a new golden directory."""
    await write_everything(host)
    written = {path.rsplit("/", 1)[1]: host.platter.content(path) for path in host.logs()}
    assert written == {path.name: path.read_bytes() for path in sorted(GOLDEN.glob("*.log"))}
    rows = await host.platter.index("d0/index").scan(b"", b"\xff", 100)
    lines = [f"{row_key.hex()} {value.hex()}\n" for row_key, value in rows]
    # Segment usage came later: an index without it has the same version, and is read.
    released = [(GOLDEN_INDEX / "index.txt").read_text(), (GOLDEN / "shares.txt").read_text()]
    assert "".join(lines) == "".join(released)


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_INDEX])
async def test_what_was_released_can_still_be_read(golden: Path) -> None:
    platter = Platter(random.Random(1))
    platter.make_directory("d0/log")
    for path in sorted(GOLDEN.glob("*.log")):
        file = platter.create(f"d0/log/{path.name}")
        file.cache += path.read_bytes()
        platter.sync_file(file)
    platter.sync_names()
    rows = [line.split(" ") for line in (golden / "index.txt").read_text().splitlines()]
    index = {bytes.fromhex(row_key): bytes.fromhex(value) for row_key, value in rows}
    for with_index in (False, True):
        if with_index:
            platter.lose_index("d0/index")
            platter.index("d0/index").apply(index, [])
        async with Host(platter).store() as store:
            assert not store.limbo
            assert store.ledgers() == [1, 2]
            assert await store.read(1, LAST_ENTRY) == entry(1, 3, lac=2)
            assert await store.read(1, 0) == entry(1, 0, size=100)
            assert (await store.read_lac(1))[0] == b"explicit"
            assert store.is_fenced(2)


def test_limbo_and_the_end_are_as_they_were_released() -> None:
    """`write_everything` has no reason to write these: limbo records, and a clean stop."""
    seed = record_seed(7)
    limbo = encode_record_header(seed, 1000 + BATCH_HEADER_BYTES, Kind.LIMBO, -1, -1, b"")
    batch = encode_batch_header(7, 1000, BatchFlag.NONE, 1, len(limbo), 1000) + limbo
    end = encode_batch_header(7, 1056, BatchFlag.END, 0, 0, 1056)
    released = bytes.fromhex((GOLDEN / "limbo_and_end.hex").read_text())
    assert batch + end == released
    header = decode_batch_header(7, 1000, released)
    assert header is not None
    assert (header.count, header.size) == (1, len(limbo))
    behind = memoryview(released)[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + header.size]
    (record,), whole = decode_records(seed, 1000 + BATCH_HEADER_BYTES, behind)
    assert (record.kind, record.ledger_id, record.entry_id, whole) == (Kind.LIMBO, -1, -1, True)
    last = decode_batch_header(7, 1056, released[BATCH_HEADER_BYTES + header.size :])
    assert last is not None
    assert last.flags is BatchFlag.END
