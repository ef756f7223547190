"""The named writes of stage, commit and apply, and runs in which somebody dies at one of them.

    python -m tests.simulation.sinks.points            the first write of each name, in all ways
    python -m tests.simulation.sinks.points --all      every write, in all ways
    python -m tests.simulation.sinks.points NAME [WAY [NUMBER]]

A *reference run* without faults meets every name of `POINTS`.  The same seed gives the same run, so
the n-th write of a name is the same one in each run with that seed, up to the crash.  After the
crash brokers and drivers are started again, and the run must end as the reference run does.

Writes to the metadata store are stopped as they arrive there.  Entries are stopped on their way to
the bookies, so that none, one, two or all three of them have an entry when its writer dies.
"""

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import trio

from daybook.bookie.ledger.metadata import decode_metadata
from daybook.clients.python.errors import BrokerError
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.protocol.sink import SinkRecord, SinkState
from daybook.managed_ledger.records import parse, properties_of
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.managed_ledger.sinks.ledgers import SinkLedger, sink_ledger_of
from daybook.managed_ledger.sinks.progress import Progress, progress_of
from daybook.managed_ledger.sinks.record import PENDING, decode_pending, decode_record, record_path
from daybook.wire.metadata.memory import Request
from daybook.wire.metadata.store import Record
from tests.harness.stream import SimulatedStream
from tests.simulation.cluster import Cluster, Life
from tests.simulation.metadata import Passage
from tests.simulation.settings import Settings
from tests.simulation.sinks.audit import SINK
from tests.simulation.sinks.drivers import Checkpoint, Habits
from tests.simulation.sinks.run import Stage, play

SEED = 1
_BATCHES = 3
_COPIES = 3  # Each entry has so many.
_DOWN_S = 1.0
_FROZEN_S = 8.0  # longer than a session
_ON_ITS_WAY_S = 0.0045  # An entry has reached its bookies, and is stored there.
_ROWS = re.compile(rb"<[^<>]+>")
# The end of a staging ledger, and a manifest, are known by these.
_OWNERS = re.compile(rb'"(?:attempt|sinkId|batchId)":[^,]+')


class Way(Enum):
    BEFORE = "the writer dies before the write"
    AFTER = "the writer dies after the write"
    FROZEN = "the writer freezes after the write, and wakes when others own what it owned"
    SILENT = "the answer is lost"
    LATE = "the write is carried out when its caller has given up"
    DRIVER = "the driver dies"
    TASK = "the last task dies"
    ONE_COPY = "the writer dies, and one bookie has the entry"
    TWO_COPIES = "the writer dies, and two bookies have the entry"


_OF_METADATA = (Way.BEFORE, Way.AFTER, Way.FROZEN, Way.SILENT, Way.LATE, Way.DRIVER)
_OF_STAGING = (*_OF_METADATA, Way.TASK)
_OF_ENTRIES = (Way.BEFORE, Way.ONE_COPY, Way.TWO_COPIES, Way.AFTER, Way.FROZEN, Way.DRIVER)
_OF_STAGED_ENTRIES = (*_OF_ENTRIES, Way.TASK)

POINTS: dict[str, tuple[Way, ...]] = {
    "stage: create the staging ledger": _OF_STAGING,
    "stage: add an entry": _OF_STAGED_ENTRIES,
    "stage: add the end": _OF_STAGED_ENTRIES,
    "stage: close the staging ledger": _OF_STAGING,
    "commit: create the record": _OF_METADATA,
    "commit: create the manifest": _OF_METADATA,
    "commit: add the manifest": _OF_ENTRIES,
    "commit: close the manifest": _OF_METADATA,
    "commit: create the parent of pending nodes": _OF_METADATA,
    "commit: name the batch in the record": _OF_METADATA,
    "apply: note that entries will follow": _OF_METADATA,
    "apply: append an entry": _OF_ENTRIES,
    "apply: note the progress": _OF_METADATA,
    "apply: note the end": _OF_METADATA,
    "apply: mark the pending node": _OF_METADATA,
    "finish: make the record APPLIED": _OF_METADATA,
    "finish: delete the parent of pending nodes": _OF_METADATA,
    "finish: delete a staging ledger": _OF_METADATA,
    "finish: delete the manifest": _OF_METADATA,
    "abandon: name attempts in the record": _OF_METADATA,
    "abandon: delete a staging ledger": _OF_METADATA,
    "abandon: remove attempts from the record": _OF_METADATA,
    "forget: give the sink another id": _OF_METADATA,
}


@dataclass(frozen=True, slots=True)
class Crash:
    point: str
    way: Way
    number: int = 0  # the occurrence of the point, in the order of the reference run


class _Names:
    """Names each change of the metadata, from the content before and after it."""

    def __init__(self) -> None:
        self._ledgers: dict[str, tuple[SinkLedger, bool]] = {}  # by path: and if it is closed
        self._record: SinkRecord | None = None
        self._progress: dict[str, dict[str, Progress]] = {}  # by path of a list, by sink id
        self._roots: set[str] = set()

    def of(self, path: str, stored: Record | None) -> str | None:
        if path == record_path(SINK) and stored is not None:
            before, self._record = self._record, decode_record(stored.value, SINK)
            return _of_record(before, self._record)
        if path.startswith("/ledgers/"):
            return self._of_ledger(path, stored)
        if path.startswith(PENDING):
            return self._of_pending(path, stored)
        if path.startswith("/managed-ledgers/") and stored is not None:
            return self._of_list(path, stored.value)
        return None

    def _of_ledger(self, path: str, stored: Record | None) -> str | None:
        if stored is None:
            owner, _ = self._ledgers.pop(path, (None, False))
            if owner is None or self._record is None:
                return None
            if owner.attempt.startswith("manifest-"):
                return "finish: delete the manifest"
            abandoned = owner.attempt in self._record.abandoned
            return f"{'abandon' if abandoned else 'finish'}: delete a staging ledger"
        if b"daybook/sink" not in stored.value:
            return None
        metadata = decode_metadata(stored.value)
        owner = sink_ledger_of(metadata.custom)
        assert owner is not None
        known = self._ledgers.get(path)
        self._ledgers[path] = owner, metadata.closed
        what = "commit: {} the manifest"
        if not owner.attempt.startswith("manifest-"):
            what = "stage: {} the staging ledger"
        if known is None:
            return what.format("create")
        return what.format("close") if metadata.closed and not known[1] else None

    def _of_pending(self, path: str, stored: Record | None) -> str | None:
        if path == PENDING:
            return None
        if path.count("/") == PENDING.count("/") + 1:
            step = "finish: delete" if stored is None else "commit: create"
            return f"{step} the parent of pending nodes"
        if stored is not None and decode_pending(stored.value, path).applied:
            return "apply: mark the pending node"
        return None  # It is created with the record, and deleted with it.

    def _of_list(self, path: str, value: bytes) -> str | None:
        try:
            now = progress_of(properties_of(parse(ManagedLedgerInfo(), value, path)))
        except LogCorruptError:
            return None  # It is the record of a cursor.
        before, self._progress[path] = self._progress.get(path, {}), now
        for sink_id, progress in now.items():
            was = before.get(sink_id)
            if was != progress:
                if not progress.applying:
                    return "apply: note the end"
                begins = was is None or not was.applying
                return f"apply: note {'that entries will follow' if begins else 'the progress'}"
        return None


def _of_record(before: SinkRecord | None, now: SinkRecord) -> str | None:
    if before is None:
        return "commit: create the record"
    if now.sink_id != before.sink_id:
        return "forget: give the sink another id"
    if now.batch_id != before.batch_id:
        return "commit: name the batch in the record"
    if now.state is SinkState.APPLIED and before.state is SinkState.COMMITTED:
        return "finish: make the record APPLIED"
    if now.abandoned - before.abandoned:
        return "abandon: name attempts in the record"
    return "abandon: remove attempts from the record" if before.abandoned else None


def _of_data(data: bytes) -> str | None:
    """Name the entries in data from a broker to a bookie."""
    if _ROWS.search(data):
        return "apply: append an entry" if b"daybook.sink." in data else "stage: add an entry"
    if b'"shares":{' in data:
        return "commit: add the manifest"
    return "stage: add the end" if b'"runs":[' in data else None


@dataclass
class _Injector:
    """Finds the writes of a run; at one of them it lets somebody die.

    `wanted` is the index of a write in the metadata, or of a piece of data; -1 in a reference run.
    """

    stage: Stage
    crash: Crash | None
    wanted: int
    writes: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    pieces: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    done: trio.Event = field(default_factory=trio.Event)
    _names: _Names = field(default_factory=_Names)
    _index: int = -1
    _sent: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _target: bytes = b""
    _copies: int = 0
    _frozen: Life | None = None

    def attach(self) -> None:
        cluster = self.stage.cluster
        audit = cluster.metadata.tree.observer
        assert audit is not None

        def observe(writer: str, path: str, stored: Record | None) -> None:
            audit(writer, path, stored)
            name = self._names.of(path, stored)
            if name is not None and (not self.writes or self.writes[-1][0] != self._index):
                self.writes.append((self._index, name))

        cluster.metadata.tree.observer = observe
        cluster.metadata.gate = self._on_write
        cluster.network.gate = self._on_data

    # -- the metadata

    def _on_write(self, host: str, _request: Request) -> Passage:
        self._index += 1
        crash = self.crash
        if crash is None or crash.way not in POINTS[crash.point] or not _in_metadata(crash.point):
            return Passage.ANSWERED
        if self._index != self.wanted or self.done.is_set():
            return Passage.ANSWERED
        self.done.set()
        self.stage.say(f"{crash.point}, {crash.way.value}: {host}")
        match crash.way:
            case Way.BEFORE:
                self._kill(host)
                return Passage.STOPPED
            case Way.AFTER:
                self.stage.scheduler.soon(lambda: self._kill(host))
                return Passage.SILENT
            case Way.FROZEN:
                self._freeze(host)
                return Passage.ANSWERED
            case Way.SILENT:
                return Passage.SILENT
            case Way.LATE:
                return Passage.LATE
            case Way.DRIVER:
                self._kill(self.stage.drivers.current)
            case Way.TASK:
                self._kill_task()
            case _:
                raise AssertionError(crash.way)
        return Passage.ANSWERED

    # -- entries

    def _on_data(self, stream: SimulatedStream, data: bytes) -> bool:
        """Return False to lose a piece of data."""
        if not (stream.host.startswith("broker") and stream.peer_host.startswith("bookie")):
            return True
        name = _of_data(data)
        if name is None:
            return True
        key = stream.host.encode() + b"".join(_ROWS.findall(data) or _OWNERS.findall(data))
        first = key not in self._sent
        if first:
            self._sent[key] = len(self._sent)
            self.pieces.append((self._sent[key], name))
        crash = self.crash
        if crash is None or _in_metadata(crash.point):
            return True
        if first and self._sent[key] == self.wanted:
            self._target = key
            self._begin(stream.host)
        if key != self._target:
            return True
        self._copies += 1
        return self._copies <= _copies_of(crash.way)

    def _begin(self, host: str) -> None:
        """Let somebody die when the entry has reached as many bookies as it may."""
        crash, stage = self.crash, self.stage
        assert crash is not None
        self.done.set()
        stage.say(f"{crash.point}, {crash.way.value}: {host}")
        deaths: dict[Way, Callable[[], None]] = {
            Way.DRIVER: lambda: self._kill(stage.drivers.current),
            Way.TASK: self._kill_task,
            Way.FROZEN: lambda: self._freeze(host),
        }
        die = deaths.get(crash.way, lambda: self._kill(host))
        if crash.way is Way.BEFORE:
            stage.scheduler.soon(die)
        else:
            stage.scheduler.at(trio.current_time() + _ON_ITS_WAY_S, die)

    # -- deaths

    def _kill(self, host: str) -> None:
        if host in self.stage.cluster.lives:
            self.stage.cluster.kill(host)

    def _kill_task(self) -> None:
        running = [each for each in self.stage.drivers.tasks if each in self.stage.cluster.lives]
        if running:
            self._kill(running[-1])

    def _freeze(self, host: str) -> None:
        if host in self.stage.cluster.lives:
            self._frozen = self.stage.cluster.freeze(host)

    async def repair(self) -> None:
        """Start what has died again."""
        cluster = self.stage.cluster
        await self.done.wait()
        await trio.sleep(_FROZEN_S if self._frozen else _DOWN_S)
        if self._frozen is not None:
            cluster.thaw(self._frozen)
        await _revive(cluster)


async def _revive(cluster: Cluster) -> None:
    for name in ("broker-1", "broker-2"):
        await cluster.revive(name)


def _copies_of(way: Way) -> int:
    return {Way.BEFORE: 0, Way.ONE_COPY: 1, Way.TWO_COPIES: 2}.get(way, _COPIES)


def _in_metadata(point: str) -> bool:
    return Way.LATE in POINTS[point]


@dataclass(frozen=True, slots=True)
class Run:
    """The names of all writes of a run, by their index, and if the crash took place."""

    writes: list[tuple[int, str]]
    pieces: list[tuple[int, str]]
    crashed: bool
    committed: list[int]
    replays: int

    def occurrences(self, point: str) -> list[int]:
        found = self.writes if _in_metadata(point) else self.pieces
        return [index for index, name in found if name == point]


def run_crash(
    crash: Crash | None, reference: Run | None = None, say: Callable[[str], None] | None = None
) -> Run:
    """Play the story once.  Raise AssertionError if a promise was broken."""
    injectors: list[_Injector] = []
    wanted = -1
    if crash is not None:
        assert reference is not None
        wanted = reference.occurrences(crash.point)[crash.number]

    async def main(stage: Stage) -> None:
        injector = _Injector(stage, crash, wanted)
        injectors.append(injector)
        injector.attach()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(injector.repair)
            await _drive(stage, Checkpoint("query", "/checkpoint"), _BATCHES)
            await _forget(stage)
            await _drive(stage, Checkpoint("other", "/other"), 1)
            nursery.cancel_scope.cancel()
        await _revive(stage.cluster)

    habits = Habits(rows=lambda _: 8, pause_s=(0.01, 0.02), litter={0}, unnoted={1}, aborted={2})
    stage = play(SEED, main, settings=Settings(http=True), habits=habits, busy=False, say=say)
    (injector,) = injectors
    committed = [number for _, number in stage.audit.committed]
    return Run(
        injector.writes, injector.pieces, injector.done.is_set(), committed, stage.audit.replays
    )


async def _drive(stage: Stage, checkpoint: Checkpoint, batches: int) -> None:
    """Start one driver after the other until all batches are done."""
    stage.audit.owners = {checkpoint.source}
    while checkpoint.done < batches - 1:
        life = await stage.drivers.start(checkpoint, batches)
        await life.ended.wait()
        await trio.sleep(0.2)


async def _forget(stage: Stage) -> None:
    requests = stage.drivers.requests("operator")
    while True:
        try:
            await requests.roll_forward(SINK, timeout_s=20.0)
            await requests.forget(SINK)
        except BrokerError as error:
            stage.say(f"the sink is not forgotten: {error}")
            await trio.sleep(1.0)
        else:
            return


def crashes(reference: Run, *, every: bool = False) -> Iterator[Crash]:
    """Yield the crashes at the first write of each name, or at every write."""
    for point, ways in POINTS.items():
        count = len(reference.occurrences(point))
        for number in range(count if every else min(count, 1)):
            for way in ways:
                yield Crash(point, way, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("point", nargs="?")
    parser.add_argument("way", nargs="?", choices=[way.name for way in Way])
    parser.add_argument("number", nargs="?", type=int, default=0)
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    if given.way is not None:
        run_crash(Crash(given.point, Way[given.way], given.number), run_crash(None), print)
        return
    since_s, results = time.monotonic(), Counter[str]()
    reference = run_crash(None)
    for crash in crashes(reference, every=given.all):
        if given.point in (None, crash.point):
            results[_play(crash, reference)] += 1
    print(f"{len(POINTS)} names, {len(reference.writes) + len(reference.pieces)} writes;", end=" ")
    print(dict(results), f"{time.monotonic() - since_s:.0f} s")
    sys.exit(1 if results["wrong"] else 0)


def _play(crash: Crash, reference: Run) -> str:
    try:
        crashed = run_crash(crash, reference).crashed
    except (AssertionError, trio.TooSlowError, BaseExceptionGroup) as error:
        print(f"{crash.point} {crash.way.name} {crash.number}: {error!r}", flush=True)
        return "wrong"
    return "right" if crashed else "not reached"


if __name__ == "__main__":
    main()
