"""Retention deletes no message that a subscription still owes.

    trimmed-owed   a message with a receipt is gone with its ledger, and a subscription that was
                   there when it was sent has never acknowledged it

Subscriptions that were ever moved are left out: a seek may pass over any message.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.history.events import (
    Ack,
    Attached,
    Delete,
    Position,
    Seek,
    Subscribe,
    Trimmed,
    Unsubscribe,
)
from tests.history.policies import Policies
from tests.history.policy_events import Expired, MayEvict, MayExpire
from tests.history.record import Record, Sending, Violation, parent, show


@dataclass(slots=True)
class _Subscription:
    since_ns: int | None = None
    acked: set[Position] = field(default_factory=set[Position])
    up_to: Position = (-1, -1, -1)


def check(record: Record) -> Iterator[Violation]:
    if record.trimmed:
        yield from _Check(record).run()


class _Check:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._stored: dict[str, list[tuple[Position, Sending]]] = {}
        for sending, position in record.oks():
            self._stored.setdefault(sending.stored_in, []).append((position, sending))
        for stored in self._stored.values():
            stored.sort(key=lambda pair: pair[0])
        self._looked_at = dict.fromkeys(self._stored, 0)
        self._subscribes: dict[str, Subscribe] = {}  # by consumer
        self._subscriptions: dict[str, dict[str, _Subscription]] = {t: {} for t in self._stored}
        self._policies = Policies(record)
        self._moved: dict[tuple[str, str], None] = {}  # by topic and subscription

    def run(self) -> Iterator[Violation]:
        for stamped in self._record.events:
            match stamped.event:
                case MayExpire() | Expired() | MayEvict():
                    self._policies.note(stamped.event, stamped.at_ns)
                case Trimmed(topic, ledger):
                    yield from self._trimmed(topic, ledger, stamped.at_ns)
                case Subscribe(topic, name, consumer):
                    self._subscribes[consumer] = stamped.event
                    for each in self._topics(topic):
                        if (each, name) not in self._moved:
                            self._subscriptions[each].setdefault(name, _Subscription())
                case Attached(consumer, _, topic):
                    asked = self._subscribes[consumer]
                    self._attached(topic or asked.topic, asked.subscription, stamped.at_ns)
                case Ack():
                    self._ack(stamped.event)
                case Seek(topic, name) | Unsubscribe(topic, name):
                    for each in self._topics(topic):
                        self._subscriptions[each].pop(name, None)
                        # The move may take effect at any later time.
                        if isinstance(stamped.event, Seek):
                            self._moved[each, name] = None
                case Delete(topic):
                    for each in self._topics(topic):
                        self._subscriptions[each].clear()
                case _:
                    pass

    def _topics(self, topic: str) -> list[str]:
        return [each for each in self._stored if topic in (each, parent(each))]

    def _attached(self, topic: str, name: str, at_ns: int) -> None:
        for each in self._topics(topic):
            found = self._subscriptions[each].get(name)
            if found is not None and found.since_ns is None:
                found.since_ns = at_ns

    def _ack(self, ack: Ack) -> None:
        name = self._subscribes[ack.consumer].subscription
        found = self._subscriptions.get(ack.topic, {}).get(name)
        if found is not None and ack.cumulative:
            found.up_to = max(found.up_to, *ack.positions)
        elif found is not None:
            found.acked.update(ack.positions)

    def _trimmed(self, topic: str, ledger: int, at_ns: int) -> Iterator[Violation]:
        stored = self._stored.get(topic, [])
        index = self._looked_at.get(topic, 0)
        while index < len(stored) and stored[index][0][0] < ledger:
            yield from self._owed(topic, *stored[index], at_ns)
            index += 1
        self._looked_at[topic] = index

    def _owed(
        self, topic: str, position: Position, sending: Sending, at_ns: int
    ) -> Iterator[Violation]:
        for name, subscription in self._subscriptions[topic].items():
            since_ns = subscription.since_ns
            expired_ns = self._policies.expired_until(topic, name, at_ns)
            if self._policies.evicts(topic) or sending.began_ns <= expired_ns:
                continue
            if since_ns is None or sending.began_ns < since_ns:
                continue
            if position not in subscription.acked and position > subscription.up_to:
                text = f"{name} never got the acknowledgement of {show(position)}"
                yield Violation("trimmed-owed", topic, sending.value, text)
