"""HTTP/1 is read strictly: whatever two readers could understand differently is refused."""

from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire.http_framing import StrictConnection

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = {
    "no body": HEAD + b"\r\n",
    "a length": HEAD + b"Content-Length: 2\r\n\r\nab",
    "chunks": CHUNKED + b"1\r\na\r\n1;x=y\r\nb\r\n0\r\n\r\n",
    "one of each": HEAD
    + b"Authorization: Bearer a\r\nX-Pulsar-Auth-Method-Name: token\r\n"
    + b"X-Original-Principal: a\r\n\r\n",
    "version 1.0": b"GET /x HTTP/1.0\r\n\r\n",
    "line feeds in a body": HEAD + b"Content-Length: 4\r\n\r\n\n\n\n ",
}
BAD = {
    "a length and chunks": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks and a length": HEAD + b"Transfer-Encoding: chunked\r\ncontent-length: 3\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n",
    "the same length twice": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n",
    "a list of lengths": HEAD + b"Content-Length: 2, 2\r\n\r\n",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a bare line feed": b"POST /x HTTP/1.1\r\nHost: x\nContent-Length: 2\r\n\r\n",
    "an empty line without CR": HEAD + b"\n",
    "only bare line feeds": b"GET /x HTTP/1.1\nHost: x\n\n",
    "a continued line": HEAD + b"X: a\r\n b\r\n\r\n",
    "chunks in 1.0": b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a trailer": CHUNKED + b"0\r\nX: y\r\n\r\n",
    "a trailer with bare line feeds": CHUNKED + b"0\r\nX: y\n\nGET /y HTTP/1.1\r\n",
    "an end without CR": CHUNKED + b"0\r\n\nGET /y HTTP/1.1\r\n",
    "another coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n",
    "two tokens": HEAD + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "the same token twice": HEAD + b"Authorization: a\r\nX: y\r\nAUTHORIZATION: a\r\n\r\n",
    "two methods": HEAD + 2 * b"X-Pulsar-Auth-Method-Name: token\r\n" + b"\r\n",
    "two principals": HEAD + b"X-Original-Principal: a\r\nx-original-principal: b\r\n\r\n",
    "a space before the colon": HEAD + b"Content-Length : 2\r\n\r\n",
}


def read(data: bytes, sizes: int) -> list[Any]:
    """Return the events of one request that comes in pieces of that size."""
    connection, events = StrictConnection(16 << 10), list[Any]()
    for start in range(0, len(data), sizes):
        connection.receive_data(data[start : start + sizes])
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            events.append(event)
    return events


@pytest.mark.parametrize("sizes", [1, 7, 10_000])
@pytest.mark.parametrize("name", GOOD)
def test_a_clear_request_is_read(name: str, sizes: int) -> None:
    events = read(GOOD[name], sizes)
    assert isinstance(events[0], h11.Request)
    assert isinstance(events[-1], h11.EndOfMessage)


@pytest.mark.parametrize("sizes", [1, 7, 10_000])
@pytest.mark.parametrize("name", BAD)
def test_an_ambiguous_request_is_refused(name: str, sizes: int) -> None:
    with pytest.raises(h11.RemoteProtocolError) as error:
        read(BAD[name], sizes)
    assert error.value.error_status_hint in (400, 501)


def test_nothing_is_read_after_a_refusal() -> None:
    connection = StrictConnection(16 << 10)
    connection.receive_data(BAD["two lengths"] + GOOD["no body"])
    for _ in range(2):
        with pytest.raises(h11.RemoteProtocolError):
            connection.next_event()
    assert connection.their_state is h11.ERROR


def test_a_wish_for_another_protocol_is_ignored() -> None:
    (request, _) = read(HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", 10_000)
    assert [name for name, _ in request.headers] == [b"host", b"connection"]


_LINES = st.lists(
    st.sampled_from(
        [
            b"Content-Length: 3",
            b"content-length:3",
            b"Content-Length: 3, 3",
            b"Transfer-Encoding: chunked",
            b"Host: x",
            b"Authorization: Bearer a",
            b"authorization: Bearer b",
            b" folded",
            b"X: y",
        ]
    ),
    max_size=5,
)


@given(_LINES, st.lists(st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n"]), min_size=6, max_size=6))
def test_a_served_request_has_one_way_to_be_read(lines: list[bytes], ends: list[bytes]) -> None:
    head = b"GET /x HTTP/1.1" + ends[0] + b"".join(map(bytes.__add__, lines, ends[1:])) + b"\r\n"
    connection = StrictConnection(16 << 10)
    connection.receive_data(head)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return
    if isinstance(event, h11.Request):
        read_head = head[: len(head) - len(connection.trailing_data[0])]
        assert read_head.count(b"\n") == read_head.count(b"\r\n")
        assert b"\n " not in read_head
        lower = read_head.lower()
        assert lower.count(b"authorization") <= 1
        assert lower.count(b"content-length") + lower.count(b"transfer-encoding") <= 1


def test_a_piece_of_a_body_is_given_on_as_it_came() -> None:
    connection = StrictConnection(16 << 10)
    piece = bytes(60_000)
    connection.receive_data(HEAD + b"Content-Length: 70000\r\n\r\n" + bytes(3000))
    assert isinstance(connection.next_event(), h11.Request)
    assert connection.body_bytes_left == 70_000
    assert connection.next_event().data == bytes(3000)
    assert connection.next_event() is h11.NEED_DATA
    connection.receive_data(piece)
    assert connection.next_event().data is piece
    assert connection.body_bytes_left == 7000
    connection.receive_data(bytes(5000))
    connection.receive_data(bytes(2000) + GOOD["chunks"])
    assert len(connection.next_event().data) == 7000
    assert connection.body_bytes_left == 0
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    assert connection.trailing_data == (GOOD["chunks"], False)
    assert connection.next_event() is h11.PAUSED


def test_a_body_in_chunks_has_no_known_length() -> None:
    connection = StrictConnection(16 << 10)
    connection.receive_data(CHUNKED + b"5\r\nabc")
    assert isinstance(connection.next_event(), h11.Request)
    assert connection.next_event().data == b"abc"
    assert connection.body_bytes_left == 0
