"""What can be in a history, and the format of its lines.

A history is a sequence of events in the order of time, each stamped with an instant and with the
name of who saw it.  A file holds one event a line, as a JSON object with `at_ns`, `by` and `kind`;
the other keys are the fields of the event's class, below or in `ledger_events`.
`docs/histories.md` explains them.

Times are of a monotonic clock that everybody in the file shares.  Values are unique in the whole
history: a value names the send that it came from.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TypeAlias

import msgspec

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

FORMAT = 1

Position: TypeAlias = tuple[int, int, int]
"""(ledger, entry, index in its batch; -1 if it is alone in the entry)"""


@dataclass(frozen=True, slots=True)
class Run:
    """The first event: what the rules may assume of this run."""

    format: int = FORMAT
    name: str = ""  # how to run it again
    in_flight_s: float = 1.0  # what was sent has arrived after that, unless there is a fault
    silent_s: float = 6.0  # then a bookie that does not answer is done without
    ack_loss_s: float = 3.0  # an acknowledgement without receipt is durable after that
    settle_s: float = 15.0  # a fault has no consequences any more, so long after its end
    batch_acks_durable: bool = False  # acknowledging a part of a batch survives its broker
    batch_parts_kept: bool = True  # the broker has room to know which messages of batches are done
    deduplicated: tuple[str, ...] = ()  # topics
    orphans_removed: bool = False  # ledgers that no list has ever named are gone at the end
    auto_recovery: bool = False  # what nobody writes to any more may get other bookies


# -- producers


@dataclass(frozen=True, slots=True)
class Send:
    topic: str  # may be partitioned
    producer: str  # unique in the history
    seq: int  # counts the sends of the producer
    value: str
    digest: str = ""  # of everything that must come back unchanged


@dataclass(frozen=True, slots=True)
class Ok:
    topic: str  # or the partition
    producer: str
    seq: int
    position: Position


@dataclass(frozen=True, slots=True)
class Error:
    """It is certainly not stored, and never will be."""

    producer: str
    seq: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may be stored, now or later.  A send without any outcome is the same."""

    producer: str
    seq: int
    reason: str = ""


# -- consumers


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A consumer asks for a subscription, which may have to be made."""

    topic: str
    subscription: str
    consumer: str  # unique in the history
    type: str  # exclusive, failover, shared
    start: str  # of a new subscription: earliest, latest
    tasks: int = 1  # that receive: what several note comes in any order


@dataclass(frozen=True, slots=True)
class Attached:
    """It is attached; again, when it was moved to another broker."""

    consumer: str
    since_ns: int  # when it was asked for
    topic: str = ""  # the partition, if only one is meant
    broker: str = ""  # the process that it is attached to; empty: nobody knows


@dataclass(frozen=True, slots=True)
class Leave:
    """The consumer is about to leave; brokers may know of it before `detach` says so."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Detach:
    """The consumer has left; it receives nothing more."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Deliver:
    consumer: str
    topic: str  # or the partition
    position: Position
    value: str
    digest: str = ""
    redeliveries: int = 0  # as the broker counts them


@dataclass(frozen=True, slots=True)
class Ack:
    consumer: str
    ack: int  # its number at this consumer
    topic: str  # or the partition
    positions: tuple[Position, ...]  # one, if cumulative
    cumulative: bool = False


@dataclass(frozen=True, slots=True)
class Acked:
    """There is a receipt: it is durable."""

    consumer: str
    ack: int


@dataclass(frozen=True, slots=True)
class Nack:
    consumer: str
    topic: str
    position: Position


@dataclass(frozen=True, slots=True)
class Seek:
    """The subscription is to go to a position, `earliest`, `latest`, or a `time`: anywhere."""

    topic: str
    subscription: str
    seek: int  # unique in the history
    to: Position | str
    consumer: str = ""  # who asks; an administrator if it is none


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
    """It is gone."""

    topic: str
    subscription: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything is healed, and the subscription has nothing more; all that came was acked."""

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
    """It has: this was its entry."""

    topic: str
    last: tuple[int, int]  # ledger, entry


@dataclass(frozen=True, slots=True)
class Spoils:
    """From now on entries may come that nobody can read; they are not in the history."""

    topic: str  # or the partition


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Messages in ledgers before this one may be gone: retention let them go."""

    topic: str
    ledger: int


@dataclass(frozen=True, slots=True)
class Follows:
    """A reader is open, and waits for whatever comes behind the place where it starts."""

    topic: str
    reader: str
    start: str  # earliest; somewhere: nobody knows where


@dataclass(frozen=True, slots=True)
class Read:
    """Without a subscription.  A reader reads in order, and skips nothing."""

    topic: str
    reader: str  # unique in the history
    position: Position
    value: str
    digest: str = ""
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """It started at the earliest message, everything is healed, and nothing more is there."""

    topic: str
    reader: str


# -- what went wrong


@dataclass(frozen=True, slots=True)
class Fault:
    fault: str  # unique in the history
    text: str
    clean: bool = False  # what it ends is handed over: only what was in flight may be lost
    bookie: str = ""  # all that is wrong is that this bookie is slow, silent or gone


@dataclass(frozen=True, slots=True)
class FaultEnd:
    fault: str


@dataclass(frozen=True, slots=True)
class Healed:
    """No fault any more, for ever."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nobody has sent or opened anything since all was healed, and there was time for everything
    to arrive.  These consumers and readers are there, and have whatever they are owed.
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
    broker: str = ""  # the process that made it; empty: nobody knows


@dataclass(frozen=True, slots=True)
class LedgerGone:
    ledger: int


@dataclass(frozen=True, slots=True)
class ListVersion:
    """The list of a topic's ledgers, at each change."""

    topic: str
    version: int
    ledgers: tuple[int, ...]
    broker: str = ""  # the process that has written it; empty: nobody knows


@dataclass(frozen=True, slots=True)
class ListGone:
    topic: str


@dataclass(frozen=True, slots=True)
class Replicated:
    """Auto-recovery says that no closed ledger lacks any copy, for ever."""


@dataclass(frozen=True, slots=True)
class Copy:
    """At the end: what one bookie has of an entry."""

    ledger: int
    entry: int
    bookie: str
    found: str  # yes, no, unknown
    digest: str = ""  # of the payload
    size: int = 0  # of the payload


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
)


@dataclass(frozen=True, slots=True)
class Stamped:
    at_ns: int
    by: str
    event: Event


class HistoryError(ValueError):
    """That is no history: the message says which line, and why."""


def _kind(name: str) -> str:
    """`LedgerVersion` is written as ledger_version."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


_CLASSES: dict[str, type[Event]] = {_kind(each.__name__): each for each in Event.__args__}
_KINDS: dict[type[Event], str] = {each: kind for kind, each in _CLASSES.items()}
_SIZES: dict[str, int] = {kind: len(fields(each)) for kind, each in _CLASSES.items()}


def encode(stamped: Stamped) -> bytes:
    """One line, without its end."""
    event = stamped.event
    line = {"at_ns": stamped.at_ns, "by": stamped.by, "kind": _KINDS[type(event)], **asdict(event)}
    return msgspec.json.encode(line)


def decode(line: bytes) -> Stamped:
    """The inverse of `encode`; raises HistoryError."""
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
    """Raises HistoryError, with the number of the line."""
    found: list[Stamped] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(decode(line))
            except HistoryError as error:
                raise HistoryError(f"line {number}: {error}") from None
    return found
