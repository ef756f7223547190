"""A random search: inputs are generated, or made from known ones by changes, joins and cuts.

Now and then it traces an input, and keeps it if it reaches something new.
"""

import random
import time
from collections.abc import Callable
from typing import Any

from tests.fuzz import corpus
from tests.fuzz.target import Target

_LOOK_EVERY = 25  # Tracing takes as long as ten inputs.
_CHANGES_MAX = 8
_PIECE_BYTES_MAX = 12


def wander(
    target: Target,
    seconds: float,
    one: Callable[[bytes], None],
    rng: random.Random,
    facts: dict[str, Any],
) -> None:
    """Call `one` with inputs; `facts` report the progress."""
    directory = corpus.work_directory(target)
    pool = sorted(file.read_bytes() for file in directory.iterdir())
    reached: set[object] = set()
    for data in target.seeds().values():
        reached |= corpus.reach(target, data)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = changed(pool, rng, target.input_bytes_max)
        one(data)
        count += 1
        if count % _LOOK_EVERY == 0:
            new = corpus.reach(target, data) - reached
            if new:
                reached |= new
                pool.append(data)
                (directory / corpus.name_of(data)).write_bytes(data)
            facts |= {"coverage": len(reached), "inputs": len(pool)}


def changed(pool: list[bytes], rng: random.Random, bytes_max: int) -> bytes:
    """Return an input like the known ones, or a new one."""
    if rng.random() < 0.3:
        return rng.randbytes(int(bytes_max * rng.random() ** 2))
    data = bytearray(rng.choice(pool))
    for _ in range(rng.randint(1, _CHANGES_MAX)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                del data[at : at + rng.randint(1, _PIECE_BYTES_MAX)]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, _PIECE_BYTES_MAX))
            case 3:
                other = rng.choice(pool)
                start = rng.randrange(len(other) + 1)
                data[at:] = other[start:]
            case _:
                data[at:at] = data[rng.randrange(len(data) + 1) :][: 4 * _PIECE_BYTES_MAX]
    return bytes(data[:bytes_max])
