"""`python -m tests.history FILE...`: check the one history in these files.

Print violations, the number of events of each kind, and the longest times without a receipt.  End
with 1 if there is a violation.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.history.availability import gaps
from tests.history.check import check
from tests.history.recorder import load

_SHOWN_MAX = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    events = load(*parser.parse_args().files)
    violations = check(events)
    for violation in violations[:_SHOWN_MAX]:
        print(violation)
    kinds = Counter(type(stamped.event).__name__ for stamped in events)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    for gap in gaps(events)[:5]:
        print(f"{gap.seconds:.3f} s without a receipt; the last fault: {gap.fault or 'none'}")
    print(f"{len(events)} events, {len(violations)} violations")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
