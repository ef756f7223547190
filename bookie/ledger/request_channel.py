"""Single requests to bookies, whose answers say by an id what they answer.

    exchange = Exchange(bookies, decode_v3)
    response = await exchange.ask(bookie, partial(encode_read_lac, ledger_id=7), timeout_s=5)

That is all of protocol v3 (`wire.messages.bookie_v3`: what v2 cannot say), and of v2 the batch
reads (`bookie.ledger.batches`).  One connection to a bookie serves all ledgers; it is made when
something is asked, and closed when nothing has been for a while.  An answer finds its request by
its id, so requests may take as long as they like (long polls), and those that nobody waits for any
more cost nothing.

Not here: single entries on their way to bookies and back, by the thousands
(`bookie.ledger.bookie_client`).
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
"""The frame of a request, for its id."""
Decode: TypeAlias = Callable[[memoryview], tuple[int, Answer]]
"""The id of the request that a frame answers, and the answer; or a WireError."""

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
    """The connections of one ledger client for requests of one kind."""

    def __init__(self, bookies: BookieClient, decode: Decode[Answer]) -> None:
        self._bookies = bookies
        self._decode = decode
        self._lines: dict[BookieId, _Line[Answer]] = {}
        self._request_id = 0

    async def ask(self, bookie: BookieId, encode: Encode, timeout_s: float) -> Answer:
        """The answer, whatever it says; ConnectionLostError if there is none."""
        request_id = self._request_id = self._request_id + 1
        line = self._lines.get(bookie)
        if line is None:
            line = self._lines[bookie] = _Line(bookie, self._decode)
            self._bookies.nursery.start_soon(self._serve, line)
        request = line.send(request_id, encode(request_id))
        try:
            with trio.move_on_after(timeout_s) as scope:
                await request.answered.wait()
        finally:
            line.forget(request_id, request)
        if scope.cancelled_caught:
            line.close(_LATE)
        if request.answer is None:
            raise ConnectionLostError(f"bookie {bookie}: {request.reason}")
        return request.answer

    async def _serve(self, line: "_Line[Answer]") -> None:
        try:
            reason = await line.run(self._bookies)
        except (ConnectionLostError, WireError) as error:
            reason = str(error) or type(error).__name__
        finally:
            # Whoever asks from now on has a new line.
            if self._lines.get(line.bookie) is line:
                del self._lines[line.bookie]
        line.fail(reason)


class _Line(Generic[Answer]):
    """One connection, and who waits for answers on it."""

    def __init__(self, bookie: BookieId, decode: Decode[Answer]) -> None:
        self.bookie = bookie
        self._decode = decode
        self._connection: FrameConnection | None = None
        self._requests: dict[int, _Request[Answer]] = {}
        self._unsent: dict[int, bytes] = {}  # until there is a connection

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
        """Connect and receive until the connection ends, or is idle; return why it did."""
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
                    return "nobody asked anything"
        finally:
            connection.close("the ledger client closed it")

    def _received(self, frames: list[memoryview]) -> None:
        for frame in frames:
            request_id, answer = self._decode(frame)
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.answer = answer
                request.answered.set()
