"""Connections of one broker to others: with TLS wherever both can.

A broker that knows whom to trust (`tls_trusted`) calls another one with TLS if the other has a port
for it, because its token goes along.  Without `tls_trusted`, it uses TLS only for brokers that have
no other port.  With `require_tls` it calls nobody without TLS.  A call that has failed is never
repeated in another way: TLS that does not succeed is no reason to go on without it.
"""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from daybook.broker.namespaces.records import BrokerRecord
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


def preferred(plain: str | None, tls: str | None, *, prefers_tls: bool) -> str | None:
    """Return the URL under which to call a broker, of those that it has."""
    return (tls or plain) if prefers_tls else (plain or tls)


def has_tls(url: str) -> bool:
    """Return True for a URL under which a broker speaks TLS."""
    return url.partition("://")[0] in _WITH_TLS


class PeerNetwork:
    """The network of a broker, for connections to other brokers."""

    def __init__(
        self,
        network: Network,
        tls: TlsClient | None = None,
        *,
        prefers_tls: bool = False,
        requires_tls: bool = False,
    ) -> None:
        """Without `tls`, brokers that have only ports with TLS cannot be reached.

        Without `requires_tls`, brokers that have only ports without TLS can be.
        """
        self.tls = tls
        self.prefers_tls = prefers_tls
        self.others: Callable[[], Iterable[BrokerRecord]] = tuple  # registered, as far as known
        self._requires_tls = requires_tls
        self._network = network

    def url_of(self, plain: str | None, tls: str | None) -> str | None:
        """Return the URL under which to call a broker that has these; None if it has none."""
        return preferred(plain, tls, prefers_tls=self.prefers_tls)

    def _with_tls(self, url: str) -> str:
        """Return the URL with TLS of the same broker if there is one: redirects name one URL."""
        for record in self.others():
            if url == record.pulsar_service_url:
                return record.pulsar_service_url_tls or url
            if url == record.web_service_url:
                return record.web_service_url_tls or url
        return url

    async def connect(self, url: str) -> Stream:
        """Connect to the broker with this URL.  Raise ConnectionLostError."""
        if self.prefers_tls and not has_tls(url):
            url = self._with_tls(url)
        address = address_of(url)
        if address is None:
            raise ConnectionLostError(f"{url!r} is not a URL with a host and a port")
        if has_tls(url) and self.tls is None:
            raise ConnectionLostError(
                f"{url} is reached with TLS only, and this broker has no tls_trusted"
            )
        if self._requires_tls and not has_tls(url):
            raise ConnectionLostError(
                f"{url} is without TLS, which require_tls forbids for calls to other brokers, too"
            )
        stream = await self._network.connect(*address)
        if has_tls(url):
            assert self.tls is not None
            return await self.tls.connect(stream, address[0])
        return stream
