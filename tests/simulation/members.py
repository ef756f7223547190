"""The bookies of a run: some are lost for good, some are asked to leave, some are added.

Fewer bookies than an ack quorum are lost, or lose data.  A limit for each fragment would not be
enough: the next ledger may name lost bookies, for they stay registered until their sessions end,
and as members of the cluster they fill up ensembles forever.  If an ack quorum of them were lost,
nobody could tell whether entries were confirmed there, and recovery would, rightly, never end.
"""

import trio

from daybook.broker.topics.managed_ledger_factory import automatic
from tests.simulation.caretaker import take_out
from tests.simulation.cluster import Cluster
from tests.simulation.plan import Shape

_REFUSED_S = 60.0
_AUTOMATIC = 3  # number of copies, where there are as many bookies


class Members:
    """The bookies of one run."""

    def __init__(self, cluster: Cluster, shape: Shape, nursery: trio.Nursery) -> None:
        self._cluster = cluster
        self._shape = shape
        self._nursery = nursery
        self._added: list[str] = []
        self._to_add = 0
        self._harmed: dict[str, None] = {}  # bookies that have lost data and go on
        self._leaving: dict[str, None] = {}
        self._changed = trio.Event()

    def names(self) -> list[str]:
        """Return the bookies that are to serve."""
        return [name for name in self.all_names() if name not in self._cluster.gone]

    def all_names(self) -> list[str]:
        """Return all bookies that ever existed; one that has left may not have stopped yet."""
        return [*self._shape.bookie_names(), *self._added]

    def can_lose(self, name: str) -> bool:
        """Return True if the bookie serves, and every ledger can do without it, also later ones."""
        settings = self._shape.settings
        if settings.quorums is None and self._shape.bookies < _AUTOMATIC:
            return False  # With a new bookie, more bookies would be known than well.
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
        """Return True if the bookie serves and may lose some or all of its data.

        It takes no entries of older ledgers from then on, so there must be enough other bookies for
        these.
        """
        quorums = self._shape.settings.quorums
        ack = quorums[2] if quorums else automatic(self._shape.bookies).ack
        there = self._serves(name) and name not in self._leaving
        return there and len(self._others(name)) >= ack and self._may_harm(name)

    def _others(self, name: str) -> list[str]:
        """Return the bookies that take entries of any ledger, and stay."""
        without = {*self._leaving, *self._harmed, name}
        return [each for each in self.names() if each not in without]

    def harm(self, name: str) -> None:
        self._harmed[name] = None

    @property
    def harmed(self) -> list[str]:
        """Return the harmed bookies that are to serve."""
        return [name for name in self.names() if name in self._harmed]

    def wipe(self, name: str) -> None:
        """Erase the bookie's disks, and permit it to start empty."""
        self.harm(name)
        cluster = self._cluster
        cluster.kill(name)
        cluster.platters.pop(name).repair()
        cluster.forgiven[name] = None

    def lose(self, name: str, *, again: bool) -> None:
        """Lose the bookie forever.  With `again`, it starts with empty disks and is refused."""
        cluster = self._cluster
        cluster.gone[name] = "lost"
        cluster.forgiven.pop(name, None)
        self._leaving.pop(name, None)
        self._to_add += 1
        cluster.kill(name)
        cluster.platters.pop(name).repair()  # tasks that wait for the disk learn that it is gone
        if again:
            self._nursery.start_soon(self._start_empty, name)

    async def _start_empty(self, name: str) -> None:
        with trio.move_on_after(_REFUSED_S):
            await self._cluster.start(name)
        if name in self._cluster.lives:
            self._cluster.deaths.append(f"{name} serves, and its disk was lost")
            self._cluster.kill(name)

    def add(self) -> None:
        """Start a new bookie in place of each lost one."""
        for _ in range(self._to_add):
            number = self._shape.bookies + len(self._added) + 1
            self._added.append(f"bookie-{number}")
            self._nursery.start_soon(self._cluster.revive, self._added[-1])
        self._to_add = 0

    def can_leave(self, name: str) -> bool:
        """Return True if there are enough others, now and when the next ledger is made."""
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
        """Wait until each bookie that was asked to leave has left."""
        while self._leaving:
            self._changed = trio.Event()
            await self._changed.wait()
