"""`docs/tree.md` lists every file with what it says of itself, and is up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_tree_is_up_to_date() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: what is kept here is not known")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "tree.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
