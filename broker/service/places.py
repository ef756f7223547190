"""The connections that clients may have, counted by address and by role.

A connection is a *newcomer* until its client has proven its role (without authentication: until it
has sent CONNECT).  At most a quarter of the connections may be in a TLS handshake, which takes
memory.  Where there is no room for one more, a newcomer is cut, because a client that means it
needs milliseconds: the oldest of the same address if there are several, else the oldest of all.  So
connections that are left half-open keep no client out, whatever their number, and a flood from one
address cuts itself first.

The addresses of a network /64 of IPv6 count as one.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

_HANDSHAKES_SHARE = 4  # a quarter of the connections
_IPV6_HOST_BITS = 64


class Place:
    """The place of one connection.  `cut` is called with the reason when another one gets it."""

    __slots__ = ("address", "cut", "role")

    def __init__(self, address: str, cut: Callable[[str], None]) -> None:
        self.address = address
        self.cut = cut
        self.role = ""  # counted


class _Queue:
    """Places in the order in which they came, of all addresses and of each."""

    def __init__(self) -> None:
        self._all: dict[Place, None] = {}
        self._of: dict[str, dict[Place, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, place: Place) -> None:
        self._all[place] = None
        self._of.setdefault(place.address, {})[place] = None

    def discard(self, place: Place) -> None:
        if place in self._all:
            del self._all[place]
            of_same = self._of[place.address]
            del of_same[place]
            if not of_same:
                del self._of[place.address]

    def oldest(self, address: str) -> Place | None:
        """Return the oldest of this address if there are several, else the oldest of all."""
        of_same = self._of.get(address, {})
        return next(iter(of_same if len(of_same) > 1 else self._all), None)


class Places:
    """One instance per broker.  A limit of 0 is none."""

    def __init__(
        self, connections_max: int, *, of_address_max: int = 0, of_role_max: int = 0
    ) -> None:
        self.connections_max = connections_max
        self._handshakes_max = max(1, connections_max // _HANDSHAKES_SHARE)
        self._of_address_max = of_address_max
        self._of_role_max = of_role_max
        self._all: set[Place] = set()
        self._newcomers = _Queue()
        self._handshakes = _Queue()  # a part of the newcomers
        self._by_address = Counter[str]()
        self._by_role = Counter[str]()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def newcomers(self) -> int:
        return len(self._newcomers)

    @property
    def handshakes(self) -> int:
        return len(self._handshakes)

    def why_not(self, peer: str, *, shakes: bool) -> str:
        """Return "" if a connection may be added, if need be by cutting a newcomer.

        With `shakes`, it begins with a TLS handshake.
        """
        address, most = address_of(peer), self._of_address_max
        if most and self._by_address[address] >= most:
            return (
                f"the broker has {most} connections from {address}, and accepts no more from there"
                " (connections_per_address_max)"
            )
        crowded = shakes and len(self._handshakes) >= self._handshakes_max
        full = len(self._all) >= self.connections_max
        among = self._handshakes if crowded else self._newcomers
        if (full or crowded) and not self._cut_one(among, address):
            return (
                f"the broker has {self.connections_max} connections and accepts no more:"
                " try again later, or raise connections_max of the broker"
            )
        return ""

    def _cut_one(self, among: _Queue, address: str) -> bool:
        place = among.oldest(address)
        if place is None:
            return False
        self._no_newcomer(place)
        place.cut("there were too many connections whose clients had not proven who they are")
        return True

    def add(self, peer: str, cut: Callable[[str], None], *, shakes: bool) -> Place:
        """Note a new connection, which is a newcomer."""
        place = Place(address_of(peer), cut)
        self._all.add(place)
        self._newcomers.add(place)
        if shakes:
            self._handshakes.add(place)
        self._by_address[place.address] += 1
        return place

    def shaken(self, place: Place) -> None:
        """Note that the TLS handshake of a connection is complete."""
        self._handshakes.discard(place)

    def prove(self, place: Place, role: str) -> str:
        """Note the role of a connection.  Return why the role may not have one more, or "".

        Connections with the role "" are not counted.
        """
        assert not place.role
        most = self._of_role_max if role else 0
        if most and self._by_role[role] >= most:
            return (
                f"the role {role!r} has {most} connections to this broker, and may have no more"
                " (connections_per_role_max)"
            )
        self._no_newcomer(place)
        place.role = role
        if role:
            self._by_role[role] += 1
        return ""

    def leave(self, place: Place) -> None:
        """Note that a connection has ended."""
        self._all.remove(place)
        self._no_newcomer(place)
        _minus(self._by_address, place.address)
        if place.role:
            _minus(self._by_role, place.role)

    def _no_newcomer(self, place: Place) -> None:
        self._newcomers.discard(place)
        self._handshakes.discard(place)


def _minus(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    assert counts[key] >= 0
    if not counts[key]:
        del counts[key]  # The addresses of the past must not take memory.


def address_of(peer: str) -> str:
    """Return the address by which connections of `peer`, host:port, are counted."""
    return _address_of_host(peer.rpartition(":")[0].strip("[]") or peer)


@lru_cache(maxsize=4096)
def _address_of_host(host: str) -> str:
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return host  # a simulated host
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    first = int(address) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS
    return f"{IPv6Address(first)}/{_IPV6_HOST_BITS}"
