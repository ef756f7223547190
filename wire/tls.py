"""TLS over any `Stream`: `TlsStream` is a `Stream` itself, so frames and calls do not notice it.

    stream = await TlsServer(contexts).accept(stream)                  # the broker's end
    stream = await TlsClient(contexts).connect(stream, "broker.example")  # the client's end

Both return after the handshake, or raise `TlsError`, whose text is one sentence that says what is
wrong and what to do.  A `TlsError` ends one connection and no other, and the stream is closed.

Receiving: bytes that are decrypted and not yet received make `wait_readable` return at once.  At
most `_CHUNK_BYTES` of ciphertext are taken from the stream before they are decrypted.  A peer that
ends the connection without the goodbye of TLS (close_notify) is treated as one that ends a TCP
connection: the reader sees the end, and whoever reads frames notices that one is incomplete.

Sending: at most `_CHUNK_BYTES` of what the caller offers are encrypted ahead of what the stream
takes.  Encrypted bytes count as taken only in the measure in which they have left.  So a caller
that has been told that everything was taken need not care for what is inside.

Renegotiation is refused: it ends the connection.  TLS 1.3 resumes no session, so each handshake
proves again who the peer is.  A client of TLS 1.2 may resume a session for two hours, until the
certificates change.  Nothing here knows sockets: the streams below may be simulated ones.
"""

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import cast

import trio

from daybook.wire.errors import ConnectionLostError, NotTlsError, TlsError, TlsRefusedError
from daybook.wire.tls_files import ReloadedContext
from daybook.wire.transport import Buffer, PeerCertificate, Stream

HANDSHAKE_S = 10.0
_CHUNK_BYTES = 1 << 16  # four records
_CONTROL_BYTES_MAX = 1 << 14  # waiting answers to what a peer sends beside its data
_HANDSHAKE_BYTES_MAX = 1 << 18  # from the peer, with its chain of certificates
_PULLS = 16  # chunks without a byte of data, after which other tasks get their turn
_FIRST_BYTES = 16  # by which a protocol without TLS is known
_HANDSHAKE, _ALERT = 0x16, 0x15  # how a record begins
_NOTHING = memoryview(b"")
EXPIRED, NOT_YET_VALID, OTHER_HOST, OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's codes


class TlsStream:
    """One end of a TLS connection over `stream`, which it owns."""

    encrypted = True

    def __init__(
        self,
        stream: Stream,
        context: ssl.SSLContext,
        scratch: memoryview,
        *,
        server_hostname: str | None = None,
        answer_plain: Callable[[bytes], bytes] = lambda _first: b"",
    ) -> None:
        """A client gives the name of the server.  `scratch` may be shared: no await keeps it."""
        self.certificate: PeerCertificate | None = None
        self._stream = stream
        self._scratch = scratch
        self._is_server = server_hostname is None
        self._host = server_hostname or ""
        self._answer_plain = answer_plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._ssl = context.wrap_bio(
                self._incoming,
                self._outgoing,
                server_side=self._is_server,
                server_hostname=server_hostname,
            )
        except ValueError as error:
            raise TlsError(f"{server_hostname!r} is not a host name: {error}") from None
        self._received_bytes = 0  # in the handshake
        self._open = False  # the handshake is complete
        self._dry = False  # nothing whole is left inside, so it is the stream that tells
        self._ended = False
        self._error: ConnectionLostError | None = None
        self._cipher = _NOTHING  # encrypted, and not yet sent
        self._owed = 0  # bytes of the caller that are in there, and that it has to offer again
        self._taken = 0  # bytes of the caller that have left since it was told
        self._closed = False

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def version(self) -> str:
        """The version of TLS, for logs; "" before the handshake."""
        return self._ssl.version() or ""

    # -- the handshake

    async def handshake(
        self, timeout_s: float = HANDSHAKE_S, turn: trio.Lock | None = None
    ) -> None:
        """Agree with the peer on keys.  Raise TlsError, after which the stream is closed.

        Each step of the computation takes `turn`, so that of many handshakes at a time one computes
        before other tasks run.
        """
        try:
            with trio.move_on_after(timeout_s):
                await self._handshake(turn or trio.Lock())
                self._open = True
                self._read_certificate()
                return
            raise TlsError(f"the TLS handshake was not complete after {timeout_s:g} s")
        except trio.ClosedResourceError:
            raise ConnectionLostError("the connection was closed in the TLS handshake") from None
        finally:
            if not self._open or self._error is not None:
                self.close()

    async def _handshake(self, turn: trio.Lock) -> None:
        done = False
        while not done:
            async with turn:
                try:
                    self._ssl.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    self._send_control()
                    raise self._explained(error) from None
            self._push()
            while self._cipher:
                await self._stream.wait_writable()
                self._push()
            while not done and not self._pull():
                await self._stream.wait_readable()

    def _read_certificate(self) -> None:
        if not self._is_server:
            return
        der = self._ssl.getpeercert(binary_form=True)
        if der is None:
            return
        try:
            self.certificate = parse_certificate(der)
        except TlsError as error:
            self._error = error
            raise

    # -- receiving

    def try_recv_into(self, buffer: memoryview) -> int | None:
        self._check_open()
        self._dry = False
        filled, pulls = 0, 0
        while filled < len(buffer) and not self._ended and self._error is None:
            try:
                # With a buffer, `read` returns a number of bytes; its declaration leaves that out.
                room = len(buffer) - filled
                count = cast("int", self._ssl.read(room, buffer[filled:]))
            except ssl.SSLWantReadError:
                if filled or pulls == _PULLS:
                    # With bytes for the caller nothing is left inside but a part of a record, and
                    # the stream says itself if it has more.
                    self._dry = filled > 0
                    break
                pulls += 1
                if not self._pull():
                    self._dry = True
                    break
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                count = 0
            except ssl.SSLError as error:
                self._error = self._explained(error)
                break
            filled += count
            self._ended = not count
        self._send_control()
        if filled:
            return filled
        if self._error is not None:
            raise self._error
        return 0 if self._ended else None

    async def wait_readable(self, bytes_min: int = 1) -> None:
        del bytes_min
        self._check_open()
        if not self._dry or self._ended or self._error is not None:
            await trio.lowlevel.checkpoint()
            return
        await self._stream.wait_readable()
        self._dry = False

    def _pull(self) -> bool:
        """Take ciphertext from the stream; return False if none has come."""
        count = self._stream.try_recv_into(self._scratch)
        if count is None:
            return False
        if not count:
            self._incoming.write_eof()
            return True
        if not self._open:
            if not self._received_bytes:
                self._check_first(self._scratch[:count])
            self._received_bytes += count
            if self._received_bytes > _HANDSHAKE_BYTES_MAX:
                raise TlsError("the peer sends too much in the TLS handshake")
        self._incoming.write(self._scratch[:count])
        return True

    def _check_first(self, received: memoryview) -> None:
        """Raise NotTlsError if the first byte of the peer is none of TLS."""
        first = received[0]
        if first == _HANDSHAKE or (first == _ALERT and not self._is_server):
            return
        if self._is_server:
            with suppress(ConnectionLostError, trio.ClosedResourceError):
                self._stream.try_send([self._answer_plain(bytes(received[:_FIRST_BYTES]))])
            raise NotTlsError(
                "the client does not speak TLS on a port that demands it: connect with"
                " pulsar+ssl:// or https://, or to a port without TLS"
            )
        raise NotTlsError(
            f"{self.peer} does not speak TLS: connect to its TLS port, or without TLS (pulsar://,"
            " http://)"
        )

    # -- sending

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        if self._error is not None:
            raise self._error
        self._push()
        if not self._cipher:
            for chunk in _chunks(buffers, self._taken):
                self._encrypt(chunk)
                self._push()
                if self._cipher:
                    break
        taken, self._taken = self._taken, 0
        return taken

    async def wait_writable(self) -> None:
        self._check_open()
        await self._stream.wait_writable()

    def _encrypt(self, chunk: Buffer) -> None:
        self._owed = len(chunk)
        view = memoryview(chunk)
        try:
            while view:
                view = view[self._ssl.write(view) :]
        except ssl.SSLError as error:
            self._error = self._explained(error)
            raise self._error from None

    def _push(self) -> None:
        """Give the stream what is encrypted, as far as it takes it."""
        while self._cipher or self._outgoing.pending:
            if not self._cipher:
                self._cipher = memoryview(self._outgoing.read())
            size = len(self._cipher)
            sent = self._stream.try_send([self._cipher])
            # The last byte of a chunk never counts as taken while a part of the chunk is here: the
            # caller has to come back for it.
            taken = self._owed * sent // size
            self._taken += taken
            self._owed -= taken
            self._cipher = self._cipher[sent:] if sent < size else _NOTHING
            if sent < size:
                return

    def _send_control(self) -> None:
        """Send what answers the peer beside data: alerts, and new keys."""
        if not self._outgoing.pending:
            return
        if self._open and self._ssl.version() == "TLSv1.2" and self._error is None:
            self._error = TlsError("the peer asks for a renegotiation of TLS, which is refused")
        elif self._outgoing.pending > _CONTROL_BYTES_MAX and self._error is None:
            self._error = TlsError("the peer asks for answers of TLS, and does not read them")
        if not self._cipher:
            with suppress(ConnectionLostError, trio.ClosedResourceError):
                self._push()

    # -- ending

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._open and self._error is None:
            with suppress(ssl.SSLError):
                self._ssl.unwrap()  # queues the goodbye of TLS
        with suppress(ConnectionLostError, trio.ClosedResourceError):
            self._push()
        self._stream.close()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        assert self._open

    def _explained(self, error: ssl.SSLError) -> TlsError:
        return explain(error, host=self._host or None, peer=self.peer, in_handshake=not self._open)


def _chunks(buffers: Sequence[Buffer], skip: int) -> Iterator[Buffer]:
    """Join buffers into chunks, without the first `skip` bytes; a large one is not copied."""
    pieces: list[Buffer] = []
    room = _CHUNK_BYTES
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
            continue
        view = memoryview(buffer)[skip:]
        skip = 0
        while view:
            piece, view = view[:room], view[room:]
            pieces.append(piece)
            room -= len(piece)
            if not room:
                yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces, room = [], _CHUNK_BYTES
    if pieces:
        yield pieces[0] if len(pieces) == 1 else b"".join(pieces)


def parse_certificate(der: bytes) -> PeerCertificate:
    """Return the certificate of a client that the handshake has verified.  Raise TlsError."""
    from cryptography import x509  # slow to import, and needed for certificates alone
    from cryptography.x509.oid import NameOID

    try:
        subject = x509.load_der_x509_certificate(der).subject
        names = [str(name.value) for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        text = subject.rfc4514_string()
    except ValueError as error:
        raise TlsRefusedError(f"the certificate of the client cannot be parsed: {error}") from None
    return PeerCertificate(names[0] if len(names) == 1 else "", text, der)


def explain(
    error: ssl.SSLError, *, host: str | None, peer: str, in_handshake: bool = True
) -> TlsError:
    """Return the error as a sentence.  `host` is the server as a client named it, else None."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refused_certificate(error, host)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) and in_handshake:
        if host is None:
            return TlsError("the client ended the connection in the TLS handshake")
        return TlsError(
            f"{peer} ended the connection in the TLS handshake: it may not speak TLS on this port"
            " (pulsar:// and http:// are without TLS), or demand a certificate of the client"
        )
    reason = error.reason or ""
    other = "client" if host is None else "server"
    known = _REASONS_AT_FIRST | _REASONS if in_handshake else _REASONS
    for key, text in known.items():
        if key in reason:
            return TlsRefusedError(text.format(other=other))
    what = reason.replace("_", " ").lower() or str(error)
    return TlsError(f"the {other} breaks the protocol of TLS: {what}")


_REASONS_AT_FIRST = {  # later, such bytes are no records of TLS, like any others
    "HTTP_REQUEST": "the {other} speaks HTTP without TLS on a port that demands it: use https://",
    "WRONG_VERSION_NUMBER": "the {other} does not speak TLS",
}
_REASONS = {
    "CERTIFICATE_REQUIRED": "the {other} demands a certificate of the client, and none was given",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the {other} has shown no certificate,"
    " and one is required",
    "ALERT_UNKNOWN_CA": "the {other} does not trust the authority that has signed our certificate",
    "ALERT_BAD_CERTIFICATE": "the {other} refuses our certificate",
    "ALERT_CERTIFICATE_EXPIRED": "the {other} refuses our certificate, because it has expired",
    "ALERT_CERTIFICATE_UNKNOWN": "the {other} refuses our certificate",
    "ALERT_HANDSHAKE_FAILURE": "the {other} ends the TLS handshake: it may demand a certificate,"
    " or have no cipher in common with us",
    "UNSUPPORTED_PROTOCOL": "the {other} offers only versions of TLS before 1.2",
    "ALERT_PROTOCOL_VERSION": "the {other} refuses our version of TLS",
    "NO_SHARED_CIPHER": "the {other} offers no cipher of TLS that is allowed here",
}


def _refused_certificate(error: ssl.SSLCertVerificationError, host: str | None) -> TlsError:
    why = error.verify_message
    if host is None:
        return TlsRefusedError(f"the certificate of the client is refused: {why}")
    match error.verify_code:
        case code if code in (OTHER_HOST, OTHER_ADDRESS):
            return TlsRefusedError(
                f"the certificate of the server is not made out to {host}: connect with a name that"
                " is in it, or turn the check off (verify_host)"
            )
        case code if code == EXPIRED:
            return TlsRefusedError(
                f"the certificate of {host} has expired: its operator has to renew it"
            )
        case code if code == NOT_YET_VALID:
            return TlsRefusedError(f"the certificate of {host} is not valid yet: check the clocks")
        case _:
            return TlsRefusedError(
                f"the certificate of {host} is signed by nobody whom this client trusts ({why}):"
                " name the file of its authority as `trusted`"
            )


class TlsServer:
    """The TLS of the ports of one server."""

    def __init__(self, contexts: ReloadedContext) -> None:
        self.contexts = contexts
        self.turn = trio.Lock()
        self._scratch = memoryview(bytearray(_CHUNK_BYTES))

    async def accept(
        self,
        stream: Stream,
        timeout_s: float = HANDSHAKE_S,
        answer_plain: Callable[[bytes], bytes] = lambda _first: b"",
    ) -> TlsStream:
        """Return the stream after the handshake.  Raise TlsError or ConnectionLostError.

        A client that speaks no TLS gets what `answer_plain` returns for its first bytes.
        """
        tls = TlsStream(stream, self.contexts.get(), self._scratch, answer_plain=answer_plain)
        return await _shake(tls, timeout_s, self.turn)


class TlsClient:
    """The TLS of the connections of one client."""

    def __init__(self, contexts: ReloadedContext) -> None:
        self.contexts = contexts
        self._scratch = memoryview(bytearray(_CHUNK_BYTES))

    async def connect(self, stream: Stream, host: str, timeout_s: float = HANDSHAKE_S) -> TlsStream:
        """Return the stream after the handshake.  Raise TlsError or ConnectionLostError."""
        try:
            tls = TlsStream(stream, self.contexts.get(), self._scratch, server_hostname=host)
        except BaseException:
            stream.close()
            raise
        return await _shake(tls, timeout_s, None)


async def _shake(stream: TlsStream, timeout_s: float, turn: trio.Lock | None) -> TlsStream:
    await stream.handshake(timeout_s, turn)
    return stream
