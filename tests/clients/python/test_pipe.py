"""Pipes: each output once, whatever dies.  The broker is one of ours, over logs in memory."""

import asyncio
import random

import pytest
import trio
from trio.testing import MockClock

import daybook
from daybook import Message, Output, aio, blocking
from daybook.clients.python.client import Client
from daybook.clients.python.limits import ClientLimits
from daybook.wire.topics import TopicName
from tests.clients.python.fake_broker import FakeCluster, fake_cluster
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import Cluster

FULL = "persistent://public/default/"
QUICK = ClientLimits(backoff_initial_s=0.01, backoff_max_s=0.05)


def deduplicate(cluster: Cluster, topic: str) -> None:
    cluster.broker.policies.topic_deduplication[FULL + topic] = True


async def fill(client: Client, topic: str, count: int, first: int = 0) -> None:
    async with await client.create_producer(topic, batch_messages_max=7) as producer:
        for number in range(first, first + count):
            producer.send_nowait(b"%d" % number, key=f"k{number}")


async def contents(client: Client, topic: str) -> list[bytes | None]:
    return [message.data for message in await messages_in(client, topic)]


async def messages_in(client: Client, topic: str) -> list[Message]:
    found: list[Message] = []
    async with await client.create_reader(topic, start="earliest") as reader:
        while await reader.has_message_available():
            found.append(await reader.receive())
    return found


async def pipe_for(
    client: Client, seconds: float, transform: object, *, name: str = "p", **options: object
) -> None:
    """Run the pipe for some time, then stop it in the middle of its work."""
    with trio.move_on_after(seconds):
        await client.pipe("in", "out", transform, name=name, **options)  # type: ignore[arg-type]


async def test_a_pipe_transforms_each_message(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 10)

        async def transform(message: Message) -> object:
            await trio.lowlevel.checkpoint()
            number = int(message.data or b"")
            match number % 4:
                case 0:
                    return None
                case 1:
                    return b"one %d" % number
                case 2:
                    return Output(b"o %d" % number, key="other", properties={"a": "b"})
                case _:
                    return [b"first %d" % number, Output(None)]

        await pipe_for(client, 5, transform)
        found = await messages_in(client, "out")
        assert [each.data for each in found] == [
            b"one 1", b"o 2", b"first 3", None, b"one 5", b"o 6", b"first 7", None, b"one 9",
        ]  # fmt: skip
        assert [found[0].key, found[1].key, found[1].properties] == ["k1", "other", {"a": "b"}]
        await fill(client, "in", 2, first=10)
        await pipe_for(client, 5, transform)
        assert (await contents(client, "out"))[9:] == [b"o 10", b"first 11", None]


@pytest.mark.parametrize("seed", range(8))
async def test_crashes_at_every_step_store_each_output_once(
    seed: int, autojump_clock: MockClock
) -> None:
    """The pipe is killed, and brokers lose its topics, at random moments."""
    rng = random.Random(seed)
    count = 60

    async def transform(message: Message) -> list[bytes]:
        await trio.sleep(rng.random() * 0.02)
        number = int(message.data or b"")
        return [b"%d/%d" % (number, part) for part in range(number % 3)]

    expected = [b"%d/%d" % (number, part) for number in range(count) for part in range(number % 3)]
    async with real_broker() as cluster:
        deduplicate(cluster, "out")
        async with client_of(cluster, "filler", QUICK) as filler:
            await fill(filler, "in", count)
            for attempt in range(200):
                async with (
                    client_of(cluster, f"client {attempt}", QUICK) as client,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(pipe_for, client, 0.2 + rng.random() * 2, transform)
                    await trio.sleep(rng.random())
                    if rng.random() < 0.6:
                        topic = FULL + rng.choice(["in", "out"])
                        if topic in cluster.broker.topics.loaded:
                            log = cluster.broker.log(topic)
                            if rng.random() < 0.5:
                                log.held = True
                                await trio.sleep(rng.random() * 0.2)
                                log.release(rng.randrange(3))
                                if topic.endswith("out"):  # Recovery keeps some of them.
                                    kept = log._pending[: rng.randrange(3)]
                                    log.entries += [data for data, _ in kept]
                            log.fence()
                    await trio.sleep(rng.random())
                    if rng.random() < 0.7:
                        nursery.cancel_scope.cancel()
                if len(found := await contents(filler, "out")) >= len(expected):
                    break
            assert found == expected


async def test_acknowledgements_that_a_takeover_has_lost_are_sent_again(
    autojump_clock: MockClock,
) -> None:
    """Otherwise the input could not be trimmed for as long as the pipe runs."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe_for, client, 60, lambda message: message.data)
            await trio.sleep(10)
            log = cluster.broker.log(FULL + "in")
            cursor = log.by_name["pipe-p"]
            reached = cursor.mark_delete
            assert reached.entry_id >= 2
            cursor.mark_delete = log.before_first
            log.fence()
            await fill(client, "in", 1, first=30)
            await trio.sleep(30)
            log = cluster.broker.log(FULL + "in")
            assert log.by_name["pipe-p"].mark_delete >= reached
            nursery.cancel_scope.cancel()
        assert await contents(client, "out") == [b"%d" % number for number in range(31)]


async def test_the_outputs_that_a_message_lacks_are_made_good(autojump_clock: MockClock) -> None:
    """The pipe dies when one of three outputs of a message is stored."""
    sizes = [200_000, 200_001, 200_002]  # so that each of them is an entry of its own

    def transform(message: Message) -> list[bytes]:
        return [bytes(size) for size in sizes]

    async with real_broker() as cluster, client_of(cluster, "filler", QUICK) as filler:
        deduplicate(cluster, "out")
        await fill(filler, "in", 1)
        async with client_of(cluster, "client", QUICK) as client, trio.open_nursery() as nursery:
            async with await client.create_producer("out"):
                log = cluster.broker.log(FULL + "out")
            log.held = True
            nursery.start_soon(pipe_for, client, 100, transform)
            await trio.sleep(5)
            log.release(1)
            log.fence()
            nursery.cancel_scope.cancel()
        assert len(await contents(filler, "out")) == 1
        await pipe_for(filler, 5, transform)
        assert [len(data or b"") for data in await contents(filler, "out")] == sizes


async def test_a_pipe_goes_on_behind_its_last_output_and_not_where_its_cursor_is(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 20)

        def first_half(message: Message) -> bytes:
            if message.data == b"10":
                raise KeyError("mine")
            return message.data or b""

        with trio.fail_after(100), pytest.raises(KeyError, match="mine"):
            await client.pipe("in", "out", first_half, name="p")
        async with await client.subscribe("in", "pipe-p") as meddler:
            await meddler.seek(15)  # Somebody skips messages.
        await pipe_for(client, 5, lambda message: message.data)
        assert await contents(client, "out") == [b"%d" % number for number in range(20)]


async def test_nothing_is_stored_behind_an_output_that_the_broker_refuses(
    autojump_clock: MockClock,
) -> None:
    """The next start would take the refused output for stored, and its message would be lost."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 20)
        cluster.broker.policies.of_namespace["max_message_bytes"] = 1000

        def too_large(message: Message) -> bytes:
            return bytes(2000) if message.data == b"7" else message.data or b""

        for _ in range(2):
            with (
                trio.fail_after(100),
                pytest.raises(daybook.NotAllowedError, match="maxMessageSize"),
            ):
                await client.pipe("in", "out", too_large, name="p")
        assert await contents(client, "out") == [b"%d" % number for number in range(7)]
        await pipe_for(client, 5, lambda message: message.data)
        assert await contents(client, "out") == [b"%d" % number for number in range(20)]


async def test_an_output_topic_must_have_deduplication(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        await fill(client, "in", 3)
        with (
            trio.fail_after(100),
            pytest.raises(daybook.NotAllowedError, match="has no deduplication"),
        ):
            await client.pipe("in", "out", lambda message: message.data, name="p")
        await pipe_for(client, 5, lambda message: message.data, at_least_once=True)
        assert await contents(client, "out") == [b"0", b"1", b"2"]
        await pipe_for(client, 5, lambda message: message.data, at_least_once=True)
        assert len(await contents(client, "out")) == 3


async def test_one_partition_may_be_the_target(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.partition_counts[FULL + "out"] = 2
        cluster.broker.policies.deduplication = True
        await fill(client, "in", 3)
        with trio.move_on_after(5):
            await client.pipe("in", "out-partition-1", lambda message: message.data, name="p")
        assert len(await contents(client, "out-partition-1")) == 3


async def test_the_partitions_of_the_input_are_piped_each_in_order(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.partition_counts[FULL + "in"] = 3
        deduplicate(cluster, "out")
        await fill(client, "in", 60)
        for _ in range(3):
            await pipe_for(client, 2, lambda message: b"%d %s" % (message.partition, message.data))
        found = [(each or b"").split() for each in await contents(client, "out")]
        assert sorted(int(number) for _, number in found) == list(range(60))
        for partition in (b"0", b"1", b"2"):
            numbers = [int(number) for each, number in found if each == partition]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize("initial", ["earliest", "latest"])
@pytest.mark.parametrize("gone", ["subscription", "topic"])
async def test_a_pipe_whose_subscription_is_gone_does_not_take_new_messages_for_repeats(
    gone: str, initial: str, autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 5)
        await pipe_for(client, 5, lambda message: message.data, initial_position="earliest")
        if gone == "topic":
            await cluster.broker.topics.delete(TopicName.parse("in"), force=True)
            await fill(client, "in", 50, first=100)
        else:
            async with await client.subscribe("in", "pipe-p") as meddler:
                await meddler.unsubscribe()
        for _ in range(2):
            with trio.fail_after(100), pytest.raises(daybook.NotAllowedError, match="is gone"):
                await client.pipe(
                    "in",
                    "out",
                    lambda message: message.data,
                    name="p",
                    initial_position=initial,  # type: ignore[arg-type]
                )
            await fill(client, "in", 1, first=200)
        assert "pipe-p" not in cluster.broker.log(FULL + "in").by_name
        assert len(await contents(client, "out")) == 5


async def test_a_pipe_is_refused_if_all_its_messages_were_skipped(
    autojump_clock: MockClock,
) -> None:
    """A subscription of this name that somebody has created by hand looks the same."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 5)
        await pipe_for(client, 5, lambda message: message.data)
        async with await client.subscribe("in", "pipe-p") as meddler:
            await meddler.seek("latest")
        for _ in range(2):  # The first attempt leaves nothing that deceives the second.
            with trio.fail_after(100), pytest.raises(daybook.NotAllowedError, match="skipped"):
                await client.pipe("in", "out", lambda message: message.data, name="p")
            await fill(client, "in", 1, first=200)
        assert len(await contents(client, "out")) == 5


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_pipe_that_runs_notices_that_its_input_was_created_anew(
    by_hand: bool, autojump_clock: MockClock
) -> None:
    """Even if somebody has created a subscription of the same name."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 50)
        found: list[daybook.BrokerError] = []

        async def run() -> None:
            try:
                await client.pipe("in", "out", lambda message: message.data, name="p")
            except daybook.BrokerError as error:
                found.append(error)

        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await trio.sleep(5)
                name = TopicName.parse("in")
                await cluster.broker.topics.delete(name, force=True)
                await cluster.broker.topics.open(name, create=True)
                if by_hand:
                    topic = cluster.broker.topics.loaded[name.full]
                    await topic.subscriptions.create("pipe-p", topic.log.before_first)
                await fill(client, "in", 60, first=100)
        kind = daybook.NotAllowedError if by_hand else daybook.SubscriptionNotFoundError
        assert [type(each) for each in found] == [kind]
        assert await contents(client, "out") == [b"%d" % number for number in range(50)]


async def test_a_pipe_of_an_earlier_version_continues_without_a_record(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 5)
        await pipe_for(client, 5, lambda message: message.data)
        topic = cluster.broker.topics.loaded[FULL + "in"]
        await topic.subscriptions.by_name["pipe-p"].set_properties({})
        await fill(client, "in", 5, first=5)
        await pipe_for(client, 5, lambda message: message.data)
        assert await contents(client, "out") == [b"%d" % number for number in range(10)]


async def test_a_pipe_keeps_its_target(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.deduplication = True
        await fill(client, "in", 5)
        await pipe_for(client, 5, lambda message: message.data)
        with (
            trio.fail_after(100),
            pytest.raises(daybook.NotAllowedError, match="to persistent://public/default/out, not"),
        ):
            await client.pipe("in", "other", lambda message: message.data, name="p")
        topic = cluster.broker.topics.loaded[FULL + "in"]
        await topic.subscriptions.by_name["pipe-p"].set_properties({"daybook.pipe": "{}"})
        with trio.fail_after(100), pytest.raises(daybook.NotAllowedError, match="cannot be read"):
            await client.pipe("in", "out", lambda message: message.data, name="p")


async def test_a_terminated_input_ends_the_pipe(autojump_clock: MockClock) -> None:
    """The broker tells nobody of the end whose last message is not acknowledged."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 5)
        await cluster.broker.topics.loaded[FULL + "in"].terminate()
        with trio.fail_after(200):
            assert await client.pipe("in", "out", lambda message: message.data, name="p") == 5
            assert await client.pipe("in", "out", lambda message: message.data, name="p") <= 1 + 5
        assert len(await contents(client, "out")) == 5


async def test_the_end_of_the_input_ends_the_pipe() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        await fill(client, "in", 5)
        cluster.topics[FULL + "in"].terminated = True
        with trio.fail_after(60):
            count = await client.pipe(
                "in", "out", lambda message: message.data, name="p", at_least_once=True
            )
        assert count == 5
        assert len(await contents(client, "out")) == 5


@pytest.mark.parametrize("kind", ["aio", "blocking"])
def test_the_other_clients_have_pipes(kind: str, cluster: FakeCluster) -> None:
    def plain(message: Message) -> bytes:
        if message.data == b"poison":
            raise ValueError("it is not to be doubled")
        return (message.data or b"") * 2

    async def waiting(message: Message) -> bytes:
        await asyncio.sleep(0)
        return plain(message)

    def fill_and_pipe() -> int:
        with blocking.connect(cluster.url) as client:
            with client.create_producer("in") as producer:
                producer.send_nowait(b"poison")
                for number in range(5):
                    producer.send_nowait(b"%d" % number)
            cluster.topics[FULL + "in"].terminated = True
            if kind == "aio":
                return 6
            return client.pipe(
                "in", "out", plain, name="p", at_least_once=True, dead_letter_topic="dead"
            )

    async def main() -> int:
        async with aio.connect(cluster.url) as client:
            return await client.pipe(
                "in", "out", waiting, name="p", at_least_once=True, dead_letter_topic="dead"
            )

    assert fill_and_pipe() == 6
    if kind == "aio":
        assert asyncio.run(main()) == 6
    with blocking.connect(cluster.url) as client:
        reader = client.create_reader("out", start="earliest")
        assert [reader.receive(10).data for _ in range(5)] == [b"%d%d" % (n, n) for n in range(5)]
        reader = client.create_reader("dead", start="earliest")
        assert reader.receive(10).data == b"poison"


async def test_wrong_arguments_are_refused_at_once(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        with trio.fail_after(100), pytest.raises(ValueError, match="name is empty"):
            await client.pipe("in", "out", lambda _: None, name="")
        with (
            trio.fail_after(100),
            pytest.raises(ValueError, match="cannot write to the topic that it reads"),
        ):
            await client.pipe("in", "in-partition-3", lambda _: None, name="p")
        deduplicate(cluster, "out")
        await fill(client, "in", 1)
        with trio.fail_after(100), pytest.raises(TypeError, match="not str"):
            await client.pipe("in", "out", lambda _: "text", name="p")  # type: ignore[arg-type,return-value]
