"""Apache Pulsar's Java client with a dead letter policy and a retry policy, against our brokers.

    python -m tests.interop.letters --minutes 10

It starts a cluster, sends messages that no consumer acknowledges, and prints every ten seconds how
many requests a second came to the brokers, and how many letters were delivered.  Such a client once
asked GET_OR_CREATE_SCHEMA 9,900 times a second, forever, and no letter was written.
"""

import argparse
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import end, start
from tests.interop.apache import SMALL_JVM, Apache, pulsar_client_here

SOURCE = Path(__file__).parent / "java" / "Letters.java"
_METRIC = re.compile(r'daybook_broker_commands_total\{.*command="(\w+)"\} (\S+)')
_OF_ENTRIES = frozenset({"FLOW", "PING", "PONG"})  # as many as there are messages, or seconds
_LOOK_S = 10.0
_LAST_WORD_S = 60.0


@dataclass(frozen=True, slots=True)
class Letters:
    """The last report of the Java program."""

    delivered: int
    done: bool


class LettersProcess:
    """The Java program.  It sends `messages` messages to each of two topics, `rate` a second."""

    def __init__(
        self,
        client: Apache,
        directory: Path,
        *,
        service_url: str,
        prefix: str,
        messages: int,
        rate: int,
    ) -> None:
        words = (str(SOURCE), service_url, prefix, str(messages), str(rate))
        command = client.command(directory, *words, jvm=SMALL_JVM)
        self.log = directory / "letters.txt"
        self._process = start(command, self.log)
        self._said = Letters(0, done=False)
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if len(words) > 1 and words[1] == "letters":
                with self._more:
                    self._said = Letters(int(words[0]), words[-1] == "done")
                    self._more.notify_all()

    @property
    def said(self) -> Letters:
        with self._more:
            return self._said

    def wait_done(self, timeout_s: float) -> Letters:
        """Return the last report when all letters have come, or when the time is over."""
        with self._more:
            self._more.wait_for(lambda: self._said.done, timeout_s)
            return self._said

    def close(self) -> None:
        end(self._process)


@contextmanager
def java_letters(
    directory: Path, *, service_url: str, prefix: str, messages: int, rate: int
) -> Iterator[LettersProcess]:
    running = LettersProcess(
        pulsar_client_here(),
        directory,
        service_url=service_url,
        prefix=prefix,
        messages=messages,
        rate=rate,
    )
    try:
        yield running
    finally:
        running.close()


def commands(admin_urls: Iterable[str]) -> Counter[str]:
    """Count the commands that these brokers received, by name, except those that come per entry."""
    found = Counter[str]()
    for url in admin_urls:
        with urlopen(f"{url}/metrics", timeout=10) as answer:
            for name, count in _METRIC.findall(answer.read().decode()):
                found[name] += round(float(count))
    return Counter({name: n for name, n in found.items() if name not in _OF_ENTRIES})


def admin_urls(cluster: StandaloneProcess) -> list[str]:
    """Return one URL for each broker."""
    return [str(broker["admin_url"]) for broker in cluster.ready["brokers"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to send")
    parser.add_argument("--rate", type=int, default=20, help="messages a second to each topic")
    args = parser.parse_args()
    messages = max(1, round(60 * args.minutes * args.rate))
    with (
        tempfile.TemporaryDirectory() as directory,
        StandaloneProcess() as cluster,
        java_letters(
            Path(directory),
            service_url=cluster.service_url,
            prefix="letters",
            messages=messages,
            rate=args.rate,
        ) as java,
    ):
        return _watch(cluster, java, 2 * messages, 60 * args.minutes + _LAST_WORD_S)


def _watch(cluster: StandaloneProcess, java: LettersProcess, wanted: int, for_s: float) -> int:
    urls = admin_urls(cluster)
    began = last = time.monotonic()
    before = commands(urls)
    while not java.said.done and last - began < for_s:
        said = java.wait_done(_LOOK_S)
        now, after = time.monotonic(), commands(urls)
        rate = (after - before).total() / (now - last)
        print(f"{now - began:5.0f} s  {rate:7.1f} requests/s  {said.delivered} of {wanted} letters")
        sys.stdout.flush()
        last, before = now, after
    print("all requests:", ", ".join(f"{n} {name}" for name, n in before.most_common()))
    return 0 if java.said.done else 1


if __name__ == "__main__":
    sys.exit(main())
