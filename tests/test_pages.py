"""Modules and tests that the pages for readers name exist."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRINTED = {"tree.md", "mutants.md", "invariants.md"}  # by commands
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.name not in PRINTED
}
CODE = re.compile(r"`([^`\n]+)`|^    ([^\n]+)$|^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"(?<![\w/])tests/[\w/]+(?:\.\w+)?")


def code_of(text: str) -> Iterator[str]:
    """Yield the pieces of code: between backticks, indented, and in fences."""
    for found in CODE.finditer(text):
        yield "".join(part or "" for part in found.groups())


@pytest.mark.parametrize("page", PAGES)
def test_the_modules_that_a_page_runs_exist(page: str) -> None:
    named = {
        module
        for code in code_of(PAGES[page])
        for module in re.findall(r"\bpython3? -m ([a-z_]+(?:\.[a-z_]+)*)", code)
    }
    assert {module for module in named if find_spec(module) is None} == set()


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    named = {path for code in code_of(PAGES[page]) for path in TEST.findall(code)}
    assert {path for path in named if not (ROOT / path.rstrip("/")).exists()} == set()


def test_code_is_found_in_text_examples_and_blocks() -> None:
    page = "Run `make sim`.\n\n    make test\n\n```sh\nmake lint\n```\nIt may make noise.\n"
    assert list(code_of(page)) == ["make sim", "make test", "make lint\n"]
