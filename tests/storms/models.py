"""One model for each dispatcher: storms whose subscriptions have one type from begin to end.

    python -m tests.storms --kind shared --steps 1000000

The kind `dispatch` mixes the types exclusive, failover and shared.  Here each has a kind of its
own, so that steps and mutants can be told apart by dispatcher (`kills`).
"""

from typing import ClassVar

from tests.storms.chance import Chance
from tests.storms.dispatch import DispatchStorm
from tests.storms.dispatch_rules import EXCLUSIVE, FAILOVER, SHARED
from tests.storms.key_shared import KeySharedStorm
from tests.storms.storm import Storm


class _OneType(DispatchStorm):
    """A storm over a subscription whose type never changes."""

    type_of_all: ClassVar[int]

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self._types = (self.type_of_all,)


class ExclusiveStorm(_OneType):
    kind = "exclusive"
    type_of_all = EXCLUSIVE
    wanted: ClassVar[dict[str, float]] = {"exclusive": 0.9, "seek": 0.02, "stale read": 0.005}


class FailoverStorm(_OneType):
    kind = "failover"
    type_of_all = FAILOVER
    wanted: ClassVar[dict[str, float]] = {
        "failover": 0.9,
        "taken over by another": 0.2,
        "given back": 0.03,
        "seek": 0.02,
    }


class SharedStorm(_OneType):
    kind = "shared"
    type_of_all = SHARED
    wanted: ClassVar[dict[str, float]] = {
        "shared": 0.9,
        "blocked by the broker": 0.01,
        "delayed": 0.05,
        "far part": 0.004,
        "chunks": 0.05,
        "given back": 0.03,
        "seek": 0.02,
        "some messages of a batch": 0.03,
    }


MODELS: dict[str, type[Storm]] = {
    storm.kind: storm for storm in (ExclusiveStorm, FailoverStorm, SharedStorm, KeySharedStorm)
}
