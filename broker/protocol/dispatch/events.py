"""What dispatch machines are told, and what they want done.

A consumer is a number that is never used twice.  An entry is its place (ledger id, entry id), the
number of messages that it still has for a consumer, and a token that is nobody's business here.

A read belongs to a *generation*: what a read brought that was begun in an earlier one is stale, and
dropped, because the cursor has been rewound in the meantime.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

ConsumerKey: TypeAlias = int
Place: TypeAlias = tuple[int, int]  # ledger id, entry id


@dataclass(slots=True)
class Entry:
    """An entry that was read.  Not frozen: one is made for each entry and subscription."""

    place: Place
    messages: int  # permits that it takes
    token: Any
    deliver_at_ms: int = 0  # not before this time, if the subscription is shared
    group: str | None = None  # the chunks of one message, which stay together
    group_ends: bool = False  # its last one


# -- what happens


@dataclass(frozen=True, slots=True)
class Joined:
    consumer: ConsumerKey
    name: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    consumer: ConsumerKey


@dataclass(frozen=True, slots=True)
class Permits:
    """FLOW: the consumer has room for so many messages more."""

    consumer: ConsumerKey
    messages: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Too much waits to be sent to the consumer."""

    consumer: ConsumerKey


@dataclass(frozen=True, slots=True)
class Writable:
    consumer: ConsumerKey


@dataclass(frozen=True, slots=True)
class Redeliver:
    """The consumer gives back entries; all that it has, if none is named."""

    consumer: ConsumerKey
    places: Sequence[Place] = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """Whole entries are done with."""

    consumer: ConsumerKey
    places: Sequence[Place]


@dataclass(frozen=True, slots=True)
class AckedUpTo:
    """So is everything up to, and with, this one."""

    place: Place


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cursor was moved: what was known about entries is void."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What came of a `Want`: for a read a run of entries, for a replay those still to be had."""

    want: "Want"
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Tick:
    now_ms: int


Event: TypeAlias = (
    Joined
    | Left
    | Permits
    | Blocked
    | Writable
    | Redeliver
    | Acked
    | AckedUpTo
    | Cleared
    | Brought
    | Tick
)


# -- what is to be read


@dataclass(frozen=True, slots=True)
class Read:
    """Entries from where reading stands, up to this many."""

    entries: int
    generation: int


@dataclass(frozen=True, slots=True)
class Replay:
    """These entries again."""

    places: tuple[Place, ...]
    generation: int


Want: TypeAlias = Read | Replay


# -- what is to be done


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send these to the consumer; `redeliveries`: how often each was given back, if any was."""

    consumer: ConsumerKey
    entries: Sequence[Entry]
    redeliveries: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """So many entries of a `Read`, from its first, are dealt with: go on reading behind them."""

    count: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """Go on reading at the first entry that is not acknowledged."""


@dataclass(frozen=True, slots=True)
class Activate:
    """Tell the consumer whether it is the one that is served."""

    consumer: ConsumerKey
    active: bool


Effect: TypeAlias = Deliver | Taken | Rewind | Activate


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    read_entries_max: int = 500
    turn_messages_min: int = 20  # a shared consumer gets that many before it is the next one's turn
    unacked_messages_max: int = 50_000  # of one shared consumer
    subscription_unacked_messages_max: int = 200_000  # of all of them together
    replay_entries_max: int = 100
    delayed_entries_max: int = 100_000  # with more, reading waits until some are due
    held_entries_max: int = 1_000  # chunks that wait for the one consumer that gets them
    failover_delay_ms: int = 1_000


class Dispatch(Protocol):
    """What the shell needs of any of the machines."""

    def step(self, event: Event) -> list[Effect]: ...

    def want(self) -> Want | None:
        """What to read next; None if nothing can be delivered now."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """When `Tick` is due."""
        ...

    def permits_of(self, consumer: ConsumerKey) -> int: ...

    def unacked_of(self, consumer: ConsumerKey) -> int:
        """Messages that the consumer has and that are not acknowledged, where that is counted."""
        ...

    def is_blocked(self, consumer: ConsumerKey) -> bool:
        """Does the consumer get nothing because it has too much unacknowledged?"""
        ...

    @property
    def active(self) -> ConsumerKey | None:
        """The consumer that is served, if it is only one."""
        ...

    @property
    def delayed(self) -> int:
        """Entries that wait for their time."""
        ...
