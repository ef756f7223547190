"""Storms over the ownership of a bundle: brokers, their sessions and guards, the metadata store.

The world is `tests.model.ownership`, with its rules.  When the storm is over, one broker has to own
the bundle, and all have to know which.
"""

from typing import ClassVar

from tests.model.ownership.system import OwnershipSettings, OwnershipSystem
from tests.model.search import Move, State
from tests.storms.walk import Walk


class OwnershipStorm(Walk[OwnershipSettings]):
    kind = "ownership"
    steps_max = 120
    faults = "breaks|expires|removes|answer is lost|no answer|refused now|a late|to release"
    rounds_at_end = 3
    signs: ClassVar[dict[str, str]] = {
        "owned": r"^created|RecordOwner.OURS",
        "somebody else's": "RecordOwner.OTHERS",
        "released": "^delete$|^deleted",
        "given": "is given the bundle",
        "session lost": "session is lost",
        "removed while alive": "removes",
        "contact lost": "breaks",
        "in doubt, and done": "answer is lost",
        "in doubt, and not done": "refused now",
        "carried out late": "a late",
        "void answers kept": "nothing dropped",
    }
    wanted: ClassVar[dict[str, float]] = {
        "owned": 0.5,
        "somebody else's": 0.1,
        "released": 0.03,
        "given": 0.002,
        "session lost": 0.05,
        "removed while alive": 0.03,
        "contact lost": 0.1,
        "in doubt, and done": 0.02,
        "in doubt, and not done": 0.02,
        "carried out late": 0.005,
    }

    def draw(self) -> OwnershipSettings:
        often = self.chance.one_of((1, 2, 4))
        return OwnershipSettings(
            brokers=self.chance.one_of((1, 2, 2, 3)),
            cuts=often,
            expiries=often,
            removals=often,
            lost_answers=often,
            releases=often,
            gives=self.chance.happens(0.5),
            drops=self.chance.happens(0.5),
        )

    def build(self, settings: OwnershipSettings) -> OwnershipSystem:
        return OwnershipSystem(settings)

    def is_wish(self, move: Move) -> bool:
        return move.text == "is asked for the bundle"

    def wrong(self, system: OwnershipSystem, state: State) -> str:
        return system.disagreement(state)
