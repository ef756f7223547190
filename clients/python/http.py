"""One HTTP request over the network seam.  h11 implements the protocol; this module moves bytes.

Each request has its own connection: admin requests are rare, and a connection that is not kept
cannot be stale.
"""

from dataclasses import dataclass

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
from daybook.wire.transport import Network, Stream

_BODY_BYTES_MAX = 64 << 20
_RECEIVE_BYTES = 1 << 16
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
    """Send a request, return the response.  `authorization` is the value of that header.

    Raise UnavailableError or TlsError if the request was not sent, WrongProtocolError if it was a
    GET and the server does not speak HTTP, ConnectionLostError or RequestTimedOutError if it may
    have been carried out.
    """
    where = f"{host}:{port}"
    stream: Stream | None = None
    with trio.move_on_after(timeout_s):
        try:
            stream = await network.connect(host, port)
        except NotTlsError as error:
            raise TlsError(
                f"{where} does not speak TLS: connect to its TLS port, or begin the URL with http://"
            ) from error
        except TlsRefusedError as error:
            raise TlsError(str(error)) from error
        except StreamLostError as error:
            raise UnavailableError(str(error)) from error
        try:
            return await _exchange(stream, where, method, target, body, authorization)
        except WrongProtocolError as error:
            if method == "GET":
                raise
            # A server that answers in another protocol may have forwarded the request to a broker.
            raise ConnectionLostError(str(error)) from error
        except (StreamLostError, h11.RemoteProtocolError) as error:
            raise ConnectionLostError(f"{where}: {error}") from error
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            # A redirect can name a target that cannot be written in HTTP.
            raise UnavailableError(f"{where}: {error}") from error
        finally:
            stream.close()
    if stream is None:
        raise UnavailableError(
            f"{where}: no connection within {timeout_s:.3g} s (is a firewall in between, or is the"
            " address wrong?)"
        )
    raise RequestTimedOutError(f"{where} did not answer in {timeout_s:.3g} s")


async def _exchange(
    stream: Stream, where: str, method: str, target: str, body: bytes | None, authorization: str
) -> HttpResponse:
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", where), ("Accept", "application/json"), ("Connection", "close")]
    if authorization:
        headers.append(("Authorization", authorization))
    if body is not None:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    request = h11.Request(method=method, target=target, headers=headers)
    data = connection.send(request) or b""
    if body is not None:
        data += connection.send(h11.Data(data=body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    await _send_all(stream, memoryview(data))
    return await _receive(stream, where, connection)


async def _send_all(stream: Stream, data: memoryview) -> None:
    while len(data):
        sent = stream.try_send([data])
        data = data[sent:]
        if not sent:
            await stream.wait_writable()


async def _receive(stream: Stream, where: str, connection: h11.Connection) -> HttpResponse:
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    head = b""  # the first bytes that came
    status, headers, body = 0, dict[str, str](), bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            count = stream.try_recv_into(buffer)
            if count is None:
                await stream.wait_readable()
            elif count == 0 and not head:
                raise StreamLostError(
                    "the server closed the connection before any answer: is that the HTTP port of a"
                    " broker, and is it without TLS (http://) or with TLS (https://)?"
                )
            else:
                if len(head) < len(_HTTP):
                    head += bytes(buffer[: min(count, len(_HTTP))])
                    _check_http(where, head)
                connection.receive_data(bytes(buffer[:count]))
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
