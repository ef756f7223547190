"""Bundles change owners: sessions and answers are lost, brokers die."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
import structlog
import trio
from structlog.testing import CapturingLogger
from trio.testing import MockClock

from daybook.broker.errors import NotFoundError, UnavailableError
from daybook.broker.namespaces.records import BROKERS, GUARDS, LEADER
from daybook.broker.ownership.membership import members, owners, remove
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import Answer
from daybook.wire.metadata.memory import MemorySession, Request
from daybook.wire.metadata.store import ANY, Operation
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import ControlPlane, open_cluster

TOPIC = TopicName.parse("orders")
A = BundleName("public/default/0x00000000_0x10000000")
B = BundleName("public/default/0x10000000_0x20000000")


async def until(condition: object, timeout_s: float = 30.0) -> None:
    assert callable(condition)
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - a test may poll
            await trio.sleep(0.01)


async def owner_sessions(broker: ControlPlane) -> dict[str, int]:
    return {owned.bundle: owned.session for owned in await owners(broker.session)}


async def test_one_of_two_gets_a_bundle(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        assert await one.ownership.acquire(A) is Answer.OURS
        assert await two.ownership.acquire(A) is Answer.OTHERS
        assert await two.ownership.acquire(B) is Answer.OURS
        assert one.ownership.owned == [A]
        assert await owner_sessions(one) == {A: one.session_id, B: two.session_id}


async def test_two_who_try_at_once_get_one_owner(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        brokers = [await cluster.start("one"), await cluster.start("two")]
        answers: list[Answer] = []

        async def acquire(broker: ControlPlane) -> None:
            answers.append(await broker.ownership.acquire(A))

        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(acquire, broker)
        assert sorted(answer.name for answer in answers) == ["OTHERS", "OURS"]


@pytest.mark.parametrize("applied", [True, False])
async def test_an_acquisition_without_an_answer_is_looked_up(
    applied: bool, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.ownership.acquire(B)
        one.session.link.lose_next(applied=applied, operation="multi")  # type: ignore[attr-defined]
        assert await one.ownership.acquire(A) is Answer.OURS
        assert (await owner_sessions(one))[A] == one.session_id


@pytest.mark.parametrize("applied", [True, False])
async def test_joining_without_an_answer_leaves_one_guard_that_counts(
    applied: bool, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        one.session.link.lose_next(applied=applied, operation="multi")  # type: ignore[attr-defined]
        cluster.store.expire(one.session_id)
        await until(lambda: one.ownership.contact)
        assert await one.ownership.acquire(A) is Answer.OURS
        assert len(await one.session.get_children(GUARDS) or []) == 1


async def test_a_join_that_was_overtaken_is_in_nobodys_way(autojump_clock: MockClock) -> None:
    """The session ends again during a join: the join's later writes are in the new session, under
    the name of this broker, with a guard that no later join knows (seed 1000331).
    """
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        link, expired = one.session.link, list[int]()
        ask = link.request

        async def expire_behind(request: Request, execute: Callable[[], None]) -> None:
            await ask(request, execute)
            if request.path == BROKERS and not expired:
                expired.append(one.session.store_session_id)
                cluster.store.expire(expired[0])

        link.request = expire_behind  # type: ignore[method-assign]
        cluster.store.expire(one.session_id)
        await until(lambda: one.ownership.contact)
        assert expired
        assert await one.ownership.acquire(A) is Answer.OURS
        assert len(await one.session.get_children(GUARDS) or []) == 2
        await remove_by(two, "one")
        assert await two.ownership.acquire(A) is Answer.OURS


async def test_a_guard_that_is_deleted_by_hand_is_written_again(autojump_clock: MockClock) -> None:
    """The registration stays, and would stand in the way of the next join."""
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        (name,) = [n for n in await two.session.get_children(GUARDS) or [] if n.startswith("one")]
        await two.session.delete(f"{GUARDS}/{name}", ANY)
        await until(lambda: one.topics.dropped == [A])
        await until(lambda: one.ownership.contact)
        assert [member.broker_id for member in await members(two.session)] == [
            "one:8080",
            "two:8080",
        ]
        assert len(await two.session.get_children(GUARDS) or []) == 2
        assert await one.ownership.acquire(B) is Answer.OURS


async def test_a_join_that_is_overtaken_removes_nothing_of_the_next_one(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        link = one.session.link
        link.delay_s = 0.5  # type: ignore[attr-defined]
        ask = link.request

        async def look_long(request: Request, execute: Callable[[], None]) -> None:
            if request.path == f"{BROKERS}/one:8080" and not request.write:
                await trio.sleep(3.0)
            await ask(request, execute)

        link.request = look_long  # type: ignore[method-assign]
        cluster.store.expire(one.session_id)
        await trio.sleep(1.2)  # Guard and registration are being written.
        cluster.store.expire(one.session_id)
        await until(lambda: one.ownership.contact)
        assert await one.ownership.acquire(A) is Answer.OURS
        await trio.sleep(10.0)
        assert one.topics.dropped == []
        assert one.ownership.owned == [A]


async def test_a_released_bundle_is_free_after_its_topics_are_closed(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        one.topics.closing_takes_s = 3.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ownership.release, A)
            await trio.sleep(2.0)
            assert not one.ownership.owns_bundle(A)
            assert await two.ownership.acquire(A) is Answer.OTHERS
        assert one.topics.closed == [A]
        assert await two.ownership.acquire(A) is Answer.OURS


@pytest.mark.parametrize("applied", [True, False])
async def test_a_release_without_an_answer_is_looked_up(
    applied: bool, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        one.session.link.lose_next(applied=applied, operation="multi")  # type: ignore[attr-defined]
        await one.ownership.release(A)
        assert await two.ownership.acquire(A) is Answer.OURS
        assert one.topics.dropped == []


async def test_a_suspended_broker_keeps_what_it_has_and_takes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.lookups.lookup(TOPIC, authoritative=True)
        assert one.ownership.may_load(TOPIC)
        cluster.store.suspend()
        await trio.sleep(3600)
        assert one.ownership.owns(TOPIC)
        assert not one.ownership.may_load(TOPIC)
        assert (await one.lookups.lookup(TOPIC)).service_url == "pulsar://one:6650"
        assert await one.ownership.acquire(A) is Answer.UNAVAILABLE
        with trio.fail_after(0.1), pytest.raises(UnavailableError):  # the error comes at once
            await one.lookups.lookup(TopicName.parse("elsewhere"), authoritative=True)
        with pytest.raises(UnavailableError):
            await one.ownership.release(one.ownership.owned[0])
        cluster.store.resume()
        await until(lambda: one.ownership.may_load(TOPIC))
        assert one.topics.dropped == []
        assert await one.ownership.acquire(A) is Answer.OURS


async def test_a_lost_session_drops_everything_at_once(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        cluster.store.expire(one.session_id)
        assert one.topics.dropped == [A]  # before any other task could run
        assert not one.ownership.owns_bundle(A)
        assert await two.ownership.acquire(A) is Answer.OURS
        await until(lambda: one.ownership.contact)
        assert [member.broker_id for member in await members(two.session)] == [
            "one:8080",
            "two:8080",
        ]
        assert await one.ownership.acquire(B) is Answer.OURS


async def test_a_session_that_expired_while_out_of_reach(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        one.session.suspend()
        cluster.store.expire(one.session_id)
        assert await two.ownership.acquire(A) is Answer.OURS
        assert one.topics.dropped == []  # The broker cannot know.
        one.session.resume()
        assert one.topics.dropped == [A]


async def test_a_killed_broker_is_replaced_long_before_its_session_ends(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        await until(lambda: two.peers.is_connected("one:8080"))
        one.kill()
        with trio.fail_after(1.0):
            while await two.ownership.acquire(A) is not Answer.OURS:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert [member.broker_id for member in await members(two.session)] == ["two:8080"]
        leader = await two.session.get(LEADER)
        await until(lambda: leader is not None)


async def test_a_restarted_broker_replaces_its_own_earlier_life(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.ownership.acquire(A)
        old_session = one.session_id
        one.kill()
        with trio.fail_after(1.0):
            again = await cluster.start("one")
        assert again.session_id != old_session
        assert await owner_sessions(again) == {}
        assert await again.ownership.acquire(A) is Answer.OURS


async def test_a_broken_connection_alone_removes_nobody(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        await until(lambda: two.peers.is_connected("one:8080"))
        for _ in range(5):
            cluster.network.cut("one")
            await trio.sleep(5)
        assert one.ownership.owned == [A]
        assert one.topics.dropped == []


async def test_a_broker_that_falls_silent_is_left_to_its_session(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        await until(lambda: two.peers.is_connected("one:8080"))
        cluster.network.block("one", "two")
        cluster.network.block("two", "one")
        cluster.network.cut("two")
        await trio.sleep(60)
        assert await two.ownership.acquire(A) is Answer.OTHERS
        assert one.topics.dropped == []


async def test_who_was_removed_by_mistake_drops_its_topics_and_joins_again(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        (member,) = [m for m in await members(two.session) if m.broker_id == "one:8080"]
        assert await remove(two.session, member)
        await until(lambda: one.topics.dropped == [A])
        assert await two.ownership.acquire(A) is Answer.OURS
        await until(lambda: one.ownership.contact)
        assert await one.ownership.acquire(B) is Answer.OURS
        assert len(await members(two.session)) == 2


async def time_out_of_the_cluster(one: ControlPlane, two: ControlPlane) -> float:
    """Remove a broker, which lives; return how long it takes to join again."""
    term, began = one.ownership._protocol.term, trio.current_time()
    await remove_by(two, "one")
    await until(lambda: one.ownership._protocol.term > term)
    while not one.ownership.contact:
        assert await one.ownership.acquire(A) is Answer.UNAVAILABLE
        await trio.sleep(0.01)
    return trio.current_time() - began


async def test_who_is_removed_again_and_again_waits_longer_and_says_why(
    autojump_clock: MockClock,
) -> None:
    lines = CapturingLogger()
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        one.ownership._registration._log = structlog.wrap_logger(lines, processors=[])
        cluster.network.block("one", "one")  # Its own address is of no use to it, either.
        joined_at: list[float] = []
        for _ in range(9):
            joined_at.append(round(await time_out_of_the_cluster(one, two)))
        assert joined_at == [0, 1, 2, 4, 8, 16, 32, 60, 60]
        told = [line.kwargs for line in lines.calls if "again and again" in line.kwargs["event"]]
        assert [line["pause_s"] for line in told] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert all("pulsar://one:6650" in line["why"] for line in told)
        # Once it has stayed for a while, one removal proves little.
        await trio.sleep(61)
        assert await time_out_of_the_cluster(one, two) < 1


async def test_what_a_dead_broker_owned_is_removed_in_steps_if_one_request_is_too_small(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the request was too large each time, and its bundles stayed until its session ended.

    Another broker, which has read the records before the first step, deletes no record that has a
    successor by then.
    """
    async with open_cluster() as cluster:
        one, two, three = [await cluster.start(name) for name in ("one", "two", "three")]
        for bundle in (A, B):
            await one.ownership.acquire(bundle)
        (dead,) = [m for m in await members(three.session) if m.broker_id == "one:8080"]
        one.kill()
        monkeypatch.setattr("daybook.broker.ownership.membership.REQUEST_BYTES_MAX", 380)
        late_has_read, half, late_is_done = trio.Event(), trio.Event(), trio.Event()
        steps = 0

        async def in_steps() -> None:
            nonlocal steps
            steps += 1
            if steps == 1:
                await late_has_read.wait()
            elif not half.is_set():  # Some bundle is free, and the guard still exists.
                freed = A if A not in await owner_sessions(two) else B
                assert await two.ownership.acquire(freed) is Answer.OURS
                half.set()
                await late_is_done.wait()

        async def between() -> None:
            late_has_read.set()
            await half.wait()

        async def remove_late() -> None:
            assert await remove(SlowToRemove(three.session, between), dead)  # type: ignore[arg-type]
            late_is_done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(remove_late)
            assert await remove(SlowToRemove(two.session, in_steps), dead)  # type: ignore[arg-type]
        assert steps > 1
        assert set((await owner_sessions(three)).values()) == {two.session_id}
        for bundle in (A, B):
            assert await two.ownership.acquire(bundle) is Answer.OURS


async def test_unowned_bundles_are_spread_evenly(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        brokers = [await cluster.start(name) for name in ("one", "two", "three")]
        for index in range(200):
            topic = TopicName.parse(f"topic-{index}")
            asked = brokers[index % 3 :] + brokers[: index % 3]
            await cluster.lookup(asked, topic)
        owned = [len(broker.ownership.owned) for broker in brokers]
        assert sum(owned) == 16
        assert max(owned) - min(owned) <= 1


async def test_every_broker_leads_to_the_same_owner(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        brokers = [await cluster.start(name) for name in ("one", "two", "three")]
        urls: set[str | None] = set()
        for index in range(3):
            result, hops = await cluster.lookup(brokers[index:] + brokers[:index], TOPIC)
            urls.add(result.service_url)
            assert hops <= 2
        assert len(urls) == 1


async def test_without_a_leader_anybody_decides(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        brokers = [await cluster.start(name) for name in ("one", "two")]
        for broker in brokers:
            broker.leader_scope.cancel()
        await brokers[0].session.delete(LEADER, -1)
        result, hops = await cluster.lookup(brokers, TOPIC)
        assert not result.redirect
        assert hops <= 1


async def test_a_leader_that_died_is_replaced(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await until(lambda: two.peers.is_connected("one:8080"))
        assert (await one.leader.view()).is_us
        one.kill()
        with trio.fail_after(2.0):
            while not (await two.leader.view()).is_us:  # noqa: ASYNC110
                await trio.sleep(0.01)
        result, hops = await cluster.lookup([two], TOPIC)
        assert (result.service_url, hops) == ("pulsar://two:6650", 0)


async def test_a_lookup_with_authority_is_never_passed_on(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        brokers = [await cluster.start(name) for name in ("one", "two", "three")]
        for index in range(40):
            topic = TopicName.parse(f"topic-{index}")
            result = await brokers[2].lookups.lookup(topic, authoritative=True)
            assert not result.redirect


async def test_an_unknown_namespace_is_not_found(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        with pytest.raises(NotFoundError):
            await one.lookups.lookup(TopicName.parse("persistent://public/none/x"))


async def test_brokers_that_start_at_once_agree(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        async with trio.open_nursery() as nursery:
            for name in ("one", "two", "three"):
                nursery.start_soon(cluster.start, name)
        one = await cluster.start("four")
        assert (await one.policies.namespace("public/default")).bundles.count == 16
        assert len(await members(one.session)) == 4


class SlowToRemove:
    """A store in which something happens between the read and the one multi of `remove`."""

    def __init__(self, store: MemorySession, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self.store = store
        self.meanwhile = meanwhile

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        await self.meanwhile()
        return await self.store.multi(operations)


async def test_removing_the_dead_never_hits_their_successors(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two, three = [await cluster.start(name) for name in ("one", "two", "three")]
        await one.ownership.acquire(A)
        (dead,) = [m for m in await members(three.session) if m.broker_id == "one:8080"]
        one.kill()

        async def succeed() -> None:
            cluster.store.expire(dead.session)
            assert await two.ownership.acquire(A) is Answer.OURS

        slow = SlowToRemove(three.session, succeed)
        assert await remove(slow, dead)  # type: ignore[arg-type]
        await trio.sleep(5)
        assert await owner_sessions(three) == {A: two.session_id}
        assert two.ownership.owned == [A]


@pytest.mark.parametrize("applied", [True, False])
async def test_removing_a_broker_that_lives_takes_nothing_that_it_has_just_given_up(
    applied: bool, autojump_clock: MockClock
) -> None:
    """The broker is mistaken for dead.  Between the read and the deletion it hands over a bundle:
    once, the record of the next owner was deleted.
    """
    async with open_cluster() as cluster:
        one, two, three = [await cluster.start(name) for name in ("one", "two", "three")]
        await one.ownership.acquire(A)
        await one.ownership.acquire(B)
        (member,) = [m for m in await members(three.session) if m.broker_id == "one:8080"]
        handed_over = False

        async def hand_over() -> None:
            nonlocal handed_over
            if not handed_over:
                handed_over = True
                if not applied:
                    one.session.link.lose_next(applied=True, operation="multi")  # type: ignore[attr-defined]
                await one.ownership.release(A)
                assert await two.ownership.acquire(A) is Answer.OURS

        slow = SlowToRemove(three.session, hand_over)
        assert await remove(slow, member)  # type: ignore[arg-type]
        assert await owner_sessions(three) == {A: two.session_id}
        await trio.sleep(5)
        assert two.topics.dropped == []
        assert one.topics.dropped == [B]
        assert two.ownership.owned == [A]


async def leading(broker: ControlPlane, touched: list[str]) -> None:
    """Wait until the broker leads; note later changes of its record."""
    while not (await broker.leader.view()).is_us:  # noqa: ASYNC110 - a test may poll
        await trio.sleep(0.01)
    await broker.session.get(LEADER, lambda: touched.append("the record of the leader"))


async def test_removing_a_leader_that_gives_up_meanwhile_leaves_the_next_one(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        assert (await one.leader.view()).is_us
        (member,) = [m for m in await members(two.session) if m.broker_id == "one:8080"]
        touched: list[str] = []

        ask = one.session.link.request

        async def keep_registration(request: Request, execute: Callable[[], None]) -> None:
            if request.write and request.path == f"{BROKERS}/one:8080":
                await trio.sleep(1.0)
            await ask(request, execute)

        one.session.link.request = keep_registration  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                if not one.leader_scope.cancel_called:
                    one.leader_scope.cancel()
                    nursery.start_soon(one.ownership.withdraw)
                    await leading(two, touched)

            assert await remove(SlowToRemove(two.session, give_up), member)  # type: ignore[arg-type]
        await trio.sleep(5)
        assert (await two.leader.view()).is_us
        assert touched == []


async def test_who_was_removed_withdraws_nothing_of_its_successors(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        assert (await one.leader.view()).is_us
        one.leader_scope.cancel()
        one.session.link.delay_s = 0.5  # type: ignore[attr-defined]
        touched: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ownership.withdraw)
            await trio.sleep(0.7)  # The broker has read that it leads, and deletes that record now.
            await remove_by(two, "one")
            await leading(two, touched)
        await trio.sleep(5)
        assert touched == []


async def test_who_leaves_takes_everything_back(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        assert (await one.leader.view()).is_us
        one.leader_scope.cancel()
        await one.ownership.withdraw()
        assert one.ownership.owned == [A]
        result, _ = await cluster.lookup([one, two], TOPIC)  # no new bundle goes to `one`
        assert result.service_url == two.identity.service_url
        await one.ownership.release_all()
        await one.ownership.leave()
        assert one.topics.closed == [A]
        assert one.topics.dropped == []
        assert [member.broker_id for member in await members(two.session)] == ["two:8080"]
        assert await two.session.get_children(GUARDS) == [
            name for name in await two.session.get_children(GUARDS) or [] if "two" in name
        ]
        assert await one.ownership.acquire(B) is Answer.UNAVAILABLE
        await trio.sleep(5)
        assert (await two.leader.view()).is_us
        assert len(await members(two.session)) == 1


async def remove_by(remover: ControlPlane, victim: str) -> None:
    (member,) = [m for m in await members(remover.session) if m.broker_id == f"{victim}:8080"]
    assert await remove(remover.session, member)


async def test_nothing_is_acquired_without_a_guard(autojump_clock: MockClock) -> None:
    """Otherwise a record could outlive the removal of its owner."""
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        one.session.link.delay_s = 0.5  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ownership.acquire, B)
            await trio.sleep(0.7)  # The record of B is being written.
            await remove_by(two, "one")
        await trio.sleep(0.1)
        assert B not in await owner_sessions(two)


async def test_a_late_release_does_not_hit_the_next_owner(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        await one.ownership.acquire(A)
        one.session.link.delay_s = 0.5  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ownership.release, A)
            await trio.sleep(0.1)  # The record of A is being deleted.
            await remove_by(two, "one")
            assert await two.ownership.acquire(A) is Answer.OURS
        await trio.sleep(5)
        assert (await owner_sessions(two))[A] == two.session_id
        assert two.topics.dropped == []
