"""HTTP requests over the network seam.  h11 implements the protocol; this module moves bytes.

Admin requests are rare, so each has its own connection (`http_request`): a connection that is not
kept cannot be stale.  The requests of one staging attempt share one (`HttpConnection`).
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import h11
import trio

from daybook.clients.python.errors import (
    ConnectionLostError,
    RequestTimedOutError,
    TlsError,
    UnavailableError,
    WrongProtocolError,
)
from daybook.wire.errors import ConnectionLostError as StreamLostError
from daybook.wire.errors import NotTlsError, TlsRefusedError
from daybook.wire.transport import Buffer, Network, Stream

_BODY_BYTES_MAX = 64 << 20
_RECEIVE_BYTES = 1 << 16
_PARTS_AT_ONCE = 64  # The system takes 1,024 in one call.
_IDLE_TRUSTED_S = 3.0  # A broker closes a connection after 10 s.
_REFUSED = 400
_IS_IT_HTTP = (
    ": is that the HTTP port of a broker, and is it without TLS (http://) or with TLS (https://)?"
)
_HTTP = b"HTTP/"
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # how a server begins that speaks TLS


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


async def http_request(
    network: Network,
    host: str,
    port: int,
    method: str,
    target: str,
    body: bytes | None,
    *,
    timeout_s: float,
    authorization: str = "",
) -> HttpResponse:
    """Send a request over a connection of its own; see `HttpConnection.request`."""
    connection = HttpConnection(network, host, port, keeps=False)
    parts = None if body is None else [body]
    return await connection.request(
        method, target, parts, timeout_s=timeout_s, authorization=authorization
    )


@dataclass(slots=True)
class _Opened:
    """A stream to a server, with the state of HTTP on it."""

    stream: Stream
    http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    idle_since_s: float = 0.0
    answered: bool = False  # It has carried a whole request.
    ended: bool = False  # The server has taken only a part of a request.

    def may_be_used(self) -> bool:
        """Return False if the server has ended the connection, or may be about to."""
        if trio.current_time() - self.idle_since_s > _IDLE_TRUSTED_S:
            return False
        try:
            return self.stream.try_recv_into(memoryview(bytearray(1))) is None
        except (StreamLostError, trio.ClosedResourceError):
            return False

    def may_be_kept(self, response: HttpResponse) -> bool:
        """Return True if another request may follow this response.

        A server that refuses a request may end the connection without having read all of it.
        """
        both = (self.http.our_state, self.http.their_state)
        whole = both == (h11.DONE, h11.DONE) and not self.http.trailing_data[0]
        return whole and not self.ended and response.status < _REFUSED


class HttpConnection:
    """Requests to one server, one at a time, over a connection that is kept between them.

    A request is sent once, and never again.  If the connection ends before its answer has come, the
    request may have been carried out.  Servers close idle connections, so a request takes a new one
    if the present one was idle for `_IDLE_TRUSTED_S`, or if the server has sent something since.
    """

    def __init__(self, network: Network, host: str, port: int, *, keeps: bool = True) -> None:
        """Without `keeps`, each request has its own connection."""
        self._network = network
        self._host, self._port = host, port
        self._where = f"{host}:{port}"
        self._keeps = keeps
        self._idle: _Opened | None = None

    def close(self) -> None:
        """Close the connection; the next request opens another one.  Idempotent."""
        if self._idle is not None:
            self._idle.stream.close()
            self._idle = None

    async def request(
        self,
        method: str,
        target: str,
        body: Sequence[Buffer] | None,
        *,
        timeout_s: float,
        authorization: str = "",
    ) -> HttpResponse:
        """Send a request, return the response.  `authorization` is the value of that header.

        Raise UnavailableError or TlsError if the request was not sent, WrongProtocolError if it was
        a GET and the server does not speak HTTP, ConnectionLostError or RequestTimedOutError if it
        may have been carried out.
        """
        where = self._where
        opened = self._take_idle()
        with trio.move_on_after(timeout_s):
            if opened is None:
                opened = _Opened(await self._connect())
            try:
                head = self._head(method, target, body, authorization)
                response = await _exchange(opened, where, head, body or ())
                if self._keeps and opened.may_be_kept(response):
                    self._keep(opened)
                return response
            except WrongProtocolError as error:
                if method == "GET":
                    raise
                # A server of another protocol may have forwarded the request to a broker.
                raise ConnectionLostError(str(error)) from error
            except (StreamLostError, h11.RemoteProtocolError) as error:
                raise ConnectionLostError(f"{where}: {error}") from error
            except (h11.LocalProtocolError, UnicodeEncodeError) as error:
                # A redirect can name a target that cannot be written in HTTP.
                raise UnavailableError(f"{where}: {error}") from error
            finally:
                if opened is not self._idle:
                    opened.stream.close()
        if opened is None:
            raise UnavailableError(
                f"{where}: no connection within {timeout_s:.3g} s (is a firewall in between, or is"
                " the address wrong?)"
            )
        raise RequestTimedOutError(f"{where} did not answer in {timeout_s:.3g} s")

    def _take_idle(self) -> _Opened | None:
        """Return the connection that was kept, if a request may be sent over it."""
        if self._idle is not None and not self._idle.may_be_used():
            self.close()
        opened, self._idle = self._idle, None
        return opened

    def _keep(self, opened: _Opened) -> None:
        opened.http.start_next_cycle()
        opened.idle_since_s = trio.current_time()
        opened.answered = True
        self._idle = opened

    async def _connect(self) -> Stream:
        try:
            return await self._network.connect(self._host, self._port)
        except NotTlsError as error:
            raise TlsError(
                f"{self._where} does not speak TLS: connect to its TLS port, or begin the URL with"
                " http://"
            ) from error
        except TlsRefusedError as error:
            raise TlsError(str(error)) from error
        except StreamLostError as error:
            raise UnavailableError(str(error)) from error

    def _head(
        self, method: str, target: str, body: Sequence[Buffer] | None, authorization: str
    ) -> h11.Request:
        headers = [("Host", self._where), ("Accept", "application/json")]
        if not self._keeps:
            headers.append(("Connection", "close"))
        if authorization:
            headers.append(("Authorization", authorization))
        if body is not None:
            size = sum(map(len, body))
            headers += [("Content-Type", "application/json"), ("Content-Length", str(size))]
        return h11.Request(method=method, target=target, headers=headers)


async def _exchange(
    opened: _Opened, where: str, head: h11.Request, body: Sequence[Buffer]
) -> HttpResponse:
    stream, http = opened.stream, opened.http
    parts = deque([memoryview(http.send(head) or b"")])
    for part in body:
        http.send_with_data_passthrough(h11.Data(data=part))  # type: ignore[arg-type]
        if part:
            parts.append(memoryview(part))
    http.send(h11.EndOfMessage())
    try:
        await _send_all(stream, parts)
    except StreamLostError:
        # A server that has refused a request need not read all of it.
        opened.ended = True
        with suppress(StreamLostError, h11.RemoteProtocolError):
            return await _receive(opened, where)
        raise
    return await _receive(opened, where)


async def _send_all(stream: Stream, parts: deque[memoryview]) -> None:
    while parts:
        sent = stream.try_send(list(islice(parts, _PARTS_AT_ONCE)))
        if not sent:
            await stream.wait_writable()
        while sent:
            first = parts.popleft()
            if sent < len(first):
                parts.appendleft(first[sent:])
            sent -= min(sent, len(first))


async def _receive(opened: _Opened, where: str) -> HttpResponse:
    stream, http = opened.stream, opened.http
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    head = b""  # the first bytes that came
    status, headers, body = 0, dict[str, str](), bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            count = stream.try_recv_into(buffer)
            if count is None:
                await stream.wait_readable()
            elif count == 0 and not head:
                hint = "" if opened.answered else _IS_IT_HTTP
                raise StreamLostError(f"the server closed the connection before any answer{hint}")
            else:
                if len(head) < len(_HTTP):
                    head += bytes(buffer[: min(count, len(_HTTP))])
                    _check_http(where, head)
                http.receive_data(bytes(buffer[:count]))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _BODY_BYTES_MAX:
                raise h11.RemoteProtocolError("the answer of the server is too large")
        elif isinstance(event, h11.EndOfMessage):
            return HttpResponse(status, headers, bytes(body))
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the answer of the server is cut off")


def _check_http(where: str, head: bytes) -> None:
    if head[:2] in _TLS_RECORDS:
        raise TlsError(f"{where} is a port with TLS: begin the URL with https://")
    length = min(len(head), len(_HTTP))
    if head[:length] != _HTTP[:length]:
        raise WrongProtocolError(
            f"{where} is not the HTTP port of a broker: it answers in another protocol.  An admin"
            " URL names the HTTP port (8080), not the binary port (6650), a bookie or ZooKeeper"
        )
