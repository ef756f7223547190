"""The errors of received bytes and of connections.

    WireError                  the bytes break the protocol; the peer is at fault
      TruncatedError           fewer bytes than the layout needs
      OversizeError            a length above the limit
        SpeaksTlsError         of which the peer has begun to speak TLS
      ChecksumError            the bytes were changed on their way, or on a disk
      MalformedError           anything else that does not parse
    ConnectionLostError        the stream ended or broke; requests under way are in doubt
      NobodyListensError       connect: the host is there and says that nothing listens on the port
      TlsError                 TLS did not succeed with this peer
        TlsRefusedError        and another attempt would end in the same way
          NotTlsError          the peer does not speak TLS

Every decoder either returns a value or raises a `WireError`; no input makes it raise anything else.
"""

import errno


class WireError(Exception):
    """The peer sent bytes that break the protocol."""


class TruncatedError(WireError):
    """There are fewer bytes than the layout needs."""


class OversizeError(WireError):
    """A length is above the limit of the reader."""


class SpeaksTlsError(OversizeError):
    """The peer speaks TLS, and this side does not."""


class ChecksumError(WireError):
    """The bytes do not match their checksum."""


class MalformedError(WireError):
    """The bytes do not parse."""


class ConnectionLostError(Exception):
    """The stream ended or broke.  Requests that wait for an answer are in doubt."""


class NobodyListensError(ConnectionLostError):
    """The host answered that nothing listens on that port: no process serves it now."""


class TlsError(ConnectionLostError):
    """TLS has failed with this peer; the text is a sentence."""


class TlsRefusedError(TlsError):
    """One side refuses the other, and would do so again: a certificate, a version, no TLS."""


class NotTlsError(TlsRefusedError):
    """The peer does not speak TLS."""


def cannot_listen(host: str, port: int, error: OSError) -> OSError:
    """Return the error of a listener that did not get its port; it says what to do."""
    text = f"cannot listen on {host}:{port}: {error.strerror}"
    if error.errno == errno.EADDRINUSE:
        text += f"; stop the process that has the port (`ss -ltnp sport = {port}` names it), or"
        text += " choose another port in the settings"
    return OSError(error.errno, text)
