"""The operations of an administrator.  The admin REST, the simulator and tests call them.

    above topics        `tenancy`, `policies`, and here: lists, bundles, brokers
    one topic           here, on the topic's owner; another broker raises `NotOwnerError`, which
                        names the owner
    a partitioned one   here: each partition is asked where it is, on this broker or on another

An operation on many topics asks their owners, several at a time.  A refusal by another broker is
raised as if this broker had refused.  When all owners have answered, the first error in the order
of the topics is raised.  Such an operation is not atomic: it may have succeeded on some partitions
and failed on others.  It may be repeated.

All operations raise only `BrokerError`s.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

import msgspec
import trio

from daybook.broker.admin.broker_operations import BrokerOperations
from daybook.broker.admin.bundle_operations import BundleOperations
from daybook.broker.admin.pages import Pages
from daybook.broker.admin.schemas import SchemaParts
from daybook.broker.compaction.state import CompactionState, compaction_state, most_urgent
from daybook.broker.dispatch.subscription import Subscription, Target
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
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
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.broker.topics.stats import internal_stats, non_persistent_stats, topic_stats
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topic_properties import check_new
from daybook.broker.topics.topics import Topics
from daybook.managed_ledger.position import Position
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.topics import DOMAINS, TopicName, url_encode

_FORCED = {"force": "true"}
_ATTEMPTS = 4  # to find the owner of a topic; each fails only if the owner has changed meanwhile
_AT_ONCE = 16  # calls to owners
_SHOWN = 20  # names in one error
_UNMARK_S = 5.0  # for the mark of a namespace that stays
_LATEST = (1 << 63) - 1  # Pulsar's ledger id for the end of a topic

Stats: TypeAlias = Mapping[str, object]
Local: TypeAlias = Callable[[TopicName], Awaitable[object]]


class PartitionCountError(PreconditionError):
    status = 406


class PartitionUpdateError(PreconditionError):
    status = 422


class Start(msgspec.Struct, frozen=True, rename="camel"):
    """Where a subscription starts or is moved to: Pulsar's ResetCursorData."""

    ledger_id: int
    entry_id: int
    partition_index: int = -1
    batch_index: int = -1
    is_excluded: bool = False
    properties: dict[str, str] | None = None

    @classmethod
    def earliest(cls) -> "Start":
        return cls(-1, -1)

    @classmethod
    def latest(cls) -> "Start":
        return cls(_LATEST, _LATEST)

    @property
    def is_earliest(self) -> bool:
        return self.ledger_id < 0

    @property
    def is_latest(self) -> bool:
        return self.ledger_id >= _LATEST

    @property
    def symbolic(self) -> bool:
        return self.is_earliest or self.is_latest


class MessageIdData(msgspec.Struct, frozen=True, rename="camel"):
    ledger_id: int
    entry_id: int
    partition_index: int = -1
    batch_index: int = -1


class _Consumers(msgspec.Struct, frozen=True):
    consumers: list[object] = []


class _Connected(msgspec.Struct, frozen=True):
    """The clients in the stats of a topic."""

    publishers: list[object] = []
    subscriptions: dict[str, _Consumers] = {}


@dataclass(frozen=True, slots=True)
class RestCall:
    """An operation on one topic, as a call to the admin REST of the broker that owns it."""

    method: str
    suffix: str = ""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: object = None
    own: bool = False  # made for this broker, whoever sent the request that it works for


class Operations:
    """The operations of one broker.  Most of them have the same result on every broker."""

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
        topics: Topics,
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
        self._partitions_max = partitions_max
        self._store = store
        self._ownership = ownership
        self._lookups = lookups
        self._leader = leader
        self._topics = topics
        self._peer_calls = peer_calls

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
            if not count % _AT_ONCE:
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
            await self._each(rest, self._delete_forced, RestCall("DELETE", "", _FORCED))
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
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)
        if not await self.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")
        return explain(self._topics, topic)

    # -- listing and creating topics

    async def lookup(self, topic: TopicName, *, authoritative: bool = False) -> LookupResult:
        return await self._lookups.lookup(topic, authoritative=authoritative)

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names: partitions, but not the partitioned topics themselves."""
        await self.policies.namespace(namespace)
        names = {topic.full for topic in await self.stored_topics(namespace)}
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
                if url is not None and not self._is_own(url):
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
        if not await self.exists(topic):
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
        await self._check_owner(topic, authoritative=authoritative)
        await self._check_free(topic)
        await self.create_here(topic, properties)

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
        if (await self.policies.namespace(topic.namespace)).deleted:
            raise ConflictError(f"the namespace {topic.namespace} is being deleted")
        await self._check_free(topic)
        await self.policies.check_room(
            topic.namespace, partitions, lambda: self.topics(topic.namespace)
        )
        if not await self.policies.create_partitioned(topic, partitions, properties):
            raise ConflictError(f"the topic {topic} exists already")

    async def _check_free(self, topic: TopicName) -> None:
        if await self.policies.partitions(topic) or await self.exists(topic):
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
            await self._partitions(topic)  # It says more.
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
                    await self._each(
                        names,
                        partial(self.create_subscription_here, name=name, start=start),
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
        partitions = await self._partitions(topic)
        if not force:
            await self._check_unused(partitions)
        deleted = 0
        while True:
            await self._each(
                partitions[deleted:],
                lambda partition: self.delete_here(partition, force=force),
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
        found = await self._each(partitions, self.stats_here, call, missing=NotFoundError)
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
        await self._check_served_here(topic, authoritative=authoritative)
        await self._delete_with_policies(topic, force=force)

    async def _delete_with_policies(self, topic: TopicName, *, force: bool) -> None:
        await self.delete_here(topic, force=force)
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
            await self._each(parts, self.unload_here, unload, missing=NotFoundError)

    async def check_exists(self, topic: TopicName) -> None:
        if not await self.policies.partitions(topic) and not await self.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")

    async def unload_topic(self, topic: TopicName, *, authoritative: bool = False) -> None:
        """Close a topic, or all its partitions, in order.  The next client loads it again."""
        call = RestCall("PUT", "/unload")
        await self._on_owners(
            topic, self.unload_here, call, authoritative=authoritative, missing=NotFoundError
        )

    async def compact(self, topic: TopicName, *, authoritative: bool = False) -> None:
        """Start the compaction of a topic, or of all its partitions.

        Raise ConflictError if one is under way; the others are started nevertheless.
        """
        call = RestCall("PUT", "/compaction")
        await self._on_owners(topic, self.compact_here, call, authoritative=authoritative)

    async def compaction(self, topic: TopicName, *, authoritative: bool = False) -> CompactionState:
        """Return the state of the last compaction; of all partitions, the one to look at first."""
        call = RestCall("GET", "/compaction")
        found = await self._on_owners(
            topic, self.compaction_here, call, authoritative=authoritative
        )
        return most_urgent([msgspec.convert(each, CompactionState) for each in found])

    async def stats(self, topic: TopicName, *, authoritative: bool = False) -> dict[str, object]:
        await self._check_served_here(topic, authoritative=authoritative)
        return await self.stats_here(topic)

    async def internal_stats(
        self, topic: TopicName, *, authoritative: bool = False
    ) -> dict[str, object]:
        await self._check_served_here(topic, authoritative=authoritative)
        return await self.internal_stats_here(topic)

    async def partitioned_stats(
        self, topic: TopicName, *, per_partition: bool = True
    ) -> dict[str, object]:
        """Return the sums over all partitions, and the stats of each one."""
        partitions = await self._partitions(topic)
        results = await self._each(
            partitions, self.stats_here, RestCall("GET", "/stats"), missing=NotFoundError
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
        call = RestCall("GET", "/internalStats")
        results = await self._each(
            partitions, self.internal_stats_here, call, missing=NotFoundError
        )
        found = {p.full: r for p, r in zip(partitions, results, strict=True) if r is not None}
        return {"metadata": {"partitions": len(partitions)}, "partitions": found}

    async def last_message_id(
        self, topic: TopicName, *, authoritative: bool = False
    ) -> MessageIdData:
        await self._check_served_here(topic, authoritative=authoritative)
        return await self.last_message_id_here(topic)

    async def message_id_at(
        self, topic: TopicName, publish_time_ms: int, *, authoritative: bool = False
    ) -> MessageIdData:
        await self._check_served_here(topic, authoritative=authoritative)
        return await self.message_id_at_here(topic, publish_time_ms)

    async def message_id_of_offset(
        self, topic: TopicName, offset: int, *, authoritative: bool = False
    ) -> MessageIdData:
        await self._check_served_here(topic, authoritative=authoritative)
        return await self.message_id_of_offset_here(topic, offset)

    async def terminate(self, topic: TopicName, *, authoritative: bool = False) -> MessageIdData:
        """Accept no more messages, and return the id of the last one."""
        await self._check_served_here(topic, authoritative=authoritative)
        return await self.terminate_here(topic)

    async def terminate_partitions(self, topic: TopicName) -> None:
        call = RestCall("POST", "/terminate")
        await self._each(await self._partitions(topic), self.terminate_here, call)

    # -- subscriptions

    async def subscriptions(self, topic: TopicName, *, authoritative: bool = False) -> list[str]:
        results = await self._on_owners(
            topic,
            self.subscriptions_here,
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
                lambda t: self.create_subscription_here(t, name, start),
                RestCall("PUT", f"/subscription/{url_encode(name)}", body=start),
            )

        # A partition that comes meanwhile is read from its beginning, as by any subscription.
        added = creation(Start(-1, -1, properties=start.properties))
        await self._on_owners(
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
            lambda t: self.delete_subscription_here(t, name, force=force),
            RestCall("DELETE", f"/subscription/{url_encode(name)}", _FORCED if force else {}),
        )
        await self._on_owners(
            topic,
            *deletion,
            authoritative=authoritative,
            added=(*deletion, NotFoundError),
        )

    async def skip_all(self, topic: TopicName, name: str, *, authoritative: bool = False) -> None:
        """Acknowledge all messages up to now."""
        await self._on_owners(
            topic,
            lambda t: self.skip_all_here(t, name),
            RestCall("POST", f"/subscription/{url_encode(name)}/skip_all"),
            authoritative=authoritative,
        )

    async def reset_to_time(
        self, topic: TopicName, name: str, publish_time_ms: int, *, authoritative: bool = False
    ) -> None:
        """Move to the first message published at that time or later; consumers reconnect."""
        await self._on_owners(
            topic,
            lambda t: self.reset_to_time_here(t, name, publish_time_ms),
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
            topic = await self._partition_of(topic, start)
        await self._on_owners(
            topic,
            lambda t: self.reset_to_here(t, name, start),
            RestCall("POST", f"/subscription/{url_encode(name)}/resetcursor", body=start),
            authoritative=authoritative,
        )

    # -- on this broker, which owns the topic
    #
    # The operations above have checked the owner.  If this broker loses the bundle meanwhile, the
    # operation ends with UnavailableError.

    async def stored_topics(self, namespace: str) -> list[TopicName]:
        return await self._topics.logs.stored(namespace)

    async def exists(self, topic: TopicName) -> bool:
        return await self._topics.exists(topic)

    async def create_here(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        await self._topics.create(topic, properties)

    async def delete_here(self, topic: TopicName, *, force: bool) -> None:
        await self._topics.delete(topic, force=force)

    async def unload_here(self, topic: TopicName) -> None:
        if not await self._topics.exists(topic):
            raise NotFoundError(f"the topic {topic} does not exist")
        await self._topics.unload(topic)

    async def compact_here(self, topic: TopicName) -> None:
        (await self._get(topic)).compaction.start()

    async def compaction_here(self, topic: TopicName) -> Stats:
        """Return the state as plain objects, as another broker would send it."""
        state = compaction_state((await self._get(topic)).compaction)
        return cast("Stats", msgspec.to_builtins(state))

    async def stats_here(self, topic: TopicName) -> dict[str, object]:
        if not topic.persistent:
            found = await self._topics.non_persistent.get(topic, create=False)
            return non_persistent_stats(found, self._ownership.identity.broker_id)
        served = await self._get(topic)
        await served.read_backlogs()
        return topic_stats(served, self._ownership.identity.broker_id)

    async def internal_stats_here(self, topic: TopicName) -> dict[str, object]:
        if not topic.persistent:
            found = await self._topics.non_persistent.get(topic, create=False)
            return {"entriesAddedCounter": found.entries, "ledgers": [], "cursors": {}}
        return internal_stats(await self._get(topic))

    async def last_message_id_here(self, topic: TopicName) -> MessageIdData:
        found = await (await self._get(topic)).last_message()
        position, batch_index = found or (Position(-1, -1), -1)
        return _message_id(topic, position, batch_index)

    async def message_id_at_here(self, topic: TopicName, publish_time_ms: int) -> MessageIdData:
        """Return the first message published at that time or later, or the end of the topic."""
        position = await (await self._get(topic)).position_of_time(publish_time_ms)
        return _message_id(topic, position)

    async def message_id_of_offset_here(self, topic: TopicName, offset: int) -> MessageIdData:
        """Return the message with that offset.  Raise NotFoundError if the topic has none.

        The batch index is -1 if the entry has one message only.
        """
        served = await self._get(topic)
        first, following = await served.first_offset(), served.log.confirmed_offset + 1
        if not first <= offset < following:
            held = f"{first} to {following - 1}" if first < following else "none"
            raise NotFoundError(f"{topic} has no offset {offset}: it holds {held}")
        start = await served.entry_start(await served.position_of_offset(offset))
        if start is None:
            raise UnavailableError(f"{topic} was trimmed at the offset {offset}: try again")
        index = offset - start.first_offset if start.messages > 1 else -1
        return _message_id(topic, start.position, index)

    async def terminate_here(self, topic: TopicName) -> MessageIdData:
        return _message_id(topic, await (await self._get(topic)).terminate())

    async def subscriptions_here(self, topic: TopicName) -> list[str]:
        by_name = (await self._topics.open(topic, create=False)).subscriptions.by_name
        return sorted(by_name)

    async def create_subscription_here(self, topic: TopicName, name: str, start: Start) -> None:
        served = await self._topics.get(topic, create=True)
        _check_partition(topic, start)
        position, pending = await _target(served, start)
        part = None if pending is None else (position, pending)
        mark_delete = served.log.previous_position(position)
        await served.subscriptions.create(name, mark_delete, start.properties, part=part)

    async def delete_subscription_here(self, topic: TopicName, name: str, *, force: bool) -> None:
        if not topic.persistent:
            self._delete_volatile(
                (await self._topics.non_persistent.get(topic, create=False)), name, force=force
            )
            return
        served, subscription = await self._subscription(topic, name)
        if subscription.consumers and not force:
            raise PreconditionError(_in_use(name, len(subscription.consumers)))
        await served.subscriptions.remove(subscription)

    def _delete_volatile(self, topic: NonPersistentTopic, name: str, *, force: bool) -> None:
        subscription = topic.subscriptions.get(name)
        if not force:  # It has consumers, because it would not exist without them.
            raise PreconditionError(_in_use(name, len(subscription.consumers)))
        subscription.drop()

    async def skip_all_here(self, topic: TopicName, name: str) -> None:
        _, subscription = await self._subscription(topic, name)
        await subscription.skip_all()

    async def reset_to_here(self, topic: TopicName, name: str, start: Start) -> None:
        served, subscription = await self._subscription(topic, name)

        _check_partition(topic, start)
        await subscription.move(partial(_target, served, start))

    async def reset_to_time_here(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        served, subscription = await self._subscription(topic, name)

        async def find() -> Target:
            return await served.position_of_time(publish_time_ms), None

        await subscription.move(find)

    async def _get(self, topic: TopicName) -> Topic:
        return await self._topics.get(topic, create=False)

    async def _subscription(self, topic: TopicName, name: str) -> tuple[Topic, Subscription]:
        served = await self._get(topic)
        return served, served.subscriptions.get(name)

    # -- on the owners of topics; `SubscriptionOperations` uses these, too

    async def get_here(self, topic: TopicName) -> Topic:
        return await self._get(topic)

    async def on_owner(self, topic: TopicName, local: Local, *, authoritative: bool) -> object:
        """Run an operation on a topic that is not partitioned, if this broker owns it."""
        await self._check_served_here(topic, authoritative=authoritative)
        return await local(topic)

    async def on_owners(
        self, topic: TopicName, local: Local, call: RestCall, *, authoritative: bool
    ) -> list[object]:
        return await self._on_owners(topic, local, call, authoritative=authoritative)

    async def ask_owner(self, topic: TopicName, local: Local, call: RestCall) -> object:
        """Run an operation on one topic, on the broker that owns it."""
        return await self._on_owner(topic, local, call)

    async def _check_served_here(self, topic: TopicName, *, authoritative: bool) -> None:
        await self._check_not_partitioned(topic)
        await self._check_owner(topic, authoritative=authoritative)

    async def _check_owner(self, topic: TopicName, *, authoritative: bool) -> None:
        """Raise NotOwnerError, which names the owner, unless this broker owns the topic.

        With `authoritative`, this broker acquires the topic's bundle if no broker owns it.
        """
        where = await self._lookups.lookup(topic, authoritative=authoritative)
        if where.redirect or not where.is_at(self._ownership.identity):
            raise NotOwnerError(
                f"the broker at {where.url} serves {topic}: ask that one, as the header"
                " Location says (curl -L does)",
                http_url=where.http_url,
                http_url_tls=where.http_url_tls,
                authoritative=where.authoritative,
            )

    async def _partition_of(self, topic: TopicName, start: Start) -> TopicName:
        """Return the topic itself, or the partition that a message id names."""
        partitions = await self.policies.partitions(topic)
        if not partitions:
            return topic
        if not 0 <= start.partition_index < partitions:
            raise NotAllowedError(
                f"{topic} has {partitions} partitions, and the message id names none of them: give"
                f" its partitionIndex, or name one of the partitions, such as {topic}-partition-0"
            )
        return topic.partition_name(start.partition_index)

    async def _check_not_partitioned(self, topic: TopicName) -> None:
        if await self.policies.partitions(topic):
            raise NotAllowedError(
                f"{topic} is partitioned: name one of its partitions, such as {topic}-partition-0"
            )

    async def _partitions(self, topic: TopicName) -> list[TopicName]:
        count = await self.policies.partitions(topic)
        if not count:
            await self.policies.namespace(topic.namespace)
            if await self.exists(topic):
                raise NotFoundError(
                    f"the partitioned topic {topic} does not exist: a topic of this name has no"
                    " partitions, and cannot get any"
                )
            raise NotFoundError(f"the partitioned topic {topic} does not exist")
        return [topic.partition_name(index) for index in range(count)]

    async def _on_owners(
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
        count = await self.policies.partitions(topic)
        if count:
            partitions = [topic.partition_name(index) for index in range(count)]
            results = await self._each(partitions, local, call, missing=missing)
            while added is not None and count < (
                now := await self.policies.newest_partitions(topic)
            ):
                partitions = [topic.partition_name(index) for index in range(count, now)]
                await self._each(partitions, added[0], added[1], missing=added[2])
                count = now
            return results
        await self._check_owner(topic, authoritative=authoritative)
        return [await local(topic)]

    async def _each(
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
        errors: dict[int, BrokerError] = {}

        async def work(start: int) -> None:
            for index in range(start, len(topics), _AT_ONCE):
                try:
                    results[index] = await self._on_owner(topics[index], local, call)
                except BrokerError as error:
                    if missing is None or not isinstance(error, missing):
                        errors[index] = error

        async with trio.open_nursery() as nursery:
            for start in range(min(_AT_ONCE, len(topics))):
                nursery.start_soon(work, start)
        if errors:
            raise errors[min(errors)]
        return results

    def _is_own(self, url: str) -> bool:
        identity = self._ownership.identity
        return url in (identity.http_url, identity.http_url_tls)

    async def _on_owner(self, topic: TopicName, local: Local, call: RestCall) -> object:
        """Run an operation on one topic, on the broker that owns it."""
        url_of = self._peer_calls.url_of
        url, authoritative, own = None, False, True
        path = f"/admin/v2/{topic.domain}/{topic.namespace}/{topic.encoded}{call.suffix}"
        for _ in range(_ATTEMPTS):
            if own:
                where = await self._lookups.lookup(topic, authoritative=authoritative)
                if where.is_at(self._ownership.identity):
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
                authoritative, own = error.authoritative, url is not None and self._is_own(url)
        raise UnavailableError(f"the owner of {topic} keeps changing: try again")


def _start_position(topic: Topic, start: Start) -> Position:
    """Return the entry to start on.

    An entry that is gone, or not there yet, becomes the nearest one that is there.
    """
    log = topic.log
    first, end = log.next_position(log.before_first), log.next_position(log.last_confirmed)
    if start.is_earliest:
        return first
    if start.is_latest:
        return end
    position = Position(start.ledger_id, start.entry_id)
    if start.is_excluded:
        position = log.next_position(position)
    return min(max(position, first), end)


def _check_partition(topic: TopicName, start: Start) -> None:
    """Raise PreconditionError if a message id is surely of another partition.

    Go's client names partition 0 in the ids of all topics.
    """
    if start.partition_index > 0 and start.partition_index != topic.partition:
        raise PreconditionError(
            f"the message id is of partition {start.partition_index}, and not of {topic}: name the"
            " topic of the message"
        )


async def _target(topic: Topic, start: Start) -> Target:
    """Return the entry to start on, and which of its messages are wanted.

    `batch_index` is a message within the entry.  It counts only if the entry is still there.
    """
    position, index = _start_position(topic, start), start.batch_index
    if start.symbolic or index < 0:
        return position, None
    named = Position(start.ledger_id, start.entry_id)
    messages = await topic.messages_of(named)
    if not messages:
        return position, None
    first = index + 1 if start.is_excluded else index
    if first >= messages:
        return topic.log.next_position(named), None
    return named, ((1 << messages) - (1 << first)) if first else None


def _in_use(name: str, consumers: int) -> str:
    them = "a consumer: close it" if consumers == 1 else f"{consumers} consumers: close them"
    return f"the subscription {name} has {them}, or use force"


def _message_id(topic: TopicName, position: Position, batch_index: int = -1) -> MessageIdData:
    return MessageIdData(position.ledger_id, position.entry_id, topic.partition, batch_index)


# -- the stats of a partitioned topic

_NOT_ADDED = (
    "backlogQuotaLimitSize",
    "backlogQuotaLimitTime",
    "oldestBacklogMessageAgeSeconds",
    "topicEpoch",
)
_NO_VALUES = (None, "", "None")  # "None" is the type of a subscription that nobody uses


def sum_stats(stats: Sequence[Stats]) -> dict[str, object]:
    """Return the sums over the stats of partitions.

    Numbers are added, except times, ages and limits, which are not sums of anything.  Subscriptions
    are merged by name, lists are concatenated.  Any other value (a name, a type, a reason) is taken
    from the first partition that has one.  Averages become the mean.
    """
    total: dict[str, object] = {}
    for one in stats:
        for key, value in one.items():
            total[key] = _add(key, total[key], value) if key in total else value
    for key in total:
        if key.lower().startswith("average") and stats:
            values = [cast("float", one.get(key, 0)) for one in stats]
            total[key] = sum(values) / len(values)
    return total


def _add(key: str, sum_: object, value: object) -> object:
    match sum_, value:
        case bool(), bool():
            return sum_ and value if key.endswith("Exact") else sum_ or value
        case (int() | float()) as left, (int() | float()) as right:
            if key.startswith("earliest"):  # a time; 0 if there is none
                return min(left, right) if left and right else left or right
            if key in _NOT_ADDED or key.startswith("last") or key.endswith("Timestamp"):
                return max(left, right)
            return left + right
        case list(), list():
            return [*cast("list[object]", sum_), *cast("list[object]", value)]
        case dict(), dict():
            return sum_stats([cast("Stats", sum_), cast("Stats", value)])
        case _:
            return value if sum_ in _NO_VALUES else sum_
