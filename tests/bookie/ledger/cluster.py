"""A cluster for tests of the ledger client: bookies that only speak the protocol.

    async with open_cluster(bookies=3) as cluster:
        client = await cluster.client()

Bookies answer from a dict; a test breaks them through attributes.  The network is the simulated
one, the metadata store the one in memory, and time jumps.
"""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from daybook.bookie.ledger.client import LedgerClient, LedgerLimits, open_ledger_client
from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, register_bookie
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.connection import FrameConnection
from daybook.wire.entry import peek_ids
from daybook.wire.fields import U32
from daybook.wire.messages import bookie_v3
from daybook.wire.messages.blocks import (
    ADD_BYTES,
    BLOCK_HEADER,
    BLOCKS_PROPERTY,
    AddBlock,
    decode_block,
    encode_block_answer,
)
from daybook.wire.messages.bookie import (
    ADD_HEADER,
    FRAME_BYTES_MAX,
    FRAME_BYTES_PROPERTY,
    LAST_ENTRY,
    Add,
    BatchRead,
    Flag,
    Read,
    Status,
    decode_request,
    encode_add_answer,
    encode_batch_answer_header,
    encode_read_answer,
)
from daybook.wire.messages.bookie_v3 import is_v3
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Stream
from tests.bookie.ledger.fake_v3 import handle_v3
from tests.harness.network import SimulatedNetwork

PATHS = LedgerPaths()
PORT = 3181


@dataclass
class FakeBookie:
    """A bookie that a test can break."""

    host: str
    cluster: "Cluster"
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    requests: list[Add | Read | BatchRead] = field(default_factory=list)
    silent: bool = False  # accepts all requests, answers none
    delay_s: float = 0.0  # before each answer
    deaf: bool = False  # neither stores nor answers
    frozen: bool = False  # reads no further frames; connections stay open
    add_status: Status | None = None  # the answer to every add; nothing is stored
    read_status: Status | None = None
    forgets: set[int] = field(default_factory=set)  # entries that it claims not to have
    # If off, it closes the connection on a batch read, as old bookies do.
    knows_batches: bool = True
    # Announces and answers blocks; if off, it closes the connection on one.
    takes_blocks: bool = False
    frame_bytes: str = ""  # the largest frame that it announces; Apache's bookies announce none
    blocks: list[AddBlock] = field(default_factory=list)
    claims: int = 0  # how many entries too many an answer to a block claims
    batch_surplus: int = 0  # how many entries too many a batch read returns
    batch_entries_max: int = 1000
    speaks: tuple[str, ...] = ("v2", "v3")  # it closes the connection on other protocols
    unsynced: set[tuple[int, int]] = field(default_factory=set)  # lost when it dies
    force_status: Status | None = None
    forces: int = 0
    session: MemorySession | None = None
    scope: trio.CancelScope | None = None

    @property
    def id(self) -> str:
        return f"{self.host}:{PORT}"

    async def start(self) -> None:
        """Listen, and register."""
        self.scope = trio.CancelScope()
        await self.cluster.nursery.start(self._serve, self.scope)
        self.session = self.cluster.store.session(self.host)
        properties = {BLOCKS_PROPERTY: "1"} if self.takes_blocks else {}
        if self.frame_bytes:
            properties[FRAME_BYTES_PROPERTY] = self.frame_bytes
        info = BookieInfo(self.id, self.host, PORT, properties)
        await create_cookie(self.session, PATHS, Cookie(self.id, ["/j"], ["/d"], "i"))
        await register_bookie(self.session, PATHS, info)

    def kill(self, *, forget: bool = True) -> None:
        """Stop the bookie; with `forget` its registration ends at once, otherwise it stays."""
        assert self.scope is not None
        assert self.session is not None
        self.cluster.network.crash(self.host)
        self.scope.cancel()
        self.session.crash()
        for key in self.unsynced:
            del self.entries[key]
        self.unsynced.clear()
        if forget:
            self.cluster.store.expire(self.session.session_id)

    async def restart(self) -> None:
        assert self.session is not None
        self.cluster.store.expire(self.session.session_id)
        await self.start()

    async def _serve(
        self, scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with scope:
            listener = await self.cluster.network.of(self.host).listen(self.host, PORT)
            task_status.started()
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(self._serve_one, await listener.accept())

    async def _serve_one(self, stream: Stream) -> None:
        connection = FrameConnection(
            stream,
            arenas=self.cluster.arenas,
            flusher=self.cluster.flusher,
            frame_bytes_max=FRAME_BYTES_MAX,
        )
        version = ""
        while frames := await connection.receive():
            if self.frozen:
                await trio.sleep_forever()
            for frame in frames:
                version = version or ("v3" if is_v3(frame) else "v2")
                if version not in self.speaks:
                    connection.close("a protocol that it does not speak")
                    return
                if version == "v3":
                    self._answer(connection, handle_v3(self, bookie_v3.decode_request(frame)))
                    continue
                if U32.unpack_from(frame)[0] == BLOCK_HEADER:
                    if not self.takes_blocks:
                        connection.close("an opcode that it does not know")
                        return
                    self._answer(connection, self._handle_block(decode_block(frame)))
                    continue
                request = decode_request(frame)
                assert isinstance(request, Add | Read | BatchRead)
                if isinstance(request, BatchRead) and not self.knows_batches:
                    self.requests.append(request)
                    connection.close("an opcode that it does not know")
                    return
                self._answer(connection, self._handle(request))

    def _answer(self, connection: FrameConnection, answer: bytes | None) -> None:
        if answer is not None and self.delay_s:
            self.cluster.nursery.start_soon(self._send_later, connection, answer)
        elif answer is not None:
            connection.send([answer])

    async def _send_later(self, connection: FrameConnection, answer: bytes) -> None:
        await trio.sleep(self.delay_s)
        connection.send([answer])

    def _handle(self, request: Add | Read | BatchRead) -> bytes | None:
        self.requests.append(request)
        if self.deaf:
            return None
        if isinstance(request, Add):
            status = self.add(request)
            answer = encode_add_answer(request.header, status, request.ledger_id, request.entry_id)
        elif isinstance(request, BatchRead):
            answer = self._batch(request)
        else:
            status, entry = self.read(request)
            answer = encode_read_answer(
                request.header, status, request.ledger_id, request.entry_id, len(entry)
            )
            answer += entry
        return None if self.silent else answer

    def _handle_block(self, block: AddBlock) -> bytes | None:
        self.blocks.append(block)
        if self.deaf:
            return None
        status, at = Status.OK, 0
        for entry_id, size in enumerate(block.sizes, block.first):
            at += ADD_BYTES + size
            entry = block.adds[at - size : at]
            add = Add(ADD_HEADER, 0, block.master_key, block.ledger_id, entry_id, entry)
            status = max(status, self.add(add))
        last = block.last + self.claims
        answer = encode_block_answer(status, block.ledger_id, block.first, last)
        return None if self.silent else answer

    def add(self, add: Add) -> Status:
        if self.add_status is not None:
            return self.add_status
        if add.ledger_id in self.fenced and not add.flags & Flag.RECOVERY_ADD:
            return Status.FENCED
        key = (add.ledger_id, add.entry_id)
        assert peek_ids(add.entry) == key
        self.entries[key] = bytes(add.entry)
        return Status.OK

    def read(self, read: Read) -> tuple[Status, bytes]:
        if read.flags & Flag.DO_FENCING:
            self.fenced.add(read.ledger_id)
        if self.read_status is not None:
            return self.read_status, b""
        entry_id = read.entry_id
        if entry_id == LAST_ENTRY:
            mine = [e for (ledger_id, e) in self.entries if ledger_id == read.ledger_id]
            entry_id = max(mine, default=LAST_ENTRY)
        entry = self.entries.get((read.ledger_id, entry_id))
        if entry is None or entry_id in self.forgets:
            return Status.NO_ENTRY, b""
        return Status.OK, entry

    def _batch(self, request: BatchRead) -> bytes:
        count = min(request.entries_max + self.batch_surplus, self.batch_entries_max)
        entries: list[bytes] = []
        status = Status.OK
        for entry_id in range(request.first_entry_id, request.first_entry_id + count):
            status, entry = self.read(Read(0, 0, request.ledger_id, entry_id, None))
            if status is not Status.OK:
                break
            entries.append(len(entry).to_bytes(4, "big") + entry)
        status = Status.OK if entries else status
        body = b"".join(entries)
        return encode_batch_answer_header(request, status, len(body)) + body

    def holds(self, ledger_id: int) -> list[int]:
        return sorted(e for (ledger, e) in self.entries if ledger == ledger_id)


@dataclass
class Cluster:
    nursery: trio.Nursery
    rng: random.Random
    network: SimulatedNetwork
    store: MemoryStore
    arenas: ArenaPool
    flusher: Flusher
    bookies: list[FakeBookie] = field(default_factory=list)
    sessions: list[MemorySession] = field(default_factory=list)

    async def client(
        self, limits: LedgerLimits | None = None, name: str = "client"
    ) -> LedgerClient:
        """Return a client on a host of its own; it lives as long as the cluster."""
        session = self.store.session(name)
        self.sessions.append(session)
        client: LedgerClient = await self.nursery.start(self._run_client, session, limits, name)
        return client

    async def _run_client(
        self,
        session: MemorySession,
        limits: LedgerLimits | None,
        name: str,
        task_status: trio.TaskStatus[LedgerClient] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with open_ledger_client(
            store=session,
            network=self.network.of(name),
            rng=self.rng,
            clock=SystemClock(),
            arenas=self.arenas,
            flusher=self.flusher,
            limits=limits,
        ) as client:
            task_status.started(client)
            await trio.sleep_forever()

    @property
    def link(self) -> DirectLink:
        """Return the link between the first client and the metadata store."""
        link = self.sessions[0].link
        assert isinstance(link, DirectLink)
        return link

    def bookie(self, bookie_id: str) -> FakeBookie:
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    def of(self, ensemble: Sequence[str]) -> list[FakeBookie]:
        return [self.bookie(bookie_id) for bookie_id in ensemble]


@asynccontextmanager
async def open_cluster(*, bookies: int = 3, seed: int = 1) -> AsyncGenerator[Cluster]:
    rng = random.Random(seed)
    async with trio.open_nursery() as nursery:
        cluster = Cluster(
            nursery,
            rng,
            SimulatedNetwork(rng),
            MemoryStore(SystemClock()),
            ArenaPool(arena_bytes=1 << 16),
            Flusher(),
        )
        nursery.start_soon(cluster.flusher.run)
        await ensure_layout(cluster.store.session("setup"), PATHS, rng)
        for number in range(1, bookies + 1):
            blocks = number % 2 == 1  # Ensembles are mixed.
            cluster.bookies.append(FakeBookie(f"b{number}", cluster, takes_blocks=blocks))
            await cluster.bookies[-1].start()
        yield cluster
        nursery.cancel_scope.cancel()
