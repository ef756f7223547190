"""A fragment names a bookie only if its cookie is the one under which it stored the entries."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore, StoredMetadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.protocol.update import Gone, NotAllowed, NotDone, Settled
from daybook.bookie.registry.cookies import Cookie, create_cookie, renew_cookie
from daybook.bookie.replication.protocol.replica_check import (
    Replacement,
    SealedFragment,
    replace_bookie,
)
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import DirectLink, MemoryStore, Request
from daybook.wire.metadata.store import ANY, MetadataStore
from tests.bookie.ledger.cluster import PATHS

ONE, TWO = BookieId("b1:3181"), BookieId("b2:3181")
PATH = PATHS.ledger(0)
COOKIE = Cookie(TWO, ("j",), ("d",), "cluster")
NAMES_ONE = LedgerMetadata(quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (ONE,)),)).closed_at(
    0, 9
)
TO_TWO = replace_bookie(Replacement(SealedFragment(0, 0, (ONE,)), 0, TWO))

Event = Callable[[MetadataStore], Awaitable[None]]


class BeforeWriting(DirectLink):
    """A link that lets an event happen after the last read, while the write is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.event: Callable[[], Awaitable[None]] | None = None

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        if request.write and self.event is not None:
            event, self.event = self.event, None
            await event()
        await super().request(request, execute)


@asynccontextmanager
async def a_ledger(
    *, cookie: bool = True
) -> AsyncGenerator[tuple[LedgerMetadataStore, StoredMetadata, MetadataStore, BeforeWriting]]:
    """Return the metadata store, the stored ledger, another client's view, and the link."""
    store, link = MemoryStore(SystemClock()), BeforeWriting()
    theirs = store.session("other")
    if cookie:
        await create_cookie(theirs, PATHS, COOKIE)
    catalog = LedgerMetadataStore(store.session("client", link=link), PATHS, Random(1))
    stored = await catalog.create_as(0, NAMES_ONE)
    yield catalog, stored, theirs, link


async def nothing(store: MetadataStore) -> None:
    pass


async def reborn(store: MetadataStore) -> None:
    await renew_cookie(store, PATHS, COOKIE)


async def forgotten(store: MetadataStore) -> None:
    await store.delete(PATHS.cookie(TWO), ANY)


async def made_anew(store: MetadataStore) -> None:
    await forgotten(store)
    await create_cookie(store, PATHS, COOKIE)


async def another_one_is_reborn(store: MetadataStore) -> None:
    other = Cookie(ONE, ("j",), ("d",), "cluster")
    await create_cookie(store, PATHS, other)
    await renew_cookie(store, PATHS, other)


@pytest.mark.parametrize("event", [reborn, forgotten, made_anew])
async def test_a_bookie_whose_life_is_over_is_not_named(event: Event) -> None:
    """A cookie of the same version with other contents counts as another one, too."""
    async with a_ledger() as (catalog, stored, theirs, _):
        generations = await catalog.generations_of([TWO])
        await event(theirs)
        result = await catalog.update(0, stored, TO_TWO, generations)
        assert isinstance(result, NotAllowed)
        assert (await catalog.read(0)).version == 0


@pytest.mark.parametrize("event", [reborn, forgotten])
async def test_its_life_may_end_while_the_change_is_on_its_way(event: Event) -> None:
    async with a_ledger() as (catalog, stored, theirs, link):
        generations = await catalog.generations_of([TWO])
        link.event = lambda: event(theirs)
        result = await catalog.update(0, stored, TO_TWO, generations)
        assert isinstance(result, NotAllowed)
        assert (await catalog.read(0)).version == 0


@pytest.mark.parametrize("event", [nothing, another_one_is_reborn])
@pytest.mark.parametrize("cookie", [True, False])
async def test_it_is_named_in_its_life_with_a_cookie_or_without(event: Event, cookie: bool) -> None:
    async with a_ledger(cookie=cookie) as (catalog, stored, theirs, link):
        generations = await catalog.generations_of([TWO])
        link.event = lambda: event(theirs)
        result = await catalog.update(0, stored, TO_TWO, generations)
        assert isinstance(result, Settled)
        named = await catalog.read(0)
        assert (named.metadata.fragments, named.version) == ((Fragment(0, (TWO,)),), 1)


async def test_one_that_had_no_cookie_and_has_one_now_may_be_another_one() -> None:
    async with a_ledger(cookie=False) as (catalog, stored, theirs, _):
        generations = await catalog.generations_of([TWO])
        await create_cookie(theirs, PATHS, COOKIE)
        assert isinstance(await catalog.update(0, stored, TO_TWO, generations), NotAllowed)


async def test_other_changes_of_the_ledger_are_no_new_life() -> None:
    async with a_ledger() as (catalog, stored, theirs, link):
        generations = await catalog.generations_of([TWO])

        async def touched() -> None:
            record = await theirs.get(PATH)
            assert record is not None
            await theirs.set(PATH, record.value, ANY)

        link.event = touched
        result = await catalog.update(0, stored, TO_TWO, generations)
        assert isinstance(result, Settled)
        assert result.version == 2


async def test_a_ledger_that_is_deleted_meanwhile_is_gone() -> None:
    async with a_ledger() as (catalog, stored, theirs, link):
        generations = await catalog.generations_of([TWO])
        link.event = lambda: theirs.delete(PATH, ANY)
        assert await catalog.update(0, stored, TO_TWO, generations) == Gone()


@pytest.mark.parametrize("applied", [True, False])
async def test_a_change_that_nobody_heard_of_is_looked_up(applied: bool) -> None:
    async with a_ledger() as (catalog, stored, _, link):
        generations = await catalog.generations_of([TWO])
        link.lose_next(applied=applied, operation="multi")
        result = await catalog.update(0, stored, TO_TWO, generations)
        assert isinstance(result, Settled)
        assert result.version == 1


async def test_a_life_that_cannot_be_looked_up_is_not_over(autojump_clock: trio.abc.Clock) -> None:
    async with a_ledger() as (catalog, stored, _, link):
        generations = await catalog.generations_of([TWO])
        link.lose_next(applied=False, operation="get")
        assert await catalog.update(0, stored, TO_TWO, generations) == NotDone()
