"""Entries and digests: known bytes first, then arbitrary ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire import digest, entry
from daybook.wire.digest import Digester, DigestType
from daybook.wire.errors import ChecksumError, MalformedError, WireError

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
DIGESTERS = st.builds(Digester, st.sampled_from(DigestType), st.binary(max_size=8))
HEADER = "00000000000000010000000000000000ffffffffffffffff0000000000000005"


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"secret", "e793cbc379107648537183605cd361d3bb789a39"),
    ],
)
def test_master_keys_as_apache_derives_them(password: bytes, key: str) -> None:
    assert digest.master_key(password).hex() == key


def test_the_key_of_the_mac() -> None:
    assert digest.mac_key(b"secret").hex() == "190c685bae851574f5ab47c960a00c0466f96603"


def test_the_check_value_of_the_castagnoli_crc() -> None:
    assert digest.crc32c(b"123456789") == 0xE3069283
    assert digest.crc32c(b"6789", digest.crc32c(memoryview(b"12345"))) == 0xE3069283


@pytest.mark.parametrize(
    ("digest_type", "expected", "of_the_lac"),
    [
        (DigestType.CRC32C, "e3a5f74d", "b64e4ca2"),
        (DigestType.CRC32, "0000000030a56872", "00000000fbc05f16"),
        (DigestType.HMAC, "985ff33d73766e6ab95e91f14097a562ffc64ae8", None),
        (DigestType.DUMMY, "", ""),
    ],
)
def test_the_bytes_of_an_entry(
    digest_type: DigestType, expected: str, of_the_lac: str | None
) -> None:
    digester = Digester(digest_type, b"secret")
    assert digester.size == len(expected) // 2
    header = entry.encode_header(1, 0, -1, 5, digester, [b"he", memoryview(b"llo")])
    assert header.hex() == HEADER + expected
    if of_the_lac is not None:
        packet = entry.encode_lac(1, 0, digester)
        assert packet.hex() == "00000000000000010000000000000000" + of_the_lac


@given(I64, I64, I64, I64, DIGESTERS, st.lists(st.binary(max_size=40), max_size=4))
def test_an_entry_comes_back(
    ledger_id: int, entry_id: int, lac: int, length: int, digester: Digester, payload: list[bytes]
) -> None:
    header = entry.encode_header(ledger_id, entry_id, lac, length, digester, payload)
    data = memoryview(header + b"".join(payload))
    decoded = entry.decode_entry(data, digester, ledger_id, entry_id)
    assert decoded == entry.Entry(ledger_id, entry_id, lac, length, decoded.payload)
    assert decoded.payload == b"".join(payload)
    assert entry.decode_entry(data, digester, ledger_id, None) == decoded
    assert entry.peek_ids(data) == (ledger_id, entry_id)
    assert entry.peek_lac(data) == lac
    with pytest.raises(MalformedError):
        entry.decode_entry(data, digester, ledger_id, entry_id ^ 1)
    with pytest.raises(MalformedError):
        entry.decode_entry(data, digester, ledger_id ^ 1, entry_id)


@given(
    st.sampled_from([DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC]),
    st.binary(min_size=1, max_size=40),
    st.data(),
)
def test_any_flipped_bit_is_noticed(
    digest_type: DigestType, payload: bytes, data: st.DataObject
) -> None:
    digester = Digester(digest_type, b"pw")
    stored = bytearray(entry.encode_header(7, 8, 6, 999, digester, [payload]) + payload)
    bit = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ChecksumError):
        entry.decode_entry(memoryview(stored), digester, 7, 8)


@given(st.binary(max_size=60), DIGESTERS)
def test_bad_bytes_raise_nothing_but_a_wire_error(data: bytes, digester: Digester) -> None:
    for decode in (
        lambda: entry.decode_entry(memoryview(data), digester, 1, 0),
        lambda: entry.decode_lac(memoryview(data), digester, 1),
        lambda: entry.peek_ids(data),
        lambda: entry.peek_lac(data),
    ):
        try:
            decode()
        except WireError:
            continue


@given(I64, I64, DIGESTERS)
def test_a_lac_packet_comes_back(ledger_id: int, lac: int, digester: Digester) -> None:
    packet = memoryview(entry.encode_lac(ledger_id, lac, digester))
    assert entry.decode_lac(packet, digester, ledger_id) == lac
    with pytest.raises(MalformedError):
        entry.decode_lac(packet, digester, ledger_id ^ 1)
