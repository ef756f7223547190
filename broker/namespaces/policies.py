"""The policies of namespaces and topics, bundles in force, and partitions of topics.

Records that are needed often are cached here and read again after they change.  While the store is
out of reach, the last known values count; a record that was never read is unavailable, which is not
the same as absent.

`policy_table` lists the policies that this broker enforces.  Other policies, which a Pulsar broker
may have left in a record, are kept unchanged.

A topic without policies of its own costs no read: one list for each namespace names the topics that
have a record.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import trio

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import (
    ConflictError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policy_table import (
    TOGETHER,
    EffectivePolicies,
    Fields,
    Layer,
    Policy,
    check_together,
    defaults,
)
from daybook.broker.namespaces.records import BundlesData, LocalPolicies, PartitionedTopic
from daybook.broker.protocol.bundles import BundleName, Bundles, bundle_name
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.shared_reads import SharedReads
from daybook.wire.metadata.store import (
    Check,
    MetadataError,
    MetadataStore,
    NoRecordError,
    Record,
    RecordExistsError,
    SessionState,
    StoreUnavailableError,
    VersionConflictError,
)
from daybook.wire.metadata.update import update
from daybook.wire.topics import TopicName, url_decode

DEFAULT_NAMESPACE = "public/default"

ValueT = TypeVar("ValueT")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """The facts about a namespace that do not concern its topics."""

    bundles: Bundles
    deleted: bool


class Policies:
    """The policies of the cluster, as one broker sees them."""

    def __init__(self, store: MetadataStore, config: BrokerConfig) -> None:
        self._store = store
        self._config = config
        self.defaults = defaults(config)
        self._namespaces: MetadataCache[Layer] = MetadataCache(
            store, self._namespace_layer, self._touched
        )
        self._topics: MetadataCache[Layer] = MetadataCache(store, self._topic_layer, self._touched)
        # The topics of each namespace that have a record of policies, by encoded name.
        self._with_policies = ChildrenCache(store, self._touched)
        self._local: MetadataCache[Bundles] = MetadataCache(store, _bundles)
        self._parents = SharedReads(store.get)  # the parents of the records of partitioned topics
        self._listeners: list[Callable[[str], None]] = []
        self._changed: set[str] = set()  # namespaces of which a record has changed
        self._change = trio.Event()

    # -- what is in force

    async def effective(self, topic: TopicName) -> EffectivePolicies:
        """Return the policies in force for a topic.

        Topics without policies of their own share one object.  Raise NotFoundError, or
        UnavailableError if the records cannot be read now or have a value that is not valid.
        """
        of_namespace = await self.effective_in(topic.namespace)
        layer = await self._topic(topic)
        return of_namespace if layer is None else layer.over(of_namespace)

    async def effective_in(self, namespace: str) -> EffectivePolicies:
        """Return the policies in force for topics that have none of their own."""
        return (await self._namespace(namespace)).over(self.defaults)

    async def check_room(
        self, namespace: str, more: int, names: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        """Raise PreconditionError if the namespace may not have so many more topics.

        Its topics are counted only if there is a limit.  Two brokers that create topics at the same
        time may exceed it.
        """
        limit = (await self.effective_in(namespace)).max_topics
        if limit and len(await names()) + more > limit:
            raise PreconditionError(
                f"the namespace {namespace} may have {limit} topics, partitions included: delete"
                " unused ones, or raise the policy maxTopicsPerNamespace"
            )

    async def wait_changed(self) -> set[str]:
        """Wait until records have changed, and return the namespaces they belong to.

        While the store is out of reach this waits on: nobody knows what has changed.
        """
        while True:
            await self._change.wait()
            if self._store.session_state is SessionState.CONNECTED:
                break
            await trio.sleep(_CONTACT_S)
        changed, self._changed = self._changed, set()
        self._change = trio.Event()
        return changed

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call the listener with each namespace or tenant whose record this broker has changed."""
        self._listeners.append(listener)

    def record_changed(self, name: str) -> None:
        """Note that this broker has changed the record of a namespace or a tenant."""
        for listener in self._listeners:
            listener(name)

    def note_changed(self, namespace: str) -> None:
        self._changed.add(namespace)
        self._change.set()

    def _touched(self, path: str) -> None:
        namespace = records.namespace_of_policies(path)
        if namespace is not None:
            self.note_changed(namespace)

    def _namespace_layer(self, value: bytes, path: str) -> Layer:
        return self._layer(value, path, of_topic=False)

    def _topic_layer(self, value: bytes, path: str) -> Layer:
        return self._layer(value, path, of_topic=True)

    def _layer(self, value: bytes, path: str, *, of_topic: bool) -> Layer:
        layer = Layer(_policies(value), self._config.cluster, of_topic=of_topic)
        for why in layer.ignored.values():
            _log.warning("%s has a policy that does not count: %s", path, why)
        for why in layer.refused.values():
            _log.error("%s has a policy without which no topic is loaded: %s", path, why)
        return layer

    def _over(
        self, fields: Fields, below: EffectivePolicies, *, of_topic: bool
    ) -> EffectivePolicies:
        return Layer(fields, self._config.cluster, of_topic=of_topic).over(below)

    # -- namespaces

    async def namespace(self, namespace: str) -> NamespacePolicies:
        """Return the facts about a namespace.  Raise NotFoundError, UnavailableError."""
        fields = (await self._namespace(namespace)).fields
        return NamespacePolicies(await self.bundles(namespace), fields.get("deleted") is True)

    async def bundles(self, namespace: str) -> Bundles:
        """Return the bundles in force.

        The first caller creates their record, from the namespace's policies.
        """
        bundles = await self._local.get(records.local_policies_path(namespace))
        if bundles is not None:
            return bundles
        fields = (await self._namespace(namespace)).fields
        data = _part(fields, "bundles", BundlesData)
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

    async def read_bundles(self, namespace: str) -> tuple[Bundles, int]:
        """Return the bundles as they are stored now, and the version of their record."""
        await self.bundles(namespace)
        path = records.local_policies_path(namespace)
        try:
            record = await self._store.get(path)
        except StoreUnavailableError as error:
            raise UnavailableError(
                f"the bundles of {namespace} cannot be read now: {error}"
            ) from error
        if record is None:
            raise NotFoundError(f"the namespace {namespace} does not exist")
        return _bundles(record.value, path), record.stat.version

    def bundles_changed(self, namespace: str, bundles: Bundles) -> None:
        """Note a change that this broker has made: it counts before the watch fires."""
        self._local.replace(records.local_policies_path(namespace), bundles)

    async def bundle_of(self, topic: TopicName) -> BundleName:
        bundles = await self.bundles(topic.namespace)
        return bundle_name(topic.namespace, bundles.range_of(topic.bundle_hash))

    def known_bundle_of(self, topic: TopicName) -> BundleName | None:
        """Return the topic's bundle, None if the namespace's bundles were never read."""
        bundles = self._local.known(records.local_policies_path(topic.namespace))
        if bundles is None:
            return None
        return bundle_name(topic.namespace, bundles.range_of(topic.bundle_hash))

    async def _namespace(self, namespace: str) -> Layer:
        layer = await self._namespaces.get(records.policies_path(namespace))
        if layer is None:
            raise NotFoundError(f"the namespace {namespace} does not exist")
        return layer

    async def namespace_field(self, namespace: str, key: str) -> object:
        """Return a field of the record of a namespace, in JSON; None if it is not there."""
        fields = await self._read(records.policies_path(namespace))
        if fields is None:
            raise NotFoundError(f"the namespace {namespace} does not exist")
        return fields.get(key)

    async def namespace_policy(self, namespace: str, policy: Policy) -> object:
        """Return what the record of the namespace says about a policy, in JSON."""
        fields = await self._read(records.policies_path(namespace))
        if fields is None:
            raise NotFoundError(f"the namespace {namespace} does not exist")
        assert policy.namespace is not None
        return policy.namespace.get(fields, self._config.cluster)

    async def set_namespace_policy(self, namespace: str, policy: Policy, value: object) -> None:
        """Set a policy of a namespace.  None removes it.  Raise PreconditionError, ..."""
        slot = policy.namespace
        assert slot is not None
        if value is None and policy.stored_if_removed:
            # A Pulsar broker that takes over has another default, and may drop data at once.
            value = getattr(self.defaults, policy.name)
        stored = None if value is None else policy.to_json(value)

        def change(fields: Fields) -> None:
            slot.put(fields, stored, self._config.cluster)
            if policy in TOGETHER:
                check_together(self._over(fields, self.defaults, of_topic=False))

        await self.change_namespace(namespace, change)

    async def change_namespace(self, namespace: str, change: Callable[[Fields], None]) -> int:
        """Change the record of a namespace, by compare-and-swap.  Unknown fields are kept.

        Return the version of the record that says what was wanted.
        """

        def changed(value: bytes) -> bytes:
            fields = _policies(value)
            change(fields)
            return records.encode(fields)

        path = records.policies_path(namespace)
        try:
            return await self._write(path, changed, f"the namespace {namespace}")
        finally:
            self._namespaces.invalidate(path)
            self.record_changed(namespace)

    # -- topics

    async def _topic(self, topic: TopicName) -> Layer | None:
        """Return the record of the topic's own policies; None if it has none."""
        path = records.topic_policies_path(topic)
        parent, _, name = path.rpartition("/")
        if name not in await self._with_policies.get(parent):
            return None
        return await self._topics.get(path)

    async def topic_policy(self, topic: TopicName, policy: Policy) -> object:
        """Return what the record of the topic says about a policy, in JSON."""
        fields = await self._read(records.topic_policies_path(topic))
        assert policy.topic is not None
        return policy.topic.get(fields or {}, self._config.cluster)

    async def set_topic_policy(self, topic: TopicName, policy: Policy, value: object) -> None:
        """Set one policy of a topic; None removes it.  Unknown fields are kept."""
        path = records.topic_policies_path(topic)
        slot = policy.topic
        assert slot is not None
        stored = None if value is None else policy.to_json(value)
        below = await self.effective_in(topic.namespace)

        def changed(old: bytes) -> bytes:
            fields = _policies(old)
            slot.put(fields, stored, self._config.cluster)
            if policy in TOGETHER:
                check_together(self._over(fields, below, of_topic=True))
            return records.encode(fields)

        try:
            await self._store.create(path, changed(b""), make_parents=True)
        except RecordExistsError:
            await self._write(path, changed, f"the policies of {topic}")
        except MetadataError as error:
            raise UnavailableError(
                f"the policies of {topic} may not have been changed: {error}"
            ) from error
        finally:
            self._forget_topic(path)

    def _forget_topic(self, path: str) -> None:
        """Read the policies of a topic again: this broker does not wait to hear of its change."""
        self._topics.invalidate(path)
        self._with_policies.invalidate(path.rpartition("/")[0])

    async def _read(self, path: str) -> Fields | None:
        """Return a record as it is now, without the cache."""
        try:
            record = await self._store.get(path)
        except StoreUnavailableError as error:
            raise UnavailableError(f"{path} cannot be read now: {error}") from error
        return None if record is None else _policies(record.value)

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
        finally:
            self._forget_topic(records.topic_policies_path(topic))

    # -- partitioned topics

    async def partitions(self, topic: TopicName) -> int:
        """Return how many partitions a topic has; 0 if it is not partitioned or does not exist."""
        record = await self.partitioned(topic)
        return 0 if record is None else record.partitions

    async def partitioned(self, topic: TopicName) -> PartitionedTopic | None:
        """Return the record of a partitioned topic; None if the topic is not partitioned.

        In a namespace without such records, topics that are opened together share a read.
        """
        parent = records.partitioned_parent(topic.namespace, topic.domain)
        if self._store.session_state is not SessionState.CONNECTED:
            raise UnavailableError(
                f"the number of partitions of {topic} is not known now: the broker has no contact"
                " with the metadata store"
            )
        try:
            above = await self._parents.get(parent)
            if above is None or not above.stat.children_count:
                return None
            record = await self._store.get(records.partitioned_path(topic))
        except StoreUnavailableError as error:
            raise UnavailableError(
                f"the number of partitions of {topic} cannot be read now: {error}"
            ) from error
        return None if record is None else _decoded(PartitionedTopic, record.value)

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> bool:
        """Create the record of a partitioned topic; return False if it exists already.

        Raise PreconditionError if a topic may not have so many partitions.
        """
        # A namespace's policy names a number that no setting has bounded.
        limit = self._config.partitions_max
        if not 1 <= partitions <= limit:
            raise PreconditionError(
                f"{topic} would have {partitions} partitions, and a topic has 1 to {limit}"
                " (partitions_max): correct the policy autoTopicCreation of its namespace"
            )
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

        await self._write(records.partitioned_path(topic), changed, f"the topic {topic}")

    async def newest_partitions(self, topic: TopicName) -> int:
        """Return how many partitions a topic has, with every change that ended before the call."""
        try:
            record = await self._store.get_newest(records.partitioned_path(topic))
        except MetadataError as error:
            raise UnavailableError(
                f"the number of partitions of {topic} cannot be read now: {error}; try again"
            ) from error
        return 0 if record is None else _decoded(PartitionedTopic, record.value).partitions

    async def delete_partitioned(
        self, topic: TopicName, *, partitions_max: int | None = None
    ) -> bool:
        """Delete the record of a partitioned topic, if there is one.

        Return False, and delete nothing, if the topic has more than `partitions_max` partitions.
        """
        path = records.partitioned_path(topic)
        try:
            while True:
                record = await self._store.get_newest(path)
                if record is None:
                    return True
                partitions = _decoded(PartitionedTopic, record.value).partitions
                if partitions_max is not None and partitions > partitions_max:
                    return False
                with suppress(VersionConflictError):  # The topic has been changed just now.
                    await self._store.delete(path, record.stat.version)
                    return True
        except NoRecordError:
            return True
        except MetadataError as error:
            raise UnavailableError(
                f"the partitioned topic {topic} may not have been deleted: {error}"
            ) from error

    async def list_partitioned(self, namespace: str, domain: str = "persistent") -> list[TopicName]:
        try:
            names = await self._store.get_children(records.partitioned_parent(namespace, domain))
        except StoreUnavailableError as error:
            raise UnavailableError(
                f"the topics of {namespace} cannot be listed now: {error}"
            ) from error
        prefix = f"{domain}://{namespace}/"
        return [TopicName.parse(prefix + url_decode(name)) for name in names or []]

    async def _write(self, path: str, changed: Callable[[bytes], bytes], what: str) -> int:
        def change(value: bytes) -> bytes | None:
            wanted = changed(value)
            return None if wanted == value else wanted

        try:
            return (await update(self._store, path, change))[1]
        except NoRecordError:
            raise NotFoundError(f"{what} does not exist") from None
        except MetadataError as error:
            raise UnavailableError(f"{what} cannot be changed now: {error}") from error


async def live_namespace(get: Callable[[str], Awaitable[Record | None]], namespace: str) -> Check:
    """Return the condition that the namespace exists, and is not being deleted.

    `get` reads a record of the store.

    Raise NotFoundError, ConflictError, UnavailableError.
    """
    path = records.policies_path(namespace)
    try:
        record = await get(path)
    except StoreUnavailableError as error:
        raise UnavailableError(f"{path} cannot be read now: {error}") from error
    if record is None:
        raise NotFoundError(f"the namespace {namespace} does not exist")
    if _policies(record.value).get("deleted") is True:
        raise ConflictError(f"the namespace {namespace} is being deleted")
    return Check(path, record.stat.version)


def _policies(value: bytes) -> Fields:
    return _decoded(Fields, value) if value else {}


def _bundles(value: bytes, path: str) -> Bundles:
    del path
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
_CONTACT_S = 1.0  # between two looks if the store is there again


@dataclass(slots=True, eq=False)
class _Entry(Generic[ValueT]):
    value: ValueT | None
    fresh: bool = False


class MetadataCache(Generic[ValueT]):
    """Decoded records that are read often and change rarely, cached until they change.

    `get` reads a record once and sets a watch; it reads again after the watch has fired.  While the
    store is out of reach, `get` returns the last value that it saw.  A record that it never saw is
    then unavailable, which is not the same as absent.  An exception of `decode` passes through
    `get`.  `on_touched` is called with the path when a watch has fired.
    """

    def __init__(
        self,
        store: MetadataStore,
        decode: Callable[[bytes, str], ValueT],
        on_touched: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._decode = decode
        self._on_touched = on_touched
        self._entries: dict[str, _Entry[ValueT]] = {}
        # The reads of records that are not known.  Many requests may ask for one that is missing.
        self._unknown = SharedReads(store.get)

    async def get(self, path: str) -> ValueT | None:
        """Return the record, None if there is none.  Raise UnavailableError."""
        entry = self._entries.get(path)
        if entry is not None and (entry.fresh or not self._in_contact):
            return entry.value
        fresh = _Entry[ValueT](None, fresh=True)

        # The watch marks the entry that its own read has made, never a later one.
        def touched() -> None:
            fresh.fresh = False
            if self._on_touched is not None:
                self._on_touched(path)

        try:
            if entry is None:
                record = await self._unknown.get(path)
            else:
                record = await self._store.get(path, touched)
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
        fresh.value = self._decode(record.value, path)
        if entry is not None or len(self._entries) < _ENTRIES_MAX:
            self._entries[path] = fresh
        return fresh.value

    @property
    def _in_contact(self) -> bool:
        return self._store.session_state is SessionState.CONNECTED

    def invalidate(self, path: str) -> None:
        """Read the record again when it is needed next, because this broker has changed it."""
        entry = self._entries.get(path)
        if entry is not None:
            entry.fresh = False

    def replace(self, path: str, value: ValueT) -> None:
        """Use this value from now on, and read the record again when it is needed next."""
        if path in self._entries:
            self._entries[path] = _Entry(value)

    def known(self, path: str) -> ValueT | None:
        """Return the last value that was seen, without reading the store."""
        entry = self._entries.get(path)
        return None if entry is None else entry.value


class ChildrenCache:
    """Lists of children, cached until they change: the contract of `MetadataCache`.

    A record that does not exist has no children, and that is cached, too.
    """

    def __init__(self, store: MetadataStore, on_touched: Callable[[str], None]) -> None:
        self._store = store
        self._on_touched = on_touched
        self._entries: dict[str, _Entry[frozenset[str]]] = {}

    async def get(self, path: str) -> frozenset[str]:
        """Return the names of the children.  Raise UnavailableError."""
        entry = self._entries.get(path)
        in_contact = self._store.session_state is SessionState.CONNECTED
        if entry is not None and entry.value is not None and (entry.fresh or not in_contact):
            return entry.value
        fresh = _Entry[frozenset[str]](None, fresh=True)

        def touched() -> None:
            fresh.fresh = False
            self._on_touched(path)

        try:
            names = await self._store.get_children(path, touched)
            if names is None and await self._store.get(path, touched) is not None:
                names = await self._store.get_children(path, touched)
        except StoreUnavailableError as error:
            if entry is None or entry.value is None:
                raise UnavailableError(f"{path}: {error}") from error
            return entry.value
        fresh.value = frozenset(names or ())
        self._entries[path] = fresh
        return fresh.value

    def invalidate(self, path: str) -> None:
        entry = self._entries.get(path)
        if entry is not None:
            entry.fresh = False
