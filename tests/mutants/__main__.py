"""python -m tests.mutants [ID...]: run each mutant against the layer that should catch it.

Print a line for each mutant: what caught it, after how much, in how many seconds, and its rule.
End with `N mutants, N caught`, and with status 1 if one survives.  `--write` keeps the outcome in
`catches.jsonl`, so that the next run begins with the last catcher of a mutant.  `--list` only
lists the mutants, `--table` prints the kept outcomes, and `--invariants` prints which mutants break
which invariant; its status is 1 if an invariant has no mutant.
"""

import argparse
import os
import sys

from tests.mutants import document, invariants
from tests.mutants.everything import ALL
from tests.mutants.layers import Catch, hunt
from tests.mutants.off import OFF
from tests.mutants.patch import Mutant, SourceChangedError


def main() -> int:
    options = _parser().parse_args()
    if options.invariants:
        return _show_invariants()
    mutants = [ALL[each] for each in options.ids] or list(ALL.values())
    if options.layer:
        mutants = [m for m in mutants if m.caught_by.partition(":")[0] == options.layer]
    if options.table:
        print(document.table())
        return 0
    if options.list:
        for mutant in mutants:
            print(f"{mutant.id:17} {mutant.caught_by:20} {mutant.rule}")
        return 0
    caught = sum(_hunt(mutant, write=options.write) for mutant in mutants)
    if not options.ids and not options.layer:
        for mutant_id, reason in OFF.items():
            print(f"{mutant_id:17} off: {reason}")
    print(f"{len(mutants)} mutants, {caught} caught")
    return int(caught < len(mutants))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("ids", nargs="*", metavar="ID", help="default: all")
    parser.add_argument("--layer", help="only those that this layer should catch")
    parser.add_argument("--write", action="store_true", help="keep what caught them")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--invariants", action="store_true", help="only which mutants break them")
    parser.add_argument("--table", action="store_true", help="only print the kept outcomes")
    return parser


def _hunt(mutant: Mutant, *, write: bool) -> bool:
    """Run a mutant and return True if it is caught."""
    started = _processor_s()
    try:
        found = hunt(mutant, document.last_catch(mutant.id)) or Catch(document.SURVIVES, "")
    except SourceChangedError:
        found = Catch(document.CODE_CHANGED, "")
    seconds = _processor_s() - started
    line = f"{mutant.id:17} {found.by:20} {found.after:18} {seconds:7.1f} s  {mutant.rule}"
    print(line, flush=True)
    if write:
        document.note(mutant, found.by, found.after, seconds)
    return found.by not in document.MISSED


def _show_invariants() -> int:
    holes = invariants.holes()
    print(invariants.table())
    for hole in holes:
        print(hole, file=sys.stderr)
    return int(bool(holes))


def _processor_s() -> float:
    """Return the CPU seconds of this process, and of its children that have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
