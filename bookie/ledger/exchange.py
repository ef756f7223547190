"""Single requests to bookies in protocol v3: what v2 cannot say (`wire.messages.bookie_v3`).

    response = await exchange.ask(bookie, partial(encode_read_lac, ledger_id=7), timeout_s=5)

One connection to a bookie serves all ledgers; it is made when something is asked, and closed when
nothing has been for a while.  An answer finds its request by the txnId, so requests may take as
long as they like (long polls), and those that nobody waits for any more cost nothing.

Not here: entries on their way to bookies and back, by the thousands (`bookie.ledger.bookies`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from bookie.ledger.bookies import Bookies
from bookie.ledger.protocol.placement import BookieId
from wire.connection import FrameConnection
from wire.errors import ConnectionLostError, WireError
from wire.messages.bookie_v3 import decode_response
from wire.proto import bookkeeper_pb2 as pb

Encode: TypeAlias = Callable[[int], bytes]
"""The frame of a request, for its txnId."""

_LATE = "it did not answer in time"


@dataclass(slots=True, eq=False)
class _Request:
    answered: trio.Event = field(default_factory=trio.Event)
    response: pb.Response | None = None
    reason: str = _LATE


class Exchange:
    """The v3 connections of one ledger client."""

    def __init__(self, bookies: Bookies) -> None:
        self._bookies = bookies
        self._lines: dict[BookieId, _Line] = {}
        self._txn_id = 0

    async def ask(self, bookie: BookieId, encode: Encode, timeout_s: float) -> pb.Response:
        """The answer, whatever it says; ConnectionLostError if there is none."""
        txn_id = self._txn_id = self._txn_id + 1
        line = self._lines.get(bookie)
        if line is None:
            line = self._lines[bookie] = _Line(bookie)
            self._bookies.nursery.start_soon(self._serve, line)
        request = line.send(txn_id, encode(txn_id))
        try:
            with trio.move_on_after(timeout_s) as scope:
                await request.answered.wait()
        finally:
            line.forget(txn_id, request)
        if scope.cancelled_caught:
            line.close(_LATE)
        if request.response is None:
            raise ConnectionLostError(f"bookie {bookie}: {request.reason}")
        return request.response

    async def _serve(self, line: "_Line") -> None:
        try:
            reason = await line.run(self._bookies)
        except (ConnectionLostError, WireError) as error:
            reason = str(error) or type(error).__name__
        finally:
            # Whoever asks from now on has a new line.
            if self._lines.get(line.bookie) is line:
                del self._lines[line.bookie]
        line.fail(reason)


class _Line:
    """One connection, and who waits for answers on it."""

    def __init__(self, bookie: BookieId) -> None:
        self.bookie = bookie
        self._connection: FrameConnection | None = None
        self._requests: dict[int, _Request] = {}
        self._unsent: dict[int, bytes] = {}  # until there is a connection

    def send(self, txn_id: int, frame: bytes) -> _Request:
        request = self._requests[txn_id] = _Request()
        if self._connection is None:
            self._unsent[txn_id] = frame
        else:
            self._connection.send([frame])
        return request

    def forget(self, txn_id: int, request: _Request) -> None:
        if self._requests.get(txn_id) is request:
            del self._requests[txn_id]
            self._unsent.pop(txn_id, None)

    def close(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(reason)

    def fail(self, reason: str) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.reason = reason
            request.answered.set()

    async def run(self, bookies: Bookies) -> str:
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
            response = decode_response(frame)
            request = self._requests.pop(response.header.txnId, None)
            if request is not None:
                request.response = response
                request.answered.set()
