"""Measures typed messages: records as Avro, JSON and Protobuf, and the same bytes without a schema.

Each kind is sent and received in turn, in one run, because only ratios within a run count.  A rate
is that of messages in a second of the client's processor time, which other programs on the machine
do not change.  The bytes are the Avro bytes of the record, so all kinds send messages of about the
same size.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.cases import Figure
from daybook import schemas
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.proto import pulsar_pb2 as pb

ROUNDS = 3
_MESSAGES = 200_000
_TURN = 200


@dataclass
class Order:
    customer: str
    amount: float
    items: int
    note: str | None = None


async def typed(cluster: StandaloneProcess) -> list[Figure]:
    """Send and receive 200,000 records of each kind; compare with the same in bytes."""
    order, avro = Order("customer-17", 12.5, 3), schemas.avro(Order)
    record = pb.KeyValue(key="customer-17", value="12.5 3")  # any small message of Protobuf
    kinds: dict[str, tuple[schemas.Schema[Any] | None, Any]] = {
        "bytes": (None, avro.encode(order)),
        "avro": (avro, order),
        "json": (schemas.json(Order), order),
        "protobuf": (schemas.protobuf(pb.KeyValue), record),
    }
    sent: dict[str, list[float]] = {kind: [] for kind in kinds}
    received: dict[str, list[float]] = {kind: [] for kind in kinds}
    async with connect(cluster.service_url) as client:
        for number in range(ROUNDS):
            for kind in sorted(kinds, reverse=bool(number % 2)):
                schema, value = kinds[kind]
                topic = f"bench-typed-{kind}-{number}"
                sent[kind].append(await _send(client, topic, schema, value))
                received[kind].append(await _receive(client, topic, schema, value))
    figures: list[Figure] = []
    plain_s = _seconds(sent["bytes"]) + _seconds(received["bytes"])
    for kind, target in (("avro", 0.5), ("json", 0.0), ("protobuf", 0.0)):
        ratio = plain_s / (_seconds(sent[kind]) + _seconds(received[kind]))
        wanted = f">= {target}" if target else ""
        shares = ", ".join(
            f"{_seconds(rates['bytes']) / _seconds(rates[kind]):.2f} of {what}"
            for what, rates in (("producing", sent), ("consuming", received))
        )
        name = f"{kind}, produce and consume"
        figures.append(Figure(name, ratio, "", wanted, ratio >= target, f"of bytes: {shares}"))
    return figures


def _seconds(rates: list[float]) -> float:
    """Return the seconds for one message, from the rates of several rounds."""
    return 1 / median(rates)


async def _send(
    client: Client, topic: str, schema: schemas.Schema[Any] | None, value: object
) -> float:
    async with await client.create_producer(topic, schema=schema) as producer:
        began = time.process_time()
        for number in range(_MESSAGES):
            if number % _TURN == 0 or not producer.has_room:
                await producer.wait_room()
            producer.send_nowait(value)
        await producer.flush()
        return _MESSAGES / (time.process_time() - began)


async def _receive(
    client: Client, topic: str, schema: schemas.Schema[Any] | None, value: object
) -> float:
    async with await client.create_reader(topic, start="earliest", schema=schema) as reader:
        began, left = time.process_time(), _MESSAGES
        while left:
            found = [message.value for message in await reader.receive_batch()]
            assert found[0] == found[-1] == value
            left -= len(found)
        return _MESSAGES / (time.process_time() - began)


CASES = {"typed": typed}
