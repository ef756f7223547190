"""The package `daybook`: what it offers is there, and costs nothing until it is used."""

import subprocess
import sys

import daybook


def test_importing_it_loads_nothing_else() -> None:
    code = (
        "import sys, daybook; "
        "print([m for m in sys.modules if m.split('.')[0] in ('trio', 'clients', 'wire')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_everything_it_names_is_there() -> None:
    for name in dir(daybook):
        if not name.startswith("_") and name not in ("spark", "testing"):
            assert getattr(daybook, name) is not None
