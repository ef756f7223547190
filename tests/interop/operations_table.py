"""The operations of each client: their names in its program, and in the table of `docs/interop.md`.

A cell of the table is `yes` if the program has an operation of that name, the name of another test,
or a sentence that says why there is none: the client does not offer it, or it fails.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_PAGE = _HERE.parents[1] / "docs" / "interop.md"
_COMPRESSIONS = ("lz4", "zlib", "zstd", "snappy")  # the programs have a loop for these
CLIENTS = ("Python", "Java", "Go")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table; `cells` are in the order of `CLIENTS`."""

    operation: str
    cells: tuple[str, ...]


def python_names() -> list[str]:
    text = (_HERE / "operations.py").read_text()
    methods = re.findall(r"^    def ([a-z]\w+)\(self, topic: str\) -> None:", text, re.M)
    return [name.replace("_", " ") for name in methods]


def java_names() -> list[str]:
    return _names("java/Operations.java", r'^ +run\("([^"]+)"( \+)?')


def go_names() -> list[str]:
    pattern = r'o\.run\("([^"]+)"(\s*\+)?'
    return _names("go/operations.go", pattern) + _names("go/schemas.go", pattern)


def _names(program: str, pattern: str) -> list[str]:
    found: list[str] = []
    for name, loop in re.findall(pattern, (_HERE / program).read_text(), re.M):
        found += [name + each for each in _COMPRESSIONS] if loop else [name]
    return found


def test_names() -> set[str]:
    """Return the names of the tests in this folder."""
    texts = (path.read_text() for path in _HERE.glob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.M)}


def rows() -> Iterator[Row]:
    """Yield the rows of the table."""
    _, _, rest = _PAGE.read_text().partition(
        "| operation | Python | Java | Go |\n|---|---|---|---|\n"
    )
    for line in rest.splitlines():
        if not line.startswith("|"):
            return
        operation, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        yield Row(operation, tuple(cells))
