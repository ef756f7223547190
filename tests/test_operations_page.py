"""The table of client operations in `docs/interop.md` names what exists, and all of it."""

import re

import pytest

from tests.interop import operations_table
from tests.interop.operations_table import (
    CLIENTS,
    Row,
    go_names,
    java_names,
    python_names,
    rows,
)

NAMES = {"Python": python_names(), "Java": java_names(), "Go": go_names()}
ROWS = list(rows())
EXISTING = operations_table.test_names()


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operation)
def test_each_cell_names_what_exists(row: Row) -> None:
    assert len(row.cells) == len(CLIENTS)
    for client, cell in zip(CLIENTS, row.cells, strict=True):
        if cell == "yes":
            assert plain(row.operation) in map(plain, NAMES[client]), client
        elif found := re.fullmatch(r"`(test_\w+)`", cell):
            assert found[1] in EXISTING, cell
        else:
            assert cell.startswith(("not offered", "no: ")), (client, cell)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_operation_has_a_row(client: str) -> None:
    index = CLIENTS.index(client)
    passed = {plain(row.operation) for row in ROWS if row.cells[index] == "yes"}
    assert passed == set(map(plain, NAMES[client]))


def test_the_table_is_there() -> None:
    assert len(ROWS) >= 60
