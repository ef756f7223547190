"""The metadata record of a ledger: golden bytes, other versions, contradictions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.errors import MalformedMetadataError
from daybook.bookie.ledger.metadata import (
    LedgerMetadata,
    LedgerState,
    decode_metadata,
    encode_metadata,
)
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.wire.digest import DigestType


def ensemble(*names: str) -> tuple[BookieId, ...]:
    return tuple(map(BookieId, names))


CLOSED = LedgerMetadata(
    quorums=Quorums(2, 2, 1),
    fragments=(
        Fragment(0, ensemble("b1:3181", "b2:3181")),
        Fragment(7, ensemble("b1:3181", "b3:3181")),
    ),
    state=LedgerState.CLOSED,
    last_entry_id=9,
    length=1000,
    digest_type=DigestType.CRC32C,
    password=b"pw",
    custom={"application": b"daybook"},
    creator_token=5,
)
OPEN = replace(
    CLOSED, state=LedgerState.OPEN, last_entry_id=-1, length=0, fragments=CLOSED.fragments[:1]
)

# Written by hand from the field numbers of bookkeeper.md 6.3, one field a line.
GOLDEN_CLOSED = b"BookieMetadataFormatVersion\t3\n" + bytes.fromhex(
    "59"  # 89 bytes follow
    "0802"  # write quorum 2
    "1002"  # ensemble size 2
    "18e807"  # length 1000
    "2009"  # last entry 9
    "2803"  # CLOSED
    "3214 0a0762313a33313831 0a0762323a33313831 1000"  # from 0: b1:3181 b2:3181
    "3214 0a0762313a33313831 0a0762333a33313831 1007"  # from 7: b1:3181 b3:3181
    "3803"  # CRC32C
    "42027077"  # the password
    "4801"  # ack quorum 1
    "5a16 0a0b6170706c69636174696f6e 1207646179626f6f6b"  # application=daybook
    "6005"  # the creator's token
)
GOLDEN_OPEN = b"BookieMetadataFormatVersion\t3\n" + bytes.fromhex(
    "4b"
    "0802"
    "1002"
    "1800"
    "20ffffffffffffffffff01"  # -1 as long as the ledger is not closed
    "2801"
    "3214 0a0762313a33313831 0a0762323a33313831 1000"
    "3803"
    "42027077"
    "4801"
    "5a16 0a0b6170706c69636174696f6e 1207646179626f6f6b"
    "6005"
)
TEXT_V1 = b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\tb1:1\tb2:1\tb3:1\n4\tb1:1\tb4:1\tb3:1"
TEXT_V2 = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 2
length: 0
lastEntryId: -1
state: IN_RECOVERY
segment {
  ensembleMember: "b1:1"
  ensembleMember: "b2:1"
  firstEntryId: 0
}
digestType: HMAC
password: "\\001x"
ackQuorumSize: 2
customMetadata {
  key: "k"
  value: "\\377"
}
"""


@pytest.mark.parametrize(
    ("metadata", "record"), [(CLOSED, GOLDEN_CLOSED), (OPEN, GOLDEN_OPEN)], ids=["closed", "open"]
)
def test_golden_records(metadata: LedgerMetadata, record: bytes) -> None:
    assert encode_metadata(metadata).hex() == record.hex()
    assert decode_metadata(record) == metadata


def test_version_1_is_read_and_written() -> None:
    metadata = decode_metadata(TEXT_V1)
    assert metadata.quorums == Quorums(3, 2, 2)
    assert metadata.state is LedgerState.OPEN
    assert metadata.fragments[1] == Fragment(4, ensemble("b1:1", "b4:1", "b3:1"))
    assert (metadata.digest_type, metadata.password) == (None, None)
    assert encode_metadata(metadata) == TEXT_V1
    in_recovery = metadata.in_recovery()
    assert encode_metadata(in_recovery) == TEXT_V1 + b"\n-102\tCLOSED"
    assert decode_metadata(encode_metadata(in_recovery)) == in_recovery
    closed = in_recovery.closed_at(5, 60)
    assert decode_metadata(encode_metadata(closed)) == closed


def test_version_2_is_read_and_written() -> None:
    metadata = decode_metadata(TEXT_V2)
    assert metadata.state is LedgerState.IN_RECOVERY
    assert metadata.digest_type is DigestType.HMAC
    assert metadata.password == b"\x01x"
    assert metadata.custom == {"k": b"\xff"}
    assert encode_metadata(metadata) == TEXT_V2
    closed = metadata.closed_at(-1, 0)
    assert decode_metadata(encode_metadata(closed)) == closed


def test_the_creation_time_is_that_of_the_store_unless_the_record_says_it() -> None:
    assert decode_metadata(GOLDEN_OPEN, created_ms=77).created_ms == 77
    assert b"ctime" not in encode_metadata(decode_metadata(TEXT_V2, created_ms=77))
    said = replace(OPEN, created_ms=5, keeps_created=True)
    assert decode_metadata(encode_metadata(said), created_ms=77) == said


def test_an_old_ledger_without_ack_quorum_needs_its_write_quorum() -> None:
    text = TEXT_V2.replace(b"ackQuorumSize: 2\n", b"")
    assert decode_metadata(text).quorums == Quorums(2, 2, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "does not begin as the metadata"),
        (b"BookieMetadataFormatVersion\t4\nx", "version"),
        (b"BookieMetadataFormatVersion\t33333333333\nx", "does not begin as the metadata"),
        (GOLDEN_OPEN[:-1], "are cut off"),
        (TEXT_V2.replace(b"OPEN", b"?").replace(b"IN_RECOVERY", b"HALF_OPEN"), "parse"),
        (TEXT_V2.replace(b"firstEntryId: 0", b"firstEntryId: 1"), "entry 0"),
        (TEXT_V2.replace(b"ensembleSize: 2", b"ensembleSize: 3"), "bookies"),
        (TEXT_V2.replace(b"b2:1", b"b1:1"), "twice"),
        (TEXT_V2.replace(b"ackQuorumSize: 2", b"ackQuorumSize: 3"), "quorums"),
        (TEXT_V2.replace(b"lastEntryId: -1\nstate: IN_RECOVERY", b"state: CLOSED"), "end"),
        (TEXT_V1.replace(b"\n4\t", b"\n0\t"), "one after another"),
        (TEXT_V1 + b"\n5\tCLOSED\n6\tb1:1\tb4:1\tb5:1".replace(b"6", b"x"), "parse"),
    ],
)
def test_records_that_contradict_themselves_are_refused(text: bytes, problem: str) -> None:
    with pytest.raises(MalformedMetadataError, match=problem):
        decode_metadata(text)


def test_a_fragment_may_start_behind_the_end() -> None:
    metadata = replace(CLOSED, last_entry_id=3)
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_transitions() -> None:
    changed = OPEN.with_ensemble(Fragment(3, ensemble("b1:3181", "b4:3181")))
    assert changed.ensemble_at(2) == ensemble("b1:3181", "b2:3181")
    assert changed.ensemble_at(3) == ensemble("b1:3181", "b4:3181")
    again = changed.with_ensemble(Fragment(3, ensemble("b1:3181", "b5:3181")))
    assert len(again.fragments) == 2
    recovering = again.in_recovery()
    end = recovering.closed_at(4, 50, (Fragment(4, ensemble("b6:3181", "b5:3181")),))
    assert (end.last_entry_id, end.length, len(end.fragments)) == (4, 50, 3)
    assert end.closed
    with pytest.raises(AssertionError):
        end.in_recovery()
    with pytest.raises(AssertionError):
        end.closed_at(4, 50)
    with pytest.raises(AssertionError):
        recovering.in_recovery()
    with pytest.raises(AssertionError):
        recovering.with_ensemble(Fragment(9, ensemble("x", "y")))


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_in_one_way(data: bytes) -> None:
    for text in (data, b"BookieMetadataFormatVersion\t3\n" + data):
        try:
            metadata = decode_metadata(text)
        except MalformedMetadataError:
            continue
        assert decode_metadata(encode_metadata(metadata)) == metadata


@given(st.integers(0, len(GOLDEN_CLOSED) - 1), st.integers(0, 255))
def test_damaged_records_are_refused_or_read_as_something_valid(at: int, byte: int) -> None:
    damaged = bytearray(GOLDEN_CLOSED)
    damaged[at] = byte
    try:
        decode_metadata(bytes(damaged))
    except MalformedMetadataError:
        return
