"""Topics: admission of producers, loading, unloading, dropping, deleting, terminating."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.bookie.errors import ReadUnknownError
from daybook.broker.dispatch.backlog import BacklogSize
from daybook.broker.errors import (
    BrokerError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.protocol.access import EPOCH_MAX
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.topics.stats import internal_stats, topic_stats
from daybook.broker.topics.topic import Topic
from daybook.managed_ledger.errors import FencedError
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.consumer import encode_ack
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness.broker import TOPIC, open_broker
from tests.harness.clocks import EPOCH_MS

NAME = TopicName.parse(TOPIC)
EVERYTHING = BundleName("public/default/0x00000000_0xffffffff")


# -- loading


async def test_a_topic_whose_log_is_lost_while_it_is_loaded_is_given_to_nobody(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Topic.run

    async def lose(topic: Topic, started: Callable[[], None]) -> None:
        monkeypatch.setattr(Topic, "run", run)
        topic.append_failed(FencedError("a new owner"))
        await run(topic, started)

    async with open_broker() as cluster:
        monkeypatch.setattr(Topic, "run", lose)
        with pytest.raises(UnavailableError, match="while it was loaded"):
            await cluster.broker.topics.get(NAME, create=True)
        await trio.sleep(60)  # A log that was fenced is not opened again at once.
        assert not (await cluster.broker.topics.get(NAME, create=True)).closed


# -- producers


async def test_a_name_has_one_producer(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(1, producer_name="me")
        error = await client.producer(2, producer_name="me")
        assert error.error == pb.ProducerBusy


async def test_a_producer_whose_client_is_dead_makes_way_for_its_name(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        dead, again = await cluster.client(), await cluster.client()
        await dead.producer(producer_name="me")
        began = trio.current_time()
        success = await again.producer(producer_name="me", epoch=1)
        assert success.producer_name == "me"
        assert 4.5 < trio.current_time() - began < 6
        dead.send(0)  # The client was only slow: its sends are rejected.
        again.send(7)
        assert [r[0] for r in await again.receipts(1)] == [7]
        await dead.settle()
        assert not dead.bodies(SendReceipt)
        assert len(cluster.broker.log().entries) == 1


async def test_a_producer_whose_client_lives_keeps_its_name(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        alive, other = await cluster.client(), await cluster.client()
        await alive.producer(producer_name="me")
        async with trio.open_nursery() as nursery:

            async def pong() -> None:
                await alive.wait(pb.CommandPing)
                alive.tell(pb.CommandPong())

            nursery.start_soon(pong)
            error = await other.producer(producer_name="me")
        assert error.error == pb.ProducerBusy


async def test_a_producer_that_nobody_listens_to_is_not_taken_for_dead(
    autojump_clock: MockClock,
) -> None:
    """Its topic is slow, so the connection is not read from; whether it lives is not known."""
    async with open_broker() as cluster:
        slow, other = await cluster.client(), await cluster.client()
        await slow.producer(producer_name="me")
        log = cluster.broker.log()
        log.held, log.pending_bytes_max = True, 1000
        for n in range(3):
            slow.send(n, b"x" * 1000)
            await slow.settle()
        error = await other.producer(producer_name="me")
        assert error.error == pb.ProducerBusy
        log.release()
        await slow.receipts(3)


async def test_a_larger_epoch_replaces_the_producer_and_its_receipts(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(1, producer_name="me")
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        await client.settle()
        success = await client.producer(1, producer_name="me", epoch=1)
        assert success.producer_name == "me"
        client.send(0)
        client.send(1)
        await client.settle()
        log.release()
        assert [r[0] for r in await client.receipts(2)] == [0, 1]
        assert len(log.entries) == 3


async def test_waiting_for_exclusive_access(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        success = await one.producer(producer_access_mode=pb.Exclusive)
        assert success.topic_epoch == 0
        request = pb.CommandProducer(
            topic=TOPIC, producer_id=5, request_id=9, producer_access_mode=pb.WaitForExclusive
        )
        two.tell(request)
        (waiting,) = await two.wait(pb.CommandProducerSuccess)
        assert (waiting.request_id, waiting.producer_ready) == (9, False)
        await one.ask(pb.CommandCloseProducer(producer_id=1), pb.CommandSuccess)
        (ready,) = await two.wait(pb.CommandProducerSuccess)
        assert (ready.request_id, ready.producer_ready, ready.topic_epoch) == (9, True, 1)
        assert cluster.broker.log().properties["pulsar.topic.epoch"] == "1"
        two.send(0, producer_id=5)
        await two.receipts(1)


async def test_one_that_waits_may_leave(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        one, two, three = [await cluster.client() for _ in range(3)]
        await one.producer(producer_access_mode=pb.Exclusive)
        for client in (two, three):
            client.tell(
                pb.CommandProducer(
                    topic=TOPIC,
                    producer_id=1,
                    request_id=9,
                    producer_access_mode=pb.WaitForExclusive,
                )
            )
            await client.wait(pb.CommandProducerSuccess)
        two.frames.close()
        await one.settle()
        one.frames.close()
        (ready,) = await three.wait(pb.CommandProducerSuccess)
        assert ready.producer_ready


async def test_fencing_expels_the_others(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        await one.producer()
        success = await two.producer(2, producer_access_mode=pb.ExclusiveWithFencing)
        assert success.topic_epoch == 0
        await one.wait(pb.CommandCloseProducer)
        error = await one.producer(1)
        assert error.error == pb.ProducerBusy


async def test_the_names_of_loaded_topics_are_parsed_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that loses its session drops each of its bundles."""
    async with open_broker() as cluster:
        client, topics = await cluster.client(), cluster.broker.topics
        for number in range(1, 20):
            await client.producer(number, topic=f"t{number}")
        assert len(topics.with_hashes(EVERYTHING)) == 19
        with monkeypatch.context() as patched:
            patched.setattr(TopicName, "parse", None)
            assert len(topics.with_hashes(EVERYTHING)) == 19
            topics.drop_bundle(EVERYTHING)
        assert not topics.loaded


async def test_an_epoch_that_no_topic_has_had_is_refused(autojump_clock: MockClock) -> None:
    """Otherwise the next epoch would fit into no answer, and the topic would stay like that."""
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        exclusive: dict[str, Any] = {"producer_access_mode": pb.Exclusive}
        for epoch in (2**64 - 1, EPOCH_MAX + 1):
            refused = await one.producer(topic_epoch=epoch, **exclusive)
            assert refused.error == pb.NotAllowedError
        assert (await one.producer(topic_epoch=EPOCH_MAX, **exclusive)).topic_epoch == EPOCH_MAX
        fencing = await two.producer(2, producer_access_mode=pb.ExclusiveWithFencing)
        assert fencing.topic_epoch == EPOCH_MAX + 1


@pytest.mark.parametrize("name", ["..-partition-0", ".-partition-7"])
async def test_a_partition_of_no_topic_is_refused(name: str, autojump_clock: MockClock) -> None:
    """The record of its topic would have a path that the metadata store takes for another one."""
    async with open_broker() as cluster:
        client = await cluster.client()
        assert (await client.producer(1, topic=name)).error == pb.InvalidTopicName
        assert (await client.subscribe(1, topic=name)).error == pb.InvalidTopicName


@pytest.mark.parametrize("closing", [False, True])
async def test_a_bug_costs_one_topic(closing: bool, autojump_clock: MockClock) -> None:
    """A topic cannot be loaded, or closed.  The broker serves all others."""

    async def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    async with open_broker() as cluster:
        client, topics = await cluster.client(), cluster.broker.topics
        if closing:
            await client.producer(1, topic="bad")
            topics.loaded[TopicName.parse("bad").full].close = fail  # type: ignore[method-assign]
            await topics.unload(TopicName.parse("bad"))
            assert not topics.loaded
        else:
            real, cluster.broker.logs.open = cluster.broker.logs.open, fail  # type: ignore[method-assign]
            refused = await client.producer(1, topic="bad")
            assert (refused.error, "because of a bug" in refused.message) == (
                pb.ServiceNotReady,
                True,
            )
            cluster.broker.logs.open = real  # type: ignore[method-assign]
        for number, name in ((2, "good"), (3, "bad")):
            assert isinstance(await client.producer(number, topic=name), pb.CommandProducerSuccess)
        assert topics.bugs.found == 1
        topics.bugs.found = 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"schema": pb.Schema(name="s", schema_data=b"", type=pb.Schema.Json)}, 18),
        ({"txn_enabled": True}, pb.NotAllowedError),
        ({"producer_name": "x" * 2000}, pb.NotAllowedError),
        ({"topic": "no/such"}, pb.InvalidTopicName),
    ],
)
async def test_producers_that_cannot_be(
    autojump_clock: MockClock, options: dict[str, Any], code: int
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        error = await client.producer(**options)
        assert error.error == code


async def test_an_initial_subscription_is_made(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(initial_subscription_name="init")
        client.send(0)
        await client.receipts(1)
        await client.subscribe(name="init", permits=9)
        assert await client.entry_ids(1) == [0]


# -- loading


async def test_a_topic_is_loaded_once_for_all_who_ask(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        topics, found = cluster.broker.topics, []

        async def get() -> None:
            found.append(await topics.get(NAME, create=True))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(get)
        assert cluster.broker.logs.opened == [NAME]
        assert all(topic is found[0] for topic in found)


async def test_only_what_is_ours_is_loaded(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        ownership = cluster.broker.ownership
        ownership.ours = False
        with pytest.raises(NotOwnerError):
            await cluster.broker.topics.get(NAME, create=True)
        ownership.ours = True
        ownership.contact = False  # suspended
        client = await cluster.client()
        error = await client.producer()
        assert error.error == pb.ServiceNotReady


async def test_a_topic_that_is_loaded_goes_on_while_the_session_is_suspended(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        cluster.broker.ownership.contact = False
        client.send(0)
        await client.receipts(1)
        assert isinstance(await client.producer(2), pb.CommandProducerSuccess)


async def test_ownership_lost_while_loading(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        broker = cluster.broker
        broker.logs.gate = trio.Event()
        errors = []

        async def get() -> None:
            try:
                await broker.topics.get(NAME, create=True)
            except BrokerError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            await trio.sleep(0.1)
            broker.ownership.ours = False
            broker.logs.gate.set()
        (error,) = errors
        assert isinstance(error, NotOwnerError)
        assert broker.log().closed


async def test_topics_are_dropped_with_their_bundle(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        broker = cluster.broker
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=9)
        log = broker.log()
        log.held = True
        client.send(0)
        await client.settle()
        broker.ownership.ours = False
        broker.topics.drop_bundle(BundleName("public/default/0x00000000_0xffffffff"))
        await client.wait(pb.CommandCloseProducer)
        await client.wait(pb.CommandCloseConsumer)
        assert not broker.topics.loaded
        assert log.closed
        await client.settle()
        assert not client.bodies(SendReceipt)


async def test_a_fence_at_the_opening_is_not_repeated_at_once(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        topics, logs = cluster.broker.topics, cluster.broker.logs
        logs.open_fails = FencedError("somebody else")
        with pytest.raises(UnavailableError):
            await topics.get(NAME, create=True)
        logs.open_fails = None
        with pytest.raises(UnavailableError, match="another broker"):
            await topics.get(NAME, create=True)
        assert len(logs.opened) == 1
        await trio.sleep(0.2)
        await topics.get(NAME, create=True)


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    async with open_broker(settings={"auto_create_topics": False}) as cluster:
        client = await cluster.client()
        assert (await client.producer()).error == pb.TopicNotFound
        with pytest.raises(NotFoundError):
            await cluster.broker.topics.get(NAME, create=False)
        await cluster.broker.topics.create(NAME, {})
        assert isinstance(await client.producer(), pb.CommandProducerSuccess)


@pytest.mark.parametrize("domain", ["", "non-"])
async def test_no_topic_is_made_that_looks_like_a_partition(
    domain: str, autojump_clock: MockClock
) -> None:
    """A right on one topic would make thousands."""
    name = TopicName.parse(f"{domain}{TOPIC}")
    async with open_broker() as cluster:
        topics = cluster.broker.topics
        await topics.open(name, create=True)
        for index in (0, 1023):
            with pytest.raises(NotAllowedError, match="does not exist"):
                await topics.open(name.partition_name(index), create=True)
            assert not await topics.exists(name.partition_name(index))


async def test_a_topic_of_pulsar_that_looks_like_a_partition_is_served(
    autojump_clock: MockClock,
) -> None:
    name = NAME.partition_name(7)
    async with open_broker() as cluster:
        await cluster.broker.topics.logs.create(name, {})
        for create in (False, True):
            assert (await cluster.broker.topics.get(name, create=create)).name == name
            await cluster.broker.topics.unload(name)


async def test_partitions_are_those_that_the_topic_has(autojump_clock: MockClock) -> None:
    async with open_broker(settings={"auto_create_topics": False}) as cluster:
        topics = cluster.broker.topics
        cluster.broker.policies.partition_counts[TOPIC] = 3
        await topics.get(NAME.partition_name(2), create=False)
        for name in (NAME, NAME.partition_name(3)):
            with pytest.raises(NotAllowedError):
                await topics.get(name, create=True)


# -- letting go


async def test_unloading_stores_what_is_outstanding_first(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=9)
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        await client.settle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.broker.topics.unload, NAME)
            await client.settle()
            client.send(1)  # rejected: the client sends it again
            await client.settle()
            log.release()
        await client.settle()
        kinds = [type(getattr(c, "body", c)).__name__ for c in client.got]
        assert kinds.index("SendReceipt") < kinds.index("CommandCloseProducer")
        assert "CommandCloseConsumer" in kinds
        assert [r.sequence_id for r in client.bodies(SendReceipt)] == [0]
        assert log.closed
        client.got.clear()
        await client.producer(epoch=1)
        client.send(1)
        assert await client.receipts(1) == [(1, 5, 1)]


async def test_unloading_takes_no_longer_when_the_producer_is_closed_meanwhile(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        await client.settle()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.broker.topics.unload, NAME)
            await client.settle()
            client.tell(pb.CommandCloseProducer(producer_id=1, request_id=9))
            await client.settle()
            log.release()
        assert trio.current_time() - began < 1
        (success,) = await client.wait(pb.CommandSuccess)
        assert success.request_id == 9
        assert [r.sequence_id for r in client.bodies(SendReceipt)] == [0]


async def test_a_close_is_answered_when_an_unload_waits_for_the_same_sends(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        client.tell(pb.CommandCloseProducer(producer_id=1, request_id=9))
        await client.settle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.broker.topics.unload, NAME)
            await client.settle()
            log.release()
            await client.wait(pb.CommandSuccess)


async def test_unloading_does_not_wait_for_ever(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held = True
        client.send(0)
        await client.settle()
        began = trio.current_time()
        await cluster.broker.topics.unload(NAME)
        assert trio.current_time() - began < 6
        assert not client.bodies(SendReceipt)


async def test_deleting(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        broker = cluster.broker
        client = await cluster.client()
        await client.subscribe()
        with pytest.raises(PreconditionError):
            await broker.topics.delete(NAME, force=False)
        await broker.topics.delete(NAME, force=True)
        await client.wait(pb.CommandCloseConsumer)
        assert not broker.logs.by_name
        with pytest.raises(NotFoundError):
            await broker.topics.delete(NAME, force=True)


async def test_a_terminated_topic(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        broker = cluster.broker
        ours = await cluster.client(version="daybook-test")
        theirs = await cluster.client(version="Pulsar-CPP-v4.2.0")
        await ours.producer()
        await ours.subscribe(name="a", permits=9)
        await theirs.subscribe(name="b", permits=9)
        ours.send(0)
        await ours.deliveries(1)
        await theirs.deliveries(1)
        topic = broker.topics.loaded[TOPIC]
        await topic.terminate()
        ours.send(1)
        (error,) = await ours.wait(pb.CommandSendError)
        assert error.error == pb.TopicTerminatedError
        assert not ours.bodies(pb.CommandCloseProducer)  # That send would be in doubt then.
        assert (await ours.producer(7)).error == pb.TopicTerminatedError
        for client in (ours, theirs):
            client.ack(0)
            await client.settle()
        assert len(ours.bodies(pb.CommandReachedEndOfTopic)) == 1
        # The client would drop the connection.
        assert not theirs.bodies(pb.CommandReachedEndOfTopic)


async def test_a_consumer_without_permits_is_not_told_of_an_end_that_it_has_not_read(
    autojump_clock: MockClock,
) -> None:
    """All was read for a volatile subscription; then more came, and no consumer had permits."""
    async with open_broker() as cluster:
        client = await cluster.client(version="daybook-test")
        await client.producer()
        for consumer_id, permits in ((1, 0), (2, 9)):
            await client.subscribe(
                consumer_id, durable=False, kind=pb.CommandSubscribe.Shared, permits=permits
            )
        await client.settle()  # The second consumer waits at the end.
        await client.ask(pb.CommandCloseConsumer(consumer_id=2), pb.CommandSuccess)
        client.send(0)
        await client.receipts(1)
        await cluster.broker.topics.loaded[TOPIC].terminate()
        await client.settle()
        assert not client.bodies(pb.CommandReachedEndOfTopic)
        client.flow(9)
        assert await client.entry_ids(1) == [0]
        await client.wait(pb.CommandReachedEndOfTopic)


async def test_sends_that_come_while_a_topic_is_terminated_are_answered_behind_its_end(
    autojump_clock: MockClock,
) -> None:
    """Go's client ignores a refused send and lets it time out.  It has to reconnect."""
    async with open_broker() as cluster:
        broker = cluster.broker
        ours = await cluster.client(version="daybook-test")
        theirs = await cluster.client(version="Pulsar Go 0.19.0")
        clients = (ours, theirs)
        for client in clients:
            await client.producer()
        log = broker.log()
        log.held = True
        gate = broker.logs.terminate_gate = trio.Event()
        for client in clients:
            client.send(0)
        await ours.settle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.topics.loaded[TOPIC].terminate)
            await ours.settle()
            for client in clients:
                client.send(1)
                client.send(2)
                client.tell(pb.CommandProducer(topic=TOPIC, producer_id=9, request_id=9))
            await ours.settle()
            assert not any(client.got for client in clients)
            log.release()
            for client in clients:
                assert [sequence_id for sequence_id, _, _ in await client.receipts(1)] == [0]
                assert not client.got
            gate.set()
        await theirs.wait(pb.CommandCloseProducer)
        assert not theirs.bodies(pb.CommandSendError)
        (error,) = await ours.wait(pb.CommandSendError)
        assert (error.sequence_id, error.error) == (1, pb.TopicTerminatedError)
        assert not ours.bodies(pb.CommandCloseProducer)
        for client in clients:
            (refused,) = await client.wait(pb.CommandError)
            assert (refused.request_id, refused.error) == (9, pb.TopicTerminatedError)
        assert (await theirs.producer(epoch=1)).error == pb.TopicTerminatedError
        assert len(log.entries) == 2


async def test_a_topic_that_could_not_be_terminated_goes_on_without_a_gap(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        broker = cluster.broker
        client, idle = await cluster.client(), await cluster.client()
        await client.producer()
        await idle.producer()
        topic = broker.topics.loaded[TOPIC]
        gate = broker.logs.terminate_gate = trio.Event()
        broker.logs.terminate_fails = UnavailableError("the store is away")
        async with trio.open_nursery() as nursery:

            async def terminate() -> None:
                with pytest.raises(UnavailableError):
                    await topic.terminate()

            nursery.start_soon(terminate)
            await client.settle()
            client.send(0)
            client.send(1)
            await client.settle()
            gate.set()
        await client.wait(pb.CommandCloseProducer)
        assert not client.bodies(pb.CommandSendError)
        assert isinstance(await client.producer(epoch=1), pb.CommandProducerSuccess)
        client.send(0)
        client.send(1)
        idle.send(0)
        assert [sequence_id for sequence_id, _, _ in await client.receipts(2)] == [0, 1]
        await idle.receipts(1)
        assert not idle.bodies(pb.CommandCloseProducer)
        assert len(broker.log().entries) == 3


async def test_a_name_has_one_producer_also_behind_a_topic_that_could_not_be_terminated(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        broker = cluster.broker
        dead, client = await cluster.client(), await cluster.client()
        await dead.producer(producer_name="me")
        gate = broker.logs.terminate_gate = trio.Event()
        broker.logs.terminate_fails = UnavailableError("the store is away")
        async with trio.open_nursery() as nursery:

            async def terminate() -> None:
                with pytest.raises(UnavailableError):
                    await broker.topics.loaded[TOPIC].terminate()

            for producer_id in (2, 3):
                client.tell(
                    pb.CommandProducer(
                        topic=TOPIC,
                        producer_id=producer_id,
                        request_id=producer_id,
                        producer_name="me",
                    )
                )
            await client.settle(1)  # The client that has the name is probed.
            nursery.start_soon(terminate)
            await client.settle(9)
            assert not client.bodies(pb.CommandProducerSuccess)
            gate.set()
        await client.wait(pb.CommandProducerSuccess)
        (refused,) = await client.wait(pb.CommandError)
        assert refused.error == pb.ProducerBusy


async def test_a_topic_is_terminated_although_nobody_waits_for_it_any_more(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        topic = cluster.broker.topics.loaded[TOPIC]
        gate = cluster.broker.logs.terminate_gate = trio.Event()
        with trio.move_on_after(1):
            await topic.terminate()
        assert topic.termination is not None
        gate.set()
        await client.wait(pb.CommandCloseProducer)
        assert topic.terminated


async def test_a_producer_that_waits_for_its_turn_hears_that_the_topic_has_ended(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(1, producer_access_mode=pb.Exclusive)
        for producer_id in (2, 3):
            request = pb.CommandProducer(
                topic=TOPIC, producer_id=producer_id, request_id=producer_id
            )
            request.producer_access_mode = pb.WaitForExclusive
            client.tell(request)
        await client.wait(pb.CommandProducerSuccess, 2)
        await cluster.broker.topics.loaded[TOPIC].terminate()
        refused = await client.wait(pb.CommandError, 2)
        assert {error.request_id for error in refused} == {2, 3}
        assert {error.error for error in refused} == {pb.TopicTerminatedError}
        await client.wait(pb.CommandCloseProducer)
        assert not len(cluster.broker.topics.loaded[TOPIC].producers)


@pytest.mark.parametrize("where", ["read", "read_now"])
async def test_a_bug_in_one_topic_is_no_end_of_the_broker(
    autojump_clock: MockClock, where: str
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=9)
        other = await cluster.client()
        await other.producer(topic=TOPIC + "2")

        def broken(*args: object, **options: object) -> None:
            raise ZeroDivisionError

        cluster.broker.log().in_memory = where == "read_now"
        setattr(cluster.broker.log(), where, broken)
        await client.settle()
        client.send(0)
        await client.wait(pb.CommandCloseConsumer)
        other.send(0)
        await other.receipts(1)
        assert cluster.broker.topics.bugs.found == 1
        cluster.broker.topics.bugs.found = 0


# -- numbers


async def test_statistics_have_the_keys_of_pulsar(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client(version="daybook-test")
        await client.producer(producer_name="me")
        await client.subscribe(kind=pb.CommandSubscribe.Shared, permits=100, consumer_name="c")
        for n in range(4):
            client.send_batch(n * 10, 10)
        await client.deliveries(4)
        client.ack(0)
        await client.settle()
        topic = cluster.broker.topics.loaded[TOPIC]
        await topic.read_backlogs()
        stats: dict[str, Any] = topic_stats(topic, "us:8080")
        assert stats["msgInCounter"] == 40
        assert stats["msgOutCounter"] == 40
        assert stats["ownerBroker"] == "us:8080"
        (publisher,) = stats["publishers"]
        assert publisher["producerName"] == "me"
        assert publisher["clientVersion"] == "daybook-test"
        subscription = stats["subscriptions"]["sub"]
        assert subscription["type"] == "Shared"
        assert (subscription["msgBacklog"], subscription["backlogEntries"]) == (30, 3)
        assert subscription["backlogExact"] is True
        assert 0 < subscription["backlogSize"] == stats["backlogSize"] < stats["storageSize"]
        assert subscription["unackedMessages"] == 30
        (consumer,) = subscription["consumers"]
        assert consumer["availablePermits"] == 60
        assert consumer["avgMessagesPerEntry"] == 10
        assert isinstance(consumer["avgMessagesPerEntry"], int)
        topic.tick_rates(100.0)
        client.send_batch(40, 10)
        await client.deliveries(1)
        topic.tick_rates(102.0)
        stats = topic_stats(topic, "us:8080")
        assert stats["msgRateIn"] == 5.0
        assert stats["msgRateOut"] == 5.0
        assert "lastConfirmedEntry" in internal_stats(topic)


async def test_the_backlog_is_counted_in_messages(autojump_clock: MockClock) -> None:
    """The batches are acknowledged out of order, and one of them in part."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=pb.CommandSubscribe.Shared, permits=1000)
        for n in range(5):
            client.send_batch(n * 20, 20 if n % 2 else 10)
        await client.deliveries(5)
        topic = cluster.broker.topics.loaded[TOPIC]
        subscription = topic.subscriptions.get("sub")
        seen: list[tuple[int, int, bool]] = []
        for entry_id in (None, 0, 2, 1):
            if entry_id is not None:
                client.ack(entry_id)
                await client.settle()
            await topic.read_backlogs()
            backlog = subscription.backlog
            seen.append((backlog.messages, backlog.entries, backlog.exact))
        assert seen == [(70, 5, True), (60, 4, True), (50, 3, True), (30, 2, True)]
        client.frames.send([encode_ack(1, [(5, 3, 0b11)])])
        await client.settle()
        await topic.read_backlogs()
        backlog = subscription.backlog
        assert (backlog.messages, backlog.entries, backlog.exact) == (12, 2, True)
        log = cluster.broker.log()
        assert (backlog.bytes, backlog.bytes_exact) == (sum(map(len, log.entries[3:])), True)
        assert backlog.oldest_ms == EPOCH_MS + 3 * 20
        client.ack(3, 4)
        await client.settle()
        assert subscription.backlog == BacklogSize(0, 0, 0, exact=True)


async def test_the_backlog_is_an_estimate_while_bookies_do_not_answer(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe()
        client.send_batch(0, 10)
        await client.receipts(1)
        cluster.broker.logs.reads_fail = ReadUnknownError(5, 0, "its bookies are away")
        topic = cluster.broker.topics.loaded[TOPIC]
        await topic.read_backlogs()
        backlog = topic.subscriptions.get("sub").backlog
        assert (backlog.entries, backlog.exact) == (1, False)
        cluster.broker.logs.reads_fail = None
        await topic.read_backlogs()
        backlog = topic.subscriptions.get("sub").backlog
        assert (backlog.messages, backlog.exact) == (10, True)


async def test_a_producer_that_leaves_a_cancelled_broker_makes_nobody_its_successor(
    autojump_clock: MockClock,
) -> None:
    """The topic can start no task any more, and admitting the successor would need one."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(1, producer_access_mode=pb.Exclusive)
        client.tell(
            pb.CommandProducer(
                topic=TOPIC,
                producer_id=2,
                request_id=900,
                producer_access_mode=pb.WaitForExclusive,
            )
        )
        await client.settle()
        (topic,) = cluster.broker.topics.loaded.values()
        (first,) = topic.producers.by_name.values()
        topic._nursery.cancel_scope.cancel()  # type: ignore[union-attr]
        await client.settle()
        assert topic.closed
        topic.producers.remove(first)
        assert topic.producers.waiting <= 1
        assert not topic.producers.by_name
