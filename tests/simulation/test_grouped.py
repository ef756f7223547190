"""A session whose writes share requests is a metadata store like any other."""

from collections.abc import Callable
from typing import cast

import pytest
import trio
import trio.testing

from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore, Request
from daybook.wire.metadata.store import MetadataError, MetadataStore, RecordExistsError
from tests.conformance.metadata import MetadataSuite
from tests.simulation.grouped import GROUP, GroupedSession

_TIMEOUT_S = 0.1  # A store in memory needs no time.


class _Link(DirectLink):
    """A link that notes the requests it carries."""

    def __init__(self) -> None:
        super().__init__()
        self.carried: list[Request] = []

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        self.carried.append(request)
        await super().request(request, execute)


class GroupedWorld:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = MemoryStore(SystemClock())
        self._nursery = nursery

    async def open(self) -> MetadataStore:
        session = GroupedSession(self.store.tree, "", _Link(), _TIMEOUT_S, self._nursery)
        self.store._hosts.append(session)
        return session

    async def close(self, store: MetadataStore) -> None:
        cast("MemorySession", store).close()

    def suspend(self, store: MetadataStore) -> None:
        cast("MemorySession", store).suspend()

    def resume(self, store: MetadataStore) -> None:
        cast("MemorySession", store).resume()

    async def expire(self, store: MetadataStore) -> None:
        self.store.expire(store.session_id)

    def lose_next_answer(self, store: MetadataStore, *, applied: bool) -> None:
        _link(store).lose_next(applied=applied)


def _link(store: MetadataStore) -> _Link:
    link = cast("MemorySession", store).link
    assert isinstance(link, _Link)
    return link


@pytest.fixture
def world(nursery: trio.Nursery) -> GroupedWorld:
    return GroupedWorld(nursery)


class TestGrouped(MetadataSuite):
    @pytest.fixture
    def world(self, nursery: trio.Nursery) -> GroupedWorld:
        return GroupedWorld(nursery)


async def test_writes_that_come_together_share_a_request_and_have_outcomes_of_their_own(
    world: GroupedWorld, autojump_clock: trio.testing.MockClock
) -> None:
    store = await world.open()
    await store.create("/there", b"")
    _link(store).delay_s = 0.01
    found: dict[str, str] = {}

    async def create(path: str) -> None:
        try:
            found[path] = await store.create(path, b"")
        except MetadataError as error:
            found[path] = type(error).__name__

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create, "/first")
        await trio.testing.wait_all_tasks_blocked()
        for path in ("/a", "/there", "/b"):
            nursery.start_soon(create, path)
    assert found == {
        "/first": "/first",
        "/a": "/a",
        "/there": RecordExistsError.__name__,
        "/b": "/b",
    }
    kinds = [each.operation for each in _link(store).carried]
    # A group that was refused is sent again, one by one.
    assert kinds == ["create", "create", GROUP, "create", "create", "create"]
