"""Refused requests: what counts as a refusal, the delay of a client that repeats one, the log."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import CapturingLogger
from trio.testing import MockClock

from daybook.broker.admin.stats_sums import sum_stats
from daybook.broker.errors import NotFoundError
from daybook.broker.limits import ConnectionLimits, RequestLimits
from daybook.broker.protocol.refusals import PACE_BURST, PACE_PER_S
from daybook.broker.service.refused_requests import REASON_CHARS_MAX
from daybook.broker.service.request_counts import INTERVAL_S, RefusalLog, RequestCounts
from daybook.wire.logging import LogLimiter
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import Client, open_broker

T = pb.BaseCommand


def new_schema(kind: pb.Schema.Type, data: bytes = b"") -> pb.CommandGetOrCreateSchema:
    schema = pb.Schema(name="", schema_data=data)
    schema.type = kind
    return pb.CommandGetOrCreateSchema(request_id=0, topic="t", schema=schema)


async def test_an_untyped_schema_is_a_success_with_an_empty_version(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = new_schema(pb.Schema.NoSchema)
        answer = await client.ask(request, pb.CommandGetOrCreateSchemaResponse)
        assert not answer.HasField("error_code")
        assert answer.HasField("schema_version")
        assert answer.schema_version == b""


async def test_a_typed_schema_is_refused_in_a_way_that_is_final_for_clients(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(topic="t")
        request = new_schema(pb.Schema.Json, b"{}")
        answer = await client.ask(request, pb.CommandGetOrCreateSchemaResponse)
        assert answer.error_code == pb.IncompatibleSchema


async def test_a_refusal_does_not_quote_megabytes(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = pb.CommandLookupTopic(topic="t", advertised_listener_name="x" * 1_000_000)
        answer = await client.ask(request, pb.CommandLookupTopicResponse)
        assert answer.response == pb.CommandLookupTopicResponse.Failed
        assert len(answer.message) <= REASON_CHARS_MAX


async def test_a_topic_without_a_schema_is_told_from_a_failure(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = pb.CommandGetSchema(topic="t")
        answer = await client.ask(request, pb.CommandGetSchemaResponse)
        assert answer.error_code == pb.TopicNotFound


async def refusals_within(client: Client, seconds: float, make: Callable[[], Any]) -> int:
    """Return how often the client is refused if it repeats the request at once."""
    count = 0
    with trio.move_on_after(seconds):
        while True:
            await client.ask(make(), pb.CommandGetOrCreateSchemaResponse)
            count += 1
    return count


async def test_a_client_that_repeats_a_refused_command_is_answered_about_once_a_second(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        count = await refusals_within(client, 10, lambda: new_schema(pb.Schema.Json))
        assert 15 <= count <= 18


async def test_nothing_else_waits_while_the_answer_to_a_repeated_command_does(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=100)
        for _ in range(20):
            request = new_schema(pb.Schema.Json)
            request.request_id = client.request_id()
            client.tell(request)
        await client.wait(pb.CommandGetOrCreateSchemaResponse)
        began = trio.current_time()
        client.tell(pb.CommandPing())
        await client.wait(pb.CommandPong)
        client.send(0)
        await client.receipts(1)
        await client.deliveries(1)
        client.ack(0, request_id=7)
        await client.wait(pb.CommandAckResponse)
        lookup = pb.CommandLookupTopic(topic="t")
        assert await client.ask(lookup, pb.CommandLookupTopicResponse)
        other = pb.CommandGetSchema(topic="t")
        assert await client.ask(other, pb.CommandGetSchemaResponse)
        assert trio.current_time() - began < 0.01
        await client.wait(pb.CommandGetOrCreateSchemaResponse, 19)


async def test_what_is_asked_for_again_and_possible_now_is_answered_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe(1)
        for _ in range(9):
            assert (await client.subscribe(2)).error == pb.ConsumerBusy
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        began = trio.current_time()
        assert isinstance(await client.subscribe(2), pb.CommandSuccess)
        assert trio.current_time() - began < 0.01


async def test_the_answers_that_wait_are_bounded_and_each_comes_once(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        for number in range(3_000):
            client.tell(pb.CommandNewTxn(request_id=number))  # No place is needed to refuse it.
        await client.settle(0.005)
        assert len(client.bodies(pb.CommandNewTxnResponse)) >= 2_000
        answers = await client.wait(pb.CommandNewTxnResponse, 3_000)
        assert sorted(a.request_id for a in answers) == list(range(3_000))


def _new_things(count: int) -> Iterator[Any]:
    for number in range(count):
        topic = f"persistent://public/missing/{number}"
        yield pb.CommandGetSchema(topic=topic, request_id=number)


def _new_producers(count: int) -> Iterator[Any]:
    for number in range(count):
        topic = f"persistent://public/missing/{number}"
        yield pb.CommandProducer(topic=topic, request_id=number, producer_id=number)


def _new_consumers(count: int) -> Iterator[Any]:
    for number in range(count):
        yield pb.CommandSubscribe(
            topic=f"persistent://public/missing/{number}",
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            request_id=number,
            consumer_id=number,
        )


@pytest.mark.parametrize("make", [_new_things, _new_producers, _new_consumers])
async def test_a_client_that_asks_for_ever_new_things_is_refused_at_a_pace(
    autojump_clock: MockClock, make: Callable[[int], Iterator[Any]]
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        for request in make(1_000):
            client.tell(request)
        await trio.sleep(0.01)
        assert refused(client) == PACE_BURST
        await trio.sleep(10)
        assert abs(refused(client) - PACE_BURST - 10 * PACE_PER_S) <= 2
        # Nobody else waits.
        other, began = await cluster.client(), trio.current_time()
        await other.ask(pb.CommandGetSchema(topic="t"), pb.CommandGetSchemaResponse)
        assert trio.current_time() - began < 0.01


@pytest.mark.parametrize("make", [_new_things, _new_producers, _new_consumers])
async def test_requests_that_are_held_take_no_place_of_other_clients(
    autojump_clock: MockClock, make: Callable[[int], Iterator[Any]]
) -> None:
    few = RequestLimits(under_way_max=4, total_max=8)
    async with open_broker(
        connection_limits=ConnectionLimits(requests=few, lookups=few)
    ) as cluster:
        turns = (cluster.broker.context.request_turns, cluster.broker.context.lookup_turns)
        clients = [await cluster.client() for _ in range(5)]
        for client in clients:
            for request in make(PACE_BURST + 50):
                client.tell(request)
        await trio.sleep(0.5)
        held = sum(refused(client) < PACE_BURST + 50 for client in clients)
        assert held == len(clients)
        assert [each.under_way for each in turns] == [0, 0]
        for client in clients:
            client.frames.close("the test is over")
        await trio.sleep(5)
        assert [each.under_way for each in turns] == [0, 0]


def refused(client: Client) -> int:
    return sum(len(client.bodies(each)) for each in (pb.CommandGetSchemaResponse, pb.CommandError))


async def test_what_is_not_the_clients_fault_has_no_pace(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        for number in range(1_000):
            listener = str(number)
            client.tell(
                pb.CommandLookupTopic(
                    topic=f"t{number}", request_id=number, advertised_listener_name=listener
                )
            )
        await trio.sleep(0.01)
        answers = client.bodies(pb.CommandLookupTopicResponse)
        assert {each.error for each in answers} == {pb.ServiceNotReady}
        assert len(answers) == 1_000


async def test_a_client_that_leaves_while_answers_wait_is_forgotten(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        for _ in range(50):
            client.tell(new_schema(pb.Schema.Json))
        await client.settle(0.005)
        client.frames.close("the test is over")
        await trio.sleep(5)
        assert not cluster.broker.serving


async def test_refused_requests_leave_a_counted_line_for_each_client_and_command(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lines = CapturingLogger()
    counts = RequestCounts()
    log = RefusalLog(structlog.wrap_logger(lines, processors=[]), counts)
    nursery.start_soon(log.run)
    for number in range(100):
        log.refused(T.LOOKUP, NotFoundError(f"there is no topic {number}"), f"one:{number}")
    log.refused(T.SEEK, NotFoundError("no"), "one:1")
    log.refused(T.SEEK, NotFoundError("no"), "two:1")
    await trio.sleep(INTERVAL_S + 1)
    first = lines.calls[0].kwargs
    assert (first["client"], first["command"], first["error"]) == ("one", "LOOKUP", "TopicNotFound")
    assert (first["count"], first["last_why"]) == (100, "there is no topic 99")
    found = [(line.kwargs["client"], line.kwargs["command"]) for line in lines.calls[1:]]
    assert sorted(found) == [("one", "SEEK"), ("two", "SEEK")]
    await trio.sleep(10 * INTERVAL_S)
    assert len(lines.calls) == 3
    log.refused(T.SEEK, NotFoundError("again"), "one:1")
    await trio.sleep(INTERVAL_S + 1)
    assert [line.kwargs["count"] for line in lines.calls] == [100, 1, 1, 1]
    nursery.cancel_scope.cancel()


def test_many_clients_leave_few_lines_and_take_little_memory() -> None:
    lines = CapturingLogger()
    counts = RequestCounts()
    log = RefusalLog(structlog.wrap_logger(lines, processors=[]), counts)
    for number in range(5_000):
        log.refused(T.SEEK, NotFoundError("x" * 10_000), f"host-{number}:1")
    assert len(log) == 1_000
    log.write()
    assert len(lines.calls) == 11
    assert {len(line.kwargs["last_why"]) for line in lines.calls[:10]} == {200}
    assert sum(line.kwargs["count"] for line in lines.calls) == counts.refused.total() == 5_000
    log.write()
    assert len(lines.calls) == 11


async def test_a_line_that_clients_can_cause_again_and_again_is_said_once_a_minute(
    autojump_clock: MockClock,
) -> None:
    lines = CapturingLogger()
    limiter = LogLimiter(structlog.wrap_logger(lines, processors=[]))
    for number in range(100):
        limiter.info("not loaded", "topic", why=str(number))
        await trio.sleep(0.1)
    limiter.info("not loaded", "another", why="alone")
    await trio.sleep(60)
    limiter.info("not loaded", "topic", why="again")
    assert [line.kwargs for line in lines.calls] == [
        {"event": "not loaded", "why": "0"},
        {"event": "not loaded", "why": "alone"},
        {"event": "not loaded", "why": "again", "not_logged": 99},
    ]
    for number in range(5_000):
        limiter.info("not loaded", number)
    assert len(limiter) <= 1_000


def test_the_sum_of_backlogs_is_a_count_if_all_of_them_are() -> None:
    some = {"subscriptions": {"s": {"msgBacklog": 2, "backlogExact": True}}}
    other = {"subscriptions": {"s": {"msgBacklog": 3, "backlogExact": False}}}
    exact, estimate = sum_stats([some, some]), sum_stats([some, other])
    assert exact["subscriptions"] == {"s": {"msgBacklog": 4, "backlogExact": True}}
    assert estimate["subscriptions"] == {"s": {"msgBacklog": 5, "backlogExact": False}}


def test_times_ages_and_limits_of_partitions_are_not_added() -> None:
    def stats(earliest_ms: int, age_s: int, kind: str, waiting_for: str) -> dict[str, object]:
        return {
            "earliestMsgPublishTimeInBacklogs": earliest_ms,
            "backlogQuotaLimitSize": -1,
            "backlogQuotaLimitTime": 60,
            "oldestBacklogMessageAgeSeconds": age_s,
            "topicEpoch": None if not earliest_ms else 2,
            "waitingFor": waiting_for,
            "subscriptions": {
                "s": {"type": kind, "earliestMsgPublishTimeInBacklog": earliest_ms, "msgBacklog": 1}
            },
        }

    parts = [stats(0, -1, "None", ""), stats(5000, 7, "Shared", "bookies"), stats(3000, 9, "", "")]
    assert sum_stats(parts) == {
        "earliestMsgPublishTimeInBacklogs": 3000,
        "backlogQuotaLimitSize": -1,
        "backlogQuotaLimitTime": 60,
        "oldestBacklogMessageAgeSeconds": 9,
        "topicEpoch": 2,
        "waitingFor": "bookies",
        "subscriptions": {
            "s": {"type": "Shared", "earliestMsgPublishTimeInBacklog": 3000, "msgBacklog": 3}
        },
    }
