"""`daybook ledgers` on a metadata store in memory, with a scripted reader."""

import json
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from daybook.bookie.errors import NoSuchEntryError
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients.cli.ledgers import Description, describe
from daybook.wire.batch import broker_entry_metadata, encode_batch, encode_payload
from daybook.wire.clock import SystemClock
from daybook.wire.compression import CompressionType, compress
from daybook.wire.entry import Entry
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.cli.conftest import Daybook

PATHS = LedgerPaths()
LOG = {"application": b"pulsar", "pulsar/managed-ledger": b"public/default/persistent/t"}


def fragment(first: int, *names: str) -> Fragment:
    return Fragment(first, tuple(map(BookieId, names)))


def message(index: int, count: int, *, kind: CompressionType = CompressionType.NONE) -> bytes:
    """An entry of a topic's log, with a batch of `count`."""
    body = encode_batch((pb.SingleMessageMetadata(), b"m%d" % n) for n in range(count))
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=5,
        num_messages_in_batch=count,
        compression=pb.CompressionType.Name(int(kind)),
        uncompressed_size=len(body),
    )
    return broker_entry_metadata(1, index) + encode_payload(metadata, compress(kind, body))


ENTRIES = [message(0, 1), message(2, 2, kind=CompressionType.ZSTD), b"\x00nonsense"]
LENGTH = sum(map(len, ENTRIES))


async def fill(store: MetadataStore) -> None:
    """Ledger 0 belongs to a topic and is closed, 1 to a cursor and is open, 2 to no topic."""
    await ensure_layout(store, PATHS, Random(1))
    catalog = LedgerMetadataStore(store, PATHS, Random(1))
    first = LedgerMetadata(
        quorums=Quorums(3, 3, 2),
        fragments=(fragment(0, "b1", "b2", "b3"), fragment(2, "b1", "b4", "b3")),
        custom=LOG,
        created_ms=1_700_000_000_000,
        keeps_created=True,
    ).closed_at(2, LENGTH)
    cursor = LedgerMetadata(
        quorums=Quorums(2, 2, 2),
        fragments=(fragment(0, "b1", "b2"),),
        custom={**LOG, "pulsar/cursor": b"billing"},
    )
    plain = LedgerMetadata(
        quorums=Quorums(1, 1, 1), fragments=(fragment(0, "b1"),), custom={"state": b"mine"}
    )
    async with trio.open_nursery() as nursery:
        for metadata in (first, cursor, plain):
            await catalog.create(metadata, nursery)


class FakeReader:
    """A reader that returns two entries at a time."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.metadata = LedgerMetadata(
            quorums=Quorums(1, 1, 1), fragments=(fragment(0, "b1"),), custom=LOG
        )
        self.last_add_confirmed = len(ENTRIES) - 1
        self.closed = True

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        assert max_bytes > 0
        await trio.lowlevel.checkpoint()
        if first >= len(ENTRIES):
            raise NoSuchEntryError(self.ledger_id, first)
        wanted = range(first, min(last, first + 1) + 1)
        return [Entry(0, n, n - 1, 100 * n, memoryview(ENTRIES[n])) for n in wanted]


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeClient:
        async def open(self, ledger_id: int, *, recover: bool, password: bytes) -> FakeReader:
            assert not recover, "looking must not fence"
            assert password == b""
            await trio.lowlevel.checkpoint()
            return FakeReader(ledger_id)

    @asynccontextmanager
    async def open_memory(hosts: str, **_: object) -> AsyncGenerator[MetadataStore]:
        assert hosts == "127.0.0.1:2181"
        store = MemoryStore(SystemClock()).session("cli")
        await fill(store)
        yield store

    @asynccontextmanager
    async def open_client(**_: object) -> AsyncGenerator[FakeClient]:
        yield FakeClient()

    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", open_memory)
    monkeypatch.setattr("daybook.clients.cli.ledger_client.open_ledger_client", open_client)


def found(daybook: Daybook, *arguments: str) -> Any:
    code, out, _ = daybook("ledgers", *arguments, "--output", "json")
    assert code == 0
    return json.loads(out)


def test_list_says_what_each_is_for(daybook: Daybook) -> None:
    first, cursor, plain = found(daybook, "list")
    assert first == {
        "ledger": 0,
        "state": "CLOSED",
        "entries": 3,
        "bytes": LENGTH,
        "quorums": "3/3/2",
        "created": "2023-11-14T22:13:20+00:00",
        "holds": "public/default/persistent/t",
    }
    assert (cursor["state"], cursor["entries"]) == ("OPEN", None)
    assert cursor["holds"] == "public/default/persistent/t cursor billing"
    assert plain["holds"] is None
    assert len(daybook("ledgers", "list")[1].splitlines()) == 4


def test_show_names_the_bookies(daybook: Daybook) -> None:
    shown = found(daybook, "show", "0")
    assert shown["fragments"] == [
        {"first_entry": 0, "bookies": ["b1", "b2", "b3"]},
        {"first_entry": 2, "bookies": ["b1", "b4", "b3"]},
    ]
    assert shown["custom"]["application"] == "pulsar"
    lines = daybook("ledgers", "show", "0")[1].splitlines()
    assert lines[-1].split() == ["2", "b1", "b4", "b3"]


def test_custom_metadata_hide_no_field(daybook: Daybook) -> None:
    code, out, _ = daybook("ledgers", "show", "2")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert ["state", "OPEN"] in lines
    assert ["custom", "state", "mine"] in lines


def test_read_shows_every_entry(daybook: Daybook) -> None:
    code, out, _ = daybook("ledgers", "read", "0")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[0] == ["entry", "bytes", "messages", "offset", "data"]
    assert rows[1] == ["0", str(len(ENTRIES[0])), "1", "0", "m0"]
    assert rows[2] == ["1", str(len(ENTRIES[1])), "2", "1", "m0"]
    assert rows[3] == ["2", "9", "-", "-", "\\x00nonsense"]


def test_read_takes_a_range_and_gives_payloads(daybook: Daybook) -> None:
    _, out, _ = daybook("ledgers", "read", "0", "--from", "1", "--to", "7", "--output", "json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert [entry["entry"] for entry in entries] == [1, 2]
    assert b64decode(entries[0]["payload"]) == ENTRIES[1]
    assert (entries[0]["lac"], entries[0]["publish_time_ms"]) == (0, 5)
    _, out, _ = daybook("ledgers", "read", "0", "--to", "0", "--output", "json")
    assert json.loads(out)["entry"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["show", "99"], 1, "ledger 99 does not exist"),
        (["read", "99"], 1, "ledger 99 does not exist"),
        (["read", "0", "--from", "3"], 1, "ledger 0 has no entry 3: the last one is 2"),
        (["read", "0", "--from", "2", "--to", "1"], 2, "before --from"),
        (["show", "-1"], 2, "-1"),
        (["list", "--root", "/elsewhere"], 1, "--ledgers-root"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(
    daybook: Daybook, arguments: list[str], code: int, sentence: str
) -> None:
    ended, out, err = daybook("ledgers", *arguments)
    assert (ended, out) == (code, "")
    assert sentence in err


@pytest.mark.parametrize("payload", [b"", b"\x0e\x02", b"\x0e\x02\x00\x00", bytes(100), b"x" * 50])
def test_what_does_not_parse_is_not_described(payload: bytes) -> None:
    assert describe(memoryview(payload)) == Description()


def test_a_single_message_is_described() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=5)
    assert describe(memoryview(encode_payload(metadata, b"one"))) == Description(1, None, 5, b"one")
