"""v2 and v3: the same requests in both, and the choice between them for a bookie."""

from collections.abc import AsyncGenerator, Sequence

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import InDoubtError, LedgerFencedError
from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.client import LedgerLimits, Quorums
from daybook.bookie.ledger.codecs import ProtocolVersion, ProtocolVersions, V3Codec, VersionChoice
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.wire.digest import Digester, master_key
from daybook.wire.entry import encode_header
from daybook.wire.messages import bookie_v3
from daybook.wire.messages.bookie import Add, Flag, Read, Status, encode_add_header
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import Buffer
from tests.bookie.ledger.cluster import Cluster, open_cluster

B1 = BookieId("b1:3181")
KEY = master_key(b"pw")
QUORUMS = Quorums(3, 3, 2)


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


def limits(protocol: VersionChoice) -> LedgerLimits:
    return LedgerLimits(bookies=BookieLimits(protocol=protocol))


def add_frame(entry_id: int, *, recovery: bool) -> list[Buffer]:
    payload: list[Buffer] = [b"one", memoryview(b" two")]
    header = encode_header(5, entry_id, -1, 7, Digester(), payload)
    head = encode_add_header(KEY, len(header) + 7, recovery=recovery, high_priority=recovery)
    return [head + header, *payload]


def whole(buffers: Sequence[Buffer]) -> pb.Request:
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return bookie_v3.decode_request(frame[4:])


def answer(request: pb.Request, status: Status = Status.OK, *, part: bool = True) -> memoryview:
    response = bookie_v3.response_to(request, status)
    if part:
        for name in ("add", "read", "forceLedger"):
            if request.HasField(f"{name}Request"):
                getattr(response, f"{name}Response").status = response.status
                getattr(response, f"{name}Response").ledgerId = 999
        response.addResponse.entryId = response.readResponse.entryId = 999
        for name in ("addResponse", "readResponse"):
            if not getattr(response, name).HasField("status"):
                response.ClearField(name)
    return memoryview(bookie_v3.encode(response))[4:]


@pytest.mark.parametrize("recovery", [False, True])
def test_an_add_is_what_the_encoder_of_messages_makes_of_it(recovery: bool) -> None:
    frame = add_frame(3, recovery=recovery)
    entry = b"".join(frame)[28:]
    expected = bookie_v3.encode_add(1, 5, 3, KEY, entry, recovery=recovery)
    assert whole(V3Codec().add(5, 3, frame)) == bookie_v3.decode_request(expected[4:])


def test_deferred_adds_say_so() -> None:
    plain, deferred = V3Codec(), V3Codec(deferred=True)
    frame = add_frame(3, recovery=False)
    assert not whole(plain.add(5, 3, frame)).addRequest.HasField("writeFlags")
    assert whole(deferred.add(5, 3, frame)).addRequest.writeFlags == 1


def test_what_an_answer_answers_is_told_by_its_transaction() -> None:
    dialect = V3Codec()
    adds = [whole(dialect.add(5, e, add_frame(e, recovery=False))) for e in (3, 4, 5, 7)]
    read = whole(dialect.read(6, 2, None))
    fence = whole(dialect.read(6, -1, KEY))
    forced, force = dialect.force(5)
    frames = [answer(request) for request in [*adds, fence, read, whole(force)]]
    answers = dialect.decode(frames)
    assert [(r.ledger_id, r.first, r.last, r.status) for r in answers.adds] == [
        (5, 3, 5, 0),
        (5, 7, 7, 0),
    ]
    assert [(r.ledger_id, r.entry_id) for r in answers.reads] == [(6, -1), (6, 2)]
    assert [(f.ledger_id, f.request_id) for f in answers.forces] == [(5, forced)]
    assert (fence.readRequest.flag, fence.readRequest.masterKey) == (1, KEY)
    again = dialect.decode(frames)
    assert [*again.adds, *again.reads, *again.forces] == [], "each is answered once"


def test_an_answer_without_the_part_that_matters_proves_nothing() -> None:
    dialect = V3Codec()
    requests = [
        whole(dialect.add(5, 3, add_frame(3, recovery=False))),
        whole(dialect.read(5, 3, None)),
        whole(dialect.force(5)[1]),
    ]
    answers = dialect.decode([answer(request, part=False) for request in requests])
    assert [run.status for run in answers.adds] == [Status.IO_ERROR]
    assert [read.status for read in answers.reads] == [Status.IO_ERROR]
    assert [force.status for force in answers.forces] == [Status.IO_ERROR]


def test_refusals_that_are_about_the_request_as_a_whole_are_heard() -> None:
    dialect = V3Codec()
    request = whole(dialect.read(5, 3, None))
    answers = dialect.decode([answer(request, Status.TOO_MANY_REQUESTS, part=False)])
    assert [read.status for read in answers.reads] == [Status.TOO_MANY_REQUESTS]


# -- the choice of the protocol


def test_v2_is_tried_first_and_v3_after_two_cuts_in_a_row() -> None:
    versions = ProtocolVersions("auto", retry_s=60)
    assert versions.for_bookie(B1, 0) is ProtocolVersion.V2
    versions.handle_cut(B1, ProtocolVersion.V2, 0)
    versions.answered(B1)
    versions.handle_cut(B1, ProtocolVersion.V2, 0)
    assert versions.for_bookie(B1, 0) is ProtocolVersion.V2
    versions.handle_cut(B1, ProtocolVersion.V2, 0)
    assert versions.for_bookie(B1, 59) is ProtocolVersion.V3
    assert versions.for_bookie(BookieId("b2:3181"), 59) is ProtocolVersion.V2
    assert versions.for_bookie(B1, 61) is ProtocolVersion.V2, "it may be another program by now"


def test_who_does_not_speak_v3_either_is_tried_in_v2_again() -> None:
    versions = ProtocolVersions("auto", retry_s=60)
    versions.refused(B1, ProtocolVersion.V2, 0)
    assert versions.for_bookie(B1, 1) is ProtocolVersion.V3
    versions.refused(B1, ProtocolVersion.V3, 1)
    assert versions.for_bookie(B1, 1) is ProtocolVersion.V2


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_a_choice_that_is_made_is_kept(protocol: VersionChoice) -> None:
    versions = ProtocolVersions(protocol, retry_s=60)
    for wire in ProtocolVersion:
        versions.refused(B1, wire, 0)
        assert versions.for_bookie(B1, 1) is ProtocolVersion(protocol)


@pytest.mark.parametrize("protocol", ["auto", "v2", "v3"])
async def test_a_ledger_is_written_recovered_and_read(
    three: Cluster, protocol: VersionChoice, autojump_clock: Clock
) -> None:
    for bookie in three.bookies:
        bookie.speaks = ("v3",) if protocol == "v3" else ("v2",)
    client = await three.client(limits(protocol))
    writer = await client.create(QUORUMS, password=b"pw")
    for number in range(50):
        writer.append([b"entry %d" % number])
    await writer.wait_confirmed(49)
    three.bookies[0].entries.pop((writer.ledger_id, 49))
    other = await three.client(limits(protocol), name="other")
    reader = await other.open(writer.ledger_id, recover=True, password=b"pw")
    entries = await reader.read(0, 49, max_bytes=1 << 20)
    assert [bytes(e.payload) for e in entries] == [b"entry %d" % n for n in range(50)]
    requests = [r for bookie in three.bookies for r in bookie.requests]
    reads = [r for r in requests if isinstance(r, Read) and r.flags & Flag.DO_FENCING]
    assert {r.master_key for r in reads} == {KEY}
    adds = [r for r in requests if isinstance(r, Add)]
    assert {r.master_key for r in adds} == {KEY}
    assert any(r.flags & Flag.RECOVERY_ADD for r in adds)
    assert (writer.ledger_id, 49) in three.bookies[0].entries
    entry_id = writer.append([b"too late"])
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(entry_id)
    assert isinstance(writer.error, LedgerFencedError)


async def test_bookies_that_know_v3_only_are_found_out(
    three: Cluster, autojump_clock: Clock
) -> None:
    for bookie in three.bookies:
        bookie.speaks = ("v3",)
    writer = await (await three.client()).create(QUORUMS)
    started = trio.current_time()
    await writer.wait_confirmed(writer.append([b"x"]))
    assert trio.current_time() - started < 5
    assert len(writer.metadata.fragments) == 1
    assert [entry.payload for entry in await writer.read(0, 0, max_bytes=10)] == [b"x"]


async def test_a_bookie_that_says_bad_version_is_spoken_to_in_the_other_one(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)
    await writer.wait_confirmed(writer.append([b"x"]))
    for bookie in three.bookies:
        bookie.add_status = Status.BAD_VERSION
    entry_id = writer.append([b"y"])
    await trio.sleep(0.1)
    for bookie in three.bookies:
        bookie.add_status = None
        bookie.speaks = ("v3",)
    await writer.wait_confirmed(entry_id)
