"""Search one configuration, with the code as it is or with a rule of it broken."""

from contextlib import nullcontext

from tests.model.configurations import Configuration, named
from tests.model.search import STATES_MAX, Result, search
from tests.mutants.patch import Mutant, applied


def check(
    configuration: Configuration | str,
    mutant: Mutant | None = None,
    *,
    seconds_max: float = float("inf"),
    states_max: int = STATES_MAX,
) -> Result:
    """`violation` is empty if no rule was broken; `finished`, if everything was seen."""
    if isinstance(configuration, str):
        configuration = named(configuration)
    with applied(mutant) if mutant is not None else nullcontext():
        return search(
            configuration.build(),
            configuration.name,
            seconds_max=seconds_max,
            states_max=states_max,
        )
