"""Bookies register, become read-only and leave; the values are as other clients read them."""

import random
from contextlib import suppress

import pytest
import trio
import trio.testing
from trio.abc import Clock

from daybook.bookie.errors import BookieIdTakenError, MalformedRecordError
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import (
    BookieInfo,
    bookie_info,
    readonly_bookies,
    register_bookie,
    unregister_bookie,
    writable_bookies,
)
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat

PATHS = LedgerPaths()
INFO = BookieInfo("b1", "10.0.0.1", 3181)


def test_registration_value() -> None:
    info = BookieInfo("b1", "h", 5, {"k": "v"}, http_port=8)
    assert info.encode().hex() == (
        "32190a06626f6f6b696510051a0168220a626f6f6b69652d727063"  # endpoint bookie, h:5
        "32170a0a6874747073657276657210081a01682204" + b"http".hex() + "3a060a016b120176"
    )
    assert BookieInfo.decode("b1", info.encode()) == info


def test_without_an_endpoint_the_id_is_the_address() -> None:
    assert BookieInfo.decode("10.1.2.3:3181", b"") == BookieInfo("10.1.2.3:3181", "10.1.2.3", 3181)
    for bad in ("b1", ":5", "b:x", "b:70000"):
        with pytest.raises(MalformedRecordError):
            BookieInfo.decode(bad, b"")
    with pytest.raises(MalformedRecordError):
        BookieInfo.decode("b1", b"\xff")


async def test_a_bookie_registers_changes_to_read_only_and_leaves(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(store, PATHS, INFO)
    await register_bookie(store, PATHS, INFO)
    assert await writable_bookies(store, PATHS) == ["b1"]
    assert await bookie_info(store, PATHS, "b1") == INFO
    await register_bookie(store, PATHS, INFO, read_only=True)
    assert await writable_bookies(store, PATHS) == []
    assert await readonly_bookies(store, PATHS) == ["b1"]
    assert await bookie_info(store, PATHS, "b1") == INFO
    moved = BookieInfo("b1", "10.0.0.2", 3182)
    await register_bookie(store, PATHS, moved)
    assert await readonly_bookies(store, PATHS) == []
    assert await bookie_info(store, PATHS, "b1") == moved
    await unregister_bookie(store, PATHS, "b1")
    await unregister_bookie(store, PATHS, "b1")
    assert await writable_bookies(store, PATHS) == []
    assert await bookie_info(store, PATHS, "b1") is None


async def test_a_registration_goes_with_the_session(ensemble: MemoryStore) -> None:
    store, other = ensemble.session("me"), ensemble.session("other")
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(store, PATHS, INFO)
    gone = trio.Event()
    assert await writable_bookies(other, PATHS, gone.set) == ["b1"]
    ensemble.expire(store.session_id)
    await gone.wait()
    assert await writable_bookies(other, PATHS) == []


async def test_a_registration_whose_answer_was_lost_is_ours(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    store.link.lose_next(operation="create", applied=True)  # type: ignore[attr-defined]
    await register_bookie(store, PATHS, INFO)
    assert await writable_bookies(store, PATHS) == ["b1"]


async def test_the_record_of_a_process_that_died_is_waited_out(
    ensemble: MemoryStore, autojump_clock: Clock
) -> None:
    dead, store = ensemble.session("dead"), ensemble.session("me")
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(dead, PATHS, INFO)
    dead.crash()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(register_bookie, store, PATHS, INFO)
        await trio.sleep(2)
        ensemble.expire(dead.session_id)
    record = await store.get("/ledgers/available/b1")
    assert record is not None
    assert record.stat.owner == store.session_id


async def test_of_two_who_begin_at_once_one_is_announced(
    ensemble: MemoryStore, autojump_clock: Clock
) -> None:
    """Both look into both places before either writes."""
    sessions = [ensemble.session("one"), ensemble.session("two")]
    await ensure_layout(sessions[0], PATHS, random.Random(1))
    announced: list[int] = []

    async def register(which: int) -> None:
        with suppress(BookieIdTakenError):
            await register_bookie(sessions[which], PATHS, INFO, read_only=bool(which))
            announced.append(which)

    async with trio.open_nursery() as nursery:
        for which in range(2):
            nursery.start_soon(register, which)
    assert len(announced) == 1
    there = [await writable_bookies(sessions[0], PATHS), await readonly_bookies(sessions[0], PATHS)]
    assert there[announced[0]] == ["b1"]
    assert there[1 - announced[0]] == []


@pytest.mark.parametrize("theirs", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("ours", [False, True], ids=["writable", "read-only"])
async def test_an_id_that_is_taken_is_refused(
    ensemble: MemoryStore, autojump_clock: Clock, theirs: bool, ours: bool
) -> None:
    """The other bookie may be in either of the two places."""
    other, store = ensemble.session("other"), ensemble.session("me")
    await ensure_layout(store, PATHS, random.Random(1))
    await register_bookie(other, PATHS, INFO, read_only=theirs)
    with pytest.raises(BookieIdTakenError):
        await register_bookie(store, PATHS, INFO, read_only=ours, timeout_s=5)
    await unregister_bookie(store, PATHS, "b1")
    assert await writable_bookies(store, PATHS) == ([] if theirs else ["b1"])
    assert await readonly_bookies(store, PATHS) == (["b1"] if theirs else [])


def test_tls_is_announced_as_apaches_bookies_do() -> None:
    """The data endpoint has the extension `tls`; HTTP with TLS is an endpoint of its own."""
    info = BookieInfo("b", "host", 3181, {}, 8080, 8443, tls=True)
    record = BookieServiceInfoFormat()
    record.ParseFromString(info.encode())
    assert list(record.endpoints[0].extensions) == ["tls"]
    assert [(e.protocol, e.port) for e in record.endpoints] == [
        ("bookie-rpc", 3181),
        ("http", 8080),
        ("https", 8443),
    ]
    assert BookieInfo.decode("b", info.encode()) == info
    plain = BookieInfo("b", "host", 3181)
    assert BookieInfo.decode("b", plain.encode()) == plain
