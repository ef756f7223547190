"""All mutants: those of the catalogue, and the additional ones of the model checker.

A mutant that both have is here once, with the layer that the catalogue names.
"""

from tests.model.cases import CASES
from tests.mutants.catalogue import BY_ID
from tests.mutants.off import OFF
from tests.mutants.patch import Mutant

ALL: dict[str, Mutant] = {case.mutant.id: case.mutant for case in reversed(CASES)}
ALL = {**BY_ID, **{mutant_id: ALL[mutant_id] for mutant_id in sorted(ALL.keys() - BY_ID.keys())}}

assert not ALL.keys() & OFF.keys(), "a mutant is on and off"
