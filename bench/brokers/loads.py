"""The client programs behind pipes: Pulsar's Java client, Kafka's, and the Python clients.

A line on standard input is a command, `NAME key=value ...`; a line on standard output is its
answer, `ok key=value ...` or `error 0 WHY`.

    connect on url
    open on topic size batch producers subscriptions
            A new topic with so many producers, and so many subscriptions with a consumer each.
            batch=none: each message is an entry of its own; usual: the settings with which the
            client comes; large: up to 10 ms and 1 MiB.
    send rate seconds messages                       -> messages seconds [p50_ms p99_ms max_ms]
            rate=0: as fast as the client lets it, for so many seconds or until so many messages
            are sent; else that many a second of all producers together, whatever became of those
            before, and each time counts from when the message was due.  The answer comes when all
            messages have their receipts, and consumers have them.
    close
            What `open` has made, except the topic.
    read on topic subscription messages [how]        -> messages bytes seconds
            The first messages of a topic, by a new subscription.  how=one (Java has only that) or
            how=batches.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.load import words
from tests.harness.processes import ROOT, start
from tests.interop.apache import kafka_here, pulsar_client_here
from tests.interop.peer import Pipe

JAVA, KAFKA_JAVA, OWN_PYTHON, PULSAR_PYTHON = "java", "kafka-java", "own-python", "pulsar-python"
_JAVA = ROOT / "bench" / "brokers" / "java"
_JVM = (
    *("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"),
    *("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10", "-XX:-UsePerfData"),
)


class Load:
    """One client program.  It starts when it is first needed."""

    def __init__(self, kind: str, directory: Path, python: str) -> None:
        self._kind = kind
        self._directory = directory
        self._python = python
        self._pipe: Pipe | None = None
        self._connected: set[str] = set()

    def connect(self, system: str, url: str) -> None:
        if system not in self._connected:
            self.do("connect", on=system, url=url)
            self._connected.add(system)

    def do(self, command: str, **given: object) -> dict[str, str]:
        """Send a command, and return its answer by name."""
        if self._pipe is None:
            self._pipe = Pipe(start(self._command(), self._directory / "log.txt"))
        answer = self._pipe.ask(command, *words(given))
        return dict(word.split("=", 1) for word in answer.split())

    @contextmanager
    def opened(self, **given: object) -> Iterator[None]:
        self.do("open", **given)
        try:
            yield
        finally:
            self.do("close")

    @property
    def pids(self) -> list[int]:
        return [] if self._pipe is None else [self._pipe.process.pid]

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()

    def _command(self) -> list[str]:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._kind == JAVA:
            apache, program = pulsar_client_here(), "PulsarLoad.java"
        elif self._kind == KAFKA_JAVA:
            apache, program = kafka_here(), "KafkaLoad.java"
        else:
            return [self._python, "-m", "bench.brokers.python_load", self._kind]
        return apache.command(self._directory, str(_JAVA / program), jvm=_JVM)


def figure(answer: Mapping[str, str], name: str) -> float:
    return float(answer[name])
