"""Bundles are handed over to a named broker, and split, while sessions and answers are lost."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from daybook.broker.admin.bundle_operations import BundleOperations, BundleRow
from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import LocalPolicies, Successor
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.leaving import Receiver
from daybook.broker.ownership.membership import owners, remove
from daybook.broker.ownership.owner_records import Ticket
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.protocol.bundles import (
    HASH_MAX,
    BundleName,
    Bundles,
    contains,
    median,
    middle,
    parts_of,
)
from daybook.broker.protocol.ownership import Answer
from daybook.wire.logging import silent_log
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import Cluster, ControlPlane, open_cluster

TOPIC = TopicName.parse("orders")
A = BundleName("public/default/0x00000000_0x10000000")
HALVES = [
    BundleName("public/default/0x00000000_0x08000000"),
    BundleName("public/default/0x08000000_0x10000000"),
]
FIRST_HALF = 0x08000000

Give = Callable[[Ticket], Awaitable[None]]


async def owner_sessions(broker: ControlPlane) -> dict[str, int]:
    return {owned.bundle: owned.session for owned in await owners(broker.session)}


async def start_two(cluster: Cluster) -> tuple[ControlPlane, ControlPlane]:
    one, two = await cluster.start("one"), await cluster.start("two")
    assert await one.ownership.acquire(A) is Answer.OURS
    return one, two


def successor(broker: ControlPlane) -> Successor:
    return Successor(broker.identity.service_url)


def receiver(two: ControlPlane, give: Give, bundle: BundleName = A) -> Receiver:
    async def hold(ticket: Ticket, hashes: Sequence[int]) -> None:
        await two.ownership.hold(bundle, ticket, hashes)

    async def pass_on(ticket: Ticket, closed: Sequence[str], used: Sequence[str]) -> None:
        assert set(used) <= set(closed)
        hashes = [TopicName.parse(name).bundle_hash for name in closed]
        await two.ownership.pass_on(bundle, ticket, hashes)

    return Receiver(hold, pass_on, give)


async def hand_over(one: ControlPlane, two: ControlPlane, give: Give | None = None) -> None:
    async def take(ticket: Ticket) -> None:
        await two.ownership.take(A, ticket)

    two.ownership.expect(A)
    await one.ownership.hand_over(A, successor(two), receiver(two, give or take))


async def test_a_bundle_is_handed_over(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        await hand_over(one, two)
        assert (one.ownership.owned, two.ownership.owned) == ([], [A])
        assert await owner_sessions(one) == {A: two.session_id}
        assert one.topics.closed == [A]
        assert one.topics.sent_to == [two.identity.service_url]
        assert not two.ownership.expects(A)


async def test_nobody_else_can_own_it_in_between(autojump_clock: MockClock) -> None:
    """The record is replaced in one request: a third broker never finds it absent."""
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        three = await cluster.start("three")
        seen: list[Answer] = []

        async def ask() -> None:
            while not two.ownership.owned:
                seen.append(await three.ownership.acquire(A))
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await hand_over(one, two)
        assert set(seen) == {Answer.OTHERS}
        assert three.ownership.owned == []


async def test_lookups_name_the_next_owner_from_the_beginning(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        three = await cluster.start("three")
        one.topics.closing_takes_s = 2.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hand_over, one, two)
            await trio.sleep(1)
            for broker in (one, two, three):
                found = await broker.lookups.lookup_bundle(A, authoritative=False)
                assert (found.service_url, found.redirect) == (two.identity.service_url, False)


async def test_a_move_under_way_is_listed_and_so_are_the_bundles_of_a_broker_that_leaves(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one", "http://one:8080")
        two = await cluster.start("two", "http://two:8080")
        assert await one.ownership.acquire(A) is Answer.OURS
        calls = PeerCalls(PeerNetwork(two.network))
        hand_overs = HandOvers(two.session, two.ownership, two.peers, calls, silent_log())
        operations = BundleOperations(
            two.session,
            two.policies,
            two.ownership,
            two.topics,
            hand_overs,
            calls,
            bundles_max=20,
        )

        async def listed() -> BundleRow:
            (row,) = (row for row in await operations.rows("public/default") if row.broker)
            assert f"public/default/{row.bundle}" == A
            return row

        here, there = one.identity.broker_id, two.identity.broker_id
        assert ((await listed()).broker, (await listed()).moving_to) == (here, "")
        one.topics.closing_takes_s = 2.0
        assert await one.ownership.withdraw()
        async with trio.open_nursery() as nursery:
            two.ownership.expect(A)
            to = Successor(two.identity.service_url, two.identity.http_url)
            take = partial(two.ownership.take, A)
            nursery.start_soon(one.ownership.hand_over, A, to, receiver(two, take))
            await trio.sleep(1)
            row = await listed()
            assert (row.broker, row.moving_to) == (here, there)
            assert row.moving_since_ms == cluster.clock.now_ms()
        row = await listed()
        assert (row.broker, row.moving_to, row.moving_since_ms) == (there, "", None)


async def test_clients_wait_at_the_next_owner_until_it_has_the_bundle(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        bundle = await two.policies.bundle_of(TOPIC)
        await one.ownership.acquire(bundle)
        one.topics.closing_takes_s = 2.0

        async def take(ticket: Ticket) -> None:
            await two.ownership.take(bundle, ticket)

        two.ownership.expect(bundle)
        async with trio.open_nursery() as nursery:
            to = receiver(two, take, bundle)
            nursery.start_soon(one.ownership.hand_over, bundle, successor(two), to)
            began = trio.current_time()
            await two.ownership.wait_handed_over(TOPIC)
            assert 1.9 < trio.current_time() - began < 3
            assert two.ownership.may_load(TOPIC)


async def test_a_bundle_that_is_not_taken_is_deleted_and_acquired(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)

        async def fail(_: Ticket) -> None:
            raise UnavailableError("no answer")

        await hand_over(one, two, fail)
        assert one.ownership.owned == []
        await trio.sleep(1)  # It expects the bundle, and sees that the record has gone.
        assert two.ownership.owned == [A]


async def test_a_broker_that_expects_a_bundle_gets_it_when_the_owner_dies(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        two.ownership.expect(A)
        cluster.store.expire(one.session_id)
        one.kill()
        await trio.sleep(1)
        assert two.ownership.owned == [A]


async def test_a_broker_expects_a_bundle_no_longer(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        two.ownership.expect(A)
        two.ownership.expect_no_longer(A)
        assert not two.ownership.expects(A)
        await one.ownership.release(A)
        await trio.sleep(30)
        assert two.ownership.owned == []
        two.ownership.expect(A)
        await trio.sleep(1)
        assert two.ownership.owned == [A]


async def test_an_expectation_ends_by_itself(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        _, two = await start_two(cluster)
        two.ownership.expect(A)
        await trio.sleep(29)
        assert two.ownership.expects(A)
        await trio.sleep(2)
        assert not two.ownership.expects(A)


@pytest.mark.parametrize("when", ["before the look", "after the look", "after the first look"])
async def test_an_expectation_ends_when_a_third_broker_has_the_bundle(
    when: str, autojump_clock: MockClock
) -> None:
    """The third broker acquires the bundle before or after the next owner sees that it is free."""
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        three = await cluster.start("three")
        real = two.session.get
        answers: list[Answer] = []

        async def get(path: str, watch: object = None) -> object:
            free = path == records.owner_path(A) and not one.ownership.owned and not answers
            if free and when == "before the look":
                answers.append(await three.ownership.acquire(A))
            found = await real(path, watch)  # type: ignore[arg-type]
            if free and when != "before the look":
                answers.append(await three.ownership.acquire(A))
            return found

        if when == "after the first look":  # The owner was gone already.
            await one.ownership.release(A)
        else:
            two.ownership.expect(A)
            await trio.testing.wait_all_tasks_blocked()
        two.session.get = get  # type: ignore[method-assign, assignment]
        if when == "after the first look":
            two.ownership.expect(A)
        else:
            await one.ownership.release(A)
        await trio.sleep(1)
        assert answers == [Answer.OURS]
        assert three.ownership.owned == [A]
        assert not two.ownership.expects(A)
        found = await two.lookups.lookup_bundle(A, authoritative=False)
        assert found.service_url == three.identity.service_url


async def test_a_ticket_is_good_for_one_record_only(autojump_clock: MockClock) -> None:
    """The owner gave up, and owns the bundle again: the late call changes nothing."""
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        kept: list[Ticket] = []

        async def keep(ticket: Ticket) -> None:
            kept.append(ticket)
            two.ownership.expect_no_longer(A)
            raise UnavailableError("no answer")

        await hand_over(one, two, keep)
        assert await one.ownership.acquire(A) is Answer.OURS
        two.ownership.expect(A)
        with pytest.raises(UnavailableError):
            await two.ownership.take(A, kept[0])
        assert one.ownership.owned == [A]
        assert await owner_sessions(one) == {A: one.session_id}


async def test_only_an_expected_bundle_is_taken(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        record = await one.session.get(records.owner_path(A))
        assert record is not None
        guards = await one.session.get_children(records.GUARDS)
        assert guards is not None
        ticket = Ticket(f"{records.GUARDS}/{min(guards)}", record.stat.created_txid)
        with pytest.raises(UnavailableError, match="does not expect"):
            await two.ownership.take(A, ticket)
        assert one.ownership.owned == [A]


@pytest.mark.parametrize("guard", ["", "guard", "/", "/a/../b", "/daybook/guards/..", "/x" * 999])
async def test_a_ticket_that_names_no_guard_changes_nothing(
    guard: str, autojump_clock: MockClock
) -> None:
    """The call comes from the network."""
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        record = await one.session.get(records.owner_path(A))
        assert record is not None
        two.ownership.expect(A)
        ticket = Ticket(guard, record.stat.created_txid)
        with pytest.raises(UnavailableError, match="could not take"):
            await two.ownership.take(A, ticket)
        with pytest.raises(UnavailableError, match="could not take"):
            await two.ownership.hold(A, ticket, [])
        with pytest.raises(UnavailableError, match="could not take"):
            await two.ownership.pass_on(A, ticket, [])
        assert (one.ownership.owned, two.ownership.owned) == ([A], [])


async def test_the_giver_does_not_delete_the_record_of_the_taker(
    autojump_clock: MockClock,
) -> None:
    """The successor takes the record between the owner's last look at it and the deletion."""
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        tickets: list[Ticket] = []

        async def fail(ticket: Ticket) -> None:
            tickets.append(ticket)
            raise UnavailableError("no answer")

        real = one.session.get

        async def get(path: str, watch: object = None) -> object:
            found = await real(path, watch)  # type: ignore[arg-type]
            if tickets and path == records.owner_path(A):
                await two.ownership.take(A, tickets.pop())
            return found

        one.session.get = get  # type: ignore[method-assign, assignment]
        await hand_over(one, two, fail)
        assert await owner_sessions(two) == {A: two.session_id}
        await trio.sleep(1)
        assert (one.ownership.owned, two.ownership.owned) == ([], [A])


async def test_the_giver_leaves_the_record_that_was_taken(autojump_clock: MockClock) -> None:
    """The record is taken after the owner has decided to delete it, and before it looks again."""
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        tickets: list[Ticket] = []

        async def fail(ticket: Ticket) -> None:
            tickets.append(ticket)
            raise UnavailableError("no answer")

        real = one.session.get

        async def get(path: str, watch: object = None) -> object:
            if tickets and path == tickets[0].guard:
                await two.ownership.take(A, tickets.pop())
            return await real(path, watch)  # type: ignore[arg-type]

        one.session.get = get  # type: ignore[method-assign, assignment]
        await hand_over(one, two, fail)
        assert await owner_sessions(two) == {A: two.session_id}
        assert not tickets


async def test_the_next_owner_answers_lookups_before_the_owner_begins(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        _, two = await start_two(cluster)
        two.ownership.expect(A)
        found = await two.lookups.lookup_bundle(A, authoritative=False)
        assert found.service_url == two.identity.service_url


async def test_a_deletion_that_meets_a_taking_is_refused(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        tickets: list[Ticket] = []

        async def fail(ticket: Ticket) -> None:
            tickets.append(ticket)
            raise UnavailableError("no answer")

        real = one.session.multi

        async def multi(operations: object) -> None:
            if tickets:
                await two.ownership.take(A, tickets.pop())
            await real(operations)  # type: ignore[arg-type]

        one.session.multi = multi  # type: ignore[method-assign, assignment]
        await hand_over(one, two, fail)
        assert await owner_sessions(two) == {A: two.session_id}
        await trio.sleep(1)
        assert (one.ownership.owned, two.ownership.owned) == ([], [A])


@pytest.mark.parametrize("applied", [True, False])
async def test_a_taking_without_an_answer_is_looked_up(
    applied: bool, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        await two.ownership.acquire(BundleName("public/default/0x10000000_0x20000000"))
        two.session.link.lose_next(applied=applied, operation="multi")  # type: ignore[attr-defined]
        await hand_over(one, two)
        await trio.sleep(1)
        assert two.ownership.owned[0] == A
        assert (await owner_sessions(two))[A] == two.session_id


async def test_a_remover_that_has_read_before_deletes_nothing_of_the_successor(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        three = await cluster.start("three")
        (member,) = [m for m in await three.leader.live() if m.session == one.session_id]
        store = three.session
        real = store.multi
        done = False

        async def slow(operations: object) -> None:
            nonlocal done
            if not done:
                done = True
                await hand_over(one, two)
            await real(operations)  # type: ignore[arg-type]

        store.multi = slow  # type: ignore[method-assign, assignment]
        assert await remove(store, member)
        assert await owner_sessions(two) == {A: two.session_id}


async def test_several_bundles_are_handed_over_at_once(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        bundles = [
            BundleName(f"public/default/0x{n:x}0000000_0x{n + 1:x}0000000") for n in range(1, 9)
        ]

        async def move(bundle: BundleName) -> None:
            async def take(ticket: Ticket) -> None:
                await two.ownership.take(bundle, ticket)

            await one.ownership.acquire(bundle)
            two.ownership.expect(bundle)
            to = receiver(two, take, bundle)
            await one.ownership.hand_over(bundle, successor(two), to)

        async with trio.open_nursery() as nursery:
            for bundle in bundles:
                nursery.start_soon(move, bundle)
        assert two.ownership.owned == bundles


async def test_a_broker_that_stops_takes_nothing(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        _, two = await start_two(cluster)
        await two.ownership.withdraw()
        with pytest.raises(UnavailableError, match="takes no bundles"):
            two.ownership.expect(A)


# -- splitting


async def test_a_bundle_is_split_and_served_all_the_time(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        await two.policies.bundles("public/default")
        await one.ownership.split(A, [FIRST_HALF])
        assert one.ownership.owned == HALVES
        assert await owner_sessions(one) == dict.fromkeys(HALVES, one.session_id)
        assert (one.topics.closed, one.topics.dropped) == ([], [])
        assert "0x08000000" in (await two.policies.bundles("public/default")).texts()
        found = await two.lookups.lookup_bundle(HALVES[1], authoritative=False)
        assert found.service_url == one.identity.service_url


async def test_a_topic_belongs_to_its_owner_in_every_turn_of_a_split(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        bundle = await one.policies.bundle_of(TOPIC)
        await one.ownership.acquire(bundle)
        (point,) = middle(bundle.rpartition("/")[2])
        seen: list[bool] = []
        done = False

        class Watch(trio.abc.Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                del task
                seen.append(one.ownership.owns(TOPIC) and one.ownership.may_load(TOPIC))

        watch = Watch()
        trio.lowlevel.add_instrument(watch)
        try:
            await one.ownership.split(bundle, [point])
            await trio.sleep(1)
            done = True
        finally:
            trio.lowlevel.remove_instrument(watch)
        assert done
        assert all(seen)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_split_without_an_answer_leaves_one_owner_that_knows(
    applied: bool, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.ownership.acquire(A)
        one.session.link.lose_next(applied=applied, operation="multi")  # type: ignore[attr-defined]
        with pytest.raises(UnavailableError, match="may not have been split"):
            await one.ownership.split(A, [FIRST_HALF])
        await trio.sleep(1)
        if not applied:
            assert one.ownership.owned == [A]
            return
        assert one.topics.dropped == [A]  # They are loaded again, as topics of the parts.
        for half in HALVES:
            await one.lookups.lookup_bundle(half, authoritative=False)
        assert one.ownership.owned == HALVES


async def test_a_bundle_that_was_split_is_acquired_by_nobody(autojump_clock: MockClock) -> None:
    """A broker that has not seen the new boundaries yet cannot own the old bundle."""
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        await two.policies.bundles("public/default")
        reads: list[int] = []
        real = two.policies.read_bundles

        async def split_after_read(namespace: str) -> tuple[Bundles, int]:
            found = await real(namespace)
            if not reads:
                reads.append(1)
                await one.ownership.split(A, [FIRST_HALF])
            return found

        two.policies.read_bundles = split_after_read  # type: ignore[method-assign]
        assert await two.ownership.acquire(A) is Answer.UNAVAILABLE
        assert await two.ownership.acquire(A) is Answer.UNAVAILABLE
        assert await owner_sessions(one) == dict.fromkeys(HALVES, one.session_id)


async def test_two_bundles_of_a_namespace_are_split_at_once(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start_two(cluster)
        last = BundleName("public/default/0xf0000000_0xffffffff")
        await two.ownership.acquire(last)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ownership.split, A, [FIRST_HALF])
            nursery.start_soon(two.ownership.split, last, [0xF8000000])
        assert one.ownership.owned == HALVES
        assert len(two.ownership.owned) == 2
        record = await one.session.get(records.local_policies_path("public/default"))
        assert record is not None
        assert records.decode(LocalPolicies, record.value).bundles.num_bundles == 18


async def test_a_split_keeps_what_pulsar_has_stored(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, _ = await start_two(cluster)
        path = records.local_policies_path("public/default")
        record = await one.session.get(path)
        assert record is not None
        fields = records.decode(dict[str, object], record.value)
        fields["bookieAffinityGroup"] = {"bookkeeperAffinityGroupPrimary": "g1"}
        await one.session.set(path, records.encode(fields), record.stat.version)
        await one.ownership.split(A, [FIRST_HALF])
        record = await one.session.get(path)
        assert record is not None
        assert b'"g1"' in record.value


# -- where to split


def test_a_range_is_split_in_the_middle() -> None:
    assert middle("0x00000000_0x10000000") == [0x08000000]
    assert middle("0x00000000_0x00000002") == [1]
    assert middle("0x00000000_0x00000001") == []
    assert parts_of("0xf0000000_0xffffffff", [0xF8000000]) == [
        "0xf0000000_0xf8000000",
        "0xf8000000_0xffffffff",
    ]


def test_topics_are_split_into_halves() -> None:
    range_ = "0x00000000_0x10000000"
    assert median(range_, [1, 2, 3, 4]) == [3]
    assert median(range_, [0, 5]) == [5]
    assert median(range_, [7]) == []
    assert median(range_, [7, 7]) == []
    assert median(range_, []) == []


def test_the_last_bundle_includes_its_end() -> None:
    last, first = BundleName("t/n/0x80000000_0xffffffff"), BundleName("t/n/0x00000000_0x80000000")
    assert contains(last, "t/n", HASH_MAX)
    assert contains(last, "t/n", 0x80000000)
    assert not contains(first, "t/n", 0x80000000)
    assert not contains(last, "t/other", HASH_MAX)


def test_bundles_are_split_only_inside() -> None:
    bundles = Bundles.equal(4)
    assert bundles.split("0x00000000_0x40000000", [1, 2]).count == 6
    for points in ([], [0], [0x40000000], [0x50000000]):
        with pytest.raises(ValueError, match="between its ends"):
            bundles.split("0x00000000_0x40000000", points)
    with pytest.raises(ValueError, match="no bundle"):
        bundles.split("0x00000000_0x30000000", [1])
