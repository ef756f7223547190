"""What an administrator can do.  The admin REST, the simulator and tests call this.

    above topics        `tenancy`, `policies`, and here: listing, bundles, brokers
    one topic           here: on its owner; elsewhere `NotOwnerError` says who that is
    a partitioned one   here: its partitions are asked where they are, on this broker and on others

Everything raises `BrokerError`s only.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import msgspec
import trio

from daybook.broker.admin.fan_out import FanOut, Local, Remote, RemoteCalls
from daybook.broker.admin.owned_topics import MessageIdData, OwnedTopics, Start
from daybook.broker.admin.stats_sum import sum_stats
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.limits import check_properties
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import PartitionedTopic
from daybook.broker.namespaces.tenancy import Tenancy
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import members, owner_record, owners
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.protocol.bundles import BundleName, bundle_name
from daybook.broker.service.lookup import LookupResult, Lookups
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.topics import TopicName, url_encode

_FORCED = {"force": "true"}


class PartitionCountError(PreconditionError):
    status = 406


class PartitionUpdateError(PreconditionError):
    status = 422


class Operations:
    """Of one broker; most of them come to the same on any other."""

    def __init__(
        self,
        *,
        cluster: str,
        partitions_max: int,
        store: MetadataStore,
        tenancy: Tenancy,
        policies: Policies,
        ownership: Ownership,
        lookups: Lookups,
        leader: Leader,
        topics: OwnedTopics,
        remote: RemoteCalls,
    ) -> None:
        self.cluster = cluster
        self.tenancy = tenancy
        self.policies = policies
        self._partitions_max = partitions_max
        self._store = store
        self._ownership = ownership
        self._lookups = lookups
        self._leader = leader
        self._topics = topics
        self._remote = remote
        self._fan_out = FanOut(lookups, ownership.identity, remote)

    # -- brokers

    async def brokers(self) -> list[str]:
        try:
            return [member.broker_id for member in await members(self._store)]
        except MetadataError as error:
            raise UnavailableError(f"the brokers: {error}") from error

    async def leader_broker(self) -> dict[str, str]:
        try:
            view = await self._leader.view()
        except MetadataError as error:
            raise UnavailableError(f"the leader: {error}") from error
        identity = self._ownership.identity
        if view.is_us:
            url = identity.http_url or identity.service_url
            return {"brokerId": identity.broker_id, "serviceUrl": url}
        if view.member is None:
            raise NotFoundError("no broker leads at this moment")
        record = view.member.record
        url = record.web_service_url or record.pulsar_service_url
        return {"brokerId": view.member.broker_id, "serviceUrl": url}

    async def owned_bundles(self, broker_id: str) -> list[BundleName]:
        try:
            sessions = [m.session for m in await members(self._store) if m.broker_id == broker_id]
            return [o.bundle for o in await owners(self._store) if o.session in sessions]
        except MetadataError as error:
            raise UnavailableError(f"the bundles of {broker_id}: {error}") from error

    async def check_health(self) -> None:
        """Raises UnavailableError with the reason."""
        await trio.lowlevel.checkpoint()
        if not self._ownership.contact:
            raise UnavailableError("the metadata store is out of reach")

    # -- namespaces and bundles

    async def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """Raises ConflictError if it has topics, unless `force` deletes them, too."""
        await self.tenancy.mark_deleted(namespace, deleted=True)
        try:
            topics = await self.topics(namespace)
            if topics and not force:
                raise ConflictError(f"{namespace} has {len(topics)} topics")
            for topic in await self.policies.list_partitioned(namespace):
                await self.delete_partitioned(topic, force=True)
            rest = [TopicName.parse(name) for name in await self.topics(namespace)]
            await self._fan_out.each(rest, self._delete_forced, Remote("DELETE", "", _FORCED))
            with suppress(BrokerError):  # A bundle that stays owned does no harm.
                await self.unload_namespace(namespace)
            await self.tenancy.delete_namespace_records(namespace)
        except BrokerError:
            await self.tenancy.mark_deleted(namespace, deleted=False)
            raise

    async def _delete_forced(self, topic: TopicName) -> None:
        await self._topics.delete(topic, force=True)

    async def unload_namespace(self, namespace: str) -> None:
        """Hand over all its bundles, on whichever brokers they are."""
        for range_ in (await self.policies.bundles(namespace)).ranges():
            try:
                await self.unload_bundle(namespace, range_)
            except NotOwnerError as error:
                if error.http_url is None:
                    raise
                path = f"/admin/v2/namespaces/{namespace}/{range_}/unload"
                await self._remote.call(error.http_url, "PUT", path)

    async def unload_bundle(self, namespace: str, range_: str) -> None:
        """Planned hand-over: close its topics, then let any broker have it."""
        if range_ not in (await self.policies.bundles(namespace)).ranges():
            raise NotFoundError(f"{namespace} has no bundle {range_}")
        bundle = bundle_name(namespace, range_)
        try:
            record = await self._store.get(records.owner_path(bundle))
        except MetadataError as error:
            raise UnavailableError(f"the owner of {bundle}: {error}") from error
        if record is None:
            return
        if record.stat.owner != self._store.session_id:
            url = owner_record(record).http_url
            raise NotOwnerError(f"{bundle} is owned by another broker", http_url=url)
        await self._ownership.release(bundle)

    # -- what topics there are

    async def lookup(self, topic: TopicName, *, authoritative: bool = False) -> LookupResult:
        return await self._lookups.lookup(topic, authoritative=authoritative)

    async def topics(self, namespace: str) -> list[str]:
        """The full names, with partitions and without the topics that they are of."""
        await self.policies.namespace(namespace)
        names = {topic.full for topic in await self._topics.stored(namespace)}
        for topic in await self.policies.list_partitioned(namespace):
            count = await self.policies.partitions(topic)
            names |= {topic.partition_name(index).full for index in range(count)}
        return sorted(names)

    async def partitioned_topics(self, namespace: str) -> list[str]:
        await self.policies.namespace(namespace)
        return sorted(topic.full for topic in await self.policies.list_partitioned(namespace))

    async def partitioned(self, topic: TopicName) -> PartitionedTopic:
        """How many partitions; 0 for a topic without.  NotFoundError if there is no such topic."""
        record = await self.policies.partitioned(topic)
        if record is not None:
            return record
        await self.policies.namespace(topic.namespace)
        if not await self._topics.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")
        return PartitionedTopic(0)

    async def create_topic(
        self, topic: TopicName, properties: Mapping[str, str], *, authoritative: bool = False
    ) -> None:
        """Create a topic that is not partitioned.  Raises ConflictError if the name is taken."""
        if topic.partition >= 0:
            raise PreconditionError(f"{topic} is the name of a partition")
        check_properties(f"topic {topic}", properties)
        await self._check_owner(topic, authoritative=authoritative)
        await self._check_free(topic)
        await self._topics.create(topic, properties)

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        if not 1 <= partitions <= self._partitions_max:
            raise PartitionCountError(f"a topic has 1 to {self._partitions_max} partitions")
        if topic.partition >= 0:
            raise PreconditionError(f"{topic} is the name of a partition")
        check_properties(f"topic {topic}", properties)
        if (await self.policies.namespace(topic.namespace)).deleted:
            raise ConflictError(f"{topic.namespace} is being deleted")
        await self._check_free(topic)
        if not await self.policies.create_partitioned(topic, partitions, properties):
            raise ConflictError(f"the topic {topic} exists already")

    async def _check_free(self, topic: TopicName) -> None:
        if await self.policies.partitions(topic) or await self._topics.exists(topic):
            raise ConflictError(f"the topic {topic} exists already")

    async def update_partitions(self, topic: TopicName, partitions: int) -> None:
        """Only more are possible: with fewer, data would be lost."""
        if partitions > self._partitions_max:
            raise PartitionUpdateError(f"a topic has at most {self._partitions_max} partitions")

        def change(record: PartitionedTopic) -> PartitionedTopic:
            if partitions < record.partitions:
                raise PartitionUpdateError(f"{topic} has {record.partitions} partitions already")
            return PartitionedTopic(partitions, record.deleted, record.properties)

        await self.policies.change_partitioned(topic, change)

    async def delete_partitioned(self, topic: TopicName, *, force: bool) -> None:
        """Raises PreconditionError while it is in use, unless `force`."""
        await self._fan_out.each(
            await self._partitions(topic),
            lambda partition: self._topics.delete(partition, force=force),
            Remote("DELETE", "", _FORCED if force else {}),
            missing=NotFoundError,
        )
        await self.policies.delete_partitioned(topic)

    # -- one topic, or each of its partitions

    async def delete_topic(
        self, topic: TopicName, *, force: bool, authoritative: bool = False
    ) -> None:
        """Raises PreconditionError while it is in use, unless `force`."""
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)
        await self._topics.delete(topic, force=force)

    async def unload_topic(self, topic: TopicName, *, authoritative: bool = False) -> None:
        remote = Remote("PUT", "/unload")
        await self._run(topic, self._topics.unload, remote, authoritative, missing=NotFoundError)

    async def stats(self, topic: TopicName, *, authoritative: bool = False) -> dict[str, object]:
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)
        return await self._topics.stats(topic)

    async def internal_stats(
        self, topic: TopicName, *, authoritative: bool = False
    ) -> dict[str, object]:
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)
        return await self._topics.internal_stats(topic)

    async def partitioned_stats(
        self, topic: TopicName, *, per_partition: bool = True
    ) -> dict[str, object]:
        """The sums over all partitions, and each one's."""
        partitions = await self._partitions(topic)
        results = await self._fan_out.each(
            partitions, self._topics.stats, Remote("GET", "/stats"), missing=NotFoundError
        )
        found = {
            partition.full: cast("dict[str, object]", msgspec.to_builtins(result))
            for partition, result in zip(partitions, results, strict=True)
            if result is not None
        }
        total = sum_stats(list(found.values()))
        total["metadata"] = {"partitions": len(partitions)}
        total["partitions"] = found if per_partition else {}
        return total

    async def partitioned_internal_stats(self, topic: TopicName) -> dict[str, object]:
        partitions = await self._partitions(topic)
        results = await self._fan_out.each(
            partitions,
            self._topics.internal_stats,
            Remote("GET", "/internalStats"),
            missing=NotFoundError,
        )
        found = {p.full: r for p, r in zip(partitions, results, strict=True) if r is not None}
        return {"metadata": {"partitions": len(partitions)}, "partitions": found}

    async def last_message_id(
        self, topic: TopicName, *, authoritative: bool = False
    ) -> MessageIdData:
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)
        return await self._topics.last_message_id(topic)

    async def message_id_at(
        self, topic: TopicName, publish_time_ms: int, *, authoritative: bool = False
    ) -> MessageIdData:
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)
        return await self._topics.message_id_at(topic, publish_time_ms)

    async def terminate(self, topic: TopicName, *, authoritative: bool = False) -> MessageIdData:
        """No more messages; returns the id of the last one."""
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)
        return await self._topics.terminate(topic)

    async def terminate_partitions(self, topic: TopicName) -> None:
        remote = Remote("POST", "/terminate")
        await self._fan_out.each(await self._partitions(topic), self._topics.terminate, remote)

    # -- subscriptions

    async def subscriptions(self, topic: TopicName, *, authoritative: bool = False) -> list[str]:
        results = await self._run(
            topic,
            self._topics.subscriptions,
            Remote("GET", "/subscriptions"),
            authoritative,
            missing=NotFoundError,
        )
        return sorted({name for result in results for name in cast("list[str]", result or [])})

    async def create_subscription(
        self, topic: TopicName, name: str, start: Start, *, authoritative: bool = False
    ) -> None:
        """Raises ConflictError if it exists."""
        await self._run(
            topic,
            lambda t: self._topics.create_subscription(t, name, start),
            Remote("PUT", f"/subscription/{url_encode(name)}", body=start),
            authoritative,
        )

    async def delete_subscription(
        self, topic: TopicName, name: str, *, force: bool = False, authoritative: bool = False
    ) -> None:
        """Raises PreconditionError while it has consumers, unless `force`."""
        await self._run(
            topic,
            lambda t: self._topics.delete_subscription(t, name, force=force),
            Remote("DELETE", f"/subscription/{url_encode(name)}", _FORCED if force else {}),
            authoritative,
        )

    async def skip_all(self, topic: TopicName, name: str, *, authoritative: bool = False) -> None:
        """Acknowledge everything up to now."""
        await self._run(
            topic,
            lambda t: self._topics.skip_all(t, name),
            Remote("POST", f"/subscription/{url_encode(name)}/skip_all"),
            authoritative,
        )

    async def reset_to_time(
        self, topic: TopicName, name: str, publish_time_ms: int, *, authoritative: bool = False
    ) -> None:
        """Go to the first message published at that time or later; consumers reconnect."""
        await self._run(
            topic,
            lambda t: self._topics.reset_to_time(t, name, publish_time_ms),
            Remote("POST", f"/subscription/{url_encode(name)}/resetcursor/{publish_time_ms}"),
            authoritative,
        )

    async def reset_to(
        self, topic: TopicName, name: str, start: Start, *, authoritative: bool = False
    ) -> None:
        """Go to a message; `earliest` and `latest` also for a partitioned topic."""
        if not start.symbolic:
            await self._check_not_partitioned(topic)
        await self._run(
            topic,
            lambda t: self._topics.reset_to(t, name, start),
            Remote("POST", f"/subscription/{url_encode(name)}/resetcursor", body=start),
            authoritative,
        )

    # -- where

    async def _run(
        self,
        topic: TopicName,
        local: Local,
        remote: Remote,
        authoritative: bool,
        *,
        missing: type[BrokerError] | None = None,
    ) -> list[object]:
        """On the topic, here, or on each of its partitions, wherever it is."""
        count = await self.policies.partitions(topic)
        if count:
            partitions = [topic.partition_name(index) for index in range(count)]
            return await self._fan_out.each(partitions, local, remote, missing=missing)
        await self._check_owner(topic, authoritative=authoritative)
        return [await local(topic)]

    async def _partitions(self, topic: TopicName) -> list[TopicName]:
        count = await self.policies.partitions(topic)
        if not count:
            await self.policies.namespace(topic.namespace)
            raise NotFoundError(f"there is no partitioned topic {topic}")
        return [topic.partition_name(index) for index in range(count)]

    async def _check_not_partitioned(self, topic: TopicName) -> None:
        if await self.policies.partitions(topic):
            raise NotAllowedError(f"{topic} is partitioned: ask for one of its partitions")

    async def _check_owner(self, topic: TopicName, *, authoritative: bool) -> None:
        """Be the owner, or raise NotOwnerError with who is."""
        where = await self._lookups.lookup(topic, authoritative=authoritative)
        if where.redirect or where.service_url != self._ownership.identity.service_url:
            raise NotOwnerError(
                f"{topic} is served by {where.service_url}",
                http_url=where.http_url,
                authoritative=where.authoritative,
            )
