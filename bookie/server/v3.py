"""Protocol v3 on one connection: the requests of v2, and all requests that concern the LAC.

The handler answers BAD_REQUEST if a request lacks a field that its operation needs, or if the
operation is known and not served.  A frame that is not a request cannot be answered: it raises
WireError, and the server cuts the connection.

A read may wait for the LAC.  The answer is sent when the LAC exceeds `previousLAC`, when the ledger
is fenced, or at the timeout.  With ENTRY_PIGGYBACK the answer has the entry after `previousLAC`, or
only the LAC if that entry is on other bookies (striping).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import trio

from daybook.bookie.server.session import STATUSES, Received, Session
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.wire.clock import WallClock
from daybook.wire.entry import ENTRY_HEADER_BYTES, peek_ids
from daybook.wire.messages import bookie_v3
from daybook.wire.messages.bookie import AUTH_DISABLED, LAST_ENTRY, Status
from daybook.wire.messages.bookie_v3 import to_v3
from daybook.wire.messages.entry_list import encode_entry_list, group_entries
from daybook.wire.proto import bookkeeper_pb2 as pb

_Call: TypeAlias = Callable[[pb.Request], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DiskSpace:
    total_bytes: int
    free_bytes: int


ReadDiskSpace: TypeAlias = Callable[[], Awaitable[DiskSpace]]


class AddDone:
    """The callback of one add: it answers the add with the status that the store gives."""

    __slots__ = ("_request", "_session", "_size")

    def __init__(self, session: Session, request: pb.Request, size: int) -> None:
        self._session = session
        self._request = request
        self._size = size

    def __call__(self, status: StoreStatus) -> None:
        request = self._request
        response = bookie_v3.response_to(request, STATUSES[status])
        add = response.addResponse
        add.status = response.status
        add.ledgerId, add.entryId = request.addRequest.ledgerId, request.addRequest.entryId
        self._session.answered(bookie_v3.encode(response), self._size)


class V3Handler:
    """Handles the v3 requests of one connection."""

    def __init__(self, session: Session, clock: WallClock, disk_space: ReadDiskSpace) -> None:
        self._session = session
        self._clock = clock
        self._disk_space = disk_space
        self._store = session.store
        self._calls: dict[int, tuple[str, _Call]] = {
            pb.READ_ENTRY: ("readRequest", self._read),
            pb.WRITE_LAC: ("writeLacRequest", self._write_lac),
            pb.READ_LAC: ("readLacRequest", self._read_lac),
            pb.FORCE_LEDGER: ("forceLedgerRequest", self._force),
            pb.GET_BOOKIE_INFO: ("getBookieInfoRequest", self._bookie_info),
            pb.GET_LIST_OF_ENTRIES_OF_LEDGER: (
                "getListOfEntriesOfLedgerRequest",
                self._list_entries,
            ),
        }

    def handle(self, received: Received) -> bool:
        """Handle frames until none is left, or return False when the next one has to wait."""
        for frame in received.frames:
            request = bookie_v3.decode_request(frame)
            operation = request.header.operation
            if request.header.version != pb.VERSION_THREE:
                self._refuse(request, Status.BAD_VERSION)
            elif operation == pb.ADD_ENTRY and request.HasField("addRequest"):
                self._add(request, len(frame))
            elif operation == pb.AUTH:
                response = bookie_v3.response_to(request, Status.OK)
                response.authResponse.authPluginName = AUTH_DISABLED
                response.authResponse.payload = b""
                self._send(response)
            else:
                self._start(request)
                if not self._session.may_start():
                    return False
        return True

    def _start(self, request: pb.Request) -> None:
        """Start the call of an operation; refuse the request if its field for that is missing."""
        call = self._calls.get(request.header.operation)
        fields = {field.name for field, _ in request.ListFields()}
        if call is None or call[0] not in fields:
            self._refuse(request, Status.BAD_REQUEST)
        else:
            self._session.start(call[1], request)

    def _refuse(self, request: pb.Request, status: Status) -> None:
        self._send(bookie_v3.response_to(request, status))

    def _send(self, response: pb.Response) -> None:
        self._session.send([bookie_v3.encode(response)])

    # -- adds

    def _add(self, request: pb.Request, size: int) -> None:
        add = request.addRequest
        entry = memoryview(add.body)
        self._session.accepted(size)
        done = AddDone(self._session, request, size)
        # Apache's bookies ignore the ids of the request and store the entry under the ids inside
        # it.  If they differ, the writer is wrong, and the entry is refused.
        if not ENTRY_HEADER_BYTES <= len(entry) <= self._session.limits.entry_bytes_max or peek_ids(
            entry
        ) != (add.ledgerId, add.entryId):
            done(StoreStatus.BAD_REQUEST)
            return
        recovery = add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD
        self._store.add(
            add.ledgerId, add.entryId, add.masterKey, entry, recovery=recovery, done=done
        )

    # -- reads

    async def _read(self, request: pb.Request) -> None:
        read = request.readRequest
        response = bookie_v3.response_to(request, Status.OK)
        answer = response.readResponse
        answer.ledgerId, answer.entryId = read.ledgerId, read.entryId
        flag = read.flag if read.HasField("flag") else None
        try:
            if flag == pb.ReadRequest.FENCE_LEDGER:
                await self._fence(read)
            elif read.HasField("previousLAC"):
                await self._wait_lac(read, answer)
            elif flag == pb.ReadRequest.ENTRY_PIGGYBACK:
                raise StoreError(StoreStatus.BAD_REQUEST, "nothing to piggyback on")
            async with self._session.reading():
                if flag == pb.ReadRequest.ENTRY_PIGGYBACK:
                    await self._piggyback(read, answer)
                else:
                    answer.body = bytes(await self._store.read(read.ledgerId, read.entryId))
                if flag != pb.ReadRequest.FENCE_LEDGER:
                    answer.maxLAC = self._store.last_add_confirmed(read.ledgerId)
                answer.status = pb.EOK
                self._send(response)
        except StoreError as error:
            status = to_v3(STATUSES[error.status])
            response.status = answer.status = status
            self._send(response)

    async def _fence(self, read: pb.ReadRequest) -> None:
        """Fence the ledger before the read, so that "no such entry" stays true forever."""
        if not read.HasField("masterKey"):
            raise StoreError(StoreStatus.UNAUTHORIZED, "a fencing read without the master key")
        await self._store.fence(read.ledgerId, read.masterKey)

    async def _piggyback(self, read: pb.ReadRequest, answer: pb.ReadResponse) -> None:
        """Add the entry after `previousLAC` to the answer if it is confirmed and stored here."""
        wanted = read.previousLAC + 1
        if self._store.last_add_confirmed(read.ledgerId) < wanted:
            return
        try:
            answer.body = bytes(await self._store.read(read.ledgerId, wanted))
            answer.entryId = wanted
        except StoreError as error:
            if error.status is not StoreStatus.NO_ENTRY:
                raise

    async def _wait_lac(self, read: pb.ReadRequest, answer: pb.ReadResponse) -> None:
        """Wait until the LAC exceeds `previousLAC`, at most as long as the request says."""
        session, after = self._session, read.previousLAC
        if read.flag == pb.ReadRequest.ENTRY_PIGGYBACK and read.entryId != LAST_ENTRY:
            raise StoreError(StoreStatus.BAD_REQUEST, "the id of a piggybacked entry follows")
        if self._store.last_add_confirmed(read.ledgerId) > after or not read.HasField("timeOut"):
            return
        if session.polls >= session.limits.connection_polls_max:
            raise StoreError(StoreStatus.TOO_MANY, "too many requests wait for a LAC")
        woken = trio.Event()
        cancel = self._store.watch_lac(read.ledgerId, after, woken.set)
        session.polls += 1
        session.wake()  # A call that waits does not count against `connection_calls_max`.
        try:
            timeout_s = min(max(read.timeOut, 0) / 1000, session.limits.poll_timeout_s_max)
            with trio.move_on_after(timeout_s):
                await woken.wait()
        finally:
            session.polls -= 1
            cancel()
        if self._store.last_add_confirmed(read.ledgerId) > after:
            answer.lacUpdateTimestamp = self._clock.now_ms()

    # -- LACs and other requests

    async def _write_lac(self, request: pb.Request) -> None:
        write = request.writeLacRequest
        response = bookie_v3.response_to(request, Status.OK)
        try:
            await self._store.write_lac(write.ledgerId, write.masterKey, write.lac, write.body)
        except StoreError as error:
            response.status = to_v3(STATUSES[error.status])
        response.writeLacResponse.status = response.status
        response.writeLacResponse.ledgerId = write.ledgerId
        self._send(response)

    async def _read_lac(self, request: pb.Request) -> None:
        ledger_id = request.readLacRequest.ledgerId
        response = bookie_v3.response_to(request, Status.OK)
        answer = response.readLacResponse
        async with self._session.reading():
            try:
                body, last_entry = await self._store.read_lac(ledger_id)
                if body is not None:
                    answer.lacBody = body
                if last_entry is not None:
                    answer.lastEntryBody = bytes(last_entry)
            except StoreError as error:
                response.status = to_v3(STATUSES[error.status])
            answer.status, answer.ledgerId = response.status, ledger_id
            self._send(response)

    async def _force(self, request: pb.Request) -> None:
        ledger_id = request.forceLedgerRequest.ledgerId
        response = bookie_v3.response_to(request, Status.OK)
        try:
            await self._store.force(ledger_id)
        except StoreError as error:
            response.status = to_v3(STATUSES[error.status])
        response.forceLedgerResponse.status = response.status
        response.forceLedgerResponse.ledgerId = ledger_id
        self._send(response)

    async def _bookie_info(self, request: pb.Request) -> None:
        requested = request.getBookieInfoRequest.requested
        response = bookie_v3.response_to(request, Status.OK)
        answer = response.getBookieInfoResponse
        try:
            space = await self._disk_space()
        except OSError:
            response.status = pb.EIO
        else:
            if requested & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY:
                answer.totalDiskCapacity = space.total_bytes
            if requested & pb.GetBookieInfoRequest.FREE_DISK_SPACE:
                answer.freeDiskSpace = space.free_bytes
        answer.status = response.status
        self._send(response)

    async def _list_entries(self, request: pb.Request) -> None:
        ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId
        response = bookie_v3.response_to(request, Status.OK)
        answer = response.getListOfEntriesOfLedgerResponse
        async with self._session.reading():
            try:
                groups = group_entries(await self._store.entry_ids(ledger_id))
                answer.availabilityOfEntriesOfLedger = encode_entry_list(groups)
            except StoreError as error:
                response.status = to_v3(STATUSES[error.status])
            answer.status, answer.ledgerId = response.status, ledger_id
            self._send(response)
