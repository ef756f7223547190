"""Three bookies, a metadata store and hosts with logs, in one program and in virtual time.

    async def scenario(world: World) -> None:
        async with world.host("broker-1") as host:
            log = await host.logs.open("t/n/persistent/a")

    play(scenario)

Entries have numbers: the payload of number n is a message `n` published at time n.
"""

import copy
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

from daybook.bookie.ledger.client import LedgerClient, Quorums, open_ledger_client
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.managed_ledger.context import LogConfig
from daybook.managed_ledger.cursor_ledger import CHANGE_2
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.open import ManagedLedgers, open_managed_ledgers
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.log import LogState
from daybook.managed_ledger.protocol.trim import Retention
from daybook.managed_ledger.records import log_path
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.arena import ArenaPool
from daybook.wire.batch import encode_payload_head, parse_metadata, split_broker_metadata
from daybook.wire.logging import Log
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore, Request
from daybook.wire.metadata.store import Record, Watch
from daybook.wire.metadata.tree import Tree
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.clocks import VirtualClock
from tests.harness.disk import HostCrashedError, Platter
from tests.harness.network import SimulatedNetwork
from tests.simulation import scheduler
from tests.simulation.scheduler import HOST, Scheduler

NAME = "t/n/persistent/a"
TREE = "5d41402abc4b2a76"  # identifies the tree of logs
BOOKIES = ("bookie-1", "bookie-2", "bookie-3")
CONFIG = LogConfig(quorums=Quorums(3, 3, 2), roll_entries=5, flush_s=0.2)
LIMIT_S = 1000.0  # virtual: a scenario that waits for what never comes fails
NOW = Retention(time_ms=0)  # acknowledged messages go with the next roll


def message(number: int, messages: int = 1, *, size: int = 0) -> list[bytes]:
    """Return an entry as a producer sends it, with `messages` messages published at `number`."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=number)
    if messages > 1:
        metadata.num_messages_in_batch = messages
    return [bytes(encode_payload_head(metadata, b"x" * size)), b"x" * size]


def number_of(data: memoryview) -> int:
    return parse_metadata(split_broker_metadata(data)[2])[0].sequence_id


@dataclass
class Sent:
    """The results of the appends of one handle, in the order of the calls of `done`."""

    acked: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    failed: list[tuple[int, Exception]] = field(default_factory=list)
    sent: int = 0

    @property
    def settled(self) -> bool:
        return len(self.acked) + len(self.failed) == self.sent


def send(log: ManagedLedger, numbers: range, sent: Sent | None = None, messages: int = 1) -> Sent:
    sent = sent or Sent()
    for number in numbers:
        sent.sent += 1

        def done(
            position: Position | None,
            error: Exception | None,
            number: int = number,
            sent: Sent = sent,
        ) -> None:
            if position is None:
                assert error is not None
                sent.failed.append((number, error))
            else:
                sent.acked.append(number)
                sent.positions.append(position)

        log.append(message(number, messages), messages, done)
    return sent


async def settle(sent: Sent) -> Sent:
    await until(lambda: sent.settled)
    return sent


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition in virtual time; a deadlock shows as too many steps."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.01)


async def append(log: ManagedLedger, numbers: range, messages: int = 1) -> list[Position]:
    """Append and wait until all are confirmed, a few at a time, so that rollovers happen."""
    positions: list[Position] = []
    for first in range(numbers.start, numbers.stop, 2):
        part = range(first, min(first + 2, numbers.stop))
        sent = await settle(send(log, part, messages=messages))
        assert not sent.failed, sent.failed
        positions += sent.positions
        await until(lambda: log.state in (LogState.OPEN, LogState.FENCED))
    return positions


async def read_all(log: ManagedLedger, start: Position | None = None) -> list[int]:
    """Return the numbers of all entries; check that positions and offsets ascend."""
    at = start or log.next_position(log.before_first)
    numbers: list[int] = []
    offset = -1
    while found := await log.read(at, max_entries=100, max_bytes=1 << 20):
        assert found[0].position >= at
        for entry in found:
            index = split_broker_metadata(entry.data)[1]
            assert index is not None
            assert index > offset
            offset = index
            numbers.append(number_of(entry.data))
        at = log.next_position(found[-1].position)
    return numbers


class Held:
    """A request that is held up until it is let go; it arrives then, even without a caller."""

    def __init__(self, operation: str, path: str) -> None:
        self.operation = operation
        self.path = path
        self.caught = trio.Event()
        self._arrived = trio.Event()
        self._execute: Callable[[], None] = _nothing

    async def travel(self, execute: Callable[[], None]) -> None:
        self._execute = execute
        self.caught.set()
        await self._arrived.wait()

    def arrive(self) -> None:
        """Carry it out; the answer is held up until `let_go`."""
        self._execute()
        self._execute = _nothing

    def let_go(self) -> None:
        assert self.caught.is_set()
        self._execute()
        self._arrived.set()


def _nothing() -> None:
    """Do nothing; the scenario has set no handler yet."""


class HostLink(DirectLink):
    """A host's link to the metadata store.

    Requests can be held up, and the server that answers reads can fall behind the others: until it
    is asked to catch up (`sync`), or the host has written something, which it must have seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stale: Tree | None = None
        self._held: list[Held] = []

    def hold_next(self, operation: str, path: str = "") -> Held:
        held = Held(operation, path)
        self._held.append(held)
        return held

    def hold_no_more(self) -> None:
        self._held.clear()

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        for held in self._held:
            if held.operation == request.operation and request.path.startswith(held.path):
                self._held.remove(held)
                await held.travel(execute)
                break
        else:
            await super().request(request, execute)
        if request.write or request.operation == "sync":
            self.stale = None


class FollowedTree:
    """The tree as a host sees it: the present state, or an older one."""

    def __init__(self, tree: Tree, link: HostLink) -> None:
        self._tree = tree
        self._link = link

    def __getattr__(self, name: str) -> object:
        return getattr(self._tree, name)

    def get(self, session_id: int, path: str, watch: Watch | None) -> Record | None:
        return (self._link.stale or self._tree).get(session_id, path, watch)

    def get_children(self, session_id: int, path: str, watch: Watch | None) -> list[str] | None:
        return (self._link.stale or self._tree).get_children(session_id, path, watch)


@dataclass
class Host:
    name: str
    store: MemorySession
    link: HostLink
    client: LedgerClient
    logs: ManagedLedgers

    async def open(
        self, config: LogConfig = CONFIG, name: str = NAME, *, create: bool = True
    ) -> ManagedLedger:
        return await self.logs.open(name, config, create=create)


class World:
    def __init__(self, run: Scheduler, seed: int, nursery: trio.Nursery) -> None:
        self.rng = random.Random(seed)
        self.run = run
        self.network = SimulatedNetwork(self.rng)
        self.metadata = MemoryStore(VirtualClock())
        self.platters = {name: Platter(self.rng, latency_s=(0.0002, 0.002)) for name in BOOKIES}
        self.nursery = nursery
        self.formats = {CHANGE_2}  # the formats that all brokers announce
        self.bookies: dict[str, RunningBookie] = {}
        self._lives: dict[str, list[trio.CancelScope]] = {name: [] for name in BOOKIES}
        self._sessions: dict[str, MemorySession] = {}
        self._roots: dict[str, str] = {}

    async def start(self, name: str, log: Log | None = None) -> None:
        lives = self._lives[name]
        life = f"{name}#{len(lives)}"
        session = self._sessions[name] = self.metadata.session(life)
        scope = trio.CancelScope()
        lives.append(scope)

        async def live(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            HOST.set(life)
            with suppress(HostCrashedError, BaseExceptionGroup), scope:
                await run_bookie(
                    BookieConfig(
                        directories=("d0",),
                        host=name,
                        ledgers_root=self._roots.get(name, "/ledgers"),
                    ),
                    network=self.network.of(name),
                    metadata=session,
                    disk=self.platters[name].mount(),
                    index=self.platters[name].indexes().open,
                    clock=VirtualClock(),
                    rng=self.rng,
                    log=log,
                    task_status=task_status,
                )

        self.bookies[name] = await self.nursery.start(live)

    async def add_bookie(
        self, name: str, *, root: str = "/ledgers", log: Log | None = None
    ) -> None:
        """Start a bookie; its machine may have a disk already."""
        self._roots[name] = root
        if name not in self.platters:
            self.platters[name] = Platter(self.rng, latency_s=(0.0002, 0.002))
        self._lives[name] = []
        await self.start(name, log)

    def kill(self, name: str) -> None:
        """Cut the power of a bookie, which ends its session."""
        self.run.hold(f"{name}#{len(self._lives[name]) - 1}")
        self.network.crash(name)
        self.platters[name].lose_power()
        session = self._sessions[name]
        session.crash()
        self.metadata.expire(session.store_session_id)

    def end(self) -> None:
        for name, lives in self._lives.items():
            for number, scope in enumerate(lives):
                self.run.release(f"{name}#{number}")
                scope.cancel()

    @asynccontextmanager
    async def host(
        self, name: str, *, root: str = "/ledgers", tree: str | None = TREE
    ) -> AsyncGenerator[Host]:
        link = HostLink()
        session = self.metadata.session(name, link=link)
        session._tree = FollowedTree(self.metadata.tree, link)  # type: ignore[assignment]
        async with trio.open_nursery() as nursery:
            flusher = Flusher()
            nursery.start_soon(flusher.run)
            async with (
                open_ledger_client(
                    store=session,
                    network=self.network.of(name),
                    rng=self.rng,
                    clock=VirtualClock(),
                    arenas=ArenaPool(),
                    flusher=flusher,
                    root=root,
                ) as client,
                open_managed_ledgers(
                    client=client,
                    store=session,
                    clock=VirtualClock(),
                    rng=self.rng,
                    allows=self.formats.__contains__,
                ) as logs,
            ):
                if tree is not None:
                    logs.name_tree(tree)
                await self._bookies_are_seen(client, root)
                yield Host(name, session, link, client, logs)
            nursery.cancel_scope.cancel()

    async def _bookies_are_seen(self, client: LedgerClient, root: str) -> None:
        tree = self.metadata.tree
        alive = [
            name
            for name, session in self._sessions.items()
            if tree.is_alive(session.store_session_id) and self._roots.get(name, "/ledgers") == root
        ]
        await until(lambda: len(client.directory.usable()) >= len(alive))

    def fall_behind(self, host: Host) -> None:
        """Let the host read the state of this moment from now on."""
        tree = self.metadata.tree
        host.link.stale = behind = copy.copy(tree)
        behind._nodes = copy.deepcopy(tree._nodes)
        behind._record_watches, behind._children_watches = {}, {}

    async def list_of(self, host: Host, name: str = NAME) -> ManagedLedgerInfo:
        """Return the list that the metadata store holds."""
        record = await host.store.get(log_path(name))
        assert record is not None
        return ManagedLedgerInfo.FromString(record.value)

    async def ids_of(self, host: Host, name: str = NAME) -> list[int]:
        return [ledger.ledgerId for ledger in (await self.list_of(host, name)).ledgerInfo]

    async def ledgers(self, host: Host) -> list[int]:
        """Return the ids of all existing ledgers."""
        return [ledger_id async for ledger_id in host.client.list_ledgers()]


def play(
    scenario: Callable[[World], Awaitable[None]], seed: int = 1, *, limit_s: float = LIMIT_S
) -> None:
    """Run a scenario with three bookies, and raise what it raises."""

    async def main(run: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            world = World(run, seed, nursery)
            for name in BOOKIES:
                await world.start(name)
            try:
                with trio.fail_after(limit_s):
                    await scenario(world)
            finally:
                world.end()
                nursery.cancel_scope.cancel()

    scheduler.run(main, seed=seed)
