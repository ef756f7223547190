"""Loads of topics: some at a time, a slow one holds up nobody, and each knows its step."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.limits import LoadLimits, TopicLimits
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.topics.explain import explain
from daybook.broker.topics.loads import WAITS, LoadCounts
from daybook.wire.topics import TopicName
from tests.harness.broker import Cluster, open_broker

EVERYTHING = BundleName("public/default/0x00000000_0xffffffff")
LIMITS = TopicLimits(loads=LoadLimits(at_once=2, slow_s=10.0, load_s=60.0))


class Logs:
    """Hold up the opens of the cluster's logs, and count those under way."""

    def __init__(self, cluster: Cluster) -> None:
        self.under_way: list[str] = []
        self.opened: list[str] = []
        self.most = 0
        self.finished = 0
        self.stuck: set[str] = set()
        self._open = cluster.broker.logs.open
        cluster.broker.logs.open = self.open  # type: ignore[method-assign, assignment]

    async def open(self, name: TopicName, *, create: bool, on_step: Any) -> Any:
        on_step("recovering its last ledgers")
        self.under_way.append(name.local)
        self.opened.append(name.local)
        self.most = max(self.most, len(self.under_way))
        try:
            while name.local in self.stuck:  # noqa: ASYNC110  the bookies are away
                await trio.sleep(1)
            await trio.sleep(1)
            log = await self._open(name, create=create)
            self.finished += 1
            return log
        finally:
            self.under_way.remove(name.local)


async def load(cluster: Cluster, *names: str) -> dict[str, float | str]:
    """Load topics at the same time; return when each was there, or its error."""
    begin, found = trio.current_time(), dict[str, float | str]()

    async def one(name: str) -> None:
        try:
            await cluster.broker.topics.get(TopicName.parse(name), create=True)
            found[name] = trio.current_time() - begin
        except BrokerError as error:
            found[name] = str(error)

    with trio.fail_after(200):
        await _each(one, names)
    return found


async def _each(one: Callable[[str], Awaitable[None]], names: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(one, name)
            await trio.lowlevel.checkpoint()


async def test_some_load_at_a_time_and_the_others_wait_their_turn(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=LIMITS) as cluster:
        logs = Logs(cluster)
        names = [f"t{number}" for number in range(9)]
        found = await load(cluster, *names)
        assert logs.most == 2
        assert [round(float(found[name])) for name in names] == [1, 1, 2, 2, 3, 3, 4, 4, 5]


async def test_topics_that_many_want_come_first(autojump_clock: MockClock) -> None:
    limits = TopicLimits(loads=LoadLimits(at_once=1))
    async with open_broker(topic_limits=limits) as cluster:
        logs = Logs(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, cluster, "first")
            await trio.sleep(0.1)
            with trio.move_on_after(0.1):  # These callers have gone when it is their turn.
                await load(cluster, "two", *["left"] * 50)
            nursery.start_soon(load, cluster, "left", "two", "two", *["many"] * 9)
        assert logs.opened == ["first", "many", "two", "left"]


async def test_topics_whose_bookies_are_away_hold_up_the_others_only_for_a_moment(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=LIMITS) as cluster:
        logs = Logs(cluster)
        logs.stuck = {"a", "b", "c"}
        found = await load(cluster, "a", "b", "c", *(f"t{number}" for number in range(8)))
        assert all(float(found[f"t{number}"]) < 25 for number in range(8))
        assert not any(isinstance(found[name], float) for name in "abc")


async def test_a_load_that_takes_too_long_is_given_up_and_names_its_step(
    autojump_clock: MockClock,
) -> None:
    """apache/pulsar#25394, #14183: topics could not be loaded, and nobody learned why."""
    async with open_broker(topic_limits=LIMITS) as cluster:
        logs, topics, name = Logs(cluster), cluster.broker.topics, TopicName.parse("a")
        logs.stuck = {"a"}
        why = "been recovering its last ledgers for 60 s"
        with trio.fail_after(100), pytest.raises(UnavailableError, match=why):
            await topics.get(name, create=True)
        assert not logs.under_way
        assert topics.load_progress(name) is None
        logs.stuck.clear()
        assert (await topics.get(name, create=True)).serving, "the next caller begins anew"
        assert float((await load(cluster, "b", "c", "d"))["d"]) < 2.5, "all places are free"


async def test_each_load_tells_its_step_and_for_how_long(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=LIMITS) as cluster:
        logs, topics = Logs(cluster), cluster.broker.topics
        logs.stuck = {"a", "b"}
        assert topics.load_progress(TopicName.parse("a")) is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, cluster, "a", "b", "c")
            await trio.sleep(5)
            busy, waits = (topics.load_progress(TopicName.parse(n)) for n in ("a", "c"))
            assert busy is not None
            assert (busy.step, round(busy.step_s)) == ("recovering its last ledgers", 5)
            assert waits is not None
            assert (waits.step, round(waits.total_s)) == (WAITS, 5)
            told = explain(topics, TopicName.parse("a"))
            assert told.state == "loading"
            assert told.summary == "The topic is being loaded, and is recovering its last ledgers."
            logs.stuck.clear()
        assert explain(topics, TopicName.parse("a")).state == "loaded"
        log = cluster.broker.log(TopicName.parse("a").full)
        assert explain(topics, TopicName.parse("a")).summary == "The topic is served."
        log.waiting_for = "two bookies are away"
        assert "wait to be stored: two bookies" in explain(topics, TopicName.parse("a")).summary
        log.full = "its list of ledgers is full"
        assert "takes no messages: its list" in explain(topics, TopicName.parse("a")).summary
        await topics.unload(TopicName.parse("a"))
        assert explain(topics, TopicName.parse("a")).state == "notLoaded"
        assert "a" not in {log.name.local for log in topics.loaded.values()}, "nothing loads it"


async def test_a_load_ends_with_its_bundle_and_does_not_fence_the_next_load(
    autojump_clock: MockClock,
) -> None:
    """Seed 2208: a load that was under way when the session ended went on in the next session.

    Then it took the log over from the topic that this broker served by then.
    """
    async with open_broker(topic_limits=LIMITS) as cluster:
        logs, topics = Logs(cluster), cluster.broker.topics
        logs.stuck = {"a", "b", "c"}
        found = list[dict[str, float | str]]()

        async def first() -> None:
            found.append(await load(cluster, "a", "b", "c"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.sleep(5)
            assert logs.under_way == ["a", "b"]
            topics.drop_bundle(EVERYTHING)
            logs.stuck.clear()
            again = await load(cluster, "a", "b", "c")
        assert all("no longer served here" in str(why) for why in found[0].values())
        assert all(float(took_s) < 2.5 for took_s in again.values()), "all places are free"
        assert sorted(logs.opened) == ["a", "a", "b", "b", "c"]
        assert logs.most == 2
        assert logs.finished == 3


async def test_all_loads_are_counted_with_the_oldest_of_each_kind(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=LIMITS) as cluster:
        logs, topics = Logs(cluster), cluster.broker.topics
        assert topics.loads.counts() == LoadCounts()
        logs.stuck = {"a", "b"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, cluster, "a", "b")
            await trio.sleep(2)
            nursery.start_soon(load, cluster, "c")
            await trio.sleep(1)
            nursery.start_soon(load, cluster, "d")
            await trio.sleep(3)
            found = topics.loads.counts()
            assert (found.under_way, found.waiting) == (2, 2)
            assert (round(found.oldest_s), round(found.oldest_wait_s)) == (6, 4)
            assert found.topic == TopicName.parse("a").full
            assert found.step == "recovering its last ledgers"
            logs.stuck.clear()
        assert topics.loads.counts() == LoadCounts()


async def test_a_topic_that_is_not_in_memory_is_not_called_unused(
    autojump_clock: MockClock,
) -> None:
    """A client may be on its way to the broker, and wait for the topic all the time."""
    async with open_broker(topic_limits=LIMITS) as cluster:
        told = explain(cluster.broker.topics, TopicName.parse("a"))
        assert told.state == "notLoaded"
        assert "nobody" not in told.summary
        assert "a client that waits for the topic has not reached that broker yet" in told.summary
        assert (told.step_s, told.total_s) == (None, None), "no load has taken 0 s"
        told = explain(cluster.broker.topics, TopicName.parse("a"), waiting=1_200)
        assert "1,200 requests of clients wait for a turn there" in told.summary
        Logs(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, cluster, "a")
            while cluster.broker.topics.state_of(TopicName.parse("a")) is None:
                await trio.lowlevel.checkpoint()
            told = explain(cluster.broker.topics, TopicName.parse("a"))
            assert told.state == "loading", "from the turn on in which somebody asks for it"


@pytest.mark.parametrize("lost", ["the topic", "the topic for a moment", "the bundle"])
async def test_a_load_that_waited_opens_no_log_that_another_broker_may_have(
    lost: str, autojump_clock: MockClock
) -> None:
    """It would fence the ledger of the next owner."""
    async with open_broker(topic_limits=LIMITS) as cluster:
        logs, topics, name = Logs(cluster), cluster.broker.topics, TopicName.parse("c")
        logs.stuck = {"a", "b"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, cluster, "a", "b", "c")
            await trio.sleep(5)
            waits = topics.load_progress(name)
            assert waits is not None
            assert waits.step == WAITS
            if lost == "the bundle":
                cluster.broker.ownership.ours = False
            else:
                topics._perform(topics._protocol.drop(name.full))  # pyright: ignore[reportPrivateUsage]
            if lost == "the topic for a moment":
                nursery.start_soon(load, cluster, "c")  # It waits for a place, too.
                await trio.sleep(1)
            logs.stuck.clear()
        assert logs.opened.count("c") == (1 if lost == "the topic for a moment" else 0)
        assert (name.full in topics.loaded) == ("c" in logs.opened)
