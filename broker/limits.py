"""What one client, one topic, one subscription may take of a broker."""

from dataclasses import dataclass, field

from broker.protocol.dispatch.events import DispatchLimits


@dataclass(frozen=True, slots=True)
class TopicLimits:
    dispatch: DispatchLimits = field(default_factory=DispatchLimits)
    read_bytes_max: int = 4 << 20  # at once, for one subscription
    retry_s: float = 0.2  # after a read that failed
    partial_bytes_max: int = 16 << 20  # to know of what batches which messages are acknowledged
    probe_s: float = 5.0  # for a client to show that it is alive
    drain_s: float = 5.0  # for what is outstanding, when a topic is closed
    return_s: float = 60.0  # for the consumers of a volatile subscription that was moved
    producers_max: int = 100_000
    consumers_max: int = 100_000
    subscriptions_max: int = 100_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    producers_max: int = 10_000
    consumers_max: int = 10_000
    requests_max: int = 200  # under way at once
    feed_bytes_max: int = 4 << 20  # with more to send, a connection gets no messages
    feed_total_bytes: int = 256 << 20  # to all that are slow together
    unread_bytes_max: int = 16 << 20  # with more to send, a connection is not read from
    names_chars_max: int = 1 << 10  # of producers, consumers, subscriptions
    topic_list_max: int = 100_000
