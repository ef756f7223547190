"""The allowed imports between packages: their direction is part of the design, and tested here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ["wire", "bookie", "managed_ledger", "broker", "clients"]

# The packages or modules below `daybook` that a module may import; the longest prefix of its path
# decides.
ALLOWED: dict[str, set[str]] = {
    "wire": {"wire"},
    "bookie": {"wire", "bookie.errors"},
    "bookie/registry": {"wire", "bookie.errors", "bookie.registry"},
    "bookie/storage": {"wire", "bookie.errors", "bookie.storage"},
    "bookie/ledger": {
        "wire",
        "bookie.errors",
        "bookie.registry",
        "bookie.ledger",
    },
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
        "bookie.errors",
        "bookie.ledger",
        "bookie.registry",
        "bookie.replication",
        "bookie.storage.offline",
        "broker.security.keys",
        "broker.security.revoked",
        "broker.security.tokens",
        "managed_ledger",
    },
    "clients/ledgers": {
        "wire",
        "clients",
        "bookie.errors",
        "bookie.ledger",
        "bookie.registry",
    },
    "clients/pipelines": {"wire", "clients", "managed_ledger.sinks"},
    "clients/spark": {
        "wire",
        "clients",
        "bookie.errors",
        "bookie.ledger",
        "managed_ledger",
    },
    "clients/testing": set(LAYERS),
    "daybook": {"clients", "wire.version"},
}
IMPURE = {"trio", "socket", "os", "time", "random", "threading", "asyncio", "logging", "pathlib"}
MODULES = sorted(
    path.relative_to(ROOT)
    for top in [*LAYERS, "daybook"]
    for path in (ROOT / top).rglob("*.py")  # does not follow the links in daybook/
    if not path.name.endswith("_pb2.py")
)
TESTS = sorted(
    path.relative_to(ROOT)
    for top in ("tests", "bench", "tools", "examples")
    for path in (ROOT / top).rglob("*.py")
)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_downwards(module: Path) -> None:
    parent = module.parent.as_posix()
    allowed = ALLOWED[max((p for p in ALLOWED if f"{parent}/".startswith(f"{p}/")), key=len)]
    for name in imported(module):
        layer = name.removeprefix("daybook.")
        if layer.partition(".")[0] in LAYERS:
            assert any(layer == a or layer.startswith(f"{a}.") for a in allowed), (
                f"{parent} may not import {layer}: see docs/architecture.md"
            )


@pytest.mark.parametrize("module", [m for m in MODULES if "protocol" in m.parts], ids=str)
def test_protocols_are_pure(module: Path) -> None:
    assert not {name.partition(".")[0] for name in imported(module)} & IMPURE


@pytest.mark.parametrize("package", LAYERS)
def test_no_module_is_called_common_core_or_utils(package: str) -> None:
    names = {path.stem for path in (ROOT / package).rglob("*")}
    assert not names & {"common", "core", "utils", "util", "helpers", "misc"}


@pytest.mark.parametrize("module", [*MODULES, *TESTS], ids=str)
def test_no_module_is_imported_by_a_name_without_daybook(module: Path) -> None:
    bare = [name for name in imported(module) if name.partition(".")[0] in LAYERS]
    assert not bare, f"import daybook.{bare[0]}: a bare name makes a second copy of each class"


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] != "daybook"], ids=str)
def test_nothing_inside_imports_the_public_package(module: Path) -> None:
    assert "daybook" not in imported(module) or module.parts[:2] == ("clients", "cli")


def test_the_links_below_daybook_lead_to_the_layers() -> None:
    links = {
        path.name: path.readlink() for path in (ROOT / "daybook").iterdir() if path.is_symlink()
    }
    assert links == {layer: Path("..") / layer for layer in LAYERS}


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
