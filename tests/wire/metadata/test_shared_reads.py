"""One read serves all callers that ask together, and never one that began before they asked."""

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.namespaces.policies import MetadataCache
from daybook.wire.metadata.shared_reads import SharedReads
from daybook.wire.metadata.store import (
    MetadataStore,
    Record,
    SessionState,
    Stat,
    StoreUnavailableError,
)


class SlowStore:
    """A store whose reads take a second, and return the state at their beginning."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails = False

    async def get(self, path: str) -> Record:
        self.reads += 1
        value = b"%d" % self.reads
        await trio.sleep(1)
        if self.fails:
            raise StoreUnavailableError("away")
        return Record(value, Stat(0, 0, 0, 0, 0, 0, 0, 0))


def shared(store: SlowStore) -> SharedReads[Record]:
    return SharedReads(store.get)


async def test_those_who_ask_together_share_a_read(autojump_clock: MockClock) -> None:
    store = SlowStore()
    reads, got = shared(store), []

    async def ask() -> None:
        record = await reads.get("/a")
        assert record is not None
        got.append(record.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.5)
        for _ in range(100):
            nursery.start_soon(ask)
    # The first read had begun before the others asked: theirs is another one.
    assert got == [b"1"] + 100 * [b"2"]
    assert not reads._current
    assert not reads._next


async def test_a_failure_is_everybodys(autojump_clock: MockClock) -> None:
    store = SlowStore()
    store.fails = True
    reads, failures = shared(store), 0

    async def ask() -> None:
        nonlocal failures
        with pytest.raises(StoreUnavailableError):
            await reads.get("/a")
        failures += 1

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
    assert failures == 50
    assert store.reads <= 2
    assert trio.current_time() - began < 2.5
    store.fails = False
    assert await reads.get("/a")


async def test_who_is_cancelled_leaves_the_read_to_another(autojump_clock: MockClock) -> None:
    store = SlowStore()
    reads, got = shared(store), []

    async def ask(name: str, patience_s: float) -> None:
        with trio.move_on_after(patience_s):
            await reads.get("/a")
            got.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "first", 10)
        await trio.sleep(0.1)
        nursery.start_soon(ask, "reads for the others", 1.5)
        await trio.sleep(0.1)
        nursery.start_soon(ask, "other", 10)
        nursery.start_soon(ask, "another", 10)
    assert sorted(got) == ["another", "first", "other"]
    assert not reads._current
    assert not reads._next


async def test_those_who_ask_for_a_missing_record_share_its_reads(
    autojump_clock: MockClock,
) -> None:
    """A client that asks for topics of a missing namespace does not keep the store busy."""

    class Missing:
        session_state = SessionState.CONNECTED
        reads = 0

        async def get(self, path: str, watch: object = None) -> None:
            self.reads += 1
            await trio.sleep(1)

    store = Missing()
    as_store: MetadataStore = store  # type: ignore[assignment]
    cache = MetadataCache[bytes](as_store, lambda value, _path: value)
    found: list[bytes | None] = []

    async def ask() -> None:
        found.append(await cache.get("/a"))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
    assert (found, store.reads) == ([None] * 50, 2)
