"""Mutants of the pure protocol machines, made by a tool that knows no rule.

    python -m tests.mutants.generic                            all modules of */protocol/
    python -m tests.mutants.generic broker/protocol/access.py  these modules only
    python -m tests.mutants.generic --sample 20                at most 20 mutants of each module

cosmic-ray changes one comparison, operator, number, keyword or branch at a time, and the unit tests
of that module run on the result.  A mutant that no test notices is a survivor.  Each survivor needs
a test, or a judgement: `survivors.jsonl` keeps those that change nothing that matters, with the
reason.  The command prints the other survivors and then exits with 1.

The tool edits files in place, so each job works in a copy of the tracked files.
"""

import argparse
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
JUDGED = Path(__file__).with_name("survivors.jsonl")
TIMEOUT_S = 180.0  # for all tests of one mutant; a mutant that hangs is caught

# For each operator one wrong neighbour, and for each comparison its opposite and its boundary: the
# other replacements that the tool knows die in the same tests.  Decorators and the `|` of
# annotations are no rules.
OPERATORS = re.compile(
    r"core/(?:"
    r"AddNot|NumberReplacer|Replace(?:TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd)"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ZeroIterationForLoop"
    r"|ReplaceUnaryOperator_(?:Delete_Not|USub_UAdd|Invert_UAdd)"
    r"|ReplaceBinaryOperator_(?:Add_Sub|Sub_Add|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_Add|Pow_Mul"
    r"|BitAnd_BitOr|BitXor_BitAnd|LShift_RShift|RShift_LShift)"
    r"|ReplaceComparisonOperator_(?:Eq_NotEq|NotEq_Eq|Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE"
    r"|GtE_Gt|GtE_Lt|Is_IsNot|IsNot_Is|In_NotIn|NotIn_In)"
    r")$"
)

# The tests that know the rules of a folder, the quickest first.
TESTS = {
    "bookie/ledger/protocol": ["tests/bookie/ledger"],
    "bookie/replication/protocol": ["tests/bookie/replication"],
    "broker/protocol": ["tests/broker/protocol", "tests/broker"],
    "broker/protocol/dispatch": ["tests/broker/protocol", "tests/broker"],
    "clients/python/protocol": ["tests/clients/python/protocol", "tests/clients/python"],
    "managed_ledger": ["tests/managed_ledger"],
    "managed_ledger/protocol": ["tests/managed_ledger"],
}
PYTEST = "-m pytest -x -q -m 'not real and not interop' --disable-warnings"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change that the tool makes: the operator, and the number of the place in the module."""

    module: str
    operator: str
    occurrence: int
    function: str


@dataclass(frozen=True, slots=True)
class Survivor:
    """A change that no test noticed; `before` and `after` are lines of the module."""

    module: str
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.module} {self.function}\n    - {self.before}\n    + {self.after}"


def modules() -> list[str]:
    """Return every module of every protocol folder, as a path below the repository."""
    return [
        each
        for each in _tracked("*/protocol/*.py")
        if not each.startswith("tests/") and not each.endswith("__init__.py")
    ]


def mutations_of(module: str) -> list[Mutation]:
    """Return the changes to try in this module."""
    tool = importlib.import_module("cosmic_ray.commands.init")
    found: list[Mutation] = []
    for item in tool._all_work_items([Path(module)], {}):
        (spec,) = item.mutations
        if OPERATORS.match(spec.operator_name):
            function = spec.definition_name or ""
            found.append(Mutation(module, spec.operator_name, spec.occurrence, function))
    return found


def judged() -> dict[Survivor, str]:
    """Return the survivors that change nothing that matters, each with the reason."""
    found: dict[Survivor, str] = {}
    for line in JUDGED.read_text().splitlines():
        record = json.loads(line)
        why = record.pop("why")
        found[Survivor(**record)] = why
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="mutants made by a tool; see the module's text")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="default: all of */protocol/")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N mutants of each module")
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default: 1")
    parser.add_argument("--jobs", type=int, default=2, help="default: 2")
    parser.add_argument("--write", metavar="FILE", help="append new survivors as JSON lines")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    todo: list[Mutation] = []
    for module in arguments.modules or modules():
        mutations = mutations_of(module)
        if arguments.sample is not None and len(mutations) > arguments.sample:
            mutations = random.Random(arguments.seed).sample(mutations, arguments.sample)
        todo += mutations
    return _report(_run(todo, arguments.jobs), len(todo), arguments.write)


def _run(todo: list[Mutation], jobs: int) -> Iterator[tuple[Mutation, str | None]]:
    """Yield each change with its diff if it survived, else with None."""
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(jobs, initializer=_make_copy, initargs=(folder,)) as pool,
    ):
        futures = {pool.submit(_survives, each): each for each in todo}
        for done, future in enumerate(as_completed(futures), 1):
            if sys.stderr.isatty() or done % 100 == 0:
                print(f"\r{done} of {len(todo)}", end="", file=sys.stderr, flush=True)
            yield futures[future], future.result()


def _make_copy(folder: str) -> None:
    """Go to a copy of the tracked files that belongs to this process alone."""
    copy = Path(folder, str(os.getpid()))
    for each in _tracked():
        target = copy / each
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / each, target, follow_symlinks=False)
    os.chdir(copy)
    # The unchanged modules are compiled once.  The tests write no compiled files: two mutants of
    # one size within one second would be taken for each other.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "."], check=False)


def _survives(mutation: Mutation) -> str | None:
    """Run the tests on this change; return its diff if they pass, else None."""
    mutating = importlib.import_module("cosmic_ray.mutating")
    work: Any = importlib.import_module("cosmic_ray.work_item")
    spec = work.MutationSpec(
        module_path=Path(mutation.module),
        operator_name=mutation.operator,
        occurrence=mutation.occurrence,
        start_pos=(0, 0),
        end_pos=(0, 1),
    )
    diff: str | None = None
    for tests in TESTS[str(Path(mutation.module).parent)]:
        result = mutating.mutate_and_test([spec], f"{sys.executable} {PYTEST} {tests}", TIMEOUT_S)
        if result.worker_outcome != work.WorkerOutcome.NORMAL:
            raise RuntimeError(f"the tool failed at {mutation}: {result.output}")
        if result.test_outcome != work.TestOutcome.SURVIVED:
            return None
        diff = result.diff
    return diff


def _report(outcomes: Iterator[tuple[Mutation, str | None]], count: int, write: str | None) -> int:
    known = judged()
    survived: list[Survivor] = []
    for mutation, diff in outcomes:
        if diff is not None:
            survived.append(_survivor(mutation, diff))
    new = sorted({each for each in survived if each not in known}, key=str)
    for each in new:
        print(each)
    if write is not None:
        with Path(write).open("a") as file:
            file.writelines(json.dumps(asdict(each) | {"why": ""}) + "\n" for each in new)
    kept = len(survived) - len(new)
    print(f"{count} mutants, {count - len(survived)} caught, {kept} judged, {len(new)} to judge")
    return 1 if new else 0


def _survivor(mutation: Mutation, diff: str) -> Survivor:
    # The lines before the first hunk differ between versions of the tool.
    lines = diff[diff.index("\n@@") :].splitlines()
    before = [line[1:].strip() for line in lines if line.startswith("-")]
    after = [line[1:].strip() for line in lines if line.startswith("+")]
    return Survivor(mutation.module, mutation.function, " ".join(before), " ".join(after))


def _tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *patterns], check=True, capture_output=True, text=True
    )
    return [each for each in listed.stdout.splitlines() if Path(ROOT, each).exists()]


if __name__ == "__main__":
    sys.exit(main())
