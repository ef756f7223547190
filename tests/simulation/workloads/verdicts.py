"""The errors that a client may be told, by operation.

While faults act, "try again later" and "unknown" are allowed.  Any other error, and any error at
all when even the oldest attempt began after the last fault, is a violation.
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
    "subscribe": (*_LATER, BusyError),  # the broker may still see an earlier consumer
    "create a producer": (*_LATER, BusyError, TopicTerminatedError),
    "create a reader": _LATER,
    "ask for offsets": _LATER,
    "receive": (),  # receive waits, whatever happens
    "ack": _LATER,
    "flush acks": _LATER,
    "seek": _LATER,
    "administer": (*_LATER, AdminError, AdminInDoubtError),
    "unsubscribe": (*_LATER, BusyError),  # the subscription has other consumers
    "close a producer": (TopicTerminatedError,),  # each send was told what became of it
}
_FINAL: dict[str, tuple[type[BrokerError], ...]] = {  # allowed also when all is well
    "create a producer": (TopicTerminatedError,),
    "unsubscribe": (BusyError,),
}


def is_allowed(what: str, error: BrokerError, calm_s: float) -> bool:
    """Return True if the error is allowed; `calm_s`: seconds since all has been well."""
    if not isinstance(error, _ALLOWED[what]):
        return False
    return calm_s < GRACE_S or isinstance(error, _FINAL.get(what, ()))
