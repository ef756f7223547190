"""Values of a route arrive.

route-lost      a value with a receipt is at none of its places in the end
route-phantom   a value arrived that nobody had sent, or by another route
route-changed   it arrived with other bytes
route-order     values of one sender arrived at one place in another order than they were sent;
                only the first arrival of each counts
route-twice     a value arrived twice where it must not
route-again     a message arrived again at a place that had acknowledged it with a receipt
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.history.record import Record, Violation
from tests.history.route_events import Arrived, Offer, Route, RouteEnd, Settled, Taken


@dataclass(slots=True)
class _Route:
    facts: Route
    # By value: its sender, its number and its digest.
    sent: dict[str, tuple[str, int, str]] = field(default_factory=dict[str, tuple[str, int, str]])
    taken: dict[str, None] = field(default_factory=dict[str, None])
    seen: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # place, value
    last: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    settled: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # place, copy


def check(record: Record) -> Iterator[Violation]:
    routes: dict[str, _Route] = {}
    for stamped in record.events:
        match stamped.event:
            case Route(name):
                routes[name] = _Route(stamped.event)
            case Offer(name, sender, value, digest):
                sent = routes[name].sent
                sent[value] = sender, len(sent), digest
            case Taken(name, value):
                routes[name].taken[value] = None
            case Arrived():
                yield from _arrived(routes[stamped.event.route], stamped.event)
            case Settled(name, place, copy):
                routes[name].settled.add((place, copy))
            case RouteEnd(name):
                yield from _ended(routes[name])
            case _:
                pass


def _arrived(route: _Route, arrived: Arrived) -> Iterator[Violation]:
    name, value, place = route.facts.route, arrived.value, arrived.place
    if value not in route.sent:
        yield Violation("route-phantom", name, value, f"nobody sent it; it is at {place}")
        return
    sender, number, digest = route.sent[value]
    if digest != arrived.digest:
        text = f"sent as {digest}, arrived at {place} as {arrived.digest}"
        yield Violation("route-changed", name, value, text)
    if (place, arrived.copy) in route.settled:
        text = f"{place} had acknowledged the message {arrived.copy}, and got it again"
        yield Violation("route-again", name, value, text)
    if (place, value) in route.seen:
        if route.facts.once:
            yield Violation("route-twice", name, value, f"it arrived twice at {place}")
        return
    route.seen.add((place, value))
    before = route.last.get((place, sender), -1)
    if route.facts.ordered and number < before:
        text = f"it arrived at {place} behind the send {before} of {sender}; it was send {number}"
        yield Violation("route-order", name, value, text)
    route.last[place, sender] = max(number, before)


def _ended(route: _Route) -> Iterator[Violation]:
    arrived = {value for _, value in route.seen}
    for value in route.taken:
        if value not in arrived and not route.facts.lossy:
            text = f"it had a receipt, and is nowhere ({route.facts.how})"
            yield Violation("route-lost", route.facts.route, value, text)
