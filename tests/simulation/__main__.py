"""`python -m tests.simulation --seed N [--trace]`: one run of the whole cluster, from one seed."""

import argparse
import sys

from tests.simulation.failover import run_failover


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trace", action="store_true", help="print what happened")
    arguments = parser.parse_args()
    try:
        result = run_failover(arguments.seed, print if arguments.trace else None)
    except BaseException as error:
        print(f"seed {arguments.seed}: FAILED: {error!r}")
        raise
    print(f"seed {arguments.seed}: ok, {result.steps} steps, trace {result.trace}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
