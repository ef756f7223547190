"""Another client that publishes to Daybook while Spark reads a history.

The reads need all cores, so the client waits for one.  While Spark reads rows of its own memory, or
Kafka's history, Daybook has nothing else to do: what is beyond that is due to Daybook's reads.

As a program it is that client: it publishes 1 KB at a steady rate, each message in an entry of its
own, and prints the milliseconds from the time at which a message was due to its receipt.

python -m bench.spark.publishing SERVICE_URL TOPIC SECONDS
"""

import json
import subprocess
import sys

import trio

from bench.peers.rows import Demand
from bench.peers.ticker import Ticker
from bench.spark.lines import Found, Line, share_of
from bench.spark.reading import read_once
from bench.spark.sides import DAYBOOK, KAFKA, MEMORY, Sides
from daybook.clients.python.connect import connect

_SECONDS = 10
_RATE = 200  # messages a second
_WARM_UP_S = 2
_SHARE = 0.99
_TIMES = 2.0


def publish(sides: Sides) -> Found:
    """Take the p99 of another client without and with reads of the history, in turns."""
    history, topic = "history-2", "published"
    sides.fill(history, 2)
    sides.create(topic, 1)
    case = "publish p99 of another client"
    lines = {way: Line(case, f"{way} is read", "ms") for way in (MEMORY, KAFKA, DAYBOOK)}
    quiet = Line(case, "quiet", "ms")
    for way in lines:
        read_once(sides, way, history)
    for _ in range(sides.rounds):
        quiet.add(share_of(_times(_client(sides, topic)), _SHARE))
        for way, line in lines.items():
            client = _client(sides, topic)
            while client.poll() is None:
                read_once(sides, way, history)
            line.add(share_of(_times(client), _SHARE))
        print(f"  p99: {[line.values[-1] for line in (quiet, *lines.values())]}", flush=True)
    daybook = lines[DAYBOOK].median
    ratios = {
        case: Demand(
            "while Daybook is read / while memory is read",
            daybook / lines[MEMORY].median,
            at_most=_TIMES,
        ),
        f"{case}, Kafka": Demand(
            "while Daybook is read / while Kafka is read", daybook / lines[KAFKA].median
        ),
        f"{case}, all": Demand(
            "while Daybook is read / quiet", daybook / quiet.median, at_most=_TIMES
        ),
    }
    return Found([quiet, *lines.values()], ratios)


def _client(sides: Sides, topic: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", __name__, sides.daybook.service_url, topic, str(_SECONDS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _times(client: "subprocess.Popen[str]") -> list[float]:
    """Wait for the end of the client, and return its times in ms."""
    out, _ = client.communicate()
    assert client.returncode == 0, "the client failed"
    found: list[float] = json.loads(out)
    return found


async def _publish(service_url: str, topic: str, seconds: float) -> list[float]:
    data, took_ms = b"x" * 1024, list[float]()
    async with (
        connect(service_url) as client,
        await client.create_producer(topic, batch_delay_s=0.0) as producer,
    ):
        with Ticker(1 / _RATE) as ticker:
            due_s, until_s = trio.current_time(), trio.current_time() + seconds
            first_s = due_s + _WARM_UP_S
            while trio.current_time() < until_s:
                for _ in range(await ticker.wait()):
                    due_s += 1 / _RATE

                    def note(_: object, failure: object, due_s: float = due_s) -> None:
                        assert failure is None
                        if due_s > first_s:
                            took_ms.append((trio.current_time() - due_s) * 1e3)

                    producer.send_nowait(data, on_result=note)
        await producer.flush()
    return took_ms


CASES = {"publish": publish}

if __name__ == "__main__":
    print(json.dumps(trio.run(_publish, sys.argv[1], sys.argv[2], float(sys.argv[3]))))
