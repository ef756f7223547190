"""Explains why a subscription delivers nothing, in words and as data.

The machine of the subscription names what blocks it (`protocol.dispatch.blockers`); the dispatcher
adds the read that is under way, and the topic adds moves and its own end.  A consumer runs into a
limit only when it is sent something, so the time of its last delivery tells since when it is
blocked.  Everything is computed when somebody asks.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import trio

from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.dispatch.subscription import TYPE_NAMES, Subscription
from daybook.broker.protocol.dispatch.blockers import BLOCKERS_MAX, Blocker, Cause, stops_all
from daybook.managed_ledger.position import Position

_HOLDERS_MAX = 100


class BlockerReport(msgspec.Struct, frozen=True, rename="camel"):
    """One blocker.  Keys that mean nothing for its cause are null."""

    cause: str
    text: str
    consumer: str | None = None
    address: str | None = None
    count: int | None = None
    limit: int | None = None
    position: str | None = None
    since: str | None = None
    since_ms: int | None = None
    until: str | None = None
    detail: str | None = None


class HolderReport(msgspec.Struct, frozen=True, rename="camel"):
    """A consumer that has messages which it has not acknowledged."""

    consumer: str
    address: str
    unacked_messages: int
    oldest: str | None


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    subscription: str
    type: str
    summary: str
    waiting_to_send: bool  # there are messages that could be sent
    stalled_s: float | None  # so long nothing was sent although a consumer has permits
    msg_backlog: int
    backlog_exact: bool
    blockers: list[BlockerReport]
    holders: list[HolderReport]


def explain(subscription: Subscription, now_ms: int, now_s: float) -> Explanation:
    """Return what keeps messages of the subscription from its consumers."""
    waits = subscription.dispatcher.has_more
    stalled_s = sample(subscription, now_s)
    found = blockers(subscription)
    if waits and not found and subscription.consumers:
        stalled = subscription.stall.stalls(subscription.topic.limits.stalled_s, now_s)
        found = [Blocker(Cause.UNKNOWN)] if stalled else []
    reports = [_report(subscription, each, now_ms) for each in found]
    backlog = subscription.backlog
    return Explanation(
        topic=subscription.topic.name.full,
        subscription=subscription.name,
        type="None" if subscription.type is None else TYPE_NAMES[subscription.type],
        summary=_summary(subscription, waits, found, reports),
        waiting_to_send=waits,
        stalled_s=stalled_s,
        msg_backlog=backlog.messages,
        backlog_exact=backlog.exact,
        blockers=reports,
        holders=list(_holders(subscription)),
    )


def sample(subscription: Subscription, now_s: float) -> float | None:
    """Sample the watch of the subscription; return for how long it waits, or None."""
    rates = subscription.dispatcher.rates
    # A limit of a rate that is closed is no stall.  Its time is asked, so no flag can stay set.
    limited = rates is not None and rates.wait_s(now_s) > 0
    waits = bool(subscription.consumers) and not limited and _can_be_sent(subscription)
    return subscription.stall.sample(now_s, waits=waits, sent=subscription.messages)


def _can_be_sent(subscription: Subscription) -> bool:
    """Return True if there is something to send, and a consumer that has permits."""
    if not subscription.dispatcher.has_more:
        return False
    dispatch = subscription.dispatch
    if dispatch.active is not None:
        return dispatch.permits_of(dispatch.active) > 0
    return any(dispatch.permits_of(key) > 0 for key in subscription.consumers)


def blockers(subscription: Subscription) -> list[Blocker]:
    """Return all blockers, those that stop everything first."""
    topic, dispatcher = subscription.topic, subscription.dispatcher
    found: list[Blocker] = []
    if topic.closing:
        found.append(Blocker(Cause.TOPIC_CLOSED))
    if subscription.moving:
        found.append(Blocker(Cause.MOVING))
    if dispatcher.stopped_by_broker:
        rules = topic.unacked.rules
        detail = f"{rules.messages_of(dispatcher)}, and its share is {rules.share_max}"
        found.append(
            Blocker(Cause.BROKER_UNACKED, None, rules.messages, rules.messages_max, detail=detail)
        )
    found += subscription.dispatch.explain()
    found += _rate_blockers(subscription)
    reading = dispatcher.reading
    for each in dispatcher.unreadable.all[:BLOCKERS_MAX]:
        stops = each is dispatcher.unreadable.stops
        cause = Cause.READ_FAILS if stops else Cause.UNREADABLE
        found.append(Blocker(cause, place=each.place, since_ms=each.since_ms, detail=each.why))
    if reading is not None:
        position = reading[0]
        place = position.ledger_id, position.entry_id
        found.append(Blocker(Cause.READING, place=place, detail=topic.log.holders(position)))
    return sorted(found, key=lambda each: not stops_all([each]))


def _rate_blockers(subscription: Subscription) -> list[Blocker]:
    rates, now_s = subscription.dispatcher.rates, trio.current_time()
    limit = None if rates is None else rates.strictest(now_s)
    if limit is None or not (subscription.consumers and subscription.dispatcher.has_more):
        return []
    until_ms = subscription.topic.clock.now_ms() + int(limit.wait_s(now_s) * 1000)
    return [Blocker(Cause.DISPATCH_RATE, until_ms=until_ms, detail=str(limit))]


# -- words


def _summary(
    subscription: Subscription,
    waits: bool,
    found: list[Blocker],
    reports: list[BlockerReport],
) -> str:
    if not waits:
        delayed = [r.text for b, r in zip(found, reports, strict=True) if b.cause is Cause.DELAYED]
        if delayed:
            return f"Everything that is due is delivered. {delayed[0]}"
        if not subscription.backlog.messages:
            return "The subscription has acknowledged everything, so there is nothing to deliver."
        if not subscription.consumers:
            return reports[0].text
        return (
            "Everything is delivered. The backlog is what consumers have received and not"
            " acknowledged."
        )
    stopping = [r.text for b, r in zip(found, reports, strict=True) if stops_all([b])]
    if stopping:
        return stopping[0]
    blocked = {b.consumer for b in found if b.consumer is not None and b.cause in _OF_CONSUMERS}
    free = [key for key in subscription.consumers if key not in blocked]
    if subscription.dispatch.active is not None:
        free = [key for key in free if key == subscription.dispatch.active]
    rest = [r.text for b, r in zip(found, reports, strict=True) if b.cause not in _OF_CONSUMERS]
    if not free:
        return next(r.text for b, r in zip(found, reports, strict=True) if b.cause in _OF_CONSUMERS)
    return rest[0] if rest else "Nothing blocks the subscription: messages are being delivered."


_OF_CONSUMERS = frozenset({Cause.NO_PERMITS, Cause.CONNECTION_FULL, Cause.CONSUMER_UNACKED})


def _report(subscription: Subscription, blocker: Blocker, now_ms: int) -> BlockerReport:
    consumer = None
    if blocker.consumer is not None:
        consumer = subscription.consumers.get(blocker.consumer)
    since_ms = _since_ms(subscription, blocker, consumer)
    return BlockerReport(
        cause=blocker.cause.value,
        text=_text(blocker, consumer, since_ms, now_ms),
        consumer=None if consumer is None else consumer.name,
        address=None if consumer is None else f"/{consumer.connection.peer}",
        count=blocker.count,
        limit=blocker.limit,
        position=_position(blocker),
        since=None if since_ms is None else _iso(since_ms),
        since_ms=since_ms,
        until=None if blocker.until_ms is None else _iso(blocker.until_ms),
        detail=blocker.detail or None,
    )


def _since_ms(
    subscription: Subscription, blocker: Blocker, consumer: Consumer | None
) -> int | None:
    match blocker.cause:
        case Cause.NO_CONSUMERS:
            return subscription.alone_ms
        case Cause.SUBSCRIPTION_UNACKED | Cause.BROKER_UNACKED:
            return max((c.consumed_ms for c in subscription.consumers.values()), default=None)
        case Cause.READ_FAILS | Cause.UNREADABLE:
            return blocker.since_ms
        case Cause.READING:
            reading = subscription.dispatcher.reading
            return None if reading is None else reading[1]
        case Cause.DISPATCH_RATE:
            rates, now_s = subscription.dispatcher.rates, trio.current_time()
            limit = None if rates is None else rates.strictest(now_s)
            if limit is None:
                return None
            return subscription.topic.clock.now_ms() - int((now_s - limit.closed_s(now_s)) * 1000)
        case _ if consumer is not None:
            return consumer.consumed_ms or consumer.joined_ms
        case _:
            return None


def _text(blocker: Blocker, consumer: Consumer | None, since_ms: int | None, now_ms: int) -> str:
    name = "a consumer" if consumer is None else f"the consumer {consumer.name}"
    whom = name if consumer is None else f"{name} at {consumer.connection.peer}"
    since = "" if since_ms is None else f", for {max(0, now_ms - since_ms) / 1000:.1f} s"
    count, limit, place = blocker.count, blocker.limit, _position(blocker)
    match blocker.cause:
        case Cause.NO_CONSUMERS:
            text = f"no consumer is connected{since}: start one"
        case Cause.NO_PERMITS:
            text = (
                f"{whom} has no permits{since}: it receives more when its application calls"
                " receive, or has acknowledged what its queue holds"
            )
        case Cause.CONNECTION_FULL:
            text = f"{whom} does not read what was sent to it{since}: its connection is full"
        case Cause.CONSUMER_UNACKED:
            text = (
                f"{whom} has {count} messages that it has not acknowledged; the limit is {limit}"
                f"{since}. The oldest is {place}. It gets more when it has at most half of the"
                " limit"
            )
        case Cause.SUBSCRIPTION_UNACKED:
            text = (
                f"the consumers together have {count} messages that are not acknowledged; the limit"
                f" is {limit}{since}. They get more when they have at most half of the limit"
            )
        case Cause.BROKER_UNACKED:
            text = (
                f"the subscriptions of this broker have {count} messages that are not acknowledged;"
                f" the limit is {limit}. This one has {blocker.detail}{since}. It gets more when it"
                " has at most half of its share, or the broker half of its limit"
            )
        case Cause.DELAYED | Cause.DELAYED_FULL:
            until = _iso(blocker.until_ms or 0)
            which = "" if place is None else f" ({place})"
            text = f"{count} entries wait for their delivery time, the next one{which} {until}"
            if blocker.cause is Cause.DELAYED_FULL:
                text += f". Nothing more is read, because at most {limit} of them may be chunks"
        case Cause.CHUNK_HELD:
            text = (
                f"{count} chunks from {place} on belong to messages that {whom} has begun to"
                " receive, and it cannot take more now"
            )
        case Cause.CHUNKS_FULL:
            text = f"{count} chunks wait for their consumers, and at most {limit} may wait"
        case Cause.KEY_WAITS:
            text = f"{count} entries from {place} on wait for {whom}: {blocker.detail}"
        case Cause.KEY_UNCOVERED:
            text = (
                f"{count} entries from {place} on wait for a consumer: no consumer has"
                f" {blocker.detail} in its hash ranges"
            )
        case Cause.LOOK_AHEAD_FULL:
            text = (
                f"{count} entries wait for the consumers of their keys, the first one is {place},"
                f" and nothing more is read, because at most {limit} may wait"
            )
        case Cause.DISPATCH_RATE:
            text = (
                f"the policy {blocker.detail}, and that is used up{since}. Deliveries continue"
                f" {_iso(blocker.until_ms or 0)}; raise or remove the policy if that is too slow"
            )
        case Cause.READING:
            text = f"the entry {place} is being read from the log{since}: {blocker.detail}"
        case Cause.READ_FAILS:
            text = (
                f"the entry {place} cannot be read{since}, and the broker tries again:"
                f" {blocker.detail}"
            )
        case Cause.UNREADABLE:
            text = (
                f"the entry {place} cannot be read{since}: {blocker.detail}. The others are"
                " delivered, and this one too when it can be read. If it is lost for good,"
                " acknowledge it by moving or skipping the subscription"
            )
        case Cause.MOVING:
            text = "the subscription is being moved to another position"
        case Cause.TOPIC_CLOSED:
            text = "the topic is being closed here: consumers look it up again"
        case Cause.UNKNOWN:
            text = "nothing is in the way, so this is a bug: please report it"
    return f"{text[0].upper()}{text[1:]}."


def _position(blocker: Blocker) -> str | None:
    return None if blocker.place is None else str(Position(*blocker.place))


def _holders(subscription: Subscription) -> Iterator[HolderReport]:
    dispatch = subscription.dispatch
    for consumer in list(subscription.consumers.values())[:_HOLDERS_MAX]:
        count = dispatch.unacked_of(consumer.key)
        if count:
            oldest = dispatch.oldest_unacked_of(consumer.key)
            yield HolderReport(
                consumer=consumer.name,
                address=f"/{consumer.connection.peer}",
                unacked_messages=count,
                oldest=None if oldest is None else str(Position(*oldest)),
            )


def _iso(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms after 1970"  # A producer may name any time of delivery.
