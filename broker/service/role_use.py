"""How many producers and consumers each role has open on a broker, and how many it may have."""

from collections import Counter

from daybook.broker.errors import ConsumerBusyError, ProducerBusyError


class RoleUse:
    """One instance per broker.  A limit of 0 is none; roles in `unlimited` have none either."""

    def __init__(
        self,
        producers_max: int = 0,
        consumers_max: int = 0,
        unlimited: frozenset[str] = frozenset(),
    ) -> None:
        self.producers = Counter[str]()
        self.consumers = Counter[str]()
        self._producers_max = producers_max
        self._consumers_max = consumers_max
        self._unlimited = unlimited

    def check_producer(self, role: str) -> None:
        """Raise ProducerBusyError if the role has too many, with the one that is being opened."""
        most = self._producers_max
        if most and self.producers[role] > most and role not in self._unlimited:
            raise ProducerBusyError(
                f"the role {role!r} has {most} producers on this broker, which is the limit: close"
                " some, or raise producers_per_role_max"
            )

    def check_consumer(self, role: str) -> None:
        """Raise ConsumerBusyError if the role has too many, with the one that is being opened."""
        most = self._consumers_max
        if most and self.consumers[role] > most and role not in self._unlimited:
            raise ConsumerBusyError(
                f"the role {role!r} has {most} consumers on this broker, which is the limit: close"
                " some, or raise consumers_per_role_max"
            )
