"""Who may import whom.  The direction is part of the design, so it is tested like the rest."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["wire", "bookie", "managed_ledger", "broker", "clients", "daybook"]

# The longest prefix of a module's path decides; names are packages or modules that it may import.
ALLOWED: dict[str, set[str]] = {
    "wire": {"wire"},
    "bookie": {"wire", "bookie.errors"},
    "bookie/registry": {"wire", "bookie.errors", "bookie.registry"},
    "bookie/storage": {"wire", "bookie.errors", "bookie.storage"},
    "bookie/ledger": {"wire", "bookie.errors", "bookie.registry", "bookie.ledger"},
    "bookie/server": {
        "wire",
        "bookie.errors",
        "bookie.registry",
        "bookie.storage",
        "bookie.ledger",
        "bookie.replication",
        "bookie.server",
    },
    "bookie/replication": {
        "wire",
        "bookie.errors",
        "bookie.registry",
        "bookie.ledger",
        "bookie.replication",
    },
    "managed_ledger": {
        "wire",
        "bookie.errors",
        "bookie.ledger",
        "bookie.registry",
        "managed_ledger",
    },
    "broker": {
        "wire",
        "bookie.errors",
        "bookie.registry",
        "bookie.ledger",
        "managed_ledger",
        "broker",
    },
    "clients": {"wire", "clients"},
    "clients/cli": {
        "wire",
        "clients",
        "daybook",
        "bookie.errors",
        "bookie.ledger",
        "bookie.registry",
        "bookie.replication",
        "bookie.storage.offline",
        "managed_ledger",
    },
    "clients/ledgers": {
        "wire",
        "clients",
        "bookie.errors",
        "bookie.ledger",
        "bookie.registry",
    },
    "clients/spark": {"wire", "clients", "bookie.errors", "bookie.ledger", "managed_ledger"},
    "clients/testing": set(PACKAGES),
    "daybook": {"clients", "daybook"},
}
IMPURE = {"trio", "socket", "os", "time", "random", "threading", "asyncio", "logging", "pathlib"}
MODULES = sorted(
    path.relative_to(ROOT)
    for top in PACKAGES
    for path in (ROOT / top).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_downwards(module: Path) -> None:
    parent = module.parent.as_posix()
    allowed = ALLOWED[max((p for p in ALLOWED if f"{parent}/".startswith(f"{p}/")), key=len)]
    for name in imported(module):
        if name.partition(".")[0] in PACKAGES:
            assert any(name == a or name.startswith(f"{a}.") for a in allowed), name


@pytest.mark.parametrize("module", [m for m in MODULES if "protocol" in m.parts], ids=str)
def test_protocols_are_pure(module: Path) -> None:
    assert not {name.partition(".")[0] for name in imported(module)} & IMPURE


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_called_common_core_or_utils(package: str) -> None:
    names = {path.stem for path in (ROOT / package).rglob("*")}
    assert not names & {"common", "core", "utils", "util", "helpers", "misc"}


def test_nothing_inside_imports_the_public_package() -> None:
    for module in MODULES:
        if module.parts[0] != "daybook" and module.parts[:2] != ("clients", "cli"):
            assert not any(n == "daybook" or n.startswith("daybook.") for n in imported(module))


def imported(module: Path) -> set[str]:
    return set(imports(ast.parse((ROOT / module).read_text())))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name), names=names):
                yield name
            case _:
                pass
