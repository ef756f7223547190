"""`daybook cluster`, and the warnings of other commands about ledgers without topics."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest
import trio

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.registry.instance import PATH, InstanceRecord
from daybook.bookie.registry.layout import ensure_layout, read_instance_id
from daybook.bookie.registry.paths import LedgerPaths
from daybook.managed_ledger.binding import bind
from daybook.managed_ledger.errors import ForeignListsError
from daybook.managed_ledger.records import (
    INSTANCE,
    custom_metadata,
    get_property,
    log_path,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.metadata.store import ANY, MetadataStore
from tests.clients.cli.conftest import Daybook

ONE, OTHER = LedgerPaths(), LedgerPaths("/other")
A, B = "t/n/persistent/a", "t/n/persistent/b"
GUARD = "/daybook/guards/b1"


async def ledger(store: MetadataStore, paths: LedgerPaths, log: str) -> int:
    metadata = LedgerMetadata(
        quorums=Quorums(1, 1, 1),
        fragments=(Fragment(0, (BookieId("b1"),)),),
        custom=custom_metadata(log),
    ).closed_at(0, 1)
    async with trio.open_nursery() as nursery:
        ledger_id, _ = await LedgerMetadataStore(store, paths, Random(1)).create(metadata, nursery)
    return ledger_id


async def topic(store: MetadataStore, name: str, ledger_id: int, instance: str = "") -> None:
    info = ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=ledger_id, entries=1, size=1, timestamp=1)
    if instance:
        set_property(info, INSTANCE, instance)
    await store.create(log_path(name), info.SerializeToString(), make_parents=True)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemorySession:
    """Two roots; the topic `a` is kept in /ledgers, and its id is that of `b`'s in /other."""
    session = MemoryStore(SystemClock()).session("cli")

    async def fill() -> None:
        await ensure_layout(session, ONE, Random(1))
        await ensure_layout(session, OTHER, Random(2))
        await topic(session, A, await ledger(session, ONE, A))
        await ledger(session, OTHER, B)

    @asynccontextmanager
    async def open_memory(_: str, **__: object) -> AsyncGenerator[MetadataStore]:
        yield session

    trio.run(fill)
    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", open_memory)
    return session


def instance(store: MetadataStore, paths: LedgerPaths) -> str:
    return trio.run(read_instance_id, store, paths)


def bound(store: MetadataStore) -> str | None:
    record = trio.run(store.get, PATH)
    if record is None:
        return None
    return msgspec.json.decode(record.value, type=InstanceRecord).instance_id


def named(store: MetadataStore, name: str) -> str | None:
    record = trio.run(store.get, log_path(name))
    assert record is not None
    return get_property(ManagedLedgerInfo.FromString(record.value).properties, INSTANCE)


def test_bind_says_once_where_topics_are(store: MemorySession, daybook: Daybook) -> None:
    assert daybook("cluster", "show")[0] == 3
    code, out, _ = daybook("cluster", "bind")
    assert (code, bound(store)) == (0, instance(store, ONE))
    assert instance(store, ONE) in out
    assert "already" in daybook("cluster", "bind")[1]
    code, _, err = daybook("cluster", "bind", "--ledgers-root", "/other", "--yes")
    assert code == 1
    assert "rebind" in err
    code, out, _ = daybook("cluster", "show", "--output", "json")
    assert code == 0
    assert json.loads(out)["topics_in"] == json.loads(out)["instance"] == bound(store)
    assert daybook("cluster", "show", "--ledgers-root", "/other")[0] == 3


def test_bind_shows_the_lists_that_do_not_fit(store: MemorySession, daybook: Daybook) -> None:
    with pytest.raises(ForeignListsError, match="cluster bind --ledgers-root /other"):
        trio.run(bind, store, OTHER, Random(1), "here")
    code, _, err = daybook("cluster", "bind", "--ledgers-root", "/other")
    assert (code, bound(store)) == (1, None)
    assert "will not open. Continue? Nothing was changed" in err
    assert f"{A}: its ledger 0 belongs to {B} there" in err
    assert daybook("cluster", "bind", "--ledgers-root", "/other", "--yes")[0] == 0
    assert bound(store) == instance(store, OTHER)
    code, _, err = daybook("cluster", "bind", "--ledgers-root", "/nowhere")
    assert code == 1
    assert "no ledgers below /nowhere" in err


def test_rebind_after_a_restore(store: MemorySession, daybook: Daybook) -> None:
    """Give the same ledgers a new INSTANCEID."""

    async def restored() -> None:
        await topic(store, B, await ledger(store, ONE, B), "gone")
        await topic(store, "t/n/persistent/empty", await ledger(store, ONE, "t/n/x"), "gone")
        info = ManagedLedgerInfo()
        set_property(info, INSTANCE, "gone")
        await store.set(log_path("t/n/persistent/empty"), info.SerializeToString(), ANY)
        value = msgspec.json.encode(InstanceRecord("gone"))
        await store.create(PATH, value, make_parents=True)
        await store.create(GUARD, b'{"brokerId":"b1:8080","instance":"gone"}', make_parents=True)

    trio.run(restored)
    code, _, err = daybook("cluster", "rebind", "--yes")
    assert (code, bound(store)) == (1, "gone")
    assert "b1:8080" in err
    trio.run(store.delete, GUARD, ANY)
    code, _, err = daybook("cluster", "rebind", "--yes", "--ledgers-root", "/other")
    assert (code, bound(store), named(store, B)) == (1, "gone", "gone")
    assert "nothing was changed" in err
    code, out, _ = daybook("cluster", "rebind", "--yes")
    assert code == 0
    assert bound(store) == named(store, B) == instance(store, ONE)
    assert named(store, "t/n/persistent/empty") == bound(store)
    assert named(store, A) is None  # It is judged by its ledgers until it is written.
    assert "Lists changed: 2" in out


def test_what_reads_warns_and_what_writes_refuses(store: MemorySession, daybook: Daybook) -> None:
    assert daybook("cluster", "bind")[0] == 0
    code, _, err = daybook("ledgers", "list", "--ledgers-root", "/other")
    assert code == 0
    assert "Warning" in err
    assert "Warning" not in daybook("ledgers", "list")[2]
    writing: list[tuple[str, ...]] = [
        ("ledgers", "delete", "0", "--yes", "--force"),
        ("ledgers", "recover", "0"),
        ("ledgers", "check", "0", "--mend"),
        ("bookies", "decommission", "b1", "--no-wait"),
        ("bookies", "recommission", "b1"),
        ("bookies", "read-only", "b1"),
        ("bookies", "replace-disk", "b1", "--no-wait"),
        ("autorecovery", "pause"),
        ("autorecovery", "resume"),
        ("autorecovery", "trigger"),
    ]
    for words in writing:
        code, _, err = daybook(*words, "--ledgers-root", "/other")
        assert code == 1, words
        assert "Nothing was changed" in err, words
        assert instance(store, OTHER) in err
        assert "--other-instance" in err
    assert trio.run(store.get, OTHER.ledger(0)) is not None
    meant = (*writing[0], "--other-instance")
    assert daybook(*meant, "--ledgers-root", "/other")[0] == 0
    assert trio.run(store.get, OTHER.ledger(0)) is None
    assert trio.run(store.get, ONE.ledger(0)) is not None
