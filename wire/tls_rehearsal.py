"""A TLS handshake in memory: what would a client with these settings say to a server with those?

    fault = rehearse(server_context, client_context, "broker-1.example")     # None: it succeeds

A server finds out in this way that its own certificate is of no use to its clients, before the
first of them comes.
"""

import ssl
from dataclasses import dataclass
from enum import Enum, auto

from daybook.wire.tls import EXPIRED, NOT_YET_VALID, OTHER_ADDRESS, OTHER_HOST

_STEPS_MAX = 20  # a handshake takes four


class Reason(Enum):
    NOT_MADE_OUT = auto()  # the certificate of the server names other hosts
    EXPIRED = auto()
    NOT_YET_VALID = auto()
    NOT_TRUSTED = auto()  # the client trusts nobody who has signed it
    CLIENT_REFUSED = auto()  # the server refuses the certificate of the client, or its lack
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for which the handshake fails; `why` is in OpenSSL's words."""

    reason: Reason
    why: str


_BY_CODE = {
    OTHER_HOST: Reason.NOT_MADE_OUT,
    OTHER_ADDRESS: Reason.NOT_MADE_OUT,
    EXPIRED: Reason.EXPIRED,
    NOT_YET_VALID: Reason.NOT_YET_VALID,
}


def rehearse(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Fault | None:
    """Return why a client that connects to `host` and this server do not agree; None if they do."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    except ValueError as error:  # no name that a certificate could have
        return Fault(Reason.NOT_MADE_OUT, str(error))
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_STEPS_MAX):
        try:
            done = _has_shaken(asking)
        except ssl.SSLCertVerificationError as error:
            reason = _BY_CODE.get(error.verify_code, Reason.NOT_TRUSTED)
            return Fault(reason, error.verify_message)
        except ssl.SSLError as error:
            return Fault(Reason.OTHER, error.reason or str(error))
        try:
            if _has_shaken(answering) and done:
                return None
        except ssl.SSLCertVerificationError as error:
            return Fault(Reason.CLIENT_REFUSED, error.verify_message)
        except ssl.SSLError as error:
            missing = error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
            reason = Reason.CLIENT_REFUSED if missing else Reason.OTHER
            return Fault(reason, error.reason or str(error))
    return Fault(Reason.OTHER, "the handshake does not end")


def _has_shaken(end: ssl.SSLObject) -> bool:
    """Take the next step of one end; return True if it needs no other."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
