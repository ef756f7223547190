"""GetBookieInfo to one bookie, over TLS and with credentials if the command has them."""

from functools import partial

import trio

from daybook.bookie.ledger.security import BookieSecurity
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError
from daybook.wire.messages.bookie_v3 import decode_response, encode_bookie_info
from daybook.wire.outbox import Flusher
from daybook.wire.probe import NoAnswerError, ask_port
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.tcp import TcpNetwork

_FRAME_BYTES_MAX = 1 << 16


async def ask_info(
    security: BookieSecurity | None, name: str, host: str, port: int, timeout_s: float
) -> pb.GetBookieInfoResponse:
    """Return the answer.  Raise NoAnswerError, NotAskedError, or WireError for no valid one."""
    if security is None:
        ask = partial(ask_port, host, port, encode_bookie_info(1), timeout_s)
        frame = await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
        return decode_response(frame).getBookieInfoResponse
    try:
        with trio.fail_after(timeout_s):
            return await _ask_secured(security, name, host, port, timeout_s)
    except trio.TooSlowError:
        raise NoAnswerError(f"{host}:{port} did not answer in time") from None
    except ConnectionLostError as error:
        raise NoAnswerError(str(error)) from error


async def _ask_secured(
    security: BookieSecurity, name: str, host: str, port: int, timeout_s: float
) -> pb.GetBookieInfoResponse:
    """Ask over one connection.  Exceptions are not wrapped in a group."""
    error: Exception | None = None
    info: pb.GetBookieInfoResponse | None = None
    async with trio.open_nursery() as nursery:
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        try:
            info = await _ask_over(flusher, security, name, (host, port), timeout_s)
        except Exception as caught:
            error = caught
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    assert info is not None
    return info


async def _ask_over(
    flusher: Flusher,
    security: BookieSecurity,
    name: str,
    address: tuple[str, int],
    timeout_s: float,
) -> pb.GetBookieInfoResponse:
    host, port = address
    connection = FrameConnection(
        await TcpNetwork().connect(host, port),
        arenas=ArenaPool(),
        flusher=flusher,
        frame_bytes_max=_FRAME_BYTES_MAX,
        name=f"bookie {name}",
    )
    try:
        await security.secure(connection, name, host, timeout_s)
        connection.send([encode_bookie_info(1)])
        frames = await connection.receive()
        if not frames:
            raise NoAnswerError(f"{host}:{port} closed the connection without an answer")
        return decode_response(bytes(frames[0])).getBookieInfoResponse
    finally:
        connection.close("the question is over")
