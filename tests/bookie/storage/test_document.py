"""`docs/formats/bookie_storage.md` is true: this reader of the golden log follows the page only."""

import struct
from collections import Counter
from pathlib import Path

from crc32c import crc32c

from daybook.bookie.registry.cookies import Cookie
from daybook.bookie.server.cookie_validation import COOKIE_FILE, NEW_FILE
from daybook.bookie.storage.deleted_segments import Gap, decode_gaps, encode_gaps
from daybook.bookie.storage.entry_locations import SegmentUsage
from daybook.bookie.storage.records import Kind

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "bookie_storage_v1"
DOCUMENT = (ROOT / "docs" / "formats" / "bookie_storage.md").read_text()
HEADER_BYTES = 28


def read_batch(creation_id: int, position: int, data: bytes) -> tuple[list[int], int]:
    """Return the kinds of the records of a batch, and its size."""
    magic, checksum, flags, count, size, mark = struct.unpack_from(">4sIIIIQ", data)
    assert magic.hex(" ").upper() == "DB 42 41 54"
    covered = struct.pack(">QQIIIQ", creation_id, position, flags, count, size, mark)
    assert checksum == crc32c(covered)
    assert mark <= position
    kinds: list[int] = []
    at = HEADER_BYTES
    while at < HEADER_BYTES + size:
        checksum, payload_bytes, kind, ledger_id, entry_id = struct.unpack_from(">IIIqq", data, at)
        payload = data[at + HEADER_BYTES : at + HEADER_BYTES + payload_bytes]
        covered = struct.pack(
            ">QQIIqq", creation_id, position + at, payload_bytes, kind, ledger_id, entry_id
        )
        assert checksum == crc32c(covered + payload)
        kinds.append(kind)
        at += HEADER_BYTES + payload_bytes
    assert len(kinds) == count
    assert bool(count) != bool(flags)  # END batches hold no records
    return kinds, at


def test_the_golden_log_is_what_the_document_draws() -> None:
    found = Counter[int]()
    creation_ids: list[int] = []
    for segment in sorted(GOLDEN.glob("*.log")):
        start, data = int(segment.stem), segment.read_bytes()
        magic, version, zero, creation_id, checksum = struct.unpack_from(">8sIIQI", data)
        assert (magic, version, zero) == (b"DAYBKLOG", 1, 0)
        assert checksum == crc32c(data[:24])
        creation_ids.append(creation_id)
        at = HEADER_BYTES
        while data[at:].strip(b"\0"):
            kinds, size = read_batch(creation_id, start + at, data[at:])
            found.update(kinds)
            at += size
    assert creation_ids == sorted(set(creation_ids))
    assert set(found) <= set(Kind)
    assert found[Kind.ENTRY] > 1


def test_the_kinds_of_records_are_those_of_the_document() -> None:
    for kind in Kind:
        assert f"| {kind.value} | {kind.name} |" in DOCUMENT


def test_the_golden_list_of_gaps_is_what_the_document_draws() -> None:
    data = (GOLDEN / "REMOVED").read_bytes()
    magic, version, count = struct.unpack_from(">8sII", data)
    assert (magic, version) == (b"DAYBKREM", 1)
    gaps = [struct.unpack_from(">QQQ", data, 16 + 24 * number) for number in range(count)]
    assert gaps == [(0, 0, 572), (960, 900, 4096)]
    assert data[16 + 24 * count :] == struct.pack(">I", crc32c(data[: 16 + 24 * count]))
    assert decode_gaps(data) == [Gap(*gap) for gap in gaps]
    assert encode_gaps(decode_gaps(data)) == data


def test_the_shares_are_what_the_document_draws() -> None:
    shares = SegmentUsage()
    for first in (0, 572):
        shares.begin(first)
    data = struct.pack(">Q", 960) + struct.pack(">Qq", 0, 500) + struct.pack(">Qq", 572, 0)
    assert shares.load(data, 960)
    assert [shares.live_bytes(0), shares.live_bytes(572)] == [500, 0]
    assert shares.encode(960, {}) == data
    assert not shares.load(data, 961)


def test_the_cookie_of_the_document_is_the_one_that_is_written() -> None:
    directories = ("/d0", "/d1")
    cookie = Cookie(
        "127.0.0.1:3181", directories, directories, "a5ef8d94-df99-4551-b831-6523d127feb9"
    )
    text = cookie.encode().decode()
    assert "".join(f"    {line}\n" for line in text.splitlines()) in DOCUMENT
    assert f"<directory>/{COOKIE_FILE}" in DOCUMENT
    assert f"<directory>/log/{NEW_FILE}" in DOCUMENT
