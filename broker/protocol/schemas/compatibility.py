"""The strategies: which schema may follow the versions that a topic has.

    BACKWARD    a consumer with the new schema reads what was written with the last one
    FORWARD     a consumer with the last schema reads what is written with the new one
    FULL        both
    ..._TRANSITIVE   the same, with every version since the last deletion instead of the last one
    ALWAYS_COMPATIBLE     everything may follow
    ALWAYS_INCOMPATIBLE   nothing may follow

The type of the schema never changes, unless everything may follow.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from daybook.broker.errors import IncompatibleSchemaError
from daybook.broker.protocol.schemas.avro import why_unreadable
from daybook.broker.protocol.schemas.schema import PROTOBUF
from daybook.broker.protocol.schemas.validation import Examined


class Strategy(StrEnum):
    UNDEFINED = "UNDEFINED"  # a namespace or topic that says nothing
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """The policies for the schemas of a topic, as they are in force."""

    strategy: Strategy = Strategy.FULL
    may_add: bool = True  # producers and consumers may add versions; else only administrators
    enforced: bool = False  # a producer without a schema is refused if the topic has one


# Pulsar's older policy of namespaces, and the strategy that each of its values means.
AUTO_UPDATE = {
    "AutoUpdateDisabled": Strategy.ALWAYS_INCOMPATIBLE,
    "Backward": Strategy.BACKWARD,
    "Forward": Strategy.FORWARD,
    "Full": Strategy.FULL,
    "AlwaysCompatible": Strategy.ALWAYS_COMPATIBLE,
    "BackwardTransitive": Strategy.BACKWARD_TRANSITIVE,
    "ForwardTransitive": Strategy.FORWARD_TRANSITIVE,
    "FullTransitive": Strategy.FULL_TRANSITIVE,
}

_NEW_READS = frozenset(
    {
        Strategy.BACKWARD,
        Strategy.BACKWARD_TRANSITIVE,
        Strategy.FULL,
        Strategy.FULL_TRANSITIVE,
    }
)
_OLD_READS = frozenset(
    {
        Strategy.FORWARD,
        Strategy.FORWARD_TRANSITIVE,
        Strategy.FULL,
        Strategy.FULL_TRANSITIVE,
    }
)
TRANSITIVE = frozenset(
    {
        Strategy.BACKWARD_TRANSITIVE,
        Strategy.FORWARD_TRANSITIVE,
        Strategy.FULL_TRANSITIVE,
    }
)


def for_consumer(strategy: Strategy) -> Strategy:
    """Return the strategy by which the schema of a consumer is checked.

    A consumer only reads, so what it has to understand is the last version.  Pulsar keeps the
    strategies that compare all versions backwards.
    """
    match strategy:
        case Strategy.FORWARD | Strategy.FORWARD_TRANSITIVE | Strategy.FULL:
            return Strategy.BACKWARD
        case _:
            return strategy


def needed(strategy: Strategy, versions: Sequence[int]) -> Sequence[int]:
    """Return which of the versions, in ascending order, the strategy compares with."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return ()
    return versions if strategy in TRANSITIVE else versions[-1:]


def check(new: Examined, existing: Iterable[Examined], strategy: Strategy) -> None:
    """Raise IncompatibleSchemaError if the new schema may not follow the existing ones."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    for old in existing:
        why = _why(new, old, strategy)
        if why is not None:
            raise IncompatibleSchemaError(
                f"the schema is incompatible with the one of the topic ({strategy}): {why}"
            )


def _why(new: Examined, old: Examined, strategy: Strategy) -> str | None:
    if new.schema.type != old.schema.type:
        return (
            f"the topic has a schema of type {old.schema.type_name}, and the new one has type"
            f" {new.schema.type_name}"
        )
    if new.identity == old.identity:
        return None
    if strategy not in _NEW_READS and strategy not in _OLD_READS:
        return "the strategy allows no other schema"
    if new.parts is not None and old.parts is not None:
        return _why_parts(new, old, strategy)
    if new.root != old.root:
        return f"the root message {old.root[:80]!r} cannot become {new.root[:80]!r}"
    if new.avro is not None and old.avro is not None:
        return _why_avro(new, old, strategy)
    if new.document is not None and old.document is not None and new.document != old.document:
        return f"the JSON document {old.document[:80]!r} cannot become {new.document[:80]!r}"
    return None  # An old JSON document may become an Avro schema, and the other way round.


def _why_parts(new: Examined, old: Examined, strategy: Strategy) -> str | None:
    assert new.parts is not None
    assert old.parts is not None
    for name, mine, theirs in zip(("key", "value"), new.parts, old.parts, strict=True):
        if mine is None or theirs is None:
            if mine is not theirs:
                return f"the {name} cannot change between bytes and a type"
            continue
        why = _why(mine, theirs, strategy)
        if why is not None:
            return f"{name}: {why}"
    return None


def _why_avro(new: Examined, old: Examined, strategy: Strategy) -> str | None:
    assert new.avro is not None
    assert old.avro is not None
    # A Protobuf reader keeps the numbers of enum values that it does not know.
    grow = new.schema.type == PROTOBUF
    if strategy in _NEW_READS:
        why = why_unreadable(new.avro, old.avro, enums_grow=grow)
        if why is not None:
            return f"the new schema does not read the old one: {why}"
    if strategy in _OLD_READS:
        why = why_unreadable(old.avro, new.avro, enums_grow=grow)
        if why is not None:
            return f"the old schema does not read the new one: {why}"
    return None
