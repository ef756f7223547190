"""Pipes to a target with partitions, and pipes with dead letters: each output and letter once."""

import random
from collections import Counter
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import daybook
from daybook import Message
from daybook.clients.python.client import Client
from daybook.clients.python.pipe_partition import PIPE_ERROR
from daybook.clients.python.protocol import piping
from daybook.clients.python.protocol.piping import output_partition
from tests.clients.python.real_broker import client_of, real_broker
from tests.clients.python.test_pipe import (
    FULL,
    QUICK,
    contents,
    deduplicate,
    fill,
    messages_in,
    pipe_for,
)
from tests.harness.broker import Cluster

COUNT = 3


def partitioned(cluster: Cluster, topic: str = "out", count: int = COUNT) -> None:
    """Give a topic partitions, and all topics deduplication."""
    cluster.broker.policies.partition_counts[FULL + topic] = count
    cluster.broker.policies.deduplication = True


async def parts(client: Client, count: int = COUNT) -> list[list[bytes | None]]:
    """Return the contents of each partition of the target."""
    return [await contents(client, f"out-partition-{each}") for each in range(count)]


def expected(keys: dict[int, str | None], outputs: dict[int, list[bytes]]) -> list[list[bytes]]:
    """Return the contents that the partitions should have, by the keys of the input."""
    found: list[list[bytes]] = [[] for _ in range(COUNT)]
    for number, key in keys.items():
        found[output_partition(key, -1, COUNT)] += outputs[number]
    return found


async def send(client: Client, keys: dict[int, str | None]) -> None:
    async with await client.create_producer("in", batch_messages_max=7) as producer:
        for number, key in keys.items():
            producer.send_nowait(b"%d" % number, key=key)


async def test_the_key_of_the_input_decides_and_not_that_of_the_output(
    autojump_clock: MockClock,
) -> None:
    keys = {number: f"k{number % 7}" if number % 4 else None for number in range(40)}
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster)
        await send(client, keys)

        def transform(message: Message) -> daybook.Output:
            return daybook.Output(message.data, key="the same for all")

        await pipe_for(client, 5, transform)
        found = await parts(client)
        assert found == expected(keys, {number: [b"%d" % number] for number in keys})
        assert all(found)
        for each in await messages_in(client, "out-partition-1"):
            assert each.key == "the same for all"


async def test_messages_without_a_key_go_by_their_partition(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster)
        partitioned(cluster, "in", 5)
        for each in range(5):
            async with await client.create_producer(f"in-partition-{each}") as producer:
                await producer.send(b"%d" % each)
        await pipe_for(client, 5, lambda message: message.data)
        assert list(map(set, await parts(client))) == [{b"0", b"3"}, {b"1", b"4"}, {b"2"}]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("letters", [False, True])
async def test_crashes_at_every_step_store_each_output_and_letter_once(
    seed: int, letters: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipes are killed, topics are lost, and the transformation fails now and then.

    One partition gets one message only, and somebody moves the subscription now and then.
    """
    monkeypatch.setattr("daybook.clients.python.pipe.WINDOW", 10)
    rng = random.Random(seed)
    lonely = next(f"k{n}" for n in range(99) if output_partition(f"k{n}", -1, COUNT) == 2)
    others = [f"k{n}" for n in range(99) if output_partition(f"k{n}", -1, COUNT) != 2]
    keys: dict[int, str | None] = {n: others[n % 11] for n in range(60)}
    keys[3] = lonely
    share = 0.0

    async def transform(message: Message) -> list[bytes]:
        await trio.sleep(rng.random() * 0.02)
        if rng.random() < share:
            raise KeyError("not now")
        number = int(message.data or b"")
        return [b"%d/%d" % (number, part) for part in range(number % 3)]

    outputs = {n: [b"%d/%d" % (n, part) for part in range(n % 3)] for n in keys}
    options: dict[str, Any] = {"dead_letter_topic": "dead"} if letters else {}
    async with real_broker() as cluster:
        partitioned(cluster)
        topics = ["in", "dead", *(f"out-partition-{each}" for each in range(COUNT))]
        async with client_of(cluster, "filler", QUICK) as filler:
            await send(filler, keys)
            for attempt in range(25):
                last = attempt == 24 or rng.random() < 0.05
                share = 0.0 if last else rng.choice([0.0, 0.1])
                async with (
                    client_of(cluster, f"client {attempt}", QUICK) as client,
                    trio.open_nursery() as nursery,
                ):
                    seconds = 30.0 if last else 0.2 + rng.random() * 2
                    nursery.start_soon(_pipe_until, client, seconds, transform, options)
                    await trio.sleep(rng.random())
                    if rng.random() < 0.7 and not last:
                        await _disturb(cluster, rng, FULL + rng.choice(topics))
                    await trio.sleep(rng.random())
                    if rng.random() < 0.7 and not last:
                        nursery.cancel_scope.cancel()
                if last:
                    break
                if any(await parts(filler)) and rng.random() < 0.3:
                    async with await filler.subscribe("in", "pipe-p") as meddler:
                        await meddler.seek(rng.choice([0, 20, 40]))
            given_up = [int(each or b"") for each in await contents(filler, "dead")]
            assert given_up == sorted(set(given_up))
            assert letters or not given_up
            left = {n: [] if n in given_up else outputs[n] for n in keys}
            assert await parts(filler) == expected(keys, left)


async def _pipe_until(
    client: Client, seconds: float, transform: object, options: dict[str, Any]
) -> None:
    with suppress(KeyError):  # There is no dead letter topic, or outputs are stored.
        await pipe_for(client, seconds, transform, **options)


async def _disturb(cluster: Cluster, rng: random.Random, topic: str) -> None:
    """Have a topic taken over, perhaps while it has stored some of what it got."""
    if topic not in cluster.broker.topics.loaded:
        return
    log = cluster.broker.log(topic)
    if rng.random() < 0.7:
        log.held = True
        await trio.sleep(rng.random() * 0.2)
        log.release(rng.randrange(3))
    log.fence()


async def test_a_partition_without_messages_does_not_make_a_pipe_begin_anew(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybook.clients.python.pipe.WINDOW", 10)
    keys: dict[int, str | None] = dict.fromkeys(range(60), "always the same")
    seen: Counter[bytes] = Counter()

    def transform(message: Message) -> bytes:
        seen[message.data or b""] += 1
        return message.data or b""

    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster)
        await send(client, keys)
        await pipe_for(client, 5, transform)
        assert set(seen.values()) == {1}
        read = cluster.broker.topics.loaded[FULL + "in"].subscriptions.by_name["pipe-p"].messages
        await pipe_for(client, 5, transform)
        found = cluster.broker.topics.loaded[FULL + "in"].subscriptions.by_name["pipe-p"]
        assert found.messages - read < 20  # entries of seven messages
        assert [each for each, count in seen.items() if count > 1] == [b"59"]
        assert list(chain(*await parts(client))) == [b"%d" % number for number in keys]


async def test_a_pipe_does_not_run_far_ahead_of_a_partition(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an output would not prove that earlier messages are finished."""
    monkeypatch.setattr("daybook.clients.python.pipe.WINDOW", 10)
    slow = next(f"k{n}" for n in range(99) if output_partition(f"k{n}", -1, COUNT) == 0)
    quick = next(f"k{n}" for n in range(99) if output_partition(f"k{n}", -1, COUNT) == 1)
    keys: dict[int, str | None] = dict.fromkeys(range(60), quick)
    keys[20] = slow
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster)
        await send(client, keys)
        async with await client.create_producer("out-partition-0"):
            log = cluster.broker.log(FULL + "out-partition-0")
        log.held = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe_for, client, 10, lambda message: message.data)
            await trio.sleep(5)
            assert (await parts(client))[1] == [b"%d" % n for n in range(30) if n != 20]
            # The output that is under way is lost with its log, and the pipe dies.
            log.fence()
            nursery.cancel_scope.cancel()
        async with await client.subscribe("in", "pipe-p") as meddler:
            await meddler.seek(40)
        await pipe_for(client, 10, lambda message: message.data)
        assert await parts(client) == expected(keys, {n: [b"%d" % n] for n in keys})


@pytest.mark.parametrize("before", [0, COUNT])
async def test_a_pipe_is_refused_when_the_number_of_partitions_has_changed(
    before: int, autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster, count=before)
        await fill(client, "in", 10)
        await pipe_for(client, 5, lambda message: message.data)
        partitioned(cluster, count=COUNT + 1)
        await fill(client, "in", 10, first=10)
        with (
            trio.fail_after(100),
            pytest.raises(daybook.NotAllowedError, match=f"had {before or 'no'} partitions"),
        ):
            await client.pipe("in", "out", lambda message: message.data, name="p")
        await pipe_for(client, 5, lambda message: message.data, name="other")


async def test_no_partition_is_piped_if_one_is_refused(autojump_clock: MockClock) -> None:
    """The input has got partitions, and the new ones know no other number of outputs."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster)
        partitioned(cluster, "in", 2)
        await fill(client, "in", 10)
        await pipe_for(client, 5, lambda message: message.data)
        before = await parts(client)
        partitioned(cluster, count=COUNT + 1)
        partitioned(cluster, "in", 9)
        await fill(client, "in", 50)
        # The old partitions are opened last, and the pipe is refused only then.
        old = [await client.subscribe(f"in-partition-{each}", "pipe-p") for each in range(2)]
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                await trio.sleep(5)
                assert len(cluster.broker.topics.loaded) > 10
                for each in old:
                    await each.aclose()

            with (
                trio.fail_after(100),
                pytest.raises(daybook.NotAllowedError, match="had 3 partitions"),
            ):
                await client.pipe("in", "out", lambda message: message.data, name="p")
        assert await parts(client) == before
        assert await contents(client, "out-partition-3") == []


async def test_each_partition_of_the_target_must_have_deduplication(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster)
        deduplicate(cluster, "out-partition-0")
        cluster.broker.policies.topic_deduplication[FULL + "out-partition-2"] = False
        await fill(client, "in", 10)
        with (
            trio.fail_after(100),
            pytest.raises(daybook.NotAllowedError, match="out-partition-2 has no deduplication"),
        ):
            await client.pipe("in", "out", lambda message: message.data, name="p")
        assert "pipe-p" not in cluster.broker.log(FULL + "in").by_name


async def test_a_subscription_without_a_record_is_refused_for_a_target_with_partitions(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        partitioned(cluster)
        await fill(client, "in", 10)
        async with await client.subscribe("in", "pipe-p", initial_position="earliest"):
            pass
        with trio.fail_after(100), pytest.raises(daybook.NotAllowedError, match="has no record"):
            await client.pipe("in", "out", lambda message: message.data, name="p")


# -- dead letters


def poison(message: Message) -> bytes:
    if message.data in (b"3", b"4", b"17"):
        raise ValueError("I do not like " + (message.data or b"").decode())
    return message.data or b""


@pytest.mark.parametrize("at_least_once", [False, True])
async def test_a_message_whose_transformation_raises_becomes_a_dead_letter(
    at_least_once: bool, autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.deduplication = True
        await fill(client, "in", 20)
        await pipe_for(client, 5, poison, dead_letter_topic="dead", at_least_once=at_least_once)
        assert await contents(client, "out") == [
            b"%d" % number for number in range(20) if number not in (3, 4, 17)
        ]
        letters = await messages_in(client, "dead")
        assert [each.data for each in letters] == [b"3", b"4", b"17"]
        assert letters[0].key == "k3"
        assert letters[0].properties[PIPE_ERROR] == "ValueError: I do not like 3"
        assert letters[0].properties["REAL_TOPIC"] == FULL + "in"
        backlog = cluster.broker.log(FULL + "in").by_name["pipe-p"].mark_delete
        assert backlog.entry_id >= 1  # Letters count as finished.
        if not at_least_once:
            await pipe_for(client, 5, poison, dead_letter_topic="dead")
            assert len(await contents(client, "dead")) == 3


async def test_a_letter_waits_for_all_messages_before_it_and_the_others_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.deduplication = True
        await fill(client, "in", 20)
        for topic in ("out", "dead"):
            async with await client.create_producer(topic):
                cluster.broker.log(FULL + topic).held = True
        out, dead = cluster.broker.log(FULL + "out"), cluster.broker.log(FULL + "dead")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: pipe_for(client, 60, poison, dead_letter_topic="dead"))
            await trio.sleep(5)
            assert (len(out._pending), len(dead._pending)) == (3, 0)
            out.release(2)
            await trio.sleep(5)
            assert (len(out._pending), len(dead._pending)) == (1, 0)
            out.release(1)
            await trio.sleep(5)
            assert (len(out._pending), len(dead._pending)) == (0, 1)
            out.held = False
            dead.release(1)
            await trio.sleep(5)
            assert (len(out._pending), len(dead._pending)) == (0, 1)
            assert len(out.entries) == 3
            dead.held = False
            dead.release(1)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert len(await contents(client, "out")) == 17
        assert len(await contents(client, "dead")) == 3


async def test_a_message_that_has_outputs_gets_no_letter(autojump_clock: MockClock) -> None:
    """The transformation fails at the start only, for the message that comes again."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.deduplication = True
        await fill(client, "in", 5)
        await pipe_for(client, 5, lambda message: message.data, dead_letter_topic="dead")

        def fail(message: Message) -> bytes:
            raise ConnectionError("try again later")

        with trio.fail_after(100), pytest.raises(ConnectionError) as caught:
            await client.pipe("in", "out", fail, name="p", dead_letter_topic="dead")
        assert "has outputs or a dead letter" in caught.value.__notes__[0]
        await fill(client, "in", 5, first=5)
        await pipe_for(client, 5, lambda message: message.data, dead_letter_topic="dead")
        assert await contents(client, "out") == [b"%d" % number for number in range(10)]
        assert await contents(client, "dead") == []


async def test_a_finished_message_is_not_transformed_again(autojump_clock: MockClock) -> None:
    """It might succeed now, and would have both: outputs and a letter."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.deduplication = True
        await fill(client, "in", 4)
        await pipe_for(client, 5, poison, dead_letter_topic="dead")
        await fill(client, "in", 4, first=10)
        await pipe_for(client, 5, lambda message: message.data, dead_letter_topic="dead")
        assert await contents(client, "dead") == [b"3"]
        assert await contents(client, "out") == [b"0", b"1", b"2", b"10", b"11", b"12", b"13"]


async def test_large_messages_become_letters_in_chunks(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.deduplication = True
        async with await client.create_producer("in", batching=False, chunking=True) as producer:
            limit = producer._partition_producers[0]._max_bytes
            for number in range(2):
                await producer.send(bytes([number]) * (limit + 1000), key="large")

        def fail(message: Message) -> None:
            raise ValueError("too large for me")

        for _ in range(2):
            await pipe_for(client, 5, fail, dead_letter_topic="dead")
        letters = await messages_in(client, "dead")
        assert [(each.data or b"")[:1] for each in letters] == [b"\x00", b"\x01"]
        assert {len(each.data or b"") for each in letters} == {limit + 1000}


async def test_a_result_of_a_wrong_kind_is_no_letter(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        cluster.broker.policies.deduplication = True
        await fill(client, "in", 1)
        for wrong in ("text", 7, [7]):
            with trio.fail_after(100), pytest.raises(TypeError, match="a transformation returns"):
                await client.pipe(
                    "in",
                    "out",
                    lambda _, wrong=wrong: wrong,  # type: ignore[misc]
                    name="p",
                    dead_letter_topic="dead",
                )
        assert await contents(client, "dead") == []


async def test_a_dead_letter_topic_must_be_another_one_without_partitions(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        deduplicate(cluster, "out")
        await fill(client, "in", 5)
        for same in ("in", "out-partition-1"):
            with trio.fail_after(100), pytest.raises(ValueError, match="must be another topic"):
                await client.pipe("in", "out", poison, name="p", dead_letter_topic=same)
        with (
            trio.fail_after(100),
            pytest.raises(daybook.NotAllowedError, match="dead has no deduplication"),
        ):
            await client.pipe("in", "out", poison, name="p", dead_letter_topic="dead")
        cluster.broker.policies.partition_counts[FULL + "dead"] = 2
        with (
            trio.fail_after(100),
            pytest.raises(daybook.NotAllowedError, match="dead has 2 partitions"),
        ):
            await client.pipe("in", "out", poison, name="p", dead_letter_topic="dead")


def test_the_window_is_that_of_the_record() -> None:
    assert piping.PipeRecord.decode(piping.PipeRecord("x", "t", 3, 7).encode()).window == 7
