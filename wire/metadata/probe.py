"""Find out why ZooKeeper gives no session: which server, if any, listens at its address.

The probe sends the command `srvr`, which has four bytes.  ZooKeeper answers it with text, even if
the command is not allowed.  A broker and a bookie take the bytes for the length of a frame and hang
up, and so does a port with TLS.  An HTTP server waits for the rest of the line.
"""

import trio

from daybook.wire.errors import ConnectionLostError, NobodyListensError
from daybook.wire.tcp import TcpNetwork
from daybook.wire.transport import Stream

_DEFAULT_PORT = 2181
_PATIENCE_S = 1.0
_ANSWER_BYTES = 512
_COMMAND = b"srvr"
_REST_OF_HTTP = b" / HTTP/1.0\r\n\r\n"


async def why_no_session(hosts: str) -> str:
    """Return a phrase about all servers in `host:port,host:port/chroot`, without a full stop."""
    found: list[str] = []
    for host, port in addresses(hosts):
        reason = await _what_is_at(host, port)
        if reason not in found:
            found.append(reason)
    return "; ".join(found)


def addresses(hosts: str) -> list[tuple[str, int]]:
    """Return host and port of each server; a chroot behind them is left out."""
    found: list[tuple[str, int]] = []
    for each in hosts.partition("/")[0].split(","):
        host, colon, port = each.strip().rpartition(":")
        if not colon or not port.isdigit():
            host, port = each.strip(), str(_DEFAULT_PORT)
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return found


async def _what_is_at(host: str, port: int) -> str:
    where = f"{host}:{port}"
    with trio.move_on_after(_PATIENCE_S):
        try:
            stream = await TcpNetwork().connect(host, port)
        except NobodyListensError:
            return f"nobody listens at {where}"
        except ConnectionLostError as error:
            return str(error)
        try:
            return _meaning(where, await _answer(stream))
        except ConnectionLostError:
            return _meaning(where, b"")
        finally:
            stream.close()
    return f"{where} does not take connections"


async def _answer(stream: Stream) -> bytes | None:
    """Return the first bytes that the server sends; None for silence, b"" if it hangs up."""
    for words in (_COMMAND, _REST_OF_HTTP):
        stream.try_send([words])
        with trio.move_on_after(_PATIENCE_S / 3):
            return await _receive(stream)
    return None


async def _receive(stream: Stream) -> bytes:
    buffer = bytearray(_ANSWER_BYTES)
    while True:
        await stream.wait_readable()
        count = stream.try_recv_into(memoryview(buffer))
        if count is not None:
            return bytes(buffer[:count])


def _meaning(where: str, answer: bytes | None) -> str:
    if answer is None:
        return f"{where} takes connections, and says nothing"
    if not answer:
        return (
            f"{where} hangs up: that is not ZooKeeper, perhaps the port of a broker or of a bookie,"
            " or it is ZooKeeper's port with TLS (zookeeper_tls)"
        )
    if answer.startswith((b"Zookeeper version", _COMMAND)):
        return f"ZooKeeper is at {where}, and gives no session"
    if answer.startswith(b"This ZooKeeper"):
        return f"ZooKeeper is at {where}, and does not serve: most of its ensemble is away"
    if answer.startswith(b"HTTP/"):
        return f"{where} is not ZooKeeper: it speaks HTTP"
    return f"{where} is not ZooKeeper: it answers in another protocol"
