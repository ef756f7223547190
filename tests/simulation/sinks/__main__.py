"""python -m tests.simulation.sinks FIRST [LAST]: run these seeds; one alone says what happens."""

import sys
from collections import Counter

from tests.simulation.sinks.story import run_sinks


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[-1])
    total: Counter[str] = Counter()
    for seed in range(first, last + 1):
        result = run_sinks(seed, print if first == last else None)
        print(seed, result, flush=True)
        total.update(result.faults)
        total.update(batches=result.batches, drivers=result.drivers, replays=result.replays)
    print(", ".join(f"{count} x {name}" for name, count in sorted(total.items())))


if __name__ == "__main__":
    main()
