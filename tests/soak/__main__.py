"""`make soak`: break a cluster of real processes for a while, and prove that nothing is lost.

Rounds of faults for --minutes, or --kills of topics' owners in a row.  What is drawn comes from the
seed; what happens depends on the machine, too.  Ends with 1 if something is wrong, and keeps what
the cluster had on its disks, and its logs, beside the histories.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

import trio

from tests.soak.soak import Settings, soak

_SEED_MAX = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10.0)
    length.add_argument("--kills", type=int, default=0, help="of owners, instead of minutes")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(_SEED_MAX))
    parser.add_argument("--dir", type=Path, help="for histories and data; a temporary one if none")
    chosen = parser.parse_args()
    directory = (chosen.dir or Path(tempfile.mkdtemp(prefix="daybook-soak-"))).absolute()
    minutes = 0.0 if chosen.kills else chosen.minutes
    settings = Settings(chosen.seed, directory, minutes, chosen.kills)
    report = trio.run(soak, settings)
    print(*report.lines(), sep="\n")
    return int(not report.ok)


if __name__ == "__main__":
    sys.exit(main())
