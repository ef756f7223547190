"""The policies of namespaces: bundles in force, retention, quorums; and partitions of topics.

Records that every lookup needs are cached here and read again after they change.  While the store
is out of reach, the last known values count; a record that was never read is unavailable, which is
not the same as absent.

Only policies that this broker enforces can be set.  Other policies, which a Pulsar broker may have
left in the record, are kept unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import NotFoundError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import BundlesData, LocalPolicies, PartitionedTopic
from daybook.broker.protocol.bundles import BundleName, Bundles, bundle_name
from daybook.broker.protocol.schemas.compatibility import AUTO_UPDATE, SchemaRules, Strategy
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import (
    MetadataError,
    MetadataStore,
    NoRecordError,
    RecordExistsError,
    SessionState,
    StoreUnavailableError,
)
from daybook.wire.metadata.update import update
from daybook.wire.topics import TopicName, url_decode

DEFAULT_NAMESPACE = "public/default"
DEDUPLICATION = "deduplicationEnabled"  # in the records of namespaces and of topics

ValueT = TypeVar("ValueT")
Fields = dict[str, object]  # a JSON object, unknown keys included


class Retention(msgspec.Struct, frozen=True):
    """How long acknowledged data are kept.  -1 means no limit; 0 for both keeps nothing."""

    retentionTimeInMinutes: int  # noqa: N815 - Pulsar's keys
    retentionSizeInMB: int  # noqa: N815

    def check(self) -> None:
        """Raise ValueError if the values are not valid."""
        minutes, megabytes = self.retentionTimeInMinutes, self.retentionSizeInMB
        if minutes < -1 or megabytes < -1:
            raise ValueError("retention: -1 means no limit; a smaller value is not valid")
        if (minutes == 0) != (megabytes == 0):
            raise ValueError("retention: time and size must both be 0, or neither")


class Persistence(msgspec.Struct, frozen=True):
    """How many copies of the entries of a namespace's topics are kept."""

    bookkeeperEnsemble: int  # noqa: N815
    bookkeeperWriteQuorum: int  # noqa: N815
    bookkeeperAckQuorum: int  # noqa: N815
    managedLedgerMaxMarkDeleteRate: float = 0.0  # noqa: N815

    def check(self) -> None:
        """Raise ValueError if the values are not valid."""
        ensemble, write = self.bookkeeperEnsemble, self.bookkeeperWriteQuorum
        if not ensemble >= write >= self.bookkeeperAckQuorum >= 1:
            raise ValueError("persistence: ensemble >= write quorum >= ack quorum >= 1 must hold")


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """The policies in force in one namespace."""

    bundles: Bundles
    retention: Retention
    persistence: Persistence | None  # None: by the settings of the broker
    deduplication: bool
    deleted: bool


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The policies that a topic has of its own.  For None those of its namespace apply."""

    deduplication: bool | None = None


class Policies:
    """The policies of the cluster, as one broker sees them."""

    def __init__(self, store: MetadataStore, config: BrokerConfig) -> None:
        self._store = store
        self._config = config
        self._fields: MetadataCache[Fields] = MetadataCache(store, _policies)
        self._local: MetadataCache[Bundles] = MetadataCache(store, _bundles)

    # -- namespaces

    async def namespace(self, namespace: str) -> NamespacePolicies:
        """Return the policies in force.  Raise NotFoundError, UnavailableError."""
        fields = await self._namespace_fields(namespace)
        return NamespacePolicies(
            await self.bundles(namespace),
            _part(fields, "retention_policies", Retention) or self.default_retention,
            _part(fields, "persistence", Persistence),
            self._with_default(_part(fields, DEDUPLICATION, bool)),
            fields.get("deleted") is True,
        )

    def _with_default(self, deduplication: bool | None) -> bool:
        return self._config.deduplication if deduplication is None else deduplication

    async def namespace_deduplication(self, namespace: str) -> bool | None:
        """Return what the namespace itself says; None if it says nothing."""
        return _part(await self._namespace_fields(namespace), DEDUPLICATION, bool)

    @property
    def default_retention(self) -> Retention:
        config = self._config
        return Retention(config.default_retention_minutes, config.default_retention_mb)

    async def bundles(self, namespace: str) -> Bundles:
        """Return the bundles in force.

        The first caller creates their record, from the namespace's policies.
        """
        bundles = await self._local.get(records.local_policies_path(namespace))
        if bundles is not None:
            return bundles
        data = _part(await self._namespace_fields(namespace), "bundles", BundlesData)
        planned = Bundles.equal(self._config.bundles) if data is None else _checked(data)
        path = records.local_policies_path(namespace)
        value = records.encode(LocalPolicies(BundlesData.from_bundles(planned)))
        try:
            await self._store.create(path, value, make_parents=True)
        except RecordExistsError:
            pass  # Another broker was faster: its bundles are in force.
        except MetadataError as error:
            raise UnavailableError(
                f"the bundles of {namespace} cannot be stored now: {error}"
            ) from error
        bundles = await self._local.get(path)
        if bundles is None:
            raise UnavailableError(f"the bundles of {namespace} are being changed: try again")
        return bundles

    async def bundle_of(self, topic: TopicName) -> BundleName:
        bundles = await self.bundles(topic.namespace)
        return bundle_name(topic.namespace, bundles.range_of(topic.bundle_hash))

    def known_bundle_of(self, topic: TopicName) -> BundleName | None:
        """Return the topic's bundle, None if the namespace's bundles were never read."""
        bundles = self._local.known(records.local_policies_path(topic.namespace))
        if bundles is None:
            return None
        return bundle_name(topic.namespace, bundles.range_of(topic.bundle_hash))

    async def schema_rules(self, topic: TopicName) -> SchemaRules:
        """Return the policies in force for the schemas of a topic."""
        fields = await self._namespace_fields(topic.namespace)
        strategy = _part(fields, "schema_compatibility_strategy", Strategy) or Strategy.UNDEFINED
        if strategy is Strategy.UNDEFINED:
            older = _part(fields, "schema_auto_update_compatibility_strategy", str)
            strategy = AUTO_UPDATE.get(older or "", Strategy.FULL)
        return SchemaRules(
            strategy,
            _part(fields, "is_allow_auto_update_schema", bool) is not False,
            _part(fields, "schema_validation_enforced", bool) is True,
        )

    async def _namespace_fields(self, namespace: str) -> Fields:
        fields = await self._fields.get(records.policies_path(namespace))
        if fields is None:
            raise NotFoundError(f"the namespace {namespace} does not exist")
        return fields

    async def change_namespace(self, namespace: str, change: Callable[[Fields], None]) -> None:
        """Change the record of a namespace, by compare-and-swap.  Unknown fields are kept."""

        def changed(value: bytes) -> bytes:
            fields = _policies(value)
            change(fields)
            return records.encode(fields)

        await self._change(records.policies_path(namespace), changed, f"the namespace {namespace}")

    # -- topics

    async def topic(self, topic: TopicName) -> TopicPolicies:
        """Return the policies of the topic itself.  Raise UnavailableError."""
        path = records.topic_policies_path(topic)
        try:
            record = await self._store.get(path)
        except StoreUnavailableError as error:
            raise UnavailableError(
                f"the policies of {topic} cannot be read now: {error}"
            ) from error
        fields = {} if record is None else _policies(record.value)
        return TopicPolicies(_part(fields, DEDUPLICATION, bool))

    async def set_topic_policy(self, topic: TopicName, key: str, value: object) -> None:
        """Set one policy of a topic; None removes it.  Unknown fields are kept."""
        path = records.topic_policies_path(topic)

        def changed(old: bytes) -> bytes:
            fields = _policies(old)
            fields.pop(key, None)
            if value is not None:
                fields[key] = value
            return records.encode(fields)

        try:
            await self._store.create(path, changed(b""), make_parents=True)
        except RecordExistsError:
            await self._change(path, changed, f"the policies of {topic}")
        except MetadataError as error:
            raise UnavailableError(
                f"the policies of {topic} may not have been changed: {error}"
            ) from error

    async def delete_topic_policies(self, topic: TopicName) -> None:
        """Delete the policies of a topic that is deleted, if it has any."""
        try:
            await self._store.delete(records.topic_policies_path(topic), -1)
        except NoRecordError:
            pass
        except MetadataError as error:
            raise UnavailableError(
                f"the policies of {topic} may not have been deleted: {error}"
            ) from error

    # -- partitioned topics

    async def partitions(self, topic: TopicName) -> int:
        """Return how many partitions a topic has; 0 if it is not partitioned or does not exist."""
        record = await self.partitioned(topic)
        return 0 if record is None else record.partitions

    async def partitioned(self, topic: TopicName) -> PartitionedTopic | None:
        path = records.partitioned_path(topic)
        if self._store.session_state is not SessionState.CONNECTED:
            raise UnavailableError(
                f"the number of partitions of {topic} is not known now: the broker has no contact"
                " with the metadata store"
            )
        try:
            record = await self._store.get(path)
        except StoreUnavailableError as error:
            raise UnavailableError(
                f"the number of partitions of {topic} cannot be read now: {error}"
            ) from error
        return None if record is None else _decoded(PartitionedTopic, record.value)

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> bool:
        """Create the record of a partitioned topic; return False if it exists already."""
        value = records.encode(PartitionedTopic(partitions, properties=properties))
        try:
            await self._store.create(records.partitioned_path(topic), value, make_parents=True)
        except RecordExistsError:
            return False
        except MetadataError as error:
            raise UnavailableError(
                f"the partitioned topic {topic} may not have been created: {error}"
            ) from error
        return True

    async def change_partitioned(
        self, topic: TopicName, change: Callable[[PartitionedTopic], PartitionedTopic]
    ) -> None:
        """Change the record by compare-and-swap.  Raise NotFoundError, and errors of `change`."""

        def changed(value: bytes) -> bytes:
            return records.encode(change(_decoded(PartitionedTopic, value)))

        await self._change(records.partitioned_path(topic), changed, f"the topic {topic}")

    async def delete_partitioned(self, topic: TopicName) -> None:
        """Delete the record of a partitioned topic, if there is one."""
        try:
            await self._store.delete(records.partitioned_path(topic), -1)
        except NoRecordError:
            pass
        except MetadataError as error:
            raise UnavailableError(
                f"the partitioned topic {topic} may not have been deleted: {error}"
            ) from error

    async def list_partitioned(self, namespace: str) -> list[TopicName]:
        try:
            names = await self._store.get_children(records.partitioned_parent(namespace))
        except StoreUnavailableError as error:
            raise UnavailableError(
                f"the topics of {namespace} cannot be listed now: {error}"
            ) from error
        prefix = f"persistent://{namespace}/"
        return [TopicName.parse(prefix + url_decode(name)) for name in names or []]

    async def _change(self, path: str, changed: Callable[[bytes], bytes], what: str) -> None:
        def change(value: bytes) -> bytes | None:
            wanted = changed(value)
            return None if wanted == value else wanted

        try:
            await update(self._store, path, change)
        except NoRecordError:
            raise NotFoundError(f"{what} does not exist") from None
        except MetadataError as error:
            raise UnavailableError(f"{what} cannot be changed now: {error}") from error


def _policies(value: bytes) -> Fields:
    return _decoded(Fields, value) if value else {}


def _bundles(value: bytes) -> Bundles:
    return _checked(_decoded(LocalPolicies, value).bundles)


def _checked(data: BundlesData) -> Bundles:
    try:
        return Bundles.parse(data.boundaries)
    except ValueError as error:
        raise UnavailableError(
            f"the metadata store holds bundles that are not valid: {error}"
        ) from None


def _decoded(kind: type[ValueT], value: bytes) -> ValueT:
    try:
        return records.decode(kind, value)
    except MalformedError as error:
        raise UnavailableError(str(error)) from error


def _part(fields: Fields, key: str, kind: type[ValueT]) -> ValueT | None:
    part = fields.get(key)
    if part is None:
        return None
    try:
        return msgspec.convert(part, kind)
    except msgspec.ValidationError as error:
        raise UnavailableError(
            f"the metadata store holds a policy {key} that is not valid: {error}"
        ) from None


_ENTRIES_MAX = 10_000  # beyond that, records are read each time, without a watch


@dataclass(slots=True, eq=False)
class _Entry(Generic[ValueT]):
    value: ValueT | None
    fresh: bool = False


class MetadataCache(Generic[ValueT]):
    """Decoded records that are read often and change rarely, cached until they change.

    `get` reads a record once and sets a watch; it reads again after the watch has fired.  While the
    store is out of reach, `get` returns the last value that it saw.  A record that it never saw is
    then unavailable, which is not the same as absent.  An exception of `decode` passes through
    `get`.
    """

    def __init__(self, store: MetadataStore, decode: Callable[[bytes], ValueT]) -> None:
        self._store = store
        self._decode = decode
        self._entries: dict[str, _Entry[ValueT]] = {}

    async def get(self, path: str) -> ValueT | None:
        """Return the record, None if there is none.  Raise UnavailableError."""
        entry = self._entries.get(path)
        if entry is not None and (entry.fresh or not self._in_contact):
            return entry.value
        fresh = _Entry[ValueT](None, fresh=True)

        # The watch marks the entry that its own read has made, never a later one.
        def touched() -> None:
            fresh.fresh = False

        try:
            record = await self._store.get(path, None if entry is None else touched)
            if record is not None and entry is None and len(self._entries) < _ENTRIES_MAX:
                # Only a record that exists gets a watch: clients can ask for any number of names
                # that do not exist.
                record = await self._store.get(path, touched)
        except StoreUnavailableError as error:
            if entry is None:
                raise UnavailableError(f"{path}: {error}") from error
            return entry.value
        if record is None:
            self._entries.pop(path, None)
            return None
        fresh.value = self._decode(record.value)
        if entry is not None or len(self._entries) < _ENTRIES_MAX:
            self._entries[path] = fresh
        return fresh.value

    @property
    def _in_contact(self) -> bool:
        return self._store.session_state is SessionState.CONNECTED

    def known(self, path: str) -> ValueT | None:
        """Return the last value that was seen, without reading the store."""
        entry = self._entries.get(path)
        return None if entry is None else entry.value
