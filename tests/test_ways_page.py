"""The table of ways in, in `docs/interop.md`, names what the tests try, and all of it."""

import re
from pathlib import Path

import pytest

from tests.interop import operations_table
from tests.interop.ways_in import CLIENTS, EXTRA, IN, OUT

PAGE = Path(__file__).parents[1] / "docs" / "interop.md"
HEAD = f"| way | {' | '.join(CLIENTS)} |\n{'|---' * (len(CLIENTS) + 1)}|\n"
TRIED = {way.name: way.clients for way in (*IN, *OUT)} | EXTRA
EXISTING = operations_table.test_names()


def rows() -> dict[str, tuple[str, ...]]:
    _, _, rest = PAGE.read_text().partition(HEAD)
    found: dict[str, tuple[str, ...]] = {}
    for line in rest.splitlines():
        if not line.startswith("|"):
            break
        way, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[way] = tuple(cells)
    return found


ROWS = rows()


@pytest.mark.parametrize("way", ROWS)
def test_each_cell_says_what_is_tried(way: str) -> None:
    cells = dict(zip(CLIENTS, ROWS[way], strict=True))
    for client, cell in cells.items():
        if cell == "yes":
            assert client in TRIED[way]
        elif found := re.fullmatch(r"`(test_\w+)`", cell):
            assert way not in TRIED
            assert found[1] in EXISTING
        else:
            assert cell.startswith(("not offered", "no: "))
            assert way not in TRIED or client not in TRIED[way]


def test_each_way_has_a_row() -> None:
    assert TRIED.keys() <= ROWS.keys()
