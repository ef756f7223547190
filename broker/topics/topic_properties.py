"""Which properties of a managed ledger's record belong to people, and which to brokers.

Pulsar keeps the properties that people give a topic in the same map as its own.  A name that a
broker uses is *reserved*: a topic with a text of somebody else below it could not be opened, or
would be taken for something that it is not.
"""

from collections.abc import Iterable, Mapping

from daybook.broker.errors import PreconditionError
from daybook.broker.limits import check_properties

EPOCH = "pulsar.topic.epoch"
_NAMES = frozenset(
    (
        "index",  # the last offset, for Pulsar's brokers and for Daybook's
        EPOCH,  # it fences producers
        "PULSAR.SHADOW_SOURCE",  # Pulsar's brokers take a topic with it for a copy of another one
    )
)
_PREFIX = "daybook."


def is_reserved(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIX)


def shown(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the properties that belong to people."""
    return {name: value for name, value in pairs if not is_reserved(name)}


def check_names(owner: str, names: Iterable[str]) -> None:
    """Raise PreconditionError if one of the names is reserved."""
    for name in names:
        if is_reserved(name):
            raise PreconditionError(
                f"the property {name} of the {owner} is reserved for brokers: use another name"
            )


def check_new(owner: str, properties: Mapping[str, str] | None) -> None:
    """Raise PreconditionError if a topic cannot be created with these properties."""
    check_names(owner, properties or {})
    check_properties(owner, properties)
