"""Pulsar's formats in the metadata store."""

from contextlib import suppress

import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.ledger_list import sealed_ledger, set_sealed, stored_offset
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records import (
    cursor_path,
    custom_metadata,
    log_path,
    message_ranges,
    owner_of,
    parse,
    set_property,
)
from daybook.managed_ledger.records_pb2 import CompressedInfo, ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.compression import CompressionType, compress


def info_of(value: bytes) -> ManagedLedgerInfo:
    return parse(ManagedLedgerInfo(), value, "it")


def unknown(message: Message) -> list[int]:
    fields = UnknownFieldSet(message)
    return [fields[i].field_number for i in range(len(fields))]


def test_golden_list() -> None:
    info = ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=5, timestamp=0)
    set_sealed(info, SealedLedger(5, 3, 300, 1000, last_offset=7))
    info.ledgerInfo.add(ledgerId=9, timestamp=0)
    set_property(info, "index", "7")
    sealed = "0805" + "1003" + "18ac02" + "20e807" + "3211" + "0a0c" + b"daybook.last".hex()
    sealed += "120137"
    assert info.SerializeToString().hex() == (
        "0a1d" + sealed + "0a04" + "0809" + "2000" + "1a0a" + "0a05" + b"index".hex() + "120137"
    )


def test_golden_cursor() -> None:
    info = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=-1)
    info.individualDeletedMessages.extend(message_ranges([(3, 5, 7)]))
    assert info.SerializeToString().hex() == (
        "08ffffffffffffffffff01"
        + "1003"
        + "18ffffffffffffffffff01"
        + "220c0a0408031004120408031007"
    )


def test_an_empty_value_is_an_empty_list() -> None:
    assert not info_of(b"").ledgerInfo


def test_unknown_fields_and_offload_state_stay() -> None:
    value = bytes.fromhex("0a0a" + "0805" + "2000" + "2a02" + "0807" + "5801") + bytes.fromhex(
        "f80105"
    )
    info = info_of(value)
    set_sealed(info, SealedLedger(5, 3, 300, 1000))
    again = info_of(info.SerializeToString())
    assert again.ledgerInfo[0].offloadContext.uidMsb == 7
    assert unknown(again) == [31]
    assert unknown(again.ledgerInfo[0]) == [11]


@pytest.mark.parametrize("kind", list(CompressionType))
def test_compressed_values_are_read(kind: CompressionType) -> None:
    info = ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=5)
    plain = info.SerializeToString() * 1
    head = CompressedInfo(compressionType=kind, uncompressedSize=len(plain)).SerializeToString()
    value = b"\x47\x78" + len(head).to_bytes(4, "big") + head + bytes(compress(kind, plain))
    assert info_of(value).ledgerInfo[0].ledgerId == 5


@given(st.sampled_from([b"", b"\x47\x78\0\0\0\4\x08\1\x10\5", b"\x47\x78"]), st.binary(max_size=40))
def test_garbage_is_corrupt(head: bytes, rest: bytes) -> None:
    with suppress(LogCorruptError):
        parse(ManagedLedgerInfo(), head + rest, "it")
    with suppress(LogCorruptError):
        parse(ManagedCursorInfo(), head + rest, "it")


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "९", "9" * 30])
def test_a_next_offset_that_is_none_is_corrupt(text: str) -> None:
    info = ManagedLedgerInfo()
    set_property(info, "index", text)
    with pytest.raises(LogCorruptError, match="index"):
        stored_offset(info, "it")


def test_a_sealed_ledger_without_a_time_was_closed_now() -> None:
    info = ManagedLedgerInfo()
    ledger = info.ledgerInfo.add(ledgerId=5, entries=3, size=300)
    assert sealed_ledger(ledger, 77) == SealedLedger(5, 3, 300, 77)


@pytest.mark.parametrize("value", [b"\x0a\0", b"\x0a\2\x10\5"])
def test_a_ledger_without_its_id_is_corrupt(value: bytes) -> None:
    with pytest.raises(LogCorruptError):
        info_of(value)


def test_names() -> None:
    assert log_path("t/n/persistent/a") == "/managed-ledgers/t/n/persistent/a"
    assert cursor_path("t/n/persistent/a", "s/1 é") == (
        "/managed-ledgers/t/n/persistent/a/s%2F1+%C3%A9"
    )


def test_whose_a_ledger_is() -> None:
    assert owner_of(custom_metadata("t/n/persistent/a")) == ("t/n/persistent/a", None)
    assert owner_of(custom_metadata("l", "s/1")) == ("l", "s%2F1")
    assert owner_of({}) is None
    assert owner_of({**custom_metadata("l"), "component": b"schema"}) is None
    assert owner_of({**custom_metadata("l"), "application": b"other"}) is None
    assert owner_of({**custom_metadata("l"), "pulsar/managed-ledger": b"\xff"}) is None
