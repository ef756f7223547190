"""Drivers and tasks that reach only brokers, over HTTP."""

import pytest
import trio

from daybook.clients.python.errors import AdminError, ConflictError, NotFoundError
from daybook.clients.python.sink_requests import (
    BODY_BYTES_MAX,
    Batch,
    SinkRequests,
    StagingAttempt,
)
from daybook.managed_ledger.sinks.staging import staged_entry
from daybook.wire.batch import encode_batch
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork
from tests.broker.sinks.world import (
    CHECKPOINT,
    PARTITIONS,
    SINK,
    TOPIC,
    World,
    partition,
    simulated,
)

BATCH = Batch("query", 0, {TOPIC: PARTITIONS})


def requests(world: World, *hosts: str) -> SinkRequests:
    urls = ",".join(f"{host}:8080" for host in hosts or ("broker-1", "broker-2"))
    network = world.cluster.network.of("driver")
    return SinkRequests(f"http://{urls}", network=network, timeout_s=10.0)


def batch_of(*texts: str) -> bytes:
    """Return a staged batch, with a key for each message."""
    body = encode_batch(
        (pb.SingleMessageMetadata(partition_key=text), text.encode()) for text in texts
    )
    return staged_entry(pb.MessageMetadata(num_messages_in_batch=len(texts)), body)


@pytest.mark.parametrize(("sizes", "bodies"), [([0, 0], 1), ([0, 1], 2), ([1, -1, -9], 2)])
async def test_no_body_of_several_entries_exceeds_what_brokers_take(
    sizes: list[int], bodies: int
) -> None:
    answer = {"attempt": "a", "ledgerId": 1, "url": "http://x:1"}
    attempt = StagingAttempt(TcpNetwork(), SINK, answer, 1.0)
    sent: list[int] = []

    async def call(_method: str, _target: str, body: list[bytes]) -> object:
        await trio.lowlevel.checkpoint()
        sent.append(sum(map(len, body)))
        return {"next": len(sent)}

    attempt._call = call  # type: ignore[assignment, method-assign]
    half = BODY_BYTES_MAX // 2 - 4  # and its size
    await attempt.append(partition(0), [bytes(half + more) for more in sizes])
    assert len(sent) == bodies
    assert max(sent) <= BODY_BYTES_MAX
    assert sum(sent) == sum(half + more + 4 for more in sizes)


def test_the_requests_of_an_attempt_share_a_connection_and_close_it() -> None:
    async def story(world: World) -> None:
        def open_now() -> int:
            return sum(each.host == "driver" for each in world.cluster.network.open_streams)

        driver = requests(world, "broker-1")
        attempt = await driver.begin(SINK, BATCH)
        for text in "abc":
            await attempt.append(partition(0), [batch_of(text)])
            assert open_now() == 1
        await attempt.close(rows=3, hash_=1)
        assert open_now() == 0
        attempt = await driver.begin(SINK, BATCH)
        await attempt.append(partition(0), [batch_of("d")])
        await trio.sleep(20)  # The broker has closed the connection, and the attempt goes on.
        await attempt.append(partition(0), [batch_of("e")])
        assert attempt.entries == 2
        await attempt.give_up()
        assert open_now() == 0

    simulated(story)


def test_a_batch_is_written_over_http() -> None:
    async def story(world: World) -> None:
        driver = requests(world)
        attempt = await driver.begin(SINK, BATCH)
        await attempt.append(partition(0), [batch_of("a", "b"), batch_of("c")])
        await attempt.append(partition(1), [batch_of("d")])
        share = await attempt.close(rows=4, hash_=2**64 - 1)
        assert (share.rows, share.hash, share.entries) == (4, 2**64 - 1, 3)
        done = await driver.commit(SINK, BATCH, [share, None], checkpoint=CHECKPOINT)
        assert done.outcome == "committed"
        state = await driver.roll_forward(SINK, timeout_s=30)
        assert [(p.topic, p.next, p.state) for p in state.partitions] == [
            (partition(0), 2, "applied"),
            (partition(1), 1, "applied"),
        ]
        assert await world.read(0) == ["a", "b", "c"]
        again = await driver.commit(SINK, BATCH, [share, None], checkpoint=CHECKPOINT)
        assert again.outcome == "done"
        await driver.forget(SINK)
        with pytest.raises(NotFoundError):
            await driver.state("another")

    simulated(story)


def test_an_attempt_that_cannot_go_on_has_failed() -> None:
    async def story(world: World) -> None:
        driver = requests(world, "broker-1")
        attempt = await driver.begin(SINK, BATCH)
        await attempt.append(partition(0), [batch_of("a")])
        attempt.entries = 0  # An answer was lost.
        with pytest.raises(ConflictError, match="begin another attempt"):
            await attempt.append(partition(0), [batch_of("a")])
        with pytest.raises(NotFoundError):
            await attempt.append(partition(0), [batch_of("b")])
        attempt = await driver.begin(SINK, BATCH)
        with pytest.raises(AdminError, match="not one of the topic partitions"):
            await attempt.append(partition(PARTITIONS), [batch_of("a")])
        attempt = await driver.begin(SINK, BATCH)
        with pytest.raises(AdminError, match="cut off"):
            await attempt.append(partition(0), [batch_of("a")[:3]])
        attempt = await driver.begin(SINK, BATCH)
        await attempt.give_up()
        with pytest.raises(NotFoundError):
            await attempt.close(rows=0, hash_=0)

    simulated(story)


def test_a_ledger_that_was_not_closed_cannot_be_committed() -> None:
    async def story(world: World) -> None:
        driver = requests(world)
        attempt = await driver.begin(SINK, BATCH)
        await attempt.append(partition(0), [batch_of("a")])
        share = await attempt.close(rows=1, hash_=1)
        other = await driver.begin(SINK, BATCH)
        await other.append(partition(0), [batch_of("b")])
        open_ = type(share)(other.attempt, other.ledger_id, 1, 1, 1, 1)
        with pytest.raises(ConflictError, match="never closed"):
            await driver.commit(SINK, BATCH, [share, open_], checkpoint=CHECKPOINT)
        kept = await driver.abort(SINK, BATCH, [share, open_], checkpoint=CHECKPOINT)
        assert kept == []
        assert await world.ledgers_of_sinks() == set()

    simulated(story)


def test_the_number_of_partitions_is_that_of_the_driver() -> None:
    async def story(world: World) -> None:
        driver = requests(world)
        attempt = await driver.begin(SINK, BATCH)
        await attempt.append(partition(0), [batch_of("a")])
        share = await attempt.close(rows=1, hash_=1)
        grown = Batch("query", 0, {TOPIC: PARTITIONS + 1})
        with pytest.raises(ConflictError, match="write the batch again"):
            await driver.commit(SINK, grown, [share], checkpoint=CHECKPOINT)

    simulated(story)
