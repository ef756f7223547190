"""The metadata store in memory: the suite, and the behavior that the simulator relies on."""

from collections.abc import Callable
from typing import cast

import pytest
import trio
import trio.testing

from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import (
    DirectLink,
    MemorySession,
    MemoryStore,
    NoAnswerError,
    Request,
)
from daybook.wire.metadata.store import (
    MetadataStore,
    OutcomeUnknownError,
    SessionState,
    StoreUnavailableError,
)
from tests.conformance.metadata import REQUEST_TIMEOUT_S, Calls, MetadataSuite
from tests.conformance.rights import RightsSuite, identity


class MemoryWorld:
    def __init__(self) -> None:
        self.store = MemoryStore(SystemClock())

    async def open(self, *, user: str = "") -> MetadataStore:
        return self.store.session(
            request_timeout_s=REQUEST_TIMEOUT_S, identity=identity(user) if user else ""
        )

    async def close(self, store: MetadataStore) -> None:
        cast("MemorySession", store).close()

    def suspend(self, store: MetadataStore) -> None:
        cast("MemorySession", store).suspend()

    def resume(self, store: MetadataStore) -> None:
        cast("MemorySession", store).resume()

    async def expire(self, store: MetadataStore) -> None:
        self.store.expire(store.session_id)

    def lose_next_answer(self, store: MetadataStore, *, applied: bool) -> None:
        link = cast("MemorySession", store).link
        assert isinstance(link, DirectLink)
        link.lose_next(applied=applied)


class TestMemory(MetadataSuite):
    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld()


class TestRightsInMemory(RightsSuite):
    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


async def test_a_crashed_host_hears_and_says_nothing_more(store: MemoryStore) -> None:
    host, other = store.session("host"), store.session("other")
    await host.create("/e", b"", ephemeral=True)
    watch, heard = Calls(), Calls()
    await host.get("/e", watch)
    host.add_session_listener(heard)
    session_id = host.session_id
    host.crash()
    with pytest.raises(StoreUnavailableError):
        await host.set("/e", b"1", 0)
    await other.set("/e", b"1", 0)
    assert await other.get("/e") is not None  # until the store ends the session
    store.expire(session_id)
    assert await other.get("/e") is None
    assert (watch.count, heard.count) == (0, 0)


async def test_the_whole_store_can_be_away(
    store: MemoryStore, autojump_clock: trio.testing.MockClock
) -> None:
    hosts = [store.session(request_timeout_s=1.0) for _ in range(2)]
    store.suspend()
    for host in hosts:
        assert host.session_state is SessionState.SUSPENDED
        with pytest.raises(StoreUnavailableError):
            await host.get("/a")
    store.resume()
    for host in hosts:
        assert await host.get("/a") is None


async def test_requests_under_way_get_no_answer_when_contact_is_lost(
    store: MemoryStore, autojump_clock: trio.testing.MockClock
) -> None:
    host = store.session()
    assert isinstance(host.link, DirectLink)
    host.link.delay_s = 5.0

    async def write() -> None:
        with pytest.raises(OutcomeUnknownError):
            await host.create("/a", b"")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(1.0)
        host.suspend()
    assert trio.current_time() < 2.0


class LateLink:
    """A link that carries requests out on command, and never answers."""

    def __init__(self) -> None:
        self.late: list[Callable[[], None]] = []
        self.seen: list[Request] = []

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        self.seen.append(request)
        self.late.append(execute)
        raise NoAnswerError

    def notify(self, call: Callable[[], None]) -> None:
        call()


async def test_a_link_may_carry_a_write_out_after_its_caller_has_given_up(
    store: MemoryStore,
) -> None:
    link = LateLink()
    host, other = store.session("host", link=link), store.session()
    with pytest.raises(OutcomeUnknownError):
        await host.create("/a", b"1")
    assert link.seen == [Request("host", "create", "/a", write=True)]
    assert await other.get("/a") is None
    link.late[0]()
    assert await other.get("/a") is not None


async def test_a_late_write_of_a_lost_session_is_not_carried_out(store: MemoryStore) -> None:
    link = LateLink()
    host, other = store.session("host", link=link), store.session()
    with pytest.raises(OutcomeUnknownError):
        await host.create("/e", b"", ephemeral=True)
    store.expire(host.session_id)
    link.late[0]()
    assert await other.get("/e") is None


class HoldingLink(DirectLink):
    """A link that holds notices back, as a network or a paused host does."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Callable[[], None]] = []
        self.holding = False

    def notify(self, call: Callable[[], None]) -> None:
        if self.holding:
            self.held.append(call)
        else:
            call()


async def test_a_host_that_has_not_heard_of_its_loss_gets_nothing_done(store: MemoryStore) -> None:
    link = HoldingLink()
    host = store.session(link=link)
    session_id = host.session_id
    link.holding = True
    store.expire(session_id)
    assert (host.session_state, host.session_id) == (SessionState.CONNECTED, session_id)
    with pytest.raises(StoreUnavailableError):
        await host.create("/a", b"")
    heard = Calls()
    host.add_session_listener(heard)
    for call in link.held:
        call()
    assert heard.states == [SessionState.LOST, SessionState.CONNECTED]
    assert await host.get("/a") is None
