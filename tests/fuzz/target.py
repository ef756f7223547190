"""A fuzzing target: a function of bytes, the errors it may raise, and its bounds."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from daybook.wire.messages.bookie import FRAME_BYTES_MAX


def _no_seeds() -> Mapping[str, bytes]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A function `run` that returns, or raises one of `errors`; any other error is a finding.

    A step is a line of Python.  Bounds have a constant part and one for each byte of the input;
    memory is the peak of Python's allocator.
    """

    name: str
    run: Callable[[bytes], None]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Mapping[str, bytes]] = _no_seeds
    valid: SearchStrategy[bytes] = field(default_factory=st.nothing)  # for Hypothesis
    input_bytes_max: int = 4096
    steps_max: int = 50_000
    steps_a_byte: int = 200
    memory_bytes_max: int = FRAME_BYTES_MAX
    memory_a_byte: int = 64
    examples: int = 200  # in the default suite
    weight: float = 1.0  # its share of the time of a search


class InvariantError(Exception):
    """A promise of a target does not hold."""


def require(holds: object, what: str) -> None:
    """Assert for a target: unlike `assert`, it cannot be mistaken for the fuzzed code's failure."""
    if not holds:
        raise InvariantError(what)


@contextmanager
def outermost(*errors: type[Exception]) -> Generator[None]:
    """Unwrap one of these errors from its group, if the group holds nothing else."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = group.subgroup(errors)
        if found is None or group.split(errors)[1] is not None:
            raise
        error: BaseException = found
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
