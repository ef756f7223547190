"""Run a target on one input and judge the outcome.

A long time is only a suspicion, since machines differ and are busy: an input that took long is run
again under a counter of lines, whose verdict is the same everywhere.  Memory is measured only on
request (`measure`), since that doubles the time.  C code that runs without a line of Python is
bounded by `CPU_S_MAX`.
"""

import sys
import time
import traceback
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.target import InvariantError, Target

CPU_S_MAX = 20.0
_STEP_S = 1e-6  # seconds; few steps take longer
_ROOT = Path(__file__).parents[2]
_MIB = 1 << 20


class Outcome(Enum):
    ACCEPTED = auto()
    REFUSED = auto()  # with one of the declared errors


class FindingError(Exception):
    """An input breaks a promise.  `signature` is the same for inputs that break it alike."""

    def __init__(self, target: str, signature: str, detail: str) -> None:
        super().__init__(f"{target}: {signature}\n{detail}")
        self.target = target
        self.signature = signature
        self.detail = detail


def examine(target: Target, data: bytes, *, measure: bool = False) -> Outcome:
    """Run the target.  Raise FindingError."""
    started = time.thread_time()
    outcome = _run(target, data)
    took_s = time.thread_time() - started
    if took_s > CPU_S_MAX:
        raise FindingError(target.name, "too slow", f"{took_s:.1f} s of processor time")
    if measure or took_s > _steps_limit(target, data) * _STEP_S:
        check_steps(target, data)
    if measure:
        check_memory(target, data)
    return outcome


def _run(target: Target, data: bytes) -> Outcome:
    try:
        target.run(data)
    except target.errors:
        return Outcome.REFUSED
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A panic of a native library is a BaseException, too.
        innermost = _innermost(error)
        detail = "".join(traceback.format_exception(innermost))
        raise FindingError(target.name, _signature(innermost), detail) from error
    return Outcome.ACCEPTED


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _signature(error: BaseException) -> str:
    """Return the error's type and place: the innermost function of our code."""
    if isinstance(error, InvariantError):
        return str(error)
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and ".venv" not in path.parts:
            where = f"{path.relative_to(_ROOT)}:{line} {frame.f_code.co_name}"
    return f"{type(error).__name__} in {where}"


# -- steps


class _StepsExceeded(BaseException):
    """Raised above the limit; not an Exception, so that no fuzzed code catches it."""


def check_steps(target: Target, data: bytes) -> int:
    """Return the number of steps.  Raise FindingError."""
    limit = _steps_limit(target, data)
    with _counted(limit) as count:
        try:
            _run(target, data)
        except BaseException:
            # The error may be any, perhaps a group, raised on the way out: the count tells why.
            if count() <= limit:
                raise
    if count() > limit:
        what = f"more than {limit:,} for {len(data)} bytes"
        raise FindingError(target.name, "too many steps", what)
    return count()


def _steps_limit(target: Target, data: bytes) -> int:
    return target.steps_max + target.steps_a_byte * len(data)


@contextmanager
def _counted(limit: int) -> Generator[Callable[[], int]]:
    steps = 0

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if steps > limit:
                raise _StepsExceeded
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        yield lambda: steps
    finally:
        sys.settrace(before)


# -- memory


def check_memory(target: Target, data: bytes) -> int:
    """Return the peak of allocated bytes.  Raise FindingError."""
    limit = target.memory_bytes_max + target.memory_a_byte * len(data)
    tracemalloc.start()
    try:
        _run(target, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if peak > limit:
        raise FindingError(
            target.name,
            "too much memory",
            f"{peak / _MIB:.1f} MiB for {len(data)} bytes, at most {limit / _MIB:.1f} were meant",
        )
    return peak
