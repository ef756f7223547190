"""Connections of one broker to others: with TLS where a URL says so.

A broker calls another one under a URL without TLS if the other has one, and else with TLS.  A call
that has failed is never repeated in another way: TLS that does not succeed is no reason to go on
without it.
"""

from urllib.parse import urlsplit

from daybook.wire.errors import ConnectionLostError
from daybook.wire.tls import TlsClient
from daybook.wire.transport import Network, Stream

_WITH_TLS = ("pulsar+ssl", "https")


def address_of(url: str) -> tuple[str, int] | None:
    """Return host and port of a URL; None if it has none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return None if host is None or port is None else (host, port)


def has_tls(url: str) -> bool:
    """Return True for a URL under which a broker speaks TLS."""
    return url.partition("://")[0] in _WITH_TLS


class PeerNetwork:
    """The network of a broker, for connections to other brokers."""

    def __init__(self, network: Network, tls: TlsClient | None = None) -> None:
        """Without `tls`, brokers that have only ports with TLS cannot be reached."""
        self.tls = tls
        self._network = network

    async def connect(self, url: str) -> Stream:
        """Connect to the broker with this URL.  Raise ConnectionLostError."""
        address = address_of(url)
        if address is None:
            raise ConnectionLostError(f"{url!r} is not a URL with a host and a port")
        if has_tls(url) and self.tls is None:
            raise ConnectionLostError(
                f"{url} is reached with TLS only, and this broker has no tls_trusted"
            )
        stream = await self._network.connect(*address)
        if has_tls(url):
            assert self.tls is not None
            return await self.tls.connect(stream, address[0])
        return stream
