"""Single requests to bookies, whose answers carry the id of their request.

    requests = RequestChannel(bookies, decode_v3)
    response = await requests.ask(bookie, partial(encode_read_lac, ledger_id=7), timeout_s=5)

These are all requests of protocol v3 (`wire.messages.bookie_v3`) and the batch reads of v2
(`bookie.ledger.batches`).  One connection to a bookie serves all ledgers.  It is made for the first
request, and closed after a while without any.  Requests may take as long as they like (long polls),
since an answer is matched by its id.  A request whose caller has gone costs nothing.

Single entries, which travel by the thousands, are the business of `bookie.ledger.bookie_client`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import trio

from daybook.bookie.ledger.bookie_client import BookieClient
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.messages.bookie_v3 import decode_response
from daybook.wire.proto import bookkeeper_pb2 as pb

Answer = TypeVar("Answer")
Encode: TypeAlias = Callable[[int], bytes]
"""Encodes the frame of a request with this id."""
Decode: TypeAlias = Callable[[memoryview], tuple[int, Answer]]
"""Returns the id of the request and the answer, or raises WireError."""

_LATE = "it did not answer in time"


def decode_v3(frame: memoryview) -> tuple[int, pb.Response]:
    response = decode_response(frame)
    return response.header.txnId, response


@dataclass(slots=True, eq=False)
class _Request(Generic[Answer]):
    answered: trio.Event = field(default_factory=trio.Event)
    answer: Answer | None = None
    reason: str = _LATE


class RequestChannel(Generic[Answer]):
    """The connections of one ledger client for one kind of requests."""

    def __init__(self, bookies: BookieClient, decode: Decode[Answer]) -> None:
        self._bookies = bookies
        self._decode = decode
        self._connections: dict[BookieId, _Connection[Answer]] = {}
        self._request_id = 0

    async def ask(self, bookie: BookieId, encode: Encode, timeout_s: float) -> Answer:
        """Return the answer, whatever its status; raise ConnectionLostError if there is none."""
        request_id = self._request_id = self._request_id + 1
        connection = self._connections.get(bookie)
        if connection is None:
            connection = self._connections[bookie] = _Connection(bookie, self._decode)
            self._bookies.nursery.start_soon(self._serve, connection)
        request = connection.send(request_id, encode(request_id))
        try:
            with trio.move_on_after(timeout_s) as scope:
                await request.answered.wait()
        finally:
            # Also if the caller is cancelled: nothing is kept for an answer that nobody awaits.
            connection.forget(request_id, request)
        if scope.cancelled_caught:
            # The bookie may be gone without a word: the next request makes a new connection.
            connection.close(_LATE)
        if request.answer is None:
            raise ConnectionLostError(f"bookie {bookie}: {request.reason}")
        return request.answer

    async def _serve(self, connection: "_Connection[Answer]") -> None:
        try:
            reason = await connection.run(self._bookies)
        except (ConnectionLostError, WireError) as error:
            reason = str(error) or type(error).__name__
        finally:
            # The next request makes a new connection; this one may have been replaced already.
            if self._connections.get(connection.bookie) is connection:
                del self._connections[connection.bookie]
        connection.fail(reason)


class _Connection(Generic[Answer]):
    """One connection, and the requests that wait for answers on it."""

    def __init__(self, bookie: BookieId, decode: Decode[Answer]) -> None:
        self.bookie = bookie
        self._decode = decode
        self._connection: FrameConnection | None = None
        self._requests: dict[int, _Request[Answer]] = {}
        self._unsent: dict[int, bytes] = {}  # sent once connected

    def send(self, request_id: int, frame: bytes) -> _Request[Answer]:
        request = self._requests[request_id] = _Request[Answer]()
        if self._connection is None:
            self._unsent[request_id] = frame
        else:
            self._connection.send([frame])
        return request

    def forget(self, request_id: int, request: _Request[Answer]) -> None:
        if self._requests.get(request_id) is request:
            del self._requests[request_id]
            self._unsent.pop(request_id, None)

    def close(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(reason)

    def fail(self, reason: str) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.reason = reason
            request.answered.set()

    async def run(self, bookies: BookieClient) -> str:
        """Connect, and receive until the connection ends or is idle; return the reason."""
        connection = await bookies.connect(self.bookie)
        try:
            self._connection = connection
            unsent, self._unsent = self._unsent, {}
            connection.send(list(unsent.values()))
            while True:
                with trio.move_on_after(bookies.limits.idle_close_s) as scope:
                    frames = await connection.receive()
                    if not frames:
                        return connection.close_reason
                    self._received(frames)
                if scope.cancelled_caught and not self._requests:
                    return "there were no requests"
        finally:
            connection.close("the ledger client closed it")

    def _received(self, frames: list[memoryview]) -> None:
        for frame in frames:
            request_id, answer = self._decode(frame)
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.answer = answer
                request.answered.set()
