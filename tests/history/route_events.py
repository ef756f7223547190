"""The events of routes: ways of messages from a sender to wherever a feature brings them.

A route has topics of its own.  Its values are unique in the history; no other rule sees them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """A route begins.  Values may arrive at several places, in the end at one of them at least."""

    route: str  # unique in the history
    how: str
    ordered: bool = False  # each place gets the values of one sender in the order of the sends
    once: bool = False  # no value arrives twice at one place
    lossy: bool = False  # values may be lost


@dataclass(frozen=True, slots=True)
class Offer:
    """A value is about to be sent."""

    route: str
    sender: str
    value: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """The value has its receipt."""

    route: str
    value: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """The value is at a place of the route, for good."""

    route: str
    place: str
    value: str
    digest: str = ""
    copy: str = ""  # the message that carried it, where a place may get it again


@dataclass(frozen=True, slots=True)
class Settled:
    """A place has acknowledged a message, with a receipt: it does not arrive there again."""

    route: str
    place: str
    copy: str


@dataclass(frozen=True, slots=True)
class RouteEnd:
    """All was healed, and the places of the route were looked at to their end."""

    route: str
