"""The search of one configuration, with the code as it is or with a mutant."""

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
    """Search a configuration, with a mutant if there is one; return the result."""
    if isinstance(configuration, str):
        configuration = named(configuration)
    with applied(mutant) if mutant is not None else nullcontext():
        return search(
            configuration.build(),
            configuration.name,
            seconds_max=seconds_max,
            states_max=states_max,
        )
