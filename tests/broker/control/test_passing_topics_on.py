"""A bundle with many topics changes hands group by group, also while brokers and answers fail."""

from collections.abc import Sequence
from itertools import chain

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces.records import Successor
from daybook.broker.ownership.leaving import Receiver
from daybook.broker.ownership.owner_records import Ticket
from daybook.broker.protocol.bundles import BundleName, contains
from daybook.broker.protocol.ownership import Answer
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import Cluster, ControlPlane, open_cluster

A = BundleName("public/default/0x00000000_0x10000000")
TOPICS = [
    topic
    for topic in (TopicName.parse(f"topic-{number}") for number in range(3000))
    if contains(A, topic.namespace, topic.bundle_hash)
][:24]
NAMES = [topic.full for topic in TOPICS]


class Passing:
    """Broker one hands its topics to broker two; `calls` is what two was asked, in order."""

    def __init__(self, one: ControlPlane, two: ControlPlane) -> None:
        self.one, self.two = one, two
        self.calls: list[str] = []
        self.tickets: list[Ticket] = []
        self.fail = ""
        self.gate = trio.Event()  # passing on waits for it
        self.gate.set()

    def _called(self, name: str, ticket: Ticket) -> None:
        self.calls.append(name)
        self.tickets.append(ticket)
        if self.fail == name:
            raise UnavailableError("no answer")

    async def _hold(self, ticket: Ticket, hashes: Sequence[int]) -> None:
        self._called("hold", ticket)
        await self.two.ownership.hold(A, ticket, hashes)

    async def _pass_on(self, ticket: Ticket, closed: Sequence[str], used: Sequence[str]) -> None:
        self._called("pass on", ticket)
        assert set(used) <= set(closed)
        hashes = [TopicName.parse(name).bundle_hash for name in closed]
        await self.two.ownership.pass_on(A, ticket, hashes)
        await self.gate.wait()

    async def _give(self, ticket: Ticket) -> None:
        self._called("give", ticket)
        await self.two.ownership.take(A, ticket)

    async def run(self) -> None:
        self.two.ownership.expect(A)
        receiver = Receiver(self._hold, self._pass_on, self._give)
        successor = Successor(self.two.identity.service_url)
        await self.one.ownership.hand_over(A, successor, receiver)


async def start(cluster: Cluster) -> Passing:
    one, two = await cluster.start("one"), await cluster.start("two")
    assert await one.ownership.acquire(A) is Answer.OURS
    one.topics.served = list(TOPICS)
    await two.policies.bundles("public/default")
    return Passing(one, two)


def loads(broker: ControlPlane) -> list[bool]:
    return [broker.ownership.may_load(topic) for topic in TOPICS]


async def test_topics_change_hands_before_the_bundle(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        one, two = passing.one, passing.two
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(one.topics.closed_names) == sorted([NAMES[:4], NAMES[4:8]])
            assert loads(two) == [True] * 8 + [False] * 16
            assert two.ownership.owns(TOPICS[0])
            assert not two.ownership.owns(TOPICS[8])
            assert loads(one) == [False] * 24
            assert not two.ownership.owned
            passing.gate.set()
        assert passing.calls == ["hold", *["pass on"] * (len(passing.calls) - 2), "give"]
        assert sorted(chain.from_iterable(one.topics.closed_names)) == sorted(NAMES)
        assert set(one.topics.sent_to) == {two.identity.service_url}
        assert two.ownership.owned == [A]
        assert loads(two) == [True] * 24
        assert two.topics.dropped == []


async def test_the_owner_answers_for_the_topics_that_it_still_serves(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        one, two = passing.one, passing.two
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            kept = await one.lookups.lookup(TOPICS[-1])
            passed = await one.lookups.lookup(TOPICS[0])
            assert kept.service_url == one.identity.service_url
            assert passed.service_url == two.identity.service_url
            passing.gate.set()
        kept = await one.lookups.lookup(TOPICS[-1])
        assert kept.service_url == two.identity.service_url


async def test_a_client_waits_for_its_topic_and_not_for_the_bundle(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.gate = trio.Event()
        came: list[int] = []

        async def wait(index: int) -> None:
            await passing.two.ownership.wait_handed_over(TOPICS[index])
            came.append(index)

        async with trio.open_nursery() as nursery:
            passing.two.ownership.expect(A)
            nursery.start_soon(wait, 0)
            nursery.start_soon(wait, 23)
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            assert came == [0]
            passing.gate.set()
        assert came == [0, 23]


async def test_a_topic_that_the_owner_does_not_serve_is_loaded_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.one.topics.served = TOPICS[1:]
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            assert passing.two.ownership.may_load(TOPICS[0])
            passing.gate.set()


async def test_an_expectation_lasts_while_topics_are_passed_on(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.one.topics.closing_takes_s = 9.0  # for each of at least four groups in a row
        await passing.run()
        assert passing.two.ownership.owned == [A]
        assert passing.two.topics.dropped == []


async def test_one_slow_topic_does_not_end_the_expectation(autojump_clock: MockClock) -> None:
    """The owner waits 10 s for the group of the topic, and 10 s more for the bundle."""
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.one.topics.closing_takes_s = 60.0
        began = trio.current_time()
        await passing.run()
        assert trio.current_time() - began > 19
        assert passing.calls == ["hold", "give"]
        assert passing.one.topics.dropped == [A]
        assert passing.two.ownership.owned == [A]


@pytest.mark.parametrize("case", ["few topics", "broken off"])
async def test_the_successor_answers_for_topics_that_are_closed_with_the_bundle(
    case: str, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        one, two = passing.one, passing.two
        one.topics.closing_takes_s = 2.0
        if case == "few topics":
            one.topics.served = TOPICS[:4]
        else:
            passing.fail = "hold"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.sleep(1)
            assert one.topics.closed == []
            for topic in one.topics.served:
                found = await one.lookups.lookup(topic)
                assert found.service_url == two.identity.service_url


async def test_topics_that_store_nothing_are_closed_before_the_first_group(
    autojump_clock: MockClock,
) -> None:
    """The next owner may serve them as soon as it knows which topics the owner still has."""
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.one.topics.closing_takes_s = 2.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.sleep(1)
            assert passing.calls == ["hold"]
            assert passing.one.topics.closed_names == []
            closed = passing.one.topics.non_persistent.closed
            assert closed == [(A, passing.two.identity.service_url)]


@pytest.mark.parametrize("failing", ["hold", "pass on", "give"])
async def test_a_hand_over_that_is_broken_off_leaves_one_owner(
    failing: str, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.fail = failing
        await passing.run()
        assert passing.one.topics.closed == [A]  # The rest is closed with the bundle.
        passed_on = passing.calls.count("pass on")
        assert passed_on <= 2 or failing == "give"
        assert passing.one.ownership.owned == []
        await trio.sleep(1)
        assert passing.two.ownership.owned == [A]
        assert loads(passing.two) == [True] * 24


async def test_the_next_owner_serves_all_topics_if_the_owner_dies(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            cluster.store.expire(passing.one.session_id)
            passing.one.kill()
            await trio.sleep(1)
            assert passing.two.ownership.owned == [A]
            assert loads(passing.two) == [True] * 24
            nursery.cancel_scope.cancel()


async def test_topics_are_dropped_if_the_bundle_does_not_come(autojump_clock: MockClock) -> None:
    """The owner has kept the bundle, or another broker has it."""
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            passing.two.ownership.expect_no_longer(A)
            assert passing.two.topics.dropped == [A]
            assert loads(passing.two) == [False] * 24
            nursery.cancel_scope.cancel()


async def test_topics_are_dropped_with_the_session(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            cluster.store.expire(passing.two.session_id)
            await trio.testing.wait_all_tasks_blocked()
            assert passing.two.topics.dropped == [A]
            nursery.cancel_scope.cancel()


async def test_an_owner_that_lost_the_bundle_begins_with_no_further_topics(
    autojump_clock: MockClock,
) -> None:
    """The owner loses its session while two groups are on their way, and joins again."""
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            cluster.store.expire(passing.one.session_id)
            await trio.sleep(1)
            assert passing.one.ownership.contact
            assert passing.two.ownership.owned == [A]
            passing.gate.set()
            await trio.testing.wait_all_tasks_blocked()
        assert sorted(passing.one.topics.closed_names) == sorted([NAMES[:4], NAMES[4:8]])


async def test_topics_are_passed_on_with_the_ticket_of_the_record_only(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        await passing.run()
        (ticket, *_) = passing.tickets
        # The bundle goes back; a call of the first hand-over comes late.
        await passing.two.ownership.release(A)
        assert await passing.one.ownership.acquire(A) is Answer.OURS
        passing.two.ownership.expect(A)
        with pytest.raises(UnavailableError, match="not good"):
            await passing.two.ownership.hold(A, ticket, [])
        with pytest.raises(UnavailableError, match="not good"):
            await passing.two.ownership.pass_on(A, ticket, [TOPICS[0].bundle_hash])
        assert loads(passing.two) == [False] * 24


async def test_a_broker_that_stops_loads_nothing_for_others(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        passing = await start(cluster)
        passing.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passing.run)
            await trio.testing.wait_all_tasks_blocked()
            await passing.two.ownership.withdraw()
            assert loads(passing.two) == [False] * 24
            with pytest.raises(UnavailableError):
                await passing.two.ownership.pass_on(A, passing.tickets[0], [])
            nursery.cancel_scope.cancel()
