"""What is fuzzed: a function of bytes, what it may raise, and what it may cost."""

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
    """`run` returns, or raises one of `errors`; anything else that it raises is a finding.

    A step is a line of Python.  Bounds have a constant part and one for each byte of the input;
    memory is what Python's allocator gives at most at one time.
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
    """A target found that something which it promises does not hold."""


def require(holds: object, what: str) -> None:
    """An assertion of a target: unlike `assert`, no part of what is fuzzed can be blamed for it."""
    if not holds:
        raise InvariantError(what)


@contextmanager
def outermost(*errors: type[Exception]) -> Generator[None]:
    """Let one of these out of the group that it comes in, if there is nothing else in it."""
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
