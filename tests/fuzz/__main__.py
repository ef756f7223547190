"""python -m tests.fuzz [TARGET...] [--minutes M] [--save] | TARGET --repeat FILE | --list

Search for inputs that break a promise, and end with 1 if one was found.  `--save` puts inputs
that reach something new into the corpus of the repository.  TARGET may be the beginning of names.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.bounds import FindingError, check_memory, check_steps, examine
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all of them together")
    parser.add_argument("--save", action="store_true", help="keep what reaches something new")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="only this input")
    parser.add_argument("--list", action="store_true", help="only list the targets")
    options = parser.parse_args()
    targets = _chosen(options.targets)
    if not targets:
        parser.error(f"no such target; there are {', '.join(TARGETS)}")
    if options.list:
        print(*(target.name for target in targets), sep="\n")
        return 0
    if options.repeat is not None:
        return max(_repeat(target, options.repeat.read_bytes()) for target in targets)
    return _search(targets, options.minutes, save=options.save)


def _chosen(names: list[str]) -> list[Target]:
    if not names:
        return list(TARGETS.values())
    chosen: dict[str, Target] = {}
    for name in names:
        names_meant = [name] if name in TARGETS else [n for n in TARGETS if n.startswith(name)]
        chosen |= {each: TARGETS[each] for each in names_meant}
    return list(chosen.values())


def _repeat(target: Target, data: bytes) -> int:
    try:
        outcome = examine(target, data)
        steps, memory = check_steps(target, data), check_memory(target, data)
    except FindingError as finding:
        print(finding)
        return 1
    print(f"{target.name}: {outcome.name.lower()}, {steps:,} steps, {memory:,} bytes")
    return 0


def _search(targets: list[Target], minutes: float, *, save: bool) -> int:
    if find_spec("atheris") is None:
        print("atheris is missing: pip install -e '.[fuzz]'", file=sys.stderr)
        return 2
    from tests.fuzz.search import search

    results = search(targets, minutes)
    if save:
        for target in targets:
            print(f"{target.name:18} {corpus.save(target):3} inputs in the corpus")
    executions = sum(each.executions for each in results)
    findings = sum(len(each.findings) + bool(each.died) for each in results)
    print(f"{len(results)} targets, {executions:,} executions, {findings} findings")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
