"""Look-ups: the broker of a topic, its number of partitions, the topics of a namespace.

Any broker can answer; a question without an answer goes to the next broker.  A question changes
nothing (except that a topic without a broker gets one), so it may be repeated.  `persist` does that
for as long as an operation may take; the handler of a topic repeats its question without an end.
"""

import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import trio

from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.errors import (
    BrokerError,
    NotReadyError,
    Remedy,
    is_refused_for_now,
    refusal,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.pool import ConnectionPool
from daybook.clients.python.protocol.retry import Backoff
from daybook.clients.python.schemas.schema import SchemaInfo, SchemaVersion
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

_log = logging.getLogger("daybook.client")
_Lookup = pb.CommandLookupTopicResponse
_T = TypeVar("_T")
_Partitions = pb.CommandPartitionedTopicMetadataResponse


class Lookups:
    """One instance per client."""

    def __init__(self, pool: ConnectionPool, limits: ClientLimits, rng: Random) -> None:
        self._pool = pool
        self._limits = limits
        self._rng = rng
        self._trouble: BrokerError | None = None
        self._warned = False
        self._through_proxy = False  # in the latest answer

    @property
    def trouble(self) -> BrokerError | None:
        """The error of the last attempt; None once an attempt has succeeded."""
        return self._trouble

    @trouble.setter
    def trouble(self, error: BrokerError | None) -> None:
        # A refusal says nothing about other topics, so the handler of the topic logs it.
        if error is not None and not self._warned and not is_refused_for_now(error):
            self._warned = True  # Once, not for each attempt.
            _log.warning("the client found no broker and is trying again: %s", error)
        elif error is None and self._warned:
            self._warned = False
            _log.info("a broker answers again")
        self._trouble = error

    async def persist(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask until there is an answer, or until `operation_timeout_s` is over."""
        backoff = Backoff(self._limits.backoff_initial_s, self._limits.backoff_max_s)
        deadline = trio.current_time() + self._limits.operation_timeout_s
        while True:
            try:
                answer = await ask()
            except BrokerError as error:
                if error.remedy is Remedy.GIVE_UP or trio.current_time() >= deadline:
                    raise
                self.trouble = error
            else:
                self.trouble = None
                return answer
            await trio.sleep(backoff.next(self._rng.random()))

    async def assigned(self, url: str) -> BrokerConnection | None:
        """Return a connection to the broker that another one has named; None if that fails.

        Behind a proxy, only a look-up tells how to reach a broker.
        """
        if self._through_proxy:
            return None
        try:
            return await self._connect(url, through_service=False)
        except BrokerError:
            return None

    async def connection(self, topic: TopicName) -> BrokerConnection:
        """Return a connection to the broker that serves `topic`."""
        url, through_service = await self.find(topic)
        self._through_proxy = through_service
        return await self._connect(url, through_service=through_service)

    async def find(self, topic: TopicName) -> tuple[str, bool]:
        """Return the URL of the broker that serves `topic`, and True if a proxy is used."""
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
            if answer.response == _Lookup.Failed:
                raise refusal(answer.error, answer.message)
            url, through_service = self._url_of(answer), answer.proxy_through_service_url
            if answer.response == _Lookup.Connect:
                return url, through_service
            connection = await self._connect(url, through_service=through_service)
            authoritative = answer.authoritative
        raise NotReadyError(
            pb.ServiceNotReady,
            f"the brokers redirect the look-up of {topic} in a circle: try again",
        )

    def _url_of(self, answer: pb.CommandLookupTopicResponse) -> str:
        """Return the URL for this client.  Raise NotReadyError if the answer has none."""
        encrypted = self._pool.encrypted
        url = answer.brokerServiceUrlTls if encrypted else answer.brokerServiceUrl
        if not url:
            kind = "with" if encrypted else "without"
            raise NotReadyError(
                pb.ServiceNotReady,
                f"the broker that serves the topic has no port {kind} TLS: use a service URL that"
                f" begins with {'pulsar' if encrypted else 'pulsar+ssl'}://, or give the broker"
                " such a port",
            )
        return url

    async def _connect(self, url: str, *, through_service: bool) -> BrokerConnection:
        try:
            return await self._pool.broker(url, through_service=through_service)
        except ValueError as error:
            raise NotReadyError(
                pb.ServiceNotReady,
                f"a broker answered a look-up with an address that is not valid: {error}",
            ) from None

    async def partitions(self, topic: TopicName, *, create: bool = True) -> int:
        """Return the number of partitions of `topic`; 0 if it is not partitioned."""
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

    async def topics_of(self, name: TopicName) -> list[TopicName]:
        """Return the topic itself, or its partitions; ask until there is an answer."""
        if name.partition >= 0:
            return [name]
        count = await self.persist(lambda: self.partitions(name))
        return [name.partition_name(index) for index in range(count)] if count else [name]

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names of the persistent topics in a namespace, with each partition."""
        service = await self._pool.service()
        answer = await self._ask(
            service, pb.CommandGetTopicsOfNamespace(namespace=namespace), service
        )
        return sorted(answer.topics)

    async def schema(self, topic: TopicName, version: bytes | None) -> SchemaVersion:
        """Return a version of the schema of a topic, or the newest one (None).

        Raise TopicNotFoundError if there is none.
        """
        service = await self._pool.service()
        request = pb.CommandGetSchema(topic=topic.full)
        if version is not None:
            request.schema_version = version
        answer = await self._ask(service, request, service)
        return SchemaVersion(answer.schema_version, SchemaInfo.from_wire(answer.schema))

    async def _ask(
        self,
        connection: BrokerConnection,
        question: Any,  # noqa: ANN401
        service: BrokerConnection,
    ) -> Any:  # noqa: ANN401
        """Ask a broker; `service` is the broker whose look-up led to it."""
        try:
            return await connection.request(question)
        except BrokerError as error:
            if error.remedy is not Remedy.GIVE_UP:
                # The connection is kept, for the producers and consumers that use it.
                self._pool.next_service(service)
            raise
