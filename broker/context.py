"""What a client's connection needs of the broker."""

from dataclasses import dataclass, field
from typing import Protocol

import trio

from daybook.broker.config import BrokerConfig
from daybook.broker.dispatch.memory_limit import DispatchMemoryLimit
from daybook.broker.limits import ConnectionLimits
from daybook.broker.logs import Log
from daybook.broker.namespaces.policies import NamespacePolicies
from daybook.broker.service.lookup import LookupResult
from daybook.broker.service.refusal_log import RefusalLog
from daybook.broker.service.request_counts import RequestCounts
from daybook.broker.service.request_turns import RequestTurns
from daybook.broker.topics.topics import Topics
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.outbox import Flusher
from daybook.wire.topics import TopicName


class LookupPort(Protocol):
    """What connections ask of `Lookups`."""

    async def lookup(self, topic: TopicName, *, authoritative: bool = False) -> LookupResult: ...


class NamespacesPort(Protocol):
    """What connections ask of `Policies`."""

    async def namespace(self, namespace: str) -> NamespacePolicies:
        """Raises NotFoundError."""
        ...

    async def partitions(self, topic: TopicName) -> int: ...


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """One for all connections.  `server_version` is what the broker calls itself."""

    config: BrokerConfig
    clock: WallClock
    arenas: ArenaPool
    flusher: Flusher
    topics: Topics
    lookups: LookupPort
    policies: NamespacesPort
    server_version: str
    own_urls: tuple[str, ...]  # under which clients know this broker
    log: Log
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    feed_budget: DispatchMemoryLimit = field(init=False)
    request_turns: RequestTurns = field(init=False)
    lookup_turns: RequestTurns = field(init=False)
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    refusal_log: RefusalLog = field(init=False)

    def __post_init__(self) -> None:
        budget = DispatchMemoryLimit(
            total_bytes=self.limits.feed_total_bytes, connection_bytes=self.limits.feed_bytes_max
        )
        object.__setattr__(self, "feed_budget", budget)
        object.__setattr__(self, "request_turns", RequestTurns(self.limits.requests))
        object.__setattr__(self, "lookup_turns", RequestTurns(self.limits.lookups))
        object.__setattr__(self, "refusal_log", RefusalLog(self.log, self.request_counts))

    async def run(self) -> None:
        """Begin the requests of all connections, in turn, and say which are refused; for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.request_turns.run)
            nursery.start_soon(self.lookup_turns.run)
            nursery.start_soon(self.refusal_log.run)
