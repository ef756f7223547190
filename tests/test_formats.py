"""`docs/formats.md` is complete and true: its links exist, and it names every golden file."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "formats.md"
GOLDEN = ROOT / "tests" / "golden"
TEXT = PAGE.read_text()
LINKS = sorted(set(re.findall(r"\]\(([^)]+)\)", TEXT)))
CODE = sorted(
    set(re.findall(r"`((?:bookie|broker|clients|wire|managed_ledger)/[\w/]+\.py)`", TEXT))
)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as a browser knows them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads}


def patterns() -> list[str]:
    """Return the golden files that the page names; a bare name is in the last directory."""
    found: list[str] = []
    for line in TEXT.splitlines():
        directory = ""
        for name in re.findall(r"`([^`]+)`", line):
            if re.match(r"[a-z_]+(_v\d|_metadata)/", name):
                directory = name.partition("/")[0]
                found.append(name)
            elif directory and re.fullmatch(r"[\w*]+(\.(hex|txt|json|log))?", name):
                found.append(f"{directory}/{name}")
    return found


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    page = PAGE.parent / path
    assert page.exists()
    assert not anchor or anchor in anchors(page)


@pytest.mark.parametrize("path", CODE)
def test_the_code_that_it_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_golden_file_is_named_and_every_name_has_a_file() -> None:
    files = [str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()]
    named = patterns()
    assert [file for file in files if not any(fnmatch(file, each) for each in named)] == []
    assert [each for each in named if not any(fnmatch(file, each) for file in files)] == []


def test_every_part_is_in_the_index() -> None:
    parts = {f"formats/{path.name}" for path in (ROOT / "docs" / "formats").glob("*.md")}
    assert parts <= set(LINKS)
