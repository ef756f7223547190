"""The addresses of this machine: which one others can connect to, and which are for it alone.

A server that listens on all addresses has to tell others one of them.  The host name is right if it
resolves to an address that others can reach; on many machines it resolves to the loopback
interface, and then the address by which the machine reaches the rest of the network is taken.
"""

import ipaddress
import socket

from daybook.wire.settings import ANY_ADDRESS

# Addresses for documentation (RFC 5737, RFC 3849).  Connecting a UDP socket sends nothing; the
# kernel only decides from which address it would send.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_PORT = 9


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to `host`.  Raise OSError for an unknown name.

    A name is loopback if all of its addresses are.
    """
    if host in ANY_ADDRESS or not host:
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in _resolve(host))


def reachable_host() -> str | None:
    """Return the name or address of this machine for others; None if it has no network.

    The name is not checked from outside: a name that only this machine can resolve to an address
    of the network looks like any other.
    """
    name = socket.gethostname()
    try:
        if name and not any(ipaddress.ip_address(each).is_loopback for each in _resolve(name)):
            return name
    except OSError:
        pass
    return _address_of_default_route()


def _resolve(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]).partition("%")[0] for *_, address in found]


def _address_of_default_route() -> str | None:
    for family, elsewhere in _ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((elsewhere, _PORT))
                address = str(sock.getsockname()[0])
        except OSError:
            continue
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address
    return None
