"""The ledger client and our own bookies, over sockets and files."""

import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from daybook.bookie.errors import InDoubtError, LedgerFencedError
from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.client import (
    LedgerClient,
    LedgerLimits,
    LedgerReader,
    Quorums,
    open_ledger_client,
)
from daybook.bookie.ledger.codecs import VersionChoice
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import open_rocks_index
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.digest import DigestType
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork
from tests.bookie.server.test_hostile import wait_until

QUORUMS = Quorums(3, 3, 2)


@dataclass
class Cluster:
    directory: Path
    nursery: trio.Nursery
    store: MemoryStore = field(default_factory=lambda: MemoryStore(SystemClock()))
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    flusher: Flusher = field(default_factory=Flusher)
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)
    ended: dict[str, trio.Event] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        await self.nursery.start(self._run, name)

    async def stop(self, name: str) -> None:
        self.scopes[name].cancel()
        await self.ended[name].wait()

    async def _run(
        self, name: str, task_status: trio.TaskStatus[RunningBookie] = trio.TASK_STATUS_IGNORED
    ) -> None:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        config = BookieConfig(directories=(str(directory),), bookie_id=name, port=0)
        session = self.store.session(name)
        self.ended[name] = trio.Event()
        with trio.CancelScope() as self.scopes[name]:
            await run_bookie(
                config,
                network=TcpNetwork(),
                metadata=session,
                disk=FileDisk(),
                index=open_rocks_index,
                clock=SystemClock(),
                rng=self.rng,
                task_status=task_status,
            )
        session.close()
        self.ended[name].set()

    async def client(self, protocol: VersionChoice = "auto") -> LedgerClient:
        client: LedgerClient = await self.nursery.start(self._run_client, protocol)
        return client

    async def _run_client(
        self,
        protocol: VersionChoice,
        task_status: trio.TaskStatus[LedgerClient] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with open_ledger_client(
            store=self.store.session("client"),
            network=TcpNetwork(),
            rng=self.rng,
            clock=SystemClock(),
            arenas=ArenaPool(),
            flusher=self.flusher,
            limits=LedgerLimits(bookies=BookieLimits(protocol=protocol)),
        ) as client:
            task_status.started(client)
            await trio.sleep_forever()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[Cluster]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(tmp_path, nursery)
        nursery.start_soon(cluster.flusher.run)
        for name in ("b1", "b2", "b3"):
            await cluster.start(name)
        yield cluster
        nursery.cancel_scope.cancel()


async def append(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
    await writer.wait_confirmed(writer.last_add_pushed)


async def check(reader: LedgerReader, count: int) -> None:
    payloads: list[bytes] = []
    while len(payloads) <= reader.last_add_confirmed:
        last = reader.last_add_confirmed
        entries = await reader.read(len(payloads), last, max_bytes=1 << 20)
        payloads += [bytes(entry.payload) for entry in entries]
    assert payloads == [b"entry %d" % number for number in range(count)]


@pytest.mark.parametrize("quorums", [QUORUMS, Quorums(3, 2, 2), Quorums(1, 1, 1)], ids=str)
async def test_write_close_and_read(cluster: Cluster, quorums: Quorums) -> None:
    client = await cluster.client()
    writer = await client.create(quorums, password=b"pw", digest_type=DigestType.HMAC)
    await append(writer, 500)
    await writer.close()
    reader = await client.open(writer.ledger_id, recover=False, password=b"pw")
    assert reader.closed
    await check(reader, 500)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_recovery_fences_the_writer(cluster: Cluster, protocol: VersionChoice) -> None:
    client = await cluster.client(protocol)
    writer = await client.create(QUORUMS)
    await append(writer, 100)
    reader = await (await cluster.client(protocol)).open(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (99, writer.length)
    await check(reader, 100)
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(writer.append([b"late"]))
    assert isinstance(writer.error, LedgerFencedError)


async def test_what_is_forced_is_there_for_readers(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create_deferred(QUORUMS, password=b"pw", digest_type=DigestType.HMAC)
    for number in range(200):
        writer.append([b"entry %d" % number])
    assert await writer.force() == 199
    await writer.wait_acknowledged(writer.append([b"not forced"]))
    reader = await (await cluster.client()).open(writer.ledger_id, recover=False, password=b"pw")
    assert reader.last_add_confirmed == 199
    await check(reader, 200)
    await writer.close()


async def test_a_bookie_that_restarts_has_its_entries_and_its_fences(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create(QUORUMS)
    await append(writer, 50)
    await client.open(writer.ledger_id, recover=True)
    for name in ("b1", "b2", "b3"):
        await cluster.stop(name)
    for name in ("b1", "b2", "b3"):
        await cluster.start(name)
    reader = await client.open(writer.ledger_id, recover=True)
    await check(reader, 50)
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(writer.append([b"late"]))
    assert isinstance(writer.error, LedgerFencedError)


async def test_writing_goes_on_without_one_bookie_and_waits_without_two(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create(QUORUMS)
    await append(writer, 10)
    await cluster.stop("b1")
    await append(writer, 10)
    await wait_until(lambda: writer.under_replicated)
    await cluster.stop("b2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(append, writer, 10)
        await wait_until(lambda: "b1" in writer.waiting_for and "b2" in writer.waiting_for)
        assert writer.last_add_confirmed < 29
        nursery.cancel_scope.cancel()
    await cluster.start("b1")
    await writer.wait_confirmed(29)
    second = await client.create(QUORUMS)
    await append(second, 5)
    reader = await (await cluster.client()).open(writer.ledger_id, recover=True)
    await check(reader, 30)
