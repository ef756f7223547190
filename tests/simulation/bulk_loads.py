"""Watches brokers load many topics together, during a run: moments for faults, and marks.

    list read       a broker asks the metadata store for a topic's list of ledgers: each load does
    topic loaded    a load has ended well; the subject is the broker

The marks say what brokers were doing when a fault struck, and whether limits were met.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from daybook.wire.metadata.memory import Request
from tests.simulation.acts import Act, KillAll
from tests.simulation.cluster import Cluster
from tests.simulation.grouped import GROUP
from tests.simulation.moments import Moments

_MANY = 10  # topics
_SOME = 3  # loads under way
_LOADED = "a topic is loaded"
_PREFIX = "many topics"

MARKS = (
    f"{_PREFIX}: loaded together",
    f"{_PREFIX}: taken over",
    f"{_PREFIX}: loads wait for a place",
    f"{_PREFIX}: requests wait for a place",
    f"{_PREFIX}: writes share a request",
    f"{_PREFIX}: Kill of a loading broker",
    f"{_PREFIX}: LoseContact of a loading broker",
    f"{_PREFIX}: Kill of a bookie during loads",
    f"{_PREFIX}: Refuse during loads",
    f"{_PREFIX}: Flaky during loads",
)


class BulkLoads:
    """The loads of all brokers of one run."""

    def __init__(self, cluster: Cluster, brokers: Sequence[str], moments: Moments) -> None:
        self.marks: Counter[str] = Counter()
        self._cluster = cluster
        self._brokers = brokers
        self._moments = moments
        self._loaded_by: dict[str, str] = {}  # topics, and the process that loaded each last
        self._taken: Counter[str] = Counter()  # how many a process has had from another one
        cluster.logs.on_line[_LOADED] = self._loaded
        cluster.metadata.tap = self._requested

    def loading(self) -> list[str]:
        """Return the brokers that load several topics at this moment."""
        found: list[str] = []
        for name in self._brokers:
            broker = self._cluster.broker(name)
            if broker is not None and len(broker.topics.loads) >= _SOME:
                found.append(name)
        return found

    def struck(self, act: Act, hosts: Sequence[str], loading: Sequence[str]) -> None:
        """Note that a fault struck these hosts while those brokers were loading topics."""
        kind = type(act).__name__
        if isinstance(act, KillAll) or any(host in loading for host in hosts):
            self.marks[f"{_PREFIX}: {kind} of a loading broker"] += bool(loading)
        elif loading and any(host.startswith("bookie") for host in hosts):
            self.marks[f"{_PREFIX}: {kind} of a bookie during loads"] += 1
        elif loading and not any(hosts):
            self.marks[f"{_PREFIX}: {kind} during loads"] += 1

    def _requested(self, host: str, request: Request) -> None:
        match request.path.split("/"):
            case ["", "managed-ledgers", _, _, "persistent", _] if request.operation == "get":
                self._moments.happened("list read", host)
            case _ if request.operation == GROUP:
                self.marks[f"{_PREFIX}: writes share a request"] += 1
            case _:
                pass

    def _loaded(self, host: str, facts: dict[str, Any]) -> None:
        topic, life = str(facts["topic"]), self._cluster.lives.get(host)
        if life is None:
            return
        before = self._loaded_by.get(topic, life.name)
        self._loaded_by[topic] = life.name
        if before != life.name:
            self._taken[life.name] += 1
            self.marks[f"{_PREFIX}: taken over"] += self._taken[life.name] == _MANY
        self._look_at(host)
        self._moments.happened("topic loaded", host)

    def _look_at(self, host: str) -> None:
        """Note which limits the broker has reached."""
        broker = self._cluster.broker(host)
        if broker is None:
            return
        loads, at_once = len(broker.topics.loads), broker.topics.limits.loads.at_once
        waiting = broker.context.request_turns.waiting_bytes
        self.marks[f"{_PREFIX}: loaded together"] += loads >= _MANY
        self.marks[f"{_PREFIX}: loads wait for a place"] += loads > at_once
        self.marks[f"{_PREFIX}: requests wait for a place"] += loads >= _SOME and waiting > 0
