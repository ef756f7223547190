"""The garbage collector of Python, which stops the whole process: what is left to it in a test."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect what earlier tests have left, and switch the collector off for a block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left_to_the_collector(at_least: int) -> dict[str, int]:
    """Return the classes of ours of which so many objects only refer to each other."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        # The simulated streams refer to each other; real sockets do not.
        kinds = [type(each) for each in gc.garbage]
        ours = [kind for kind in kinds if kind.__module__.startswith("daybook.")]
        counts = Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in ours)
        return {name: count for name, count in counts.items() if count >= at_least}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
