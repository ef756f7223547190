"""Rolling restarts of real bookies, which are killed again at any moment of their start.

    python -m tests.real.rolling --rounds 20

In each round each of three bookies is killed, killed once more while it starts, and started.  No
start may put its bookie in limbo: nothing was lost.  The messages that were acknowledged meanwhile
are read back at the end.
"""

import argparse
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from random import Random
from typing import Any

from daybook.clients.cli.errors import UserError
from daybook.clients.python import blocking
from daybook.clients.python.errors import BrokerError
from daybook.clients.testing.standalone import StandaloneProcess

TOPIC = "rolling"
_START_S = 2.5  # about the duration of a start
_PATIENCE_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.rolling")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with StandaloneProcess(bookies=3, brokers=1) as cluster:
        sender = Sender(cluster)
        doubts, cut = restart_all(cluster, options.rounds, Random(options.seed))
        acknowledged = sender.stop()
        missing = acknowledged - read_back(cluster)
    print(
        f"{options.rounds} rounds, {3 * options.rounds} bookies restarted, {cut} of them killed"
        f" while they started: {doubts} doubts; {len(acknowledged)} messages acknowledged,"
        f" {len(missing)} missing"
    )
    return int(bool(doubts or missing))


class Sender:
    """A producer of one number after the other that remembers which were acknowledged."""

    def __init__(self, cluster: StandaloneProcess) -> None:
        self._acknowledged: set[bytes] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, args=(cluster.service_url,))
        self._thread.start()

    def _run(self, url: str) -> None:
        number = 0
        with blocking.connect(url) as client, client.create_producer(TOPIC) as producer:
            while not self._stopping:
                data = b"%d" % number
                with suppress(BrokerError):
                    producer.send(data)
                    self._acknowledged.add(data)
                number += 1

    def stop(self) -> set[bytes]:
        self._stopping = True
        self._thread.join()
        return self._acknowledged


def restart_all(cluster: StandaloneProcess, rounds: int, rng: Random) -> tuple[int, int]:
    """Return how many starts ended in limbo, and how many were cut short."""
    doubts = cut = 0
    for number in range(rounds):
        for name in ("bookie-1", "bookie-2", "bookie-3"):
            cluster.local("kill", name)
            cut += start_and_kill(cluster, name, rng.uniform(0.0, _START_S))
            part = cluster.local("start", name)
            why = health_of(part)
            if "lost" in why:
                doubts += 1
                print(f"round {number}: {name} is in doubt: {why}")
        print(f"round {number} is done, {cut} starts were cut short", flush=True)
    return doubts, cut


def start_and_kill(cluster: StandaloneProcess, name: str, after_s: float) -> bool:
    """Start the bookie and kill it; return True if it was killed before it was ready."""

    def start() -> None:
        with suppress(UserError):
            cluster.local("start", name)

    starter = threading.Thread(target=start)
    starter.start()
    time.sleep(after_s)
    part = cluster.local("status", name)
    state, pid = part["state"], part["pid"]
    if pid is not None:
        os.kill(int(pid), signal.SIGKILL)
    starter.join()
    cluster.local("kill", name)
    return bool(state != "running")


def health_of(part: dict[str, Any]) -> str:
    """Return the bookie's own health report, as soon as it is registered."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"{part['http_url']}/healthz", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                why = error.read().decode()
            if "lost" in why or time.monotonic() > until:
                return why
        except OSError as error:
            if time.monotonic() > until:
                return f"lost: it does not answer: {error}"
        time.sleep(0.2)


def read_back(cluster: StandaloneProcess) -> set[bytes]:
    with (
        blocking.connect(cluster.service_url) as client,
        client.create_reader(TOPIC, start="earliest") as reader,
    ):
        found: set[bytes] = set()
        while reader.has_message_available():
            found.update((message.data or b"") for message in reader.receive_batch())
        return found


if __name__ == "__main__":
    sys.exit(main())
