"""The messages of a bookie, v2 and v3: known bytes, round trips, and arbitrary input."""

import itertools
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire import entry
from daybook.wire.digest import Digester, master_key
from daybook.wire.errors import WireError
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.bookie import (
    Add,
    AddRun,
    AuthAnswer,
    BatchRead,
    BatchReadAnswer,
    Read,
    ReadAnswer,
    Status,
)
from daybook.wire.messages.entry_list import decode_entry_list, encode_entry_list, group_entries
from daybook.wire.proto import bookkeeper_pb2 as pb

ROOT = Path(__file__).parents[2]
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
KEYS = st.binary(min_size=20, max_size=20)

ADD_FRAME = (
    "0000004102010000"
    "e793cbc379107648537183605cd361d3bb789a39"
    "00000000000000010000000000000000ffffffffffffffff0000000000000005"
    "e3a5f74d68656c6c6f"
)
ADD_ANSWER = "00000018020100000000000000000000000000010000000000000000"


def body(frame: bytes) -> memoryview:
    """Return the frame as a connection delivers it: without its size, which must be right."""
    (size,) = struct.unpack_from(">I", frame)
    assert size == len(frame) - 4
    return memoryview(frame)[4:]


def test_an_add_as_apache_sends_it() -> None:
    key, payload = master_key(b"secret"), b"hello"
    header = entry.encode_header(1, 0, -1, 5, Digester(), [payload])
    frame = bookie.encode_add_header(key, len(header) + len(payload)) + header + payload
    assert frame.hex() == ADD_FRAME
    request = bookie.decode_request(body(frame))
    assert request == Add(0x02010000, 0, key, 1, 0, memoryview(header + payload))


def test_the_answer_to_it() -> None:
    frame = bookie.encode_add_answer(bookie.ADD_HEADER, Status.OK, 1, 0)
    assert frame.hex() == ADD_ANSWER
    assert bookie.decode_answer(body(frame)) == AddRun(Status.OK, 1, 0, 0)
    assert frame == bookie.ADD_ANSWER.pack(bookie.ADD_ANSWER_BYTES, bookie.ADD_HEADER, 0, 1, 0)


@given(I64, I64, KEYS | st.none())
def test_a_read_comes_back(ledger_id: int, entry_id: int, key: bytes | None) -> None:
    request = bookie.decode_request(body(bookie.encode_read(ledger_id, entry_id, fence_key=key)))
    assert isinstance(request, Read)
    assert (request.ledger_id, request.entry_id, request.master_key) == (ledger_id, entry_id, key)
    assert bool(request.flags & bookie.Flag.DO_FENCING) == (key is not None)


def test_the_key_of_a_read_that_does_not_fence_is_passed_over() -> None:
    frame = bytes(body(bookie.encode_read(3, 4))) + bytes(20)
    assert bookie.decode_request(memoryview(frame)) == Read(0x02020000, 0, 3, 4, None)


@given(I64, I64, I64, st.integers(-5, 1 << 31 - 1), I64)
def test_a_batch_read_comes_back(
    ledger: int, first: int, ident: int, count: int, size: int
) -> None:
    frame = bookie.encode_batch_read(ledger, first, ident, entries_max=count, bytes_max=size)
    request = bookie.decode_request(body(frame))
    assert request == BatchRead(0x02070000, 0, ledger, first, ident, count, size, None)


def test_the_answers_to_reads() -> None:
    stored = bytes(40)
    head = bookie.encode_read_answer(0x02020001, Status.OK, 5, -1, len(stored))
    assert bookie.decode_answer(body(head + stored)) == ReadAnswer(0, 5, -1, memoryview(stored))
    head = bookie.encode_read_answer(0x02020000, Status.NO_ENTRY, 5, 7)
    assert bookie.decode_answer(body(head)) == ReadAnswer(Status.NO_ENTRY, 5, 7, memoryview(b""))
    request = BatchRead(0x02070001, 1, 5, 7, 99, 2, 1000, bytes(20))
    parts = b"\0\0\0\x01a\0\0\0\x02bc"
    head = bookie.encode_batch_answer_header(request, Status.OK, len(parts))
    answer = bookie.decode_answer(body(head + parts))
    assert answer == BatchReadAnswer(0, 5, 7, 99, [memoryview(b"a"), memoryview(b"bc")])


def test_auth_goes_both_ways() -> None:
    frame = bookie.encode_auth(bookie.AUTH_DISABLED, b"")
    assert bookie.decode_request(body(frame)) == bookie.Auth(0x02030000, "AuthDisabledPlugin", b"")
    assert bookie.decode_answer(body(frame)) == AuthAnswer("AuthDisabledPlugin", b"")


def test_versions_and_opcodes_that_nobody_serves() -> None:
    for header, status in [
        (0x03010000, Status.BAD_VERSION),
        (0x0A010000, Status.BAD_VERSION),
        (0x02040000, Status.BAD_REQUEST),
        (0x02FF0000, Status.BAD_REQUEST),
    ]:
        frame = memoryview(struct.pack(">I60x", header))
        assert bookie.decode_request(frame) == bookie.Unsupported(header, status)


def test_a_very_old_client_has_the_opcode_in_the_last_byte() -> None:
    frame = memoryview(struct.pack(">I20sqq16x", 1, bytes(20), 6, 7))
    request = bookie.decode_request(frame)
    assert isinstance(request, Add)
    assert (request.ledger_id, request.entry_id, request.flags) == (6, 7, 0)
    answer = bookie.encode_add_answer(request.header, 0, 6, 7)
    assert answer[4:8] == b"\0\0\0\1"


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 104]), st.integers(0, 2), st.integers(0, 4)), max_size=30
    )
)
def test_answers_to_adds_are_read_in_runs(answers: list[tuple[int, int, int]]) -> None:
    other = body(bookie.encode_read_answer(0x02020000, 0, 1, 1, 0) + b"")
    frames = [body(bookie.encode_add_answer(bookie.ADD_HEADER, *answer)) for answer in answers]
    runs, rest = bookie.decode_add_answers([*frames, other])
    assert rest == [other]
    assert answers == [
        (run.status, run.ledger_id, entry_id)
        for run in runs
        for entry_id in range(run.first, run.last + 1)
    ]
    for one, two in itertools.pairwise(runs):
        assert (one.status, one.ledger_id, one.last + 1) != (two.status, two.ledger_id, two.first)


@given(st.binary(max_size=120), st.sampled_from([0, 1, 2]), st.integers(0, 8))
def test_bad_bytes_raise_nothing_but_a_wire_error(data: bytes, version: int, opcode: int) -> None:
    shaped = struct.pack(">I", version << 24 | opcode << 16) + data
    for frame in (memoryview(data), memoryview(shaped)):
        for decode in (
            bookie.decode_request,
            bookie.decode_answer,
            bookie_v3.decode_request,
            bookie_v3.decode_response,
            lambda frame: bookie.decode_add_answers([frame]),
            lambda frame: decode_entry_list(bytes(frame)),
        ):
            try:
                decode(frame)
            except WireError:
                continue


def test_v3_requests_carry_what_they_are_given() -> None:
    key = master_key(b"")
    add = bookie_v3.decode_request(body(bookie_v3.encode_add(7, 1, 2, key, b"e", recovery=True)))
    assert (add.header.txnId, add.header.operation) == (7, pb.ADD_ENTRY)
    assert (add.addRequest.flag, add.addRequest.body) == (pb.AddRequest.RECOVERY_ADD, b"e")
    read = bookie_v3.decode_request(body(bookie_v3.encode_read(8, 1, -1, fence_key=key)))
    assert read.readRequest.flag == pb.ReadRequest.FENCE_LEDGER
    assert (read.readRequest.entryId, read.readRequest.masterKey) == (-1, key)
    poll = bookie_v3.decode_request(body(bookie_v3.encode_long_poll(9, 1, 41, 1000)))
    assert (poll.readRequest.previousLAC, poll.readRequest.timeOut) == (41, 1000)
    for frame in (
        bookie_v3.encode_write_lac(1, 2, 3, key, b"packet"),
        bookie_v3.encode_read_lac(1, 2),
        bookie_v3.encode_force(1, 2),
        bookie_v3.encode_bookie_info(1),
        bookie_v3.encode_list_entries(1, 2),
    ):
        assert bookie_v3.is_v3(body(frame))
        request = bookie_v3.decode_request(body(frame))
        response = bookie_v3.response_to(request, Status.FENCED)
        answer = bookie_v3.decode_response(body(bookie_v3.encode(response)))
        assert answer.header.operation == request.header.operation
        assert answer.status == pb.EFENCED


def test_v2_frames_do_not_look_like_v3() -> None:
    assert not bookie_v3.is_v3(body(bookie.encode_read(1, 1)))
    assert not bookie_v3.is_v3(memoryview(b""))


def test_each_status_has_both_codes() -> None:
    for status in Status:
        assert bookie_v3.from_v3(bookie_v3.to_v3(status)) is status
    assert bookie_v3.from_v3(999) is Status.IO_ERROR


@given(st.sets(st.integers(0, 200)))
def test_a_list_of_entries_comes_back(entry_ids: set[int]) -> None:
    groups = decode_entry_list(encode_entry_list(group_entries(sorted(entry_ids))))
    listed = {e for e in range(-3, 210) if any(e in group for group in groups)}
    assert listed == entry_ids


def test_striping_makes_one_group() -> None:
    (group,) = group_entries([e for e in range(300) if e % 3 != 2])
    assert (group.first, group.last, group.size, group.period) == (0, 297, 2, 3)


def test_the_compiled_definitions_are_those_of_the_proto_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    source = "daybook/wire/proto/bookkeeper.proto"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I."]
        + [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
        + [source],
        cwd=ROOT,
        check=True,
    )
    for suffix in ("py", "pyi"):
        name = f"daybook/wire/proto/bookkeeper_pb2.{suffix}"
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
