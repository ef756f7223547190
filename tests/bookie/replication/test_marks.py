"""The underreplication records on the metadata store in memory, and with lost answers."""

from collections.abc import Awaitable, Callable

import pytest

from daybook.bookie.replication.marks import Marks
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore
from daybook.wire.metadata.store import MetadataStore
from tests.bookie.replication.marks_suite import B1, PATHS, MarksSuite, ids


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


class TestMarks(MarksSuite):
    async def test_a_lock_goes_with_the_session_of_its_owner(self, memory: MemoryStore) -> None:
        dead = memory.session("dead")
        assert await Marks(dead, PATHS, "w1").lock(7)
        other = Marks(memory.session("other"), PATHS, "w2")
        assert not await other.lock(7)
        memory.expire(dead.session_id)
        assert await other.lock(7)

    @pytest.mark.parametrize("applied", [True, False])
    async def test_whatever_answer_is_lost(self, memory: MemoryStore, applied: bool) -> None:
        session = memory.session("w")
        assert isinstance(session.link, DirectLink)
        marks = Marks(session, PATHS, "w1")
        await marks.mark(1, [B1], 1)  # creates the layout
        await marks.lock(1)  # creates the parent of the locks
        await marks.release(1)
        link = session.link
        link.lose_next(operation="create", applied=applied)
        await marks.mark(7, [B1], 1)
        link.lose_next(operation="create", applied=applied)
        assert await marks.lock(7)
        link.lose_next(operation="delete", applied=applied)
        await marks.release(7)
        assert await marks.locked() == {}
        mark = await marks.read(7)
        assert mark is not None
        link.lose_next(operation="delete", applied=applied)
        assert await marks.resolve(mark)
        assert await ids(marks) == [1]
        link.lose_next(operation="create", applied=applied)
        await marks.pause()
        assert await marks.is_paused()
        link.lose_next(operation="delete", applied=applied)
        await marks.resume()
        assert not await marks.is_paused()
        link.lose_next(operation="create", applied=applied)
        await marks.set_delay_s(5)
        assert await marks.delay_s() == 5
