"""The stored records of logs and cursors, byte by byte: `docs/formats/managed_ledger.md`.

If a test here fails, a format has changed: it needs a new version and new golden files.
"""

from pathlib import Path

import pytest

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor_ledger import (
    PART_BYTES_MAX,
    RANGES_MAX,
    Recovered,
    decode_change_1,
    encode_change,
    encode_change_1,
    encode_holes,
    encode_properties,
    encode_snapshot,
    folded,
    pointing,
    recover,
)
from daybook.managed_ledger.ledger_list import set_sealed
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import Change
from daybook.managed_ledger.protocol.holes import HoleCount
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records import (
    INDEX,
    INSTANCE,
    get_property,
    nested,
    parse,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.batch import broker_entry_metadata

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "managed_ledger_v1"
GOLDEN_2 = ROOT / "tests" / "golden" / "managed_ledger_v2"
DOCUMENT = ROOT / "docs" / "formats" / "managed_ledger.md"
LENGTHS = {17: 200, 18: 100}


def acked(runs: list[tuple[int, int, int]]) -> AckSet:
    made = AckSet()
    for ledger_id, first, last in runs:
        made.add_range(ledger_id, first, last)
    return made


def ledger_list() -> bytes:
    info = ManagedLedgerInfo()
    for ledger_id in (17, 18):
        info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
    set_sealed(info, SealedLedger(17, 200, 4096, 1_700_000_000_000, 1999))
    set_property(info, INDEX, "1999")
    return info.SerializeToString()


def list_with_instance() -> bytes:
    info = parse(ManagedLedgerInfo(), ledger_list(), "list")
    set_property(info, INSTANCE, "cd613e30-d8f1-4adf-91b7-584a2265b1f5")
    return info.SerializeToString()


def terminated_list() -> bytes:
    info = parse(ManagedLedgerInfo(), ledger_list(), "list")
    info.terminatedPosition.CopyFrom(nested(Position(18, 6)))
    return info.SerializeToString()


def cursor_pointer() -> bytes:
    return pointing(ManagedCursorInfo(), 19, Position(17, 41), {}).SerializeToString()


def cursor_folded() -> bytes:
    made = folded(ManagedCursorInfo(), Position(17, 41), [(17, 50, 59), (18, 0, 0)], {"a": 1})
    return made.SerializeToString()


def dense() -> AckSet:
    return acked([(17, 2 * n, 2 * n) for n in range(21, 21 + RANGES_MAX + 1)])


WRITTEN = {
    "ledger_list": ledger_list(),
    "ledger_list_with_instance": list_with_instance(),
    "ledger_list_terminated": terminated_list(),
    "cursor_pointer": cursor_pointer(),
    "cursor_folded": cursor_folded(),
    "snapshot": encode_snapshot(Position(17, 41), acked([(17, 50, 59)]), {"a": 1})[0],
    "snapshot_dense": encode_snapshot(Position(17, 40), dense(), {})[0],
    "change": encode_change_1(Change(Position(17, 41), ((17, 50, 59), (18, 0, 0)), reset=False)),
    "change_reset": encode_change_1(Change(Position(17, -1), (), reset=True)),
    "broker_entry_metadata": broker_entry_metadata(1_700_000_000_000, 1999),
}


HOLES = HoleCount(Position(17, 41), Position(18, 0), acked=11, messages=300, bytes=70_000)


def parts_2() -> list[bytes]:
    return encode_snapshot(
        Position(17, 41), acked([(17, 50, 59)]), {"a": 1}, version=2, whole_bytes_max=16
    )


WRITTEN_2 = {
    "change": encode_change(Change(Position(17, 41), ((17, 50, 59), (18, 0, 0)))),
    "change_properties": encode_change(
        Change(Position(17, 41), ((17, 50, 59), (18, 0, 0))), encode_properties({"a": 1})
    ),
    "change_reset": encode_change(Change(Position(17, -1), (), reset=True)),
    "part_0": parts_2()[0],
    "part_1": parts_2()[1],
    "change_holes": encode_change(
        Change(Position(17, 41), ((17, 50, 59), (18, 0, 0))), b"", encode_holes(HOLES)
    ),
    "snapshot_holes": encode_snapshot(
        Position(17, 41), acked([(17, 50, 59), (18, 0, 0)]), {}, holes=encode_holes(HOLES)
    )[0],
    "cursor_folded_holes": folded(
        ManagedCursorInfo(),
        Position(17, 41),
        [(17, 50, 59), (18, 0, 0)],
        {},
        encode_holes(HOLES),
    ).SerializeToString(),
}


@pytest.mark.parametrize("name", WRITTEN_2)
def test_what_is_written_in_version_2_is_what_was_always_written(name: str) -> None:
    golden = (GOLDEN_2 / f"{name}.hex").read_text().strip()
    assert WRITTEN_2[name].hex() == golden
    assert golden in DOCUMENT.read_text().replace(" ", "")


def golden_2(name: str) -> bytes:
    return bytes.fromhex((GOLDEN_2 / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", ["change", "change_properties"])
def test_changes_that_were_written_in_version_2_are_read(name: str) -> None:
    found = recover([golden("snapshot"), golden_2(name)], LENGTHS)
    assert found.mark_delete == Position(17, 41)
    assert list(found.acked.ranges()) == [(17, 50, 59), (18, 0, 0)]
    assert found.properties == ({"a": 1} if name == "change_properties" else {})
    assert found.old_records == 0
    found.apply(golden_2("change_reset"))
    assert (found.mark_delete, len(found.acked)) == (Position(17, -1), 0)


def test_counts_of_holes_that_were_written_are_read() -> None:
    assert recover([golden("snapshot"), golden_2("change_holes")], LENGTHS).holes == HOLES
    assert recover([golden_2("snapshot_holes")], LENGTHS).holes == HOLES
    state = Recovered(LENGTHS)
    state.start(parse(ManagedCursorInfo(), golden_2("cursor_folded_holes"), "cursor"))
    assert state.holes == HOLES


def test_parts_that_were_written_in_version_2_are_read() -> None:
    assert recover([golden_2("part_0")], LENGTHS).mark_delete is None
    found = recover([golden_2("part_0"), golden_2("part_1")], LENGTHS)
    assert list(found.acked.ranges()) == [(17, 50, 59)]
    assert found.properties == {"a": 1}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_was_always_written(name: str) -> None:
    assert WRITTEN[name].hex() == (GOLDEN / f"{name}.hex").read_text().strip()


@pytest.mark.parametrize("name", ["change", "change_reset", "snapshot", "broker_entry_metadata"])
def test_the_document_shows_the_golden_bytes(name: str) -> None:
    shown = DOCUMENT.read_text().replace(" ", "")
    assert (GOLDEN / f"{name}.hex").read_text().strip() in shown


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def test_what_was_written_is_read() -> None:
    listed = parse(ManagedLedgerInfo(), golden("ledger_list"), "list")
    assert [ledger.ledgerId for ledger in listed.ledgerInfo] == [17, 18]
    bound = parse(ManagedLedgerInfo(), golden("ledger_list_with_instance"), "list")
    assert get_property(bound.properties, INSTANCE) == "cd613e30-d8f1-4adf-91b7-584a2265b1f5"
    assert get_property(bound.properties, INDEX) == "1999"
    ended = parse(ManagedLedgerInfo(), golden("ledger_list_terminated"), "list").terminatedPosition
    assert (ended.ledgerId, ended.entryId) == (18, 6)
    assert decode_change_1(golden("change")) == Change(
        Position(17, 41), ((17, 50, 59), (18, 0, 0)), reset=False
    )
    found = recover([golden("snapshot"), golden("change")], LENGTHS)
    assert found.mark_delete == Position(17, 41)
    assert list(found.acked.ranges()) == [(17, 50, 59), (18, 0, 0)]
    assert found.properties == {"a": 1}
    many = recover([golden("snapshot_dense")], {17: 1000})
    assert list(many.acked.ranges()) == list(dense().ranges())


def test_a_list_that_a_pulsar_broker_compressed_is_read() -> None:
    listed = parse(ManagedLedgerInfo(), golden("ledger_list_compressed"), "list")
    assert [ledger.ledgerId for ledger in listed.ledgerInfo] == [17, 18]
    assert get_property(listed.properties, INDEX) == "1999"


def test_cursors_that_were_written_are_read() -> None:
    pointer = parse(ManagedCursorInfo(), golden("cursor_pointer"), "cursor")
    assert (pointer.cursorsLedgerId, pointer.markDeleteLedgerId) == (19, 17)
    state = parse(ManagedCursorInfo(), golden("cursor_folded"), "cursor")
    assert (state.cursorsLedgerId, state.markDeleteEntryId) == (-1, 41)
    assert len(state.individualDeletedMessages) == 2


def test_a_snapshot_that_is_too_large_for_an_entry_comes_in_numbered_parts() -> None:
    long_name = "p" * (PART_BYTES_MAX + 10)
    parts = encode_snapshot(Position(17, 41), AckSet(), {long_name: 1}, version=1)
    assert [part[:5] for part in parts] == [b"\0\1\2\0\2", b"\0\1\2\1\2"]
    assert recover(parts, LENGTHS).properties == {long_name: 1}
