"""Ledgers that nothing names are removed; no other ledger is, even if it looks like one."""

from dataclasses import replace

import pytest
import trio

from daybook.bookie.errors import MalformedRecordError
from daybook.managed_ledger.position import EARLIEST
from daybook.managed_ledger.protocol.orphans import (
    SUSPECTS_MAX,
    Candidate,
    Suspects,
    is_orphan_of_open_log,
    may_be_orphan,
)
from daybook.managed_ledger.records import cursor_path, custom_metadata, log_path, tree_of
from daybook.managed_ledger.tree import PATH, tree_id
from tests.managed_ledger.world import (
    CONFIG,
    NAME,
    TREE,
    Host,
    World,
    append,
    play,
    read_all,
    until,
)

OTHER = "t/n/persistent/b"


# -- the rules


def candidate(
    ledger_id: int = 7, *, version: int = 0, tree: str | None = TREE, created_ms: int | None = 1000
) -> Candidate:
    return Candidate(ledger_id, version, tree, NAME, None, created_ms)


@pytest.mark.parametrize(
    ("found", "now_ms", "expected"),
    [
        (candidate(), 1_500, True),
        (candidate(), 1_499, False),
        (candidate(), 0, False),  # made by a host whose clock is ahead
        (candidate(created_ms=None), 10**15, False),
        (candidate(tree=None), 10**15, False),
        (candidate(tree="another"), 10**15, False),
    ],
)
def test_only_what_is_old_and_of_this_tree_may_be_an_orphan(
    found: Candidate, now_ms: int, expected: bool
) -> None:
    assert may_be_orphan(found, TREE, now_ms, 500) is expected


@pytest.mark.parametrize(
    ("owned_from", "named", "creating", "expected"),
    [
        (8, False, False, True),
        (8, False, True, True),  # The opening creates no ledger with so low an id.
        (8, True, False, False),
        (6, False, False, True),
        (6, False, True, False),
        (6, True, False, False),
    ],
)
def test_of_an_open_log_only_what_it_will_never_name(
    owned_from: int, named: bool, creating: bool, expected: bool
) -> None:
    found = is_orphan_of_open_log(candidate(7), owned_from, named=named, creating=creating)
    assert found is expected


def test_a_compacted_ledger_of_an_open_log_that_is_younger_than_its_opening_stays() -> None:
    found = replace(candidate(7), topic="persistent://t/n/a")
    assert not is_orphan_of_open_log(found, 6, named=False, creating=False)
    assert is_orphan_of_open_log(found, 8, named=False, creating=False)


def test_a_ledger_of_a_log_that_is_gone_has_to_be_found_twice_in_a_row_as_it_is() -> None:
    suspects = Suspects()
    suspects.begin()
    assert not suspects.is_found_again(candidate(7))
    assert not suspects.is_found_again(candidate(7))  # in the same pass
    suspects.begin()
    assert not suspects.is_found_again(candidate(7, version=1))
    suspects.begin()
    assert suspects.is_found_again(candidate(7, version=1))
    suspects.begin()
    suspects.begin()
    assert not suspects.is_found_again(candidate(7, version=1))
    suspects.forget()
    suspects.begin()
    assert not suspects.is_found_again(candidate(7, version=1))


def test_the_suspects_that_are_remembered_are_bounded() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.begin()
        found = [suspects.is_found_again(candidate(n)) for n in range(SUSPECTS_MAX + 2)]
    assert found == [True] * SUSPECTS_MAX + [False] * 2


# -- passes


async def made(host: Host, log: str = NAME, cursor: str | None = None) -> int:
    """Create a ledger of a host that dies before anything names it."""
    custom = custom_metadata(log, cursor, TREE)
    writer = await host.client.create(CONFIG.quorums, custom=custom)
    writer.abandon()
    return writer.ledger_id


async def two_passes(host: Host, age_s: float = 0.0) -> list[int]:
    found: list[int] = []
    for _ in range(2):
        found += await host.logs.remove_orphans(age_s=age_s, of_gone_logs=True)
    return found


def test_ledgers_say_for_which_tree_they_were_made() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(7))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            cursor.ack([log.last_confirmed])
            await cursor.flush()
            ids = [*await world.ids_of(host), cursor.ledger_id]
            assert len(ids) >= 3
            for ledger_id in ids:
                assert tree_of((await host.client.metadata(ledger_id)).custom) == TREE

    play(scenario)


def test_the_ledgers_of_a_log_whose_deletion_was_cut_short_are_removed() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            cursor = await log.open_cursor("s", initial=EARLIEST)
            positions = await append(log, range(12))
            cursor.ack([positions[3]])
            await cursor.flush()
            assert cursor.ledger_id >= 0
            before = await world.ledgers(host)
            kept = await host.open(name=OTHER)
            log.abandon()
            # The broker that deletes it dies as soon as the records are gone.
            await host.store.delete(cursor_path(NAME, "s"), -1)
            await host.store.delete(log_path(NAME), -1)
        async with world.host("b") as host:
            # One finding is not enough.
            assert await host.logs.remove_orphans(of_gone_logs=True) == []
            assert list(await host.logs.remove_orphans(of_gone_logs=True)) == before
            assert await world.ledgers(host) == [kept.owned_from]

    play(scenario)


def test_a_topic_that_is_made_between_two_looks_loses_nothing() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            lost = await made(one)
            assert await two.logs.remove_orphans(of_gone_logs=True) == []
            log = await one.open()
            await append(log, range(8))
            assert await two.logs.remove_orphans(of_gone_logs=True) == []
            assert await read_all(log) == list(range(8))
            assert lost in await world.ledgers(two)
            # Its owner knows for certain.
            assert list(await one.logs.remove_orphans()) == [lost]

    play(scenario)


def test_what_is_being_created_is_no_orphan() -> None:
    """A list, or a cursor, is about to name the ledger, however often the hosts look."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            log = await one.open()
            await append(log, range(3))
            cursor = await log.open_cursor("s", initial=EARLIEST)
            held = one.link.hold_next("multi")
            cursor.ack([log.last_confirmed])
            await held.caught.wait()
            assert len(await world.ledgers(two)) == 2  # the first one, and the cursor's
            for host in (one, two):
                assert await two_passes(host) == []
            held.let_go()
            await cursor.flush()
            held = one.link.hold_next("create", "/ledgers/00")
            log.roll()
            await held.caught.wait()
            held.arrive()
            assert len(await world.ledgers(two)) == 3
            for host in (one, two):
                assert await two_passes(host) == []
            held.let_go()
            await until(lambda: log.state.name == "OPEN")
            assert len(await world.ledgers(two)) == 3  # The empty one before is gone.
            await append(log, range(3, 4))
            held = one.link.hold_next("set", log_path(NAME))
            log.roll()
            await held.caught.wait()
            assert len(await world.ledgers(two)) == 4  # and the next one
            assert await two_passes(two) == []
            held.let_go()
            await until(lambda: log.state.name == "OPEN")
            assert await two_passes(one) == []
            await append(log, range(4, 6))
            assert await read_all(log) == list(range(6))

    play(scenario)


def test_the_creation_of_a_former_owner_that_arrives_late_leaves_no_orphan() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            await append(old, range(3))
            held = one.link.hold_next("create", "/ledgers/00")
            old.roll()
            await held.caught.wait()
            new = await two.open()
            cursor = await new.open_cursor("s", initial=EARLIEST)
            held.let_go()  # Its ledger is younger than the opening that has taken the log over.
            await until(lambda: not old.usable)
            late = [await made(two), await made(two, cursor="s"), await made(two, cursor="gone")]
            await append(new, range(3, 12))
            cursor.ack([new.last_confirmed])
            await cursor.flush()
            assert max(new.ledgers.ids) > min(late) > new.owned_from
            named = {*new.ledgers.ids, cursor.ledger_id}
            orphans = [each for each in await world.ledgers(two) if each not in named]
            assert set(late) <= set(orphans)
            assert sorted(await two.logs.remove_orphans()) == orphans
            assert set(await world.ledgers(two)) == named
            assert await read_all(new) == list(range(12))

    play(scenario)


def test_the_ledger_of_a_new_list_is_no_orphan_of_the_list_before() -> None:
    """A host has not heard that its log was deleted and created again, with the same version."""

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            old = await one.open()
            await two.store.delete(log_path(NAME), -1)
            new = await two.open()
            assert old.usable
            assert new.ledgers.version == old.ledgers.version
            assert new.owned_from > old.owned_from
            assert list(await one.logs.remove_orphans()) == []
            assert new.owned_from in await world.ledgers(two)

    play(scenario)


def test_a_ledger_that_a_write_without_an_answer_may_name_is_no_orphan() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            late = await made(host)
            log.ledgers.doubtful = True
            assert list(await host.logs.remove_orphans()) == []
            log.ledgers.doubtful = False
            assert list(await host.logs.remove_orphans()) == [late]

    play(scenario)


def test_ledgers_of_others_stay() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            customs = [
                custom_metadata("t/n/persistent/gone"),  # made by Pulsar, or by an older version
                custom_metadata("t/n/persistent/gone", tree="another"),
                {**custom_metadata("t/n/persistent/gone", tree=TREE), "component": b"schema"},
                custom_metadata("../gone", tree=TREE),
                {"daybook/tree": TREE.encode()},
                {},  # made by an application that uses ledgers directly
            ]
            ids = [
                (await host.client.create(CONFIG.quorums, custom=custom)).ledger_id
                for custom in customs
            ]
            orphan = await made(host, "t/n/persistent/gone")
            log = await host.open()  # All of them are older than this opening.
            assert await two_passes(host) == [orphan]
            assert await world.ledgers(host) == [*ids, log.owned_from]

    play(scenario)


def test_two_trees_with_a_log_of_one_name_on_the_same_ledgers() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one:
            log = await one.open()
            await append(log, range(12))
            await log.close()
            record = await one.store.get(log_path(NAME))
            assert record is not None
            theirs = await world.ids_of(one)
            # Seen from the other tree, the list of that name is its own, and knows none of these.
            await one.store.delete(log_path(NAME), -1)
        async with world.host("b", tree="another") as two:
            ours = await two.open()
            assert await two_passes(two) == []
            assert set(theirs) < set(await world.ledgers(two))
            await two.logs.delete(ours)
            assert await two_passes(two) == []
            assert set(await world.ledgers(two)) == set(theirs)

    play(scenario)


def test_what_is_young_stays() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            of_gone = await made(host, OTHER)
            of_open = await made(host)
            await host.open()
            assert await two_passes(host, age_s=60) == []
            await trio.sleep(60)
            assert sorted(await two_passes(host, age_s=60)) == [of_gone, of_open]

    play(scenario)


def test_without_a_tree_nothing_is_removed_and_ledgers_name_none() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a", tree=None) as host:
            await made(host)
            log = await host.open()
            assert tree_of((await host.client.metadata(log.owned_from)).custom) is None
            assert await two_passes(host) == []

    play(scenario)


def test_a_list_that_is_not_seen_now_is_not_gone() -> None:
    """The server is behind: it knows the ledger, and not that its topic exists again.

    The owner of the topic decides then.
    """

    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            lost = await made(two)
            world.fall_behind(two)
            log = await one.open()
            stale = two.link.stale
            for _ in range(2):
                two.link.stale = stale
                assert await two.logs.remove_orphans(of_gone_logs=True) == []
            assert list(await one.logs.remove_orphans()) == [lost]
            assert log.usable

    play(scenario)


def test_the_first_who_asks_draws_the_id_of_the_tree() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as one, world.host("b") as two:
            found: list[str] = []

            async def ask(host: Host) -> None:
                found.append(await tree_id(host.store, world.rng))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, one)
                nursery.start_soon(ask, two)
            assert len(found) == 2
            assert len(set(found)) == 1
            for value in (b"", b"{", b'{"treeId":"","version":1}', b'{"treeId":"x","version":2}'):
                await one.store.set(PATH, value, -1)
                with pytest.raises(MalformedRecordError):
                    await tree_id(two.store, world.rng)

    play(scenario)
