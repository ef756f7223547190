"""Calls of one broker to the admin REST of another, for topics whose partitions they share.

Each call has a connection of its own.  A refusal by the other broker is raised as the `BrokerError`
of its status.  No answer, or one that cannot be parsed, raises `UnavailableError`; the call may
have been carried out all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode, urlsplit

import h11
import msgspec
import trio

from daybook.broker.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConflictError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.ownership.peer_network import PeerNetwork, address_of, has_tls
from daybook.broker.security.broker_token import BrokerToken
from daybook.broker.security.identity import CALLER, ORIGINAL_PRINCIPAL
from daybook.wire.errors import ConnectionLostError
from daybook.wire.transport import Stream

_TIMEOUT_S = 30.0
_ANSWER_BYTES_MAX = 64 << 20
_CHUNK_BYTES = 1 << 16
_BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ERRORS: dict[int, type[BrokerError]] = {
    kind.status: kind
    for kind in (
        NotFoundError,
        NotAllowedError,
        ConflictError,
        PreconditionError,
        AuthorizationError,
    )
}


class PeerCalls:
    """The admin REST of other brokers, over the network of this host."""

    def __init__(self, network: PeerNetwork, token: BrokerToken | None = None) -> None:
        self._network = network
        self._token = token or BrokerToken()

    def url_of(self, plain: str | None, tls: str | None) -> str | None:
        """Return the URL under which to call a broker whose REST has these; None if it has none."""
        return self._network.url_of(plain, tls)

    async def call(
        self,
        http_url: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        own: bool = False,
    ) -> object:
        """Return the JSON of the answer, None if it has none.

        The call is made for the sender of the HTTP request that this task works for, if there is
        one: it needs that role's right, too.  With `own` it is made for this broker.
        """
        address = address_of(http_url)
        if address is None:
            raise UnavailableError(
                f"the broker that has to answer has registered {http_url!r}, which is not an HTTP"
                " address"
            )
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            with trio.fail_after(_TIMEOUT_S):
                stream = await self._network.connect(http_url)
                try:
                    answer = await _exchange(
                        stream, address, method, target, body, self._headers(own=own)
                    )
                finally:
                    stream.close()
        except (ConnectionLostError, trio.TooSlowError, h11.RemoteProtocolError) as error:
            raise UnavailableError(f"the broker at {http_url} did not answer: {error}") from error
        return _result(answer, http_url)

    def _headers(self, *, own: bool) -> list[tuple[bytes, bytes]]:
        """Return the headers that say who asks, and for whom."""
        token, caller = self._token.read(), CALLER.get()
        if not token:
            return []
        headers = [(b"Authorization", b"Bearer " + token)]
        if caller is not None and not own:
            headers.append((ORIGINAL_PRINCIPAL.encode(), caller.role.encode()))
        return headers


@dataclass(slots=True)
class _Answer:
    status: int = 0
    location: str = ""
    content: bytearray = field(default_factory=bytearray)


async def _exchange(
    stream: Stream,
    address: tuple[str, int],
    method: str,
    target: str,
    body: object,
    credentials: list[tuple[bytes, bytes]],
) -> _Answer:
    connection = h11.Connection(h11.CLIENT)
    content = b"" if body is None else msgspec.json.encode(body)
    headers: list[tuple[bytes, bytes]] = [
        (b"Host", f"{address[0]}:{address[1]}".encode()),
        (b"Connection", b"close"),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(content)),
        *credentials,
    ]
    request = h11.Request(method=method, target=target, headers=headers)
    sent = connection.send(request) or b""
    sent += connection.send(h11.Data(content)) or b""
    sent += connection.send(h11.EndOfMessage()) or b""
    await _send_all(stream, memoryview(sent))
    answer = _Answer()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while True:
        match connection.next_event():
            case h11.Response(status_code=status, headers=received):
                answer.status = status
                answer.location = dict(received).get(b"location", b"").decode("latin-1")
            case h11.Data(data=data):
                answer.content += data
                if len(answer.content) > _ANSWER_BYTES_MAX:
                    raise ConnectionLostError(f"the answer has more than {_ANSWER_BYTES_MAX} bytes")
            case h11.EndOfMessage():
                return answer
            case h11.NEED_DATA:
                connection.receive_data(await _receive(stream, buffer))
            case event:
                raise ConnectionLostError(f"the answer is not valid HTTP: {event!r}")


async def _send_all(stream: Stream, data: memoryview) -> None:
    while True:
        data = data[stream.try_send([data]) :]
        if not data:
            return
        await stream.wait_writable()


async def _receive(stream: Stream, buffer: memoryview) -> bytes:
    """Return the bytes that have arrived; b"" at the end."""
    while (count := stream.try_recv_into(buffer)) is None:
        await stream.wait_readable()
    return bytes(buffer[:count])


class _Reason(msgspec.Struct):
    reason: str = ""


def _result(answer: _Answer, http_url: str) -> object:
    if 200 <= answer.status < 300:
        try:
            return msgspec.json.decode(answer.content) if answer.content else None
        except _BAD_JSON as error:
            raise UnavailableError(
                f"the broker at {http_url} sent an answer that is not JSON: {error}"
            ) from error
    try:
        reason = msgspec.json.decode(answer.content, type=_Reason).reason
    except _BAD_JSON:
        reason = ""
    message = reason or f"the broker at {http_url} answered with the HTTP status {answer.status}"
    if answer.status == NotOwnerError.status:
        raise _not_owner(message, answer.location)
    if answer.status == AuthenticationError.status:
        raise UnavailableError(
            f"the broker at {http_url} does not know who this broker is: check broker_token_file"
        )
    kind = PreconditionError if 400 <= answer.status < 500 else UnavailableError
    raise _ERRORS.get(answer.status, kind)(message)


def _not_owner(message: str, location: str) -> NotOwnerError:
    try:
        parts = urlsplit(location)
    except ValueError:
        raise UnavailableError(f"{message}; the redirect to {location!r} is not a URL") from None
    authoritative = parse_qs(parts.query).get("authoritative") == ["true"]
    url = f"{parts.scheme}://{parts.netloc}" if parts.netloc else None
    if url is not None and has_tls(url):
        return NotOwnerError(message, http_url_tls=url, authoritative=authoritative)
    return NotOwnerError(message, http_url=url, authoritative=authoritative)
