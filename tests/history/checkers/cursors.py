"""Deliveries of subscriptions: no message is skipped, no acknowledged message comes again.

    undelivered   a subscription was drained, and a message that it owed was never acknowledged
    undrained     a subscription was not drained in the end: nothing was checked
    poll-skip     exclusive and failover: a delivery behind a message that is still owed
    poll-order    exclusive and failover: a delivery went back without a reason
    stalled       all was healed, and no client acted: a consumer that was there did not get
                  what its subscription owed
    acked-again   delivered although it was acknowledged: with a receipt, never after a takeover;
                  without one, only if a fault came before it was durable
    not-new       a new subscription from `latest` delivered what had its receipt before

The positions of deliveries are compared with the log that the topic has at the end.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.history.events import (
    Ack,
    Acked,
    Attached,
    Delete,
    Deleted,
    Deliver,
    Detach,
    Drained,
    Leave,
    Nack,
    Position,
    Quiet,
    Seek,
    Sought,
    Stamped,
    Subscribe,
    Trimmed,
    Unsubscribe,
    Unsubscribed,
)
from tests.history.policies import Policies
from tests.history.policy_events import Expired, MayEvict, MayExpire
from tests.history.record import Log, Record, Violation, parent, show
from tests.history.subscriptions import Subscription

_IN_ORDER = ("exclusive", "failover")
_Key = tuple[str, str]  # topic or partition, subscription


@dataclass(slots=True)
class _Place:
    """The position of a consumer in a topic."""

    epoch: int
    changes: int
    last: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class _Attachment:
    epoch: int = 0
    since_ns: int = -1  # when the attachment was requested
    at_ns: int = -1  # when the consumer was told of it


@dataclass(slots=True)
class _Consumer:
    name: str
    subscribe: Subscribe
    attached: dict[str, _Attachment] = field(default_factory=dict[str, _Attachment])  # by topic
    nacked_ns: int = -1  # the last time
    went_back_ns: int = -1  # the last time that deliveries started over
    places: dict[str, _Place] = field(default_factory=dict[str, _Place])
    unconfirmed: dict[int, Ack] = field(default_factory=dict[int, Ack])
    has: dict[tuple[str, Position], int] = field(default_factory=dict[tuple[str, Position], int])
    gave_back: set[tuple[str, Position]] = field(default_factory=set[tuple[str, Position]])


def check(record: Record) -> Iterator[Violation]:
    yield from _Check(record).run()


class _Check:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._ack_loss_ns = round(record.run.ack_loss_s * 1e9)
        self._in_flight_ns = round(record.run.in_flight_s * 1e9)
        self._answered = {e.event.seek for e in record.events if isinstance(e.event, Sought)}
        self._consumers: dict[str, _Consumer] = {}
        self._subscriptions: dict[_Key, Subscription] = {}
        self._trimmed: dict[str, int] = {}  # by topic: the first ledger that is left
        self._seeks: dict[int, Seek] = {}
        self._under_way: dict[int, int] = {}  # seeks, with the time of each
        self._present: dict[str, Subscribe] = {}  # consumers, until they are detached
        # A present consumer may make these again from `latest`.
        self._revived: dict[_Key, None] = {}
        self._unsure: dict[_Key, None] = {}  # these may exist already when they are asked for
        self._drained: dict[_Key, None] = {}
        self._began: dict[str, list[int]] = {}
        self._policies = Policies(record)
        # By topic: itself, or its partitions.
        self._topics: dict[str, list[str]] = defaultdict(list)
        for topic in record.logs:
            self._topics[topic].append(topic)
            if parent(topic) != topic:
                self._topics[parent(topic)].append(topic)

    def run(self) -> Iterator[Violation]:
        for stamped in self._record.events:
            match stamped.event:
                case MayExpire() | Expired() | MayEvict():
                    self._policies.note(stamped.event, stamped.at_ns)
                case Deliver():
                    yield from self._deliver(stamped, stamped.event)
                case Quiet(there):
                    yield from self._check_quiet(there, stamped.at_ns)
                case Drained(topic, subscription):
                    for each in self._topics[topic]:
                        yield from self._check_drained((each, subscription), stamped.at_ns)
                case _:
                    self._note(stamped)
        for key, found in self._subscriptions.items():
            if found.attached and key not in self._drained:
                yield Violation("undrained", *key, "it was not drained")

    def _note(self, stamped: Stamped) -> None:
        at_ns = stamped.at_ns
        match stamped.event:
            case Subscribe(topic, name, consumer, _, start, _):
                self._consumers[consumer] = _Consumer(consumer, stamped.event)
                self._present[consumer] = stamped.event
                for key in self._keys(topic, name):
                    subscription = self._make(key)
                    subscription.asked_for(at_ns, start, is_new=key not in self._unsure)
            case Attached(consumer, since_ns, topic):
                self._attached(self._consumers[consumer], since_ns, topic, at_ns)
            case Leave(consumer):
                subscribe = self._consumers[consumer].subscribe
                for subscription in self._known(subscribe.topic, subscribe.subscription):
                    subscription.leave(consumer)
            case Detach(consumer):
                self._present.pop(consumer, None)
                self._left(self._consumers[consumer])
            case Ack(consumer, ack, topic):
                self._consumers[consumer].unconfirmed[ack] = stamped.event
                name = self._consumers[consumer].subscribe.subscription
                for subscription in self._known(topic, name):
                    subscription.ack(consumer, stamped.event, at_ns)
            case Acked(consumer, ack):
                self._consumers[consumer].unconfirmed.pop(ack, None)
                subscribe = self._consumers[consumer].subscribe
                for subscription in self._known(subscribe.topic, subscribe.subscription):
                    subscription.acked(consumer, ack, at_ns)
            case Nack(consumer, topic, position):
                self._consumers[consumer].nacked_ns = at_ns
                self._consumers[consumer].has.pop((topic, position), None)
                self._consumers[consumer].gave_back.add((topic, position))
            case Seek(topic, name, seek, to):
                self._seeks[seek] = stamped.event
                answered = seek in self._answered
                if answered:
                    self._under_way[seek] = at_ns
                for subscription in self._known(topic, name):
                    subscription.seek(seek, to, at_ns, answered=answered)
            case Sought(seek):
                asked = self._seeks[seek]
                self._under_way.pop(seek, None)
                for subscription in self._known(asked.topic, asked.subscription):
                    if seek in subscription.seeking:
                        subscription.sought(seek, at_ns, asked.consumer)
            case Unsubscribe(topic, name):
                for key in self._keys(topic, name):
                    self._drop(key)
            case Unsubscribed(topic, name):
                self._gone(self._keys(topic, name))
            case Delete(topic):
                for key in self._of_topic(topic):
                    self._drop(key)
            case Trimmed(topic, ledger):
                self._trimmed[topic] = max(ledger, self._trimmed.get(topic, 0))
                for key in self._of_topic(topic):
                    self._subscriptions[key].trimmed(ledger)
            case Deleted(topic):
                unsure = [key for key in self._unsure if key[0] in self._topics[topic]]
                self._gone([*unsure, *self._of_topic(topic)])
            case _:
                pass

    # -- the subscription of an event

    def _keys(self, topic: str, name: str) -> list[_Key]:
        return [(each, name) for each in self._topics[topic]]

    def _of_topic(self, topic: str) -> list[_Key]:
        return [key for key in self._subscriptions if key[0] in self._topics[topic]]

    def _make(self, key: _Key) -> Subscription:
        if key not in self._subscriptions:
            log = self._record.logs.get(key[0]) or Log(key[0], [])
            made = self._subscriptions[key] = Subscription(log, self._began_of(log))
            made.trimmed(self._trimmed.get(key[0], 0))
            if key in self._revived:
                del self._revived[key]
                made.may_begin_later()
            # The seek may reach this subscription, or the one before it.
            for seek, at_ns in self._under_way.items():
                asked = self._seeks[seek]
                if key in self._keys(asked.topic, asked.subscription):
                    made.seek(seek, asked.to, at_ns, answered=False)
        return self._subscriptions[key]

    def _began_of(self, log: Log) -> list[int]:
        if log.topic not in self._began:
            sends = self._record.sends
            self._began[log.topic] = [
                sends[read.value].began_ns if read.value in sends else 0 for read in log.reads
            ]
        return self._began[log.topic]

    def _drop(self, key: _Key) -> None:
        """Note that the subscription may be gone, and that a new one may have its name."""
        self._subscriptions.pop(key, None)
        self._unsure[key] = None
        for each in self._present.values():
            if each.start != "earliest" and key in self._keys(each.topic, each.subscription):
                self._revived[key] = None

    def _gone(self, keys: Iterable[_Key]) -> None:
        """Note the end of the operation that removed them."""
        for key in dict.fromkeys(keys):
            if key in self._subscriptions:  # A consumer that came back meanwhile may have lost it.
                self._drop(key)
            else:
                self._unsure.pop(key, None)

    def _known(self, topic: str, name: str) -> list[Subscription]:
        """Return the subscriptions that may exist: none between an end and the next beginning."""
        keys = self._keys(topic, name)
        return [self._subscriptions[key] for key in keys if key in self._subscriptions]

    def _attached(self, consumer: _Consumer, since_ns: int, only: str, at_ns: int) -> None:
        subscribe = consumer.subscribe
        for topic in [only] if only else self._topics[subscribe.topic]:
            before = consumer.attached.get(topic, _Attachment())
            consumer.attached[topic] = _Attachment(before.epoch + 1, since_ns, at_ns)
            subscription = self._make((topic, subscribe.subscription))
            # It was gone, and exists again because the consumer came back.
            if subscription.since_ns is None:
                subscription.asked_for(since_ns, subscribe.start, is_new=False)
            subscription.got(at_ns)
            subscription.may_be_told(consumer.unconfirmed.values())
            subscription.changes += 1

    def _left(self, consumer: _Consumer) -> None:
        subscribe = consumer.subscribe
        for subscription in self._known(subscribe.topic, subscribe.subscription):
            before = subscription.changes
            for name in subscription.left(consumer.name):
                place = self._consumers[name].places.get(subscription.log.topic)
                if place is not None and place.changes == before:
                    place.changes = subscription.changes

    # -- deliveries

    def _deliver(self, stamped: Stamped, deliver: Deliver) -> Iterator[Violation]:
        consumer = self._consumers[deliver.consumer]
        consumer.has[deliver.topic, deliver.position] = stamped.at_ns
        key = (deliver.topic, consumer.subscribe.subscription)
        subscription = self._subscriptions.get(key)
        if subscription is None or not subscription.attached:
            return
        self._policies.apply(subscription, key[1], stamped.at_ns)
        index = subscription.log.index.get(deliver.position)
        if subscription.seeking:
            if index is not None:
                self._moved_to(subscription, consumer, deliver, index, stamped.at_ns)
            return
        if not subscription.unclear:
            yield from self._check_again(subscription, consumer, deliver, stamped.at_ns)
        attachment = consumer.attached.get(deliver.topic, _Attachment())
        if attachment.since_ns < subscription.sought_ns:
            return  # The consumer still has messages from before the seek.
        yield from self._check_new(subscription, consumer, deliver)
        if index is not None and _is_in_order(consumer.subscribe):
            yield from self._check_order(subscription, consumer, deliver, index, stamped.at_ns)

    def _check_again(
        self, subscription: Subscription, consumer: _Consumer, deliver: Deliver, at_ns: int
    ) -> Iterator[Violation]:
        whole_entry = not self._record.run.batch_acks_durable
        settled = subscription.settled(deliver.position, whole_entry=whole_entry)
        if settled is None:
            return
        touch = self._record.faults.touch
        if not settled.at_once and not self._record.run.batch_parts_kept:
            return
        if not settled.at_once and touch(settled.first_ns, settled.confirmed_ns or settled.sent_ns):
            return  # A part of it may have been forgotten.
        confirmed_ns = settled.confirmed_ns
        since_ns = consumer.attached.get(deliver.topic, _Attachment()).since_ns
        if confirmed_ns is not None and since_ns > confirmed_ns:
            text = f"to {consumer.name}, which came after the receipt of its acknowledgement"
        elif confirmed_ns is not None and self._too_late(confirmed_ns, at_ns):
            text = f"to {consumer.name}, {_s(at_ns - confirmed_ns)} after the receipt"
        elif confirmed_ns is None and self._is_durable(settled.sent_ns, since_ns, at_ns):
            text = f"to {consumer.name}, {_s(at_ns - settled.sent_ns)} after it was acknowledged"
        else:
            return
        yield Violation("acked-again", deliver.topic, self._about(deliver), text)

    def _too_late(self, confirmed_ns: int, at_ns: int) -> bool:
        """Return True if the delivery cannot have been on its way since the confirmation."""
        late = at_ns > confirmed_ns + self._in_flight_ns
        return late and not self._record.faults.touch(confirmed_ns, at_ns)

    def _is_durable(self, sent_ns: int, since_ns: int, at_ns: int) -> bool:
        """Return True if an acknowledgement without a receipt is certainly stored."""
        faults, durable_ns = self._record.faults, sent_ns + self._ack_loss_ns
        if faults.handovers.touch(sent_ns, sent_ns + self._in_flight_ns):
            return False
        if since_ns > durable_ns:
            return not faults.crashes.touch(sent_ns, durable_ns)
        return at_ns > durable_ns + self._in_flight_ns and not faults.touch(sent_ns, at_ns)

    def _check_new(
        self, subscription: Subscription, consumer: _Consumer, deliver: Deliver
    ) -> Iterator[Violation]:
        sending = self._record.sends.get(deliver.value)
        if (
            sending is not None
            and sending.outcome == "ok"
            and subscription.is_new
            and subscription.sought_ns < 0
            and subscription.since_ns is not None
            and sending.ended_ns < subscription.since_ns
            and consumer.subscribe.start == "latest"
        ):
            text = f"delivered to {consumer.name}, whose subscription began later"
            yield Violation("not-new", deliver.topic, deliver.value, text)

    def _check_order(
        self,
        subscription: Subscription,
        consumer: _Consumer,
        deliver: Deliver,
        index: int,
        at_ns: int,
    ) -> Iterator[Violation]:
        place = consumer.places.get(deliver.topic)
        epoch = self._moved_to(subscription, consumer, deliver, index, at_ns)
        owed = subscription.owed
        if place is None or place.epoch != epoch or index <= place.last:
            first = owed.first(0)
            if place is not None and place.epoch == epoch:
                # A negative acknowledgement takes effect a while later, and may be sent together
                # with others.
                happened = (
                    place.changes != subscription.changes
                    or (consumer.nacked_ns >= 0 and self._is_fresh(consumer))
                    or self._record.faults.touch(place.at_ns, at_ns)
                    or subscription.starts_over(consumer.name)
                )
                consumer.went_back_ns = at_ns
                if not happened:
                    before = subscription.log.reads[place.last].position
                    text = f"{consumer.name} got it after {show(before)}"
                    yield Violation("poll-order", deliver.topic, self._about(deliver), text)
        else:
            first = owed.first(place.last + 1)
        if first < index:
            skipped = subscription.log.reads[first]
            text = f"{consumer.name} got {show(deliver.position)} instead"
            about = f"{skipped.value} {show(skipped.position)}"
            yield Violation("poll-skip", deliver.topic, about, text)

    def _moved_to(
        self,
        subscription: Subscription,
        consumer: _Consumer,
        deliver: Deliver,
        index: int,
        at_ns: int,
    ) -> int:
        """Note the consumer's new position; return the number of its attachment."""
        epoch = consumer.attached.get(deliver.topic, _Attachment()).epoch
        consumer.places[deliver.topic] = _Place(epoch, subscription.changes, index, at_ns)
        return epoch

    def _is_fresh(self, consumer: _Consumer) -> bool:
        return consumer.nacked_ns > consumer.went_back_ns - self._in_flight_ns

    # -- the end

    def _check_quiet(self, names: Sequence[str], at_ns: int) -> Iterator[Violation]:
        """Check that each consumer, or another one of its subscription, has what it is owed."""
        for (topic, name), subscription in self._subscriptions.items():
            there = [
                each
                for each in map(self._consumers.get, names)
                if each is not None
                and (topic, name) in self._keys(each.subscribe.topic, each.subscribe.subscription)
                and topic in each.attached
            ]
            if not there or not subscription.attached:
                continue
            self._policies.apply(subscription, name, at_ns)
            if subscription.seeking or subscription.unclear:
                continue
            them = ", ".join(each.name for each in there)
            by_key = any(each.subscribe.type == "key_shared" for each in there)
            owed = set(subscription.owed_until(at_ns))
            held: set[str] = set()  # keys of which a consumer has a message that it keeps
            moving = self._moving(subscription, topic, there, owed) if by_key else set[str]()
            # A message may be kept that an earlier subscription of the name was owed.
            for index in range(len(subscription.log.reads)) if by_key else sorted(owed):
                read = subscription.log.reads[index]
                if index not in owed:
                    kept = subscription.settled(read.position, whole_entry=False) is None
                    if kept and any(_has(each, topic, read.position) for each in there):
                        held.add(self._record.key_of(subscription.log, read))
                    continue
                if not self._record.sends[read.value].is_there_at(at_ns):
                    continue
                key = self._record.key_of(subscription.log, read) if by_key else ""
                if any(_has(each, topic, read.position) for each in there):
                    held.add(key)
                elif key in moving and any((topic, read.position) in c.gave_back for c in there):
                    continue
                elif not by_key or key not in held:
                    about = f"{read.value} {show(read.position)}"
                    yield Violation("stalled", topic, about, f"{them} of {name} did not get it")

    def _moving(
        self, subscription: Subscription, topic: str, there: list[_Consumer], owed: set[int]
    ) -> set[str]:
        """Return the keys that may have moved from a consumer that keeps a message of them.

        A message of such a key that was given back goes to the next consumer, which gets none of it
        until the one before it has nothing any more.  A key moves only to a consumer that was
        attached after the kept message had been delivered.
        """
        moving: set[str] = set()
        for index, read in enumerate(subscription.log.reads):
            position = read.position
            if index in owed or subscription.settled(position, whole_entry=False) is None:
                for holder in (each for each in there if _has(each, topic, position)):
                    got_ns = holder.has[topic, position] - self._in_flight_ns
                    if any(
                        each is not holder and each.attached[topic].at_ns > got_ns for each in there
                    ):
                        moving.add(self._record.key_of(subscription.log, read))
        return moving

    def _check_drained(self, key: _Key, at_ns: int) -> Iterator[Violation]:
        topic, name = key
        subscription = self._subscriptions.get(key)
        if subscription is None or not subscription.attached:
            return
        self._policies.apply(subscription, name, at_ns)
        self._drained[key] = None
        log, owed = subscription.log, subscription.owed
        for index in owed:
            read = log.reads[index]
            text = f"{name} never got its acknowledgement, and has no more messages"
            yield Violation("undelivered", topic, f"{read.value} {show(read.position)}", text)

    def _about(self, deliver: Deliver) -> str:
        return f"{deliver.value} {show(deliver.position)}"


def _has(consumer: _Consumer, topic: str, position: Position) -> bool:
    """Return True if it has the message since it was last attached; earlier ones come again."""
    return consumer.has.get((topic, position), -1) > consumer.attached[topic].since_ns


def _s(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.3f} s"


def _is_in_order(subscribe: Subscribe) -> bool:
    """Return True if deliveries are noted in the order in which the broker made them."""
    return subscribe.type in _IN_ORDER and subscribe.tasks == 1
