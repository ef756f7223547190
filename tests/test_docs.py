"""The pages for readers: their links, commands and targets exist; the site has all pages."""

import re
import tomllib
from pathlib import Path

import click
import pytest

from daybook.clients.cli.main import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = (ROOT / "mkdocs.yml").read_text()
NOT_IN_THE_SITE = {"invariants.md", "mutants.md", "tree.md"}  # These pages are printed by commands.
NAMES = sorted(
    name
    for path in DOCS.rglob("*.md")
    if (name := str(path.relative_to(DOCS))) not in NOT_IN_THE_SITE
)
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(DOCS / name for name in NAMES)]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site give to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.name not in NOT_IN_THE_SITE, link
        assert not anchor or anchor in anchors(target), link
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{link}: the site has the pages of docs/ only"


def test_the_site_lists_each_page() -> None:
    navigation = SITE.partition("\nnav:\n")[2]
    assert sorted(re.findall(r"[\w/]+\.md$", navigation, re.MULTILINE)) == NAMES


def code(page: Path) -> list[str]:
    """Return the code of a page: the text between back quotes, and the lines of its blocks."""
    fenced = FENCED.findall(page.read_text())
    blocks = [block for _, language, block in fenced if language not in ("python", "mermaid")]
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))
    indented = re.findall(r"^    (.*)$", prose(page), re.MULTILINE)
    return indented + [line for block in blocks for line in block.splitlines()] + spans


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_commands_that_a_page_names_are_there(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in code(page):
        for named in re.findall(r"pip install '\.\[(\w+)\]'", line):
            assert named in extras, line
        for named in re.findall(r"^make ([a-z][a-z-]+)", line):
            assert named in targets, line
        for words in re.findall(r"(?:^|[|] )daybook ([a-z -]+)", line):
            check_command(words.split())


def check_command(words: list[str]) -> None:
    """Check a command; its first words are names, until there is a command without subcommands."""
    command: click.Command = main
    for index, word in enumerate(words):
        if not isinstance(command, click.Group) or word.startswith("-"):
            return
        below = command.get_command(click.Context(command), word)
        assert below is not None, f"daybook {' '.join(words[: index + 1])}"
        command = below
