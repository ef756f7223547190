"""Compare-and-swap when answers are lost and others write in between."""

from collections.abc import Callable

import pytest

from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore, Request
from daybook.wire.metadata.store import (
    ANY,
    NoRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from daybook.wire.metadata.update import update


class Hosts:
    def __init__(self) -> None:
        self.store = MemoryStore(SystemClock())
        self.one, self.two = self.store.session("one"), self.store.session("two")
        assert isinstance(self.one.link, DirectLink)
        self.link = self.one.link


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


class Append:
    """An update that adds an entry unless it exists, and remembers the values it was given."""

    def __init__(self, entry: bytes) -> None:
        self.entry = entry
        self.asked: list[bytes] = []

    def __call__(self, value: bytes) -> bytes | None:
        self.asked.append(value)
        entries = value.split()
        return None if self.entry in entries else b" ".join([*entries, self.entry])


class InBetween(DirectLink):
    """A link that lets another host write after our next write, and loses our answer."""

    def __init__(self, other: MemorySession, value: bytes) -> None:
        super().__init__()
        self.other = other
        self.value = value

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        value, self.value = self.value, b""
        if request.operation == "set" and value:
            self.lose_next(applied=True)
            try:
                await super().request(request, execute)
            finally:
                await self.other.set(request.path, value, ANY)
        else:
            self.value = value
            await super().request(request, execute)


async def test_a_conflict_is_read_again(hosts: Hosts) -> None:
    await hosts.one.create("/a", b"x")
    known = await hosts.one.get("/a")
    await hosts.two.set("/a", b"x y", 0)
    change = Append(b"z")
    assert await update(hosts.one, "/a", change, known=known) == (b"x y z", 2)
    assert change.asked == [b"x", b"x y"]


async def test_nothing_to_do_writes_nothing(hosts: Hosts) -> None:
    await hosts.one.create("/a", b"x")
    assert await update(hosts.one, "/a", Append(b"x")) == (b"x", 0)


async def test_an_unknown_write_that_others_built_upon_is_recognized_by_the_change(
    hosts: Hosts,
) -> None:
    await hosts.one.create("/a", b"")
    hosts.one.link = InBetween(hosts.two, b"z and")
    change = Append(b"z")
    assert await update(hosts.one, "/a", change) == (b"z and", 2)
    assert change.asked == [b"", b"z and"]


async def test_an_unknown_write_that_others_undid_is_made_again(hosts: Hosts) -> None:
    await hosts.one.create("/a", b"")
    hosts.one.link = InBetween(hosts.two, b"other")
    assert await update(hosts.one, "/a", Append(b"z")) == (b"other z", 3)


async def test_the_same_version_with_another_value_is_not_ours(hosts: Hosts) -> None:
    """Our write was lost, and another host made a write of its own from the same version."""
    await hosts.one.create("/a", b"x")
    known = await hosts.one.get("/a")
    await hosts.two.set("/a", b"x y", 0)
    hosts.link.lose_next(applied=False, operation="set")
    assert await update(hosts.one, "/a", Append(b"z"), known=known) == (b"x y z", 2)


async def test_it_stays_unknown_if_nobody_can_be_asked(hosts: Hosts) -> None:
    await hosts.one.create("/a", b"")
    hosts.link.lose_next(applied=True, operation="set")
    known = await hosts.one.get("/a")
    hosts.link.lose_next(applied=False, operation="get")
    with pytest.raises(OutcomeUnknownError):
        await update(hosts.one, "/a", Append(b"z"), known=known)


async def test_what_is_not_there_cannot_be_changed(hosts: Hosts) -> None:
    with pytest.raises(NoRecordError):
        await update(hosts.one, "/a", Append(b"z"))
    hosts.link.lose_next(applied=False, operation="get")
    with pytest.raises(StoreUnavailableError):
        await update(hosts.one, "/a", Append(b"z"))


async def test_an_unknown_write_that_is_still_there_is_recognized_by_its_value(
    hosts: Hosts,
) -> None:
    await hosts.one.create("/a", b"")
    hosts.link.lose_next(applied=True, operation="set")
    assert await update(hosts.one, "/a", lambda value: value + b"x") == (b"x", 1)
