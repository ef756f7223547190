"""How many producers and consumers one client connection has, for the limits of its role."""

from collections import Counter

from daybook.broker.service.client_rights import ClientRights
from daybook.broker.service.connection import ClientConnection
from daybook.broker.service.role_use import RoleUse


class ConnectionUse:
    """A count of what one connection has open or is opening.  Its role is known later."""

    def __init__(
        self, of_roles: RoleUse, connection: ClientConnection, rights: ClientRights
    ) -> None:
        self._of_roles = of_roles
        self._connection = connection
        self._rights = rights
        self._producers = 0
        self._consumers = 0

    def count_producers(self, producers: int) -> None:
        """Note how many producers the connection has now."""
        if not self._connection.closing:
            self._count(producers, self._consumers)

    def count_consumers(self, consumers: int) -> None:
        """Note how many consumers the connection has now."""
        if not self._connection.closing:
            self._count(self._producers, consumers)

    def end(self) -> None:
        """Note that the connection has ended, with all that it had open."""
        self._count(0, 0)

    def _count(self, producers: int, consumers: int) -> None:
        role = self._rights.role
        if not role:
            return
        uses = self._of_roles
        _add(uses.producers, role, producers - self._producers)
        _add(uses.consumers, role, consumers - self._consumers)
        self._producers, self._consumers = producers, consumers


def _add(counts: Counter[str], role: str, change: int) -> None:
    counts[role] += change
    assert counts[role] >= 0
    if not counts[role]:
        del counts[role]
