"""The events of a history, and the format of its lines.

A history is a sequence of events in the order of time, each stamped with an instant and with the
name of its observer.  A file holds one event per line, as a JSON object with `at_ns`, `by` and
`kind`; the other keys are the fields of the event's class, below or in `ledger_events`.
`docs/histories.md` explains them.

Times are of a monotonic clock that all observers share.  Values are unique in the whole history: a
value names the send that it came from.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TypeAlias

import msgspec

from tests.history.compaction_events import (
    Compacted,
    LatestEnd,
    LatestFollows,
    LatestRead,
    ViewChange,
)
from tests.history.ledger_events import (
    Append,
    Confirmed,
    Entries,
    LacSeen,
    LedgerCreate,
    LedgerDelete,
    LedgerEnd,
    LedgerRead,
    NoEntry,
    Recover,
    WriterStopped,
)
from tests.history.policy_events import Expired, MayEvict, MayExpire
from tests.history.route_events import Arrived, Offer, Route, RouteEnd, Settled, Taken

FORMAT = 1

Position: TypeAlias = tuple[int, int, int]
"""(ledger, entry, index in its batch; -1 if it is alone in the entry)"""


@dataclass(frozen=True, slots=True)
class Run:
    """The first event: what the rules may assume about this run."""

    format: int = FORMAT
    name: str = ""  # the command that repeats it
    in_flight_s: float = 1.0  # after this time a sent message has arrived, unless there is a fault
    silent_s: float = 6.0  # after this time clients do without a bookie that does not answer
    slow_read_s: float = 1.0  # after this time a reader asks the next bookie, too
    ack_loss_s: float = 3.0  # after this time an acknowledgement without a receipt is durable
    settle_s: float = 15.0  # after this time a fault that has ended has no more consequences
    batch_acks_durable: bool = False  # acknowledging a part of a batch survives its broker
    # The broker has room to remember the acknowledged messages of batches.
    batch_parts_kept: bool = True
    deduplicated: tuple[str, ...] = ()  # topics, without their partitions
    orphans_removed: bool = False  # ledgers that no list has ever named are gone at the end
    auto_recovery: bool = False  # closed fragments may get other bookies
    bookies: int = 0  # the cluster has at least so many; 0: more than any ensemble needs


# -- producers


@dataclass(frozen=True, slots=True)
class Send:
    topic: str  # may be partitioned
    producer: str  # unique in the history
    seq: int  # counts the sends of the producer
    value: str
    digest: str = ""  # covers all content that must come back unchanged
    key: str = ""
    empty: bool = False  # a tombstone: it removes its key
    due_ns: int = 0  # shared subscriptions do not deliver it before


@dataclass(frozen=True, slots=True)
class Ok:
    topic: str  # or the partition
    producer: str
    seq: int
    position: Position


@dataclass(frozen=True, slots=True)
class Error:
    """The message is certainly not stored, and never will be."""

    producer: str
    seq: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The message may be stored, now or later.  A send without any outcome is the same."""

    producer: str
    seq: int
    reason: str = ""


# -- consumers


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A consumer asks for a subscription, which may have to be created."""

    topic: str
    subscription: str
    consumer: str  # unique in the history
    type: str  # exclusive, failover, shared, key_shared
    start: str  # for a new subscription: earliest, latest
    tasks: int = 1  # tasks that receive: several note their messages in any order


@dataclass(frozen=True, slots=True)
class Attached:
    """The consumer is attached; it is attached again when its topic moves to another broker."""

    consumer: str
    since_ns: int  # when the attachment was requested
    topic: str = ""  # the partition, if only one is meant
    broker: str = ""  # the process that it is attached to; empty: not known


@dataclass(frozen=True, slots=True)
class Leave:
    """The consumer is about to leave; brokers may know of it before `detach` says so."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Detach:
    """The consumer has left; it receives no more messages."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Deliver:
    consumer: str
    topic: str  # or the partition
    position: Position
    value: str
    digest: str = ""
    redeliveries: int = 0  # as the broker counts them
    key: str = ""  # by which a key_shared subscription orders the entry; of its first message only


@dataclass(frozen=True, slots=True)
class Ack:
    consumer: str
    ack: int  # its number at this consumer
    topic: str  # or the partition
    positions: tuple[Position, ...]  # one position, if cumulative
    cumulative: bool = False


@dataclass(frozen=True, slots=True)
class Acked:
    """The acknowledgement has a receipt: it is durable."""

    consumer: str
    ack: int


@dataclass(frozen=True, slots=True)
class Nack:
    consumer: str
    topic: str
    position: Position


@dataclass(frozen=True, slots=True)
class Seek:
    """A seek of the subscription to a position, `earliest`, `latest`, or a `time` has begun."""

    topic: str
    subscription: str
    seek: int  # unique in the history
    to: Position | str
    consumer: str = ""  # the seeking consumer; an administrator if empty


@dataclass(frozen=True, slots=True)
class Sought:
    seek: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """From now on the subscription may be gone."""

    topic: str
    subscription: str


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The subscription is gone."""

    topic: str
    subscription: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything is healed, and the subscription has no more messages; all that came were acked."""

    topic: str
    subscription: str


# -- topics


@dataclass(frozen=True, slots=True)
class Delete:
    """From now on the topic, with its subscriptions, may be gone."""

    topic: str


@dataclass(frozen=True, slots=True)
class Deleted:
    topic: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """From now on the topic may have had its last message."""

    topic: str  # or the partition


@dataclass(frozen=True, slots=True)
class Terminated:
    """The topic is terminated; this was its last entry."""

    topic: str
    last: tuple[int, int]  # ledger, entry


@dataclass(frozen=True, slots=True)
class Spoils:
    """From now on entries may come that nobody can read; they are not in the history."""

    topic: str  # or the partition


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Messages in ledgers before this one may be gone: retention deleted them."""

    topic: str
    ledger: int


@dataclass(frozen=True, slots=True)
class Follows:
    """A reader is open, and waits for messages behind the position where it starts."""

    topic: str
    reader: str
    start: str  # earliest; somewhere: not known


@dataclass(frozen=True, slots=True)
class Read:
    """A message was read without a subscription.  A reader reads in order, and skips nothing."""

    topic: str
    reader: str  # unique in the history
    position: Position
    value: str
    digest: str = ""
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """A reader from the earliest message found no more messages after everything was healed."""

    topic: str
    reader: str


# -- faults


@dataclass(frozen=True, slots=True)
class Fault:
    fault: str  # unique in the history
    text: str
    clean: bool = False  # an orderly hand-over: only messages in flight may be lost
    bookie: str = ""  # the only fault is that this bookie is slow, silent or gone


@dataclass(frozen=True, slots=True)
class FaultEnd:
    fault: str


@dataclass(frozen=True, slots=True)
class Overloaded:
    """A bookie refused an entry for want of room (TOO_MANY_REQUESTS).

    Its writers leave the bookie out for a while, so for the time of `settle_s` it counts as one
    that is not well.  It excuses delays only.
    """

    bookie: str


@dataclass(frozen=True, slots=True)
class Healed:
    """All faults are over, for good."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """No client has sent or opened anything since all was healed, and there was time for everything
    to arrive.  These consumers and readers are there, and have all that they are owed.
    """

    there: tuple[str, ...] = ()


# -- ledgers, as an auditor sees them


@dataclass(frozen=True, slots=True)
class LedgerVersion:
    """The metadata of a ledger, at each change."""

    ledger: int
    version: int
    state: str  # OPEN, IN_RECOVERY, CLOSED
    last_entry: int  # -1 if it is empty, or not closed
    length: int
    quorums: tuple[int, int, int]  # ensemble, write, ack
    fragments: tuple[tuple[int, tuple[str, ...]], ...]  # first entry, bookies


@dataclass(frozen=True, slots=True)
class Belongs:
    """A ledger was made for the log of a topic, whose list does not name it yet."""

    ledger: int
    topic: str
    broker: str = ""  # the process that made it; empty: not known


@dataclass(frozen=True, slots=True)
class LedgerGone:
    ledger: int


@dataclass(frozen=True, slots=True)
class ListVersion:
    """The list of a topic's ledgers, at each change."""

    topic: str
    version: int
    ledgers: tuple[int, ...]
    broker: str = ""  # the process that wrote it; empty: not known


@dataclass(frozen=True, slots=True)
class ListGone:
    topic: str


@dataclass(frozen=True, slots=True)
class Replicated:
    """Auto-recovery reports that no closed ledger lacks any copy, for good."""


@dataclass(frozen=True, slots=True)
class Copy:
    """At the end: what one bookie has of an entry."""

    ledger: int
    entry: int
    bookie: str
    found: str  # yes, no, unknown
    digest: str = ""  # covers the payload
    size: int = 0  # size of the payload


Event: TypeAlias = (
    Run
    | Send
    | Ok
    | Error
    | Unknown
    | Subscribe
    | Attached
    | Leave
    | Detach
    | Deliver
    | Ack
    | Acked
    | Nack
    | Seek
    | Sought
    | Unsubscribe
    | Unsubscribed
    | Drained
    | Delete
    | Deleted
    | Terminate
    | Terminated
    | Trimmed
    | Spoils
    | Follows
    | Read
    | ReadEnd
    | Fault
    | FaultEnd
    | Overloaded
    | Healed
    | Quiet
    | LedgerVersion
    | Belongs
    | LedgerGone
    | ListVersion
    | ListGone
    | Replicated
    | Copy
    | LedgerCreate
    | Append
    | Confirmed
    | WriterStopped
    | Recover
    | LedgerEnd
    | LacSeen
    | Entries
    | NoEntry
    | LedgerRead
    | LedgerDelete
    | Compacted
    | LatestFollows
    | LatestRead
    | LatestEnd
    | ViewChange
    | Route
    | Offer
    | Taken
    | Arrived
    | Settled
    | RouteEnd
    | MayExpire
    | Expired
    | MayEvict
)


@dataclass(frozen=True, slots=True)
class Stamped:
    at_ns: int
    by: str
    event: Event


class HistoryError(ValueError):
    """The input is no history: the message says which line, and why."""


def _kind(name: str) -> str:
    """Return the kind in a line: `LedgerVersion` is written as ledger_version."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


_CLASSES: dict[str, type[Event]] = {_kind(each.__name__): each for each in Event.__args__}
_KINDS: dict[type[Event], str] = {each: kind for kind, each in _CLASSES.items()}
_SIZES: dict[str, int] = {kind: len(fields(each)) for kind, each in _CLASSES.items()}


def encode(stamped: Stamped) -> bytes:
    """Return one line, without its end."""
    event = stamped.event
    line = {"at_ns": stamped.at_ns, "by": stamped.by, "kind": _KINDS[type(event)], **asdict(event)}
    return msgspec.json.encode(line)


def decode(line: bytes) -> Stamped:
    """Invert `encode`; raise HistoryError."""
    try:
        body = msgspec.json.decode(line, type=dict[str, object])
        at_ns = msgspec.convert(body.pop("at_ns"), int)
        by = msgspec.convert(body.pop("by"), str)
        kind = msgspec.convert(body.pop("kind"), str)
        event = msgspec.convert(body, _CLASSES[kind])
    except KeyError as error:
        raise HistoryError(f"{line[:200]!r}: no {error}") from None
    except msgspec.MsgspecError as error:
        raise HistoryError(f"{line[:200]!r}: {error}") from None
    unknown = body.keys() - {field.name for field in fields(event)}
    if unknown:
        raise HistoryError(f"{line[:200]!r}: {kind} has no {', '.join(sorted(unknown))}")
    return Stamped(at_ns, by, event)


def decode_lines(lines: Iterable[bytes]) -> list[Stamped]:
    """Decode each line.  Raise HistoryError with the number of the line."""
    found: list[Stamped] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(decode(line))
            except HistoryError as error:
                raise HistoryError(f"line {number}: {error}") from None
    return found
