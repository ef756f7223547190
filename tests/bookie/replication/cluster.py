"""Our own bookies on simulated disks and a simulated network, and auto-recovery over them."""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import trio

from daybook.bookie.ledger.admin_states import AdminStates
from daybook.bookie.ledger.client import LedgerClient, LedgerLimits, Quorums, open_ledger_client
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.host import AutoRecovery, open_autorecovery
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.status_records import StatusRecords
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.digest import Digester, DigestType, master_key
from daybook.wire.entry import encode_header
from daybook.wire.messages.bookie import Status
from daybook.wire.messages.bookie_v3 import encode_add, from_v3
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.outbox import Flusher
from tests.clients.ledgers.world import World, open_world

PATHS = LedgerPaths()
QUORUMS = Quorums(3, 3, 2)
LIMITS = ReplicationLimits(
    lost_delay_s=60.0, rate_bytes_per_s=1e9, poll_s=5.0, backoff_s=10.0, recovery_grace_s=30.0
)
PATIENCE_S = 600.0  # simulated seconds


Entry: TypeAlias = Literal["good", "bad"]


def payload_of(entry_id: int) -> bytes:
    return b"entry %03d" % entry_id


def entry_bytes(ledger_id: int, entry_id: int, kind: Entry) -> bytes:
    payload = payload_of(entry_id)
    digester = Digester(DigestType.CRC32C, b"")
    header = encode_header(
        ledger_id, entry_id, entry_id - 1, 9 * (entry_id + 1), digester, [payload]
    )
    return header + (payload if kind == "good" else b"x" + payload[1:])


def closed_on(*ensembles: tuple[int, Sequence[str]], entries: int = 4) -> LedgerMetadata:
    """Return the metadata of a closed ledger; the ensembles are given with their first entries."""
    fragments = tuple(Fragment(first, tuple(map(bookie_id, names))) for first, names in ensembles)
    size = len(fragments[0].ensemble)
    return LedgerMetadata(
        quorums=Quorums(size, size, max(1, size - 1)), fragments=fragments
    ).closed_at(entries - 1, 9 * entries)


def bookie_id(name: str) -> BookieId:
    return BookieId(f"{name}:3181")


@dataclass
class Cluster:
    world: World
    client: LedgerClient
    store: MetadataStore
    written: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def underreplication(self) -> Underreplication:
        return Underreplication(self.store, PATHS, "test")

    @property
    def status_records(self) -> StatusRecords:
        return StatusRecords(self.store, PATHS)

    @property
    def orders(self) -> AdminStates:
        return AdminStates(self.store, PATHS)

    async def write(
        self, count: int = 20, quorums: Quorums = QUORUMS, *, close: bool = True, size: int = 100
    ) -> LedgerWriter:
        writer = await self.client.create(quorums)
        self.written[writer.ledger_id] = []
        await self.append(writer, count, size)
        if close:
            await writer.close()
        else:
            # The writer waits for two copies; a copy lost at this point costs it none.
            await trio.sleep(1)
        return writer

    async def append(self, writer: LedgerWriter, count: int, size: int = 100) -> None:
        payloads = self.written[writer.ledger_id]
        for _ in range(count):
            payloads.append(b"%d-%d:" % (writer.ledger_id, len(payloads)) + b"x" * size)
            entry_id = writer.append([payloads[-1]])
        if count:
            await writer.wait_confirmed(entry_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return await self.client.metadata(ledger_id)

    async def copies(self, ledger_id: int, entry_id: int) -> list[BookieId]:
        """Ask each bookie that the metadata names; return those that have the entry's bytes."""
        metadata = await self.metadata(ledger_id)
        ensemble = metadata.ensemble_at(entry_id)
        write_set = [ensemble[position] for position in metadata.quorums.write_set(entry_id)]
        return [b for b in write_set if await self.has(b, ledger_id, entry_id)]

    async def has(self, bookie: BookieId, ledger_id: int, entry_id: int) -> bool:
        answered = trio.Event()
        there = False

        def heard(status: object, buffer: memoryview) -> None:
            nonlocal there
            there = bytes(buffer).endswith(self.written[ledger_id][entry_id]) and status == 0
            answered.set()

        self.client.context.bookies.read(bookie, ledger_id, entry_id, heard)
        await answered.wait()
        return there

    async def fully_copied(self, ledger_ids: Sequence[int] = ()) -> bool:
        """Return True if every entry of the ledgers is on its whole write set."""
        for ledger_id in ledger_ids or list(self.written):
            metadata = await self.metadata(ledger_id)
            for entry_id in range(len(self.written[ledger_id])):
                if len(await self.copies(ledger_id, entry_id)) < metadata.quorums.write:
                    return False
        return True

    async def fully_copied_but(self, *bookies: BookieId) -> bool:
        """Return True if only copies on these bookies are missing."""
        for ledger_id in self.written:
            metadata = await self.metadata(ledger_id)
            for entry_id in range(len(self.written[ledger_id])):
                has = {*await self.copies(ledger_id, entry_id), *bookies}
                if not has >= set(metadata.ensemble_at(entry_id)):
                    return False
        return True

    async def readable(self, ledger_id: int) -> bool:
        reader = await self.client.open(ledger_id, recover=False)
        payloads: list[bytes] = []
        while len(payloads) <= reader.last_add_confirmed:
            entries = await reader.read(len(payloads), reader.last_add_confirmed, max_bytes=1 << 20)
            payloads += [bytes(entry.payload) for entry in entries]
        return payloads == self.written[ledger_id][: len(payloads)] and bool(payloads)

    def lose(self, name: str) -> None:
        """Lose the bookie for good; the metadata store knows at once."""
        self.world.stop(name)

    async def plant(
        self, metadata: LedgerMetadata, copies: Mapping[str, Mapping[int, Entry]]
    ) -> int:
        """Create a ledger with this metadata, and the given bytes at each bookie."""
        catalog = self.client.context.metadata_store
        ledger_id, _ = await catalog.create(metadata, self.world.nursery)
        self.written[ledger_id] = [payload_of(n) for n in range(metadata.last_entry_id + 1)]
        for name, entries in copies.items():
            for entry_id, kind in entries.items():
                frame = partial(
                    encode_add,
                    ledger_id=ledger_id,
                    entry_id=entry_id,
                    master_key=master_key(b""),
                    entry=entry_bytes(ledger_id, entry_id, kind),
                    recovery=True,
                )
                answer = await self.client.context.requests.ask(bookie_id(name), frame, 10)
                assert from_v3(answer.status) is Status.OK
        return ledger_id

    @asynccontextmanager
    async def recovering(
        self, name: str = "r1", limits: ReplicationLimits = LIMITS
    ) -> AsyncGenerator[AutoRecovery]:
        session = self.world.metadata.session(name)
        self.world.sessions[name] = session
        async with (
            open_client(self.world, session, name) as client,
            open_autorecovery(client, name=name, limits=limits) as running,
        ):
            yield running


async def until(condition: Callable[[], Awaitable[bool]], every_s: float = 5.0) -> None:
    with trio.fail_after(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  what is looked at has no event
            await trio.sleep(every_s)


@asynccontextmanager
async def open_client(
    world: World, store: MetadataStore, name: str
) -> AsyncGenerator[LedgerClient]:
    async with trio.open_nursery() as nursery:
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        async with open_ledger_client(
            store=store,
            network=world.network.of(name),
            rng=random.Random(world.rng.random()),
            clock=SystemClock(),
            arenas=ArenaPool(),
            flusher=flusher,
            limits=LedgerLimits(),
        ) as client:
            yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_cluster(
    bookies: int = 4, seed: int = 1, settings: dict[str, object] | None = None
) -> AsyncGenerator[Cluster]:
    async with open_world(bookies, seed, settings) as world:
        session = world.sessions["client"] = world.metadata.session("client")
        async with open_client(world, session, "client") as client:
            yield Cluster(world, client, session)
