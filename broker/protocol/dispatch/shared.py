"""Shared: each entry goes to one of the consumers that have permits; the order is not promised.

Consumers that can take something are served in turns, those with the best priority only.  An entry
belongs to its consumer until any consumer acknowledges it.  If its consumer gives it back or
leaves, the entry is read again and goes to any consumer that can take it, before anything new.  The
machine counts how often an entry was given back on request.  The counts can be taken out when the
last consumer leaves (`redeliveries`), and given to the machine of the next one (`remember`).

A consumer with too many unacknowledged messages gets nothing until it is down to half of the limit.
The same holds for all consumers together.

Delayed entries wait until their time has come (`delayed`), and reading goes on behind them.  The
machine does not know each of very many of them.  Then it reads their part of the log again before
their time, in turns with what is new.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from daybook.broker.protocol.dispatch.blockers import BLOCKERS_MAX, Blocker, Cause
from daybook.broker.protocol.dispatch.chunks import Chunks
from daybook.broker.protocol.dispatch.delayed import Delayed, Due
from daybook.broker.protocol.dispatch.interface import (
    Deliver,
    DispatchLimits,
    Effect,
    Entry,
    Read,
    Replay,
    Rewind,
    Taken,
    Want,
)
from daybook.broker.protocol.dispatch.pending import MeanEntry, ReplayQueue, Unacked
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place, SlotRange

_DUE_WAITING_MAX = 10_000  # entries to be delivered, so that more which are due stay in the index


@dataclass(slots=True, eq=False)
class SharedConsumer:
    key: ConsumerKey
    priority: int
    permits: int = 0
    writable: bool = True
    blocked: bool = False  # it has too many unacknowledged messages
    counted: int = 0  # the permits that `SharedDispatch._count` has counted

    @property
    def rank(self) -> tuple[int, ConsumerKey]:
        return self.priority, self.key

    @property
    def available(self) -> bool:
        return self.permits > 0 and self.writable and not self.blocked


class SharedDispatch:
    """One instance per shared subscription."""

    def __init__(self, limits: DispatchLimits) -> None:
        self._limits = limits
        self._by_key: dict[ConsumerKey, SharedConsumer] = {}
        # The ranks of those that can take something: by priority, equals as they came.
        self._available: list[tuple[int, ConsumerKey]] = []
        self._permits = 0  # the sum of their permits
        self._over: dict[ConsumerKey, None] = {}  # those that are blocked
        self._unacked = Unacked()
        self._replay = ReplayQueue()
        self._aside: set[Place] = set()  # entries that cannot be read now
        self._delayed = Delayed(
            limits.delayed_entries_max,
            step_bits=limits.delayed_step_bits,
            lead_ms=limits.delayed_lead_ms,
        )
        self._new_has_turn = False  # read what is new, not the far part of what is delayed
        self._chunks = Chunks()
        self._mean = MeanEntry()
        self._generation = 0
        self._blocked = False  # all consumers together have too many unacknowledged messages
        self._some_blocked = False  # all together have, or one consumer has
        self._last_served = (0, -1)

    # -- properties

    @property
    def active(self) -> ConsumerKey | None:
        return None

    @property
    def deadline_ms(self) -> int | None:
        # Entries that are due stay in the index while there is much to deliver.
        return None if len(self._replay) >= _DUE_WAITING_MAX else self._delayed.deadline_ms

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    @property
    def blocked(self) -> bool:
        return self._blocked

    @property
    def queued(self) -> int:
        return len(self._replay) + self._chunks.held + len(self._aside)

    def explain(self) -> list[Blocker]:
        if not self._by_key:
            return [Blocker(Cause.NO_CONSUMERS)]
        limits, unacked = self._limits, self._unacked
        blockers: list[Blocker] = []
        if self._blocked:
            most = limits.subscription_unacked_messages_max
            blockers.append(Blocker(Cause.SUBSCRIPTION_UNACKED, None, unacked.messages, most))
        for key in list(self._by_key)[:BLOCKERS_MAX]:
            blockers += self._explain_consumer(self._by_key[key])
        if len(self._delayed):
            full = self._chunks.delayed >= limits.delayed_chunks_max and not len(self._replay)
            cause = Cause.DELAYED_FULL if full else Cause.DELAYED
            due_ms, place = self._delayed.first()
            most = limits.delayed_chunks_max
            blockers.append(Blocker(cause, None, len(self._delayed), most, place, due_ms))
        for consumer, count, place in self._chunks.held_for():
            blockers.append(Blocker(Cause.CHUNK_HELD, consumer, count, None, place))
        if self._chunks.held >= limits.held_entries_max and not len(self._replay):
            most = limits.held_entries_max
            blockers.append(Blocker(Cause.CHUNKS_FULL, None, self._chunks.held, most))
        return blockers

    def _explain_consumer(self, consumer: SharedConsumer) -> list[Blocker]:
        key, unacked = consumer.key, self._unacked
        blockers: list[Blocker] = []
        if consumer.blocked:
            count, most = unacked.count_of(key), self._limits.unacked_messages_max
            oldest = unacked.oldest_of(key)
            blockers.append(Blocker(Cause.CONSUMER_UNACKED, key, count, most, oldest))
        if consumer.permits <= 0:
            blockers.append(Blocker(Cause.NO_PERMITS, key, consumer.permits))
        if not consumer.writable:
            blockers.append(Blocker(Cause.CONNECTION_FULL, key))
        return blockers

    def permits_of(self, consumer: ConsumerKey) -> int:
        return self._by_key[consumer].permits

    def redeliveries(self) -> dict[Place, int]:
        return self._unacked.redeliveries()

    def remember(self, redeliveries: Mapping[Place, int]) -> None:
        self._unacked.remember(redeliveries)

    @property
    def unacked(self) -> int:
        return self._unacked.messages

    def unacked_of(self, consumer: ConsumerKey) -> int:
        return self._unacked.count_of(consumer)

    def oldest_unacked_of(self, consumer: ConsumerKey) -> Place | None:
        return self._unacked.oldest_of(consumer)

    def is_blocked(self, consumer: ConsumerKey) -> bool:
        return self._by_key[consumer].blocked

    def want(self) -> Want | None:
        permits = self._permits
        if permits <= 0 or self._blocked:
            return None
        limits = self._limits
        # Entries to be delivered again come before anything new.
        if len(self._replay):
            count = self._mean.entries_for(permits, limits.replay_entries_max)
            return Replay(self._replay.first(count), self._generation)
        chunks = self._chunks
        full = chunks.delayed >= limits.delayed_chunks_max or chunks.held >= limits.held_entries_max
        if (again := self._want_delayed(full)) is not None:
            return again
        if full:
            return None
        count = self._mean.entries_for(permits, limits.read_entries_max)
        return Read(count, self._generation, waits=not self._delayed.asks)

    def _want_delayed(self, full: bool) -> Replay | None:
        """Return a read of the far part of what is delayed, if it has its turn.

        It always has if so much waits that nothing new is read.
        """
        if (self._new_has_turn and not full) or not self._delayed.asks:
            return None
        places = self._delayed.far_places(self._limits.read_entries_max)
        return Replay(places, self._generation, delayed=True)

    # -- inputs

    def joined(
        self,
        consumer: ConsumerKey,
        name: str = "",
        priority: int = 0,
        ranges: Sequence[SlotRange] = (),
    ) -> list[Effect]:
        del name, ranges  # Consumers take turns by priority and key.
        first = not self._by_key
        self._by_key[consumer] = SharedConsumer(consumer, priority)
        self._unacked.join(consumer)
        return [Rewind()] if first else []

    def left(self, consumer: ConsumerKey) -> list[Effect]:
        left = self._by_key.pop(consumer)
        left.permits = 0
        self._count(left)
        self._over.pop(consumer, None)
        # Chunks that were held for it are free to choose another consumer.
        had = self._unacked.leave(consumer)
        self._chunks.came_back(had)
        self._return([*had, *self._chunks.leave(consumer)])
        if not self._by_key:
            self._clear()  # The next consumer begins at the first entry not acknowledged.
        self._unblock()
        return []

    def permits_granted(self, consumer: ConsumerKey, messages: int) -> list[Effect]:
        self._by_key[consumer].permits += messages
        self._may_take(consumer)
        return []

    def connection_full(self, consumer: ConsumerKey) -> list[Effect]:
        full = self._by_key[consumer]
        full.writable = False
        self._count(full)
        return []

    def connection_writable(self, consumer: ConsumerKey) -> list[Effect]:
        self._by_key[consumer].writable = True
        self._may_take(consumer)
        return []

    def redelivery_requested(
        self, consumer: ConsumerKey, places: Sequence[Place] = ()
    ) -> list[Effect]:
        given = self._unacked.give_back(consumer, places)
        self._chunks.came_back(given)
        self._return(given)
        self._unblock()
        return []

    def acked(
        self, consumer: ConsumerKey, places: Sequence[Place], unread: bool = False
    ) -> list[Effect]:
        if unread:
            self._free_permits(consumer, places)
        if len(self._delayed):
            # Those that a consumer has are not delayed, and they are nearly all.
            self._delayed.forget([each for each in places if not self._unacked.is_held(each)])
        self._unacked.ack(places)
        self._chunks.came_back(places)
        if self._aside:
            self._aside.difference_update(places)
        self._unblock()
        return []

    def partly_acked(self, entries: Sequence[tuple[Place, int]]) -> list[Effect]:
        for place, left in entries:
            self._unacked.ack_part(place, left)
        self._unblock()
        return []

    def acked_up_to(self, place: Place) -> list[Effect]:
        if len(self._delayed):
            self._delayed.forget_up_to(place)
        self._unacked.ack_up_to(place)
        self._replay.remove_up_to(place)
        self._aside = {each for each in self._aside if each > place}
        self._chunks.forget_up_to(place)
        self._chunks.came_back_up_to(place)
        self._unblock()
        return []

    def cursor_moved(self) -> list[Effect]:
        self._clear()
        return [Rewind()]

    def put_aside(self, place: Place) -> None:
        self._replay.remove(place)
        self._aside.add(place)
        # A message in chunks is not complete without it, so the others may go first.
        self._chunks.forget((place,))

    def bring_back(self, place: Place) -> None:
        if place in self._aside:
            self._aside.remove(place)
            self._replay.add((place,))

    def limit(self, limits: DispatchLimits) -> list[Effect]:
        self._limits = limits
        self._block()
        return []

    def tick(self, now_ms: int) -> list[Effect]:
        self._come_due(self._delayed.due(now_ms))
        return []

    def _come_due(self, due: Sequence[Due]) -> None:
        """Have entries delivered whose time has come."""
        self._replay.add([place for place, _ in due])

    def _return(self, places: Sequence[Place]) -> None:
        """Have entries delivered again that a consumer had."""
        self._replay.add(places)

    def _clear(self) -> None:
        """Forget all entries, but no consumer."""
        self._unacked.forget()
        self._replay.clear()
        self._aside.clear()
        self._delayed.clear()
        self._chunks.clear()
        # The result of a read that is under way is for the old position, and will be dropped.
        self._generation += 1
        self._unblock()

    def _free_permits(self, consumer: ConsumerKey, places: Sequence[Place]) -> None:
        """Free the permits of batches that the consumer cannot read: it returns one for each."""
        for place in dict.fromkeys(places):
            # If somebody else has acknowledged a part meanwhile, it took more: a client must never
            # get more messages than it has room for.
            taken = self._unacked.messages_of(consumer, place)
            self._by_key[consumer].permits += max(0, taken - 1)
        self._may_take(consumer)

    def _may_take(self, consumer: ConsumerKey) -> None:
        # Held chunks go through the replay queue, so they come before anything new.
        self._count(self._by_key[consumer])
        if self._chunks.held and self._by_key[consumer].available:
            self._replay.add(self._chunks.release(consumer))

    def _count(self, consumer: SharedConsumer) -> None:
        """Note that the consumer can take more or less than before."""
        permits = consumer.permits if consumer.available else 0
        if (permits > 0) != (consumer.counted > 0):
            if permits > 0:
                insort(self._available, consumer.rank)
            else:
                del self._available[bisect_left(self._available, consumer.rank)]
        self._permits += permits - consumer.counted
        consumer.counted = permits

    # -- assigning entries to consumers

    def entries_read(self, want: Want, entries: Sequence[Entry]) -> list[Effect]:
        if want.generation != self._generation:
            return []  # The cursor was rewound during the read.
        match want:
            case Read():
                self._new_has_turn = False
                given = Given()
                count = self._assign(entries, given)
                return [*given.effects(), Taken(count)]
            case Replay(delayed=True):
                self._delayed_again(entries)
                return []
            case Replay(places):
                return self._replayed(places, entries)
            case _:
                assert_never(want)

    def _delayed_again(self, entries: Sequence[Entry]) -> None:
        """Note the entries of the far part: those that no consumer has and that do not wait."""
        from_ms = self._delayed.again_from_ms
        # Chunks never leave the index, so it has them already.
        new = (each for each in entries if each.group is None and not self._is_known(each.place))
        found = [each for each in new if each.due_ms >= from_ms]
        self._delayed.far_read(len(found))
        for entry in found:
            if entry.deliver_at_ms:
                self._delay(entry, entry.deliver_at_ms)
        self._come_due([(entry.place, entry.key) for entry in found if not entry.deliver_at_ms])
        self._new_has_turn = True

    def _is_known(self, place: Place) -> bool:
        """Return True if a consumer has the entry, or it is about to be delivered."""
        return self._unacked.is_held(place) or place in self._replay or place in self._aside

    def _replayed(self, places: Sequence[Place], entries: Sequence[Entry]) -> list[Effect]:
        gone = set(places).difference(entry.place for entry in entries)
        for place in sorted(gone):
            self._replay.remove(place)  # acknowledged or trimmed away since `want`
        self._chunks.forget(gone)
        wanted = [entry for entry in entries if entry.place in self._replay]
        for entry in wanted:
            self._replay.remove(entry.place)
        given = Given()
        count = self._assign(wanted, given)
        # No consumer could take the rest.  Delayed and held entries are kept elsewhere.
        self._replay.add([entry.place for entry in wanted[count:]])
        return given.effects()

    def _assign(self, entries: Sequence[Entry], given: "Given") -> int:
        """Assign entries while there is a consumer to take them, and return how many were handled.

        A handled entry is assigned, delayed or held; it need not be read again with the others.
        """
        # Each available consumer gets an equal share in a row, or the minimum if that is more.
        available = len(self._available)
        messages = sum(entry.messages for entry in entries)
        turn = max(self._limits.turn_messages_min, -(-messages // max(available, 1)))
        consumer: SharedConsumer | None = None
        left = 0
        for count, entry in enumerate(entries):
            if entry.deliver_at_ms:
                self._delay(entry, entry.deliver_at_ms)
                continue
            if self._unacked.is_held(entry.place):
                continue  # A rewind reads also what consumers still have.
            if entry.group is not None and self._hold_back(entry):
                continue
            fixed = self._chunks.consumer_of(entry)
            if fixed is not None:
                self._give(self._by_key[fixed], entry, given)
            else:
                if consumer is None or left <= 0 or not consumer.available:
                    consumer, left = self._next_consumer(), turn
                    if consumer is None:
                        return count
                left -= entry.messages
                self._give(consumer, entry, given)
            if self._blocked:
                return count + 1
        return len(entries)

    def _hold_back(self, entry: Entry) -> bool:
        """Hold a chunk if its consumer cannot take it, or if an earlier chunk waits.

        Return True if the chunk was held.
        """
        fixed = self._chunks.consumer_of(entry)
        if fixed is not None and not self._by_key[fixed].available:
            self._chunks.hold(entry, fixed)
            return True
        due_ms = self._chunks.waits_until(entry)
        if due_ms is None:
            return False
        # The earlier chunk will be delivered, soon or at its time.  This one comes behind it.
        if due_ms:
            self._delay(entry, due_ms)
        else:
            self._chunks.wait(entry)
            self._replay.add((entry.place,))
        return True

    def _delay(self, entry: Entry, at_ms: int) -> None:
        self._delayed.add(at_ms, entry.place, entry.key, pinned=entry.group is not None)
        if entry.group is not None:
            self._chunks.wait(entry, at_ms)

    def _give(self, consumer: SharedConsumer, entry: Entry, given: "Given") -> None:
        redeliveries = self._unacked.deliver(consumer.key, entry.place, entry.messages)
        # Entries are delivered whole, so permits may end below zero.
        consumer.permits -= entry.messages
        self._mean.add(entry.messages)
        self._chunks.delivered(entry, consumer.key)
        given.add(consumer.key, entry, redeliveries)
        limits = self._limits
        if self._unacked.count_of(consumer.key) >= limits.unacked_messages_max:
            consumer.blocked = self._some_blocked = True
            self._over[consumer.key] = None
        self._count(consumer)
        if self._unacked.messages >= limits.subscription_unacked_messages_max:
            self._blocked = self._some_blocked = True

    def _next_consumer(self) -> SharedConsumer | None:
        """Return the consumer whose turn it is, or None if none can take anything.

        Among the consumers with the best priority it is the one behind the last one served.
        """
        available = self._available
        if not available:
            return None
        at = bisect_right(available, self._last_served)
        if at == len(available) or available[at][0] != available[0][0]:
            at = 0
        self._last_served = available[at]
        return self._by_key[available[at][1]]

    def _block(self) -> None:
        """Block, by other limits than before, what has too much unacknowledged now."""
        limits = self._limits
        self._blocked = self._unacked.messages >= limits.subscription_unacked_messages_max
        self._some_blocked = self._blocked
        self._over.clear()
        for key, consumer in self._by_key.items():
            consumer.blocked = self._unacked.count_of(key) >= limits.unacked_messages_max
            if consumer.blocked:
                self._over[key] = None
                self._some_blocked = True
            self._may_take(key)

    def _unblock(self) -> None:
        if not self._some_blocked:
            return
        limits = self._limits
        # Half of the limit lies between blocking and unblocking, else each message would do both.
        if self._blocked:
            self._blocked = self._unacked.messages > limits.subscription_unacked_messages_max // 2
        self._some_blocked = self._blocked
        few = limits.unacked_messages_max // 2
        for key in list(self._over):
            consumer = self._by_key[key]
            consumer.blocked = self._unacked.count_of(key) > few
            if not consumer.blocked:
                del self._over[key]
            self._some_blocked |= consumer.blocked
            self._may_take(key)


class Given:
    """The entries of one read that are assigned, by consumer."""

    def __init__(self) -> None:
        self._by_consumer: dict[ConsumerKey, tuple[list[Entry], list[int]]] = {}

    def add(self, consumer: ConsumerKey, entry: Entry, redeliveries: int) -> None:
        entries, counts = self._by_consumer.setdefault(consumer, ([], []))
        entries.append(entry)
        counts.append(redeliveries)

    def effects(self) -> list[Effect]:
        return [
            Deliver(consumer, entries, counts if any(counts) else None)
            for consumer, (entries, counts) in self._by_consumer.items()
        ]
