"""Protocol v3 over TCP, with real files behind it."""

import trio

from daybook.bookie.server.session import ServerLimits
from daybook.wire import entry
from daybook.wire.digest import master_key
from daybook.wire.messages import bookie_v3
from daybook.wire.messages.bookie import Status
from daybook.wire.messages.bookie_v3 import from_v3, to_v3
from daybook.wire.messages.entry_list import decode_entry_list
from daybook.wire.proto import bookkeeper_pb2 as pb
from tests.bookie.server.conftest import Start
from tests.bookie.server.peer import DIGESTER, KEY, Peer, add_frame, make_entry

OTHER_KEY = master_key(b"other")


async def add(
    peer: Peer, ledger_id: int, entry_id: int, *, lac: int = -1, recovery: bool = False
) -> Status:
    data = make_entry(ledger_id, entry_id, lac=lac)
    request = bookie_v3.encode_add(entry_id, ledger_id, entry_id, KEY, data, recovery=recovery)
    response = await peer.ask_v3(request)
    answer = response.addResponse
    assert (answer.ledgerId, answer.entryId) == (ledger_id, entry_id)
    assert response.header.txnId == entry_id
    assert answer.status == response.status
    return from_v3(response.status)


async def read(peer: Peer, frame: bytes) -> pb.ReadResponse:
    response = await peer.ask_v3(frame)
    assert response.header.operation == pb.READ_ENTRY
    assert response.status == response.readResponse.status
    return response.readResponse


async def test_add_and_read_with_the_lac(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert await add(peer, 7, 0) is Status.OK
        assert await add(peer, 7, 1, lac=0) is Status.OK
        answer = await read(peer, bookie_v3.encode_read(5, 7, 0))
        assert (answer.status, answer.entryId, answer.maxLAC) == (pb.EOK, 0, 0)
        assert answer.body == make_entry(7, 0)
        answer = await read(peer, bookie_v3.encode_read(6, 7, -1))
        assert (answer.entryId, answer.body) == (-1, make_entry(7, 1, lac=0))
        assert (await read(peer, bookie_v3.encode_read(7, 7, 2))).status == pb.ENOENTRY
        assert (await read(peer, bookie_v3.encode_read(8, 8, 2))).status == pb.ENOLEDGER


async def test_fencing_and_recovery(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert await add(peer, 7, 0) is Status.OK
        answer = await read(peer, bookie_v3.encode_read(1, 7, -1, fence_key=OTHER_KEY))
        assert answer.status == pb.EUA
        answer = await read(peer, bookie_v3.encode_read(2, 7, -1, fence_key=KEY))
        assert (answer.status, answer.body) == (pb.EOK, make_entry(7, 0))
        assert not answer.HasField("maxLAC")
        assert await add(peer, 7, 1) is Status.FENCED
        assert await add(peer, 7, 1, recovery=True) is Status.OK
        keyless = pb.Request(
            header=pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=3),
            readRequest=pb.ReadRequest(ledgerId=9, entryId=0, flag=pb.ReadRequest.FENCE_LEDGER),
        )
        assert (await read(peer, bookie_v3.encode(keyless))).status == pb.EUA


async def test_an_entry_under_another_name_is_refused(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        for ledger_id, entry_id in ((7, 1), (8, 0)):
            request = bookie_v3.encode_add(1, ledger_id, entry_id, KEY, make_entry(7, 0))
            assert (await peer.ask_v3(request)).status == pb.EBADREQ
        assert (
            await peer.ask_v3(bookie_v3.encode_add(1, 7, 0, KEY, b"short"))
        ).status == pb.EBADREQ
        assert (await read(peer, bookie_v3.encode_read(2, 7, 0))).status == pb.ENOLEDGER


async def test_explicit_lacs(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert await add(peer, 7, 0) is Status.OK
        response = await peer.ask_v3(bookie_v3.encode_read_lac(1, 7))
        assert response.readLacResponse.lastEntryBody == make_entry(7, 0)
        assert not response.readLacResponse.HasField("lacBody")
        packet = entry.encode_lac(7, 0, DIGESTER)
        response = await peer.ask_v3(bookie_v3.encode_write_lac(2, 7, 0, KEY, packet))
        assert (response.status, response.writeLacResponse.ledgerId) == (pb.EOK, 7)
        response = await peer.ask_v3(bookie_v3.encode_read_lac(3, 7))
        assert response.readLacResponse.lacBody == packet
        assert (await read(peer, bookie_v3.encode_read(4, 7, 0))).maxLAC == 0
        response = await peer.ask_v3(bookie_v3.encode_write_lac(5, 7, 1, OTHER_KEY, packet))
        assert response.status == response.writeLacResponse.status == pb.EUA
        response = await peer.ask_v3(bookie_v3.encode_read_lac(6, 8))
        assert response.status == response.readLacResponse.status == pb.ENOLEDGER


async def test_waiting_for_the_lac_brings_the_entry_with_it(start: Start) -> None:
    async with start() as running, running.connect() as reader, running.connect() as writer:
        assert await add(writer, 7, 0) is Status.OK
        await reader.send(bookie_v3.encode_long_poll(1, 7, -1, 60_000))
        assert await add(writer, 7, 1, lac=0) is Status.OK
        response = await reader.response()
        answer = response.readResponse
        assert (answer.status, answer.entryId, answer.maxLAC) == (pb.EOK, 0, 0)
        assert answer.body == make_entry(7, 0)
        assert await add(writer, 7, 3, lac=1) is Status.OK
        answer = await read(reader, bookie_v3.encode_long_poll(2, 7, 0, 60_000))
        assert (answer.entryId, answer.body, answer.maxLAC) == (1, make_entry(7, 1, lac=0), 1)
        assert not answer.HasField("lacUpdateTimestamp"), "nothing had to be waited for"


async def test_an_entry_that_is_on_other_bookies_is_no_reason_to_withhold_the_lac(
    start: Start,
) -> None:
    async with start() as running, running.connect() as peer:
        assert await add(peer, 7, 5, lac=4) is Status.OK
        answer = await read(peer, bookie_v3.encode_long_poll(1, 7, 1, 60_000))
        assert (answer.status, answer.entryId, answer.maxLAC) == (pb.EOK, -1, 4)
        assert not answer.HasField("body")


async def test_waiting_ends_with_the_time_or_with_a_fence(start: Start) -> None:
    async with start() as running, running.connect() as peer, running.connect() as other:
        assert await add(peer, 7, 0) is Status.OK
        answer = await read(peer, bookie_v3.encode_long_poll(1, 7, -1, 1))
        assert (answer.status, answer.entryId, answer.maxLAC) == (pb.EOK, -1, -1)
        await peer.send(bookie_v3.encode_long_poll(2, 7, -1, 60_000))
        await other.read(7, -1, fence_key=KEY)
        assert (await peer.response()).readResponse.maxLAC == -1
        answer = await read(peer, bookie_v3.encode_long_poll(3, 9, -1, 1))
        assert answer.status == pb.ENOLEDGER


async def test_those_who_wait_do_not_keep_others_from_asking(start: Start) -> None:
    limits = ServerLimits(connection_calls_max=4, connection_polls_max=20)
    async with start(limits) as running, running.connect() as peer:
        assert await add(peer, 7, 0) is Status.OK
        await peer.send(*(bookie_v3.encode_long_poll(i, 7, -1, 60_000) for i in range(25)))
        refused = [await peer.response() for _ in range(5)]
        assert {response.status for response in refused} == {pb.ETOOMANYREQUESTS}
        assert await add(peer, 7, 1) is Status.OK


async def test_forcing_bookie_info_and_lists_of_entries(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        for entry_id in (0, 1, 3, 4, 6):
            assert await add(peer, 7, entry_id) is Status.OK
        response = await peer.ask_v3(bookie_v3.encode_force(1, 7))
        assert (response.status, response.forceLedgerResponse.ledgerId) == (pb.EOK, 7)
        response = await peer.ask_v3(bookie_v3.encode_bookie_info(2))
        info = response.getBookieInfoResponse
        assert (info.status, info.totalDiskCapacity, info.freeDiskSpace) == (pb.EOK, 1000, 400)
        response = await peer.ask_v3(bookie_v3.encode_list_entries(3, 7))
        data = response.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
        groups = decode_entry_list(data)
        assert [e for e in range(9) if any(e in g for g in groups)] == [0, 1, 3, 4, 6]
        response = await peer.ask_v3(bookie_v3.encode_list_entries(4, 8))
        assert response.status == pb.ENOLEDGER


async def test_what_is_not_served_is_a_bad_request(start: Start) -> None:
    def bare(operation: pb.OperationType, version: pb.ProtocolVersion) -> bytes:
        header = pb.BKPacketHeader(version=version, operation=operation, txnId=77)
        return bookie_v3.encode(pb.Request(header=header))

    async with start() as running, running.connect() as peer:
        for operation in (pb.START_TLS, pb.BATCH_READ_ENTRY, pb.RANGE_READ_ENTRY, pb.ADD_ENTRY):
            response = await peer.ask_v3(bare(operation, pb.VERSION_THREE))
            assert response.status == pb.EBADREQ
            assert (response.header.txnId, response.header.operation) == (77, operation)
        response = await peer.ask_v3(bare(pb.READ_LAC, pb.VERSION_TWO))
        assert response.status == pb.EBADVERSION
        response = await peer.ask_v3(bare(pb.AUTH, pb.VERSION_THREE))
        assert response.authResponse.authPluginName == "AuthDisabledPlugin"
        piggyback = pb.ReadRequest(ledgerId=7, entryId=3, flag=pb.ReadRequest.ENTRY_PIGGYBACK)
        header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=1)
        request = pb.Request(header=header, readRequest=piggyback)
        assert (await peer.ask_v3(bookie_v3.encode(request))).status == pb.EBADREQ


async def test_both_protocols_on_one_port(start: Start) -> None:
    async with start() as running, running.connect() as old, running.connect() as new:
        assert await old.add(7, 0) is Status.OK
        assert await add(new, 7, 1) is Status.OK
        assert (await old.read(7, 1)).entry == make_entry(7, 1)
        assert (await read(new, bookie_v3.encode_read(1, 7, 0))).body == make_entry(7, 0)


async def test_a_connection_keeps_to_the_protocol_of_its_first_frame(start: Start) -> None:
    async with start() as running, running.connect() as peer, running.connect() as other:
        assert await add(peer, 7, 0) is Status.OK
        await peer.send(add_frame(7, 1))
        assert await peer.is_cut()
        assert await other.add(7, 1) is Status.OK
        await other.send(bookie_v3.encode_read(1, 7, 0))
        assert await other.is_cut()


async def test_each_code_of_the_store_has_one_in_the_protocol() -> None:
    for status in Status:
        assert from_v3(to_v3(status)) is status
    await trio.lowlevel.checkpoint()
