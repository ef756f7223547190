"""The address of a metadata store, and the root of the ledgers in it.

    zk://host:port,host:port/ledgers
    zk+hierarchical://host:port;host:port/ledgers      as Apache BookKeeper writes it

The default port is 2181, the default root is /ledgers.  Only the hierarchical layout, which has ids
of 31 and of 63 bits, is supported.
"""

from dataclasses import dataclass
from re import split
from typing import Self
from urllib.parse import urlsplit

DEFAULT_ROOT = "/ledgers"
_DEFAULT_PORT = 2181
_SCHEMES = ("zk", "zk+null", "zk+hierarchical")


@dataclass(frozen=True, slots=True)
class MetadataAddress:
    hosts: str  # host:port, several with commas
    root: str = DEFAULT_ROOT

    @classmethod
    def parse(cls, address: str) -> Self:
        """Parse an address; raise ValueError, with a sentence, if it is invalid."""
        example = "an address looks like zk://localhost:2181/ledgers"
        scheme, separator, rest = address.partition("://")
        if not separator:
            raise ValueError(f"the address {address!r} has no scheme: {example}")
        if scheme not in _SCHEMES:
            raise ValueError(
                f"the address {address!r} begins with {scheme!r}, which is none of"
                f" {', '.join(_SCHEMES)}: {example}"
            )
        authority, slash, path = rest.partition("/")
        hosts = ",".join(_host(host, address) for host in split("[,;]", authority))
        root = f"/{path}".rstrip("/") if slash else ""
        if "//" in root:
            raise ValueError(f"the address {address!r} has an empty name in its root: {example}")
        return cls(hosts, root or DEFAULT_ROOT)


def _host(text: str, address: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{address!r}: {error}") from None
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"the address {address!r} contains {text!r}, which is not host:port")
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{_DEFAULT_PORT if port is None else port}"
