"""More partitions for a topic that is in use, without a message that a subscription misses.

Clients look for new partitions from time to time.  A producer may find one long before a consumer
does, and the consumer then subscribes to it from its end.  So a new partition has the topic's
subscriptions before anybody can find it, each of them at its beginning.

One request to the metadata store does it all: it creates the records of the new logs and of their
cursors, and changes the number of partitions, or it does nothing.  Where that is too much for one
request, the topic grows in steps, and each step is such a request.  No partition is loaded for it.

The store holds every durable subscription, so that is where the names come from.  A subscription
that is created while the topic grows may miss its cursors in the new partitions.  The caller
completes those afterwards: `stored_subscriptions` tells which there are then.
"""

from collections.abc import Callable, Mapping

from daybook.broker.errors import BrokerError, ConflictError, NotFoundError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import live_namespace
from daybook.broker.namespaces.records import PartitionedTopic
from daybook.broker.topics.topic_subscriptions import is_internal
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.records import cursor_path, log_path, parse
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import (
    REQUEST_BYTES_MAX,
    Create,
    MetadataError,
    MetadataStore,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    Set,
    StoreUnavailableError,
    VersionConflictError,
    request_bytes,
)
from daybook.wire.topics import TopicName, url_decode

Subscriptions = Mapping[str, Mapping[str, str]]  # the properties of each, by its name
_CONFLICTS_MAX = 16  # Each one is another change of the same topic, or a request without an answer.
_ROOM_BYTES = 4 << 10  # for the condition on the namespace
# Every ledger comes after this one, so a cursor there is in front of the first message.
_BEFORE_ALL = (0, -1)
_NO_LEDGER = -1


async def grow(
    store: MetadataStore,
    topic: TopicName,
    check: Callable[[PartitionedTopic], int],
    *,
    force: bool,
) -> tuple[range, Subscriptions]:
    """Add partitions; return their indexes, and the subscriptions that they were created with.

    `check` returns the number of partitions that the topic should have, or raises a BrokerError.
    Raise ConflictError if a topic has the name of a new partition already, unless `force`.  Raise
    UnavailableError if the outcome is not known: fewer partitions than wanted may be there.
    """
    first: int | None = None
    subscriptions: Subscriptions = {}
    conflicts = 0
    while conflicts < _CONFLICTS_MAX:
        namespace = await live_namespace(store.get, topic.namespace)
        record = await _topic_record(store, topic)
        present = _decoded(record)
        wanted = check(present)
        first = present.partitions if first is None else first
        if present.partitions >= wanted:
            return range(first, wanted), subscriptions
        subscriptions = await stored_subscriptions(store, topic, present.partitions)
        taken = await _taken(store, topic, range(present.partitions, wanted))
        if taken and not force:
            # An earlier request without an answer may have been carried out just now.
            if (await _topic_record(store, topic)).stat.version == record.stat.version:
                raise ConflictError(
                    f"there is a topic {taken[0]} already, which would become a partition of"
                    f" {topic}: delete it, or use force"
                )
            conflicts += 1
            continue
        step = _step(topic, record, present, wanted, subscriptions, taken)
        # A conflict means that somebody else has changed the topic, so everything is read again.
        # The same helps if the outcome is unknown: the record shows whether it was carried out.
        try:
            await store.multi([namespace, *step])
        except (VersionConflictError, RecordExistsError, OutcomeUnknownError):
            conflicts += 1
        except MetadataError as error:
            raise _unavailable(topic, error) from error
    raise UnavailableError(f"the partitions of {topic} keep changing: try again")


async def stored_subscriptions(
    store: MetadataStore, topic: TopicName, partitions: int
) -> Subscriptions:
    """Return the durable subscriptions that any of the partitions has."""
    found: dict[str, dict[str, str]] = {}
    for index in range(partitions):
        log = topic.partition_name(index).managed_ledger_name
        for encoded in await _children(store, log_path(log)):
            name = _cursor_name(encoded)
            if name is None or name in found or is_internal(name):
                continue
            record = await _get(store, cursor_path(log, name))
            if record is not None:  # It may have been deleted just now.
                found[name] = _properties(record)
    return found


def _step(
    topic: TopicName,
    record: Record,
    present: PartitionedTopic,
    wanted: int,
    subscriptions: Subscriptions,
    taken: list[TopicName],
) -> list[Operation]:
    """Return the operations that add as many partitions as one request can."""
    operations: list[Operation] = []
    count = present.partitions
    while count < wanted:
        name = topic.partition_name(count)
        more = [] if name in taken or not subscriptions else _creations(name, subscriptions)
        step = [*operations, *more, _changed(topic, record, present, count + 1)]
        if request_bytes(step) > REQUEST_BYTES_MAX - _ROOM_BYTES and count > present.partitions:
            break
        operations += more
        count += 1
    return [*operations, _changed(topic, record, present, count)]


def _creations(name: TopicName, subscriptions: Subscriptions) -> list[Operation]:
    """Return the operations that create a log with a cursor for each subscription."""
    log = name.managed_ledger_name
    operations: list[Operation] = [Create(log_path(log), b"")]
    for subscription, properties in sorted(subscriptions.items()):
        info = ManagedCursorInfo(cursorsLedgerId=_NO_LEDGER)
        info.markDeleteLedgerId, info.markDeleteEntryId = _BEFORE_ALL
        for key, value in sorted(properties.items()):
            info.cursorProperties.add(name=key, value=value)
        operations.append(Create(cursor_path(log, subscription), info.SerializeToString()))
    return operations


def _changed(topic: TopicName, record: Record, present: PartitionedTopic, count: int) -> Operation:
    value = records.encode(PartitionedTopic(count, present.deleted, present.properties))
    return Set(records.partitioned_path(topic), value, record.stat.version)


async def _topic_record(store: MetadataStore, topic: TopicName) -> Record:
    record = await _get(store, records.partitioned_path(topic))
    if record is None:
        raise NotFoundError(f"the partitioned topic {topic} does not exist")
    return record


async def _taken(store: MetadataStore, topic: TopicName, indexes: range) -> list[TopicName]:
    """Return the new partitions whose names topics have already."""
    names = [topic.partition_name(index) for index in indexes]
    parent = log_path(f"{topic.namespace}/{topic.domain}")
    present = set(await _children(store, parent))
    return [name for name in names if name.encoded in present]


async def _get(store: MetadataStore, path: str) -> Record | None:
    try:
        return await store.get(path)
    except StoreUnavailableError as error:
        raise _unavailable(path, error) from error


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.get_children(path) or []
    except StoreUnavailableError as error:
        raise _unavailable(path, error) from error


def _unavailable(what: object, error: Exception) -> BrokerError:
    return UnavailableError(
        f"{what}: the topic may have fewer partitions than it should, because the metadata store"
        f" did not answer as expected: {error}; try again"
    )


def _decoded(record: Record) -> PartitionedTopic:
    try:
        return records.decode(PartitionedTopic, record.value)
    except MalformedError as error:
        raise UnavailableError(str(error)) from error


def _cursor_name(encoded: str) -> str | None:
    try:
        return url_decode(encoded)
    except MalformedError:
        return None


def _properties(record: Record) -> dict[str, str]:
    """Return the properties of a subscription; none if its record cannot be read."""
    try:
        info = parse(ManagedCursorInfo(), record.value, "a cursor")
    except LogCorruptError:
        return {}
    return {each.name: each.value for each in info.cursorProperties}
