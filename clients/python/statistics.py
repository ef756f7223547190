"""Statistics of a client, its producers, consumers and readers: `stats()` returns them.

They are counted for each entry, not for each message, and cost nothing that can be measured.
Rates and latencies are those of the last minute; all other numbers count from the begin.
"""

from dataclasses import dataclass

import trio

from daybook.clients.python.protocol.statistics import Latencies, Rate


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """The statistics of a producer, with all its partitions."""

    topic: str
    name: str
    connected: bool
    messages_sent: int  # in entries that were queued, with those that have failed
    bytes_sent: int  # before compression
    entries_sent: int
    messages_stored: int
    messages_failed: int
    pending_messages: int  # neither stored nor failed
    pending_bytes: int
    messages_per_s: float  # stored
    bytes_per_s: float
    latency_p50_s: float | None  # from the entry in the queue to its receipt; None without any
    latency_p99_s: float | None
    latency_max_s: float | None


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """The statistics of a consumer or a reader, with all its topics and partitions."""

    topic: str
    name: str
    subscription: str | None  # None for a reader
    connected: bool
    messages_received: int  # that were unpacked for the application
    bytes_received: int  # as they are on the wire
    entries_received: int
    messages_redelivered: int  # received, and delivered before, as far as the broker counts
    messages_acked: int  # one by one: a cumulative acknowledgement does not count
    messages_nacked: int
    ack_timeouts: int  # entries
    dead_letters: int
    queued_messages: int  # arrived, or unpacked, and not taken by the application
    messages_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ClientStats:
    """The statistics of a client and all that it has open."""

    connections: int
    producers: tuple[ProducerStats, ...]
    consumers: tuple[ConsumerStats, ...]  # and readers


class SendCounts:
    """The counts of one producer, shared by its partitions."""

    __slots__ = ("entries", "failed", "latencies", "sent", "sent_bytes", "stored")

    def __init__(self) -> None:
        now = trio.current_time()
        self.sent = 0
        self.sent_bytes = 0
        self.entries = 0
        self.failed = 0
        self.stored = Rate(now)
        self.latencies = Latencies(now)

    def entry_queued(self, messages: int, size: int) -> None:
        self.entries += 1
        self.sent += messages
        self.sent_bytes += size

    def entry_stored(self, messages: int, size: int, queued_at: float) -> None:
        now = trio.current_time()
        self.stored.add(now, messages, size)
        self.latencies.add(now, now - queued_at)


class ReceiveCounts:
    """The counts of one consumer or reader, shared by its topics and partitions."""

    __slots__ = ("acked", "entries", "nacked", "received", "redelivered", "timeouts")

    def __init__(self) -> None:
        self.received = Rate(trio.current_time())
        self.entries = 0
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0
        self.timeouts = 0

    def entry_received(self, messages: int, size: int, redeliveries: int) -> None:
        self.entries += 1
        self.received.add(trio.current_time(), messages, size)
        if redeliveries:
            self.redelivered += messages
