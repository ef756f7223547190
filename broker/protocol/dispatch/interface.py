"""The interface of dispatch machines: their inputs, reads and effects.

A consumer is a number that is never used twice.  An entry is its place (ledger id, entry id), the
number of messages that it still has for a consumer, and a token that the machines never look into.

A read belongs to a *generation*.  The result of a read of an earlier generation is dropped, because
the cursor has been rewound since that read began.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from daybook.broker.protocol.dispatch.blockers import Blocker
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place, SlotRange


@dataclass(slots=True)
class Entry:
    """An entry that was read.

    It is not frozen, because that makes it slower to make.  Nobody changes it once it is made:
    subscriptions of one kind share it.
    """

    place: Place
    messages: int  # permits that it takes
    token: Any
    deliver_at_ms: int = 0  # not before this time, if the subscription is shared or key_shared
    group: str | None = None  # the id of a message in chunks, which stay together
    group_ends: bool = False  # the entry is the last chunk of its message
    left: int | None = None  # the messages of a batch that compaction left, as bits
    key: int = 0  # the hash of its key, if the subscription is key_shared
    due_ms: int = 0  # as `deliver_at_ms`, but it stays when the time has come


# -- reads


@dataclass(slots=True)  # It is not frozen; see `Entry`.
class Read:
    """Read up to so many entries from the read position on.

    With `waits` false, a read at the end of the log brings an empty result at once.
    """

    entries: int
    generation: int
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Replay:
    """Read these entries again.

    With `delayed` true, some of them wait for their time, and the machine does not know which.
    """

    places: tuple[Place, ...]
    generation: int
    delayed: bool = False


Want: TypeAlias = Read | Replay


# -- effects


@dataclass(slots=True)  # It is not frozen; see `Entry`.
class Deliver:
    """Send entries to the consumer.

    `redeliveries` has how often each entry was given back, or is None if none ever was.
    """

    consumer: ConsumerKey
    entries: Sequence[Entry]
    redeliveries: Sequence[int] | None = None


@dataclass(slots=True)  # It is not frozen; see `Entry`.
class Taken:
    """The first so many entries of a `Read` are handled: read on behind them."""

    count: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """Continue reading at the first entry that is not acknowledged."""


@dataclass(frozen=True, slots=True)
class Activate:
    """Tell the consumer whether it is the one that is served."""

    consumer: ConsumerKey
    active: bool


Effect: TypeAlias = Deliver | Taken | Rewind | Activate


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    read_entries_max: int = 500
    turn_messages_min: int = 20  # at least so many in a row for one shared consumer
    # A policy sets the limits that count; these bound them.
    unacked_messages_max: int = 1 << 62  # per shared consumer
    subscription_unacked_messages_max: int = 1 << 62  # for all shared consumers together
    replay_entries_max: int = 100
    delayed_entries_max: int = 1_000_000  # that are known one by one; see `delayed`
    delayed_step_bits: int = 10  # the index groups times by 2 ** 10 ms
    delayed_lead_ms: int = 60_000  # so early the index is filled again from the log
    delayed_chunks_max: int = 100_000  # with more chunks that wait for their time, no more is read
    held_entries_max: int = 1_000  # chunks that wait for the consumer that must get them
    # Entries of key_shared subscriptions that wait for their consumer, while reading goes on.
    waiting_entries_max: int = 50_000
    key_shared_points: int = 100  # a consumer has so many on the ring; 0: ranges are split
    failover_delay_ms: int = 1_000


class Dispatch(Protocol):
    """The interface that all dispatch machines have.

    The methods that return effects are the inputs.  Only `entries_read` delivers entries.
    """

    def joined(
        self,
        consumer: ConsumerKey,
        name: str = "",
        priority: int = 0,
        ranges: Sequence[SlotRange] = (),
    ) -> list[Effect]:
        """Serve one more consumer.  A sticky key_shared consumer names its `ranges`."""
        ...

    def left(self, consumer: ConsumerKey) -> list[Effect]: ...

    def permits_granted(self, consumer: ConsumerKey, messages: int) -> list[Effect]:
        """FLOW: the consumer has room for so many more messages."""
        ...

    def connection_full(self, consumer: ConsumerKey) -> list[Effect]:
        """Too many bytes wait to be sent to the consumer."""
        ...

    def connection_writable(self, consumer: ConsumerKey) -> list[Effect]:
        """The connection of the consumer has room again."""
        ...

    def redelivery_requested(
        self, consumer: ConsumerKey, places: Sequence[Place] = ()
    ) -> list[Effect]:
        """The consumer gives back entries, or all that it has if none is named."""
        ...

    def acked(
        self, consumer: ConsumerKey, places: Sequence[Place], unread: bool = False
    ) -> list[Effect]:
        """Whole entries are acknowledged.

        If `unread` is true, the consumer could not read them and returns one permit for each entry.
        The other permits that the entries took are free at once.
        """
        ...

    def acked_up_to(self, place: Place) -> list[Effect]:
        """All entries up to this one are acknowledged, and this one too."""
        ...

    def partly_acked(self, entries: Sequence[tuple[Place, int]]) -> list[Effect]:
        """Some messages of these batches are acknowledged, and so many of each are left."""
        ...

    def cursor_moved(self) -> list[Effect]:
        """The cursor was moved, so everything that was known about entries is void."""
        ...

    def entries_read(self, want: Want, entries: Sequence[Entry]) -> list[Effect]:
        """The result of a `Want` is here.

        A `Read` brings a run of entries.  A `Replay` brings those of its entries that still exist.
        """
        ...

    def put_aside(self, place: Place) -> None:
        """Deliver other entries than this one, which cannot be read now; only if shared."""
        ...

    def bring_back(self, place: Place) -> None:
        """Deliver an entry that was put aside, because it can be read again."""
        ...

    def limit(self, limits: DispatchLimits) -> list[Effect]:
        """Other limits count from now on.  Consumers keep what they have."""
        ...

    def tick(self, now_ms: int) -> list[Effect]:
        """Tell the machine the time.  It is called at `deadline_ms`, or later."""
        ...

    def want(self) -> Want | None:
        """Return what to read next, or None if nothing can be delivered now."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `tick` is due."""
        ...

    def permits_of(self, consumer: ConsumerKey) -> int: ...

    @property
    def unacked(self) -> int:
        """The number of messages that the consumers have and have not acknowledged.

        It is 0 for machines that do not count them.
        """
        ...

    def unacked_of(self, consumer: ConsumerKey) -> int:
        """Return the number of messages that the consumer has and has not acknowledged.

        It is 0 for machines that do not count them.
        """
        ...

    def redeliveries(self) -> dict[Place, int]:
        """Return how often entries were given back on request, if the machine counts that."""
        ...

    def remember(self, redeliveries: Mapping[Place, int]) -> None:
        """Take over such counts, of entries that are not acknowledged."""
        ...

    def oldest_unacked_of(self, consumer: ConsumerKey) -> Place | None:
        """Return the first entry that the consumer has and has not acknowledged, if known."""
        ...

    def is_blocked(self, consumer: ConsumerKey) -> bool:
        """Return True if the consumer gets nothing because it has too much unacknowledged."""
        ...

    @property
    def active(self) -> ConsumerKey | None:
        """The consumer that is served, if the machine serves only one."""
        ...

    @property
    def delayed(self) -> int:
        """The number of entries that wait for their time."""
        ...

    @property
    def blocked(self) -> bool:
        """True if all consumers together have too much unacknowledged."""
        ...

    @property
    def queued(self) -> int:
        """The number of entries that were read before and could be delivered: given back or held.

        Entries that wait for their time do not count.
        """
        ...

    def explain(self) -> list[Blocker]:
        """Return what keeps entries from consumers now; see `dispatch.blockers`."""
        ...
