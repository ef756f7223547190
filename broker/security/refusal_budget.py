"""How many refusals get a line of their own in the audit log.

A client can be refused without end.  So each source, which is a role or a host, has a number of
lines in a minute, and all sources together have one.  The refusals beyond that are counted by
source, for a line of the next minute.

The first refusal of a source gets a line whatever others do, so a flood from one source hides no
other source.  Roles were proven, so a stranger cannot make them up, and they share no bound with
hosts.  A stranger may have many addresses: hosts of one network share a bound, and the first host
of a network has room when hosts have used up theirs.
"""

from collections import Counter
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple

WINDOW_S = 60.0
_OF_ONE_MAX = 100
_OF_ALL_MAX = 1_000  # lines, apart from the first of each source
_ROLES_MAX = 1_000  # with a line in one minute
_HOSTS_MAX = 2_000
_OF_NETWORK_MAX = 100
_NETWORKS_MAX = 1_000
_SOURCES_MAX = 1_000  # that are told apart in what has no line
_SUMMED_MAX = 20  # sources with a line of their own about what was not noted
_PREFIX_BITS = {4: 24, 6: 48}


class Source(NamedTuple):
    """A role, or a host with its network."""

    name: str
    network: str = ""  # "": the name is a role


OTHERS = Source("")


@lru_cache(maxsize=4096)
def host_source(host: str) -> Source:
    """Return the source of a client that has proven no role."""
    try:
        address = ip_address(host.strip("[]"))
        # A port that listens on all addresses of IPv6 sees clients of IPv4 in this form.
        address = getattr(address, "ipv4_mapped", None) or address
        network = str(ip_network((address, _PREFIX_BITS[address.version]), strict=False))
    except ValueError:
        network = host or "?"
    return Source(host, network)


class RefusalBudget:
    def __init__(self, of_one: int = _OF_ONE_MAX, of_all: int = _OF_ALL_MAX) -> None:
        self.left_out = 0  # since the broker started
        self._of_one = of_one
        self._of_all = of_all
        self._began_s = 0.0
        self._total = 0
        self._noted: dict[Source, int] = {}
        self._hosts = Counter[str]()  # by network
        self._host_count = 0
        self._roles = 0
        self._left_out = Counter[Source]()

    def admit(self, source: Source) -> bool:
        """Return True if a refusal of this source gets a line; else count it."""
        noted = self._noted.get(source, 0)
        if noted:
            has_room = noted < self._of_one and self._total < self._of_all
        else:
            has_room = self._begin(source)
        if has_room:
            self._noted[source] = noted + 1
            self._total += 1
            return True
        self.left_out += 1
        told_apart = source in self._left_out or len(self._left_out) < _SOURCES_MAX
        self._left_out[source if told_apart else OTHERS] += 1
        return False

    def _begin(self, source: Source) -> bool:
        """Return True if there is room for the first refusal of a source, and take it."""
        if not source.network:
            self._roles += 1
            return self._roles <= _ROLES_MAX
        of_network = self._hosts[source.network]
        is_first = not of_network and len(self._hosts) < _NETWORKS_MAX
        if is_first or (of_network < _OF_NETWORK_MAX and self._host_count < _HOSTS_MAX):
            self._hosts[source.network] += 1
            self._host_count += 1
            return True
        return False

    def next_window(self, now_s: float) -> list[tuple[Source, int]]:
        """Begin a new minute if one has passed; return the sources with what was left out."""
        if 0 <= now_s - self._began_s < WINDOW_S:
            return []
        return self.end(now_s)

    def end(self, now_s: float) -> list[tuple[Source, int]]:
        """Begin a new minute now, and return what was left out in the last one."""
        self._began_s = now_s
        left_out, self._left_out = self._left_out, Counter[Source]()
        self._noted.clear()
        self._hosts.clear()
        self._roles = self._host_count = self._total = 0
        rest = left_out.total()
        del left_out[OTHERS]
        told = left_out.most_common(_SUMMED_MAX)
        rest -= sum(count for _, count in told)
        return [*told, (OTHERS, rest)] if rest else told
