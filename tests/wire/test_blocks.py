"""Blocks of adds on the wire."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire.digest import Digester, DigestType, master_key
from daybook.wire.entry import encode_header
from daybook.wire.errors import MalformedError, WireError
from daybook.wire.messages.blocks import (
    ADD_BYTES,
    BLOCK_HEADER,
    decode_block,
    decode_block_answer,
    encode_block_answer,
    encode_block_header,
)
from daybook.wire.messages.bookie import (
    FRAME_BYTES_MAX,
    AddRun,
    Flag,
    Status,
    decode_request,
    encode_add_header,
    encode_adds,
)

KEY = master_key(b"secret")
U32 = struct.Struct(">I")


def adds(*payloads: bytes, ledger_id: int = 7, first: int = 5) -> list[bytes]:
    lengths = [sum(map(len, payloads[: index + 1])) for index in range(len(payloads))]
    frames = encode_adds(
        KEY, ledger_id, first, first - 1, lengths, Digester(), [[data] for data in payloads]
    )
    return [b"".join(frame) for frame in frames]


def block(*frames: bytes) -> memoryview:
    """Return a block without its size, as it is received."""
    body = b"".join(frames)
    whole = encode_block_header(len(body)) + body
    assert U32.unpack_from(whole)[0] == len(whole) - U32.size
    return memoryview(bytearray(whole))[U32.size :]


@given(
    st.lists(st.lists(st.binary(max_size=40), max_size=3), min_size=1, max_size=20),
    st.integers(0, 2**62),
    st.integers(0, 2**40),
    st.integers(-1, 2**40),
    st.sampled_from(DigestType),
)
def test_many_adds_are_made_as_single_ones_are(
    payloads: list[list[bytes]], ledger_id: int, first: int, lac: int, digest_type: DigestType
) -> None:
    digester = Digester(digest_type, b"secret")
    lengths: list[int] = []
    expected: list[bytes] = []
    for payload in payloads:
        lengths.append((lengths[-1] if lengths else 0) + sum(map(len, payload)))
        entry_id = first + len(lengths) - 1
        header = encode_header(ledger_id, entry_id, lac, lengths[-1], digester, payload)
        data = header + b"".join(payload)
        expected.append(encode_add_header(KEY, len(data)) + data)
    frames = encode_adds(KEY, ledger_id, first, lac, lengths, digester, payloads)
    assert [b"".join(frame) for frame in frames] == expected
    decoded = decode_block(block(*expected))
    assert (decoded.ledger_id, decoded.first, decoded.master_key) == (ledger_id, first, KEY)
    assert decoded.last == first + len(payloads) - 1
    assert decoded.sizes == [len(data) - ADD_BYTES for data in expected]
    assert decoded.adds == b"".join(expected)


@given(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(0, 1000), st.sampled_from(Status))
def test_an_answer_comes_back(ledger_id: int, first: int, more: int, status: Status) -> None:
    answer = encode_block_answer(status, ledger_id, first, first + more)
    run = decode_block_answer(memoryview(answer)[U32.size :])
    assert run == AddRun(status, ledger_id, first, first + more)


def test_the_bytes_of_a_block() -> None:
    frames = adds(b"x", b"yy")
    assert bytes(block(*frames)) == bytes.fromhex("02400000") + b"".join(frames)
    answer = encode_block_answer(Status.OK, 7, 5, 6)
    ids = "".join(f"{number:016x}" for number in (7, 5, 6))
    assert answer.hex() == "00000020" + "02400000" + "00000000" + ids


def changed(frame: bytes, offset: int, value: bytes) -> bytes:
    return frame[:offset] + value + frame[offset + len(value) :]


FIRST, SECOND, THIRD = adds(b"first", b"second", b"third")
RECOVERY = U32.pack(U32.unpack_from(FIRST, 4)[0] | Flag.RECOVERY_ADD)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([], id="nothing"),
        pytest.param([FIRST, THIRD], id="a gap"),
        pytest.param([SECOND, FIRST], id="backwards"),
        pytest.param([FIRST, FIRST], id="twice"),
        pytest.param([FIRST, adds(b"x", ledger_id=8, first=6)[0]], id="another ledger"),
        pytest.param([FIRST, changed(SECOND, 8, b"another key")], id="another key"),
        pytest.param([FIRST, changed(SECOND, 4, RECOVERY)], id="a recovery add"),
        pytest.param([changed(FIRST, 4, RECOVERY)], id="recovery adds only"),
        pytest.param([FIRST, SECOND[:-1]], id="cut short"),
        pytest.param([FIRST, SECOND, b"\0" * 10], id="something behind"),
        pytest.param([FIRST, changed(SECOND, 0, U32.pack(10))], id="a size too small"),
        pytest.param([FIRST, changed(SECOND, 0, U32.pack(2**32 - 1))], id="a size too large"),
        pytest.param([FIRST[:30]], id="not even one"),
    ],
)
def test_what_does_not_belong_together_is_no_block(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode_block(block(*frames))


@given(st.binary(max_size=300))
def test_garbage_is_a_wire_error(body: bytes) -> None:
    frame = memoryview(U32.pack(BLOCK_HEADER) + body)
    assert len(frame) <= FRAME_BYTES_MAX
    for decode in (decode_block, decode_block_answer):
        try:
            decode(frame)
        except WireError:
            continue


def test_an_answer_that_runs_backwards_is_malformed() -> None:
    answer = encode_block_answer(Status.OK, 7, 6, 5)
    with pytest.raises(MalformedError):
        decode_block_answer(memoryview(answer)[U32.size :])


def test_a_block_is_nothing_that_other_decoders_know() -> None:
    request = decode_request(block(FIRST))
    assert getattr(request, "status", None) is Status.BAD_REQUEST
