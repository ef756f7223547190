"""Operations on topics, each of which is run by the broker that owns the topic.

An operation has two forms: a function of this broker, and a call to the admin REST of another one.
An operation on many topics asks their owners, several at a time.  A refusal by another broker is
raised as if this broker had refused.  When all owners have answered, the first error in the order
of the topics is raised.  Such an operation is not atomic: it may have succeeded on some partitions
and failed on others.  It may be repeated.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import trio

from daybook.broker.admin.message_ids import Start
from daybook.broker.errors import (
    BrokerError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
    before_any_change,
)
from daybook.broker.namespaces.policies import Policies
from daybook.broker.ownership.membership import Identity
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.service.lookup import Lookups
from daybook.wire.topics import TopicName

_ATTEMPTS = 4  # to find the owner of a topic; each fails only if the owner has changed meanwhile
_AT_ONCE = 16  # calls to owners

T = TypeVar("T")
Local: TypeAlias = Callable[[TopicName], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class RestCall:
    """An operation on one topic, as a call to the admin REST of the broker that owns it."""

    method: str
    suffix: str = ""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: object = None
    own: bool = False  # made for this broker, whoever sent the request that it works for


class TopicOwners:
    """The owners of topics, as this broker finds them.  `exists` asks for an unpartitioned one."""

    def __init__(
        self,
        *,
        policies: Policies,
        lookups: Lookups,
        identity: Identity,
        peer_calls: PeerCalls,
        exists: Callable[[TopicName], Awaitable[bool]],
    ) -> None:
        self._policies = policies
        self._lookups = lookups
        self._identity = identity
        self._peer_calls = peer_calls
        self._exists = exists

    async def run_here(self, topic: TopicName, local: Local, *, authoritative: bool) -> object:
        """Run an operation on a topic that is not partitioned, if this broker owns it."""
        await self.check(topic, authoritative=authoritative)
        return await local(topic)

    async def check(self, topic: TopicName, *, authoritative: bool) -> None:
        await self.check_not_partitioned(topic)
        await self.check_owner(topic, authoritative=authoritative)

    async def check_owner(self, topic: TopicName, *, authoritative: bool) -> None:
        """Raise NotOwnerError, which names the owner, unless this broker owns the topic.

        The caller has changed nothing yet.  With `authoritative`, this broker acquires the topic's
        bundle if no broker owns it.
        """
        with before_any_change():
            where = await self._lookups.lookup(topic, authoritative=authoritative)
        if where.redirect or not where.is_at(self._identity):
            raise NotOwnerError(
                f"the broker at {where.url} serves {topic}: ask that one, as the header"
                " Location says (curl -L does)",
                http_url=where.http_url,
                http_url_tls=where.http_url_tls,
                authoritative=where.authoritative,
            )

    async def partition_of(self, topic: TopicName, start: Start) -> TopicName:
        """Return the topic itself, or the partition that a message id names."""
        partitions = await self._policies.partitions(topic)
        if not partitions:
            return topic
        if not 0 <= start.partition_index < partitions:
            raise NotAllowedError(
                f"{topic} has {partitions} partitions, and the message id names none of them: give"
                f" its partitionIndex, or name one of the partitions, such as {topic}-partition-0"
            )
        return topic.partition_name(start.partition_index)

    async def check_not_partitioned(self, topic: TopicName) -> None:
        with before_any_change():
            partitions = await self._policies.partitions(topic)
        if partitions:
            raise NotAllowedError(
                f"{topic} is partitioned: name one of its partitions, such as {topic}-partition-0"
            )

    async def partitions(self, topic: TopicName) -> list[TopicName]:
        count = await self._policies.partitions(topic)
        if not count:
            await self._policies.namespace(topic.namespace)
            if await self._exists(topic):
                raise NotFoundError(
                    f"the partitioned topic {topic} does not exist: a topic of this name has no"
                    " partitions, and cannot get any"
                )
            raise NotFoundError(f"the partitioned topic {topic} does not exist")
        return [topic.partition_name(index) for index in range(count)]

    async def run_on_all(
        self,
        topic: TopicName,
        local: Local,
        call: RestCall,
        *,
        authoritative: bool,
        missing: type[BrokerError] | None = None,
        added: tuple[Local, RestCall, type[BrokerError]] | None = None,
    ) -> list[object]:
        """Run an operation on the topic, on this broker, or on each partition, on its owner.

        `added` is the operation for partitions that come meanwhile.  Its error is no failure: the
        broker that adds a partition may have been faster.
        """
        count = await self._policies.partitions(topic)
        if count:
            partitions = [topic.partition_name(index) for index in range(count)]
            results = await self.run_on(partitions, local, call, missing=missing)
            while added is not None and count < (
                now := await self._policies.newest_partitions(topic)
            ):
                partitions = [topic.partition_name(index) for index in range(count, now)]
                await self.run_on(partitions, added[0], added[1], missing=added[2])
                count = now
            return results
        await self.check_owner(topic, authoritative=authoritative)
        return [await local(topic)]

    async def run_on(
        self,
        topics: Sequence[TopicName],
        local: Local,
        call: RestCall,
        *,
        missing: type[BrokerError] | None = None,
    ) -> list[object]:
        """Return the results in the order of the topics: local objects, or JSON of other brokers.

        A topic that answers with the error `missing` has no result, and that is no failure.
        """
        results: list[object] = [None] * len(topics)

        async def ask(index: int) -> None:
            try:
                results[index] = await self.run_on_owner(topics[index], local, call)
            except BrokerError as error:
                if missing is None or not isinstance(error, missing):
                    raise

        await ask_each(range(len(topics)), ask)
        return results

    def is_own(self, url: str) -> bool:
        identity = self._identity
        return url in (identity.http_url, identity.http_url_tls)

    async def run_on_owner(self, topic: TopicName, local: Local, call: RestCall) -> object:
        """Run an operation on one topic, on the broker that owns it."""
        url_of = self._peer_calls.url_of
        url, authoritative, own = None, False, True
        path = f"/admin/v2/{topic.domain}/{topic.namespace}/{topic.encoded}{call.suffix}"
        for _ in range(_ATTEMPTS):
            if own:
                where = await self._lookups.lookup(topic, authoritative=authoritative)
                if where.is_at(self._identity):
                    return await local(topic)
                url = url_of(where.http_url, where.http_url_tls)
                authoritative = where.redirect and where.authoritative
            if url is None:
                raise NotOwnerError(
                    f"the broker that owns {topic} has no HTTP port, so it cannot be asked"
                )
            query = {**call.query, "authoritative": "true" if authoritative else "false"}
            try:
                return await self._peer_calls.call(
                    url, call.method, path, query=query, body=call.body, own=call.own
                )
            except NotOwnerError as error:
                # The other broker names the owner.  It may be this one.
                url = url_of(error.http_url, error.http_url_tls)
                authoritative, own = error.authoritative, url is not None and self.is_own(url)
        raise UnavailableError(f"the owner of {topic} keeps changing: try again")


async def ask_each(items: Sequence[T], ask: Callable[[T], Awaitable[None]]) -> None:
    """Ask for all items, several at a time; raise the first error in their order."""
    errors: dict[int, BrokerError] = {}

    async def work(start: int) -> None:
        for index in range(start, len(items), _AT_ONCE):
            try:
                await ask(items[index])
            except BrokerError as error:
                errors[index] = error

    async with trio.open_nursery() as nursery:
        for start in range(min(_AT_ONCE, len(items))):
            nursery.start_soon(work, start)
    if errors:
        raise errors[min(errors)]
