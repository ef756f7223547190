"""The Python clients as a load behind a pipe: ours, or Apache Pulsar's.

    python -m bench.brokers.python_load own-python | pulsar-python

`loads` lists the commands; of `open` and `send` this program knows one producer, no subscription
and rate=0.  It measures a client, so it serves one command at a time and does nothing beside it.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TextIO

import trio

from bench.peers.load import words
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.producer import Producer

_PATIENCE_S = 120.0
_QUEUE = 10_000  # messages that a consumer may hold; also the most of a batch
_CLOCK_EVERY = 200  # messages between two looks at the clock
_LARGE_DELAY_S, _LARGE_MESSAGES, _LARGE_BYTES = 0.01, 20_000, 1 << 20
_PENDING_BYTES = 64 << 20

Given = Mapping[str, str]
Found = dict[str, object]


class OwnPython:
    """Daybook's client.  Each command has a connection and an event loop of its own."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._opened: Given = {}

    def connect(self, given: Given) -> Found:
        self._urls[given["on"]] = given["url"]
        return {}

    def open(self, given: Given) -> Found:
        assert (given["producers"], given["subscriptions"]) == ("1", "0")
        self._opened = given
        return {}

    def close(self, given: Given) -> Found:
        return {}

    def send(self, given: Given) -> Found:
        return trio.run(self._send, float(given["seconds"]))

    async def _send(self, seconds: float) -> Found:
        data = Random(1).randbytes(int(self._opened["size"]))
        failed: list[object] = []

        def note(_: object, failure: object) -> None:
            if failure is not None:
                failed.append(failure)

        async with (
            connect(self._urls[self._opened["on"]]) as client,
            await _own_producer(client, self._opened) as producer,
        ):
            count = 0
            started = time.perf_counter()
            while time.perf_counter() < started + seconds:
                for _ in range(_CLOCK_EVERY):
                    if not producer.has_room:
                        await producer.wait_room()
                    producer.send_nowait(data, on_result=note)
                count += _CLOCK_EVERY
                await trio.lowlevel.checkpoint()
            await producer.flush()
            spent = time.perf_counter() - started
        assert not failed, failed[0]
        return {"messages": count, "seconds": spent}

    def read(self, given: Given) -> Found:
        return trio.run(self._read, given)

    async def _read(self, given: Given) -> Found:
        count = int(given["messages"])
        drain = _drain_batches if given["how"] == "batches" else _drain_one_by_one
        async with connect(self._urls[given["on"]]) as client:
            started = time.perf_counter()
            async with await client.subscribe(
                given["topic"],
                given["subscription"],
                initial_position="earliest",
                receiver_queue_size=_QUEUE,
            ) as consumer:
                with trio.fail_after(_PATIENCE_S):
                    size = await drain(consumer, count)
                spent = time.perf_counter() - started
        return {"messages": count, "bytes": size, "seconds": spent}


async def _own_producer(client: Client, given: Given) -> Producer:
    if given["batch"] == "usual":
        return await client.create_producer(given["topic"])
    assert given["batch"] == "large"
    return await client.create_producer(
        given["topic"],
        batch_delay_s=_LARGE_DELAY_S,
        batch_messages_max=_LARGE_MESSAGES,
        batch_bytes_max=_LARGE_BYTES,
        pending_bytes_max=_PENDING_BYTES,
    )


async def _drain_one_by_one(consumer: Consumer, count: int) -> int:
    size = 0
    for _ in range(count):
        message = await consumer.receive()
        size += len(message.data or b"")
        consumer.ack_nowait(message)
    return size


async def _drain_batches(consumer: Consumer, count: int) -> int:
    size = 0
    while count > 0:
        batch = await consumer.receive_batch(_QUEUE)
        for message in batch:
            size += len(message.data or b"")
        consumer.ack_nowait(batch)
        count -= len(batch)
    return size


class PulsarPython:
    """Apache Pulsar's client, which is a C++ library with threads of its own."""

    def __init__(self) -> None:
        import pulsar  # only this program needs its threads

        self._pulsar: Any = pulsar
        self._clients: dict[str, Any] = {}
        self._producer: Any = None
        self._data = b""

    def connect(self, given: Given) -> Found:
        logger = self._pulsar.ConsoleLogger(self._pulsar.LoggerLevel.Error)
        self._clients[given["on"]] = self._pulsar.Client(given["url"], logger=logger)
        return {}

    def open(self, given: Given) -> Found:
        assert (given["producers"], given["subscriptions"]) == ("1", "0")
        self._data = Random(1).randbytes(int(given["size"]))
        large: dict[str, object] = {
            "batching_max_messages": _LARGE_MESSAGES,
            "batching_max_allowed_size_in_bytes": _LARGE_BYTES,
            "batching_max_publish_delay_ms": int(_LARGE_DELAY_S * 1000),
            "max_pending_messages": 50_000,
        }
        self._producer = self._clients[given["on"]].create_producer(
            given["topic"],
            batching_enabled=True,
            block_if_queue_full=True,
            send_timeout_millis=int(_PATIENCE_S * 1000),
            **(large if given["batch"] == "large" else {}),
        )
        return {}

    def close(self, given: Given) -> Found:
        self._producer.close()
        return {}

    def send(self, given: Given) -> Found:
        seconds = float(given["seconds"])
        ok = self._pulsar.Result.Ok
        failed: list[object] = []

        def note(result: object, _: object) -> None:
            if result != ok:
                failed.append(result)

        count = 0
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            for _ in range(_CLOCK_EVERY):
                self._producer.send_async(self._data, note)
            count += _CLOCK_EVERY
        self._producer.flush()
        spent = time.perf_counter() - started
        assert not failed, failed[0]
        return {"messages": count, "seconds": spent}

    def read(self, given: Given) -> Found:
        pulsar = self._pulsar
        left = count = int(given["messages"])
        size = 0
        timeout_ms = int(_PATIENCE_S * 1000)
        started = time.perf_counter()
        consumer = self._clients[given["on"]].subscribe(
            given["topic"],
            given["subscription"],
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=_QUEUE,
            batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(_QUEUE, 10 << 20, 100),
        )
        if given["how"] == "batches":
            while left > 0:
                messages = consumer.batch_receive()
                for message in messages:
                    size += len(message.data())
                if messages:
                    consumer.acknowledge_cumulative(messages[-1])
                left -= len(messages)
                assert time.perf_counter() < started + _PATIENCE_S, f"{left} have not come"
        else:
            for _ in range(count):
                message = consumer.receive(timeout_ms)
                size += len(message.data())
                consumer.acknowledge(message)
        spent = time.perf_counter() - started
        consumer.close()
        return {"messages": count, "bytes": size, "seconds": spent}


def serve(client: OwnPython | PulsarPython, commands: TextIO, answers: TextIO) -> None:
    for line in commands:
        name, *rest = line.split()
        given = dict(word.split("=", 1) for word in rest)
        command: Callable[[Given], Found] = getattr(client, name)
        try:
            found = command(given)
        except Exception as error:
            logging.exception(name)
            text = " ".join(str(error).split())
            print("error 0", type(error).__name__, text, file=answers, flush=True)
        else:
            print("ok", *words(found), file=answers, flush=True)


def main(kind: str) -> None:
    # The C++ library prints to standard output; the answers have a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(OwnPython() if kind == "own-python" else PulsarPython(), sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1])
