"""Strict HTTP/1: a server's `h11.Connection` that refuses requests which others read differently.

Where a proxy and a server do not agree on where a request ends, a client can hide a request in the
body of another one, past the rules of the proxy.  Where they do not agree on which of two headers
counts, a client can be one role for the proxy and another one for the server.  h11 accepts some
such requests, as the standard allows.  They are refused here with 400:

    a header that says who asks, more than once
    Content-Length beside Transfer-Encoding, more than once, or as a list
    Transfer-Encoding in HTTP/1.0
    lines that end without CR, or that continue the one before
    trailers behind a body in chunks

An answer that has begun before trailers arrive is sent to its end, and ends the connection.

The versions 1.0 and 1.1 alone are served.  A wish to go on with another protocol (`Upgrade`) is
ignored, as the standard allows, too.
"""

import re
from collections.abc import Callable
from typing import Any, NoReturn, Self

import h11
from h11._receivebuffer import ReceiveBuffer

_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_BODY_SIZE = b"content-length"
_DIGITS = re.compile(rb"[0-9]+[ \t]*")
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_CONTINUED = re.compile(rb"\n[ \t]")
_ANSWERING = (h11.SEND_BODY, h11.DONE, h11.MUST_CLOSE)
_VERSIONS = (b"1.0", b"1.1")
_ONLY_ONCE = (b"authorization", b"x-pulsar-auth-method-name", b"x-original-principal")


class _Received(ReceiveBuffer):
    """A receive buffer of h11 that gives a piece of a body on as it came, without copies.

    h11 copies a piece into its buffer, and twice out of it.  That cost brokers a good part of what
    it takes to receive a large body.
    """

    def __init__(self) -> None:
        super().__init__()
        self._piece = b""  # all that is here, unless it is empty

    def __iadd__(self, data: bytes | bytearray) -> Self:
        if not self and isinstance(data, bytes):
            self._piece = data
        else:
            self._keep()
            super().__iadd__(data)
        return self

    def __len__(self) -> int:
        return len(self._piece) or super().__len__()

    def __bytes__(self) -> bytes:
        return self._piece or super().__bytes__()

    def _keep(self) -> None:
        """Move the piece to where h11 looks for lines."""
        if self._piece:
            self._data += self._piece
            self._piece = b""

    def maybe_extract_at_most(self, count: int) -> Any:  # noqa: ANN401  h11 says a bytearray
        if self._piece and len(self._piece) <= count:
            piece, self._piece = self._piece, b""
            return piece
        self._keep()
        return super().maybe_extract_at_most(count)

    def maybe_extract_next_line(self) -> bytearray | None:
        self._keep()
        return super().maybe_extract_next_line()

    def maybe_extract_lines(self) -> list[bytearray] | None:
        self._keep()
        return super().maybe_extract_lines()

    def is_next_line_obviously_invalid_request_line(self) -> bool:
        self._keep()
        return super().is_next_line_obviously_invalid_request_line()


class StrictConnection(h11.Connection):
    """The server's end of one connection."""

    def __init__(
        self, incomplete_bytes_max: int, on_refused: Callable[[str], None] = lambda _why: None
    ) -> None:
        """`on_refused` is called with the reason when a request is refused."""
        super().__init__(h11.SERVER, max_incomplete_event_size=incomplete_bytes_max)
        self._receive_buffer = _Received()
        self._on_refused = on_refused
        self._chunked = False  # the body of the request comes in chunks
        self._left = 0  # bytes of the body that are still to come, if its length is known
        self.refused = False  # the task that reads answers with an error, and closes

    @property
    def waits_for_rest(self) -> bool:
        """Return True if a part of a request's head has come."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    @property
    def body_bytes_left(self) -> int:
        """The bytes of the present body that have not come; 0 if it comes in chunks."""
        return self._left if self.their_state is h11.SEND_BODY else 0

    @property
    def has_more(self) -> bool:
        """Return True if the client may still be sending the request that is being answered."""
        return self.their_state in (h11.SEND_BODY, h11.ERROR)

    def next_event(self) -> Any:  # noqa: ANN401  one of h11's events, or a sentinel
        """Return the next event.  Raise RemoteProtocolError for a request that is refused.

        When its answer has begun, no other answer can be sent.  Then nothing more is read, and the
        connection ends behind that answer.
        """
        try:
            return self._next_event()
        except h11.RemoteProtocolError:
            if self.our_state in _ANSWERING:
                return h11.NEED_DATA
            self.refused = True
            raise

    def _next_event(self) -> Any:  # noqa: ANN401
        heeds = self._chunked or self.their_state is h11.IDLE
        before = self.trailing_data[0] if heeds else b""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            # The last frame of its traceback refers to the error, so only the collector frees it.
            raise error.with_traceback(None) from None
        if isinstance(event, h11.Request):
            return self._checked(event, self._taken(before))
        if isinstance(event, h11.Data) and not self._chunked:
            self._left -= len(event.data)
        if self._chunked and isinstance(event, h11.EndOfMessage):
            self._chunked = False
            if list(event.headers) or not self._taken(before).endswith(b"\r\n"):
                self._refuse("a body in chunks has to end with an empty line, and without trailers")
        return event

    def _taken(self, before: bytes) -> bytes:
        """Return the bytes of which the latest event was made."""
        return before[: len(before) - len(self.trailing_data[0])]

    def _checked(self, request: h11.Request, head: bytes) -> h11.Request:
        names = [name for name, _ in request.headers]
        self._chunked = b"transfer-encoding" in names
        why = _why_not(request, head, chunked=self._chunked)
        if why:
            self._refuse(why)
        self._left = next((int(each) for name, each in request.headers if name == _BODY_SIZE), 0)
        if b"upgrade" not in names:
            return request
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        return h11.Request(
            method=request.method,
            target=request.target,
            headers=headers,
            http_version=request.http_version,
        )

    def _refuse(self, why: str) -> NoReturn:
        self._on_refused(why)
        self._process_error(self.their_role)  # as h11 does: nothing more is read
        raise h11.RemoteProtocolError(why, error_status_hint=400)


def _why_not(request: h11.Request, head: bytes, *, chunked: bool) -> str:
    """Return what is wrong with the head of a request; "" if nothing is."""
    lengths = _LENGTH.findall(head)
    if request.http_version not in _VERSIONS:
        return "the version of HTTP is not 1.0 or 1.1"
    if _BARE_LINE_FEED.search(head) or _CONTINUED.search(head):
        return "a line of the head does not end with CR and LF, or is continued"
    if len(lengths) > 1 or any(_DIGITS.fullmatch(each) is None for each in lengths):
        return "Content-Length has to be one number"
    names = [name for name, _ in request.headers]
    for name in _ONLY_ONCE:
        if names.count(name) > 1:
            return f"the header {name.decode()} is there more than once"
    if chunked and (lengths or request.http_version == b"1.0"):
        return "Transfer-Encoding stands beside Content-Length, or in HTTP/1.0"
    return ""
