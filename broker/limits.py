"""The limits for one client, one topic and one subscription."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from daybook.broker.errors import PreconditionError
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.managed_ledger.context import LogConfig


@dataclass(frozen=True, slots=True)
class DeduplicationLimits:
    """Snapshots are stored after so many entries, bytes or seconds, whichever comes first."""

    snapshot_entries: int = 5_000  # replayed in some 25 ms; each snapshot costs a sync
    snapshot_bytes: int = 16 << 20
    snapshot_s: float = 10.0
    replay_bytes_max: int = 1 << 30  # when there is no snapshot
    settle_s: float = 5.0  # for the pending entries of a producer whose name comes again
    names_max: int = 10_000
    names_bytes_max: int = 512 << 10
    generated_s: float = 600.0  # after which a generated name that has left is forgotten


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    keys_max: int = 2_000_000  # for one run
    retain_keyless: bool = False
    bytes_per_s: float = 32 << 20  # all runs of a broker together
    runs_max: int = 1  # at the same time
    read_entries: int = 500
    read_bytes: int = 256 << 10
    write_s: float = 60.0  # for bookies to confirm a piece
    delete_s: float = 2.0  # for the deletion of a ledger that was not published
    retry_s: float = 60.0  # after a failure, for runs by the threshold; doubled each time
    retry_max_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class LoadLimits:
    at_once: int = 256  # topics; their writes to ZooKeeper and the bookies share requests and syncs
    slow_s: float = 10.0  # A slower load gives its place to another.
    load_s: float = 300.0  # for one load


@dataclass(frozen=True, slots=True)
class UnackedLimits:
    """Unacknowledged messages of all shared subscriptions of a broker; see `BrokerLimit`."""

    messages_max: int = 0  # 0: no limit
    share: float = 0.16  # the part of it that one subscription may have while the broker is full


@dataclass(frozen=True, slots=True)
class PublishLimit:
    """The limit of what all producers of a broker together send in a second; 0: no limit."""

    messages_per_s: int = 0
    bytes_per_s: int = 0


@dataclass(frozen=True, slots=True)
class TopicLimits:
    loads: LoadLimits = field(default_factory=LoadLimits)
    compaction: CompactionLimits = field(default_factory=CompactionLimits)
    deduplication: DeduplicationLimits = field(default_factory=DeduplicationLimits)
    dispatch: DispatchLimits = field(default_factory=DispatchLimits)
    unacked: UnackedLimits = field(default_factory=UnackedLimits)
    published: PublishLimit = field(default_factory=PublishLimit)
    read_bytes_max: int = 4 << 20  # in one read, for one subscription
    retry_s: float = 0.2  # after a read that failed
    probe_s: float = 5.0  # for a client to show that it is alive
    drain_s: float = 5.0  # for outstanding sends, when a topic is closed
    change_s: float = 10.0  # for a change of a subscription that another client waits for
    stalled_s: float = 5.0  # without a delivery, though there are messages and permits
    return_s: float = 60.0  # for the consumers of a moved volatile subscription to come back
    producers_max: int = 100_000
    consumers_max: int = 100_000
    subscriptions_max: int = 100_000


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The bounds for requests of one kind."""

    under_way_max: int = 200  # one connection
    total_max: int = 10_000  # all connections; one with none under way always gets a place
    waiting_max: int = 20_000  # one connection; a client asks again for what is refused
    waiting_bytes_max: int = 32 << 20  # one connection
    waiting_total_bytes: int = 128 << 20  # all connections


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    # One connection has all of a client when one broker is left.  A producer takes two to three KB,
    # and 25 with the longest name and properties; so does a key_shared consumer.
    producers_max: int = 50_000
    consumers_max: int = 30_000
    # Requests that open, read or write a topic.
    requests: RequestLimits = field(default_factory=RequestLimits)
    # Requests that are answered from memory or by the metadata store.
    lookups: RequestLimits = field(
        default_factory=lambda: RequestLimits(under_way_max=20, total_max=1_000)
    )
    dispatch_bytes_max: int = 4 << 20  # with more queued to send, a connection gets no messages
    dispatch_total_bytes: int = 256 << 20  # for all slow connections together
    unread_bytes_max: int = 16 << 20  # with more queued to send, a connection is not read
    unread_total_bytes: int = 512 << 20  # queued for all connections; above it, they get less each
    watchers_max: int = 100  # they follow lists of topics
    names_chars_max: int = 1 << 10  # names of producers, consumers, subscriptions
    metadata_bytes_max: int = 4 << 10  # properties of one producer or consumer


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    cache_bytes_max: int = 32 << 20  # versions that were read, with what was parsed of them
    locators_bytes_max: int = 32 << 20  # records of topics; further ones are read each time
    reads_at_once: int = 16
    read_s: float = 20.0  # for one version
    write_s: float = 20.0  # for the ledger of a new version


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits that are not settings.  The simulator draws smaller values, so that they are met."""

    topics: TopicLimits = field(default_factory=TopicLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    logs: LogConfig = field(default_factory=LogConfig)
    schemas: SchemaLimits = field(default_factory=SchemaLimits)


PROPERTIES_BYTES_MAX = 64 << 10  # properties share their records with other growing data


def check_properties(owner: str, properties: Mapping[str, str] | None) -> None:
    """Raise PreconditionError if the properties are too large for their record."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in (properties or {}).items())
    if size > PROPERTIES_BYTES_MAX:
        raise PreconditionError(
            f"the properties of the {owner} take {size} bytes; at most {PROPERTIES_BYTES_MAX} are"
            " stored: shorten them"
        )
