"""Key_shared: all entries of a key go to one consumer, in order; keys are spread over consumers.

`ranges` tells which consumer serves a key.  An entry that cannot be delivered *waits* with its key,
and the entries behind it are read and delivered to others.  It waits for one of these reasons:

    an earlier entry of its key waits
    the consumer of its key has no permits, a full connection, or too much unacknowledged
    its key drains: another consumer still has entries of the key, because the key has moved
    no consumer serves its key, which happens with sticky ranges only

So a consumer that joins, leaves or is slow delays its own keys only.  When an entry comes back (its
consumer gave it back, or left), it waits before all later entries of its key.  A key also stays
with a consumer that has some chunks of a message, until it has the others.

With `out_of_order`, keys do not drain: a key that moves is served by its new consumer at once.

An entry that waits is known by its place only, and is read again when its turn has come.  Above
`waiting_entries_max` nothing new is read until some of them can be delivered or are acknowledged;
`explain` names the consumers that hold up the others.

    read --> given to the consumer of the key --ack--> done
      |           ^         |
      +--> waits -+ <-------+ given back, or its consumer left
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from daybook.broker.protocol.dispatch.blockers import BLOCKERS_MAX, Blocker, Cause
from daybook.broker.protocol.dispatch.delayed import Due
from daybook.broker.protocol.dispatch.interface import (
    DispatchLimits,
    Effect,
    Entry,
    Read,
    Replay,
    Want,
)
from daybook.broker.protocol.dispatch.keys import Key
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place, SlotRange
from daybook.broker.protocol.dispatch.ranges import (
    AutoSplitRanges,
    KeyRanges,
    Owner,
    RingRanges,
    StickyRanges,
)
from daybook.broker.protocol.dispatch.shared import Given, SharedConsumer, SharedDispatch


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """How the first consumer of a subscription wants keys to be shared; `ranges` is each one's."""

    sticky: bool = False
    out_of_order: bool = False
    ranges: tuple[SlotRange, ...] = ()

    def __str__(self) -> str:
        mode = "sticky hash ranges" if self.sticky else "auto-split"
        return f"{mode}, out of order" if self.out_of_order else mode

    @property
    def mode(self) -> str:
        """The name of the mode in Pulsar's protocol and statistics."""
        return "STICKY" if self.sticky else "AUTO_SPLIT"

    def agrees(self, other: "KeyPolicy") -> bool:
        """Return True if consumers with these policies can share a subscription."""
        return (self.sticky, self.out_of_order) == (other.sticky, other.out_of_order)


def key_ranges(policy: KeyPolicy, limits: DispatchLimits) -> KeyRanges:
    """Return the way in which a policy shares the slots, with no consumer yet."""
    if policy.sticky:
        return StickyRanges()
    if limits.key_shared_points:
        return RingRanges(limits.key_shared_points)
    return AutoSplitRanges()


class Why(Enum):
    """The reason why the entries of a key wait."""

    DRAINS = "it has earlier entries of the key, which moved to another consumer"
    UNCOVERED = "no consumer serves the slot"
    NO_PERMITS = "it has no permits"
    FULL = "its connection is full"
    BLOCKED = "it has too many unacknowledged messages"
    SUBSCRIPTION_BLOCKED = "all consumers together have too many unacknowledged messages"
    READY = "the entries are about to be delivered"


@dataclass(frozen=True, slots=True)
class WaitingKey:
    """A key whose entries wait: `entries` of them, from `first` on.

    `consumer` is the one that holds them up: the one that has earlier entries of a key that drains,
    `since` being the first of them, else the one that serves the key.
    """

    key: int
    slot: int
    first: Place
    entries: int
    why: Why
    consumer: ConsumerKey | None
    since: Place | None = None


class KeySharedDispatch(SharedDispatch):
    """One instance per key_shared subscription."""

    def __init__(self, limits: DispatchLimits, policy: KeyPolicy | None = None) -> None:
        super().__init__(limits)
        self.policy = policy or KeyPolicy()
        self._ordered = not self.policy.out_of_order
        self._ranges: KeyRanges = key_ranges(self.policy, limits)
        self._keys: dict[int, Key] = {}
        self._key_of: dict[Place, Key] = {}  # entries that a consumer has, and those that wait
        self._chunk: dict[Place, str] = {}  # the messages of those that are chunks
        # The keys that wait for each consumer: those that it can get, and those that drain.
        self._queues: dict[Owner, dict[int, Key]] = {None: {}}
        self._draining: dict[Owner, dict[int, Key]] = {None: {}}
        self._ready: dict[ConsumerKey, None] = {}  # consumers that can take what waits, in turns
        self._waiting = 0

    # -- properties

    @property
    def waiting(self) -> int:
        """The number of entries that were read and wait for their consumer."""
        return self._waiting

    @property
    def look_ahead_full(self) -> bool:
        """True if so many entries wait that nothing new is read."""
        return self._waiting >= self._limits.waiting_entries_max

    def ranges_of(self, consumer: ConsumerKey) -> list[SlotRange]:
        return self._ranges.of_consumer(consumer)

    def owner_of(self, key: int) -> Owner:
        """Return the consumer that serves the key; None if none does."""
        return self._ranges.owner_of(key)

    def refusal(self, ranges: Sequence[SlotRange]) -> str | None:
        """Return why no consumer with these ranges can join; None if it can."""
        return self._ranges.refusal(ranges)

    def in_the_way(self, ranges: Sequence[SlotRange]) -> set[ConsumerKey]:
        """Return the consumers that serve one of the slots that a sticky newcomer wants."""
        return self._ranges.overlapping(ranges) if isinstance(self._ranges, StickyRanges) else set()

    def draining(self) -> dict[ConsumerKey, dict[int, int]]:
        """Return for each consumer the slots that wait until it has no more of their entries.

        Each slot comes with the number of entries that the consumer still has of its waiting keys.
        """
        found: dict[ConsumerKey, dict[int, int]] = {}
        for key in (key for line in self._draining.values() for key in line.values()):
            assert key.holder is not None
            slot, slots = self._ranges.slot_of(key.hash), found.setdefault(key.holder, {})
            slots[slot] = slots.get(slot, 0) + key.out
        return found

    @property
    def deadline_ms(self) -> int | None:
        # Entries that are due stay in the index while too many wait for their consumers.
        return None if self.look_ahead_full else self._delayed.deadline_ms

    @property
    def queued(self) -> int:
        return sum(key.waits for owner in self._ready for key in self._queues[owner].values())

    def explain(self) -> list[Blocker]:
        blockers = super().explain()
        waiting = self.waiting_keys(BLOCKERS_MAX)
        if self.look_ahead_full:
            most = self._limits.waiting_entries_max
            first = waiting[0].first
            blockers.append(Blocker(Cause.LOOK_AHEAD_FULL, None, self._waiting, most, first))
        for each in waiting:
            what = f"the slot {each.slot} of the key with hash {each.key}"
            if each.why is Why.UNCOVERED:
                cause, detail = Cause.KEY_UNCOVERED, what
            else:
                cause, detail = Cause.KEY_WAITS, f"{each.why.value}; they are in {what}"
            if each.since is not None:
                detail += f", of which that consumer has the entry {each.since[0]}:{each.since[1]}"
            blockers.append(
                Blocker(cause, each.consumer, each.entries, place=each.first, detail=detail)
            )
        return blockers

    def waiting_keys(self, at_most: int) -> list[WaitingKey]:
        """Return keys whose entries wait, those that have waited since the earliest entry first."""
        keys = [each for each in self._keys.values() if each.waits]
        keys.sort(key=lambda each: each.first)
        # Only who asks pays for this look at all that is out.
        oldest: dict[int, Place] = {}
        for place, key in self._key_of.items():
            if key.waits and self._unacked.is_held(place):
                oldest[key.hash] = min(place, oldest.get(key.hash, place))
        return [self._waiting_key(each, oldest) for each in keys[:at_most]]

    def _waiting_key(self, key: Key, oldest: dict[int, Place]) -> WaitingKey:
        owner = self._owner(key)
        why, consumer, since = Why.READY, owner, None
        if key.line is self._draining[owner]:
            why, consumer = Why.DRAINS, key.holder
            since = oldest[key.hash]
        elif self._blocked:
            why = Why.SUBSCRIPTION_BLOCKED
        elif owner is None:
            why = Why.UNCOVERED
        elif self._by_key[owner].blocked:
            why = Why.BLOCKED
        elif not self._by_key[owner].writable:
            why = Why.FULL
        elif self._by_key[owner].permits <= 0:
            why = Why.NO_PERMITS
        slot = self._ranges.slot_of(key.hash)
        return WaitingKey(key.hash, slot, key.first, key.waits, why, consumer, since)

    def want(self) -> Want | None:
        permits = self._permits
        if permits <= 0 or self._blocked:
            return None
        limits = self._limits
        if self._ready:
            return Replay(tuple(sorted(self._next_waiting())), self._generation)
        if self.look_ahead_full:
            return None
        full = self._chunks.delayed >= limits.delayed_chunks_max
        if (again := self._want_delayed(full)) is not None:
            return again
        if full:
            return None
        # Some of what is read will wait for consumers that cannot take it: their share is added.
        share = len(self._by_key) / len(self._available)
        count = self._mean.entries_for(int(permits * share), limits.read_entries_max)
        return Read(count, self._generation, waits=not self._delayed.asks)

    def _next_waiting(self) -> Iterator[Place]:
        """Yield entries that can be delivered, at most `replay_entries_max`.

        The consumers and the keys of each take turns; of each key the first entries come first.
        """
        left = self._limits.replay_entries_max
        for consumer in self._ready:
            share = self._mean.entries_for(self._by_key[consumer].permits, left)
            for key in self._queues[consumer].values():
                places = key.waiting(share)
                yield from places
                share -= len(places)
                left -= len(places)
                if not share:
                    break
            if not left:
                return

    # -- inputs

    def joined(
        self,
        consumer: ConsumerKey,
        name: str = "",
        priority: int = 0,
        ranges: Sequence[SlotRange] = (),
    ) -> list[Effect]:
        """Serve one more consumer.  `refusal` has returned None for its ranges."""
        self._queues[consumer], self._draining[consumer] = {}, {}
        effects = super().joined(consumer, name, priority)
        for loser in self._ranges.add(consumer, name, ranges):
            self._line_up_all(loser)
        return effects

    def left(self, consumer: ConsumerKey) -> list[Effect]:
        self._ranges.remove(consumer)
        effects = super().left(consumer)
        self._line_up_all(consumer)
        assert not self._queues[consumer]
        assert not self._draining[consumer]
        del self._queues[consumer], self._draining[consumer]
        return effects

    def acked(
        self, consumer: ConsumerKey, places: Sequence[Place], unread: bool = False
    ) -> list[Effect]:
        if unread:
            self._free_permits(consumer, places)
        self._done(places)
        return super().acked(consumer, places)

    def acked_up_to(self, place: Place) -> list[Effect]:
        self._done([each for each in self._key_of if each <= place])
        return super().acked_up_to(place)

    def put_aside(self, place: Place) -> None:
        """Let the key of the entry wait.  The entry was read before, so its key is known."""
        key = self._key_of[place]
        key.aside.add(place)
        self._line_up(key)

    def bring_back(self, place: Place) -> None:
        key = self._key_of.get(place)
        if key is not None and place in key.aside:
            key.aside.remove(place)
            self._line_up(key)

    def _come_due(self, due: Sequence[Due]) -> None:
        self._chunks.forget([place for place, _ in due])
        for place, key in due:
            if place not in self._key_of:
                self._wait(place, key)

    def _is_known(self, place: Place) -> bool:
        return place in self._key_of

    def _done(self, places: Sequence[Place]) -> None:
        """Forget entries that are acknowledged."""
        for place in places:
            key = self._key_of.pop(place, None)
            if key is None:
                continue
            group = self._chunk.pop(place, None) if self._chunk else None
            if self._unacked.is_held(place):
                key.came_back(group, ordered=self._ordered)
                if not key.waits:  # Nothing can come closer to its turn.
                    if not key.out:
                        del self._keys[key.hash]
                    continue
            else:
                key.remove(place)
                key.aside.discard(place)
                self._waiting -= 1
            self._line_up(key)

    def _return(self, places: Sequence[Place]) -> None:
        returned: dict[int, tuple[Key, list[Place]]] = {}
        for place in places:
            key = self._key_of[place]
            key.came_back(self._chunk.get(place), ordered=self._ordered)
            returned.setdefault(key.hash, (key, []))[1].append(place)
        self._waiting += len(places)
        for key, several in returned.values():
            key.add(several)
            self._line_up(key)

    def _clear(self) -> None:
        super()._clear()
        self._keys.clear()
        self._key_of.clear()
        self._chunk.clear()
        for line in [*self._queues.values(), *self._draining.values()]:
            line.clear()
        self._ready.clear()
        self._waiting = 0

    def _may_take(self, consumer: ConsumerKey) -> None:
        self._count(self._by_key[consumer])

    def _count(self, consumer: SharedConsumer) -> None:
        could = consumer.counted > 0
        super()._count(consumer)
        if (consumer.counted > 0) != could:
            self._note_ready(consumer.key)

    def _note_ready(self, consumer: ConsumerKey) -> None:
        there = self._by_key.get(consumer)
        if there is not None and there.counted > 0 and self._queues[consumer]:
            self._ready[consumer] = None
        else:
            self._ready.pop(consumer, None)

    # -- the keys that wait

    def _owner(self, key: Key) -> Owner:
        """Return the consumer that gets the next entry of the key."""
        return key.holder if key.begun else self._ranges.owner_of(key.hash)

    def _wait(self, place: Place, value: int, group: str | None = None) -> None:
        key = self._keys.get(value)
        if key is None:
            key = self._keys[value] = Key(value)
        self._key_of[place] = key
        if group is not None:
            self._chunk[place] = group
        key.add((place,))
        self._waiting += 1
        if key.waits == 1:
            self._line_up(key)

    def _line_up(self, key: Key) -> None:
        """Put the key into the right line of the consumer that gets its next entry."""
        line: dict[int, Key] | None = None
        owner: Owner = None
        if key.waits and key.first in key.aside:
            pass  # It stands in no line until its first entry can be read.
        elif key.waits:
            owner = self._owner(key)
            drains = key.holder is not None and key.holder != owner
            line = (self._draining if drains else self._queues)[owner]
        elif not key.out:
            del self._keys[key.hash]
        if key.line is line:
            return
        self._leave_line(key)
        if line is not None:
            key.line, key.owner = line, owner
            line[key.hash] = key
            if owner is not None and len(line) == 1:
                self._note_ready(owner)

    def _leave_line(self, key: Key) -> None:
        line, owner = key.line, key.owner
        key.line = key.owner = None
        if line is not None:
            del line[key.hash]
            if owner is not None and not line:
                self._note_ready(owner)

    def _line_up_all(self, owner: Owner) -> None:
        """Let all keys line up again that wait for this consumer."""
        for key in [*self._queues[owner].values(), *self._draining[owner].values()]:
            self._line_up(key)

    # -- giving entries to consumers

    def _taker(self, key: Key) -> SharedConsumer | None:
        """Return the consumer that gets the next entry of the key; None if it has to wait."""
        owner = self._owner(key)
        if owner is None or (key.holder is not None and key.holder != owner):
            return None
        consumer = self._by_key[owner]
        return consumer if consumer.counted > 0 else None

    def _assign(self, entries: Sequence[Entry], given: Given) -> int:
        """Give entries to the consumers of their keys, and return how many were handled.

        A handled entry is given, delayed, or waits.
        """
        keys, by_key, owner_of = self._keys, self._by_key, self._ranges.owner_of
        for count, entry in enumerate(entries):
            if self._blocked or not self._available:
                return count
            if entry.deliver_at_ms:
                self._delay(entry, entry.deliver_at_ms)
                continue
            if entry.place in self._key_of:
                continue  # It waits, or a consumer has it.
            if entry.group is not None and (due_ms := self._chunks.waits_until(entry)):
                self._delay(entry, due_ms)  # An earlier chunk of its message has this time.
                continue
            key = keys.get(entry.key)
            consumer = None
            if key is None:  # The usual case, so it is short.
                owner = owner_of(entry.key)
                if owner is not None and by_key[owner].counted > 0:
                    consumer = by_key[owner]
                    key = keys[entry.key] = Key(entry.key)
            elif not key.waits:
                consumer = self._taker(key)
            if consumer is not None:
                assert key is not None
                self._hand(consumer, key, entry, given)
            elif self.look_ahead_full:
                return count
            else:
                self._wait(entry.place, entry.key, entry.group)
        return len(entries)

    def _replayed(self, places: Sequence[Place], entries: Sequence[Entry]) -> list[Effect]:
        found = {entry.place: entry for entry in entries}
        # The others were acknowledged or trimmed away since `want`.
        self._done([p for p in places if p not in found and not self._unacked.is_held(p)])
        given = Given()
        served: dict[int, Key] = {}
        for place in sorted(found):
            key = self._key_of.get(place)
            if self._blocked:
                break
            # An entry may have been acknowledged since, or one before it may have come back.
            if key is None or self._unacked.is_held(place) or key.first != place:
                continue
            entry = found[place]
            if entry.deliver_at_ms:
                self._drop_first(key, place)
                self._delay(entry, entry.deliver_at_ms)
            elif (consumer := self._taker(key)) is not None:
                self._drop_first(key, place)
                self._hand(consumer, key, entry, given)
                if consumer.key in self._ready:  # The others have their turn before it.
                    self._ready[consumer.key] = self._ready.pop(consumer.key)
            else:
                continue
            served[key.hash] = key
        for key in served.values():
            self._leave_line(key)  # The other keys have their turn before it.
            self._line_up(key)
        return given.effects()

    def _drop_first(self, key: Key, place: Place) -> None:
        key.take_first()
        self._waiting -= 1
        del self._key_of[place]
        self._chunk.pop(place, None)

    def _hand(self, consumer: SharedConsumer, key: Key, entry: Entry, given: Given) -> None:
        key.went_out(entry, consumer.key, ordered=self._ordered)
        self._key_of[entry.place] = key
        if entry.group is not None:
            self._chunk[entry.place] = entry.group
        self._give(consumer, entry, given)
