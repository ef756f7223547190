"""Protocol v2 on one connection: adds are handled in a tight loop, other requests in tasks.

A frame that does not parse cannot be answered: it raises WireError, and the server cuts the
connection.  A packet with a version or opcode that is not served is answered first, with ids of -1.
"""

from collections.abc import Sequence
from struct import Struct

import trio

from daybook.bookie.server.response_buffers import COPIED_MAX, WindowIds
from daybook.bookie.server.session import STATUSES, Received, Session
from daybook.bookie.storage.records import RECORD_HEADER_BYTES, Run, SharedRun, entries_of_run
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.wire.entry import ENTRY_HEADER_BYTES
from daybook.wire.errors import MalformedError
from daybook.wire.fields import U32
from daybook.wire.messages import bookie
from daybook.wire.messages.blocks import (
    ADD_BYTES,
    BLOCK_HEADER,
    AddBlock,
    decode_block,
    encode_block_answer,
)
from daybook.wire.messages.bookie import (
    ADD_ANSWER,
    ADD_ANSWER_BYTES,
    ADD_HEADER,
    ADD_REQUEST_HEADER_BYTES,
    Add,
    Auth,
    BatchRead,
    Flag,
    Read,
    Status,
    Unsupported,
)
from daybook.wire.transport import Buffer

assert ADD_BYTES == RECORD_HEADER_BYTES  # so a block is written to the disk as it arrived
_ADD = Struct(">4x20sqq")  # the packet header is skipped; then master key, ledger, entry
_unpack_header = U32.unpack_from
_PLAIN_ADD = (ADD_HEADER,)
_FRAME_BYTES_MIN = ADD_REQUEST_HEADER_BYTES + ENTRY_HEADER_BYTES
_READ_RUN_MAX = 16  # entries that one task reads
_PARTS_PER_TURN = 256  # parts of a batch read, between two checkpoints
_NOTHING = memoryview(b"")
_BATCH_OVERHEAD = 36  # bytes of a batch answer besides the entries and their sizes

CODES: list[int] = [
    Status.IO_ERROR if STATUSES[status] is Status.UNKNOWN_LEDGER_STATE else STATUSES[status]
    for status in StoreStatus
]
assert list(StoreStatus) == list(range(len(CODES)))  # the hot loop looks up by number


class AddDone:
    """The callback of one add: it answers the add with the status that the store gives."""

    __slots__ = ("_entry_id", "_header", "_ledger_id", "_session", "_size")

    def __init__(
        self, session: Session, header: int, ledger_id: int, entry_id: int, size: int
    ) -> None:
        self._session = session
        self._header = header
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._size = size

    def __call__(self, status: StoreStatus) -> None:
        self._session.answered(
            ADD_ANSWER.pack(
                ADD_ANSWER_BYTES, self._header, CODES[status], self._ledger_id, self._entry_id
            ),
            self._size,
        )


class RunsDone:
    """The callback of runs of plain adds that arrived together: each add has its own answer."""

    __slots__ = ("_runs", "_session", "_size")

    def __init__(self, session: Session, runs: Sequence[SharedRun], size: int) -> None:
        self._session = session
        self._runs = runs
        self._size = size

    def __call__(self, status: StoreStatus) -> None:
        code, pack = CODES[status], ADD_ANSWER.pack
        answers = [
            pack(ADD_ANSWER_BYTES, ADD_HEADER, code, ledger_id, entry_id)
            for ledger_id, first, _, sizes, _ in self._runs
            for entry_id in range(first, first + len(sizes))
        ]
        self._session.answered(b"".join(answers), self._size)


class BlockDone:
    """The callback of a block, which has one answer."""

    __slots__ = ("_block", "_session", "_size")

    def __init__(self, session: Session, block: AddBlock, size: int) -> None:
        self._session = session
        self._block = block.ledger_id, block.first, block.last
        self._size = size

    def __call__(self, status: StoreStatus) -> None:
        self._session.answered(encode_block_answer(CODES[status], *self._block), self._size)


class V2Handler:
    """Handles the v2 requests of one connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store = session.store
        self._read_run: list[Read] = []  # consecutive entries of a ledger, for one task

    def handle(self, received: Received) -> bool:
        """Handle frames until none is left, or return False if the next one has to wait.

        Consecutive plain adds of one ledger are joined to a run, and the runs that follow each
        other are passed to the store in one call.  Any other frame first ends the runs before it,
        so the store sees all requests in the order in which they arrived.
        """
        session, unpack = self._session, _ADD.unpack_from
        size_max = ADD_REQUEST_HEADER_BYTES + session.limits.entry_bytes_max
        at, ledger_id, next_id, key = received.at, -1, -1, b""
        sizes: list[int] = []
        runs: list[SharedRun] = []  # they are consecutive in the span
        try:
            for frame in received.frames:
                size = len(frame)
                if not _FRAME_BYTES_MIN <= size <= size_max or _unpack_header(frame) != _PLAIN_ADD:
                    self._add_runs(runs, received.span[:at])
                    at += U32.size + size
                    runs, next_id = [], -1
                    self._handle_other(frame)
                    if not session.may_start():
                        return False
                    continue
                # This is done for each add: no object, call or copy more than needed.
                its_key, its_ledger, its_entry = unpack(frame)
                if its_entry != next_id or its_ledger != ledger_id or its_key != key:
                    key, ledger_id, sizes = its_key, its_ledger, []
                    runs.append(SharedRun(ledger_id, its_entry, key, sizes, at))
                sizes.append(size - ADD_REQUEST_HEADER_BYTES)
                next_id = its_entry + 1
                at += U32.size + size
        finally:
            # Also if a frame is malformed: the reads before it are answered.
            received.at = at
            self._start_read_run()
        self._add_runs(runs, received.span[:at])
        return True

    def _add_runs(self, runs: list[SharedRun], span: memoryview) -> None:
        """Pass the runs to the store; add one by one what it does not take as runs.

        The store writes record headers over the fields of the adds (`make_records`).  So nothing in
        the span of an accepted run is parsed again.
        """
        start = 0
        while start < len(runs):
            count = self._store.try_add_runs(runs, start, span, self._taken)
            if not count:
                # The first run needs a look at each add, for example a ledger that is not known.
                self._add_one_by_one(runs[start], span[runs[start].begin :])
            start += count or 1

    def _taken(self, runs: Sequence[SharedRun], size: int) -> RunsDone:
        self._session.accepted(size)
        return RunsDone(self._session, runs, size)

    def _add_one_by_one(self, run: SharedRun, piece: memoryview) -> None:
        session, ledger_id = self._session, run.ledger_id
        for entry_id, entry in enumerate(entries_of_run(piece, run.sizes), run.first):
            size = ADD_BYTES + len(entry)
            session.accepted(size)
            done = AddDone(session, ADD_HEADER, ledger_id, entry_id, size)
            self._store.add(ledger_id, entry_id, run.master_key, entry, recovery=False, done=done)

    def _handle_other(self, frame: memoryview) -> None:
        session = self._session
        if len(frame) >= U32.size and U32.unpack_from(frame)[0] == BLOCK_HEADER:
            self._add_block(decode_block(frame), len(frame))
            return
        request = bookie.decode_request(frame)
        match request:
            case Add():
                self._add(request)
            case Read():
                if request.master_key is not None:
                    self._fencing_read(request, request.master_key)
                elif not self._try_read(request):
                    self._read_in_run(request)
            case BatchRead():
                session.start(self._batch_read, request)
            case Auth():
                session.send(
                    [bookie.encode_auth(bookie.AUTH_DISABLED, version=request.header >> 24)]
                )
            case Unsupported(header, status):
                session.send([bookie.encode_add_answer(header, status, -1, -1)])
                raise MalformedError(f"packet {header:#010x} is not served")

    def _add(self, add: Add) -> None:
        """Add an entry that is not a plain add of this version, or answer BAD_REQUEST."""
        size = len(add.entry)
        # The answer repeats version and opcode, without flags; version 0 has only the opcode.
        header = add.header if add.header < 1 << 24 else add.header & 0xFFFF0000
        self._session.accepted(size)
        done = AddDone(self._session, header, add.ledger_id, add.entry_id, size)
        if not ENTRY_HEADER_BYTES <= size <= self._session.limits.entry_bytes_max:
            done(StoreStatus.BAD_REQUEST)
            return
        self._store.add(
            add.ledger_id,
            add.entry_id,
            add.master_key,
            add.entry,
            recovery=add.flags & Flag.RECOVERY_ADD != 0,
            done=done,
        )

    def _add_block(self, block: AddBlock, size: int) -> None:
        self._session.accepted(size)
        done = BlockDone(self._session, block, size)
        if max(block.sizes) > self._session.limits.entry_bytes_max:
            done(StoreStatus.BAD_REQUEST)
            return
        run = Run(block.ledger_id, block.first, block.adds, block.sizes)
        self._store.add_run(run, block.master_key, done)

    def _try_read(self, read: Read) -> bool:
        """Answer without a task if the entry is in memory; return False if it must wait."""
        if not self._session.takes_answers():
            return False
        try:
            entry = self._store.try_read(read.ledger_id, read.entry_id)
        except StoreError as error:
            self._send_entry(read, CODES[error.status])
            return True
        if entry is None:
            return False
        self._send_entry(read, Status.OK, entry)
        return True

    def _read_in_run(self, read: Read) -> None:
        """Join consecutive reads: a peer mostly asks for the next entries, too."""
        run = self._read_run
        if run and (
            read.ledger_id != run[-1].ledger_id
            or read.entry_id != run[-1].entry_id + 1
            or len(run) == _READ_RUN_MAX
        ):
            self._start_read_run()
        self._read_run.append(read)

    def _start_read_run(self) -> None:
        run, self._read_run = self._read_run, []
        if run:
            self._session.start(self._read_all, run)

    async def _read_all(self, run: list[Read]) -> None:
        for read in run:
            if not self._try_read(read):
                await self._read(read)

    def _fencing_read(self, read: Read, master_key: Buffer) -> None:
        """Fence, then read; mostly without a task, since a takeover sends many of these."""
        session = self._session

        def fenced(status: StoreStatus) -> None:
            session.end_call()
            if session.connection.closed:
                return  # It has no tasks any more.
            if status is not StoreStatus.OK:
                self._send_entry(read, CODES[status])
            # The read comes after the fence, so "no such entry" stays true forever.
            elif not self._try_read(read):
                session.start(self._read, read)

        session.begin_call()
        try:
            self._store.begin_fence(read.ledger_id, master_key, fenced)
        except StoreError as error:
            session.end_call()
            self._send_entry(read, CODES[error.status])

    async def _read(self, read: Read) -> None:
        try:
            async with self._session.reading():
                entry = await self._store.read(read.ledger_id, read.entry_id)
                self._send_entry(read, Status.OK, entry)
        except StoreError as error:
            self._send_entry(read, CODES[error.status])

    def _send_entry(self, read: Read, code: int, entry: memoryview = _NOTHING) -> None:
        header = bookie.encode_read_answer(
            read.header, code, read.ledger_id, read.entry_id, len(entry)
        )
        if len(entry) <= COPIED_MAX:
            self._session.send([header + entry])
            return
        window_ids: WindowIds = []
        buffers = self._session.buffers
        self._session.send([header, buffers.view_or_copy(entry, window_ids)])
        buffers.queued(window_ids)

    async def _batch_read(self, request: BatchRead) -> None:
        try:
            if request.master_key is not None:
                await self._store.fence(request.ledger_id, request.master_key)
            async with self._session.reading():
                window_ids: WindowIds = []
                parts = await self._collect(request, window_ids)
                size = sum(map(len, parts))
                header = bookie.encode_batch_answer_header(request, Status.OK, size)
                self._session.send([header, *parts])
                self._session.buffers.queued(window_ids)
        except StoreError as error:
            code = CODES[error.status]
            self._session.send([bookie.encode_batch_answer_header(request, code)])

    async def _collect(self, request: BatchRead, window_ids: WindowIds) -> list[Buffer]:
        """Return the entries that fit, each behind its size.  Raise only if there is none."""
        limits = self._session.limits
        room = limits.frame_bytes_max - _BATCH_OVERHEAD
        if request.bytes_max > 0:
            room = min(room, request.bytes_max - _BATCH_OVERHEAD)
        count = limits.batch_entries_max
        if request.entries_max > 0:
            count = min(count, request.entries_max)
        parts: list[Buffer] = []
        end = request.first_entry_id + count
        for entry_id in range(request.first_entry_id, end):
            if len(parts) % _PARTS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
            try:
                entry = self._store.try_read(request.ledger_id, entry_id)
                if entry is None:
                    entry = await self._read_next(request.ledger_id, entry_id, end, room)
            except StoreError:
                if not parts:
                    raise
                break
            room -= U32.size + len(entry)
            if parts and room < 0:
                break
            parts += [U32.pack(len(entry)), self._session.buffers.view_or_copy(entry, window_ids)]
        return parts

    async def _read_next(self, ledger_id: int, entry_id: int, end: int, room: int) -> memoryview:
        """Return an entry that is not in memory; those up to `end` are wanted next."""
        await self._store.fetch(ledger_id, entry_id, end - entry_id, room)
        return await self._store.read(ledger_id, entry_id)
