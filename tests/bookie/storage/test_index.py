"""The index store contract on all three stores; blocks and the write cache against plain dicts."""

import random
from array import array
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.storage.index import (
    Checkpoint,
    IndexStore,
    MemoryIndexes,
    block_key,
    block_keys,
    checkpoint_key,
    ledger_key,
    ledger_of_key,
    open_rocks_index,
)
from daybook.bookie.storage.ledger_state import LedgerState, decode_row, encode_row
from daybook.bookie.storage.records import UnsupportedVersionError
from daybook.bookie.storage.write_cache import BLOCK_ENTRIES, Block, WriteCache
from tests.harness.disk import Platter


@pytest.fixture(params=["memory", "rocksdb", "simulated"])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[IndexStore]:
    match request.param:
        case "memory":
            opened = MemoryIndexes().open("index")
        case "rocksdb":
            opened = open_rocks_index(str(tmp_path / "index"))
        case _:
            opened = Platter(random.Random(1)).indexes().open("index")
    async with opened as store:
        yield store


async def test_what_was_written_is_there(index: IndexStore) -> None:
    assert await index.get(b"a") is None
    await index.write({b"b": b"2", b"a": b"1"}, [])
    await index.write({b"c": b"3", b"a": b""}, [b"b", b"nothing"])
    assert await index.get(b"a") == b""
    assert await index.get(b"b") is None
    assert await index.get(b"c") == b"3"
    assert await index.get_many([b"c", b"b", b"a", b"c"]) == [b"3", None, b"", b"3"]
    assert await index.get_many([]) == []


async def test_a_scan_is_ordered_half_open_and_limited(index: IndexStore) -> None:
    keys = [ledger_key(1), ledger_key(2), ledger_key(256), ledger_key(2**62), checkpoint_key()]
    keys += [block_key(2, 0), block_key(2, 300), block_key(3, 0)]
    await index.write(dict.fromkeys(keys, b"x"), [])
    assert [ledger_of_key(key) for key, _ in await index.scan(b"l", b"m", 10)] == [
        1,
        2,
        256,
        2**62,
    ]
    assert [key for key, _ in await index.scan(ledger_key(2), ledger_key(256), 10)] == [keys[1]]
    assert len(await index.scan(b"l", b"m", 3)) == 3
    first, end = block_keys(2)
    assert [key for key, _ in await index.scan(first, end, 9)] == [keys[5], keys[6]]


async def test_a_key_that_is_deleted_and_put_in_one_batch_is_there(index: IndexStore) -> None:
    await index.write({b"a": b"1"}, [])
    await index.write({b"a": b"2"}, [b"a"])
    assert await index.get(b"a") == b"2"


async def test_rocksdb_keeps_its_batches_and_admits_one_process(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    async with open_rocks_index(path) as index:
        await index.write({b"a": b"1"}, [])
        with pytest.raises(OSError, match="cannot open"):
            async with open_rocks_index(path):
                pass
    async with open_rocks_index(path) as index:
        assert await index.get(b"a") == b"1"


async def test_a_damaged_rocksdb_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "index"
    async with open_rocks_index(str(path)) as index:
        await index.write({b"a": b"1"}, [])
    (path / "CURRENT").write_bytes(b"nonsense\n")
    with pytest.raises(OSError, match="cannot open"):
        async with open_rocks_index(str(path)):
            pass


def test_a_checkpoint_survives_its_encoding_and_newer_ones_are_refused() -> None:
    checkpoint = Checkpoint(1 << 50, limbo=True)
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    with pytest.raises(UnsupportedVersionError):
        Checkpoint.decode(b"\x02" + checkpoint.encode()[1:])


@pytest.mark.parametrize(
    "state",
    [
        LedgerState(5),
        LedgerState(5, master_key=b"key", fenced=True, last_entry=9, accepted_lac=8, lac=8),
        LedgerState(2**60, master_key=b"", explicit_lac=7, explicit_body=b"body", deleted=True),
        LedgerState(6, master_key=b"key", fenced=True, limbo=True),
    ],
)
def test_a_row_survives_its_encoding(state: LedgerState) -> None:
    row = encode_row(state)
    again = decode_row(state.ledger_id, row)
    assert encode_row(again) == row
    for name in ("master_key", "fenced", "limbo", "deleted", "last_entry", "explicit_body"):
        assert getattr(again, name) == getattr(state, name)
    assert again.lac == max(state.lac, state.explicit_lac)
    with pytest.raises(UnsupportedVersionError):
        decode_row(5, b"\x04" + row[1:])


ids = st.integers(0, 3 * BLOCK_ENTRIES)


@given(st.lists(ids), st.lists(ids), st.lists(ids))
def test_places_are_found_in_whatever_order_they_came(
    older: list[int], newer: list[int], asked: list[int]
) -> None:
    """The entries come over two checkpoints; the first location of an id counts."""
    model: dict[int, tuple[int, int]] = {}
    stored: dict[int, bytes] = {}
    for number, batch in enumerate((older, newer)):
        recent = WriteCache()
        for order, entry_id in enumerate(batch):
            place = (1000 * number + order, order)
            recent.add(entry_id, *place)
            model.setdefault(entry_id, place)
            assert recent.find(entry_id) is not None
        for block_number, block in recent.blocks():
            old = stored.get(block_number)
            merged = Block.decode(old).merge(block) if old else block
            stored[block_number] = merged.encode()
    for entry_id in (*older, *newer, *asked):
        data = stored.get(entry_id // BLOCK_ENTRIES)
        found = Block.decode(data).find(entry_id) if data else None
        assert found == model.get(entry_id)


def test_a_block_takes_thirteen_bytes_an_entry() -> None:
    block = Block(bytes(range(256)), array("Q", range(256)), array("I", range(256)))
    assert len(block.encode()) == 2 + 13 * 256
