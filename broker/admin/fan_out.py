"""One operation on many topics, each where it is owned: on this broker, or on another.

What another broker refuses is raised here as if it had been refused here.  All are asked, several
at a time; then the first error, in the order of the topics, is raised.  That is not one step: some
may have done it and others not, and it may be repeated.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from daybook.broker.errors import BrokerError, NotOwnerError, UnavailableError
from daybook.broker.ownership.membership import Identity
from daybook.broker.service.lookup import Lookups
from daybook.wire.topics import TopicName

_ATTEMPTS = 4  # Each time the owner has changed in between.
_AT_ONCE = 16

Local = Callable[[TopicName], Awaitable[object]]


class RemoteCalls(Protocol):
    """How to ask another broker: its REST (`broker.admin.calls`), or whatever a test has."""

    async def call(
        self,
        http_url: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class Remote:
    """The same operation, as a call to the broker that owns the topic."""

    method: str
    suffix: str = ""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: object = None


class FanOut:
    """Asks the owners."""

    def __init__(self, lookups: Lookups, identity: Identity, remote: RemoteCalls) -> None:
        self._lookups = lookups
        self._identity = identity
        self._remote = remote

    async def each(
        self,
        topics: Sequence[TopicName],
        local: Local,
        remote: Remote,
        *,
        missing: type[BrokerError] | None = None,
    ) -> list[object]:
        """The results in the order of the topics: local objects, or the JSON of other brokers.

        Topics that answer with the error `missing` have no result and are no failure.
        """
        results: list[object] = [None] * len(topics)
        errors: dict[int, BrokerError] = {}

        async def work(start: int) -> None:
            for index in range(start, len(topics), _AT_ONCE):
                try:
                    results[index] = await self.on_owner(topics[index], local, remote)
                except BrokerError as error:
                    if missing is None or not isinstance(error, missing):
                        errors[index] = error

        async with trio.open_nursery() as nursery:
            for start in range(min(_AT_ONCE, len(topics))):
                nursery.start_soon(work, start)
        if errors:
            raise errors[min(errors)]
        return results

    async def on_owner(self, topic: TopicName, local: Local, remote: Remote) -> object:
        """The operation on one topic, wherever its owner is."""
        url, authoritative = self._identity.http_url, False
        path = f"/admin/v2/persistent/{topic.namespace}/{topic.encoded}{remote.suffix}"
        for _ in range(_ATTEMPTS):
            if url == self._identity.http_url:
                where = await self._lookups.lookup(topic, authoritative=authoritative)
                if where.service_url == self._identity.service_url:
                    return await local(topic)
                url, authoritative = where.http_url, where.redirect and where.authoritative
            if url is None:
                raise NotOwnerError(f"{topic} is owned by a broker without an HTTP port")
            query = {**remote.query, "authoritative": "true" if authoritative else "false"}
            try:
                return await self._remote.call(
                    url, remote.method, path, query=query, body=remote.body
                )
            except NotOwnerError as error:  # It knows better; perhaps it is us.
                url, authoritative = error.http_url, error.authoritative
        raise UnavailableError(f"the owner of {topic} keeps changing")
