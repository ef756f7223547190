"""The rules Q of a storm over a subscription: which entry may be delivered to which consumer.

The rules look from outside: at the log, the acknowledgements, and what each consumer was sent,
returned and permitted.
"""

from daybook.broker.protocol.dispatch.exclusive import ExclusiveDispatch
from daybook.broker.protocol.dispatch.interface import Dispatch, DispatchLimits, Entry
from daybook.broker.protocol.dispatch.places import Place
from tests.storms.chance import Chance
from tests.storms.dispatch_consumer import Consumer, Message
from tests.storms.network import Network
from tests.storms.storm import Storm

EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED = range(4)
BROKER = 0
CONSUMERS_MAX = 24
LEDGER_ENTRIES = 4


class DispatchRules(Storm):
    """The rules; each delivery goes through `deliver`, which checks it."""

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self.network = Network(chance, 1 + CONSUMERS_MAX, fifo=True)
        # A step of a second would be longer than a storm, unless the index has room for all.
        indexed, step_bits = chance.one_of(((100_000, 10), (1, 0), (3, 1)))
        self.limits = DispatchLimits(
            read_entries_max=chance.one_of((1, 3, 10)),
            turn_messages_min=chance.one_of((1, 3)),
            unacked_messages_max=chance.one_of((100, 4, 8)),
            subscription_unacked_messages_max=chance.one_of((100, 8)),
            replay_entries_max=chance.one_of((10, 1, 3)),
            delayed_entries_max=indexed,
            delayed_step_bits=step_bits,
            delayed_lead_ms=chance.one_of((0, 2)),
            held_entries_max=chance.one_of((100, 1)),
            failover_delay_ms=2,
        )
        self.type = EXCLUSIVE
        self.log: list[Message] = []
        self.consumers: dict[int, Consumer] = {}
        self.now_ms = 1
        self._machine: Dispatch = ExclusiveDispatch(self.limits)
        self._acked: set[Place] = set()  # the entries that the cursor has as acknowledged
        self._given_back: dict[Place, int] = {}
        self._delivered: set[Place] = set()  # chunks, since the last consumer left
        self._expected: int | None = None  # the next entry; exclusive and failover only

    @property
    def shared(self) -> bool:
        return self.type in (SHARED, KEY_SHARED)

    def message(self, place: Place) -> Message:
        return self.log[(place[0] - 1) * LEDGER_ENTRIES + place[1]]

    def _first_unacked(self) -> int:
        for message in self.log:
            if message.place not in self._acked:
                return message.index
        return len(self.log)

    def deliver(self, consumer: Consumer, entry: Entry, redeliveries: int) -> None:
        message = self.message(entry.place)
        index = message.index
        self.say(f"broker -> {consumer.name}: entry {index}, {entry.messages} messages")
        self.rule("Q2", message.place not in self._acked, f"entry {index} is acknowledged")
        self.rule("Q4", consumer.permits > 0, f"{consumer.name} has {consumer.permits} permits")
        consumer.permits -= entry.messages
        if consumer.permits < 0:
            self.mark("overdrawn")
        if self.shared:
            self._check_shared(consumer, message, redeliveries)
            consumer.holds[message.place] = entry.messages
        else:
            self._check_in_order(consumer, message)
        self.network.send(BROKER, consumer.key, consumer.take, message.place, entry.token)

    def _check_in_order(self, consumer: Consumer, message: Message) -> None:
        """Q1: the next entry is the first unacknowledged one after the last delivery."""
        first = self._first_unacked() if self._expected is None else self._expected
        for between in self.log[first : message.index]:
            done = between.place in self._acked
            self.rule("Q1", done, f"{between.index} is skipped, {message.index} is delivered")
        self.rule("Q1", message.index >= first, f"{message.index} is delivered, {first} is next")
        self.rule("Q1", consumer.key == self._machine.active, f"{consumer.name} is not active")
        self._expected = message.index + 1

    def _check_shared(self, consumer: Consumer, message: Message, redeliveries: int) -> None:
        index = message.index
        others = [c.name for c in self.consumers.values() if message.place in c.holds]
        self.rule("Q5", not others, f"{', '.join(others)} has entry {index}")
        counted = self._given_back.get(message.place, 0)
        self.rule("Q4", redeliveries == counted, f"{index} was given back {counted} times")
        if counted:
            self.mark("counted as given back")
        self.rule("Q6", message.at_ms <= self.now_ms, f"{index} is delivered before its time")
        limits, unacked = self.limits, sum(consumer.holds.values())
        self.rule("Q4", unacked < limits.unacked_messages_max, f"{consumer.name} has {unacked}")
        if unacked + message.messages >= limits.unacked_messages_max:
            self.mark("blocked by what it has")
        total = sum(sum(each.holds.values()) for each in self.consumers.values())
        self.rule("Q4", total < limits.subscription_unacked_messages_max, f"all have {total}")
        if total + message.messages >= limits.subscription_unacked_messages_max:
            self.mark("subscription blocked")
        if message.group is not None:
            self._check_chunk(consumer, message)

    def _check_chunk(self, consumer: Consumer, message: Message) -> None:
        """Q7: the chunks of a message go to one consumer while it holds an earlier one."""
        self.mark("chunks")
        if message.place not in self._delivered:
            for later in self.log[message.index + 1 :]:
                first = later.group != message.group or later.place not in self._delivered
                self.rule("Q7", first, f"{later.index} is delivered before {message.index}")
        self._delivered.add(message.place)
        for earlier in reversed(self.log[: message.index]):
            for other in self.consumers.values() if earlier.group == message.group else ():
                has = other is not consumer and earlier.place in other.holds
                self.rule("Q7", not has, f"{other.name} has {earlier.index}, not {consumer.name}")
