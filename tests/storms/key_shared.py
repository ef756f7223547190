"""Storms over a key_shared subscription: each key has one consumer at a time, and its order.

The rules of `dispatch_rules` hold for it, too, and these:

    Q8   an entry is delivered after all entries of its key before it, unless those are delayed
    Q9   while a consumer has an entry of a key, no other one gets entries of the key
    Q10  a key has one consumer as long as nobody joins or leaves, and a sticky one covers its slot
    Q11  entries that wait are counted, and their number has a bound
    L5   a consumer that does nothing delays the keys that it serves or has, and no others
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from daybook.broker.protocol.dispatch.interface import Dispatch, Effect, Entry, Replay, Want
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy, KeySharedDispatch
from daybook.broker.protocol.dispatch.places import SlotRange
from tests.storms.chance import Chance
from tests.storms.dispatch import THIS, DispatchStorm
from tests.storms.dispatch_consumer import Consumer, Message
from tests.storms.dispatch_rules import KEY_SHARED

SLOTS = 8  # Keys are small numbers here, so that they are their own slots.
TURNS = 150  # without an acknowledgement; then what is left does not come


class KeySharedStorm(DispatchStorm):
    kind = "key_shared"
    steps_max = 500
    tested = 1200
    wanted: ClassVar[dict[str, float]] = {
        "sticky": 0.1,
        "out of order": 0.1,
        "split": 0.1,
        "moved while it drained": 0.01,
        "waited": 0.2,
        "waits for its slot": 0.02,
        "look-ahead full": 0.01,
        "chunks": 0.02,
        "delayed": 0.02,
        "far part": 0.005,
        "given back": 0.03,
        "one does nothing": 0.05,
        "seek": 0.02,
        "stale read, shared": 0.002,
    }

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self._types = (KEY_SHARED,)
        self._messages_max = chance.one_of((8, 20, 40))
        self._keys = chance.one_of((1, 3, SLOTS))
        self._keyless = chance.one_of((0.0, 0.0, 0.2))
        self._policy = KeyPolicy(chance.happens(0.25), chance.happens(0.2))
        points = chance.one_of((0, 1, 3))
        self.limits = replace(
            self.limits,
            key_shared_points=points,
            waiting_entries_max=chance.one_of((100, 100, 1, 3)),
        )
        self.mark("sticky" if self._policy.sticky else "split" if not points else "ring")
        if self._policy.out_of_order:
            self.mark("out of order")
        # More of what makes keys move while consumers have entries of them.
        self.actor(self._join, (0.0, 0.1))
        self.actor(self._flow, (0.2,))
        self.actor(self._append, (0.2,))
        self._covers_all = False
        self._group_key: dict[str, int] = {}
        self._serves: dict[int, int] = {}  # by key: its consumer since somebody joined or left
        self._ranges: dict[int, Sequence[SlotRange]] = {}

    def _new_machine(self) -> Dispatch:
        return KeySharedDispatch(self.limits, self._policy)

    def _draw_key(self, index: int, group: str | None) -> int:
        if group is not None and group in self._group_key:
            return self._group_key[group]
        key = self.chance.below(self._keys)
        if self.chance.happens(self._keyless):
            key = 100 + index
        if group is not None:
            self._group_key[group] = key
        return key

    def _draw_ranges(self) -> Sequence[SlotRange] | None:
        machine = self._machine
        assert isinstance(machine, KeySharedDispatch)
        ranges: list[SlotRange] = []
        if self._policy.sticky:
            first = 0 if self._covers_all else self.chance.below(SLOTS)
            last = 65_535 if self._covers_all else first + self.chance.below(SLOTS - first)
            ranges = [(first, last)]
        if machine.refusal(ranges) is not None:
            return None
        self._ranges[self._came] = ranges
        self._serves.clear()
        return ranges

    def _remove(self, consumer: Consumer) -> None:
        self._serves.clear()
        super()._remove(consumer)

    # -- rules

    def deliver(self, consumer: Consumer, entry: Entry, redeliveries: int) -> None:
        message = self.message(entry.place)
        self._check_covered(consumer, message)
        if not self._policy.out_of_order:
            self._check_order(consumer, message)
        super().deliver(consumer, entry, redeliveries)

    def _of_key(self, key: int) -> list[Message]:
        return [each for each in self.log if each.key == key]

    def _check_order(self, consumer: Consumer, message: Message) -> None:
        for other in self._of_key(message.key):
            if other.place in self._acked or other is message:
                continue
            holders = [each for each in self.consumers.values() if other.place in each.holds]
            for holder in holders:
                same = holder is consumer
                self.rule("Q9", same, f"{holder.name} has {other.index} of key {message.key}")
            if other.index < message.index and not other.at_ms:
                said = f"{message.index} is delivered before {other.index} of its key"
                self.rule("Q8", bool(holders), said)

    def _check_covered(self, consumer: Consumer, message: Message) -> None:
        ranges = self._ranges[consumer.key]
        if self._policy.sticky:
            slot = message.key or 1
            covers = any(first <= slot <= last for first, last in ranges)
            self.rule("Q10", covers, f"{consumer.name} does not cover slot {slot}")
        if any(each.group is not None for each in self._of_key(message.key)):
            return  # It may stay with the consumer that has some of its chunks.
        serves = self._serves.setdefault(message.key, consumer.key)
        self.rule("Q10", serves == consumer.key, f"key {message.key} was served by c{serves}")

    def _step(self, effects: Sequence[Effect]) -> None:
        super()._step(effects)
        self._look_inside()

    def _bring(self, want: Want, raw: Sequence[Message]) -> None:
        machine = self._machine
        assert isinstance(machine, KeySharedDispatch)
        before = machine.waiting
        super()._bring(want, raw)
        bound = max(before, self.limits.waiting_entries_max)
        if isinstance(want, Replay) and want.delayed:
            bound += len(raw)  # Entries that came due meanwhile are not left in the log.
        self.rule("Q11", machine.waiting <= bound, f"{machine.waiting} wait, not {bound}")
        self._look_inside()

    def _look_inside(self) -> None:
        machine = self._machine
        if not isinstance(machine, KeySharedDispatch):
            return
        waiting = machine.waiting_keys(len(self.log))
        counted = sum(each.entries for each in waiting)
        self.rule("Q11", counted == machine.waiting, f"{machine.waiting} are said to wait")
        known = {each.place: each for each in self.log}
        for each in waiting:
            self.mark("waited")
            out = [p for c in self.consumers.values() for p in c.holds if known[p].key == each.key]
            if each.since is not None:
                self.mark("moved while it drained")
                drains = not self._policy.out_of_order or bool(self._group_key)
                self.rule("Q9", drains, f"{each} waits, out of order")
                self.rule("Q11", min(out, default=None) == each.since, f"{each} is not held so")
            if each.consumer is None:
                self.mark("waits for its slot")
        if machine.look_ahead_full:
            self.mark("look-ahead full")

    # -- the end

    def finish(self) -> None:
        self._fails = 0.0
        if len(self.consumers) > 1 and self.limits.waiting_entries_max >= len(self.log):
            self._check_others_continue()
        if self._policy.sticky:
            for consumer in list(self.consumers.values()):
                self._remove(consumer)
            self._covers_all = True
        super().finish()

    def _check_others_continue(self) -> None:
        """L5: let all consumers but one work, and look at what does not come."""
        stuck = self.chance.one_of(list(self.consumers.values()))
        self.say(f"{stuck.name} does nothing any more")
        self.now_ms += 100
        idle, done = 0, len(self._acked)
        while idle < TURNS:
            idle, done = idle + 1 if done == len(self._acked) else 0, len(self._acked)
            self._tick()
            for consumer in self.consumers.values():
                if consumer is stuck:
                    continue
                if not consumer.writable:
                    consumer.writable = True
                    self._step(self._machine.connection_writable(consumer.key))
                if consumer.permits <= 0:
                    self.hear_flow(consumer, 3 - consumer.permits)
                consumer.ack_all()
            self._feed()
            self.network.deliver_all(100)
        if sum(stuck.holds.values()) * 2 >= self.limits.subscription_unacked_messages_max:
            return  # It has all that the consumers may have together.
        if self._broker_limit.blocks(THIS):
            return  # It has all that the broker lets the subscription have.
        self.mark("one does nothing")
        machine = self._machine
        assert isinstance(machine, KeySharedDispatch)
        stalled = {self.message(place).key for place in stuck.holds}
        for message in self.log:
            if message.place in self._acked or message.key in stalled:
                continue
            owner = machine.owner_of(message.key)
            concerned = owner is None or owner == stuck.key
            self.rule("L5", concerned, f"{message.index} of key {message.key} waits for {owner}")
