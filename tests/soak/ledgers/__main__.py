"""`make soak LEDGERS=1`: break bookies, their disks, ZooKeeper and clients of ledgers for a while,
and prove that nothing is lost.

What is drawn comes from the seed; what happens depends on the machine, too.  Ends with 1 if
something is wrong; histories, data and logs stay in the directory.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

import trio

from tests.soak.ledgers.soak import BOOKIES, Settings, soak

_SEED_MAX = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.ledgers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--bookies", type=int, default=BOOKIES)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(_SEED_MAX))
    parser.add_argument("--dir", type=Path, help="for histories and data; a temporary one if none")
    chosen = parser.parse_args()
    directory = (chosen.dir or Path(tempfile.mkdtemp(prefix="daybook-soak-"))).absolute()
    report = trio.run(soak, Settings(chosen.seed, directory, chosen.minutes, chosen.bookies))
    print(*report.lines(), sep="\n")
    return int(not report.ok)


if __name__ == "__main__":
    sys.exit(main())
