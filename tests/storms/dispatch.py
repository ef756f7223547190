"""Storms over an exclusive, failover or shared subscription: which consumer gets which entry.

The log grows.  One task reads and delivers entries, as the dispatcher does.  Consumers come and go,
give permits, acknowledge whole entries or some of their messages, and ask for redelivery.  Commands
and deliveries take a while.  In some storms the machine outlives its consumers: a read that began
for them ends when they have left, or when others have come.  The rules are Q of `safety`, and C2:
no entry is skipped, no acknowledged entry is delivered, permits and limits are respected.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from daybook.broker.protocol.dispatch.broker_limit import BrokerLimit
from daybook.broker.protocol.dispatch.exclusive import ExclusiveDispatch
from daybook.broker.protocol.dispatch.failover import FailoverDispatch
from daybook.broker.protocol.dispatch.interface import (
    Activate,
    Deliver,
    Dispatch,
    Effect,
    Entry,
    Read,
    Replay,
    Rewind,
    Taken,
    Want,
)
from daybook.broker.protocol.dispatch.places import Place, SlotRange
from daybook.broker.protocol.dispatch.shared import SharedDispatch
from daybook.managed_ledger.partial_acks import PartialAcks
from daybook.managed_ledger.position import Position
from tests.storms.chance import Chance
from tests.storms.dispatch_consumer import Consumer, Message
from tests.storms.dispatch_rules import (
    BROKER,
    CONSUMERS_MAX,
    EXCLUSIVE,
    FAILOVER,
    LEDGER_ENTRIES,
    SHARED,
    DispatchRules,
)
from tests.storms.storm import OFTEN, SOME

TYPES = ("exclusive", "failover", "shared", "key_shared")
AT_ONCE_MAX = 4
PARTIAL_BYTES_MAX = 10_000
TURNS_AT_END = 4000
THIS, OTHER = "this subscription", "another one"

Bits: TypeAlias = int


class DispatchStorm(DispatchRules):
    kind = "dispatch"
    steps_max = 250
    wanted: ClassVar[dict[str, float]] = {
        "exclusive": 0.2,
        "failover": 0.2,
        "shared": 0.2,
        "taken over by another": 0.05,
        "given back": 0.03,
        "counted as given back": 0.01,
        "stale read": 0.005,
        "stale read, shared": 0.002,
        "brought twice": 0.005,
        "overdrawn": 0.03,
        "blocked by what it has": 0.01,
        "subscription blocked": 0.005,
        "blocked by the broker": 0.005,
        "freed by its own acknowledgements": 0.001,
        "freed with the broker": 0.002,
        "delayed": 0.02,
        "far part": 0.002,
        "chunks": 0.02,
        "some messages of a batch": 0.03,
        "seek": 0.02,
        "acknowledged late": 0.002,
    }

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self._messages_max = chance.one_of((3, 8, 20))
        self._types = chance.one_of(((EXCLUSIVE,), (FAILOVER,), (SHARED,), (0, 1, 2)))
        self._batches = chance.one_of((0.0, 0.0, 0.5, 1.0))
        self._times = chance.one_of((0.0, 0.0, 0.0, 0.5, 1.0))
        self._groups = chance.one_of((0.0, 0.0, 0.0, 0.5, 1.0))
        self._fails = chance.one_of((0.0, 0.0, 0.1))
        self._twice = chance.one_of((0.0, 0.0, 0.3))
        self._outlives = chance.happens(0.3)  # machine and read outlive the last consumer
        self._partial = PartialAcks(PARTIAL_BYTES_MAX)
        self._truth: dict[Place, Bits] = {}  # messages that consumers have acknowledged
        self._next: int | None = None  # index of the entry that is read next
        self._reading: tuple[Want, int] | None = None
        # Another subscription of the broker has messages, too.
        # Earlier draws decide about the limit: a new draw would change the storms that are known.
        most = 12 if self._messages_max == 20 else 6
        share = {10: 0.16, 1: 0.5, 3: 1.0}[self.limits.replay_entries_max]
        limited = not self._outlives and self.limits.turn_messages_min == 1
        self._broker_limit: BrokerLimit[str] = BrokerLimit(most if limited else 0, share)
        self._large: dict[int, tuple[str, int]] = {}  # messages whose chunks are being sent
        self._came = 0
        self._last_active: int | None = None
        self.actor(self.network.deliver, (1.0,))
        self.actor(self._feed, (0.2, 1.0))
        self.actor(self._append, OFTEN)
        self.actor(self._join, (0.02, 0.05, 0.2))
        self.actor(self._leave, (0.0, 0.01, 0.03))
        self.actor(self._flow, (0.1, 0.3))
        self.actor(self._ack, (0.05, 0.2, 0.5))
        self.actor(self._give_back, (0.0, 0.02, 0.1))
        self.actor(self._slow, SOME)
        self.actor(self._seek, SOME)
        self.actor(self._skip_all, SOME)
        self.actor(self._tick, (0.02, 0.1, 0.3))
        if self._broker_limit.messages_max:
            self.actor(self._others, SOME)

    # -- the actors

    def _append(self) -> None:
        index = len(self.log)
        if index == self._messages_max:
            return
        place = (1 + index // LEDGER_ENTRIES, index % LEDGER_ENTRIES)
        messages = 1 + self.chance.below(4) if self.chance.happens(self._batches) else 1
        at_ms = 0
        if self.chance.happens(self._times):
            at_ms = self.now_ms + 1 + self.chance.below(6)
        group, ends = None, False
        if self.chance.happens(self._groups):
            group, ends, at_ms = self._chunk(at_ms)
        key = self._draw_key(index, group)
        self.log.append(Message(index, place, messages, at_ms, group, ends, key))
        self._truth[place] = 0

    def _draw_key(self, index: int, group: str | None) -> int:
        """Return the hash of the key of a new entry, which counts if the storm is key_shared."""
        del index, group
        return 0

    def _chunk(self, at_ms: int) -> tuple[str, bool, int]:
        """Return the next chunk of one of two large messages: group, True if it is the last, time.

        All chunks of a message have the same delivery time.
        """
        which = self.chance.below(2)
        name, at_ms = self._large.setdefault(which, (f"g{len(self.log)}", at_ms))
        ends = self.chance.happens(0.3)
        if ends:
            del self._large[which]
        return name, ends, at_ms

    def _join(self) -> None:
        alive = self.consumers
        if len(alive) == AT_ONCE_MAX or self._came == CONSUMERS_MAX:
            return
        if alive and self.type == EXCLUSIVE:
            return
        if not alive:
            self._begin()
        self._came += 1
        priority = self.chance.below(2) if self.chance.happens(0.3) else 0
        consumer = Consumer(self, self._came, priority)
        ranges = self._draw_ranges()
        if ranges is None:
            return
        self.say(f"{consumer.name} joins, {TYPES[self.type]}, priority {priority}, {ranges or ''}")
        alive[consumer.key] = consumer
        self._step(self._machine.joined(consumer.key, consumer.name, priority, ranges))

    def _draw_ranges(self) -> Sequence[SlotRange] | None:
        """Return the hash ranges of a newcomer; None if it cannot join."""
        return ()

    def _begin(self) -> None:
        """Draw the type of the subscription, which its first consumer sets."""
        wanted = self.chance.one_of(self._types)
        if not self._outlives or wanted != self.type or not self._came:
            self.type, self._reading = wanted, None
            self._machine = self._new_machine()
        self.mark(TYPES[wanted])

    def _new_machine(self) -> Dispatch:
        if self.type == EXCLUSIVE:
            return ExclusiveDispatch(self.limits)
        if self.type == FAILOVER:
            return FailoverDispatch(self.limits, topic="topic", partition=self.chance.below(3) - 1)
        return SharedDispatch(self.limits)

    def _some(self) -> Consumer | None:
        return self.chance.one_of(list(self.consumers.values())) if self.consumers else None

    def _leave(self) -> None:
        consumer = self._some()
        if consumer is not None:
            self._remove(consumer)

    def _remove(self, consumer: Consumer) -> None:
        self.say(f"{consumer.name} is gone")
        del self.consumers[consumer.key]
        self.network.disconnect(BROKER, consumer.key)
        consumer.alive = False
        self._step(self._machine.left(consumer.key))
        if not self.consumers:
            if not self._outlives:
                self._reading = None  # The dispatcher stops.
            self._given_back.clear()
            self._delivered.clear()

    def _flow(self) -> None:
        consumer = self._some()
        if consumer is not None:
            consumer.flow(1 + self.chance.below(5))

    def _ack(self) -> None:
        consumer = self._some()
        if consumer is not None:
            consumer.ack()

    def _give_back(self) -> None:
        consumer = self._some()
        if consumer is not None:
            consumer.give_back()

    def _slow(self) -> None:
        """Block a consumer whose connection is slow, or unblock it."""
        consumer = self._some()
        if consumer is not None:
            consumer.writable = not consumer.writable
            self.say(f"{consumer.name} is {'writable again' if consumer.writable else 'slow'}")
            if consumer.writable:
                self._step(self._machine.connection_writable(consumer.key))
            else:
                self._step(self._machine.connection_full(consumer.key))

    def _seek(self) -> None:
        for consumer in list(self.consumers.values()):
            self._remove(consumer)
        index = self.chance.below(len(self.log) + 1)
        self.mark("seek")
        self.say(f"the cursor is moved to entry {index}")
        self._acked = {message.place for message in self.log[:index]}
        self._partial.done([Position(*place) for place in self._truth])
        for message in self.log:
            self._truth[message.place] = message.all if message.index < index else 0
        self._step(self._machine.cursor_moved())

    def _skip_all(self) -> None:
        """Skip the backlog, as an administrator may ask."""
        if self.log:
            self.say(f"everything up to entry {len(self.log) - 1} is skipped")
            self._done_up_to(self.log[-1].place)

    def _tick(self) -> None:
        self.now_ms += 1

    def _others(self) -> None:
        """Let the other subscription have more or less."""
        messages = self.chance.below(self._broker_limit.messages_max + 2)
        self.say(f"another subscription has {messages} messages")
        self._count(OTHER, messages)

    def _count(self, subscription: str, messages: int) -> None:
        """Count for the limit of the broker, and check who is blocked."""
        limit = self._broker_limit
        was_full, was_blocked = limit.full, limit.blocks(subscription)
        freed = limit.count(subscription, messages)
        held = sum(sum(each.holds.values()) for each in self.consumers.values())
        held = held if self.shared else 0
        said = limit.messages_of(THIS)
        if subscription == THIS:
            self.rule("Q4", said == held, f"{held} are out, the broker counts {said}")
        both = said + limit.messages_of(OTHER)
        self.rule("Q4", limit.messages == both, f"{limit.messages} in all, not {both}")
        if not was_full and limit.full:
            full = limit.messages >= limit.messages_max > 0
            self.rule("Q4", full, f"the broker is full with {limit.messages}")
        for each in (THIS, OTHER):
            has = limit.messages_of(each)
            if not limit.full:
                self.rule("Q4", not limit.blocks(each), f"{each} waits, the broker is not full")
            elif has > limit.share_max and each == subscription:
                self.rule("Q4", limit.blocks(each), f"{each} has {has}, its share is exceeded")
            elif has <= limit.share_max // 2:
                self.rule("Q4", not limit.blocks(each), f"{each} has {has} and is blocked")
        if limit.blocks(THIS):
            self.mark("blocked by the broker")
        if THIS in freed:
            if limit.full:
                self.mark("freed by its own acknowledgements")
            else:
                self.mark("freed with the broker")
        if was_blocked and not limit.blocks(subscription):
            self.rule("L5", subscription in freed, f"{subscription} is free, and not told so")

    # -- commands of consumers, when they arrive

    def hear_flow(self, consumer: Consumer, messages: int) -> None:
        consumer.permits += messages
        self.say(f"{consumer.name} -> broker: {messages} permits")
        self._step(self._machine.permits_granted(consumer.key, messages))

    def hear_ack(self, consumer: Consumer, place: Place, pending: Bits) -> None:
        """Acknowledge all messages of the entry but `pending`."""
        message = self.message(place)
        self.say(f"{consumer.name} -> broker: ack {message.index}, pending {pending:b}")
        self._truth[place] |= message.all & ~pending
        if place in self._acked:
            self.mark("acknowledged late")
        if pending and not self._partial.ack(Position(*place), pending):
            self.mark("some messages of a batch")
            left = self._partial.pending(Position(*place)) or 0
            for each in self.consumers.values():
                if place in each.holds:
                    each.holds[place] = min(each.holds[place], left.bit_count())
            self._step(self._machine.partly_acked([(place, left.bit_count())]))
            return
        self._partial.done([Position(*place)])
        whole = self._truth[place] == message.all
        self.rule("C2", whole, f"entry {message.index} is done, not all of its messages are")
        self._acked.add(place)
        self._given_back.pop(place, None)
        for each in self.consumers.values():
            each.holds.pop(place, None)
        self._step(self._machine.acked(consumer.key, [place]))

    def hear_ack_up_to(self, consumer: Consumer, place: Place) -> None:
        self.say(f"{consumer.name} -> broker: ack up to {self.message(place).index}")
        self._done_up_to(place)

    def _done_up_to(self, place: Place) -> None:
        for message in self.log:
            if message.place <= place:
                self._truth[message.place] = message.all
                self._acked.add(message.place)
                self._given_back.pop(message.place, None)
                for consumer in self.consumers.values():
                    consumer.holds.pop(message.place, None)
        self._partial.done_up_to(Position(*place))
        self._step(self._machine.acked_up_to(place))

    def hear_give_back(self, consumer: Consumer, places: Sequence[Place]) -> None:
        """Take entries back for redelivery: these, or all of the consumer's if none is named."""
        self.mark("given back")
        self.say(f"{consumer.name} -> broker: give again {list(places) or 'all'}")
        if self.shared:
            for place in [p for p in consumer.holds if not places or p in places]:
                del consumer.holds[place]
                self._given_back[place] = self._given_back.get(place, 0) + 1
        self._step(self._machine.redelivery_requested(consumer.key, places))

    # -- the dispatcher

    def _feed(self) -> None:
        """Begin a read that the machine wants, or deliver the result of the last one."""
        if self._reading is None:
            deadline_ms = self._machine.deadline_ms
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                self._step(self._machine.tick(self.now_ms))
            want = self._machine.want() if self.consumers else None
            if self._broker_limit.blocks(THIS):
                want = None
            if isinstance(want, Read) and self._start() == len(self.log):
                if not want.waits:
                    self._bring(want, [])
                want = None
            if want is not None:
                self._reading = (want, self._start())
            return
        want, start = self._reading
        self._reading = None
        if self.chance.happens(self._fails) or self._broker_limit.blocks(THIS):
            return
        match want:
            case Read(count):
                count = 1 + self.chance.below(min(count, len(self.log) - start))
                raw = self.log[start : start + count]
            case Replay(places):
                if want.delayed:
                    self.mark("far part")
                raw = [self.message(place) for place in places]
                if self.chance.happens(self._twice):
                    # The first entry was trimmed meanwhile, so the run behind it is read again.
                    self.mark("brought twice")
                    raw += raw[1:]
        self._bring(want, raw)

    def _start(self) -> int:
        if self._next is None:
            self._next = self._first_unacked()
        return self._next

    def _bring(self, want: Want, raw: Sequence[Message]) -> None:
        visible = [self._entry(m) for m in raw if m.place not in self._acked]
        given: list[tuple[Place, Consumer, Entry, int]] = []
        effects = self._machine.entries_read(want, visible)
        if not effects and visible:
            self.mark("stale read, shared" if self.shared else "stale read")
        for effect in effects:
            match effect:
                case Deliver(key, entries, redeliveries):
                    counts = redeliveries or [0] * len(entries)
                    given += [
                        (entry.place, self.consumers[key], entry, count)
                        for entry, count in zip(entries, counts, strict=True)
                    ]
                case Taken(count):
                    self._taken(count, visible, raw)
                case _:
                    raise AssertionError(effect)
        # The effects of a read are grouped by consumer; the machine chose entry by entry.
        for _, consumer, entry, count in sorted(given, key=lambda each: each[0]):
            self.deliver(consumer, entry, count)
        self._count(THIS, self._machine.unacked)

    def _taken(self, count: int, visible: Sequence[Entry], raw: Sequence[Message]) -> None:
        if count < len(visible):
            self._next = self.message(visible[count].place).index
        elif raw:
            self._next = raw[-1].index + 1

    def _entry(self, message: Message) -> Entry:
        pending = self._partial.pending(Position(*message.place))
        pending = message.all if pending is None else pending & message.all
        entry = Entry(message.place, pending.bit_count(), pending)
        entry.key = message.key
        if self.shared:
            entry.due_ms = message.at_ms
            if message.at_ms > self.now_ms:
                self.mark("delayed")
                entry.deliver_at_ms = message.at_ms
            entry.group, entry.group_ends = message.group, message.ends
        return entry

    def _step(self, effects: Sequence[Effect]) -> None:
        """Carry out the effects of an input of the machine, and check what the machine counts."""
        for effect in effects:
            self._perform(effect)
        for consumer in self.consumers.values():
            permits = self._machine.permits_of(consumer.key)
            if permits != consumer.permits:
                self.rule("Q4", False, f"{consumer.name}: {permits}, not {consumer.permits}")
            if self.shared:
                has, said = sum(consumer.holds.values()), self._machine.unacked_of(consumer.key)
                self.rule("Q4", has == said, f"{consumer.name} has {has}, {said} are counted")
        self._count(THIS, self._machine.unacked)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Rewind():
                self.say("reading begins again at the first that is not acknowledged")
                self._next = self._expected = None
            case Activate(key, active):
                self.consumers[key].active = active
                if active and self._last_active not in (None, key):
                    self.mark("taken over by another")
                self._last_active = key if active else self._last_active
            case Deliver() | Taken():
                raise AssertionError("only what a read brought is given out")

    def finish(self) -> None:
        """Check that each entry of the log is delivered, and acknowledged by some consumer."""
        self._fails = 0.0
        self._count(OTHER, 0)
        self.now_ms += 100
        while self.consumers and self.chance.happens(0.5):
            self._leave()
        self._came = min(self._came, CONSUMERS_MAX - 1)
        if not self.consumers:
            self._join()
        for _ in range(TURNS_AT_END):
            if len(self._acked) == len(self.log):
                break
            self._tick()
            for consumer in list(self.consumers.values()):
                if not consumer.writable:
                    consumer.writable = True
                    self._step(self._machine.connection_writable(consumer.key))
                if consumer.permits <= 0:
                    self.hear_flow(consumer, 3 - consumer.permits)
                consumer.ack_all()
            self._feed()
            self.network.deliver_all(100)
        missing = [message.index for message in self.log if message.place not in self._acked]
        self.rule("L4", not missing, f"entries {missing} do not come")
