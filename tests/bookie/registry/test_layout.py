"""The layout: many bookies create it at once, answers are lost, another layout exists."""

import random

import pytest
import trio
import trio.testing

from daybook.bookie.errors import LayoutError
from daybook.bookie.registry.layout import check_layout, ensure_layout, read_instance_id
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import writable_bookies
from daybook.wire.metadata.memory import MemorySession, MemoryStore

PATHS = LedgerPaths()


async def test_many_hosts_create_the_layout_at_once_and_agree(ensemble: MemoryStore) -> None:
    agreed: list[str] = []

    async def start(number: int) -> None:
        session = ensemble.session(f"host {number}")
        session.link.delay_s = number * 0.0001  # type: ignore[attr-defined]
        agreed.append(await ensure_layout(session, PATHS, random.Random(number)))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(start, number)
    assert len(set(agreed)) == 1
    store = ensemble.session()
    layout = await store.get("/ledgers/LAYOUT")
    assert layout is not None
    assert layout.value == (b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    assert await read_instance_id(store, PATHS) == agreed[0]
    names = await store.get_children("/ledgers")
    assert names == ["INSTANCEID", "LAYOUT", "available", "cookies", "idgen"]


async def test_creating_the_layout_survives_lost_answers(store: MemorySession) -> None:
    for applied in (True, False):
        store.link.lose_next(operation="create", path="/ledgers", applied=applied)  # type: ignore[attr-defined]
    first = await ensure_layout(store, PATHS, random.Random(1))
    assert await ensure_layout(store, PATHS, random.Random(2)) == first


async def test_another_layout_is_refused(store: MemorySession) -> None:
    with pytest.raises(LayoutError, match="missing"):
        await check_layout(store, PATHS)
    with pytest.raises(LayoutError, match="missing"):
        await writable_bookies(store, PATHS)
    await store.create("/ledgers/LAYOUT", b"1\nflat:1", make_parents=True)
    with pytest.raises(LayoutError, match="flat"):
        await ensure_layout(store, PATHS, random.Random(1))
