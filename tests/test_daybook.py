"""The package `daybook`: its public names have public homes, and load nothing until used."""

import pickle
import pydoc
import subprocess
import sys
from importlib import import_module

import pytest

import daybook
from daybook.clients.python import errors

MODULES = ["admin", "aio", "blocking", "ledgers", "ledgers.blocking", "testing"]


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_importing_it_loads_nothing_else() -> None:
    loaded = "m for m in sys.modules if m == 'trio' or m.startswith('daybook.')"
    assert run(f"import sys, daybook; print([{loaded}])") == "[]"


def test_everything_it_names_is_there() -> None:
    for name in daybook.__all__:
        assert getattr(daybook, name) is not None


@pytest.mark.parametrize("module", MODULES)
def test_its_modules_can_be_imported_by_name(module: str) -> None:
    name = "connect" if "blocking" in module or module == "ledgers" else ""
    code = f"import daybook.{module} as m; print(m.__name__, m.{name or '__doc__'} is not None)"
    assert run(code).endswith(" True")
    assert import_module(f"daybook.{module}").__doc__


def test_help_lists_what_there_is() -> None:
    text = pydoc.plain(pydoc.render_doc(daybook))
    for name in ("class Client", "class Producer", "class BusyError", "connect(", "may_retry("):
        assert name in text


def test_each_error_is_shown_and_pickled_by_its_public_name() -> None:
    for name, kind in vars(errors).items():
        if not name.startswith("_") and isinstance(kind, type) and issubclass(kind, Exception):
            assert getattr(daybook, name) is kind
            assert pickle.loads(pickle.dumps(kind)) is kind
            assert kind.__module__ == "daybook"


def test_no_module_is_loaded_by_a_name_without_daybook() -> None:
    code = """
import importlib, pkgutil, sys, daybook
for each in pkgutil.walk_packages(daybook.__path__, "daybook."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
bare = {"wire", "bookie", "managed_ledger", "broker", "clients"}
print(sorted(m for m in sys.modules if m.partition(".")[0] in bare), len(sys.modules) > 500)
"""
    assert run(code) == "[] True"
