"""A streaming query copies a topic exactly once, while its parts and the cluster's are killed.

    python -m tests.real.exactly_once --rounds 50 --seed 1

In each round one of these is killed with SIGKILL, at a random moment of a micro-batch: a Python
worker of Spark, the driver with its Java process, the broker that owns a partition of the target, a
bookie.  It is started again, and the round ends when two more micro-batches are committed: the
first of them may have been almost done before.  A producer publishes all the time.  At the end the
query copies the rest, and the program compares the topics: the rows of each key must be the same
ones, in the same order, each of them once.  The logs and the cluster's data stay in the directory
that the first line names if something is wrong.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daybook.clients.python import blocking
from daybook.clients.python.messages import Message
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess

SOURCE, TARGET = "once-source", "once-target"
SOURCE_PARTITIONS, TARGET_PARTITIONS = 3, 4
KEYS = 12
EVENTS = ("worker", "driver", "broker", "bookie")
STUCK_S = 900.0  # the machine may be busy with other work
_PAUSE_S = 0.02  # between two messages of the producer: the processors are for the query
_POLL_S = 0.02
# A broker that gets no processor for a while on a busy machine must not lose its session each time.
_OPTIONS = (*ANY_PORTS, "--set", "broker.session_timeout_s=10")
_DOWN_MAX_S = 2.0
_LATE_MAX_S = 1.5

Rows = dict[str, list[bytes]]  # the values of each key, in order


@dataclass(frozen=True, slots=True)
class Round:
    number: int
    event: str
    named: str
    recovered_s: float
    batches: int  # committed by then
    driver_starts: int


@dataclass(frozen=True, slots=True)
class Outcome:
    rounds: list[Round]
    rows: int
    problems: list[str]


class Driver:
    """The process of the query, which is started again whenever it ended."""

    def __init__(self, cluster: StandaloneProcess, directory: Path) -> None:
        self._options = json.dumps(
            {
                "service_url": cluster.service_url,
                "admin_url": cluster.admin_url,
                "source": SOURCE,
                "target": TARGET,
                "directory": str(directory),
            }
        )
        self._commits = directory / "checkpoint" / "commits"
        self._log = (directory / "driver.log").open("ab")
        self.starts = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        return subprocess.Popen(
            [sys.executable, "-m", "tests.real.exactly_once_driver", self._options],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[2],
        )

    def keep(self) -> None:
        """Start the driver again if it has ended: its query failed, or it was killed."""
        if self._process.poll() is not None:
            self._close_input()
            self._process = self._start()

    def batches(self) -> int:
        """Return how many micro-batches Spark has noted as committed."""
        numbers = [int(each.name) for each in self._commits.glob("[0-9]*")]
        return max(numbers, default=-1) + 1

    def workers(self) -> list[int]:
        """Return the ids of the Python workers: children of a Python process of Spark's Java."""
        parents = _parents()
        below = _descendants(self._process.pid, parents)
        return [pid for pid in below if "pyspark" in _command(pid) and "java" not in _command(pid)]

    def kill(self) -> None:
        """Kill the driver, its Java process and all workers at once."""
        pids = [self._process.pid, *_descendants(self._process.pid, _parents())]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def finish(self, limit_s: float) -> bool:
        """Let the query copy the rest; return False if it failed, and has to be started again."""
        self._close_input()
        return self._process.wait(limit_s) == 0

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        self._close_input()
        self._log.close()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


class Play:
    def __init__(self, cluster: StandaloneProcess, directory: Path, seed: int) -> None:
        self._cluster = cluster
        self._client = blocking.connect(cluster.service_url)
        with blocking.connect_admin(cluster.admin_url) as admin:
            admin.create_topic(SOURCE, partitions=SOURCE_PARTITIONS)
            admin.create_topic(TARGET, partitions=TARGET_PARTITIONS)
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._producer_failed: list[BaseException] = []
        self._producer = threading.Thread(target=self._produce, daemon=True)
        self._producer.start()
        self._driver = Driver(cluster, directory)

    def close(self) -> None:
        self._stop.set()
        self._driver.close()
        self._producer.join(STUCK_S)
        self._client.close()

    def run(self, events: Sequence[str]) -> Outcome:
        """Play a round for each event, and compare the topics at the end."""
        rounds: list[Round] = []
        self._wait_batches(2)
        for number, event in enumerate(events, 1):
            time.sleep(self._rng.uniform(0.0, _LATE_MAX_S))
            named = self._break(event)
            since_s, before = time.monotonic(), self._driver.batches()
            self._wait_batches(before + 2)
            recovered_s = time.monotonic() - since_s
            rounds.append(
                Round(
                    number, event, named, recovered_s, self._driver.batches(), self._driver.starts
                )
            )
            print(_line(rounds[-1]), flush=True)
        self._stop.set()
        self._producer.join(STUCK_S)
        if self._producer_failed:
            raise RuntimeError("the producer failed") from self._producer_failed[0]
        deadline_s = time.monotonic() + STUCK_S
        while not self._driver.finish(max(1.0, deadline_s - time.monotonic())):
            self._driver.keep()
        source, target = self._read(SOURCE), self._read(TARGET)
        return Outcome(rounds, sum(map(len, source.values())), differences(source, target))

    def _wait_batches(self, count: int) -> None:
        deadline_s = time.monotonic() + STUCK_S
        while self._driver.batches() < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"the query has committed {self._driver.batches()} micro-batches, and no more"
                    f" in {STUCK_S:g} s: driver.log and cluster/logs have the reason"
                )
            self._driver.keep()
            time.sleep(_POLL_S)

    # -- what is killed

    def _break(self, event: str) -> str:
        match event:
            case "worker":
                return self._kill_worker()
            case "driver":
                self._driver.kill()
                return "driver"
            case "broker":
                return self._kill_part(self._owner())
            case _:
                assert event == "bookie", event
                bookies = [str(each["name"]) for each in self._cluster.ready["bookies"]]
                return self._kill_part(self._rng.choice(bookies))

    def _kill_worker(self) -> str:
        deadline_s = time.monotonic() + STUCK_S
        while time.monotonic() < deadline_s:
            if workers := self._driver.workers():
                with suppress(ProcessLookupError):
                    os.kill(self._rng.choice(workers), signal.SIGKILL)
                    return "worker"
            self._driver.keep()
            time.sleep(_POLL_S)
        raise TimeoutError(f"Spark has started no Python worker in {STUCK_S:g} s")

    def _owner(self) -> str:
        partition = f"{TARGET}-partition-{self._rng.randrange(TARGET_PARTITIONS)}"
        url = self._client.lookup(partition)
        (name,) = [b["name"] for b in self._cluster.ready["brokers"] if b["service_url"] == url]
        return str(name)

    def _kill_part(self, name: str) -> str:
        self._cluster.local("kill", name)
        time.sleep(self._rng.uniform(0.0, _DOWN_MAX_S))
        self._cluster.local("start", name)
        return name

    # -- messages

    def _produce(self) -> None:
        try:
            with self._client.create_producer(SOURCE, send_timeout_s=None) as producer:
                number = 0
                while not self._stop.wait(_PAUSE_S):
                    producer.send_nowait(b"%d" % number, key=f"k{number % KEYS}")
                    number += 1
                producer.flush()
        except BaseException as error:
            self._producer_failed.append(error)

    def _read(self, topic: str) -> Rows:
        found: Rows = {}
        for index in range(self._client.partitions(topic, create=False)):
            name = f"{topic}-partition-{index}"
            with self._client.create_reader(name, start="earliest") as reader:
                while reader.has_message_available():
                    for message in reader.receive_batch(timeout_s=STUCK_S):
                        _note(found, message)
        return found


def _note(found: Rows, message: Message) -> None:
    # Spark's keys are bytes, whose text is in base64; the producer's are text.
    assert message.key_bytes is not None
    assert message.data is not None
    found.setdefault(message.key_bytes.decode(), []).append(message.data)


def differences(source: Rows, target: Rows) -> list[str]:
    """Compare the rows of each key; a row is known by its value."""
    problems: list[str] = []
    for key in sorted(source.keys() | target.keys()):
        wanted, found = source.get(key, []), target.get(key, [])
        lost = Counter(wanted) - Counter(found)
        more = Counter(found) - Counter(wanted)
        if lost:
            problems.append(f"{key}: {lost.total()} rows are lost, such as {min(lost)!r}")
        if more:
            problems.append(
                f"{key}: {more.total()} rows are there too often, such as {min(more)!r}"
            )
        if not lost and not more and wanted != found:
            at = next(
                n for n, pair in enumerate(zip(wanted, found, strict=True)) if len({*pair}) > 1
            )
            problems.append(f"{key}: row {at} is {found[at]!r}, and {wanted[at]!r} in the source")
    return problems


def draw_events(rounds: int, seed: int) -> list[str]:
    """Draw the events, each kind of them as often as the others, in random order."""
    events = [EVENTS[number % len(EVENTS)] for number in range(rounds)]
    random.Random(seed).shuffle(events)
    return events


def play(
    directory: Path, events: Sequence[str], seed: int, *, bookies: int = 4, brokers: int = 3
) -> Outcome:
    """Play a round for each event in a new cluster; its data and all logs are in `directory`.

    One bookie and one broker are to spare, for kills that follow each other.
    """
    with StandaloneProcess(
        directory=directory / "cluster", bookies=bookies, brokers=brokers, options=_OPTIONS
    ) as cluster:
        one = Play(cluster, directory, seed)
        try:
            return one.run(events)
        finally:
            one.close()


# -- processes


def _parents() -> dict[int, int]:
    """Return the parent of each process."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _descendants(pid: int, parents: dict[int, int]) -> list[int]:
    children = [each for each, parent in parents.items() if parent == pid]
    return [*children, *(each for child in children for each in _descendants(child, parents))]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _line(one: Round) -> str:
    return (
        f"{one.number:5d}  {one.event:7} {one.named:10} {one.recovered_s:9.1f} s"
        f" {one.batches:8d} {one.driver_starts:8d}"
    )


def _end(number: int, _frame: object) -> None:
    """End the program in order, so that it stops what it has started."""
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    since_s = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="exactly-once-"))
    print(f"everything is in {directory}")
    print("round  event   killed     recovered in  batches  drivers", flush=True)
    events = draw_events(arguments.rounds, arguments.seed)
    outcome = play(directory, events, arguments.seed)
    if not outcome.problems:
        shutil.rmtree(directory)
    killed = ", ".join(f"{count} {name}" for name, count in Counter(events).items())
    print(
        f"{len(outcome.rounds)} rounds ({killed}), {outcome.rows} rows,"
        f" {time.monotonic() - since_s:.0f} s"
    )
    for problem in outcome.problems:
        print(problem)
    print("wrong:", len(outcome.problems))
    sys.exit(1 if outcome.problems else 0)


if __name__ == "__main__":
    main()
