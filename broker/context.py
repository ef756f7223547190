"""The parts of a broker that the handlers of all client connections share."""

from dataclasses import dataclass, field

import trio

from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.topic_lists import TopicLists
from daybook.broker.schemas.admission import SchemaAdmission
from daybook.broker.security.authorization import Authorization
from daybook.broker.service.connection import ConnectionContext
from daybook.broker.service.frame_turns import FrameTurns
from daybook.broker.service.lookup import Lookups
from daybook.broker.service.request_turns import ClientTurns, RequestTurns
from daybook.broker.service.role_use import RoleUse
from daybook.broker.topics.topics import Topics


@dataclass(frozen=True, kw_only=True)
class BrokerContext(ConnectionContext):
    """One instance per broker.  `run` belongs in the broker's nursery."""

    topics: Topics
    lookups: Lookups
    policies: Policies
    topic_lists: TopicLists
    schemas: SchemaAdmission
    authorization: Authorization | None = None  # None: each client may do everything
    ledgers_url: str  # where the ledgers are, for clients that read them themselves
    turns: ClientTurns
    frame_turns: FrameTurns = field(default_factory=FrameTurns)
    role_use: RoleUse = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.config
        most = config.producers_per_role_max, config.consumers_per_role_max
        object.__setattr__(self, "role_use", RoleUse(*most, frozenset(config.super_users)))

    @property
    def request_turns(self) -> RequestTurns:
        return self.turns.requests

    @property
    def lookup_turns(self) -> RequestTurns:
        return self.turns.lookups

    async def run(self) -> None:
        """Give all connections their turns, and log refusals; run forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.frame_turns.run)
            nursery.start_soon(self.request_turns.run)
            nursery.start_soon(self.lookup_turns.run)
            nursery.start_soon(self.refusal_log.run)
            nursery.start_soon(self.topic_lists.run)
            if self.authentication is not None:
                nursery.start_soon(self.authentication.run)
