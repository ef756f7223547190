"""The memory of a broker while one of three bookies is paused and a producer sends at full speed.

    python -m tests.real.slow_bookie --seconds 60

Apache Pulsar's thread 14861: with an ack quorum of 2 in a write quorum of 3, the broker keeps what
the slow bookie has not taken, until it runs out of memory.  The program prints the memory of the
broker before, the highest one while the bookie is paused, and that after the bookie has resumed.
It fails if the memory grew by more than `--megabytes`.
"""

import argparse
import sys

import trio

from daybook.clients.python.connect import connect
from daybook.clients.python.producer import Producer
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.standalone import order, pids, resident_bytes

TOPIC = "persistent://public/default/fast"
MB = 1 << 20
_SAMPLE_S = 0.5
_WARM_UP_S = 10.0
_REST_S = 10.0


async def produce(producer: Producer, sent: list[int]) -> None:
    """Send at full speed until cancelled."""
    data = b"x" * 1024
    while True:
        for _ in range(500):
            if not producer.has_room:
                await producer.wait_room()
            producer.send_nowait(data)
        sent[0] += 500
        await trio.lowlevel.checkpoint()


async def highest(pid: int, seconds: float) -> int:
    """Return the largest resident memory in that time."""
    most = 0
    with trio.move_on_after(seconds):
        while True:
            most = max(most, resident_bytes(pid))
            await trio.sleep(_SAMPLE_S)
    return most


async def play(cluster: StandaloneProcess, seconds: float) -> int:
    broker = str(cluster.ready["brokers"][0]["name"])
    bookie = str(cluster.ready["bookies"][0]["name"])
    pid, sent = (await pids(cluster))[broker], [0]
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer(TOPIC, send_timeout_s=None) as producer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(produce, producer, sent)
        before = await highest(pid, _WARM_UP_S)
        at = sent[0]
        await order(cluster, "pause", bookie)
        during = await highest(pid, seconds)
        rate = (sent[0] - at) / seconds
        await order(cluster, "resume", bookie)
        after = await highest(pid, _REST_S)
        nursery.cancel_scope.cancel()
    print(
        f"memory of the broker: {before / MB:.0f} MB before, at most {during / MB:.0f} MB while"
        f" {bookie} was paused for {seconds:g} s, {after / MB:.0f} MB after; {rate:.0f} messages of"
        " 1 KB a second were sent meanwhile",
        flush=True,
    )
    return during - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--megabytes", type=int, default=256)
    arguments = parser.parse_args()
    with StandaloneProcess(brokers=1) as cluster:
        grown = trio.run(play, cluster, arguments.seconds)
    print(f"grown by {grown / MB:.0f} MB")
    sys.exit(1 if grown > arguments.megabytes * MB else 0)


if __name__ == "__main__":
    main()
