"""Drains of brokers: an operator lets one hand over all of its bundles, and stops it a while later.

The operator asks by REST.  If nothing else has struck in the run so far, a drained broker has no
bundle left when it is stopped.  A drain and the stop after it are orderly: an acknowledgement that
was sent before is not lost.
"""

from collections import Counter
from collections.abc import Callable

import trio

from daybook.broker.errors import BrokerError
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.server import RunningBroker
from tests.history.events import Fault, FaultEnd
from tests.history.recorder import Recorder
from tests.simulation.cluster import Cluster, Life

_OPERATOR = "operator"
_ENOUGH_S = 2.0  # for a drain that nothing disturbs
_STOP_S = 30.0
_DOWN_S = 0.5


class Drains:
    """The drains of one run.  `counts` has the faults that have struck, by kind."""

    def __init__(
        self,
        cluster: Cluster,
        recorder: Recorder,
        nursery: trio.Nursery,
        counts: Counter[str],
        *,
        kill: Callable[[str], None],
        revive: Callable[[str], None],
    ) -> None:
        self.problems: list[str] = []
        self._cluster = cluster
        self._recorder = recorder
        self._nursery = nursery
        self._counts = counts
        self._kill = kill
        self._revive = revive
        self._calls = PeerCalls(PeerNetwork(cluster.network.of(_OPERATOR)))
        self._drained: dict[str, Life] = {}
        self._number = 0
        self._calm = trio.Event()

    def begin(self, name: str, after_s: float) -> bool:
        """Drain the broker; return False if that makes no sense now."""
        life, broker = self._cluster.lives.get(name), self._cluster.broker(name)
        if life is None or broker is None or life.stopping or name in self._drained:
            return False
        if broker.identity.http_url is None:
            return False
        self._drained[name] = life
        self._nursery.start_soon(self._drain, life, broker, after_s)
        return True

    async def _drain(self, life: Life, broker: RunningBroker, after_s: float) -> None:
        self._number += 1
        fault = f"drain {self._number} of {life.name}"
        self._recorder.note(Fault(fault, fault, clean=True))
        url, own_id = broker.identity.http_url, broker.identity.broker_id
        assert url is not None
        try:
            await self._calls.call(url, "POST", f"/admin/v2/daybook/brokers/{own_id}/drain")
        except BrokerError as error:
            self._counts[f"a drain was refused: {type(error).__name__}"] += 1
        else:
            self._counts["a broker was drained"] += 1
            alone = self._is_alone()
            await self._wait(after_s)
            if alone and self._is_alone() and after_s >= _ENOUGH_S and not self._calm.is_set():
                self._check(life, broker)
        if not self._calm.is_set() and self._cluster.lives.get(life.host) is life:
            await self._stop(life)
        self._recorder.note(FaultEnd(fault))
        if self._drained.get(life.host) is life:
            del self._drained[life.host]

    def _is_alone(self) -> bool:
        """Return True if nothing but drains has struck so far."""
        struck = {name for name, count in self._counts.items() if count}
        return {name for name in struck if name.startswith("fault ")} <= {"fault Drain"}

    def _check(self, life: Life, broker: RunningBroker) -> None:
        if self._cluster.lives.get(life.host) is not life:
            return
        self._counts["a drained broker was looked at"] += 1
        left = ", ".join(broker.ownership.owned)
        if left:
            self.problems.append(f"drain: {life.name} was drained, and still owns {left}")

    async def _wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._calm.wait()

    async def _stop(self, life: Life) -> None:
        """Stop the drained process in good order, and start its host again."""
        with trio.move_on_after(_STOP_S):
            await self._cluster.stop(life.host)
        if self._cluster.lives.get(life.host) is life:
            fault = f"{life.name} does not stop, and is killed"
            self._recorder.note(Fault(fault, fault))
            self._kill(life.host)
            self._recorder.note(FaultEnd(fault))
        await self._wait(_DOWN_S)
        self._revive(life.host)

    def heal(self) -> None:
        """Kill the brokers that are drained, because they serve nobody; others start them again."""
        self._calm.set()
        for name, life in list(self._drained.items()):
            if self._cluster.lives.get(name) is life:
                self._kill(name)
