"""Lets peers into a bookie: carries out what `entrance` decides, with TLS, time limits and counts.

    connection --> Reception.let_in --> the frames of the first requests, for the handlers

A peer that has not entered is a newcomer of the server, which are limited in number, and of which
the oldest is cut for the next one.  It has `first_frame_timeout_s` in all, `handshake_s` of which
for TLS.  With authentication its frames may have `FRAME_BYTES_MAX` at most.  A peer that is refused
is named once a minute in the log, and counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import trio

from daybook.bookie.server.entrance import Action, Door, Entrance, Step
from daybook.bookie.server.session import Received, Session
from daybook.wire.errors import ConnectionLostError, TlsError, WireError
from daybook.wire.fields import U32
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.tls import HANDSHAKE_S, TlsServer
from daybook.wire.transport import Buffer, Stream

FRAME_BYTES_MAX = 1 << 16  # the largest frame of a peer that still has to authenticate itself
_PLAIN_BYTES_MAX = 1 << 10  # between START_TLS and the handshake
_TLS_RECORD = 0x16  # how a handshake begins; a frame of less than 16 MiB begins with 0
_NONCE_BITS = 128


class RefusedPeerError(WireError):
    """The peer may not enter; it has got its answer."""


@dataclass(slots=True)
class ReceptionCounts:
    tls_connections_made: int = 0
    handshakes_failed: int = 0
    peers_authenticated: int = 0
    peers_refused: int = 0
    peers_without_credentials: int = 0


class Reception:
    """Lets peers in at one port.  `tls` is there if the door has TLS."""

    def __init__(
        self,
        door: Door,
        *,
        rng: Random,
        log: Log,
        tls: TlsServer | None = None,
        handshake_s: float = HANDSHAKE_S,
        came_without: Callable[[str], None] = lambda _peer: None,
    ) -> None:
        """`came_without` is told each peer that enters without credentials in the mode permit.

        `rng` has to be one that nobody can predict.
        """
        assert not door.tls or tls is not None
        self.door = door
        self.counts = ReceptionCounts()
        self.unproven = 0  # connections that have entered without credentials, in the mode permit
        self._tls = tls
        self._rng = rng
        self._log = LogLimiter(log)
        self._handshake_s = handshake_s
        self._came_without = came_without

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest frame of a peer that may not enter yet; None: as later."""
        door = self.door
        return FRAME_BYTES_MAX if door.mode == "require" or door.require_tls else None

    async def let_in(self, session: Session) -> Received | None:
        """Return the frames behind the entrance, maybe none; None if the connection has ended.

        Raise RefusedPeerError, or another WireError for bytes that break the protocol.
        """
        timeout_s = session.limits.first_frame_timeout_s
        with trio.move_on_after(timeout_s):
            return await self._let_in(session)
        self._refuse(
            session, f"it has not authenticated itself, or asked for anything, in {timeout_s:g} s"
        )
        raise RefusedPeerError

    async def _let_in(self, session: Session) -> Received | None:
        connection = session.connection
        entrance = Entrance(self.door, self._new_nonce)
        while True:
            frames, span = await connection.receive_span()
            if not frames:
                return None
            at = 0
            for number, frame in enumerate(frames):
                step = entrance.step(frame)
                if step.action is Action.ENTER_HERE:
                    return self._entered(
                        session, entrance, Received(iter(frames[number:]), span, at)
                    )
                at += U32.size + len(frame)
                if self._carry_out(session, step):
                    rest = Received(iter(frames[number + 1 :]), span, at)
                    return self._entered(session, entrance, rest)
                if step.action is Action.START_TLS:
                    for early in frames[number + 1 :]:
                        entrance.take_before_handshake(early)
                    if not await self._start_tls(session, entrance):
                        return None
                    if any(self._carry_out(session, each) for each in entrance.taken()):
                        return self._entered(session, entrance, Received(iter(()), memoryview(b"")))
                    break

    def _carry_out(self, session: Session, step: Step) -> bool:
        """Send the answer of a step; return True if the peer has entered with it."""
        if step.answer:
            session.connection.send([step.answer])
        if step.why:
            self._refuse(session, step.why)
        if step.action is Action.LEAVE:
            raise RefusedPeerError(step.why)
        return step.action is Action.ENTER

    def _refuse(self, session: Session, why: str) -> None:
        connection = session.connection
        self.counts.peers_refused += 1
        host = connection.peer.rpartition(":")[0]
        self._log.warning("a peer is refused", kind=host, peer=connection.peer, why=why)

    def _entered(self, session: Session, entrance: Entrance, received: Received) -> Received:
        if entrance.identity:
            self.counts.peers_authenticated += 1
        elif self.door.mode == "permit":
            self.counts.peers_without_credentials += 1
            session.unproven = True
            self.unproven += 1
            peer = session.connection.peer
            host = peer.rpartition(":")[0]
            self._came_without(host)
            self._log.warning(
                "a peer has entered without credentials: it would be refused with"
                ' authentication = "require"',
                kind=("without", host),
                peer=peer,
            )
        return received

    def left(self, session: Session) -> None:
        """Note that a connection has ended."""
        if session.unproven:
            session.unproven = False
            self.unproven -= 1

    def _new_nonce(self) -> str:
        return f"{self._rng.getrandbits(_NONCE_BITS):032x}"

    # -- TLS

    async def _start_tls(self, session: Session, entrance: Entrance) -> bool:
        """Shake hands; return False if that has failed, and the connection is closed."""
        connection = session.connection
        tls = self._tls
        assert tls is not None

        async def shake(stream: Stream, begun: bytes) -> Stream:
            begun = await _take_plain(stream, begun, entrance)
            return await tls.accept(ReplayedStream(stream, begun), self._handshake_s)

        try:
            with trio.move_on_after(self._handshake_s) as scope:
                await connection.upgrade(shake)
            if scope.cancelled_caught:
                raise TlsError(f"the TLS handshake was not complete after {self._handshake_s:g} s")
        except ConnectionLostError as error:
            self.counts.handshakes_failed += 1
            self._log.info(
                "the TLS handshake of a client has failed",
                kind=str(error),
                peer=connection.peer,
                why=str(error),
            )
            connection.close(str(error))
            return False
        self.counts.tls_connections_made += 1
        entrance.started_tls(connection.certificate)
        if entrance.lets_in:  # The next frame may be a request of any size.
            connection.allow_large_frames()
        return True


async def _take_plain(stream: Stream, begun: bytes, entrance: Entrance) -> bytes:
    """Take the frames that come before the handshake; return the first bytes of the handshake."""
    scratch = memoryview(bytearray(_PLAIN_BYTES_MAX))
    while not begun or begun[0] != _TLS_RECORD:
        size = int.from_bytes(begun[: U32.size], "big") if len(begun) >= U32.size else 0
        if size > _PLAIN_BYTES_MAX:
            raise TlsError("the client does not begin the TLS handshake that it has asked for")
        end = U32.size + size
        if len(begun) >= U32.size and len(begun) >= end:
            try:
                entrance.take_before_handshake(memoryview(begun)[U32.size : end])
            except WireError as error:
                raise TlsError(str(error)) from None
            begun = begun[end:]
            continue
        count = stream.try_recv_into(scratch)
        if count is None:
            await stream.wait_readable()
        elif not count:
            raise TlsError("the client ended the connection before the TLS handshake")
        else:
            begun += bytes(scratch[:count])
    return begun


class ReplayedStream:
    """A stream of which some bytes were received already."""

    def __init__(self, stream: Stream, begun: bytes) -> None:
        self._stream = stream
        self._begun = memoryview(begun)

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def encrypted(self) -> bool:
        return self._stream.encrypted

    @property
    def certificate(self) -> None:
        return None

    def try_recv_into(self, buffer: memoryview) -> int | None:
        if not self._begun:
            return self._stream.try_recv_into(buffer)
        count = min(len(buffer), len(self._begun))
        buffer[:count] = self._begun[:count]
        self._begun = self._begun[count:]
        return count

    async def wait_readable(self, bytes_min: int = 1) -> None:
        if self._begun:
            await trio.lowlevel.checkpoint()
        else:
            await self._stream.wait_readable(bytes_min)

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        return self._stream.try_send(buffers)

    async def wait_writable(self) -> None:
        await self._stream.wait_writable()

    def close(self) -> None:
        self._stream.close()
