"""The choice of bookies, how long a bookie is avoided, and where bookies are found."""

import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import NotEnoughBookiesError
from daybook.bookie.ledger.ensemble import (
    BookieDirectory,
    DirectoryLimits,
    Quarantined,
    QuarantineEvent,
    Released,
)
from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, register_bookie, unregister_bookie
from daybook.bookie.registry.underreplication import mark_path, mark_under_replicated
from daybook.wire.clock import SystemClock
from daybook.wire.errors import ConnectionLostError
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore

PATHS = LedgerPaths()
QUORUMS = Quorums(3, 3, 2)


@dataclass
class World:
    ensemble: MemoryStore
    store: MemorySession
    directory: BookieDirectory
    nursery: trio.Nursery
    answering: set[str] = field(default_factory=set)
    changes: int = 0

    async def add(self, *numbers: int, away: bool = False) -> None:
        for number in numbers:
            name = f"b{number}:3181"
            cookie = Cookie(name, ["/j"], ["/d"], "i")
            await create_cookie(self.store, PATHS, cookie)
            if not away:
                await register_bookie(self.store, PATHS, BookieInfo(name, "host", 3000 + number))
                self.answering.add(name)
        await trio.sleep(0.01)

    async def remove(self, number: int) -> None:
        await unregister_bookie(self.store, PATHS, f"b{number}:3181")
        await trio.sleep(0.01)

    def changed(self) -> None:
        self.changes += 1

    async def probe(self, bookie: BookieId) -> bool:
        if bookie not in self.answering:
            await trio.sleep_forever()
        return True


def bookie(number: int) -> BookieId:
    return BookieId(f"b{number}:3181")


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    ensemble = MemoryStore(SystemClock())
    store = ensemble.session()
    await ensure_layout(store, PATHS, random.Random(1))
    directory = BookieDirectory(store, PATHS, random.Random(7), DirectoryLimits())
    async with trio.open_nursery() as nursery:
        world = World(ensemble, store, directory, nursery)
        directory.add_listener(world.changed)
        nursery.start_soon(directory.follow)
        nursery.start_soon(directory.probe, world.probe)
        yield world
        nursery.cancel_scope.cancel()


async def test_an_ensemble_is_drawn_from_those_that_are_there(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3, 4, 5)
    drawn: set[tuple[str, ...]] = set()
    for _ in range(600):
        choice = await world.directory.choose(QUORUMS)
        assert len(set(choice.ensemble)) == 3
        assert choice.missing == ()
        drawn.add(choice.ensemble)
    assert len(drawn) == 60, "any three of five, in any order"


async def test_those_that_failed_are_avoided_until_they_answer(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3, 4)
    world.answering.discard(bookie(2))
    world.directory.bookie_failed(bookie(2), "reset")
    for _ in range(50):
        assert bookie(2) not in (await world.directory.choose(QUORUMS)).ensemble
    await trio.sleep(100)
    assert not world.directory.is_usable(bookie(2))
    world.answering.add(bookie(2))
    before = world.changes
    await trio.sleep(2.1)
    assert world.directory.is_usable(bookie(2))
    assert world.changes == before + 1


async def test_each_quarantine_is_told_once_with_its_reason_and_its_end(
    world: World, autojump_clock: Clock
) -> None:
    told: list[QuarantineEvent] = []
    directory = world.directory
    directory.on_quarantine = told.append
    await world.add(1, 2, 3)
    world.answering.discard(bookie(2))
    directory.bookie_failed(bookie(2), "reset")
    directory.bookie_failed(bookie(2), "refused")
    directory.bookie_refused(bookie(1), Status.IO_ERROR)
    directory.bookie_refused(bookie(1), Status.READ_ONLY)
    why = "it did not store an entry: IO_ERROR"
    assert told == [Quarantined(bookie(2), "reset"), Quarantined(bookie(1), why)]
    assert directory.quarantined() == {bookie(1): why, bookie(2): "reset"}
    assert directory.quarantines == 2
    await world.remove(2)
    assert list(directory.quarantined()) == [bookie(1)]  # The other one is not registered.
    await trio.sleep(20)
    (released,) = told[2:]
    assert isinstance(released, Released)
    assert released.bookie == bookie(1)
    assert 10 < released.after_s < 12
    await register_bookie(world.store, PATHS, BookieInfo(bookie(2), "host", 3002))
    await trio.sleep(0.01)
    assert [type(each) for each in told[3:]] == [Released]
    assert directory.quarantined() == {}
    assert directory.quarantines == 2


async def test_one_that_answers_and_cannot_store_is_left_alone_for_a_while(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3, 4)
    world.directory.bookie_refused(bookie(1), Status.READ_ONLY)
    await trio.sleep(9)
    assert not world.directory.is_usable(bookie(1))
    await trio.sleep(3)
    assert world.directory.is_usable(bookie(1))


async def test_one_that_refuses_answers_until_it_fails(world: World, autojump_clock: Clock) -> None:
    await world.add(1, 2, 3)
    directory = world.directory
    directory.bookie_refused(bookie(1), Status.READ_ONLY)
    directory.bookie_failed(bookie(2), "reset")
    assert directory.usable() == [bookie(3)]
    assert directory.answering() == [bookie(1), bookie(3)]
    directory.bookie_failed(bookie(1), "reset")
    assert directory.answering() == [bookie(3)]
    directory.bookie_refused(bookie(1), Status.READ_ONLY)
    await trio.sleep(12)
    assert directory.usable() == [bookie(1), bookie(2), bookie(3)]
    directory.bookie_failed(bookie(1), "reset")
    assert directory.answering() == [bookie(2), bookie(3)], "what it answered before is forgotten"
    await world.remove(3)
    assert directory.answering() == [bookie(2)]


async def test_who_refuses_the_entries_of_writers_may_take_those_of_recoveries(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3, 4, 5)
    ensemble, failed = (bookie(1), bookie(2), bookie(3)), [bookie(3)]
    replace = world.directory.replace
    world.directory.bookie_refused(bookie(4), Status.READ_ONLY)
    for _ in range(20):
        assert replace(ensemble, failed, QUORUMS) == (*ensemble[:2], bookie(5))
        assert replace(ensemble, failed, QUORUMS, refused_by=()) == (*ensemble[:2], bookie(5))
    world.directory.bookie_failed(bookie(5), "reset")
    assert replace(ensemble, failed, QUORUMS) is None
    assert replace(ensemble, failed, QUORUMS, refused_by=()) == (*ensemble[:2], bookie(4))
    assert replace(ensemble, failed, QUORUMS, refused_by={bookie(4)}) is None


async def test_one_that_registers_anew_is_usable_at_once(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3)
    world.answering.discard(bookie(1))
    world.directory.bookie_failed(bookie(1), "reset")
    await world.remove(1)
    assert list(world.directory.writable) == [bookie(2), bookie(3)]
    await world.add(1)
    assert world.directory.is_usable(bookie(1))


async def test_with_too_few_the_ensemble_is_filled_up_with_those_that_are_away(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2)
    await world.add(3, away=True)
    choice = await world.directory.choose(QUORUMS)
    assert sorted(choice.ensemble) == [bookie(1), bookie(2), bookie(3)]
    assert choice.missing == (bookie(3),)


async def test_a_bookie_that_just_died_counts_as_away(world: World, autojump_clock: Clock) -> None:
    await world.add(1, 2, 3)
    world.answering.discard(bookie(3))
    world.directory.bookie_failed(bookie(3), "reset")
    choice = await world.directory.choose(QUORUMS)
    assert choice.missing == (bookie(3),)


async def test_when_nobody_else_is_left_suspects_are_tried(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3)
    world.answering.clear()
    for number in (1, 2, 3):
        world.directory.bookie_failed(bookie(number), "a cable")
    assert (await world.directory.choose(QUORUMS)).missing == ()


async def test_fewer_than_an_ack_quorum_is_refused(world: World, autojump_clock: Clock) -> None:
    await world.add(1)
    await world.add(2, 3, away=True)
    with pytest.raises(NotEnoughBookiesError, match="1 bookies are writable"):
        await world.directory.choose(QUORUMS)
    await world.add(4)
    assert len((await world.directory.choose(QUORUMS)).missing) == 1
    with pytest.raises(NotEnoughBookiesError):
        await world.directory.choose(Quorums(5, 3, 2))


async def test_striped_ensembles_are_arranged_so_that_each_write_set_can_confirm(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3, 4)
    await world.add(5, 6, away=True)
    quorums = Quorums(6, 3, 2)
    for _ in range(20):
        choice = await world.directory.choose(quorums)
        live = [p for p, name in enumerate(choice.ensemble) if name not in choice.missing]
        assert quorums.can_confirm(live)
    with pytest.raises(NotEnoughBookiesError):
        await world.directory.choose(Quorums(6, 2, 2))


async def test_replacing_takes_spares_as_far_as_there_are(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1, 2, 3, 4)
    ensemble = (bookie(1), bookie(2), bookie(3))
    replaced = world.directory.replace(ensemble, [bookie(1), bookie(2)], QUORUMS)
    assert replaced == (bookie(4), bookie(2), bookie(3))
    world.directory.bookie_failed(bookie(4), "reset")
    assert world.directory.replace(ensemble, [bookie(1)], QUORUMS) is None


async def test_without_the_metadata_store_there_is_an_answer_in_time(
    autojump_clock: Clock,
) -> None:
    store = MemoryStore(SystemClock()).session()
    await ensure_layout(store, PATHS, random.Random(1))
    directory = BookieDirectory(store, PATHS, random.Random(7), DirectoryLimits())
    with pytest.raises(NotEnoughBookiesError), trio.fail_after(11):
        await directory.choose(QUORUMS)


async def test_bookies_are_found_where_they_say_or_were_last_seen(
    world: World, autojump_clock: Clock
) -> None:
    await world.add(1)
    assert await world.directory.resolve(bookie(1)) == ("host", 3001)
    await world.remove(1)
    assert await world.directory.resolve(bookie(1)) == ("host", 3001)
    assert await world.directory.resolve(bookie(9)) == ("b9", 3181)
    with pytest.raises(ConnectionLostError):
        await world.directory.resolve(BookieId("somewhere"))
    world.store.suspend()
    with trio.fail_after(1):
        assert await world.directory.resolve(bookie(1)) == ("host", 3001)


async def test_the_list_is_followed_through_an_outage(world: World, autojump_clock: Clock) -> None:
    await world.add(1, 2)
    world.store.suspend()
    await trio.sleep(30)
    assert len(world.directory.writable) == 2
    world.store.resume()
    await world.add(3)
    await trio.sleep(1)
    assert len(world.directory.writable) == 3


async def test_bookies_that_are_not_registered_will_probably_not_answer(
    world: World, autojump_clock: Clock
) -> None:
    everybody = [bookie(number) for number in (1, 2, 3)]
    await world.add(1, 2)
    assert world.directory.doubtful(everybody) == {bookie(3)}
    await world.remove(1)
    assert world.directory.doubtful(everybody) == {bookie(1), bookie(3)}
    info = BookieInfo(bookie(1), "host", 3001)
    await register_bookie(world.store, PATHS, info, read_only=True)
    await trio.sleep(0.01)
    assert world.directory.doubtful(everybody) == {bookie(3)}
    await world.remove(1)
    assert world.directory.doubtful(everybody) == {bookie(1), bookie(3)}
    world.directory.bookie_failed(bookie(2), "reset")
    assert world.directory.doubtful(everybody) == set(everybody)


async def test_nobody_is_doubted_while_it_is_not_known_who_is_registered(
    autojump_clock: Clock,
) -> None:
    store = MemoryStore(SystemClock()).session()
    await ensure_layout(store, PATHS, random.Random(1))
    directory = BookieDirectory(store, PATHS, random.Random(7), DirectoryLimits())
    assert directory.doubtful([bookie(1)]) == set()
    store.suspend()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(directory.follow)
        await trio.sleep(10)
        assert directory.doubtful([bookie(1)]) == set()
        store.resume()
        await trio.sleep(10)
        assert directory.doubtful([bookie(1)]) == {bookie(1)}
        nursery.cancel_scope.cancel()


async def test_read_only_bookies_are_found_although_none_was_ever_there_before(
    world: World, autojump_clock: Clock
) -> None:
    await world.remove(1)
    record = await world.store.get(PATHS.readonly)
    assert record is not None
    await world.store.delete(PATHS.readonly, record.stat.version)
    await trio.sleep(100)
    info = BookieInfo(bookie(1), "host", 3001)
    await register_bookie(world.store, PATHS, info, read_only=True)
    await trio.sleep(100)
    assert world.directory.doubtful([bookie(1)]) == set()


# -- marks


async def test_marks_are_added_to() -> None:
    store = MemoryStore(SystemClock()).session()
    path = mark_path(PATHS, 12345)
    assert path == ("/ledgers/underreplication/ledgers/0000/0000/0000/3039/urL0000012345")
    await mark_under_replicated(store, PATHS, 12345, [bookie(1)], 5)
    assert isinstance(store.link, DirectLink)
    store.link.lose_next(operation="set", applied=True)
    await mark_under_replicated(store, PATHS, 12345, [bookie(1), bookie(2)], 7)
    await mark_under_replicated(store, PATHS, 12345, [bookie(2)], 9)
    record = await store.get(path)
    assert record is not None
    assert record.value == b'replica: "b1:3181"\nreplica: "b2:3181"\nctime: 9\n'
    assert record.stat.version == 3, "what is found again is written, and so is what may be lost"
    layout = await store.get("/ledgers/underreplication/LAYOUT")
    assert layout is not None
    assert layout.value == b'type: "BASIC"\nversion: 1\n'
