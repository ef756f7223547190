"""Which errors a client may be told, by what it asked for.

While faults act it may be told to try again later, and that nobody knows.  Anything else, and
anything at all so long after the last fault that no attempt is of the time before, is a violation.
"""

from daybook.clients.python.errors import (
    AdminError,
    AdminInDoubtError,
    BrokerError,
    BusyError,
    InDoubtError,
    NotReadyError,
    OverloadedError,
    TopicTerminatedError,
    UnavailableError,
)

GRACE_S = 40.0  # longer than the longest operation of a client

_LATER = (InDoubtError, NotReadyError, OverloadedError, UnavailableError)
_ALLOWED: dict[str, tuple[type[BrokerError], ...]] = {
    "subscribe": (*_LATER, BusyError),  # the broker may see a consumer of before
    "create a producer": (*_LATER, BusyError, TopicTerminatedError),
    "create a reader": _LATER,
    "ask for offsets": _LATER,
    "receive": (),  # it waits, whatever happens
    "ack": _LATER,
    "flush acks": _LATER,
    "seek": _LATER,
    "administer": (*_LATER, AdminError, AdminInDoubtError),
    "unsubscribe": (*_LATER, BusyError),  # the subscription has other consumers
    "close a producer": (TopicTerminatedError,),  # each send was told what became of it
}
_FINAL: dict[str, tuple[type[BrokerError], ...]] = {  # also when all is well
    "create a producer": (TopicTerminatedError,),
    "unsubscribe": (BusyError,),
}


def is_allowed(what: str, error: BrokerError, calm_s: float) -> bool:
    """`calm_s`: how long all has been well."""
    if not isinstance(error, _ALLOWED[what]):
        return False
    return calm_s < GRACE_S or isinstance(error, _FINAL.get(what, ()))
