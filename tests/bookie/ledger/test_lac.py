"""LACs outside entries: which of them are trusted, which bookies are asked, lost requests.

The bookies here speak v3 by script; for our own see `tests/bookie/server`.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import LedgerError, ReadUnknownError
from daybook.bookie.ledger.context import LedgerContext, LedgerLimits
from daybook.bookie.ledger.lac import LacAnnouncer, lac_moved, read_lac, write_lac
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.connection import FrameConnection
from daybook.wire.digest import Digester, DigestType, master_key
from daybook.wire.entry import decode_lac, encode_header, encode_lac
from daybook.wire.errors import ConnectionLostError
from daybook.wire.messages.bookie import FRAME_BYTES_MAX, Status
from daybook.wire.messages.bookie_v3 import decode_request, encode, encode_read_lac, response_to
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import Stream
from tests.bookie.ledger.cluster import Cluster, open_cluster

LEDGER = 7
PASSWORD = b"pw"
DIGESTER = Digester(DigestType.HMAC, PASSWORD)
IDS = (BookieId("v1:3181"), BookieId("v2:3181"), BookieId("v3:3181"))
METADATA = LedgerMetadata(
    quorums=Quorums(3, 3, 2),
    fragments=(Fragment(0, IDS),),
    digest_type=DigestType.HMAC,
    password=PASSWORD,
)


def entry(entry_id: int, lac: int, *, ledger_id: int = LEDGER) -> bytes:
    payload = b"x" * 10
    length = 10 * (entry_id + 1)
    return encode_header(ledger_id, entry_id, lac, length, DIGESTER, [payload]) + payload


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@dataclass
class ScriptedBookie:
    """Answers READ_LAC and long polls with given LACs, and keeps the requests."""

    lac_body: bytes | None = None
    last_entry: bytes | None = None
    says_lac: int = -1
    status: Status = Status.OK
    silent: bool = False
    requests: list[pb.Request] = field(default_factory=list)
    connections: int = 0

    def answer(self, request: pb.Request) -> pb.Response | None:
        self.requests.append(request)
        if self.silent:
            return None
        response = response_to(request, self.status)
        if request.HasField("readLacRequest"):
            response.readLacResponse.status = response.status
            response.readLacResponse.ledgerId = LEDGER
            if self.lac_body is not None:
                response.readLacResponse.lacBody = self.lac_body
            if self.last_entry is not None:
                response.readLacResponse.lastEntryBody = self.last_entry
        elif request.HasField("readRequest"):
            response.readResponse.status = response.status
            response.readResponse.ledgerId, response.readResponse.entryId = LEDGER, -1
            response.readResponse.maxLAC = self.says_lac
        else:
            response.writeLacResponse.status = response.status
            response.writeLacResponse.ledgerId = LEDGER
        return response

    async def serve(self, cluster: Cluster, host: str) -> None:
        listener = await cluster.network.of(host).listen(host, 3181)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve_one, cluster, await listener.accept())

    async def _serve_one(self, cluster: Cluster, stream: Stream) -> None:
        self.connections += 1
        connection = FrameConnection(
            stream,
            arenas=cluster.arenas,
            flusher=cluster.flusher,
            frame_bytes_max=FRAME_BYTES_MAX,
        )
        while frames := await connection.receive():
            for frame in frames:
                response = self.answer(decode_request(frame))
                if response is not None:
                    connection.send([encode(response)])


@dataclass
class Three:
    context: LedgerContext
    bookies: list[ScriptedBookie]


@pytest.fixture
async def three() -> AsyncGenerator[Three]:
    async with open_cluster(bookies=1) as cluster:
        bookies = [ScriptedBookie() for _ in IDS]
        for bookie, bookie_id in zip(bookies, IDS, strict=True):
            cluster.nursery.start_soon(bookie.serve, cluster, bookie_id.partition(":")[0])
        client = await cluster.client(LedgerLimits())
        yield Three(client._context, bookies)


async def test_the_largest_lac_that_can_be_proven_is_the_one(
    three: Three, autojump_clock: Clock
) -> None:
    one, two, _ = three.bookies
    one.last_entry = entry(5, 3)
    assert (await read_lac(three.context, LEDGER, METADATA)).lac in (-1, 3)  # two answers suffice
    two.last_entry = entry(4, 2)
    two.lac_body = encode_lac(LEDGER, 5, DIGESTER)
    three.bookies[2].silent = True
    found = await read_lac(three.context, LEDGER, METADATA)
    assert (found.lac, found.entry_id, found.length) == (5, 4, 50)


@pytest.mark.parametrize(
    "lie",
    [
        damaged(encode_lac(LEDGER, 9, DIGESTER)),
        encode_lac(LEDGER + 1, 9, DIGESTER),
        encode_lac(LEDGER, 9, Digester(DigestType.HMAC, b"another password")),
        b"short",
    ],
    ids=["damaged", "of another ledger", "with another key", "too short"],
)
async def test_a_lac_without_a_proof_is_not_believed(
    three: Three, lie: bytes, autojump_clock: Clock
) -> None:
    one, two, last = three.bookies
    one.lac_body = lie
    two.last_entry = last.last_entry = entry(5, 4)
    assert (await read_lac(three.context, LEDGER, METADATA)).lac == 4
    two.silent = last.silent = True
    with pytest.raises(ReadUnknownError):
        await read_lac(three.context, LEDGER, METADATA)


async def test_what_lies_before_the_last_fragment_is_confirmed(
    three: Three, autojump_clock: Clock
) -> None:
    fragments = (Fragment(0, (IDS[2], IDS[1], IDS[0])), Fragment(10, IDS))
    metadata = LedgerMetadata(
        quorums=METADATA.quorums,
        fragments=fragments,
        digest_type=DigestType.HMAC,
        password=PASSWORD,
    )
    for bookie in three.bookies:
        bookie.status = Status.NO_LEDGER
    assert (await read_lac(three.context, LEDGER, metadata)).lac == 9


async def test_one_that_cannot_say_is_no_answer(three: Three, autojump_clock: Clock) -> None:
    for bookie in three.bookies:
        bookie.status = Status.UNKNOWN_LEDGER_STATE
    with pytest.raises(ReadUnknownError, match="UNKNOWN_LEDGER_STATE"):
        await read_lac(three.context, LEDGER, METADATA)


async def test_a_poll_is_a_hint_and_nothing_else(three: Three, autojump_clock: Clock) -> None:
    one = three.bookies[0]
    one.says_lac = 4
    assert await lac_moved(three.context, LEDGER, IDS[0], 3)
    assert not await lac_moved(three.context, LEDGER, IDS[0], 4)
    read = one.requests[0].readRequest
    assert (read.previousLAC, read.timeOut, read.entryId) == (3, 10_000, -1)
    one.status = Status.NO_LEDGER
    assert not await lac_moved(three.context, LEDGER, IDS[0], 3)
    assert not await lac_moved(three.context, LEDGER, BookieId("nowhere:1"), 3)


async def test_the_lac_is_told_to_those_that_hold_the_entry(
    three: Three, autojump_clock: Clock
) -> None:
    metadata = LedgerMetadata(
        quorums=Quorums(3, 2, 2),
        fragments=METADATA.fragments,
        digest_type=DigestType.HMAC,
        password=PASSWORD,
    )
    three.bookies[1].silent = True
    start = trio.current_time()
    # Its write set is the second and the third bookie.
    await write_lac(three.context, LEDGER, metadata, 4)
    assert trio.current_time() - start < 6
    assert [len(bookie.requests) for bookie in three.bookies] == [0, 1, 1]
    write = three.bookies[2].requests[0].writeLacRequest
    assert (write.ledgerId, write.lac, write.masterKey) == (LEDGER, 4, master_key(PASSWORD))
    assert decode_lac(memoryview(write.body), DIGESTER, LEDGER) == 4


@dataclass
class ScriptedWriter:
    ledger_id: int = LEDGER
    metadata: LedgerMetadata = METADATA
    last_add_confirmed: int = -1
    pending_entries: int = 0
    error: LedgerError | None = None


async def test_only_a_writer_that_pauses_tells_its_lac(three: Three, autojump_clock: Clock) -> None:
    writer = ScriptedWriter()
    announcer = LacAnnouncer(three.context, cast("LedgerWriter", writer))
    pause_s = three.context.limits.explicit_lac_s
    for entry_id in range(50):
        writer.last_add_confirmed = entry_id
        announcer.confirmed()
        await trio.sleep(pause_s / 3)
    assert not any(bookie.requests for bookie in three.bookies)
    await trio.sleep(3 * pause_s)
    assert [len(bookie.requests) for bookie in three.bookies] == [1, 1, 1]
    assert three.bookies[0].requests[0].writeLacRequest.lac == 49
    announcer.confirmed()  # nothing new is confirmed
    await trio.sleep(3 * pause_s)
    assert [len(bookie.requests) for bookie in three.bookies] == [1, 1, 1]
    announcer.stop()


# -- requests and their answers


async def test_requests_share_a_connection_which_is_closed_when_nobody_asks(
    three: Three, autojump_clock: Clock
) -> None:
    ask = partial(
        three.context.requests.ask, IDS[0], partial(encode_read_lac, ledger_id=LEDGER), 5.0
    )
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
    assert (three.bookies[0].connections, len(three.bookies[0].requests)) == (1, 50)
    assert three.context.requests._connections
    await trio.sleep(130)
    assert not three.context.requests._connections
    await ask()
    assert three.bookies[0].connections == 2


async def test_one_that_does_not_answer_is_given_up_and_asked_anew(
    three: Three, autojump_clock: Clock
) -> None:
    one, exchange = three.bookies[0], three.context.requests
    one.silent = True
    encode_request = partial(encode_read_lac, ledger_id=LEDGER)
    with pytest.raises(ConnectionLostError, match="did not answer in time"):
        await exchange.ask(IDS[0], encode_request, 5.0)
    one.silent = False
    await trio.sleep(0.1)
    assert (await exchange.ask(IDS[0], encode_request, 5.0)).status == pb.EOK
    assert one.connections == 2


async def test_a_cancelled_request_leaves_nothing_behind(
    three: Three, autojump_clock: Clock
) -> None:
    one, exchange = three.bookies[0], three.context.requests
    one.silent = True
    encode_request = partial(encode_read_lac, ledger_id=LEDGER)
    for _ in range(10):
        with trio.move_on_after(0.1):
            await exchange.ask(IDS[0], encode_request, 5.0)
    (line,) = exchange._connections.values()
    assert (line._requests, line._unsent) == ({}, {})
    one.silent = False
    assert (await exchange.ask(IDS[0], encode_request, 5.0)).header.txnId == 11


async def test_nobody_there_is_no_answer(three: Three, autojump_clock: Clock) -> None:
    encode_request = partial(encode_read_lac, ledger_id=LEDGER)
    with pytest.raises(ConnectionLostError, match="nowhere"):
        await three.context.requests.ask(BookieId("nowhere:1"), encode_request, 5.0)
    assert not three.context.requests._connections
