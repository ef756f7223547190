"""Why a dispatch machine delivers nothing now, as data: the answer of `Dispatch.explain`.

A *blocker* keeps entries from one consumer, or from all.  The answer is computed from the state of
the machine at the moment of the question; nothing is remembered for it, so it costs nothing while
nobody asks.  Machines have no clock: `broker.dispatch.explain` knows since when a blocker holds,
because a consumer runs into its limits at a delivery, and each consumer knows its last one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from daybook.broker.protocol.dispatch.places import ConsumerKey, Place

BLOCKERS_MAX = 100  # consumers that one answer names


class Cause(Enum):
    """A reason why entries stay where they are.  The values are shown to people and in metrics."""

    # Reasons that a machine gives.
    NO_CONSUMERS = "noConsumers"
    NO_PERMITS = "noPermits"  # the client has not asked for more
    CONNECTION_FULL = "connectionFull"  # the client does not read its socket
    CONSUMER_UNACKED = "consumerUnacked"  # the consumer reached its limit
    SUBSCRIPTION_UNACKED = "subscriptionUnacked"  # all consumers together reached theirs
    DELAYED = "delayed"  # entries that ask to be delivered later
    DELAYED_FULL = "delayedFull"  # so many of them that nothing more is read
    CHUNK_HELD = "chunkHeld"  # chunks that only one consumer may get
    CHUNKS_FULL = "chunksFull"  # so many of them that nothing more is read
    KEY_WAITS = "keyWaits"  # entries that wait for the consumer of their key, or for its last one
    KEY_UNCOVERED = "keyUncovered"  # entries whose key is in the hash ranges of no consumer
    LOOK_AHEAD_FULL = "lookAheadFull"  # so many entries wait for keys that nothing more is read
    # Reasons of the shell.
    BROKER_UNACKED = "brokerUnacked"  # the broker reached its limit, and this has its share of it
    DISPATCH_RATE = "dispatchRate"  # a policy limits the rate, and it is used up for now
    READING = "reading"  # a read of the log is under way
    READ_FAILS = "readFails"  # the log cannot be read, and the read is repeated
    UNREADABLE = "unreadable"  # one entry cannot be read, and the others are delivered
    MOVING = "moving"  # the cursor is being moved
    TOPIC_CLOSED = "topicClosed"
    UNKNOWN = "unknown"  # nothing is in the way: a bug


@dataclass(frozen=True, slots=True)
class Blocker:
    """One reason.  Fields that mean nothing for its cause are None."""

    cause: Cause
    consumer: ConsumerKey | None = None  # the consumer that is blocked
    count: int | None = None  # permits, messages or entries, as the cause says
    limit: int | None = None
    place: Place | None = None  # the oldest entry concerned
    until_ms: int | None = None
    since_ms: int | None = None
    detail: str = ""  # a key, a range, or the words of an error


def stops_all(blockers: Iterable[Blocker]) -> bool:
    """Return True if one of the blockers stops the whole subscription."""
    return any(each.cause in _STOP_ALL for each in blockers)


_STOP_ALL = frozenset(
    {
        Cause.NO_CONSUMERS,
        Cause.SUBSCRIPTION_UNACKED,
        Cause.BROKER_UNACKED,
        Cause.DELAYED_FULL,
        Cause.CHUNKS_FULL,
        Cause.LOOK_AHEAD_FULL,
        Cause.DISPATCH_RATE,
        Cause.MOVING,
        Cause.TOPIC_CLOSED,
    }
)
