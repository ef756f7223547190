"""What one client, one topic, one subscription may take of a broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from daybook.broker.errors import PreconditionError
from daybook.broker.protocol.dispatch.events import DispatchLimits
from daybook.managed_ledger.context import LogConfig


@dataclass(frozen=True, slots=True)
class TopicLimits:
    dispatch: DispatchLimits = field(default_factory=DispatchLimits)
    read_bytes_max: int = 4 << 20  # at once, for one subscription
    retry_s: float = 0.2  # after a read that failed
    partial_bytes_max: int = 16 << 20  # to know of what batches which messages are acknowledged
    probe_s: float = 5.0  # for a client to show that it is alive
    drain_s: float = 5.0  # for what is outstanding, when a topic is closed
    change_s: float = 10.0  # for a change of a subscription, when another client waits for that
    return_s: float = 60.0  # for the consumers of a volatile subscription that was moved
    producers_max: int = 100_000
    consumers_max: int = 100_000
    subscriptions_max: int = 100_000


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The bounds for requests of one kind."""

    under_way_max: int = 200  # of one connection
    total_max: int = 10_000  # of all connections; one with none under way gets a place all the same
    waiting_max: int = 20_000  # of one connection: as many as it may have producers and consumers
    waiting_bytes_max: int = 32 << 20  # of one connection
    waiting_total_bytes: int = 128 << 20  # of all connections


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    producers_max: int = 10_000
    consumers_max: int = 10_000
    # Opening, and what else reads or writes a topic.
    requests: RequestLimits = field(default_factory=RequestLimits)
    # What is answered from memory, or by the metadata store.
    lookups: RequestLimits = field(
        default_factory=lambda: RequestLimits(under_way_max=20, total_max=1_000)
    )
    feed_bytes_max: int = 4 << 20  # with more to send, a connection gets no messages
    feed_total_bytes: int = 256 << 20  # to all that are slow together
    unread_bytes_max: int = 16 << 20  # with more to send, a connection is not read from
    names_chars_max: int = 1 << 10  # of producers, consumers, subscriptions
    topic_list_max: int = 100_000


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What is not a setting.  The simulator draws other values, so that limits are met."""

    topics: TopicLimits = field(default_factory=TopicLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    logs: LogConfig = field(default_factory=LogConfig)


PROPERTIES_BYTES_MAX = 64 << 10  # They lie in records that grow by other things, too.


def check_properties(whose: str, properties: Mapping[str, str] | None) -> None:
    """Raises PreconditionError for more than their record should hold."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in (properties or {}).items())
    if size > PROPERTIES_BYTES_MAX:
        raise PreconditionError(
            f"the properties of the {whose} take {size} bytes; at most {PROPERTIES_BYTES_MAX} are"
            " stored: shorten them"
        )
