"""The operations of an administrator.  The admin REST, the simulator and tests call them.

    above topics        `tenancy`, `policies`, and here: lists, bundles, brokers
    one topic           here, on the topic's owner; another broker raises `NotOwnerError`, which
                        names the owner
    a partitioned one   here: each partition is asked where it is, on this broker or on another
                        (`topic_owners`), and does there what `owned_topics` says

All operations raise only `BrokerError`s.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

import msgspec
import trio

from daybook.broker.admin.broker_operations import BrokerOperations
from daybook.broker.admin.bundle_operations import BundleOperations
from daybook.broker.admin.message_ids import MessageIdData, Start
from daybook.broker.admin.owned_topics import OwnedTopics
from daybook.broker.admin.pages import Pages
from daybook.broker.admin.replica_limit import ReplicaLimit
from daybook.broker.admin.schemas import SchemaParts
from daybook.broker.admin.stats_sums import sum_stats
from daybook.broker.admin.topic_owners import Local, RestCall, TopicOwners
from daybook.broker.compaction.state import CompactionState, most_urgent
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    before_any_change,
)
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.policy_table import DEDUPLICATION, Policy
from daybook.broker.namespaces.records import PartitionedTopic
from daybook.broker.namespaces.tenancy import Tenancy
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import members, owners
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.broker.service.lookup import LookupResult, Lookups
from daybook.broker.topics.explain import TopicExplanation, explain
from daybook.broker.topics.growth import Subscriptions, grow, stored_subscriptions
from daybook.broker.topics.stats import topic_stats
from daybook.broker.topics.topic_properties import check_new
from daybook.broker.topics.topics import Topics
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.topics import DOMAINS, TopicName, url_encode

_FORCED = {"force": "true"}
_SHOWN = 20  # names in one error
_UNMARK_S = 5.0  # for the mark of a namespace that stays
_PER_TURN = 16  # topics whose stats are made in one turn of the loop


class PartitionCountError(PreconditionError):
    status = 406


class PartitionUpdateError(PreconditionError):
    status = 422


class _Consumers(msgspec.Struct, frozen=True):
    consumers: list[object] = []


class _Connected(msgspec.Struct, frozen=True):
    """The clients in the stats of a topic."""

    publishers: list[object] = []
    subscriptions: dict[str, _Consumers] = {}


class Operations:
    """The operations of one broker.  Most of them have the same result on every broker."""

    def __init__(
        self,
        *,
        cluster: str,
        partitions_max: int,
        replicas: ReplicaLimit,
        store: MetadataStore,
        tenancy: Tenancy,
        policies: Policies,
        ownership: Ownership,
        lookups: Lookups,
        leader: Leader,
        topics: Topics,
        owned: OwnedTopics,
        schemas: SchemaRegistry,
        settings: Mapping[str, str] | None = None,
        peer_calls: PeerCalls,
        bundles: BundleOperations,
        of_brokers: BrokerOperations,
    ) -> None:
        self.cluster = cluster
        self.settings = settings or {}  # those of this broker, as texts
        self.tenancy = tenancy
        self.policies = policies
        self.bundles = bundles
        self.of_brokers = of_brokers
        self.schemas = SchemaParts(schemas, policies)
        self.pages = Pages()
        self.replicas = replicas
        self._partitions_max = partitions_max
        self._store = store
        self._ownership = ownership
        self._lookups = lookups
        self._leader = leader
        self._topics = topics
        self._peer_calls = peer_calls
        self.owned = owned
        self.owners = TopicOwners(
            policies=policies,
            lookups=lookups,
            identity=ownership.identity,
            peer_calls=peer_calls,
            exists=owned.exists,
        )

    # -- brokers

    async def brokers(self) -> list[str]:
        """Return the ids of the registered brokers."""
        try:
            return [member.broker_id for member in await members(self._store)]
        except MetadataError as error:
            raise UnavailableError(f"the list of brokers cannot be read now: {error}") from error

    async def leader_broker(self, *, encrypted: bool = False) -> dict[str, str]:
        """Return the leader and its URL; a caller over TLS (`encrypted`) is told no other."""
        try:
            view = await self._leader.view()
        except MetadataError as error:
            raise UnavailableError(
                f"the record of the leader cannot be read now: {error}"
            ) from error
        identity = self._ownership.identity
        if view.is_us:
            url = identity.http_url_tls if encrypted else identity.call_url or identity.url
            return {"brokerId": identity.broker_id, "serviceUrl": url or ""}
        if view.member is None:
            raise NotFoundError("no broker leads at this moment: try again in a few seconds")
        record = view.member.record
        url = record.web_service_url_tls if encrypted else record.http_url or record.service_url
        return {"brokerId": view.member.broker_id, "serviceUrl": url or ""}

    async def owned_bundles(self, broker_id: str) -> list[BundleName]:
        try:
            sessions = [m.session for m in await members(self._store) if m.broker_id == broker_id]
            return [o.bundle for o in await owners(self._store) if o.session in sessions]
        except MetadataError as error:
            raise UnavailableError(
                f"the bundles of {broker_id} cannot be read now: {error}"
            ) from error

    async def loaded_stats(self) -> dict[str, dict[str, dict[str, object]]]:
        """Return the stats of the topics that this broker has loaded: by namespace and bundle."""
        found: dict[str, dict[str, dict[str, object]]] = {}
        broker = self._ownership.identity.broker_id
        for count, topic in enumerate(list(self._topics.loaded.values()), 1):
            bundle = self.policies.known_bundle_of(topic.name)
            range_ = "" if bundle is None else bundle.rpartition("/")[2]
            bundles = found.setdefault(topic.name.namespace, {}).setdefault(range_, {})
            of_bundle = cast("dict[str, object]", bundles.setdefault("persistent", {}))
            of_bundle[topic.name.full] = topic_stats(topic, broker)
            if not count % _PER_TURN:
                await trio.lowlevel.checkpoint()
        return found

    async def check_health(self) -> None:
        """Raise UnavailableError, with the reason, if this broker cannot serve."""
        await trio.lowlevel.checkpoint()
        if not self._ownership.contact:
            raise UnavailableError("this broker has no contact with the metadata store")

    # -- namespaces and bundles

    async def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """Delete a namespace.

        Raise ConflictError if it has topics, unless `force` deletes them, too.
        """
        try:
            # While the namespace is marked, no topic of it is created, so the list is complete.
            marked = await self.tenancy.mark_deleted(namespace, deleted=True)
            topics = await self.topics(namespace)
            topics += await self.partitioned_topics(namespace, "non-persistent")
            if topics and not force:
                raise ConflictError(
                    f"the namespace {namespace} has {len(topics)} topic{'s' * (len(topics) > 1)}:"
                    " delete them first, or use force"
                )
            for domain in DOMAINS:
                for topic in await self.policies.list_partitioned(namespace, domain):
                    await self.delete_partitioned(topic, force=True)
            rest = [TopicName.parse(name) for name in await self.topics(namespace)]
            await self.owners.run_on(rest, self._delete_forced, RestCall("DELETE", "", _FORCED))
            with suppress(BrokerError):  # A bundle that stays owned is harmless.
                await self.bundles.unload_namespace(namespace, hand_over=False)
            await self.schemas.registry.delete_namespace(namespace)
            await self.tenancy.delete_namespace_records(namespace, marked)
        except BaseException:
            # Without this, nobody could create topics after a deletion that was given up.
            with trio.move_on_after(_UNMARK_S, shield=True), suppress(BrokerError):
                await self.tenancy.mark_deleted(namespace, deleted=False)
            raise

    async def _delete_forced(self, topic: TopicName) -> None:
        await self._delete_with_policies(topic, force=True)

    async def explain_topic(
        self, topic: TopicName, *, authoritative: bool = False
    ) -> TopicExplanation:
        """Return what a topic is doing at its broker, without loading it."""
        await self.owners.check_not_partitioned(topic)
        await self.owners.check_owner(topic, authoritative=authoritative)
        if not await self.owned.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")
        found = explain(self._topics, topic, waiting=self.of_brokers.activity().requests_waiting)
        found.broker = self._ownership.identity.broker_id
        return found

    # -- listing and creating topics

    async def lookup(self, topic: TopicName, *, authoritative: bool = False) -> LookupResult:
        return await self._lookups.lookup(topic, authoritative=authoritative)

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names: partitions, but not the partitioned topics themselves."""
        await self.policies.namespace(namespace)
        names = {topic.full for topic in await self.owned.stored(namespace)}
        for topic in await self.policies.list_partitioned(namespace):
            count = await self.policies.partitions(topic)
            names |= {topic.partition_name(index).full for index in range(count)}
        return sorted(names)

    async def partitioned_topics(self, namespace: str, domain: str = "persistent") -> list[str]:
        await self.policies.namespace(namespace)
        found = await self.policies.list_partitioned(namespace, domain)
        return sorted(topic.full for topic in found)

    async def non_persistent_topics(self, namespace: str, *, here: bool = False) -> list[str]:
        """Return the full names of non-persistent topics, which their owners alone know.

        With `here`, only this broker tells.  A broker that does not answer has no topics to tell.
        """
        await self.policies.namespace(namespace)
        names = set(await self._topics.non_persistent_names_in(namespace))
        if here:
            return sorted(names)
        path, url_of = f"/admin/v2/non-persistent/{namespace}", self._peer_calls.url_of
        try:
            registered = [member.record for member in await members(self._store)]
        except MetadataError as error:
            raise UnavailableError(f"the list of brokers cannot be read now: {error}") from error

        async def ask(url: str) -> None:
            with suppress(BrokerError):
                answer = await self._peer_calls.call(url, "GET", path, query={"thisBroker": "true"})
                names.update(map(str, cast("list[object]", answer or [])))

        async with trio.open_nursery() as nursery:
            for record in registered:
                url = url_of(record.web_service_url, record.web_service_url_tls)
                if url is not None and not self.owners.is_own(url):
                    nursery.start_soon(ask, url)
        return sorted(names)

    async def partitioned(self, topic: TopicName) -> PartitionedTopic:
        """Return how many partitions the topic has, 0 if it is not partitioned.

        Raise NotFoundError if the topic does not exist.
        """
        record = await self.policies.partitioned(topic)
        if record is not None:
            return record
        await self.policies.namespace(topic.namespace)
        if not await self.owned.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")
        return PartitionedTopic(0)

    async def create_topic(
        self, topic: TopicName, properties: Mapping[str, str], *, authoritative: bool = False
    ) -> None:
        """Create a topic that is not partitioned.  Raise ConflictError if the name is taken."""
        if topic.partition >= 0:
            raise PreconditionError(
                f"{topic} is the name of a partition: name the topic without -partition-N"
            )
        check_new(f"topic {topic}", properties)
        await self.owners.check_owner(topic, authoritative=authoritative)
        await self._check_free(topic)
        await self.owned.create(topic, properties)

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Create a partitioned topic.  Raise ConflictError if the name is taken."""
        if not 1 <= partitions <= self._partitions_max:
            raise PartitionCountError(
                f"a topic has 1 to {self._partitions_max} partitions (partitions_max), not"
                f" {partitions}"
            )
        if topic.partition >= 0:
            raise PreconditionError(
                f"{topic} is the name of a partition: name the topic without -partition-N"
            )
        check_new(f"topic {topic}", properties)
        with before_any_change():
            deleted = (await self.policies.namespace(topic.namespace)).deleted
        if deleted:
            raise ConflictError(f"the namespace {topic.namespace} is being deleted")
        await self._check_free(topic)
        await self.policies.check_room(
            topic.namespace, partitions, lambda: self.topics(topic.namespace)
        )
        if not await self.policies.create_partitioned(topic, partitions, properties):
            raise ConflictError(f"the topic {topic} exists already")

    async def _check_free(self, topic: TopicName) -> None:
        with before_any_change():
            taken = await self.policies.partitions(topic) or await self.owned.exists(topic)
        if taken:
            raise ConflictError(f"the topic {topic} exists already")

    async def update_partitions(
        self, topic: TopicName, partitions: int, *, force: bool = False
    ) -> None:
        """Add partitions, with the topic's subscriptions from their beginning on.

        The number of partitions never falls: data would be lost.  Raise ConflictError if a topic
        has the name of a new partition already, unless `force` makes it that partition.
        """
        if partitions > self._partitions_max:
            raise PartitionUpdateError(
                f"a topic has at most {self._partitions_max} partitions (partitions_max), not"
                f" {partitions}"
            )

        def check(record: PartitionedTopic) -> int:
            if partitions < record.partitions:
                raise PartitionUpdateError(
                    f"{topic} has {record.partitions} partitions already, and their number cannot"
                    " fall"
                )
            return partitions

        try:
            new, subscriptions = await grow(self._store, topic, check, force=force)
        except NotFoundError:
            await self.owners.partitions(topic)  # It says more.
            raise
        names = [topic.partition_name(index) for index in new]
        # Subscriptions may have been created meanwhile, and a topic that existed lacks all of them.
        known: Subscriptions = {} if force else subscriptions
        present: Subscriptions
        present = await stored_subscriptions(self._store, topic, new.start) if names else {}
        failed: dict[str, BrokerError] = {}
        for name, properties in sorted(present.items()):
            if name not in known:
                start = Start(-1, -1, properties=dict(properties) or None)
                try:
                    await self.owners.run_on(
                        names,
                        partial(self.owned.create_subscription, name=name, start=start),
                        RestCall("PUT", f"/subscription/{url_encode(name)}", body=start),
                        missing=ConflictError,
                    )
                except BrokerError as error:
                    failed[name] = error
        if failed:
            # A repeated call finds no new partitions, so it would complete nothing.
            which, why = ", ".join([*failed][:_SHOWN]), next(iter(failed.values()))
            raise UnavailableError(
                f"{topic} has {partitions} partitions now, and those from {names[0]} on may lack"
                f" {len(failed)} subscriptions ({which}): create them there from the earliest"
                f" message, else they miss what is published there ({why})"
            )

    async def delete_partitioned(self, topic: TopicName, *, force: bool) -> None:
        """Delete all partitions.  Raise PreconditionError while one is in use, unless `force`."""
        partitions = await self.owners.partitions(topic)
        if not force:
            await self._check_unused(partitions)
        deleted = 0
        while True:
            await self.owners.run_on(
                partitions[deleted:],
                lambda partition: self.owned.delete(partition, force=force),
                RestCall("DELETE", "", _FORCED if force else {}),
                missing=NotFoundError,
            )
            deleted = len(partitions)
            if await self.policies.delete_partitioned(topic, partitions_max=deleted):
                break
            # The topic has grown meanwhile.  Without the record, its new partitions would be left.
            count = await self.policies.newest_partitions(topic)
            partitions = [topic.partition_name(index) for index in range(count)]
        await self.policies.delete_topic_policies(topic)
        await self.schemas.registry.delete_all(topic)

    async def _check_unused(self, partitions: Sequence[TopicName]) -> None:
        """Raise PreconditionError if a partition is in use, before any of them is deleted."""
        call = RestCall("GET", "/stats")
        found = await self.owners.run_on(partitions, self.owned.stats, call, missing=NotFoundError)
        for partition, result in zip(partitions, found, strict=True):
            stats = msgspec.convert(msgspec.to_builtins(result or {}), _Connected)
            if stats.publishers or any(each.consumers for each in stats.subscriptions.values()):
                raise PreconditionError(
                    f"{partition} has producers or consumers that are connected, so no partition"
                    " was deleted: close them, or use force"
                )

    # -- one topic, or each of its partitions

    async def delete_topic(
        self, topic: TopicName, *, force: bool, authoritative: bool = False
    ) -> None:
        """Delete a topic.  Raise PreconditionError while it is in use, unless `force`."""
        await self.owners.check(topic, authoritative=authoritative)
        await self._delete_with_policies(topic, force=force)

    async def _delete_with_policies(self, topic: TopicName, *, force: bool) -> None:
        await self.owned.delete(topic, force=force)
        if topic.partition < 0:  # Partitions share the policies and schemas of their topic.
            await self.policies.delete_topic_policies(topic)
            # The schemas come last: what the topic held could not be read without them.
            await self.schemas.registry.delete_all(topic)

    async def topic_policy(self, topic: TopicName, policy: Policy, *, applied: bool) -> object:
        """Return the topic's own policy in JSON, or with `applied` the one that is in force."""
        await self.check_exists(topic)
        own = await self.policies.topic_policy(topic, policy)
        if not applied or not policy.says_nothing(own):
            return own
        return policy.shown(await self.policies.effective(topic))

    async def set_topic_policy(self, topic: TopicName, policy: Policy, value: object) -> None:
        """Set a policy of a topic, which counts for all its partitions.  None removes it.

        Loaded topics follow within a second.  If deduplication is switched on or off, they are
        loaded again before this returns.
        """
        await self.check_exists(topic)
        if policy is not DEDUPLICATION:
            await self.policies.set_topic_policy(topic, policy, value)
            return
        before = (await self.policies.effective(topic)).deduplication
        await self.policies.set_topic_policy(topic, policy, value)
        if (await self.policies.effective(topic)).deduplication != before:
            count = await self.policies.partitions(topic)
            parts = [topic.partition_name(index) for index in range(count)] or [topic]
            unload = RestCall("PUT", "/unload")
            await self.owners.run_on(parts, self.owned.unload, unload, missing=NotFoundError)

    async def check_exists(self, topic: TopicName) -> None:
        if not await self.policies.partitions(topic) and not await self.owned.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")

    async def unload_topic(self, topic: TopicName, *, authoritative: bool = False) -> None:
        """Close a topic, or all its partitions, in order.  The next client loads it again."""
        call = RestCall("PUT", "/unload")
        await self.owners.run_on_all(
            topic, self.owned.unload, call, authoritative=authoritative, missing=NotFoundError
        )

    async def compact(self, topic: TopicName, *, authoritative: bool = False) -> None:
        """Start the compaction of a topic, or of all its partitions.

        Raise ConflictError if one is under way; the others are started nevertheless.
        """
        call = RestCall("PUT", "/compaction")
        await self.owners.run_on_all(topic, self.owned.compact, call, authoritative=authoritative)

    async def compaction(self, topic: TopicName, *, authoritative: bool = False) -> CompactionState:
        """Return the state of the last compaction; of all partitions, the one to look at first."""
        call = RestCall("GET", "/compaction")
        found = await self.owners.run_on_all(
            topic, self.owned.compaction, call, authoritative=authoritative
        )
        return most_urgent([msgspec.convert(each, CompactionState) for each in found])

    async def stats(self, topic: TopicName, *, authoritative: bool = False) -> dict[str, object]:
        await self.owners.check(topic, authoritative=authoritative)
        return await self.owned.stats(topic)

    async def internal_stats(
        self, topic: TopicName, *, authoritative: bool = False
    ) -> dict[str, object]:
        await self.owners.check(topic, authoritative=authoritative)
        return await self.owned.internal_stats(topic)

    async def partitioned_stats(
        self, topic: TopicName, *, per_partition: bool = True
    ) -> dict[str, object]:
        """Return the sums over all partitions, and the stats of each one."""
        partitions = await self.owners.partitions(topic)
        results = await self.owners.run_on(
            partitions, self.owned.stats, RestCall("GET", "/stats"), missing=NotFoundError
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
        partitions = await self.owners.partitions(topic)
        call = RestCall("GET", "/internalStats")
        results = await self.owners.run_on(
            partitions, self.owned.internal_stats, call, missing=NotFoundError
        )
        found = {p.full: r for p, r in zip(partitions, results, strict=True) if r is not None}
        return {"metadata": {"partitions": len(partitions)}, "partitions": found}

    async def last_message_id(
        self, topic: TopicName, *, authoritative: bool = False
    ) -> MessageIdData:
        await self.owners.check(topic, authoritative=authoritative)
        return await self.owned.last_message_id(topic)

    async def message_id_at(
        self, topic: TopicName, publish_time_ms: int, *, authoritative: bool = False
    ) -> MessageIdData:
        await self.owners.check(topic, authoritative=authoritative)
        return await self.owned.message_id_at(topic, publish_time_ms)

    async def message_id_of_offset(
        self, topic: TopicName, offset: int, *, authoritative: bool = False
    ) -> MessageIdData:
        await self.owners.check(topic, authoritative=authoritative)
        return await self.owned.message_id_of_offset(topic, offset)

    async def terminate(self, topic: TopicName, *, authoritative: bool = False) -> MessageIdData:
        """Accept no more messages, and return the id of the last one."""
        await self.owners.check(topic, authoritative=authoritative)
        return await self.owned.terminate(topic)

    async def terminate_partitions(self, topic: TopicName) -> None:
        call = RestCall("POST", "/terminate")
        await self.owners.run_on(await self.owners.partitions(topic), self.owned.terminate, call)

    # -- subscriptions

    async def subscriptions(self, topic: TopicName, *, authoritative: bool = False) -> list[str]:
        results = await self.owners.run_on_all(
            topic,
            self.owned.subscriptions,
            RestCall("GET", "/subscriptions"),
            authoritative=authoritative,
            missing=NotFoundError,
        )
        return sorted({name for result in results for name in cast("list[str]", result or [])})

    async def create_subscription(
        self, topic: TopicName, name: str, start: Start, *, authoritative: bool = False
    ) -> None:
        """Create a durable subscription.  Raise ConflictError if it exists."""

        def creation(start: Start) -> tuple[Local, RestCall]:
            return (
                lambda t: self.owned.create_subscription(t, name, start),
                RestCall("PUT", f"/subscription/{url_encode(name)}", body=start),
            )

        # A partition that comes meanwhile is read from its beginning, as by any subscription.
        added = creation(Start(-1, -1, properties=start.properties))
        await self.owners.run_on_all(
            topic,
            *creation(start),
            authoritative=authoritative,
            added=(*added, ConflictError),
        )

    async def delete_subscription(
        self, topic: TopicName, name: str, *, force: bool = False, authoritative: bool = False
    ) -> None:
        """Delete a subscription.

        Raise PreconditionError while it has consumers, unless `force`.
        """
        deletion: tuple[Local, RestCall] = (
            lambda t: self.owned.delete_subscription(t, name, force=force),
            RestCall("DELETE", f"/subscription/{url_encode(name)}", _FORCED if force else {}),
        )
        await self.owners.run_on_all(
            topic,
            *deletion,
            authoritative=authoritative,
            added=(*deletion, NotFoundError),
        )

    async def skip_all(self, topic: TopicName, name: str, *, authoritative: bool = False) -> None:
        """Acknowledge all messages up to now."""
        await self.owners.run_on_all(
            topic,
            lambda t: self.owned.skip_all(t, name),
            RestCall("POST", f"/subscription/{url_encode(name)}/skip_all"),
            authoritative=authoritative,
        )

    async def reset_to_time(
        self, topic: TopicName, name: str, publish_time_ms: int, *, authoritative: bool = False
    ) -> None:
        """Move to the first message published at that time or later; consumers reconnect."""
        await self.owners.run_on_all(
            topic,
            lambda t: self.owned.reset_to_time(t, name, publish_time_ms),
            RestCall("POST", f"/subscription/{url_encode(name)}/resetcursor/{publish_time_ms}"),
            authoritative=authoritative,
        )

    async def reset_to(
        self, topic: TopicName, name: str, start: Start, *, authoritative: bool = False
    ) -> None:
        """Move to a message.

        On a partitioned topic the partition of the message is moved, and its id has to name it.
        """
        if not start.symbolic:
            topic = await self.owners.partition_of(topic, start)
        await self.owners.run_on_all(
            topic,
            lambda t: self.owned.reset_to(t, name, start),
            RestCall("POST", f"/subscription/{url_encode(name)}/resetcursor", body=start),
            authoritative=authoritative,
        )
