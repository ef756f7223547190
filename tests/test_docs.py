"""The pages for readers: each link leads to a page and a heading, and the site lists each page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = (ROOT / "mkdocs.yml").read_text()
NOT_IN_THE_SITE = {"invariants.md", "mutants.md", "tree.md"}  # Commands print these.
NAMES = sorted(
    name
    for path in DOCS.rglob("*.md")
    if (name := str(path.relative_to(DOCS))) not in NOT_IN_THE_SITE
)
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(DOCS / name for name in NAMES)]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
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
