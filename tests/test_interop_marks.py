"""Each release of BookKeeper runs the tests of its own software, and only one runs the others."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.interop.conftest import OF_BOOKKEEPER

ROOT = Path(__file__).parents[1]
INTEROP = ROOT / "tests" / "interop"
# Whole files, and the one with tests of both kinds.
FILES = {
    "test_auto_recovery.py",
    "test_bookie_security.py",
    "test_faults.py",
    "test_our_brokers.py",
    "test_our_client.py",
    "test_pulsar_cursors.py",
    "test_their_client.py",
    "test_their_tools.py",
}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_mark_selects_these_tests() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "bookkeeper"]
    done = subprocess.run(
        [*command, str(INTEROP)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert {Path(line.partition("::")[0]).name for line in found} == FILES
    cursors = [line.partition("::")[2] for line in found if "test_pulsar_cursors" in line]
    assert cursors == ["test_after_a_crash_of_ours_pulsar_skips_nothing[apache]"]


def test_no_test_reaches_bookkeepers_software_past_the_marked_fixtures() -> None:
    for path in INTEROP.glob("*.py"):
        if path.name not in ("apache.py", "conftest.py"):
            assert "apache_here(" not in path.read_text(), path.name
    for function in functions(INTEROP / "conftest.py"):
        if {argument.arg for argument in function.args.args} & {"release", *OF_BOOKKEEPER}:
            # Clusters need ZooKeeper, which comes with BookKeeper and is no part of it.
            assert function.name in {"zookeeper", *OF_BOOKKEEPER}
        if "add_apache" in ast.unparse(function):
            assert function.name in OF_BOOKKEEPER


def test_fixtures_are_taken_by_names_that_the_mark_can_see() -> None:
    for path in INTEROP.glob("test_*.py"):
        for function in functions(path):
            names = {argument.arg for argument in function.args.args}
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(
                    "getfixturevalue"
                ):
                    (name,) = map(ast.unparse, call.args)
                    assert name in {"request.param", *names}, (path.name, function.name)
