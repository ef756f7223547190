"""`make soak`: break a cluster of real processes for a while, and prove that nothing is lost.

There are rounds of faults for --minutes, or --kills of topics' owners in a row.  The seed decides
the draws; the timing of the machine affects the run, too.  The exit code is 1 if something is
wrong; then the disks and the logs of the cluster are kept beside the histories.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

import trio

from tests.soak.soak import TOPICS, WORKLOADS, Settings, soak

_SEED_MAX = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10.0)
    length.add_argument("--kills", type=int, default=0, help="of owners, instead of minutes")
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=[TOPICS],
        help="topics need brokers; without topics there are none",
    )
    parser.add_argument("--bookies", type=int, default=0, help="default: as the workloads need")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(_SEED_MAX))
    parser.add_argument("--dir", type=Path, help="for histories and data; a temporary one if none")
    chosen = parser.parse_args()
    if chosen.kills and chosen.workloads != [TOPICS]:
        parser.error("--kills are of owners of topics: leave out --workloads")
    settings = Settings(
        seed=chosen.seed,
        directory=(chosen.dir or Path(tempfile.mkdtemp(prefix="daybook-soak-"))).absolute(),
        minutes=0.0 if chosen.kills else chosen.minutes,
        workloads=tuple(dict.fromkeys(chosen.workloads)),
        kills=chosen.kills,
        bookies=chosen.bookies,
    )
    report = trio.run(soak, settings)
    print(*report.lines(), sep="\n")
    return int(not report.ok)


if __name__ == "__main__":
    sys.exit(main())
