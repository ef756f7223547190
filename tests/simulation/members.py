"""The bookies of a run: some are lost for good, some are asked to leave, some are added.

Fewer bookies are lost, or lose something, than an ack quorum has.  It is not enough that of no
fragment more are gone: the next ledger may name those that are, for they are on the list until
their sessions end, and as members of the cluster fill ensembles up for ever.  With an ack quorum
of them gone nobody could tell whether entries were confirmed there, and its recovery would,
rightly, never end.
"""

import trio

from daybook.broker.topics.managed_ledger_factory import automatic
from tests.simulation.caretaker import take_out
from tests.simulation.cluster import Cluster
from tests.simulation.plan import Shape

_REFUSED_S = 60.0
_AUTOMATIC = 3  # copies, where there are as many bookies


class Members:
    """Of one run."""

    def __init__(self, cluster: Cluster, shape: Shape, nursery: trio.Nursery) -> None:
        self._cluster = cluster
        self._shape = shape
        self._nursery = nursery
        self._added: list[str] = []
        self._to_add = 0
        self._harmed: dict[str, None] = {}  # those that have lost something, and go on
        self._leaving: dict[str, None] = {}
        self._changed = trio.Event()

    def names(self) -> list[str]:
        """Those that are to serve."""
        return [name for name in self.all_names() if name not in self._cluster.gone]

    def all_names(self) -> list[str]:
        """All that there ever were; one that has left may be stopping still."""
        return [*self._shape.bookie_names(), *self._added]

    def can_lose(self, name: str) -> bool:
        """Is it there, and can every ledger do without it, those to come as well?"""
        settings = self._shape.settings
        if settings.quorums is None and self._shape.bookies < _AUTOMATIC:
            return False  # With the new one there would be more bookies that are known than well.
        return self._serves(name) and self._may_harm(name)

    def _serves(self, name: str) -> bool:
        life = self._cluster.lives.get(name)
        return name in self.names() and life is not None and life.running is not None

    def _may_harm(self, name: str) -> bool:
        quorums = self._shape.settings.quorums
        ack = quorums[2] if quorums else automatic(self._shape.bookies).ack
        lost = [each for each, why in self._cluster.gone.items() if why == "lost"]
        return len({*lost, *self._harmed, name}) < ack

    def can_harm(self, name: str) -> bool:
        """Is it there, and may it lose something of what it has, or all?

        It takes no entries of older ledgers from then on: there are as many others as these need.
        """
        quorums = self._shape.settings.quorums
        ack = quorums[2] if quorums else automatic(self._shape.bookies).ack
        there = self._serves(name) and name not in self._leaving
        return there and len(self._others(name)) >= ack and self._may_harm(name)

    def _others(self, name: str) -> list[str]:
        """That take entries of any ledger, and stay."""
        without = {*self._leaving, *self._harmed, name}
        return [each for each in self.names() if each not in without]

    def harm(self, name: str) -> None:
        self._harmed[name] = None

    @property
    def harmed(self) -> list[str]:
        """Those of them that are to serve."""
        return [name for name in self.names() if name in self._harmed]

    def wipe(self, name: str) -> None:
        """Nothing is left of what it had; it is told that it may start like that."""
        self.harm(name)
        cluster = self._cluster
        cluster.kill(name)
        cluster.platters.pop(name).repair()
        cluster.forgiven[name] = None

    def lose(self, name: str, *, again: bool) -> None:
        """For ever.  `again`: it comes back with nothing, and must be refused."""
        cluster = self._cluster
        cluster.gone[name] = "lost"
        cluster.forgiven.pop(name, None)
        self._leaving.pop(name, None)
        self._to_add += 1
        cluster.kill(name)
        cluster.platters.pop(name).repair()  # whoever waits for it learns that it is gone
        if again:
            self._nursery.start_soon(self._start_empty, name)

    async def _start_empty(self, name: str) -> None:
        with trio.move_on_after(_REFUSED_S):
            await self._cluster.start(name)
        if name in self._cluster.lives:
            self._cluster.deaths.append(f"{name} serves, and its disk was lost")
            self._cluster.kill(name)

    def add(self) -> None:
        """A new bookie in place of each that was lost."""
        for _ in range(self._to_add):
            number = self._shape.bookies + len(self._added) + 1
            self._added.append(f"bookie-{number}")
            self._nursery.start_soon(self._cluster.revive, self._added[-1])
        self._to_add = 0

    def can_leave(self, name: str) -> bool:
        """Are there enough others, now and when the next ledger is made?"""
        ensemble = (self._shape.settings.quorums or (_AUTOMATIC,))[0]
        there = name in self.names() and name not in self._leaving
        return there and len(self._others(name)) >= ensemble

    def leave(self, name: str, interrupted_s: float | None) -> None:
        self._leaving[name] = None
        self._nursery.start_soon(self._leave, name, interrupted_s)

    async def _leave(self, name: str, interrupted_s: float | None) -> None:
        cluster = self._cluster
        await take_out(cluster, name, interrupted_s)
        if cluster.gone.setdefault(name, "left") == "left" and name in cluster.lives:
            await cluster.stop(name)
        self._leaving.pop(name, None)
        self._changed.set()

    async def wait_left(self) -> None:
        """Until who was asked to leave has left."""
        while self._leaving:
            self._changed = trio.Event()
            await self._changed.wait()
