"""A client waits for a broker that is busy with what it asked before, and does not ask again."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.errors import BrokerError, RequestTimedOutError
from daybook.clients.python.limits import ClientLimits
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import Cluster

LIMITS = ClientLimits(request_timeout_s=4, operation_timeout_s=60)
LOAD_S = 2.0
TOPICS = 12


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Generator[Counter[type]]:
    """Count the requests of clients by their kind."""
    asked = Counter[type]()
    request = BrokerConnection.request

    async def count(self: BrokerConnection, message: Any) -> Any:
        asked[type(message)] += 1
        return await request(self, message)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerConnection, "request", count)
        yield asked


def load_one_after_the_other(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, load = trio.Lock(), cluster.broker.logs.open

    async def load_slowly(*args: Any, **more: Any) -> Any:
        async with turn:
            await trio.sleep(LOAD_S)
            return await load(*args, **more)

    monkeypatch.setattr(cluster.broker.logs, "open", load_slowly)


async def test_who_asks_for_many_topics_asks_once_for_each(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_broker() as cluster, client_of(cluster, "app", LIMITS) as client:
        load_one_after_the_other(cluster, monkeypatch)
        with counted(monkeypatch) as asked:
            async with trio.open_nursery() as nursery:
                for number in range(TOPICS):
                    nursery.start_soon(client.create_producer, f"t-{number}")
        assert 5 * LIMITS.request_timeout_s < TOPICS * LOAD_S
        assert asked[pb.CommandProducer] == TOPICS


async def test_prompt_answers_to_others_are_no_reason_to_wait_longer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_broker() as cluster, client_of(cluster, "app", LIMITS) as client:
        producer = await client.create_producer("t")
        cluster.broker.logs.gate = trio.Event()
        (connection,) = client._pool._connections.values()
        done = trio.Event()
        async with trio.open_nursery() as nursery:

            async def acknowledge() -> None:
                while not done.is_set():
                    await producer.send(b"x")
                    await connection.request(pb.CommandPartitionedTopicMetadata(topic="t"))
                    await trio.sleep(0.5)

            nursery.start_soon(acknowledge)
            began = trio.current_time()
            with pytest.raises(RequestTimedOutError):
                await connection.request(pb.CommandProducer(topic="stuck", producer_id=99))
            assert trio.current_time() - began == pytest.approx(LIMITS.request_timeout_s, abs=0.1)
            done.set()
        cluster.broker.logs.gate.set()


async def test_an_operation_waits_no_longer_than_its_time_for_one_answer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ClientLimits(request_timeout_s=4, operation_timeout_s=10)
    async with real_broker() as cluster, client_of(cluster, "app", limits) as client:
        load_one_after_the_other(cluster, monkeypatch)
        began = trio.current_time()
        ended: list[float] = []

        async def open_one(number: int) -> None:
            try:
                await client.create_producer(f"t-{number}")
            except BrokerError:
                ended.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(open_one, number)
        assert ended
        assert max(ended) <= 2 * limits.operation_timeout_s + 1
