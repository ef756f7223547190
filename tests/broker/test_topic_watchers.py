"""Watchers of topic lists: clients, the metadata store, and everything between."""

from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import ConnectionLimits
from daybook.broker.namespaces import records, topic_lists
from daybook.broker.namespaces.records import PartitionedTopic
from daybook.broker.namespaces.topic_lists import TopicLists
from daybook.broker.protocol.patterns import TopicPattern
from daybook.broker.protocol.topic_watchers import topics_hash
from daybook.broker.service import connection
from daybook.wire.clock import WallClock
from daybook.wire.logging import silent_log
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.metadata.store import SessionState
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness import stream
from tests.harness.broker import TOPIC, Client, Cluster, connection_of, open_broker
from tests.harness.clocks import VirtualClock

NS = "public/default"
ALL = f"persistent://{NS}/.*"


def full(name: str) -> str:
    return f"persistent://{NS}/{name}"


class Topics:
    """Topics in the metadata store."""

    def __init__(self, store: MemoryStore) -> None:
        self._session: MemorySession = store.session("writer")

    async def create(self, *names: str) -> None:
        for name in names:
            path = f"/managed-ledgers/{TopicName.parse(full(name)).managed_ledger_name}"
            await self._session.create(path, b"", make_parents=True)

    async def delete(self, name: str) -> None:
        await self._session.delete(
            f"/managed-ledgers/{TopicName.parse(full(name)).managed_ledger_name}", -1
        )

    async def partition(self, name: str, count: int) -> None:
        path = records.partitioned_path(TopicName.parse(full(name)))
        value = records.encode(PartitionedTopic(count))
        if await self._session.get(path) is None:
            await self._session.create(path, value, make_parents=True)
        else:
            await self._session.set(path, value, -1)

    async def delete_partitioned(self, name: str) -> None:
        await self._session.delete(records.partitioned_path(TopicName.parse(full(name))), -1)


def topics_of(cluster: Cluster) -> Topics:
    return Topics(cluster.broker.store)


async def watch(client: Client, pattern: str = ALL, watcher: int = 1, **options: Any) -> Any:
    return await client.ask(
        pb.CommandWatchTopicList(
            watcher_id=watcher, namespace=NS, topics_pattern=pattern, **options
        ),
        pb.CommandWatchTopicListSuccess,
    )


async def updates(client: Client, known: set[str], wanted: set[str]) -> None:
    """Apply updates until the client knows what it should."""
    with trio.fail_after(60):
        while known != wanted:
            (update,) = await client.wait(pb.CommandWatchTopicUpdate)
            known -= set(update.deleted_topics)
            known |= set(update.new_topics)
            assert update.topics_hash == topics_hash(known)


async def test_a_watcher_is_told_of_topics_that_come_and_go(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        topics = topics_of(cluster)
        client = await cluster.client()
        success = await watch(client)
        assert (list(success.topic), success.topics_hash) == ([], topics_hash([]))
        known: set[str] = set()
        await topics.create("a", "b")
        await updates(client, known, {full("a"), full("b")})
        await topics.delete("a")
        await updates(client, known, {full("b")})
        await topics.partition("p", 2)
        await updates(client, known, {full("b"), full("p-partition-0"), full("p-partition-1")})
        await topics.partition("p", 3)
        await updates(client, known, known | {full("p-partition-2")})
        await topics.delete_partitioned("p")
        await updates(client, known, {full("b")})


async def test_a_partitioned_topic_that_comes_again_has_its_new_partitions(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        topics = topics_of(cluster)
        await topics.partition("p", 3)
        client = await cluster.client()
        known = set((await watch(client)).topic)
        assert len(known) == 3
        await topics.delete_partitioned("p")
        await topics.partition("p", 1)
        await updates(client, known, {full("p-partition-0")})


async def test_an_expression_chooses_the_topics(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        topics = topics_of(cluster)
        await topics.create("foo-1", "bar", "__change_events", "x__transaction_pending_ack")
        await topics.partition("foo-2", 1)
        client = await cluster.client()
        success = await watch(client, f"persistent://{NS}/foo-\\d")
        assert list(success.topic) == [full("foo-1"), full("foo-2-partition-0")]
        await topics.create("foo-x", "foo-3")
        await updates(client, set(success.topic), {*success.topic, full("foo-3")})
        assert full("bar") in (await watch(client, watcher=2)).topic
        assert not any("__" in name for name in (await watch(client, watcher=3)).topic)


async def test_a_client_that_knows_the_list_gets_only_its_hash(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        await topics_of(cluster).create("a")
        client = await cluster.client()
        success = await watch(client, topics_hash=topics_hash([full("a")]))
        assert (list(success.topic), success.topics_hash) == ([], topics_hash([full("a")]))
        await topics_of(cluster).create("b")
        await updates(client, {full("a")}, {full("a"), full("b")})


async def test_a_watcher_that_is_closed_is_told_nothing(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await watch(client)
        closed = pb.CommandWatchTopicListClose(watcher_id=1)
        assert isinstance(await client.ask(closed, pb.CommandSuccess), pb.CommandSuccess)
        unknown = pb.CommandWatchTopicListClose(watcher_id=5)
        assert isinstance(await client.ask(unknown, pb.CommandSuccess), pb.CommandSuccess)
        await topics_of(cluster).create("a")
        await client.settle(5)
        assert not client.bodies(pb.CommandWatchTopicUpdate)


async def test_only_clients_that_ask_are_told(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        asking, silent = await cluster.client(), await cluster.client()
        await watch(asking)
        await topics_of(cluster).create("a")
        await updates(asking, set(), {full("a")})
        assert not silent.got


async def test_the_broker_says_that_it_has_watchers(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client(connect=False)
        assert (await client.connect()).feature_flags.supports_topic_watchers


@pytest.mark.parametrize(
    ("pattern", "namespace", "code"),
    [
        ("(?=a)", NS, pb.NotAllowedError),
        ("a" * 300, NS, pb.NotAllowedError),
        ("a", "nowhere", pb.InvalidTopicName),
    ],
)
async def test_what_cannot_be_watched_is_refused(
    autojump_clock: MockClock, pattern: str, namespace: str, code: int
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = pb.CommandWatchTopicList(
            watcher_id=1, namespace=namespace, topics_pattern=pattern
        )
        refused = await client.ask(request, pb.CommandWatchTopicListSuccess)
        assert isinstance(refused, pb.CommandError)
        assert refused.error == code


async def test_watchers_of_one_connection_are_bounded(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(watchers_max=2)
    async with open_broker(connection_limits=limits) as cluster:
        client = await cluster.client()
        assert not hasattr(await watch(client, watcher=1), "error")
        assert not hasattr(await watch(client, watcher=2), "error")
        assert (await watch(client, watcher=3)).error == pb.NotAllowedError


async def test_a_connection_that_ends_leaves_no_follower(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await watch(client)
        lists: TopicLists = cluster.broker.context.topic_lists
        assert lists.watched == 1
        client.frames.close("gone")
        await trio.sleep(120)
        assert lists.watched == 0


async def test_a_client_that_reads_nothing_is_told_the_difference_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BUFFER_BYTES_MAX", 20_000)
    monkeypatch.setattr(connection, "_UNREAD_BYTES_MIN", 20_000)
    limits = ConnectionLimits(unread_bytes_max=20_000)
    names = [f"{'x' * 250}{number}" for number in range(40)]
    async with open_broker(connection_limits=limits) as cluster:
        topics = topics_of(cluster)
        client = await cluster.client()
        await watch(client)
        await client.subscribe()
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub"]
        (consumer,) = subscription.consumers.values()
        frames = connection_of(consumer)._frames
        client.reading = False
        most = 0
        for _ in range(20):
            await topics.create(*names)
            await client.settle(0.5)
            for name in names:
                await topics.delete(name)
            await client.settle(0.5)
            most = max(most, frames.pending_bytes)
        await topics.create("a")
        await client.settle(0.5)
        assert 10_000 < most < 60_000  # 40 changes have some 10,000 bytes each
        client.reading = True
        known: set[str] = set()
        cluster.start(client.run)
        await updates(client, known, {full("a")})


# -- the lists


class Counting:
    """A store that counts its reads and the watches that are set."""

    def __init__(self, session: MemorySession) -> None:
        self.session = session
        self.reads = 0
        self.watches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    async def get(self, path: str, watch: Any = None) -> Any:
        self.reads += 1
        self.watches += watch is not None
        return await self.session.get(path, watch)

    async def get_children(self, path: str, watch: Any = None) -> Any:
        self.reads += 1
        self.watches += watch is not None
        return await self.session.get_children(path, watch)


def lists_over(clock: WallClock) -> tuple[TopicLists, Counting, MemoryStore]:
    store = MemoryStore(clock)
    counting = Counting(store.session("broker"))
    return TopicLists(counting, silent_log()), counting, store


async def test_a_namespace_is_watched_once_for_all_who_follow_it(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lists, counting, store = lists_over(VirtualClock())
    topics = Topics(store)
    await topics.create("a")
    await topics.partition("p", 2)
    await nursery.start(lists.run)
    told = []
    followed = [
        await lists.follow(NS, TopicPattern(ALL), lambda: told.append(1)) for _ in range(50)
    ]
    assert lists.watched == 1
    assert counting.watches <= 3  # two lists and one record
    await topics.create("b")
    await trio.sleep(5)
    assert len(told) == 50
    assert all(full("b") in each.latest.names for each in followed)
    assert len({id(each.latest) for each in followed}) == 1
    for each in followed:
        each.stop()
    await trio.sleep(60)
    assert lists.watched == 0


async def test_followers_that_come_and_go_pile_up_no_watches(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lists, counting, store = lists_over(VirtualClock())
    topics = Topics(store)
    await topics.create("a")
    await topics.partition("p", 1)
    await nursery.start(lists.run)
    for _ in range(20):
        (await lists.follow(NS, TopicPattern(ALL), lambda: None)).stop()
        await trio.sleep(60)  # nobody follows for so long that the namespace is forgotten
        assert lists.watched == 0
    assert counting.watches <= 3
    # The watches that are set serve the namespace that is followed now.
    followed = await lists.follow(NS, TopicPattern(ALL), lambda: None)
    await topics.create("b")
    await topics.partition("p", 2)
    await trio.sleep(5)
    assert followed.latest.names == {full(n) for n in ("a", "b", "p-partition-0", "p-partition-1")}
    followed.stop()


async def test_while_the_store_is_away_no_topic_is_taken_for_deleted(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lists, _, store = lists_over(VirtualClock())
    topics = Topics(store)
    await topics.create("a")
    await nursery.start(lists.run)
    seen: list[frozenset[str]] = []
    followed = await lists.follow(NS, TopicPattern(ALL), lambda: seen.append(followed.latest.names))
    store.suspend()
    await trio.sleep(300)
    store.resume()
    await topics.create("b")
    await trio.sleep(30)
    assert followed.latest.names == {full("a"), full("b")}
    assert all(full("a") in names for names in seen)


async def test_a_list_that_was_never_read_is_unavailable_and_not_empty(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lists, _, store = lists_over(VirtualClock())
    await Topics(store).create("a")
    await nursery.start(lists.run)
    store.suspend()
    with pytest.raises(Exception, match="cannot be listed now"):
        await lists.follow(NS, TopicPattern(ALL), lambda: None)
    store.resume()
    followed = await lists.follow(NS, TopicPattern(ALL), lambda: None)
    assert followed.latest.names == {full("a")}


async def test_changes_that_come_fast_are_read_together(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lists, counting, store = lists_over(VirtualClock())
    topics = Topics(store)
    await nursery.start(lists.run)
    told: list[int] = []
    followed = await lists.follow(NS, TopicPattern(ALL), lambda: told.append(1))
    await trio.sleep(10)
    before = counting.reads
    for number in range(200):
        await topics.create(f"t{number}")
    await trio.sleep(10)
    assert len(followed.latest.names) == 200
    assert len(told) <= 5
    assert counting.reads - before <= 20


async def test_the_lists_that_are_followed_are_bounded(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_lists, "_FILTERED_MAX", 2)
    lists, _, _ = lists_over(VirtualClock())
    await nursery.start(lists.run)
    await lists.follow(NS, TopicPattern("a"), lambda: None)
    await lists.follow(NS, TopicPattern("b"), lambda: None)
    await lists.follow(NS, TopicPattern("b"), lambda: None)
    with pytest.raises(Exception, match="which is the limit"):
        await lists.follow(NS, TopicPattern("c"), lambda: None)


async def test_a_record_that_names_no_topic_hides_no_other(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lists, _, store = lists_over(VirtualClock())
    await Topics(store).create("a")
    await store.session("x").create(f"/managed-ledgers/{NS}/persistent/%ff", b"")
    # Pulsar would encode this name with a capital letter.
    path = f"{records.partitioned_parent(NS)}/p%3aq"
    value = records.encode(PartitionedTopic(1))
    await store.session("x").create(path, value, make_parents=True)
    await nursery.start(lists.run)
    followed = await lists.follow(NS, TopicPattern(ALL), lambda: None)
    assert followed.latest.names == {full("a"), full("p:q-partition-0")}


@pytest.mark.parametrize("seed", range(5))
async def test_a_follower_knows_the_store_in_the_end_whatever_happens(
    autojump_clock: MockClock, nursery: trio.Nursery, seed: int
) -> None:
    """Topics come, grow and go, the store is away, and sessions end; nothing is invented."""
    rng = Random(seed)
    lists, counting, store = lists_over(VirtualClock())
    session, topics = counting.session, Topics(store)
    await nursery.start(lists.run)
    plain: set[str] = set()
    partitioned: dict[str, int] = {}
    ever: set[str] = set()

    def present() -> frozenset[str]:
        names = {full(name) for name in plain}
        for name, count in partitioned.items():
            names |= {full(f"{name}-partition-{index}") for index in range(count)}
        return frozenset(names)

    def changed() -> None:
        assert followed.latest.names <= ever
        deleted = before[-1] - followed.latest.names
        # Without contact nobody can know that a topic is gone.
        assert not deleted or session.session_state is SessionState.CONNECTED
        before.append(followed.latest.names)

    async def step() -> None:
        name = f"t{rng.randrange(6)}"
        match rng.choice(["plain", "plain", "grow", "drop", "away", "expire", "wait"]):
            case "plain" if name in plain:
                await topics.delete(name)
                plain.discard(name)
            case "plain":
                await topics.create(name)
                plain.add(name)
            case "grow":
                partitioned[name] = partitioned.get(name, 0) + rng.randrange(1, 3)
                await topics.partition(name, partitioned[name])
            case "drop" if name in partitioned:
                await topics.delete_partitioned(name)
                del partitioned[name]
            case "away":
                if session.session_state is SessionState.CONNECTED:
                    session.suspend()
                else:
                    session.resume()
            case "expire":
                store.expire(session.session_id)
            case _:
                await trio.sleep(rng.random())
        ever.update(present())

    await step()
    before = [present()]
    if session.session_state is not SessionState.CONNECTED:
        session.resume()
    followed = await lists.follow(NS, TopicPattern(ALL), changed)
    for _ in range(80):
        await step()
        if rng.random() < 0.3:
            await trio.sleep(rng.random() / 5)
    if session.session_state is not SessionState.CONNECTED:
        session.resume()
    await trio.sleep(60)
    assert followed.latest.names == present()
    followed.stop()


async def test_an_outage_of_the_store_costs_no_more_time_than_it_lasts(
    autojump_clock: MockClock,
) -> None:
    """A read that fails says nothing about how long a read of the namespace takes."""
    store, changed = MemoryStore(VirtualClock()), trio.Event()
    session = store.session("broker", request_timeout_s=30.0)
    lists = TopicLists(session, silent_log())
    async with trio.open_nursery() as nursery:
        await nursery.start(lists.run)
        await lists.follow(NS, TopicPattern(ALL), changed.set)
        session.suspend()
        lists._noticed(NS, None)  # pyright: ignore[reportPrivateUsage]
        await trio.sleep(31)
        session.resume()
        await Topics(store).create("a")
        with trio.fail_after(3):
            await changed.wait()
        nursery.cancel_scope.cancel()
