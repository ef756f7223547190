"""The fake bookie's side of protocol v3: the same answers as in v2, by other numbers.

An add with DEFERRED_SYNC is answered, and durable only after the next force: a bookie that dies
loses it (`FakeBookie.unsynced`).
"""

from typing import TYPE_CHECKING

from daybook.wire.messages.bookie import Add, Flag, Read, Status
from daybook.wire.messages.bookie_v3 import DEFERRED_SYNC, encode, response_to, to_v3
from daybook.wire.proto import bookkeeper_pb2 as pb

if TYPE_CHECKING:
    from tests.bookie.ledger.cluster import FakeBookie


def handle_v3(bookie: "FakeBookie", request: pb.Request) -> bytes | None:
    """Return the answer; None if there is none."""
    match request.header.operation:
        case pb.ADD_ENTRY:
            response = _add(bookie, request)
        case pb.READ_ENTRY:
            response = _read(bookie, request)
        case pb.FORCE_LEDGER:
            response = _force(bookie, request)
        case _:
            response = response_to(request, Status.BAD_REQUEST)
    return None if bookie.silent or bookie.deaf else encode(response)


def _add(bookie: "FakeBookie", request: pb.Request) -> pb.Response:
    add = request.addRequest
    flags = Flag.RECOVERY_ADD if add.flag == pb.AddRequest.RECOVERY_ADD else 0
    flags = flags if add.HasField("flag") else 0
    entry = memoryview(add.body)
    same = Add(0, flags, add.masterKey, add.ledgerId, add.entryId, entry)
    bookie.requests.append(same)
    status = Status.OK if bookie.deaf else bookie.add(same)
    if status is Status.OK and add.writeFlags & DEFERRED_SYNC:
        bookie.unsynced.add((add.ledgerId, add.entryId))
    response = response_to(request, status)
    response.addResponse.status = response.status
    response.addResponse.ledgerId, response.addResponse.entryId = add.ledgerId, add.entryId
    return response


def _read(bookie: "FakeBookie", request: pb.Request) -> pb.Response:
    read = request.readRequest
    fences = read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER
    flags = Flag.DO_FENCING | Flag.HIGH_PRIORITY if fences else 0
    key = read.masterKey if read.HasField("masterKey") else None
    same = Read(0, flags, read.ledgerId, read.entryId, key)
    bookie.requests.append(same)
    status, entry = bookie.read(same)
    response = response_to(request, status)
    response.readResponse.status = response.status
    response.readResponse.ledgerId, response.readResponse.entryId = read.ledgerId, read.entryId
    if status is Status.OK:
        response.readResponse.body = entry
    return response


def _force(bookie: "FakeBookie", request: pb.Request) -> pb.Response:
    ledger_id = request.forceLedgerRequest.ledgerId
    bookie.forces += 1
    status = bookie.force_status or Status.OK
    if status is Status.OK:
        bookie.unsynced -= {key for key in bookie.unsynced if key[0] == ledger_id}
    response = response_to(request, status)
    response.forceLedgerResponse.status = to_v3(status)
    response.forceLedgerResponse.ledgerId = ledger_id
    return response
