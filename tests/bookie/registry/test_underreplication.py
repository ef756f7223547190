"""The underreplication records on the metadata store in memory, and with lost answers."""

from collections.abc import Awaitable, Callable

import pytest

from daybook.bookie.registry.underreplication import Underreplication
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore
from daybook.wire.metadata.store import MetadataStore
from tests.bookie.registry.underreplication_suite import B1, PATHS, UnderreplicationSuite, ids


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def open_store(memory: MemoryStore) -> Callable[[], Awaitable[MetadataStore]]:
    hosts: list[MemorySession] = []

    async def open_one() -> MetadataStore:
        hosts.append(memory.session(f"h{len(hosts)}"))
        return hosts[-1]

    return open_one


class TestUnderreplication(UnderreplicationSuite):
    async def test_a_lock_goes_with_the_session_of_its_owner(self, memory: MemoryStore) -> None:
        dead = memory.session("dead")
        assert await Underreplication(dead, PATHS, "w1").lock(7)
        other = Underreplication(memory.session("other"), PATHS, "w2")
        assert not await other.lock(7)
        memory.expire(dead.session_id)
        assert await other.lock(7)

    @pytest.mark.parametrize("applied", [True, False])
    async def test_whatever_answer_is_lost(self, memory: MemoryStore, applied: bool) -> None:
        session = memory.session("w")
        assert isinstance(session.link, DirectLink)
        underreplication = Underreplication(session, PATHS, "w1")
        await underreplication.mark(1, [B1], 1)  # creates the layout
        await underreplication.lock(1)  # creates the parent of the locks
        await underreplication.release(1)
        link = session.link
        link.lose_next(operation="create", applied=applied)
        await underreplication.mark(7, [B1], 1)
        link.lose_next(operation="create", applied=applied)
        assert await underreplication.lock(7)
        link.lose_next(operation="delete", applied=applied)
        await underreplication.release(7)
        assert await underreplication.locks() == {}
        mark = await underreplication.read_mark(7)
        assert mark is not None
        link.lose_next(operation="delete", applied=applied)
        assert await underreplication.resolve(mark)
        assert await ids(underreplication) == [1]
        link.lose_next(operation="create", applied=applied)
        await underreplication.pause()
        assert await underreplication.is_paused()
        link.lose_next(operation="delete", applied=applied)
        await underreplication.resume()
        assert not await underreplication.is_paused()
        link.lose_next(operation="create", applied=applied)
        await underreplication.set_lost_delay_s(5)
        assert await underreplication.lost_delay_s() == 5
