"""Which broker serves a topic, how many partitions it has, which topics there are.

Any broker answers; a question that one of them leaves open goes to the next.  Asking changes
nothing (at most, a topic gets the broker that it lacked), so it may be repeated; for how long is
the caller's business.
"""

import logging
from typing import Any

from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.errors import (
    BrokerError,
    NotReadyError,
    Remedy,
    refusal,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.pool import ConnectionPool
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

_log = logging.getLogger("daybook.client")
_Lookup = pb.CommandLookupTopicResponse
_Partitions = pb.CommandPartitionedTopicMetadataResponse


class Lookups:
    """The questions of one client."""

    def __init__(self, pool: ConnectionPool, limits: ClientLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._trouble: BrokerError | None = None

    @property
    def trouble(self) -> BrokerError | None:
        """Why the last attempt failed that is repeated; None once one has succeeded."""
        return self._trouble

    @trouble.setter
    def trouble(self, error: BrokerError | None) -> None:
        if error is not None and self._trouble is None:  # Once, not with each attempt.
            _log.warning("%s; trying again", error)
        elif error is None and self._trouble is not None:
            _log.info("the brokers answer again")
        self._trouble = error

    async def connection(self, topic: TopicName) -> BrokerConnection:
        """A connection to the broker that serves `topic`."""
        url, through_service = await self.find(topic)
        return await self._connect(url, through_service=through_service)

    async def find(self, topic: TopicName) -> tuple[str, bool]:
        """The URL of the broker that serves `topic`, and whether to go there through a proxy."""
        service = connection = await self._pool.service()
        authoritative = False
        for _ in range(self._limits.redirects_max):
            answer = await self._ask(
                connection,
                pb.CommandLookupTopic(
                    topic=topic.full, authoritative=authoritative, advertised_listener_name=""
                ),
                service,
            )
            if answer.response == _Lookup.Failed or not answer.brokerServiceUrl:
                raise refusal(answer.error, answer.message)
            url, through_service = answer.brokerServiceUrl, answer.proxy_through_service_url
            if answer.response == _Lookup.Connect:
                return url, through_service
            connection = await self._connect(url, through_service=through_service)
            authoritative = answer.authoritative
        raise NotReadyError(pb.ServiceNotReady, f"look-ups of {topic} go round in circles")

    async def _connect(self, url: str, *, through_service: bool) -> BrokerConnection:
        try:
            return await self._pool.broker(url, through_service=through_service)
        except ValueError as error:
            raise NotReadyError(pb.ServiceNotReady, f"a look-up led nowhere: {error}") from None

    async def partitions(self, topic: TopicName, *, create: bool = True) -> int:
        """How many partitions `topic` has; 0 if it is not partitioned."""
        service = await self._pool.service()
        answer = await self._ask(
            service,
            pb.CommandPartitionedTopicMetadata(
                topic=topic.full, metadata_auto_creation_enabled=create
            ),
            service,
        )
        if answer.response == _Partitions.Failed or answer.HasField("error"):
            raise refusal(answer.error, answer.message)
        return int(answer.partitions)

    async def topics(self, namespace: str) -> list[str]:
        """The full names of the persistent topics in a namespace, partitions one by one."""
        service = await self._pool.service()
        answer = await self._ask(
            service, pb.CommandGetTopicsOfNamespace(namespace=namespace), service
        )
        return sorted(answer.topics)

    async def _ask(
        self,
        connection: BrokerConnection,
        question: Any,  # noqa: ANN401
        service: BrokerConnection,
    ) -> Any:  # noqa: ANN401
        """`service` led to `connection`."""
        try:
            return await connection.request(question)
        except BrokerError as error:
            if error.remedy is not Remedy.GIVE_UP:
                # Its connection stays: who produces or consumes there is not concerned.
                self._pool.next_service(service)
            raise
